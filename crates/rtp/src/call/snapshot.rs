//! Takes the state of a session, and continues from it.

use super::{DirectionState, LegId, Passed, Session, SessionState};
use crate::leg::Outage;

/// Returns the state of a session.
pub(super) fn of(session: &Session, now_ns: u64) -> SessionState {
    let directions = session.flows.iter().map(|flow| {
        let is_main = flow.input().0 == 0;
        let source = session.legs[flow.from].source().filter(|_| is_main);
        let passed = source.zip(flow.last_passed);
        let direction = &flow.direction;
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

/// Continues a stream's output: see [`Session::resume`].
pub(super) fn resume(session: &mut Session, now_ns: u64, state: &SessionState, outage: Outage) {
    let flow = session.flows.first_mut();
    let Some((mut sent, direction)) = state.output().filter(|_| !flow.is_silent) else {
        return;
    };
    let skipped_packets = outage.skipped_packets(direction.packet_ns);
    sent.next_seq = sent.next_seq.plus(skipped_packets);
    session.legs[flow.to].restore_sent(&sent);
    if let Some(time) = direction.time {
        flow.direction.restore_time(now_ns, time, outage.elapsed_ns);
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
