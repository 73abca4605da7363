//! The HTTP clients of the process, and the threads that run them.
//!
//! All sources with the same connection settings share a client, and with it the connections that are kept alive. All clients
//! share two threads, for any number of sources. Host names are looked up on further threads, which end when they are idle.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gst::glib;
use reqwest::cookie::{CookieStore, Jar};
use reqwest::header::{HeaderMap, HeaderValue, SET_COOKIE};
use reqwest::{Certificate, Client, Proxy, Url};
use tokio::runtime::{Builder, Runtime};

use super::core::{Location, LocationError};
use crate::kit::lock;

/// Number of threads. For thousands of radio streams, copying from sockets to buffers takes less than one thread. The second
/// thread is for TLS.
const THREADS: usize = 2;
/// Maximum number of look-ups at the same time, each of which blocks a thread. Further names wait.
const LOOKUPS_MAX: usize = 16;
/// Maximum number of clients. A further client replaces the oldest one.
const CLIENTS_MAX: usize = 16;
/// Maximum number of idle connections for each host.
const IDLE_MAX: usize = 32;
/// Interval of TCP keepalives, which detect connections whose other end has vanished.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Maximum amount of data of a stream that a server may send before the data is read.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Window of a connection. Streams of one host share a connection. The data of paused streams must not use up the window for the
/// others (RFC 9113, section 5.2: at most 2^31-1).
const CONNECTION_WINDOW_BYTES: u32 = i32::MAX as u32;
/// Maximum size of headers. It is above the limit of [`super::core::check_size`], because that function's message is clearer.
const HEADERS_BYTES_MAX: u32 = 128 << 10;

/// Settings of connections. It must not be printed, because it contains a password.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Connecting {
    /// Proxy. If it is empty, the proxy of the environment is used.
    pub(super) proxy: String,
    pub(super) proxy_id: Option<String>,
    pub(super) proxy_pw: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) strict: bool,
    pub(super) compress: bool,
    pub(super) keep_alive: bool,
}

impl Connecting {
    /// Whether neither these settings nor the environment name a proxy.
    pub(super) fn is_direct(&self) -> bool {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        self.proxy.is_empty() && !PROXIES.iter().any(is_set)
    }
}

/// The variables that the client reads.
const PROXIES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

/// Why a client was not created. Each message names the property.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("proxy={0}")]
    Proxy(#[from] LocationError),
    #[error("ssl-ca-file='{path}': {reason}; expected a file of certificates (PEM)")]
    CaFile { path: String, reason: String },
    #[error("cannot start the HTTP client: {0}")]
    Build(String),
}

/// Clients by the settings of their connections, and cookies. This is the value of the context `gst.reqwest.client`: elements
/// with the same value share clients and cookies.
#[derive(Clone, Default, glib::Boxed)]
#[boxed_type(name = "ThreadbareHttpClients")]
pub(super) struct Clients {
    made: Arc<Mutex<Vec<(Connecting, Client)>>>,
    pub(super) cookies: Cookies,
}

/// Cookies set by servers.
#[derive(Clone, Default)]
pub(super) struct Cookies(Arc<Jar>);

impl Cookies {
    /// Returns the cookies for a request to this URL, as a header.
    pub(super) fn of(&self, url: &Url) -> Option<HeaderValue> {
        self.0.cookies(url)
    }

    /// Stores the cookies of a response.
    pub(super) fn note(&self, url: &Url, headers: &HeaderMap) {
        let known_bytes = self.of(url).map_or(0, |known| known.len());
        let set = headers.get_all(SET_COOKIE);
        let bytes = set.iter().map(HeaderValue::len).sum::<usize>();
        if bytes > 0 && known_bytes + bytes <= COOKIES_BYTES_MAX {
            self.0.set_cookies(&mut set.iter(), url);
        }
    }
}

/// Maximum size of one server's cookies: more than a browser sends to most servers, and less than servers refuse.
const COOKIES_BYTES_MAX: usize = 16 << 10;

impl Clients {
    /// Returns the clients that all elements share by default. The caller handles the cookies.
    pub(super) fn of_process() -> Clients {
        static ALL: OnceLock<Clients> = OnceLock::new();
        let all = ALL.get_or_init(Clients::default);
        Clients {
            made: all.made.clone(),
            cookies: Cookies::default(),
        }
    }

    /// Returns the client for connections with these settings. It reads certificate files, so do not call it on a context's
    /// thread.
    pub(super) fn client(&self, wanted: &Connecting) -> Result<Client, ClientError> {
        let find = |known: &Vec<(Connecting, Client)>| {
            let found = known.iter().find(|(connecting, _)| connecting == wanted);
            found.map(|(_, client)| client.clone())
        };
        if let Some(client) = find(&lock(&self.made)) {
            return Ok(client);
        }
        let made = make(wanted)?;
        let mut known = lock(&self.made);
        // Another element may have created the client in the meantime.
        if let Some(client) = find(&known) {
            return Ok(client);
        }
        // If sources still use the oldest client, they keep it alive.
        let oldest = (known.len() == CLIENTS_MAX).then(|| known.remove(0));
        known.push((wanted.clone(), made.clone()));
        drop(known);
        drop(oldest);
        Ok(made)
    }
}

fn make(wanted: &Connecting) -> Result<Client, ClientError> {
    let mut builder = Client::builder()
        // The caller follows redirections itself, so that it sees each of them.
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .gzip(wanted.compress)
        .danger_accept_invalid_certs(!wanted.strict)
        .pool_max_idle_per_host(if wanted.keep_alive { IDLE_MAX } else { 0 })
        .tcp_keepalive(KEEPALIVE)
        // RFC 9112, section 5.2: a client reads folded lines as spaces. Section 5.1 forbids spaces before the colon, but servers
        // send them, and curl and souphttpsrc read them.
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        .http1_allow_spaces_after_header_name_in_responses(true)
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
        let bundle = bundle.map_err(|_| refused("the file has no certificates".to_owned()))?;
        if bundle.is_empty() {
            return Err(refused("the file has no certificates".to_owned()));
        }
        builder = builder.tls_built_in_root_certs(false);
        for certificate in bundle {
            builder = builder.add_root_certificate(certificate);
        }
    }
    if !wanted.proxy.is_empty() {
        builder = builder.proxy(through(wanted)?);
    }
    let built = builder.build();
    built.map_err(|error| ClientError::Build(causes(&error.without_url())))
}

fn through(wanted: &Connecting) -> Result<Proxy, ClientError> {
    let location = Location::parse(&wanted.proxy)?;
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

/// Returns an error and its causes in one line.
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

/// Returns the threads, started at first use. They outlive all elements, as do connections that are kept alive.
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
