//! Copies of what parties send, for other streams of this process (subscribers to a call), and for who writes them down.

use std::net::SocketAddr;

use threadbare_rtp::call::{Channel, Side};

use crate::call::Outbox;
use crate::id::PortId;
use crate::unsent::Unsent;

/// Takes RTP packets, on the shard's thread: it must not block. When it arrived on CLOCK_MONOTONIC, ns; which party's it is, and where it came from; the packet
/// in the clear.
pub type PacketListener = Box<dyn FnMut(u64, Side, SocketAddr, &[u8]) + Send>;

/// Who gets copies, and the copies of this turn. They go out in the clear, whatever protects the parties: they stay on this machine.
#[derive(Default)]
pub(crate) struct Copies {
    to: [Vec<SocketAddr>; 2],
    listener: Option<PacketListener>,
    unsent: Unsent,
}

impl Copies {
    /// Copies of what a side sends go there from now on.
    pub(crate) fn set(&mut self, side: Side, to: &[SocketAddr]) {
        let place = &mut self.to[side as usize];
        place.clear();
        place.extend_from_slice(to);
    }

    /// It takes what both sides send from now on.
    pub(crate) fn set_listener(&mut self, listener: Option<PacketListener>) {
        self.listener = listener;
    }

    /// Whether somebody gets copies.
    pub(crate) fn is_wanted(&self) -> bool {
        self.listener.is_some() || self.to.iter().any(|to| !to.is_empty())
    }

    /// A side has sent a packet that belongs. One that does not fit any more is lost to those that get copies.
    pub(crate) fn add(&mut self, at_ns: u64, side: Side, from: SocketAddr, bytes: &[u8]) {
        if let Some(listener) = &mut self.listener {
            listener(at_ns, side, from, bytes);
        }
        for to in &self.to[side as usize] {
            self.unsent
                .keep(PortId::rtp(side as u8), Channel::Rtp, *to, bytes);
        }
    }

    /// Stages all of them. `false`: there is no room.
    pub(crate) fn stage(&mut self, out: &mut dyn Outbox) -> bool {
        self.unsent.stage_copies(out)
    }
}
