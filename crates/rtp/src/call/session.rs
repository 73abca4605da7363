//! A session: legs, and the flows of media between the legs.
//!
//! ```text
//!  A ─→ Leg ─ media ─→ Direction ─ packets ─→ Leg ─→ B
//!  A ←─ Leg ←─ packets ─ Direction ←─ media ─ Leg ←─ B
//! ```
//!
//! A call has two legs and two flows. A stream has one flow and one leg or two, and its fallbacks add more legs.

use std::net::SocketAddr;

use smallvec::SmallVec;

use super::direction::DirectionStats;
use super::flow::{Flow, Flows};
use super::handover::Hold;
use super::{Channel, LegId, SessionError, SessionEvent, SessionSpec, SessionState};
use crate::id::{PayloadType, Ssrc};
use crate::leg::{Leg, LegStats, Refusal, Verdict};

/// Counters and gauges of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStats {
    /// The legs, by [`LegId`].
    pub legs: Vec<LegStats>,
    /// The directions. A call has two, that from A first. A stream has one.
    pub directions: Vec<DirectionStats>,
    /// The leg that each direction sends from.
    pub to: Vec<LegId>,
}

impl SessionStats {
    /// Returns the sender of a stream.
    #[must_use]
    pub fn source(&self) -> &LegStats {
        &self.legs[0]
    }

    /// Returns the leg that sends a stream.
    #[must_use]
    pub fn target(&self) -> &LegStats {
        &self.legs[self.to[0].index()]
    }

    /// Returns the direction of a stream.
    #[must_use]
    pub fn direction(&self) -> &DirectionStats {
        &self.directions[0]
    }
}

/// Legs, and the flows of media between them: see the module documentation.
///
/// **Contract.** After each `handle_*` and each command, or after a batch of them, call [`poll_transmit`](Session::poll_transmit) once and
/// drain [`poll_event`](Session::poll_event). Call both again at [`next_timeout`](Session::next_timeout). Times are ns on one monotonic
/// clock.
#[derive(Debug)]
pub struct Session {
    pub(super) legs: SmallVec<[Leg; 2]>,
    /// The flows. For a call, they are the flow to B, then the flow to A.
    pub(super) flows: Flows,
    pub(super) ahead_ns: u64,
    pub(super) echo: Echo,
    /// Whether the first two legs use the same ports.
    pub(super) shares_ports: bool,
    pub(super) is_ending: bool,
    /// The leg and payload type of the first packet whose type was not agreed on.
    refused_type: Option<(LegId, PayloadType)>,
    /// Whether the owner has got an event for this packet.
    has_told_type: bool,
    pub(super) hold: Option<Box<Hold>>,
}

/// State of the echo. With an echo, the flows have exchanged their inputs, so that each party hears itself instead of the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Echo {
    pub(super) is_on: bool,
    /// The state to which the next poll switches.
    pub(super) is_wanted: bool,
}

impl Echo {
    /// Whether the next poll switches the echo on or off.
    #[inline]
    pub(super) fn is_changing(self) -> bool {
        self.is_on != self.is_wanted
    }
}

impl Session {
    /// Creates a session that starts at `now_ns`.
    ///
    /// # Errors
    /// Fails if a setting is out of range, or the sound of a fallback cannot be played.
    pub fn new(now_ns: u64, spec: SessionSpec) -> Result<Session, SessionError> {
        let first = Flow::new(spec.first, &spec.legs)?;
        let second = spec.second.map(|flow| Flow::new(flow, &spec.legs));
        let mut flows = Flows::new(first, second.transpose()?);
        let mut all = spec.legs;
        let flow = flows.first_mut();
        if !spec.fallbacks.is_empty() && !flow.is_silent {
            let takes = all[flow.to].takes().clone();
            let legs = flow.set_fallbacks(now_ns, spec.fallbacks, all.len(), &takes)?;
            all.extend(legs);
        }
        let mut legs = SmallVec::new();
        for leg in all {
            let mut leg = Leg::new(now_ns, leg)?;
            if spec.records_quality {
                leg.record_quality();
            }
            legs.push(leg);
        }
        let mut session = Session {
            legs,
            flows,
            ahead_ns: 0,
            echo: Echo::default(),
            shares_ports: spec.shares_ports,
            is_ending: false,
            refused_type: None,
            has_told_type: false,
            hold: None,
        };
        session.set_echo(spec.echoes);
        for flow in std::iter::once(spec.first).chain(spec.second) {
            session.settle(&flow);
        }
        Ok(session)
    }

