//! Records of calls, ended and running.

use std::fmt;
use std::net::SocketAddr;

use super::id::{CallId, StreamId};

/// The reason for a call's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The call was ended by a `delete`, at once or after its delay.
    Deleted,
    /// The offer got no answer within [`offer_ns`](super::Timeouts::offer_ns).
    OfferTimeout,
    /// No media arrived for [`media_ns`](super::Timeouts::media_ns).
    MediaTimeout,
    /// The call was on hold or blocked, and no media arrived for [`silent_ns`](super::Timeouts::silent_ns).
    SilentTimeout,
    /// The call has lasted for [`final_ns`](super::Timeouts::final_ns).
    FinalTimeout,
    /// The operator has ended the call.
    Operator,
    /// Another node of the cluster owns the call, or the owner could not be determined.
    Cluster,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [EndReason; 7] = [
        EndReason::Deleted,
        EndReason::OfferTimeout,
        EndReason::MediaTimeout,
        EndReason::SilentTimeout,
        EndReason::FinalTimeout,
        EndReason::Operator,
        EndReason::Cluster,
    ];

    /// Returns the name in records and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Deleted => "deleted",
            EndReason::OfferTimeout => "offer-timeout",
            EndReason::MediaTimeout => "timeout",
            EndReason::SilentTimeout => "silent-timeout",
            EndReason::FinalTimeout => "final-timeout",
            EndReason::Operator => "operator",
            EndReason::Cluster => "cluster",
        }
    }

    /// Whether the reason is a time-out.
    #[must_use]
    pub fn is_timeout(self) -> bool {
        use EndReason::{Cluster, Deleted, Operator};
        !matches!(self, Deleted | Operator | Cluster)
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRecord {
    /// The call's name.
    pub call: CallId,
    /// Time of the offer, ns on the registry's clock.
    pub created_ns: u64,
    /// Time of the first answer.
    pub answered_ns: Option<u64>,
    /// Time of the end.
    pub ended_ns: u64,
    /// Reason of the end.
    pub reason: EndReason,
    /// The streams of the call, including those that were never answered.
    pub streams: Vec<StreamRecord>,
}

/// A running call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallView {
    /// Time of the offer, ns on the registry's clock.
    pub created_ns: u64,
    /// Time of the last signalling.
    pub signalled_ns: u64,
    /// Time of the first answer.
    pub answered_ns: Option<u64>,
    /// Time of the last media that the registry knows.
    pub heard_ns: Option<u64>,
    /// When the call will end by a time-out, and by which one.
    pub end: Option<(u64, EndReason)>,
    /// The streams of the call: ended ones first, unanswered ones last.
    pub streams: Vec<StreamRecord>,
}

/// A stream of a call.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StreamRecord {
    /// The stream's name in actions.
    pub stream: StreamId,
    /// The kind of media, for example `audio`.
    pub media: String,
    /// Side A and side B.
    pub sides: [SideRecord; 2],
}

/// A party of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SideRecord {
    /// The party's SIP tag. Invalid UTF-8 is replaced.
    pub tag: String,
    /// The audio codec that is sent to the party, as in `rtpmap`.
    pub codec: Option<String>,
    /// The address at which the party receives RTP, from its description.
    pub rtp: Option<SocketAddr>,
    /// The address that is advertised to the party.
    pub advertised: Option<SocketAddr>,
    /// The SRTP suite towards the party.
    #[serde(with = "crate::mirror")]
    pub crypto_suite: Option<crate::mirror::Word>,
    /// The party's label.
    pub label: Option<String>,
}
