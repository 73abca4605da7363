//! What a call keeps over a restart of the process, so that the parties notice no more than a gap.

use std::net::SocketAddr;

use super::direction::Direction;
use super::{Call, Side, TimeState};
use crate::leg::{LegState, Outage};

/// The state of a [`Call`], A's first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallState {
    /// The legs.
    pub legs: [LegState; 2],
    /// What the parties send to each other.
    pub directions: [DirectionState; 2],
}

/// The state of what one party sends to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionState {
    /// The timestamps that the other party gets; `None`: it got none.
    pub time: Option<TimeState>,
    /// Audio in a packet, ns.
    pub packet_ns: u64,
}

impl Call {
    /// What another process needs to go on. Settings are not among it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> CallState {
        CallState {
            legs: [0, 1].map(|side: usize| self.legs[side].snapshot(now_ns)),
            directions: [0, 1].map(|side: usize| self.directions[side].snapshot(now_ns)),
        }
    }

    /// Gives all packets that have come from a side and were not sent on yet: [`Leg::give_up`](crate::leg::Leg::give_up).
    pub fn give_up(&mut self, now_ns: u64, side: Side, give: impl FnMut(u64, SocketAddr, &[u8])) {
        self.legs[side as usize].give_up(now_ns, give);
    }

    /// Goes on where another process stopped, with its SSRCs, and with numbers and timestamps that continue. For a call that has neither sent nor
    /// received. Returns how many sequence numbers are left out towards each party, A first.
    pub fn restore(&mut self, now_ns: u64, state: &CallState, outage: Outage) -> [u16; 2] {
        Side::BOTH.map(|side| {
            let direction = &state.directions[side.other() as usize];
            let skipped_packets = outage.skipped_packets(direction.packet_ns);
            let leg = &state.legs[side as usize];
            self.legs[side as usize].restore(now_ns, leg, skipped_packets);
            self.directions[side.other() as usize].restore(now_ns, direction, outage.elapsed_ns);
            skipped_packets
        })
    }
}

impl Direction {
    fn snapshot(&self, now_ns: u64) -> DirectionState {
        DirectionState {
            time: self.time_state(now_ns),
            packet_ns: self.sent_packet_ns(),
        }
    }

    fn restore(&mut self, now_ns: u64, state: &DirectionState, elapsed_ns: u64) {
        if let Some(time) = state.time {
            self.restore_time(now_ns, time, elapsed_ns);
        }
    }
}
