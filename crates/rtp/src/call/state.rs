//! Saved state of a call: after a restart of the process the parties notice only a gap.

use std::net::SocketAddr;

use super::direction::Direction;
use super::{Call, Side, TimeState};
use crate::leg::{LegState, Outage};

/// The state of a [`Call`], A's first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallState {
    /// The legs.
    pub legs: [LegState; 2],
    /// The state of each direction, from A first.
    pub directions: [DirectionState; 2],
}

/// The state of the direction from one party to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionState {
    /// The timestamps sent to the other party; `None`: none was sent.
    pub time: Option<TimeState>,
    /// Packet time, ns.
    pub packet_ns: u64,
}

impl Call {
    /// The state that another process needs to continue the call. Settings are not part of it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> CallState {
        CallState {
            legs: [0, 1].map(|side: usize| self.legs[side].snapshot(now_ns)),
            directions: [0, 1]
                .map(|side: usize| DirectionState::of(&self.directions[side], now_ns)),
        }
    }

    /// Hands over all packets received from a side that were not forwarded yet: [`Leg::give_up`](crate::leg::Leg::give_up).
    pub fn give_up(&mut self, now_ns: u64, side: Side, give: impl FnMut(u64, SocketAddr, &[u8])) {
        self.legs[side as usize].give_up(now_ns, give);
    }

    /// Continues from another process's state, with its SSRCs, and with numbers and timestamps that continue. Only for a call
    /// that has neither sent nor received. Returns how many sequence numbers were skipped towards each party, A first.
    pub fn restore(&mut self, now_ns: u64, state: &CallState, outage: Outage) -> [u16; 2] {
        Side::BOTH.map(|side| {
            let direction = &state.directions[side.other() as usize];
            let skipped_packets = outage.skipped_packets(direction.packet_ns);
            let leg = &state.legs[side as usize];
            self.legs[side as usize].restore(now_ns, leg, skipped_packets);
            if let Some(time) = direction.time {
                let to = &mut self.directions[side.other() as usize];
                to.restore_time(now_ns, time, outage.elapsed_ns);
            }
            skipped_packets
        })
    }
}

impl DirectionState {
    fn of(direction: &Direction, now_ns: u64) -> DirectionState {
        DirectionState {
            time: direction.time_state(now_ns),
            packet_ns: direction.sent_packet_ns(),
        }
    }
}
