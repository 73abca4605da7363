//! Changes a running session to a specification. [`Session::new`] and this code use the same setters, so a session that was changed behaves
//! like one that was created that way.

use smallvec::SmallVec;

use super::direction::check_packet_ns;
use super::spec::{FlowConfig, SessionSpec};
use super::{DirectionConfig, LegId, Session, SessionError};
use crate::leg::{LegConfig, PayloadMap};

/// Makes a session what `spec` says. Only what differs from it changes.
pub(super) fn apply(
    session: &mut Session,
    now_ns: u64,
    spec: SessionSpec,
) -> Result<(), SessionError> {
    check(&spec, session)?;
    session.set_echo(spec.echoes);
    let flows: SmallVec<[FlowConfig; 2]> = spec.flows().copied().collect();
    for (index, leg) in spec.legs.into_iter().enumerate() {
        apply_leg(session, now_ns, LegId(index as u8), leg);
    }
    let mut applied = Ok(());
    for flow in flows {
        // If the encoder refuses a bit rate, the other changes still take effect.
        applied = apply_flow(session, &flow).and(applied);
    }
    applied
}

fn apply_leg(session: &mut Session, now_ns: u64, id: LegId, spec: LegConfig) {
    let leg = &session.legs[id.index()];
    let sends = PayloadMap::received(spec.payloads.clone(), spec.mux);
    let is_mux = leg.is_mux();
    let has_payloads = *leg.payloads() == sends && leg.takes() == spec.takes();
    if is_mux != spec.mux {
        session.leg_mut(id).set_mux(spec.mux);
    }
    if !has_payloads {
        session.set_payloads(id, spec.payloads.clone(), spec.takes().clone());
    }
    if !session.legs[id.index()].is_described(&spec.admission, spec.destination) {
        let leg = session.leg_mut(id);
        leg.relearn(now_ns, spec.admission, spec.destination);
    }
    session.legs[id.index()].set_profile(now_ns, spec.profile, false);
}

fn apply_flow(session: &mut Session, flow: &FlowConfig) -> Result<(), SessionError> {
    let (from, new) = (flow.from, &flow.direction);
    let settings = |session: &Session| {
        let flow = session.flows.get(from.index());
        flow.map(|flow| *flow.direction.config())
    };
    // With an echo, a party's own settings are at the other flow.
    let own = session.flows.of(from.index());
    let own = own.map_or(*new, |flow| *flow.direction.config());
    if own.detect_keys != new.detect_keys {
        session.set_detect_keys(from, new.detect_keys);
    }
    if own.makes_anew != new.makes_anew {
        session.set_makes_anew(from, new.makes_anew);
    }
    session.set_mode(from, new.mode);
    session.settle(flow);
    let old = settings(session).unwrap_or(*new);
    if old.packet_ns != new.packet_ns {
        session.set_packet_ns(from, new.packet_ns)?;
    }
    let bitrates = |direction: &DirectionConfig| {
        let encoder = &direction.encoder;
        (encoder.bitrate_bps, encoder.bitrate_bps_max)
    };
    if bitrates(&old) != bitrates(new) {
        let (bitrate_bps, bitrate_bps_max) = bitrates(new);
        session.set_bitrate(from, bitrate_bps, bitrate_bps_max)?;
    }
    Ok(())
}

/// Checks that a running session can become what `spec` says.
fn check(spec: &SessionSpec, session: &Session) -> Result<(), SessionError> {
    let fallback_legs = session.flows.first().inputs.as_ref();
    let fallback_legs = fallback_legs.map_or(0, |inputs| inputs.legs().count() - 1);
    let ways = session.flows.iter();
    let mut ways = ways.map(|flow| (flow.to, flow.is_verbatim, flow.is_silent));
    let is_alike = spec.legs.len() + fallback_legs == session.legs.len()
        && spec.shares_ports == session.shares_ports
        && spec.flows().all(|flow| {
            let to = flow.to.unwrap_or(flow.from).index();
            let is_silent = flow.to.is_none() || flow.is_verbatim;
            ways.next() == Some((to, flow.is_verbatim, is_silent))
        })
        && ways.next().is_none();
    if !is_alike {
        return Err(SessionError::Shape);
    }
    for flow in spec.flows() {
        let receiver = &spec.legs[flow.to.unwrap_or(flow.from).index()];
        check_packet_ns(flow.direction.packet_ns, receiver.takes())?;
    }
    Ok(())
}
