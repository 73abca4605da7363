//! The way of a call's datagrams to the packet I/Os.

use std::net::{IpAddr, SocketAddr};

use super::Ios;
use crate::call::{Call, Outbox, Refused};
use crate::id::{CALL_PORTS_MAX, LEGS_MAX, PortId};
use crate::io::{Attached, DATAGRAM_BYTES_MAX};
use crate::orders::{PortRef, Slot};
use crate::policy::{Passed, View};
use crate::stats::{CallStats, Counters};

/// Accepts the datagrams of a call in one turn.
struct Turn<'a> {
    ios: &'a mut Ios,
    ports: &'a [PortRef; CALL_PORTS_MAX],
    passed: &'a mut [Passed; CALL_PORTS_MAX],
    legs: &'a [Option<(u32, Attached)>; LEGS_MAX],
    /// The policy for destinations. `None`: all destinations are allowed.
    policy: Option<&'a View>,
    stats: &'a mut CallStats,
    counters: &'a Counters,
    /// Number of datagrams that the call may still stage in this turn.
    left: u32,
    spare: &'a mut u32,
    is_full: bool,
}

/// Lets a call stage its datagrams. Returns `true` if it has more than it may send in one turn.
#[inline]
pub(super) fn transmit<C: Call>(
    slot: &mut Slot<C>,
    ios: &mut Ios,
    counters: &Counters,
    policy: Option<&View>,
    spare: &mut u32,
    now_ns: u64,
    may_lose: bool,
) -> bool {
    let mut turn = Turn {
        ios,
        ports: &slot.ports,
        passed: &mut slot.passed,
        legs: &slot.legs,
        policy,
        stats: &mut slot.stats,
        counters,
        left: SENDS_IN_TURN_MAX,
        spare,
        is_full: false,
    };
    slot.call.poll_transmit(now_ns, may_lose, &mut turn);
    turn.is_full
}

/// Sends the staged datagrams.
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
        chosen: Chosen,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Refused> {
        let place = port.place().ok_or(Refused::NoSuchPort)?;
        if chosen == Chosen::ByParty
            && let Some(policy) = self.policy
            && !policy.allows(&mut self.passed[place], to, || addresses(self.legs, port))
        {
            return Err(Refused::Forbidden);
        }
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
        match why {
            Refused::Full => self.is_full = true,
            Refused::Forbidden => self.counters.forbidden.add(1),
            Refused::TooLong | Refused::NoSuchPort | Refused::Unreachable => {
                self.stats.stage_refused += 1;
                self.counters.stage_refused.add(1);
            }
        }
        why
    }

    #[inline]
    fn stage_chosen(
        &mut self,
        port: PortId,
        to: SocketAddr,
        chosen: Chosen,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused> {
        match self.put(port, to, chosen, write) {
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
}

/// Who chose a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    /// A party, in its description or by sending from there.
    ByParty,
    /// The relay itself.
    ByRelay,
}

/// Returns the address of a port's leg, and those of all ports of its call.
#[cold]
fn addresses(
    legs: &[Option<(u32, Attached)>; LEGS_MAX],
    port: PortId,
) -> (IpAddr, [SocketAddr; CALL_PORTS_MAX]) {
    // The unspecified address is a placeholder, because no destination has it.
    let mut all = [SocketAddr::from(([0; 4], 0)); CALL_PORTS_MAX];
    for (pair, leg) in all.chunks_mut(2).zip(legs) {
        let locals = leg.iter().flat_map(|(_, attached)| attached.rest.locals());
        for (place, local) in pair.iter_mut().zip(locals) {
            *place = local.unwrap_or(*place);
        }
    }
    let leg = usize::from(port.leg) * 2;
    (all[leg].ip(), all)
}

impl Outbox for Turn<'_> {
    #[inline]
    fn stage_with(
        &mut self,
        port: PortId,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused> {
        self.stage_chosen(port, to, Chosen::ByParty, write)
    }

    fn stage_copy(&mut self, port: PortId, to: SocketAddr, bytes: &[u8]) -> Result<(), Refused> {
        let write = &mut |room: &mut [u8]| copy_into(room, bytes);
        self.stage_chosen(port, to, Chosen::ByRelay, write)
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
        self.stage_with(port, to, &mut |room| copy_into(room, bytes))
    }
}

/// Copies a datagram. Returns its length, or 0 if there is not enough room.
#[inline]
fn copy_into(room: &mut [u8], bytes: &[u8]) -> usize {
    room.get_mut(..bytes.len()).map_or(0, |room| {
        room.copy_from_slice(bytes);
        bytes.len()
    })
}

/// Maximum number of consecutive datagrams of one call, before the other calls get their turn. Four legs with AES67's shortest packet time
/// exceed it in a slice of 20 ms, and take several turns.
const SENDS_IN_TURN_MAX: u32 = 64;
