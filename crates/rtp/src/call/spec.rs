//! The specification of a session: its legs, the flows between them, and everything about them that may change.
//!
//! [`Session::new`] applies the first specification to an empty session, and [`Session::apply`] applies each later one. Both use the code
//! below, so a session that was changed behaves like one that was created that way.

use smallvec::SmallVec;

use super::direction::check_packet_ns;
use super::{DirectionConfig, Fallback, LegId, Session, SessionError};
use crate::leg::{LegConfig, PayloadMap};
use crate::srtp::Keys;

/// The specification of a [`Session`].
///
/// Some parts apply only to new legs and flows: the identity (SSRC, CNAME, first number and timestamp), the jitter buffer, the bandwidth,
/// [`DirectionConfig::passes_directly`], and the fallbacks.
#[derive(Debug, Clone)]
pub struct SessionSpec {
    pub(super) legs: Vec<LegConfig>,
    pub(super) first: FlowConfig,
    pub(super) second: Option<FlowConfig>,
    /// Whether the first two legs use the same ports.
    pub(super) shares_ports: bool,
    pub(super) records_quality: bool,
    /// Inputs that replace the first leg while it is silent.
    pub(super) fallbacks: Vec<Fallback>,
    /// Whether each party of a call hears itself.
    pub(super) echoes: bool,
    /// SRTP keys of legs. A session does not see its encryption, so its owner uses them.
    keys: Vec<(LegId, Keys)>,
    /// Whether parties may have sent for a long time before the session begins.
    joins: bool,
}

/// Settings of a flow: see [`flow`](super::flow).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowConfig {
    pub(super) from: LegId,
    /// The leg that sends. `None`: the media go only to listeners.
    pub(super) to: Option<LegId>,
    pub(super) is_verbatim: bool,
    pub(super) direction: DirectionConfig,
}

/// Destination of a one-way stream.
#[derive(Debug, Clone)]
pub enum Target {
    /// The media go back to the sending party, so one leg does both.
    Same,
    /// The media go to another party, from the same ports.
    Other(Box<LegConfig>),
    /// The media go to another party, with all packets unchanged, including the SSRC.
    Verbatim(Box<LegConfig>),
    /// The media go to no party, but only to listeners.
    Nobody,
}

impl SessionSpec {
    /// Creates the settings of a call: two parties that hear each other, each on its own ports, A first. `directions` are those from A to B
    /// and from B to A.
    #[must_use]
    pub fn call(legs: [LegConfig; 2], directions: [DirectionConfig; 2]) -> SessionSpec {
        let [to_b, to_a] = directions;
        let flow = |from, to, direction| FlowConfig {
            from,
            to: Some(to),
            is_verbatim: false,
            direction,
        };
        SessionSpec {
            legs: legs.into(),
            first: flow(LegId::A, LegId::B, to_b),
            second: Some(flow(LegId::B, LegId::A, to_a)),
            shares_ports: false,
            records_quality: true,
            fallbacks: Vec::new(),
            echoes: false,
            keys: Vec::new(),
            joins: false,
        }
    }

    /// Creates the settings of a one-way stream on one pair of ports. It goes from leg [`A`](LegId::A) to another party, which is leg
    /// [`B`](LegId::B), back to the sender, or nowhere.
    #[must_use]
    pub fn stream(source: LegConfig, target: Target, direction: DirectionConfig) -> SessionSpec {
        let is_verbatim = matches!(target, Target::Verbatim(_));
        let (other, to) = match target {
            Target::Other(other) | Target::Verbatim(other) => (Some(*other), Some(LegId::B)),
            Target::Same => (None, Some(LegId::A)),
            Target::Nobody => (None, None),
        };
        let first = FlowConfig {
            from: LegId::A,
            to,
            is_verbatim,
            direction,
        };
        SessionSpec {
            shares_ports: other.is_some(),
            legs: std::iter::once(source).chain(other).collect(),
            first,
            second: None,
            records_quality: false,
            fallbacks: Vec::new(),
            echoes: false,
            keys: Vec::new(),
            joins: true,
        }
    }

    /// Adds inputs that replace the first leg while it is silent, in order of preference. Fallbacks that are legs become the next legs of
    /// the session, each on its own ports. The output stays one stream, with one SSRC, consecutive numbers, and timestamps that follow the
    /// time. Filter and tap get the outgoing audio, in its format. A stream ignores fallbacks if it forwards packets verbatim or sends
    /// nowhere.
    #[must_use]
    pub fn with_fallbacks(mut self, fallbacks: Vec<Fallback>) -> SessionSpec {
        self.fallbacks = fallbacks;
        self
    }

    /// Makes each party of a call hear itself instead of the other party: see [`Session::set_echo`].
    #[must_use]
    pub fn with_echo(mut self, echoes: bool) -> SessionSpec {
        self.echoes = echoes;
        self
    }

    /// Sets the SRTP keys of a leg. `None`: it uses plain RTP.
    #[must_use]
    pub fn with_keys(mut self, leg: impl Into<LegId>, keys: Option<Keys>) -> SessionSpec {
        let leg = leg.into();
        self.keys.retain(|(other, _)| *other != leg);
        self.keys.extend(keys.map(|keys| (leg, keys)));
        self
    }

    /// Removes and returns the SRTP keys of the legs that have some.
    pub fn take_keys(&mut self) -> Vec<(LegId, Keys)> {
        std::mem::take(&mut self.keys)
    }

    /// Whether the parties may have sent for a long time before the session begins, as those of a stream.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.joins
    }

    fn flows(&self) -> impl Iterator<Item = &FlowConfig> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// Checks that a running session can become what this says.
    fn check(&self, session: &Session) -> Result<(), SessionError> {
        let fallback_legs = session.flows.first().inputs.as_ref();
        let fallback_legs = fallback_legs.map_or(0, |inputs| inputs.legs().count() - 1);
        let ways = session.flows.iter();
        let mut ways = ways.map(|flow| (flow.to, flow.is_verbatim, flow.is_silent));
        let is_alike = self.legs.len() + fallback_legs == session.legs.len()
            && self.shares_ports == session.shares_ports
            && self.flows().all(|flow| {
                let to = flow.to.unwrap_or(flow.from).index();
                let is_silent = flow.to.is_none() || flow.is_verbatim;
                ways.next() == Some((to, flow.is_verbatim, is_silent))
            })
            && ways.next().is_none();
        if !is_alike {
            return Err(SessionError::Shape);
        }
        for flow in self.flows() {
            let receiver = &self.legs[flow.to.unwrap_or(flow.from).index()];
            check_packet_ns(flow.direction.packet_ns, receiver.takes())?;
        }
        Ok(())
    }
}

/// Makes a session what `spec` says. Only what differs from it changes.
pub(super) fn apply(
    session: &mut Session,
    now_ns: u64,
    spec: SessionSpec,
) -> Result<(), SessionError> {
    spec.check(session)?;
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

/// Applies what a new session does not get from the settings of its legs and directions.
pub(super) fn begin(session: &mut Session, flows: &[FlowConfig], echoes: bool) {
    session.set_echo(echoes);
    for flow in flows {
        settle(session, flow);
    }
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
    settle(session, flow);
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

/// Applies settings that have the same effect whenever they are applied again.
fn settle(session: &mut Session, flow: &FlowConfig) {
    let direction = &flow.direction;
    session.block_keys(flow.from, direction.blocks_keys);
    session.pass_keys(flow.from, direction.passes_keys);
    if let Some(to) = flow.to {
        session.set_held(to, direction.holds_receiver);
    }
}
