//! A call that another process goes on with: what still comes here goes there, and nothing is sent.

use std::fmt;

use threadbare_rtp::call::{Channel, Side};

use crate::call::{Datagram, Outbox};
use crate::id::{PortId, PortKind};
use crate::media::MediaCall;
use crate::stray::{Stray, StrayTaker};

/// The place of a call whose datagrams go to another process.
pub struct Diverted {
    take: StrayTaker,
    /// So many bytes more are taken.
    room_bytes: usize,
}

impl Diverted {
    pub(crate) fn new(take: StrayTaker) -> Diverted {
        Diverted {
            take,
            room_bytes: STRAY_BYTES_MAX,
        }
    }

    pub(crate) fn give(&mut self, stray: Stray) {
        // A stranger's flood ends here, not in memory.
        if let Some(left) = self.room_bytes.checked_sub(stray.bytes.len()) {
            self.room_bytes = left;
            (self.take)(stray);
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
        self.give(Stray {
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

impl MediaCall {
    /// All that waits to be played.
    pub(crate) fn give_up(&mut self, now_ns: u64, take: &mut dyn FnMut(Stray)) {
        for side in Side::BOTH {
            self.call_mut()
                .give_up(now_ns, side, |received_ns, from, bytes| {
                    take(Stray {
                        port: PortId::rtp(side as u8),
                        from,
                        received_ns,
                        is_clear: true,
                        bytes: bytes.to_vec(),
                    });
                });
        }
    }

    /// A datagram that waited, in the clear.
    pub(crate) fn handle_clear(&mut self, now_ns: u64, stray: &Stray) {
        let side = match stray.port.leg {
            0 => Side::A,
            _ => Side::B,
        };
        if stray.port.kind == PortKind::Rtp {
            let at_ns = stray.received_ns.min(now_ns);
            self.call_mut().handle_datagram(
                now_ns,
                at_ns,
                side,
                Channel::Rtp,
                stray.from,
                &stray.bytes,
            );
        }
    }
}

/// Of one call: a second of wide-band audio, and what a lost way costs.
pub const STRAY_BYTES_MAX: usize = 256 << 10;
