//! Orders from a cluster to the thread that keeps the streams running, and the answers of that thread.

use std::sync::Arc;

use threadbare_relay::Fence;
use threadbare_rtp::call::LineState;

use threadbare_config::StreamSpec;

/// An order for the gateway's main thread. Orders about a stream are carried out in sequence.
#[derive(Debug)]
pub enum Order {
    /// Receive a stream that another node carries, without sending, and answer [`Answer::Prepared`].
    Prepare(Carried),
    /// Carry a stream. Continue it from the state if it is prepared; otherwise, start it.
    Start(Carried, Option<LineState>),
    /// Stop a stream between two packets, and answer [`Answer::HandedOver`].
    HandOver(Arc<str>),
    /// Stop a stream.
    Stop(Arc<str>),
}

/// A stream that this node carries.
#[derive(Debug, Clone)]
pub struct Carried {
    /// The stream.
    pub spec: Arc<StreamSpec>,
    /// Number of this owner. It is part of the CNAME in RTCP, so that two simultaneous owners would be visible.
    pub epoch: u64,
    /// The stream may be sent only while this fence is open. `None`: it may always be sent.
    pub fence: Option<Fence>,
}

impl Carried {
    /// Whether both are the same stream with the same owner.
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
    /// The stream's input is received, and so much is buffered that nothing is missing when the stream starts. Or it has no
    /// input.
    Prepared(Arc<str>),
    /// The stream has stopped here. Contains its state; `None`: it did not run.
    HandedOver(Arc<str>, Option<LineState>),
}
