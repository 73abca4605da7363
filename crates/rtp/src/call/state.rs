//! The state of a session. If another process, node or thread continues from it, the parties notice only a gap.

use super::LegId;
use super::time_map::{Anchor, TimeState};
use crate::id::{SeqNum, Ssrc};
use crate::leg::{LegState, SentState};

/// The state of a [`Session`](super::Session). Settings are not part of it: the [`SessionSpec`](super::SessionSpec) has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionState {
    /// The states of the legs, by [`LegId`].
    pub legs: Vec<LegState>,
    /// The states of the directions. A call has two, that from A first. A stream has one.
    pub directions: Vec<DirectionState>,
}

/// The state of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionState {
    /// The leg that sends.
    pub to: LegId,
    /// The timestamps that were sent. `None`: none was sent, or packets pass verbatim.
    pub time: Option<TimeState>,
    /// Packet time, ns.
    pub packet_ns: u64,
    /// The active sender, and the last of its packets that was forwarded.
    pub passed: Option<Passed>,
}

/// How far a sender's stream was forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// The sender's stream.
    pub ssrc: Ssrc,
    /// The last packet of the sender that was forwarded.
    pub seq: SeqNum,
    /// How the sender's timestamps map to the outgoing ones.
    pub anchor: Option<Anchor>,
}

impl SessionState {
    /// Creates the state of a stream's output, without the state of its senders.
    #[must_use]
    pub fn of_output(sent: SentState, direction: DirectionState) -> SessionState {
        let leg = LegState {
            sent,
            source: None,
            rtcp_from: None,
            is_fixed: false,
        };
        SessionState {
            legs: vec![leg],
            directions: vec![DirectionState {
                to: LegId(0),
                ..direction
            }],
        }
    }

    /// Returns the output of a stream. `None`: the state is of no stream.
    #[must_use]
    pub fn output(&self) -> Option<(SentState, DirectionState)> {
        let direction = *self.directions.first()?;
        Some((*self.sent(&direction)?, direction))
    }

    /// Returns the stream that a direction sends.
    #[must_use]
    pub fn sent(&self, direction: &DirectionState) -> Option<&SentState> {
        Some(&self.legs.get(direction.to.index())?.sent)
    }

    /// Returns the direction that a leg sends.
    #[must_use]
    pub fn direction_to(&self, leg: impl Into<LegId>) -> Option<&DirectionState> {
        let leg = leg.into();
        self.directions.iter().find(|direction| direction.to == leg)
    }

    /// Returns the direction that a leg sends.
    pub fn direction_to_mut(&mut self, leg: impl Into<LegId>) -> Option<&mut DirectionState> {
        let leg = leg.into();
        let mut directions = self.directions.iter_mut();
        directions.find(|direction| direction.to == leg)
    }
}
