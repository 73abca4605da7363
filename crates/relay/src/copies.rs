//! Copies of parties' packets, for recorders and for other streams of this process (subscribers to a call).

use std::net::SocketAddr;

use threadbare_rtp::call::{Channel, Side};

use crate::call::Outbox;
use crate::id::PortId;
use crate::unsent::{Envelope, Unsent};

/// Handles RTP packets on the shard's thread. It must not block. The arguments are the arrival time in ns of CLOCK_MONOTONIC, the party,
/// its address, and the decrypted packet.
pub type PacketListener = Box<dyn FnMut(u64, Side, SocketAddr, &[u8]) + Send>;

/// The receivers of copies, and the copies that leave in this turn. They are not encrypted even if the parties use SRTP, because they stay
/// on this machine.
#[derive(Default)]
pub(crate) struct Copies {
    to: [Vec<SocketAddr>; 2],
    listener: Option<PacketListener>,
    unsent: Unsent,
}

impl Copies {
    /// Sets the receivers of copies of a side's packets.
    pub(crate) fn set(&mut self, side: Side, to: &[SocketAddr]) {
        let place = &mut self.to[side as usize];
        place.clear();
        place.extend_from_slice(to);
    }

    /// Sets the listener for the packets of both sides.
    pub(crate) fn set_listener(&mut self, listener: Option<PacketListener>) {
        self.listener = listener;
    }

    /// Whether anything receives copies.
    pub(crate) fn is_wanted(&self) -> bool {
        self.listener.is_some() || self.to.iter().any(|to| !to.is_empty())
    }

    /// Copies an accepted packet of a side. If there is no room for the copy, it is lost.
    pub(crate) fn add(&mut self, at_ns: u64, side: Side, from: SocketAddr, bytes: &[u8]) {
        if let Some(listener) = &mut self.listener {
            listener(at_ns, side, from, bytes);
        }
        for to in &self.to[side as usize] {
            let envelope = Envelope {
                leg: side.into(),
                port: PortId::rtp(side as u8),
                channel: Channel::Rtp,
                to: *to,
            };
            self.unsent.keep(envelope, bytes);
        }
    }

    /// Stages all copies. Returns `false` if the turn is full.
    pub(crate) fn stage(&mut self, out: &mut dyn Outbox) -> bool {
        self.unsent.stage_copies(out)
    }
}
