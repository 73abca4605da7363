//! URLs: which ones can be fetched, and how they are shown without secrets.

use reqwest::Url;

/// A URL that can be fetched, and the credentials that were in it.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::http) struct Location {
    url: Url,
    credentials: Option<(String, String)>,
}

/// Why a text is not a location. The text is shown without credentials and query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::http) enum LocationError {
    #[error("'{0}' is not a URL ({1}); expected http://host/path or https://host/path")]
    Syntax(String, String),
    #[error("'{0}': the scheme '{1}' is not allowed; use http or https")]
    Scheme(String, String),
    #[error("'{0}…' has {1} bytes; at most {URL_BYTES_MAX} are allowed")]
    Long(String, usize),
}

/// Maximum length of a URL. Servers should accept 8000 bytes (RFC 9110, section 4.1), and seldom accept more. Signed URLs have up
/// to two thousand bytes.
pub(super) const URL_BYTES_MAX: usize = 16 << 10;
/// Length at which a text that is too long is cut off in messages.
const SHOWN_CHARS_MAX: usize = 100;

impl Location {
    /// Parses a URL.
    pub(in crate::http) fn parse(text: &str) -> Result<Self, LocationError> {
        check_length(text)?;
        match Url::parse(text) {
            Ok(url) => Location::of(url),
            Err(error) => Err(LocationError::Syntax(shown(text), error.to_string())),
        }
    }

    /// Resolves a reference, which is absolute or relative to this URL (RFC 3986, section 5).
    pub(in crate::http) fn join(&self, reference: &str) -> Result<Self, LocationError> {
        check_length(reference)?;
        match self.url.join(reference) {
            Ok(url) => Location::of(url),
            Err(error) => Err(LocationError::Syntax(shown(reference), error.to_string())),
        }
    }

    fn of(mut url: Url) -> Result<Self, LocationError> {
        if !["http", "https"].contains(&url.scheme()) {
            let scheme = url.scheme().to_owned();
            return Err(LocationError::Scheme(shown(url.as_str()), scheme));
        }
        let user = decoded(url.username());
        let password = url.password().map(decoded).unwrap_or_default();
        let credentials = (!user.is_empty() || !password.is_empty()).then_some((user, password));
        // This cannot fail: each URL of these schemes has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        Ok(Location { url, credentials })
    }

    /// Returns the URL, without credentials.
    pub(in crate::http) fn url(&self) -> &Url {
        &self.url
    }

    /// User and password.
    pub(in crate::http) fn credentials(&self) -> Option<&(String, String)> {
        self.credentials.as_ref()
    }

    /// Returns a text for messages, without credentials and query, which may contain keys and signatures.
    pub(in crate::http) fn shown(&self) -> String {
        shown(self.url.as_str())
    }

    /// Whether secrets of this location may be sent to the other. They may not be sent to another origin automatically (RFC 9110,
    /// section 15.4).
    pub(in crate::http) fn is_same_origin(&self, other: &Location) -> bool {
        self.url.origin() == other.url.origin()
    }
}

fn check_length(text: &str) -> Result<(), LocationError> {
    if text.len() <= URL_BYTES_MAX {
        return Ok(());
    }
    let begin = shown(text).chars().take(SHOWN_CHARS_MAX).collect();
    Err(LocationError::Long(begin, text.len()))
}

/// Returns a URL without its credentials, query and fragment. The URL may be malformed.
fn shown(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    // In a malformed URL, credentials may contain any of these characters. So everything up to the last @ is removed.
    let Some(at) = text.rfind('@') else {
        return text[..end].to_owned();
    };
    let scheme = text[..at].find("://").map_or("", |n| &text[..n + 3]);
    let rest = &text[at + 1..];
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    format!("{scheme}{}", &rest[..end])
}

/// Decodes percent-encoded text.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let digits = digits.filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
