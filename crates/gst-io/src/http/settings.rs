//! The properties as plain values, and the plan built from them when a source starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use gst::glib;
use gst::prelude::*;
use reqwest::header::{
    ACCEPT_ENCODING, CONNECTION, COOKIE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use reqwest::{Client, Url};

use threadbare_s3::Store;

use super::client::{ClientError, Clients, Connecting, Cookies};
use super::core::{Location, LocationError, PaceLimits, Policy, Problem, is_secret};
use crate::kit::PropertyGroup;

/// Values of the properties. It must not be printed, because it contains passwords.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) location: Option<String>,
    pub(super) user_agent: Option<String>,
    pub(super) is_live: bool,
    pub(super) user_id: Option<String>,
    pub(super) user_pw: Option<String>,
    pub(super) timeout_s: u32,
    pub(super) cookies: Vec<String>,
    pub(super) iradio_mode: bool,
    pub(super) connecting: Connecting,
    pub(super) retries: i32,
    pub(super) retry_delay_ns: u64,
    pub(super) retry_delay_ns_max: u64,
    pub(super) rate_min: u32,
    pub(super) rate_window_ns: u64,
    pub(super) bytes_max: u32,
    pub(super) block_bytes: u32,
    pub(super) buffers_max: i32,
    pub(super) do_timestamp: bool,
}

pub(super) const UP_TO_READY: glib::ParamFlags =
    glib::ParamFlags::READWRITE.union(gst::PARAM_FLAG_MUTABLE_READY);
pub(super) const USER_AGENT_DEFAULT: &str = "GStreamer Threadbare";
pub(super) const TIMEOUT_S_DEFAULT: u32 = 15;
pub(super) const RETRIES_DEFAULT: i32 = 3;
pub(super) const RETRY_DELAY_NS_DEFAULT: u64 = 500_000_000;
pub(super) const RETRY_DELAY_NS_MAX_DEFAULT: u64 = 10_000_000_000;
pub(super) const RATE_WINDOW_NS_DEFAULT: u64 = 10_000_000_000;
/// Default of the queue's size: a second of most videos, 8 s of a radio stream.
pub(crate) const BYTES_MAX_DEFAULT: u32 = 128 << 10;

impl Default for Values {
    fn default() -> Self {
        Values {
            location: None,
            user_agent: Some(USER_AGENT_DEFAULT.to_owned()),
            is_live: false,
            user_id: None,
            user_pw: None,
            timeout_s: TIMEOUT_S_DEFAULT,
            cookies: Vec::new(),
            iradio_mode: true,
            connecting: Connecting {
                strict: true,
                keep_alive: true,
                ..Connecting::default()
            },
            retries: RETRIES_DEFAULT,
            retry_delay_ns: RETRY_DELAY_NS_DEFAULT,
            retry_delay_ns_max: RETRY_DELAY_NS_MAX_DEFAULT,
            rate_min: 0,
            rate_window_ns: RATE_WINDOW_NS_DEFAULT,
            bytes_max: BYTES_MAX_DEFAULT,
            block_bytes: 0,
            buffers_max: -1,
            do_timestamp: false,
        }
    }
}

/// The property `extra-headers`, whose values may be secrets.
#[derive(Clone, Default)]
pub(super) struct ExtraHeaders(Option<gst::Structure>);

impl PropertyGroup for ExtraHeaders {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecBoxed::builder::<gst::Structure>("extra-headers")
                .nick("Extra headers")
                .blurb("Headers to send; each field is a string or a list of strings")
                .mutable_ready()
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let is_ours = name == "extra-headers";
        if is_ours {
            self.0 = value.get().ok().flatten();
        }
        is_ours
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        (name == "extra-headers").then(|| self.0.to_value())
    }
}

