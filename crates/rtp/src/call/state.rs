//! The state of a session. If another process, node or thread continues from it, the parties notice only a gap.

use super::direction::Direction;
use super::time_map::{Anchor, TimeState};
use super::{LegId, Session};
use crate::id::{SeqNum, Ssrc};
use crate::leg::{LegState, Outage, SentState};

/// The state of a [`Session`]. Settings are not part of it: the [`SessionSpec`](super::SessionSpec) has them.
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

/// Returns the state of a session.
pub(super) fn of(session: &Session, now_ns: u64) -> SessionState {
    let directions = session.flows.iter().map(|flow| {
        let is_main = flow.input().0 == 0;
        let source = session.legs[flow.from].source().filter(|_| is_main);
        let passed = source.zip(flow.last_passed);
        let direction: &Direction = &flow.direction;
        DirectionState {
            to: LegId(flow.to as u8),
            time: direction.time_state(now_ns),
            packet_ns: direction.sent_packet_ns(),
            passed: passed.map(|((_, ssrc), seq)| Passed {
                ssrc,
                seq,
                anchor: direction.anchor(),
            }),
        }
    });
    SessionState {
        directions: directions.collect(),
        legs: session
            .legs
            .iter()
            .map(|leg| leg.snapshot(now_ns))
            .collect(),
    }
}

/// Continues from a state: see [`Session::restore`].
pub(super) fn restore(session: &mut Session, now_ns: u64, state: &SessionState, outage: Outage) {
    for (index, (leg, old)) in session.legs.iter_mut().zip(&state.legs).enumerate() {
        let direction = state.direction_to(LegId(index as u8));
        let skipped = direction.map(|direction| outage.skipped_packets(direction.packet_ns));
        leg.restore(now_ns, old, skipped.unwrap_or(0));
    }
    for (flow, old) in session.flows.iter_mut().zip(&state.directions) {
        if let Some(time) = old.time {
            flow.direction.restore_time(now_ns, time, outage.elapsed_ns);
        }
    }
}
