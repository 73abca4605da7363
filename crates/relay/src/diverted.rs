//! A call that another process continues. Late packets are passed to that process, and nothing is sent.

use std::fmt;

use threadbare_rtp::call::{Channel, Side};

use crate::audio::AudioSession;
use crate::call::{Datagram, Outbox};
use crate::id::{PortId, PortKind};
use crate::late_packet::{LatePacket, LatePacketHandler};

/// Takes the place of a call whose datagrams go to another process.
pub struct Diverted {
    take: LatePacketHandler,
    /// Number of bytes that may still be passed on.
    room_bytes: usize,
}

impl Diverted {
    pub(crate) fn new(take: LatePacketHandler) -> Diverted {
        Diverted {
            take,
            room_bytes: LATE_PACKET_BYTES_MAX,
        }
    }

    pub(crate) fn give(&mut self, packet: LatePacket) {
        // This bounds the memory that a flood of packets takes.
        if let Some(left) = self.room_bytes.checked_sub(packet.bytes.len()) {
            self.room_bytes = left;
            (self.take)(packet);
        }
    }
}

impl fmt::Debug for Diverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Diverted")
            .field("room_bytes", &self.room_bytes)
            .finish_non_exhaustive()
    }
}

impl crate::Call for Diverted {
    fn handle_datagram(&mut self, _now_ns: u64, datagram: Datagram<'_>) {
        self.give(LatePacket {
            port: datagram.port,
            from: datagram.from,
            received_ns: datagram.received_ns,
            is_clear: false,
            bytes: datagram.bytes.to_vec(),
        });
    }

    fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, _out: &mut dyn Outbox) {}

    fn next_timeout(&self) -> Option<u64> {
        None
    }
}

impl AudioSession {
    /// Passes on all packets that were received and not played yet.
    pub(crate) fn give_up(&mut self, now_ns: u64, take: &mut dyn FnMut(LatePacket)) {
        for side in Side::BOTH {
            self.session_mut()
                .give_up(now_ns, side, |received_ns, from, bytes| {
                    take(LatePacket {
                        port: PortId::rtp(side as u8),
                        from,
                        received_ns,
                        is_clear: true,
                        bytes: bytes.to_vec(),
                    });
                });
        }
    }

    /// Handles a queued datagram that is already decrypted.
    pub(crate) fn handle_clear(&mut self, now_ns: u64, packet: &LatePacket) {
        let side = match packet.port.leg {
            0 => Side::A,
            _ => Side::B,
        };
        if packet.port.kind == PortKind::Rtp {
            let at_ns = packet.received_ns.min(now_ns);
            self.session_mut().handle_datagram(
                now_ns,
                at_ns,
                side as u8,
                Channel::Rtp,
                packet.from,
                &packet.bytes,
            );
        }
    }
}

/// Maximum number of bytes for one call. It allows a second of wideband audio, and packets that were delayed while a network path failed.
pub const LATE_PACKET_BYTES_MAX: usize = 256 << 10;
