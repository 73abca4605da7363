//! Information in a response's head about its body.

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
    /// The body is a part (206), which starts at `first`.
    pub(super) is_part: bool,
    pub(super) first: u64,
    /// Length of the whole resource, bytes.
    pub(in crate::http) size: Option<u64>,
    /// Announced end of this body: the position after its last byte.
    pub(super) body_end: Option<u64>,
    /// Whether the server supports ranges; `None`: unknown.
    pub(super) gives_parts: Option<bool>,
    /// Whether the body marks its end, so that an end can be distinguished from a break.
    pub(super) has_end: bool,
    /// Whether the server is a radio station, whose stream has neither a start nor an end.
    pub(super) is_radio: bool,
    pub(super) identity: Identity,
    pub(in crate::http) media: Media,
}

/// Identity of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Identity {
    /// The entity tag, if it is a strong one, which proves identical bytes (RFC 9110, section 8.8.1).
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
    pub(super) size: Option<u64>,
}

/// Maximum length of a validator. A longer one is ignored, because it is sent with each retry.
const VALIDATOR_BYTES_MAX: usize = 256;

/// Checks the limits of a response's headers.
pub(in crate::http) fn check_size(headers: &HeaderMap) -> Result<(), Problem> {
    let lengths = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    let (count, bytes) = (headers.len(), lengths.sum());
    if count > HEADERS_MAX || bytes > HEADERS_BYTES_MAX {
        Err(Problem::Headers { count, bytes })
    } else {
        Ok(())
    }
}

/// Returns the error of an unsuccessful response.
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
    /// Reads the head of a successful response. `is_framed` means that the protocol marks the ends of bodies (HTTP/2).
    /// `is_decoded` means that the body may have been decompressed. Positions in the compressed body then mean nothing, and the
    /// decompressed length is unknown.
    pub(in crate::http) fn read(
        status: u16,
        headers: &HeaderMap,
        is_framed: bool,
        is_decoded: bool,
    ) -> Result<Self, Problem> {
        let length = text(headers, &CONTENT_LENGTH).and_then(|value| value.trim().parse().ok());
        let range = text(headers, &CONTENT_RANGE).and_then(content_range);
        // Some servers send a part with status 200. But if a body is as long as the whole resource, it is the whole resource,
        // whatever its range says.
        let is_shorter = |range: &Range| {
            let is_less = |length: u64| range.size.is_none_or(|size| length < size);
            range.first > 0 && length.is_some_and(is_less)
        };
        let is_part = status == 206 || range.as_ref().is_some_and(is_shorter);
        let (first, size, end) = if is_part {
            let is_valid = |range: &Range| range.is_exact || status != 206;
            let range = range.filter(is_valid);
            let range = range.ok_or(Problem::Range { asked: 0 })?;
            (range.first, range.size, Some(range.end))
        } else {
            (0, length, None)
        };
        // The length is always exact, but the last byte of a range is sometimes too large by one. So the length has priority.
        let body_end = length.map(|length| first.saturating_add(length)).or(end);
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
            body_end: body_end.filter(|_| !is_decoded),
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

    /// Whether both have a tag, and the tags differ.
    pub(super) fn has_other_tag(&self, other: &Identity) -> bool {
        self.etag.is_some() && other.etag.is_some() && self.etag != other.etag
    }

    /// Whether there is a sign that both have the same bytes, and no sign of the opposite.
    pub(super) fn is_same(&self, other: &Identity) -> bool {
        let agree = |one: &Option<String>, two: &Option<String>| {
            (one.is_some() && two.is_some()).then(|| one == two)
        };
        let sizes = (self.size.is_some() && other.size.is_some()).then(|| self.size == other.size);
        if sizes == Some(false) {
            return false;
        }
        // A date alone is not a strong validator. But a date together with a length is the best that a server without tags
        // offers.
        match agree(&self.etag, &other.etag) {
            Some(agree) => agree,
            None => agree(&self.modified, &other.modified) != Some(false) && sizes == Some(true),
        }
    }
}

/// Position of a part in the whole resource.
struct Range {
    first: u64,
    /// Position after the last byte.
    end: u64,
    /// Length of the whole resource.
    size: Option<u64>,
    /// Whether the end of the range is correct. Some servers send the number after the last byte.
    is_exact: bool,
}

/// Parses `bytes 100-199/1000` or `bytes 100-199/*` (RFC 9110, section 14.4).
fn content_range(value: &str) -> Option<Range> {
    let (range, size) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let first = first.trim().parse::<u64>().ok()?;
    let last = last.trim().parse::<u64>().ok()?;
    let size = match size.trim() {
        "*" => None,
        size => Some(size.parse::<u64>().ok()?),
    };
    let is_valid = first <= last && size.is_none_or(|size| first < size && last <= size);
    let is_exact = size.is_none_or(|size| last < size);
    is_valid.then_some(Range {
        first,
        end: last.saturating_add(1),
        size,
        is_exact,
    })
}

/// Parses `bytes */1000`.
fn size_of_refused_range(value: &str) -> Option<u64> {
    let (range, size) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    (range.trim() == "*").then(|| size.trim().parse().ok())?
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether a header's value must be hidden. That is so for known headers with credentials, and for names like those that services
/// use for credentials.
pub(in crate::http) fn is_secret(name: &HeaderName) -> bool {
    [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE].contains(name)
        || ["auth", "token", "key", "secret", "password"]
            .iter()
            .any(|word| name.as_str().contains(word) && !name.as_str().ends_with("-authenticate"))
}
