//! Forwards media without parsing them: T.38, video, and other applications. Datagrams pass between the ports of two legs.

use std::net::SocketAddr;

use threadbare_rtp::call::{Channel, LegId, Side};
use threadbare_rtp::leg::{AdmissionConfig, Gate, GateState, Outage, Refusals};
use threadbare_rtp::srtp::{
    Keys, Protection, ProtectionState, ProtectionStats, RestoreError, Unsaved,
};

use crate::audio::{each, set_keys};
use crate::call::{Datagram, Outbox};
use crate::id::{PortId, PortKind};
use crate::observer::{Observer, Observing};
use crate::snapshot::Pace;
use crate::unsent::{Envelope, Unsent};

/// Settings of one side of a [`Forward`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardSide {
    /// Rules for accepting senders, and for learning the party's address. The party gets packets at its learned address, or with
    /// [`Learn::Anyone`](threadbare_rtp::leg::Learn::Anyone), at its signalled one.
    pub admission: AdmissionConfig,
    /// Whether RTP and RTCP share one port (RFC 5761).
    pub mux: bool,
    /// Whether the party is held, so that it gets only RTCP.
    pub is_held: bool,
    /// The SRTP keys. `None`: the party's datagrams are plain.
    pub keys: Option<Keys>,
}

/// The specification of a [`Forward`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardSpec {
    /// The sides, A's first.
    pub sides: [ForwardSide; 2],
    /// Whether each party gets its own datagrams instead of the other party's.
    pub echoes: bool,
}

impl From<[ForwardSide; 2]> for ForwardSpec {
    fn from(sides: [ForwardSide; 2]) -> ForwardSpec {
        ForwardSpec {
            sides,
            echoes: false,
        }
    }
}

/// Counters of one side of a [`Forward`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwardSideStats {
    /// Datagrams that were received, on the RTP port and on the RTCP port.
    pub received: [Traffic; 2],
    /// Datagrams that were sent to the party, from both ports.
    pub sent: [Traffic; 2],
    /// Numbers of refused datagrams.
    pub refused: Refusals,
    /// Number of datagrams for this party that had no destination, because the party is held or its address is unknown.
    pub no_destination: u64,
    /// Number of datagrams for this party for which there was no room.
    pub no_room: u64,
    /// Destination of datagrams to the party.
    pub to: Option<SocketAddr>,
    /// Destination of RTCP to the party.
    pub rtcp_to: Option<SocketAddr>,
    /// Encryption of the party's datagrams. `None`: they are sent unchanged.
    pub protection: Option<ProtectionStats>,
}

/// The traffic of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of datagrams.
    pub packets: u64,
    /// Number of bytes in these datagrams, without encryption.
    pub bytes: u64,
    /// Time of the last datagram, ns.
    pub last_ns: Option<u64>,
}

/// The saved state of a [`Forward`] for a restart of the process, A's first. It contains keys, so keep it as secret as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardState {
    /// The parties' addresses.
    pub gates: [GateState; 2],
    /// The encryption of the parties' datagrams.
    pub protections: [Option<ProtectionState>; 2],
}

/// Forwards datagrams between two parties. Leg 0 belongs to side A, and leg 1 to side B. Each received datagram causes at most one sent
/// datagram.
///
/// The contents of datagrams matter only if a side uses SRTP, or if only one side uses one port for RTP and RTCP. SRTP requires RTP with
/// consecutive numbers, and a packet that arrives twice is sent once.
#[derive(Debug)]
pub struct Forward {
    sides: [ForwardingSide; 2],
    protections: [Option<Box<Protection>>; 2],
    unsent: Unsent,
    spec: ForwardSpec,
    /// Reports the session to other threads.
    observing: Option<Box<Observing<Forward>>>,
}

#[derive(Debug)]
struct ForwardingSide {
    gate: Gate,
    stats: ForwardSideStats,
}

impl Forward {
    /// Creates a session that passes datagrams between two sides.
    #[must_use]
    pub fn new(now_ns: u64, spec: impl Into<ForwardSpec>) -> Forward {
        let spec = spec.into();
        let mut forward = Forward {
            sides: spec.sides.each_ref().map(|side| ForwardingSide {
                gate: Gate::new(now_ns, side.admission.clone()),
                stats: ForwardSideStats::default(),
            }),
            protections: [None, None],
            unsent: Unsent::default(),
            spec,
            observing: None,
        };
        forward.apply_keys(now_ns);
        forward
    }

    /// Calls `observer` after a turn of the session, as [`AudioSession::observed`](crate::AudioSession::observed) does.
    #[must_use]
    pub fn observed(mut self, observer: Observer<Forward>, pace: Pace) -> Forward {
        self.observing = Some(Observing::new(observer, pace));
        self
    }

    /// Makes the running session what `spec` says. If a description does not replace a party's address, the address stays. SRTP keys that do
    /// not change keep their state.
    pub fn apply(&mut self, now_ns: u64, spec: ForwardSpec) {
        let before = std::mem::replace(&mut self.spec, spec);
        let changes = before.sides.iter().zip(&self.spec.sides);
        for (forwarding, (old, new)) in self.sides.iter_mut().zip(changes) {
            if (&old.admission, old.mux) != (&new.admission, new.mux) {
                forwarding.gate.relearn(now_ns, new.admission.clone());
            }
        }
        self.apply_keys(now_ns);
    }

