//! Orders from a cluster to the thread that keeps the streams running, and the answers of that thread.

use std::sync::Arc;

use threadbare_relay::Fence;
use threadbare_rtp::call::SessionState;

use threadbare_config::StreamSpec;

/// An order for the gateway's main thread. Orders about a stream are carried out in the order in which they were sent.
#[derive(Debug)]
pub enum Order {
    /// Receive a stream that another node carries, without sending it. The answer is [`Answer::Prepared`].
    Prepare(Carried),
    /// Carry a stream. If the stream is prepared, it continues from the state, else it is started.
    Start(Carried, Option<SessionState>),
    /// Stop a stream between two packets. The answer is [`Answer::HandedOver`].
    HandOver(Arc<str>),
    /// Stop a stream.
    Stop(Arc<str>),
}

/// A stream that this node carries.
#[derive(Debug, Clone)]
pub struct Carried {
    /// The settings of the stream.
    pub spec: Arc<StreamSpec>,
    /// Number of this owner. It is part of the CNAME in RTCP, so that two simultaneous owners can be noticed.
    pub epoch: u64,
    /// Fence that must be open while the stream sends. `None`: the stream may always send.
    pub fence: Option<Fence>,
}

impl Carried {
    /// Whether both values mean the same stream with the same owner.
    #[must_use]
    pub fn is(&self, other: &Carried) -> bool {
        let same_fence = match (&self.fence, &other.fence) {
            (Some(fence), Some(other)) => fence.is(other),
            (None, None) => true,
            _ => false,
        };
        same_fence && self.epoch == other.epoch && self.spec == other.spec
    }
}

/// An answer of the gateway's main thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The input of the stream is received, and enough of it is buffered, so that no packet will be missing when the stream starts. A
    /// stream without input counts as prepared too.
    Prepared(Arc<str>),
    /// The stream has stopped on this node. The value contains its state, or `None` if it did not run.
    HandedOver(Arc<str>, Option<SessionState>),
}