/// Why a plan cannot be made from the properties.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettingsError {
    #[error("location is not set; expected http://host/path or https://host/path")]
    NoLocation,
    #[error("location={0}")]
    Location(#[from] LocationError),
    #[error("{0}: {1}; expected {2}")]
    Header(&'static str, String, &'static str),
    #[error("{0}")]
    Client(#[from] ClientError),
}

impl From<SettingsError> for gst::ErrorMessage {
    fn from(error: SettingsError) -> Self {
        let kind = match error {
            SettingsError::NoLocation => gst::ResourceError::OpenRead,
            _ => gst::ResourceError::Settings,
        };
        gst::error_msg!(kind, ["{error}"])
    }
}

/// Counters, written by the client's and the context's thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) bytes: Count,
    pub(super) buffers: Count,
    pub(super) requests: Count,
    pub(super) redirects: Count,
    pub(super) retries: Count,
    pub(super) resumed: Count,
    pub(super) reconnected: Count,
    pub(super) skipped: Count,
    pub(super) timeouts: Count,
    pub(super) slow: Count,
}

/// A counter with several writers: after a seek, the last fetch may still count while the next one already does.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Parameters of a fetch.
pub(super) struct Plan {
    pub(super) client: Client,
    pub(super) location: Location,
    /// User and password, which are sent only to the origin of the location.
    pub(super) credentials: Option<(String, String)>,
    /// Headers of each request.
    pub(super) headers: HeaderMap,
    pub(super) is_decoded: bool,
    pub(super) timeout_s: u32,
    pub(super) policy: Policy,
    pub(super) pace: PaceLimits,
    pub(super) bytes_max: usize,
    pub(super) counts: Arc<Counts>,
    /// The store, which signs each request to the location's own origin.
    pub(super) store: Option<Store>,
    /// Text that replaces the location in messages.
    pub(super) shown: Option<String>,
    /// Whether the connection uses no proxy.
    pub(super) is_direct: bool,
    /// Cookies; `None`: they are not stored.
    pub(super) cookies: Option<Cookies>,
    /// Whether the server is known not to speak HTTP.
    pub(super) is_old_station: AtomicBool,
}

/// An object in S3, described by another element's properties. It replaces [`Values`].
pub(crate) struct Signed {
    pub(crate) store: Store,
    pub(crate) url: Url,
    /// The object's own URI.
    pub(crate) shown: String,
    pub(crate) ca_file: Option<String>,
    pub(crate) timeout_s: u32,
    pub(crate) retries: u32,
    pub(crate) bytes_max: u32,
}

impl Signed {
    pub(super) fn plan(
        self,
        clients: &Clients,
        counts: Arc<Counts>,
    ) -> Result<Plan, SettingsError> {
        let values = Values {
            location: Some(self.url.to_string()),
            timeout_s: self.timeout_s,
            iradio_mode: false,
            connecting: Connecting {
                ca_file: self.ca_file,
                ..Values::default().connecting
            },
            retries: i32::try_from(self.retries).unwrap_or(i32::MAX),
            bytes_max: self.bytes_max,
            ..Values::default()
        };
        Ok(Plan {
            store: Some(self.store),
            cookies: None,
            shown: Some(self.shown),
            ..values.plan(&ExtraHeaders::default(), clients, counts)?
        })
    }
}

impl Plan {
    /// Returns the location, for messages.
    pub(super) fn place(&self) -> String {
        self.shown.clone().unwrap_or_else(|| self.location.shown())
    }

    /// Notes why a request or a response failed.
    pub(super) fn count(&self, problem: &Problem) {
        match problem {
            Problem::TimedOut(_) => self.counts.timeouts.add(1),
            Problem::Slow { .. } => self.counts.slow.add(1),
            _ => {}
        }
    }
}

/// Normalises the property `proxy` to a URL with a scheme and a path. An empty text means no proxy.
pub(super) fn proxy_url(given: &str) -> String {
    if given.is_empty() {
        return String::new();
    }
    let (scheme, rest) = given.split_once("://").unwrap_or(("http", given));
    let end = if rest.contains('/') { "" } else { "/" };
    format!("{scheme}://{rest}{end}")
}