    fn apply_keys(&mut self, now_ns: u64) {
        let protections = self.protections.iter_mut().zip(&self.spec.sides);
        for (forwarding, (protection, side)) in self.sides.iter_mut().zip(protections) {
            forwarding.gate.set_authenticated(side.keys.is_some());
            set_keys(protection, now_ns, side.keys.clone());
        }
    }

    /// Returns the specification.
    #[must_use]
    pub fn spec(&self) -> &ForwardSpec {
        &self.spec
    }

    /// Whether each side uses one port for RTP and RTCP, A's first.
    pub(crate) fn mux(&self) -> [bool; 2] {
        self.spec.sides.each_ref().map(|side| side.mux)
    }

    /// Returns the counters of both sides, A's first.
    #[must_use]
    pub fn stats(&self) -> [ForwardSideStats; 2] {
        Side::BOTH.map(|side| {
            let ForwardingSide { gate, stats } = &self.sides[side as usize];
            let protection = self.protections[side as usize].as_deref();
            ForwardSideStats {
                refused: gate.refused(),
                to: gate.to(),
                rtcp_to: gate.rtcp_to(),
                protection: protection.map(Protection::stats),
                ..*stats
            }
        })
    }

    /// Returns the state that another process needs to continue the session. Settings are not part of it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> ForwardState {
        ForwardState {
            gates: [0, 1].map(|at: usize| self.sides[at].gate.snapshot(now_ns)),
            protections: each(&self.protections, Protection::snapshot),
        }
    }

    /// Continues where another process stopped.
    ///
    /// # Errors
    /// Fails if the state of a key is not one that [`snapshot`](Self::snapshot) returns. In this case, nothing changes.
    pub fn restore(
        &mut self,
        now_ns: u64,
        state: &ForwardState,
        outage: Outage,
    ) -> Result<(), RestoreError> {
        // The parties number their packets themselves, and have continued meanwhile.
        let unsaved = Unsaved {
            rtp_packets: 0,
            rtcp_packets: outage.rtcp_packets(),
        };
        let mut protections = [None, None];
        for (new, old) in protections.iter_mut().zip(&state.protections) {
            if let Some(old) = old {
                let mut old = old.clone();
                if outage.unsaved_ns > 0 {
                    old.forget_missing();
                }
                *new = Some(Box::new(Protection::restore(&old, unsaved)?));
            }
        }
        self.protections = protections;
        for (side, gate) in self.sides.iter_mut().zip(state.gates) {
            side.gate.restore(now_ns, gate);
        }
        Ok(())
    }
}

impl crate::Call for Forward {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        let own = usize::from(datagram.port.leg != 0);
        let heard_by = if self.spec.echoes { own } else { 1 - own };
        let from = &mut self.sides[own];
        let mut bytes = datagram.bytes;
        let channel = datagram
            .port
            .kind
            .channel()
            .carried(self.spec.sides[own].mux, bytes);
        let protection = self.protections.get_mut(usize::from(datagram.port.leg));
        if let Some(Some(protection)) = protection {
            // Refused packets are counted by the protection.
            let Ok(len) = protection.unprotect(now_ns, channel, bytes) else {
                return;
            };
            bytes = &mut bytes[..len];
        }
        let at_ns = datagram.received_ns;
        let is_of_rtp_port = datagram.port.kind == PortKind::Rtp;
        let judged = if is_of_rtp_port {
            from.gate.judge(at_ns, datagram.from)
        } else {
            from.gate.judge_rtcp(at_ns, datagram.from)
        };
        if judged.is_err() {
            return;
        }
        let is_rtcp = channel == Channel::Rtcp;
        let kind = usize::from(is_rtcp);
        from.stats.received[kind].count(at_ns, bytes);
        let (to, spec) = (&mut self.sides[heard_by], &self.spec.sides[heard_by]);
        let destination = if is_rtcp && !spec.mux {
            to.gate.rtcp_to()
        } else {
            to.gate.to()
        };
        let Some(destination) = destination.filter(|_| is_rtcp || !spec.is_held) else {
            to.stats.no_destination += 1;
            return;
        };
        let leg = u8::from(heard_by != 0);
        let port = if is_rtcp && !spec.mux {
            PortId::rtcp(leg)
        } else {
            PortId::rtp(leg)
        };
        let envelope = Envelope {
            leg: LegId(leg),
            port,
            channel,
            to: destination,
        };
        if self.unsent.keep(envelope, bytes) {
            to.stats.sent[kind].count(now_ns, bytes)
        } else {
            to.stats.no_room += 1
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
        self.unsent.stage_waiting(&mut self.protections, out);
        Observing::poll(now_ns, self, |session| &mut session.observing);
    }

    fn next_timeout(&self) -> Option<u64> {
        self.observing.as_ref().and_then(|one| one.next_timeout())
    }
}

impl Traffic {
    #[inline]
    fn count(&mut self, at_ns: u64, bytes: &[u8]) {
        self.packets += 1;
        self.bytes += bytes.len() as u64;
        self.last_ns = Some(at_ns);
    }
}
