//! The HTTP clients of the process, and the threads that run them.
//!
//! All sources with the same settings of connections share a client, and with it connections that are kept alive. The clients
//! share two threads, however many sources there are; names of hosts are looked up on further threads, which end again.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gst::glib;
use reqwest::{Certificate, Client, Proxy};
use tokio::runtime::{Builder, Runtime};

use super::core::{Location, LocationError};
use crate::kit::lock;

/// Copying from sockets to buffers takes less than a thread for thousands of radio streams; the second one is for TLS.
const THREADS: usize = 2;
/// A look-up blocks its thread. So many names that do not answer hold up the look-up of others.
const LOOKUPS_MAX: usize = 16;
/// Clients with other settings than the last ones are made anew.
const CLIENTS_MAX: usize = 16;
/// Connections without a user, for each host.
const IDLE_MAX: usize = 32;
/// Finds connections whose other end has gone without a word.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// What a server may send of a stream that nobody reads.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Streams of one host share a connection: those that are paused must not take its window from the others (RFC 9113, section
/// 5.2: at most 2^31-1).
const CONNECTION_WINDOW_BYTES: u32 = i32::MAX as u32;
/// As [`super::core::check_size`] has it, whose complaint is clearer.
const HEADERS_BYTES_MAX: u32 = 128 << 10;

/// What connections are like. Not to be printed: it holds a password.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Connecting {
    pub(super) proxy: Option<String>,
    pub(super) proxy_id: Option<String>,
    pub(super) proxy_pw: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) strict: bool,
    pub(super) compress: bool,
    pub(super) keep_alive: bool,
}

impl Connecting {
    /// Whether no proxy is named, here or in the environment.
    pub(super) fn is_direct(&self) -> bool {
        let own = self.proxy.as_deref().is_some_and(|proxy| !proxy.is_empty());
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        !own && !PROXIES.iter().any(is_set)
    }
}

/// As the client reads them.
const PROXIES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

/// Why there is no client. Each names the property.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("proxy={0}")]
    Proxy(#[from] LocationError),
    #[error("ssl-ca-file='{path}': {reason}; expected a file of certificates (PEM)")]
    CaFile { path: String, reason: String },
    #[error("no HTTP client: {0}")]
    Build(String),
}

/// Clients, by what their connections are like. The value of the context `gst.reqwest.client`: elements with the same one share
/// connections.
#[derive(Clone, Default, glib::Boxed)]
#[boxed_type(name = "ThreadbareHttpClients")]
pub(super) struct Clients(Arc<Mutex<Vec<(Connecting, Client)>>>);

impl Clients {
    /// Those of all elements that are given no other ones.
    pub(super) fn of_process() -> Clients {
        static ALL: OnceLock<Clients> = OnceLock::new();
        ALL.get_or_init(Clients::default).clone()
    }

    /// The client for such connections. Reads files of certificates: not for a context's thread.
    pub(super) fn client(&self, wanted: &Connecting) -> Result<Client, ClientError> {
        let find = |known: &Vec<(Connecting, Client)>| {
            let found = known.iter().find(|(connecting, _)| connecting == wanted);
            found.map(|(_, client)| client.clone())
        };
        if let Some(client) = find(&lock(&self.0)) {
            return Ok(client);
        }
        let made = make(wanted)?;
        let mut known = lock(&self.0);
        // Another element may have been faster.
        if let Some(client) = find(&known) {
            return Ok(client);
        }
        // Its users keep the oldest one as long as they need it.
        let oldest = (known.len() == CLIENTS_MAX).then(|| known.remove(0));
        known.push((wanted.clone(), made.clone()));
        drop(known);
        drop(oldest);
        Ok(made)
    }
}

fn make(wanted: &Connecting) -> Result<Client, ClientError> {
    let mut builder = Client::builder()
        // Redirections are followed by the caller, which sees each of them.
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .gzip(wanted.compress)
        .danger_accept_invalid_certs(!wanted.strict)
        .pool_max_idle_per_host(if wanted.keep_alive { IDLE_MAX } else { 0 })
        .tcp_keepalive(KEEPALIVE)
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADERS_BYTES_MAX);
    if let Some(path) = &wanted.ca_file {
        let refused = |reason: String| ClientError::CaFile {
            path: path.clone(),
            reason,
        };
        let text = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        let bundle = Certificate::from_pem_bundle(&text);
        let bundle = bundle.map_err(|_| refused("no certificates".to_owned()))?;
        if bundle.is_empty() {
            return Err(refused("no certificates".to_owned()));
        }
        builder = builder.tls_built_in_root_certs(false);
        for certificate in bundle {
            builder = builder.add_root_certificate(certificate);
        }
    }
    if let Some(proxy) = wanted.proxy.as_deref().filter(|proxy| !proxy.is_empty()) {
        builder = builder.proxy(through(proxy, wanted)?);
    }
    let built = builder.build();
    built.map_err(|error| ClientError::Build(causes(&error.without_url())))
}

/// `http://host:port`, or without the scheme, as the stock element takes it.
fn through(proxy: &str, wanted: &Connecting) -> Result<Proxy, ClientError> {
    let location = match proxy.contains("://") {
        true => Location::parse(proxy),
        false => Location::parse(&format!("http://{proxy}")),
    }?;
    let made = Proxy::all(location.url().clone());
    let made = made.map_err(|error| ClientError::Build(causes(&error.without_url())))?;
    let given = wanted.proxy_id.clone().filter(|id| !id.is_empty());
    let given = given.map(|id| (id, wanted.proxy_pw.clone().unwrap_or_default()));
    let credentials = given.or_else(|| location.credentials().cloned());
    Ok(match credentials {
        Some((id, password)) => made.basic_auth(&id, &password),
        None => made,
    })
}

/// An error and what it comes from, in one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// The threads, started at first use. They outlast all elements, as connections that are kept alive do.
pub(super) fn runtime() -> Result<&'static Runtime, ClientError> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let built = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(LOOKUPS_MAX)
            .thread_name("ts-http")
            .enable_io()
            .enable_time()
            .build();
        built.map_err(|error| error.to_string())
    });
    made.as_ref()
        .map_err(|reason| ClientError::Build(reason.clone()))
}
