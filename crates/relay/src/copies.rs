//! Copies of what parties send, for other streams of this process: subscribers to a call.

use std::net::SocketAddr;

use threadbare_rtp::call::Side;

use crate::call::Outbox;
use crate::id::PortId;
use crate::unsent::Unsent;

/// Who gets copies, and the copies of this turn. They go out in the clear, whatever protects the parties: they stay on this machine.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    to: [Vec<SocketAddr>; 2],
    unsent: Unsent,
}

impl Copies {
    /// Copies of what a side sends go there from now on. `false`: there is nobody any more.
    pub(crate) fn set(&mut self, side: Side, to: &[SocketAddr]) -> bool {
        let place = &mut self.to[side as usize];
        place.clear();
        place.extend_from_slice(to);
        self.to.iter().any(|to| !to.is_empty())
    }

    /// A side has sent a packet that belongs. One that does not fit any more is lost to those that get copies.
    pub(crate) fn add(&mut self, side: Side, bytes: &[u8]) {
        for to in &self.to[side as usize] {
            self.unsent.keep(PortId::rtp(side as u8), *to, bytes);
        }
    }

    /// Stages all of them. `false`: there is no room.
    pub(crate) fn stage(&mut self, out: &mut dyn Outbox) -> bool {
        self.unsent.stage_waiting(&mut [], out)
    }
}
