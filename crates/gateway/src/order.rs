//! What a cluster has this process carry: orders for the thread that keeps the streams running, and its answers.

use std::sync::Arc;

use threadbare_relay::Fence;
use threadbare_rtp::call::LineState;

use crate::config::StreamSpec;

/// For the gateway's main thread. Orders about a stream are carried out in their order.
#[derive(Debug)]
pub enum Order {
    /// Hear a stream that another node carries, and answer [`Answer::Prepared`].
    Prepare(Carried),
    /// Carry it: what was prepared, or anew.
    Start(Carried, Option<LineState>),
    /// Stop a stream between two packets, and answer [`Answer::HandedOver`].
    HandOver(Arc<str>),
    /// Stop it.
    Stop(Arc<str>),
}

/// How a stream is carried.
#[derive(Debug, Clone)]
pub struct Carried {
    /// The stream.
    pub spec: Arc<StreamSpec>,
    /// Which of its owners this one is: in its RTCP, so that two would be seen.
    pub epoch: u64,
    /// While it is open, the stream may be sent. `None`: always.
    pub fence: Option<Fence>,
}

impl Carried {
    /// Whether it is the same owner of the same stream.
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

/// Of the gateway's main thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The stream's input is heard, and so much of it held that nothing is missing when it starts; or there is none.
    Prepared(Arc<str>),
    /// The stream has stopped here. `None`: it did not run.
    HandedOver(Arc<str>, Option<LineState>),
}
