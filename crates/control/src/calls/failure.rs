//! Reasons why a request about a call is refused.

use super::ports::NoPorts;
use crate::ng::{Refusal, Reply};
use crate::sdp::SdpError;

/// The reason why a request is refused. Its text becomes the `error-reason` of the reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Request(#[from] Refusal),
    #[error(transparent)]
    Sdp(#[from] SdpError),
    #[error(transparent)]
    Ports(#[from] NoPorts),
    /// None of the `m=` lines can be carried. The text contains the reason for each line.
    #[error("no m= line is usable: {0}")]
    NoLine(String),
    #[error("call-id {0}: no such call: expected the Call-ID of an offered call")]
    NoCall(String),
    #[error(
        "{key} {value}: the call has no such party: expected one of its tags, labels or addresses"
    )]
    NoParty { key: &'static str, value: String },
    #[error("from-tag {0}: this party has no offer to answer: expected the tag of an offer")]
    NoOffer(String),
    #[error(
        "the SDP has {found} m= lines, but the offer has {allowed}: expected the same number (RFC 3264, section 6)"
    )]
    Lines { found: usize, allowed: usize },
    #[error("{what}: found {found}: expected at most {allowed}")]
    TooMany {
        what: &'static str,
        found: usize,
        allowed: usize,
    },
    #[error("this party has no running audio: expected a call that has been answered")]
    NoMedia,
    #[error("{0:?} is not supported: expected one of the commands in docs/ng.md")]
    NotDone(&'static str),
    /// rtpengine configures destination and format in its recording daemon, so the request does not contain them.
    #[error(
        "{0:?} is not supported, because there is no daemon for PCM: expected \"subscribe request\" for RTP, or \"start recording\" for \
        a file"
    )]
    NoForwarding(&'static str),
    /// New calls are refused at present, for this reason.
    #[error("{0}")]
    Limit(String),
}

impl Failure {
    /// Creates the reply. "If support for the `load limit` extension is indicated, then instead of replying with an error, rtpengine
    /// responds with the string `load limit`".
    pub(super) fn into_reply(self, supports_load_limit: bool) -> Reply {
        match self {
            Failure::Limit(reason) if supports_load_limit => Reply::LoadLimit(reason),
            other => Reply::Error(other.to_string()),
        }
    }
}
