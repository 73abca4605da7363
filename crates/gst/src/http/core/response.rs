//! What the head of a response says of its body.

use reqwest::StatusCode;
use reqwest::header::{
    ACCEPT_RANGES, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, COOKIE, ETAG, HeaderMap,
    HeaderName, LAST_MODIFIED, PROXY_AUTHORIZATION, RETRY_AFTER, SET_COOKIE, TRANSFER_ENCODING,
};

use super::media::Media;
use super::problem::{HEADERS_BYTES_MAX, HEADERS_MAX, Problem};

/// A response with a body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::http) struct Answer {
    /// The body is a part (206), which begins at `first`.
    pub(super) is_part: bool,
    pub(super) first: u64,
    /// Of the whole, bytes.
    pub(in crate::http) size: Option<u64>,
    /// Whether the server gives parts; `None`: it does not say.
    pub(super) gives_parts: Option<bool>,
    /// The body says where it ends, so that an end can be told from a break.
    pub(super) has_end: bool,
    /// A station, whose stream has no beginning and no end.
    pub(super) is_radio: bool,
    pub(super) identity: Identity,
    pub(in crate::http) media: Media,
}

/// What the bytes are of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Identity {
    /// A strong one only: the same bytes (RFC 9110, section 8.8.1).
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
    pub(super) size: Option<u64>,
}

/// A longer one is none: it is sent back with each retry.
const VALIDATOR_BYTES_MAX: usize = 256;

/// The bounds of a response's headers.
pub(in crate::http) fn check_size(headers: &HeaderMap) -> Result<(), Problem> {
    let lengths = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    let (count, bytes) = (headers.len(), lengths.sum());
    match count > HEADERS_MAX || bytes > HEADERS_BYTES_MAX {
        true => Err(Problem::Headers { count, bytes }),
        false => Ok(()),
    }
}

/// A response that is no success.
pub(in crate::http) fn refusal(status: u16, headers: &HeaderMap) -> Option<Problem> {
    if (200..300).contains(&status) {
        return None;
    }
    let reason = StatusCode::from_u16(status).ok();
    Some(Problem::Status {
        status,
        reason: reason
            .and_then(|status| status.canonical_reason())
            .unwrap_or(""),
        size: text(headers, &CONTENT_RANGE).and_then(size_of_refused_range),
        retry_after_s: text(headers, &RETRY_AFTER).and_then(|value| value.trim().parse().ok()),
    })
}

impl Answer {
    /// Reads the head of a success. `is_framed`: the protocol marks ends of bodies (HTTP/2). `is_decoded`: the body may have
    /// been unpacked on the way, where positions of the packed one mean nothing; the unpacked length is unknown.
    pub(in crate::http) fn read(
        status: u16,
        headers: &HeaderMap,
        is_framed: bool,
        is_decoded: bool,
    ) -> Result<Self, Problem> {
        let length = text(headers, &CONTENT_LENGTH).and_then(|value| value.trim().parse().ok());
        let is_part = status == 206;
        let (first, size) = match is_part {
            true => {
                let range = text(headers, &CONTENT_RANGE).and_then(content_range);
                range.ok_or(Problem::Range { asked: 0 })?
            }
            false => (0, length),
        };
        let gives_parts = match text(headers, &ACCEPT_RANGES) {
            _ if is_part => Some(true),
            _ if is_decoded && length.is_none() => Some(false),
            Some(units) => Some(units.split(',').any(|unit| unit.trim() == "bytes")),
            None => None,
        };
        let is_chunked = text(headers, &TRANSFER_ENCODING).is_some();
        let is_icy = headers.keys().any(|name| name.as_str().starts_with("icy-"));
        Ok(Answer {
            is_part,
            first,
            size,
            gives_parts,
            has_end: length.is_some() || is_chunked || is_framed,
            is_radio: is_icy && size.is_none(),
            identity: Identity::of(headers, size),
            media: Media::of(headers),
        })
    }

    /// Whether an application may seek.
    pub(in crate::http) fn is_seekable(&self) -> bool {
        self.gives_parts == Some(true) && !self.is_radio
    }
}

impl Identity {
    fn of(headers: &HeaderMap, size: Option<u64>) -> Self {
        let short = |name| text(headers, name).filter(|value| value.len() <= VALIDATOR_BYTES_MAX);
        let etag = short(&ETAG).filter(|tag| tag.starts_with('"'));
        Identity {
            etag: etag.map(str::to_owned),
            modified: short(&LAST_MODIFIED).map(str::to_owned),
            size,
        }
    }

    /// Whether there is evidence that both are the same bytes, and none that they are not.
    pub(super) fn is_same(&self, other: &Identity) -> bool {
        let agree = |one: &Option<String>, two: &Option<String>| {
            (one.is_some() && two.is_some()).then(|| one == two)
        };
        let sizes = (self.size.is_some() && other.size.is_some()).then(|| self.size == other.size);
        if sizes == Some(false) {
            return false;
        }
        // A date alone is no strong validator, a date and a length are as good as a server without tags has.
        match agree(&self.etag, &other.etag) {
            Some(agree) => agree,
            None => agree(&self.modified, &other.modified) != Some(false) && sizes == Some(true),
        }
    }
}

/// `bytes 100-199/1000` or `bytes 100-199/*`: the first byte, and the length of the whole (RFC 9110, section 14.4).
fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, size) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let first = first.trim().parse::<u64>().ok()?;
    let last = last.trim().parse::<u64>().ok()?;
    let size = match size.trim() {
        "*" => None,
        size => Some(size.parse::<u64>().ok()?),
    };
    let is_valid = first <= last && size.is_none_or(|size| last < size);
    is_valid.then_some((first, size))
}

/// `bytes */1000`.
fn size_of_refused_range(value: &str) -> Option<u64> {
    let (range, size) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    (range.trim() == "*").then(|| size.trim().parse().ok())?
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether a header's value is not shown: it is one of those that hold credentials, or has a name as those have that
/// services invent.
pub(in crate::http) fn is_secret(name: &HeaderName) -> bool {
    [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE].contains(name)
        || ["auth", "token", "key", "secret", "password"]
            .iter()
            .any(|word| name.as_str().contains(word) && !name.as_str().ends_with("-authenticate"))
}
