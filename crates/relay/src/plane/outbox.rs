//! A call's way to the packet I/Os.

use std::net::SocketAddr;

use super::Ios;
use crate::call::{Call, Outbox, Refused};
use crate::id::{CALL_PORTS_MAX, PortId};
use crate::io::DATAGRAM_BYTES_MAX;
use crate::orders::{PortRef, Slot};
use crate::stats::{CallStats, Counters};

/// Takes what a call sends in one turn.
struct Turn<'a> {
    ios: &'a mut Ios,
    ports: &'a [PortRef; CALL_PORTS_MAX],
    stats: &'a mut CallStats,
    counters: &'a Counters,
    /// Datagrams that the call may still stage in this turn.
    left: u32,
    spare: &'a mut u32,
    is_full: bool,
}

/// Has a call stage what is to be sent. `true`: there is more than one turn may send.
#[inline]
pub(super) fn transmit<C: Call>(
    slot: &mut Slot<C>,
    ios: &mut Ios,
    counters: &Counters,
    spare: &mut u32,
    now_ns: u64,
) -> bool {
    let mut turn = Turn {
        ios,
        ports: &slot.ports,
        stats: &mut slot.stats,
        counters,
        left: SENDS_IN_TURN_MAX,
        spare,
        is_full: false,
    };
    slot.call.poll_transmit(now_ns, &mut turn);
    turn.is_full
}

/// Sends what is staged.
pub(super) fn flush_all(ios: &mut Ios, counters: &Counters) {
    for io in ios.iter_mut().flatten() {
        io.flush(counters);
    }
}

impl Turn<'_> {
    #[inline]
    fn put(
        &mut self,
        port: PortId,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Refused> {
        let place = port.place().ok_or(Refused::NoSuchPort)?;
        let PortRef { io, place } = self.ports[place];
        let Some(Some(io)) = self.ios.get_mut(io as usize) else {
            return Err(Refused::NoSuchPort);
        };
        if self.left == 0 {
            return Err(Refused::Full);
        }
        match io.stage(place, to, write) {
            Err(Refused::Full) => {
                io.flush(self.counters);
                io.stage(place, to, write)
            }
            staged => staged,
        }
    }

    #[cold]
    fn refuse(&mut self, why: Refused) -> Refused {
        if why == Refused::Full {
            self.is_full = true;
        } else {
            self.stats.stage_refused += 1;
            self.counters.stage_refused.add(1);
        }
        why
    }
}

impl Outbox for Turn<'_> {
    #[inline]
    fn stage_with(
        &mut self,
        port: PortId,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused> {
        match self.put(port, to, write) {
            Ok(len) => {
                if len > 0 {
                    self.left -= 1;
                    self.stats.packets_staged += 1;
                    self.stats.bytes_staged += len as u64;
                }
                Ok(())
            }
            Err(why) => Err(self.refuse(why)),
        }
    }

    #[inline]
    fn spare(&mut self) -> Option<&mut u32> {
        Some(self.spare)
    }

    #[inline]
    fn stage(&mut self, port: PortId, to: SocketAddr, bytes: &[u8]) -> Result<(), Refused> {
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return Err(self.refuse(Refused::TooLong));
        }
        self.stage_with(port, to, &mut |room| {
            room[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        })
    }
}

/// One call's datagrams in a row: then the others have their turn. Four legs of AES67's shortest packet time come to more in
/// a slice of 20 ms, and take several turns.
const SENDS_IN_TURN_MAX: u32 = 64;
