//! Errors of a transfer.

use threadbare_s3::Error;

use super::location::LocationError;

/// Maximum number of redirections, the same as in browsers. It ends loops.
pub(super) const REDIRECTS_MAX: usize = 20;
/// Maximum number of headers. More are an attack, or a mistake.
pub(super) const HEADERS_MAX: usize = 100;
/// Maximum size of headers. Usual servers send and accept 8 to 16 KiB.
pub(super) const HEADERS_BYTES_MAX: usize = 64 << 10;

/// Why a request or a response failed. No variant contains credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::http) enum Problem {
    #[error("the server answered with {status} {reason}")]
    Status {
        status: u16,
        reason: &'static str,
        /// Total length, if the server reports it for a range outside of the resource.
        size: Option<u64>,
        /// Time that the server requests before a retry.
        retry_after_s: Option<u64>,
    },
    /// An error of the store.
    #[error("{0}")]
    Store(#[from] threadbare_s3::Error),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("the certificate of the server is not trusted: {0} (ssl-ca-file, ssl-strict)")]
    Certificate(String),
    #[error("the server sent no data for {0} s (timeout)")]
    TimedOut(u32),
    #[error(
        "the server sent {bytes} bytes in {seconds} s, fewer than minimum-rate={limit} bytes per second"
    )]
    Slow {
        bytes: u64,
        seconds: u64,
        limit: u32,
    },
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("the server redirected more than {REDIRECTS_MAX} times in a row")]
    Redirects,
    #[error("the server redirected to an invalid location: {0}")]
    Location(#[from] LocationError),
    #[error(
        "the response has {count} headers with {bytes} bytes; expected at most {HEADERS_MAX} headers with {HEADERS_BYTES_MAX} bytes"
    )]
    Headers { count: usize, bytes: usize },
    #[error("the resource on the server has changed since the connection broke at byte {0}")]
    Changed(u64),
    #[error("the element requested the bytes from {asked} on, but the server sends other bytes")]
    Range { asked: u64 },
}

/// A body ends before its announced end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body ended at byte {position} of {end}")]
pub(in crate::http) struct Shortfall {
    pub(super) position: u64,
    pub(super) end: u64,
}

impl Problem {
    /// Whether the same request may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            // RFC 9110, sections 15.5.9 and 15.6; RFC 6585, section 4.
            Problem::Status { status, .. } => {
                matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
            }
            Problem::Store(error) => error.is_transient(),
            Problem::Connect(_)
            | Problem::TimedOut(_)
            | Problem::Slow { .. }
            | Problem::Broken(_) => true,
            Problem::Certificate(_)
            | Problem::Redirects
            | Problem::Location(_)
            | Problem::Headers { .. }
            | Problem::Changed(_)
            | Problem::Range { .. } => false,
        }
    }

    /// Returns the kind of error for the application. `has_data` says whether data arrived before the error.
    pub(in crate::http) fn kind(&self, has_data: bool) -> gst::ResourceError {
        match self {
            Problem::Status {
                status: 401 | 403 | 407,
                ..
            } => gst::ResourceError::NotAuthorized,
            Problem::Store(
                Error::Credentials(_)
                | Error::Refused {
                    status: 401 | 403, ..
                },
            ) => gst::ResourceError::NotAuthorized,
            Problem::Store(Error::Refused { status: 404, .. }) => gst::ResourceError::NotFound,
            Problem::Status {
                status: 404 | 410, ..
            } => gst::ResourceError::NotFound,
            _ if has_data => gst::ResourceError::Read,
            _ => gst::ResourceError::OpenRead,
        }
    }
}
