//! What is left of a call that has ended.

use std::fmt;
use std::net::SocketAddr;

use super::id::{CallId, StreamId};

/// Why a call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// `delete`, or the end of its delay.
    Deleted,
    /// No answer came in [`offer_ns`](super::Timeouts::offer_ns).
    OfferTimeout,
    /// No media came in [`media_ns`](super::Timeouts::media_ns).
    MediaTimeout,
    /// No media came in [`silent_ns`](super::Timeouts::silent_ns) to a call that is held or blocked.
    SilentTimeout,
    /// It lasted for [`final_ns`](super::Timeouts::final_ns).
    FinalTimeout,
    /// By the operator.
    Operator,
    /// Another node of the cluster has the call, or nobody could say whose it is.
    Cluster,
}

impl EndReason {
    /// All of them.
    pub const ALL: [EndReason; 7] = [
        EndReason::Deleted,
        EndReason::OfferTimeout,
        EndReason::MediaTimeout,
        EndReason::SilentTimeout,
        EndReason::FinalTimeout,
        EndReason::Operator,
        EndReason::Cluster,
    ];

    /// In records and metrics.
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

    /// Whether a time-out was the reason.
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
    /// Its name.
    pub call: CallId,
    /// When it was offered, ns on the registry's clock.
    pub created_ns: u64,
    /// When it was answered first.
    pub answered_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: u64,
    /// Why.
    pub reason: EndReason,
    /// Its streams, those that were never answered included.
    pub streams: Vec<StreamRecord>,
}

/// A call that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallView {
    /// When it was offered, ns on the registry's clock.
    pub created_ns: u64,
    /// When it was signalled last.
    pub signalled_ns: u64,
    /// When it was answered first.
    pub answered_ns: Option<u64>,
    /// When media came last, as far as the registry was told.
    pub heard_ns: Option<u64>,
    /// When it ends by itself if nothing more comes, and why.
    pub end: Option<(u64, EndReason)>,
    /// Its streams, those that have ended first, those that nobody has answered last.
    pub streams: Vec<StreamRecord>,
}

/// A stream of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StreamRecord {
    /// Its name in actions.
    pub stream: StreamId,
    /// Such as `audio`.
    pub media: String,
    /// Of side A and side B.
    pub sides: [SideRecord; 2],
}

/// A party of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SideRecord {
    /// Its SIP tag, as far as it is UTF-8.
    pub tag: String,
    /// The audio codec that it is sent, as in `rtpmap`.
    pub codec: Option<String>,
    /// Where it said that it receives RTP.
    pub rtp: Option<SocketAddr>,
    /// What it was told.
    pub advertised: Option<SocketAddr>,
    /// The suite of its SRTP.
    #[serde(with = "crate::mirror")]
    pub crypto_suite: Option<crate::mirror::Word>,
    /// Its label.
    pub label: Option<String>,
}
