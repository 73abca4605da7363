//! What a media state machine gave out and its turn had no room for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;

use threadbare_rtp::call::Scratch;

use crate::call::{Outbox, Refused};
use crate::id::PortId;

/// Datagrams that wait for the next turn, in order.
#[derive(Debug, Default)]
pub(crate) struct Unsent(VecDeque<(PortId, SocketAddr, Box<[u8]>)>);

impl Unsent {
    /// Stages what waits. `false`: there is no room for all of it.
    pub(crate) fn stage_waiting(&mut self, out: &mut dyn Outbox) -> bool {
        while let Some((port, to, bytes)) = self.0.front() {
            if out.stage(*port, *to, bytes) == Err(Refused::Full) {
                return false;
            }
            self.0.pop_front();
        }
        true
    }

    /// Stages a datagram, behind those that wait.
    #[inline]
    pub(crate) fn stage(
        &mut self,
        port: PortId,
        to: SocketAddr,
        bytes: &[u8],
        out: &mut dyn Outbox,
    ) {
        let is_full = !self.0.is_empty() || out.stage(port, to, bytes) == Err(Refused::Full);
        // A turn's worth at most: a party causes no more than it sends, but for a bounded tail.
        if is_full && self.0.len() < UNSENT_MAX {
            self.0.push_back((port, to, bytes.into()));
        }
    }
}

/// With the memory that all state machines of a shard work in.
#[inline]
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(work)
}

/// Datagrams that wait for the next turn.
const UNSENT_MAX: usize = 256;
