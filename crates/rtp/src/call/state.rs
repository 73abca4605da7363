//! The saved state of a call. If another process continues from it, the parties notice only a gap.

use super::TimeState;
use super::direction::Direction;
use crate::leg::LegState;

/// The state of a [`Session`](super::Session) that is a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallState {
    /// The states of the legs, A's first.
    pub legs: [LegState; 2],
    /// The state of each direction, from A first.
    pub directions: [DirectionState; 2],
}

/// The state of the direction from one party to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionState {
    /// The timestamps that were sent to the other party. `None`: none was sent.
    pub time: Option<TimeState>,
    /// Packet time, ns.
    pub packet_ns: u64,
}

impl DirectionState {
    pub(super) fn of(direction: &Direction, now_ns: u64) -> DirectionState {
        DirectionState {
            time: direction.time_state(now_ns),
            packet_ns: direction.sent_packet_ns(),
        }
    }
}