impl Values {
    /// Checks the values and makes the plan.
    pub(super) fn plan(
        &self,
        extra: &ExtraHeaders,
        clients: &Clients,
        counts: Arc<Counts>,
    ) -> Result<Plan, SettingsError> {
        let location = self.location.as_deref().filter(|text| !text.is_empty());
        let location = Location::parse(location.ok_or(SettingsError::NoLocation)?)?;
        let given = self.user_id.clone().filter(|id| !id.is_empty());
        let given = given.map(|id| (id, self.user_pw.clone().unwrap_or_default()));
        Ok(Plan {
            client: clients.client(&self.connecting)?,
            credentials: given.or_else(|| location.credentials().cloned()),
            location,
            headers: self.headers(extra)?,
            is_decoded: self.connecting.compress,
            timeout_s: self.timeout_s,
            policy: Policy {
                retries: u32::try_from(self.retries).ok(),
                delay_ns: self.retry_delay_ns,
                delay_ns_max: self.retry_delay_ns_max,
                is_live: self.is_live,
            },
            pace: PaceLimits {
                stall_s: self.timeout_s,
                rate: self.rate_min,
                window_ns: self.rate_window_ns,
            },
            bytes_max: self.bytes_max as usize,
            counts,
            store: None,
            shown: None,
            is_direct: self.connecting.is_direct(),
            cookies: Some(clients.cookies.clone()),
            is_old_station: AtomicBool::new(false),
        })
    }

    fn headers(&self, extra: &ExtraHeaders) -> Result<HeaderMap, SettingsError> {
        let mut headers = HeaderMap::new();
        if let Some(agent) = self.user_agent.as_deref().filter(|agent| !agent.is_empty()) {
            let value = HeaderValue::from_str(agent).map_err(|_| {
                SettingsError::Header("user-agent", format!("{agent:?}"), "printable characters")
            })?;
            headers.insert(USER_AGENT, value);
        }
        if self.iradio_mode {
            headers.insert("icy-metadata", HeaderValue::from_static("1"));
        }
        let connection = if self.connecting.keep_alive {
            "keep-alive"
        } else {
            "close"
        };
        headers.insert(CONNECTION, HeaderValue::from_static(connection));
        if !self.connecting.compress {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if !self.cookies.is_empty() {
            // The value is a secret.
            let mut value = HeaderValue::from_str(&self.cookies.join("; ")).map_err(|_| {
                let shown = "(not shown)".to_owned();
                SettingsError::Header("cookies", shown, "name=value of printable characters")
            })?;
            value.set_sensitive(true);
            headers.insert(COOKIE, value);
        }
        for (name, value) in extra.0.iter().flat_map(|extra| extra.iter()) {
            add_extra(&mut headers, name.as_str(), value)?;
        }
        Ok(headers)
    }
}

/// Adds a field of `extra-headers`: a value, or a list of values for the same header. It replaces the header that the element
/// itself would send.
fn add_extra(
    headers: &mut HeaderMap,
    name: &str,
    value: &glib::Value,
) -> Result<(), SettingsError> {
    let refused = |what: String, expected| SettingsError::Header("extra-headers", what, expected);
    let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        refused(
            format!("{name:?}"),
            "a header's name (RFC 9110, section 5.1)",
        )
    })?;
    let texts: Option<Vec<String>> = if let Ok(list) = value.get::<gst::List>() {
        list.iter().map(|value| text_of(value)).collect()
    } else if let Ok(array) = value.get::<gst::Array>() {
        array.iter().map(|value| text_of(value)).collect()
    } else {
        text_of(value).map(|text| vec![text])
    };
    let texts = texts.ok_or_else(|| {
        let what = format!("'{name}' of type {}", value.type_());
        refused(what, "text or a list of texts")
    })?;
    headers.remove(&key);
    for text in texts {
        // The value may be a secret.
        let mut value = HeaderValue::from_str(&text).map_err(|_| {
            let what = format!("the value of '{name}'");
            refused(what, "one line of printable characters")
        })?;
        value.set_sensitive(is_secret(&key));
        headers.append(&key, value);
    }
    Ok(())
}

/// Returns a value in a header's form.
fn text_of(value: &glib::Value) -> Option<String> {
    let text = value.transform::<Option<String>>().ok()?;
    text.get::<Option<String>>().ok().flatten()
}