    /// Handles a datagram that arrived at `at_ns` on the ports with the number `ports`. The ports of a leg have the leg's number. But the
    /// two legs of a stream share ports 0, and its fallback legs have the next numbers.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        ports: u8,
        channel: Channel,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        let index = self.leg_of(ports, channel, from, bytes).index();
        let legs = &self.legs;
        let types = match self.flows.of_mut(index) {
            // Packets are forwarded directly only if their direction will not change.
            Some(flow) if !self.echo.is_changing() => {
                let (sends, takes) = (legs[index].payloads(), legs[flow.to].takes());
                flow.direction.direct_types(sends, takes)
            }
            _ => 0,
        };
        let Some(leg) = self.legs.get_mut(index) else {
            return Verdict::Refused(Refusal::NotAllowed);
        };
        leg.set_direct_types(types);
        let verdict = match channel {
            Channel::Rtp => leg.handle_datagram(now_ns, at_ns, from, bytes),
            Channel::Rtcp => leg.handle_rtcp(at_ns, from, bytes),
        };
        match verdict {
            Verdict::Media => {
                if let Some(inputs) = &mut self.flows.first_mut().inputs {
                    inputs.handle_heard(now_ns, index);
                }
            }
            Verdict::Rtcp => self.note_report(at_ns, index),
            Verdict::Refused(Refusal::PayloadType(payload_type)) => {
                let first = (LegId(index as u8), payload_type);
                self.refused_type.get_or_insert(first);
            }
            _ => {}
        }
        verdict
    }

    /// Whether RTP and RTCP use a single port of these.
    #[must_use]
    #[inline]
    pub fn is_mux(&self, ports: u8) -> bool {
        let is_mux = |leg: usize| self.legs.get(leg).is_some_and(Leg::is_mux);
        let leg = self.first_leg_on(ports);
        // If legs share ports, it is enough that one of them multiplexes.
        is_mux(leg) || (self.shares_ports && leg == 0 && is_mux(1))
    }

    /// Returns the index of the leg on these ports. If two legs share the ports, returns the index of the first one.
    #[inline]
    fn first_leg_on(&self, ports: u8) -> usize {
        usize::from(ports) + usize::from(self.shares_ports && ports > 0)
    }

    /// Returns the leg that a datagram belongs to. The datagram may still be encrypted, because SRTP and SRTCP do not encrypt the bytes
    /// that matter here.
    #[must_use]
    #[inline]
    pub fn leg_of(&self, ports: u8, channel: Channel, from: SocketAddr, bytes: &[u8]) -> LegId {
        if self.shares_ports && ports == 0 {
            let is_rtcp = channel.carried(self.is_mux(0), bytes) == Channel::Rtcp;
            return LegId(u8::from(is_rtcp && self.is_from_target(from, bytes)));
        }
        LegId(self.first_leg_on(ports) as u8)
    }

    /// Whether these reports come from the second leg's party. The reports of both parties arrive on one port. They are distinguished by
    /// the SSRC of the sender, or else by the source address.
    fn is_from_target(&self, from: SocketAddr, bytes: &[u8]) -> bool {
        let sender = bytes
            .get(4..8)
            .and_then(|word| <[u8; 4]>::try_from(word).ok())
            .map(|word| Ssrc(u32::from_be_bytes(word)));
        let source = self.legs[0].source();
        let is_source = source.is_some_and(|(_, ssrc)| Some(ssrc) == sender);
        !is_source && self.legs[1].rtp_to().is_some_and(|to| to.ip() == from.ip())
    }

    /// Passes a party's report to the leg whose audio it is about.
    #[cold]
    fn note_report(&mut self, at_ns: u64, leg: usize) {
        let about = self.flows.iter().find(|flow| flow.to == leg);
        if let Some(about) = about
            && let Some(report) = self.legs[leg].report_of_peer(at_ns)
        {
            self.legs[about.from].note_far_report(report);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        if let Some((leg, payload_type)) = self.refused_type
            && !std::mem::replace(&mut self.has_told_type, true)
        {
            return Some(SessionEvent::PayloadType(leg, payload_type));
        }
        for index in 0..self.legs.len() {
            let leg = LegId(index as u8);
            if let Some(event) = self.legs[index].poll_event() {
                return Some(SessionEvent::Leg(leg, event));
            }
            if let Some(flow) = self.flows.of_mut(index)
                && let Some(event) = flow.direction.poll_key()
            {
                return Some(SessionEvent::Key(leg, event));
            }
        }
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if flow.direction.take_play_ended() {
                return Some(SessionEvent::PlayEnded(LegId(flow.to as u8)));
            }
            if let Some(inputs) = &mut flow.inputs
                && let Some(switch) = inputs.poll_switch()
            {
                return Some(SessionEvent::Input(switch));
            }
            if let Some(is_on) = flow.direction.take_substituted() {
                // An echo exchanges the parties of the flows, but not the substitutes.
                return Some(SessionEvent::Substitute(LegId(index as u8), is_on));
            }
        }
        None
    }

    /// Returns the time of the next poll if nothing arrives before. 0 means now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let mut next = Soonest(None);
        for leg in &self.legs {
            next.add(leg.next_report());
            next.add(leg.next_media().map(|due_ns| self.poll_ns(due_ns)));
        }
        for flow in self.flows.iter() {
            let direction = &flow.direction;
            next.add(direction.next_unasked());
            next.add(direction.next_substitute());
            next.add(direction.next_dtmf().map(|due_ns| self.poll_ns(due_ns)));
            let play = direction.next_play_without_dtmf();
            match &flow.inputs {
                None => next.add(play.map(|due_ns| self.poll_ns(due_ns))),
                Some(inputs) => {
                    let play = play.filter(|_| self.legs[flow.to].rtp_to().is_some());
                    next.add(play.map(|due_ns| self.poll_ns(due_ns)));
                    next.add(inputs.next_timeout());
                }
            }
        }
        next.0
    }

    /// Returns the time of the poll that sends media of the time `media_ns`.
    #[inline]
    fn poll_ns(&self, media_ns: u64) -> u64 {
        media_ns.saturating_sub(self.ahead_ns) + self.hold_ns()
    }

    /// Returns a leg.
    ///
    /// # Panics
    /// Panics if the session has no such leg.
    #[must_use]
    #[inline]
    pub fn leg(&self, leg: impl Into<LegId>) -> &Leg {
        &self.legs[leg.into().index()]
    }

    /// Returns the leg that sends the first leg's media. `None`: the stream sends nothing, or forwards packets unchanged.
    #[must_use]
    pub fn target(&self) -> Option<LegId> {
        let flow = self.flows.first();
        (!flow.is_silent).then_some(LegId(flow.to as u8))
    }

    /// Returns the leg that sends the media of this leg.
    #[must_use]
    pub fn receiver_of(&self, leg: impl Into<LegId>) -> &Leg {
        let leg = leg.into().index();
        let flow = self.flows.of(leg);
        &self.legs[flow.map_or(leg, |flow| flow.to)]
    }

    /// Calls `fetch` with addresses in the memory that the next packets touch. The caller can then prefetch three cache lines of 64 bytes
    /// at each address.
    #[inline]
    pub fn prefetch(&self, mut fetch: impl FnMut(*const u8)) {
        self.flows.prefetch(&mut fetch);
        for flow in self.flows.iter() {
            self.legs[flow.from].prefetch(&mut fetch);
            fetch(flow.direction.next_address() as *const u8);
        }
    }

    /// Calls `fetch` with an address in the memory that this leg's next packet touches if the leg is tapped.
    #[inline]
    pub fn prefetch_tap(&self, leg: impl Into<LegId>, fetch: impl FnOnce(*const u8)) {
        let leg = leg.into().index();
        if let Some(flow) = self.flows.of(leg) {
            fetch(flow.direction.tapped_address() as *const u8);
        }
    }

    /// Returns the counters and gauges.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            legs: self.legs.iter().map(Leg::stats).collect(),
            directions: self.flows.iter().map(Flow::stats).collect(),
            to: self.flows.iter().map(|flow| LegId(flow.to as u8)).collect(),
        }
    }

    /// Returns the counters of the direction of this leg's media.
    #[must_use]
    pub fn direction_stats(&self, leg: impl Into<LegId>) -> DirectionStats {
        let leg = leg.into().index();
        let flow = self.flows.of(leg);
        flow.map_or_else(DirectionStats::default, Flow::stats)
    }

    /// Gives up all packets that were received from a leg and not forwarded yet: see [`Leg::give_up`](crate::leg::Leg::give_up).
    pub fn give_up(
        &mut self,
        now_ns: u64,
        leg: impl Into<LegId>,
        give: impl FnMut(u64, SocketAddr, &[u8]),
    ) {
        self.legs[leg.into().index()].give_up(now_ns, give);
    }

    /// Receives without sending until [`go_on`](Self::go_on). Call this only for a stream that has not been polled, and whose jitter buffer
    /// releases packets [at their deadline](crate::jitter::Release::AtDeadline). Other buffers do not keep the packets.
    pub fn hold(&mut self) {
        self.hold = Some(Box::new(Hold::On));
    }

    /// Returns the time after which an unsent packet is dropped, counted from when it was due.
    #[inline]
    pub(super) fn hold_ns(&self) -> u64 {
        self.hold.as_ref().map_or(0, |hold| hold.delay_ns())
    }

    /// Ends the [`hold`](Self::hold) at the next poll. The output continues after the last packet that another process has forwarded. If
    /// that is unknown, it continues with the packets that are due from now on.
    pub fn go_on(&mut self, state: Option<SessionState>) {
        if let Some(hold) = &mut self.hold
            && matches!(**hold, Hold::On)
        {
            **hold = Hold::Ending(state);
        }
    }
}

/// The earliest of several times.
struct Soonest(Option<u64>);

impl Soonest {
    #[inline]
    fn add(&mut self, due_ns: Option<u64>) {
        if let Some(due_ns) = due_ns {
            self.0 = Some(self.0.map_or(due_ns, |soonest_ns| soonest_ns.min(due_ns)));
        }
    }
}
