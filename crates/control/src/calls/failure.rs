//! Why a request about a call is refused.

use super::ports::NoPorts;
use crate::ng::{Refusal, Reply};
use crate::sdp::SdpError;

/// Why a request is refused: the text of `error-reason`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Request(#[from] Refusal),
    #[error(transparent)]
    Sdp(#[from] SdpError),
    #[error(transparent)]
    Ports(#[from] NoPorts),
    /// All reasons, each with its line.
    #[error("no m= line can be used: {0}")]
    NoLine(String),
    #[error("call-id {0}: there is no such call: expected that of a call that was offered")]
    NoCall(String),
    #[error(
        "{key} {value}: the call has no such party: expected one of its tags, labels or addresses"
    )]
    NoParty { key: &'static str, value: String },
    #[error(
        "from-tag {0}: there is no offer of this party to answer: expected the tag of an offer"
    )]
    NoOffer(String),
    #[error(
        "the SDP has {found} m= lines, its offer {allowed}: expected as many (RFC 3264, section 6)"
    )]
    Lines { found: usize, allowed: usize },
    #[error("{what}: {found} are there: at most {allowed} are allowed")]
    TooMany {
        what: &'static str,
        found: usize,
        allowed: usize,
    },
    #[error("no audio of this party runs: expected a call that was answered")]
    NoMedia,
    #[error("{0:?} is not supported: expected one of the commands in docs/ng.md")]
    NotDone(&'static str),
    /// Where to, and in which form, is a setting of that relay's recording daemon, and not of the request.
    #[error(
        "{0:?} is not supported: there is no daemon to forward PCM to: expected \"subscribe request\" for RTP as it comes, or \"start recording\" for a file"
    )]
    NoForwarding(&'static str),
    /// No more calls at present.
    #[error("{0}")]
    Limit(String),
}

impl Failure {
    /// The reply. "If support for the `load limit` extension is indicated, then instead of replying with an error, rtpengine responds with
    /// the string `load limit`".
    pub(super) fn into_reply(self, supports_load_limit: bool) -> Reply {
        match self {
            Failure::Limit(reason) if supports_load_limit => Reply::LoadLimit(reason),
            other => Reply::Error(other.to_string()),
        }
    }
}
