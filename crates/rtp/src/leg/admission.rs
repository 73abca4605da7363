//! Decides which datagrams belong to a leg. Each datagram is judged once: by address, then by SSRC, then by payload type. The session's
//! reports then check the sequence number (RFC 3550, appendix A.1).
//!
//! The [`Latch`] decides on the address. All SSRCs that send from the party's address belong to the party:
//!
//! - One SSRC is the *current source*. The reports and the jitter buffer follow it. Another SSRC with audio becomes the current source with
//!   two consecutive packets, if the current one has missed its turn or has left its address.
//! - Telephone events and comfort noise with another SSRC are handled in addition to the current source, and never replace it.

use std::net::SocketAddr;

use super::latch::{Latch, Mark, Standing, is_near};
use super::rules::{AdmissionConfig, Learn, Refusal};
use crate::id::{SeqNum, Ssrc};
use crate::reception::MIN_SEQUENTIAL;
use crate::session::RtpHeader;

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The packet is from the current source.
    Current,
    /// The packet is an event or noise of the same party, with another SSRC.
    Beside,
    /// The packet may be the start of the next source, so it is kept.
    Hold,
    /// The packet's source becomes the current one. Its packets that were kept are accepted too.
    Begin(Beginning),
    /// The packet does not belong to the leg.
    Refuse(Refusal),
}

/// How a source became the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// There was no current source before.
    First,
    /// The same source sends from another address. The numbers continue.
    Moved,
    /// The source has another SSRC.
    Changed {
        /// The previous SSRC.
        old: Ssrc,
    },
}

/// The meaning of a packet's payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The packet may belong to the party's main stream.
    Audio,
    /// The packet is a telephone event or comfort noise.
    Beside,
    /// The payload type was not agreed on.
    Unknown,
}

/// The address and the sources of the party: see the module documentation.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    current: Option<Current>,
    latch: Latch,
    /// SSRCs that may become the current source, the newest first. An entry without packets is empty.
    candidates: [Candidate; 2],
}

#[derive(Debug, Clone, Copy)]
struct Current {
    heard_ns: u64,
    /// Time between the source's last two consecutive packets, ns. 0: unknown.
    spacing_ns: u32,
    ssrc: Ssrc,
    last: SeqNum,
    /// Whether the source started with audio.
    has_audio: bool,
    /// Whether the source sends from the party's present address.
    is_here: bool,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    ssrc: Ssrc,
    last: SeqNum,
    packets: u8,
}

impl Admission {
    pub(super) fn new(now_ns: u64, config: AdmissionConfig) -> Admission {
        Admission {
            current: None,
            latch: Latch::new(now_ns, config),
            candidates: [Candidate::NONE; 2],
        }
    }

    /// Returns the current source's address and SSRC.
    pub(super) fn current(&self) -> Option<(SocketAddr, Ssrc)> {
        let (address, ssrc, _) = self.source()?;
        Some((address, ssrc))
    }

    /// Returns the time of the current source's last packet, ns.
    pub(super) fn heard_ns(&self) -> Option<u64> {
        self.current.map(|current| current.heard_ns)
    }

    pub(super) fn config(&self) -> &AdmissionConfig {
        self.latch.config()
    }

    /// Returns the destination: see [`Latch::to`].
    #[inline]
    pub(super) fn to(&self) -> Option<SocketAddr> {
        match self.config().learn {
            // An address that was learned in this way gets no packets.
            Learn::Anyone => None,
            _ => self.latch.to(),
        }
    }

    /// Returns the current source with the number of its last packet.
    pub(super) fn source(&self) -> Option<(SocketAddr, Ssrc, SeqNum)> {
        let (party, current) = (self.latch.party()?, self.current?);
        Some((party.address, current.ssrc, current.last))
    }

    /// Whether the time for learning addresses has passed.
    pub(super) fn is_fixed(&self, now_ns: u64) -> bool {
        self.latch.is_fixed(now_ns)
    }

    pub(super) fn set_authenticated(&mut self, is_authenticated: bool) {
        self.latch.set_authenticated(is_authenticated);
    }

    /// Continues with a source that another process has admitted.
    pub(super) fn restore(
        &mut self,
        now_ns: u64,
        source: Option<(SocketAddr, Ssrc, SeqNum)>,
        is_fixed: bool,
    ) {
        self.current = source.map(|(_, ssrc, last)| Current {
            heard_ns: now_ns,
            spacing_ns: 0,
            ssrc,
            last,
            has_audio: true,
            is_here: true,
        });
        let address = source.map(|(address, ..)| address);
        self.latch.restore(now_ns, address, is_fixed);
    }

    /// Judges an RTP packet.
    #[inline]
    pub(super) fn judge(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        header: &RtpHeader,
        kind: Kind,
    ) -> Decision {
        let is_party = self.latch.hears(at_ns, from);
        if is_party
            && let Some(current) = &mut self.current
            && current.ssrc == header.ssrc
            && current.is_here
        {
            current.note(at_ns, header.seq);
            return Decision::Current;
        }
        self.consider(at_ns, from, header, kind, is_party)
    }

    #[cold]
    fn consider(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        header: &RtpHeader,
        kind: Kind,
        is_party: bool,
    ) -> Decision {
        if !self.config().allows(from) {
            return Decision::Refuse(Refusal::NotAllowed);
        }
        if self.config().learn == Learn::Anyone {
            return self.consider_anyone(at_ns, from, header, kind);
        }
        if is_party {
            return self.consider_source(at_ns, from, header, kind);
        }
        let mark = (header.ssrc, header.seq);
        if kind == Kind::Unknown {
            // Such a packet starts no source. But if it comes between the packets of a candidate, these still count as consecutive.
            return if self.latch.keeps_place(from, mark) {
                Decision::Hold
            } else {
                Decision::Refuse(Refusal::PayloadType(header.payload_type))
            };
        }
        let continues = self.continues(header);
        match self.latch.consider(at_ns, from, Some(mark), continues) {
            Standing::Refused(refusal) => Decision::Refuse(refusal),
            Standing::Candidate { may_hold: true } => Decision::Hold,
            Standing::Candidate { .. } | Standing::Uncounted => Decision::Refuse(Refusal::Stranger),
            Standing::Moved { before } => {
                let first = before.map_or(Candidate::NONE, |mark| Candidate::new(mark, 1));
                self.candidates = [first, Candidate::NONE];
                if let Some(current) = &mut self.current {
                    current.is_here = false;
                }
                self.consider_source(at_ns, from, header, kind)
            }
        }
    }

    /// With [`Learn::Anyone`], a source may change its address with each packet.
    fn consider_anyone(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        header: &RtpHeader,
        kind: Kind,
    ) -> Decision {
        if let Some(current) = &mut self.current
            && current.ssrc == header.ssrc
        {
            current.note(at_ns, header.seq);
            self.latch.settle(at_ns, from);
            return Decision::Current;
        }
        if kind == Kind::Unknown {
            return Decision::Refuse(Refusal::PayloadType(header.payload_type));
        }
        if kind == Kind::Beside && self.current.is_some_and(|current| current.has_audio) {
            return Decision::Beside;
        }
        let mark = (header.ssrc, header.seq);
        let (packets, _) = self.latch.count(at_ns, from, Some(mark), false);
        let is_signalled = self.config().peer == Some(from);
        let party = self.latch.party();
        let is_at_signalled = party.is_some_and(|party| self.config().peer == Some(party.address));
        let has_turn = is_signalled && !is_at_signalled || self.has_turn(at_ns, kind);
        if packets >= u32::from(MIN_SEQUENTIAL) && has_turn {
            return Decision::Begin(self.begin(at_ns, from, mark, kind == Kind::Audio));
        }
        Decision::Hold
    }

    /// Whether another source of this kind may replace the current one now.
    fn has_turn(&self, at_ns: u64, kind: Kind) -> bool {
        self.current.is_none_or(|current| {
            !current.is_here
                || kind == Kind::Audio && !current.has_audio
                || at_ns.saturating_sub(current.heard_ns) >= current.turn_ns()
        })
    }

    /// Judges a packet that comes from the party's address, but not from the current source.
    fn consider_source(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        header: &RtpHeader,
        kind: Kind,
    ) -> Decision {
        let mark @ (ssrc, seq) = (header.ssrc, header.seq);
        let current = self.current;
        if let Some(current) = current
            && current.ssrc == ssrc
            && seq.distance_from(current.last).unsigned_abs() < CONTINUES_PACKETS_MAX
        {
            return Decision::Begin(self.begin(at_ns, from, mark, current.has_audio));
        }
        if kind == Kind::Beside && current.is_some_and(|current| current.has_audio) {
            return Decision::Beside;
        }
        let mut candidates = self.candidates.iter();
        let known = candidates.find(|known| known.packets > 0 && known.ssrc == ssrc);
        let packets = match known {
            Some(known) if is_near(Some((known.ssrc, known.last)), Some(mark)) => known
                .packets
                .saturating_add(u8::from(kind != Kind::Unknown)),
            // A payload type that was not agreed on starts no source. But if the packet comes between those of a candidate, these still
            // count as consecutive.
            _ if kind == Kind::Unknown => {
                return Decision::Refuse(Refusal::PayloadType(header.payload_type));
            }
            _ => 1,
        };
        self.note_candidate(Candidate::new(mark, packets));
        if packets >= MIN_SEQUENTIAL && self.has_turn(at_ns, kind) && kind != Kind::Unknown {
            return Decision::Begin(self.begin(at_ns, from, mark, kind == Kind::Audio));
        }
        Decision::Hold
    }

    /// Stores a candidate as the newest one. The previous one stays, because a party may start audio and events at the same time.
    fn note_candidate(&mut self, candidate: Candidate) {
        let [newest, before] = self.candidates;
        let is_newest = newest.ssrc == candidate.ssrc;
        self.candidates = [candidate, if is_newest { before } else { newest }];
    }

    /// Whether a packet from another address may belong to the current source.
    fn continues(&self, header: &RtpHeader) -> bool {
        self.current.is_some_and(|current| {
            let ahead = header.seq.distance_from(current.last);
            header.ssrc == current.ssrc && (0..CONTINUES_PACKETS_MAX as i32).contains(&ahead)
        })
    }

    fn begin(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        (ssrc, seq): Mark,
        has_audio: bool,
    ) -> Beginning {
        let beginning = match self.current {
            None => Beginning::First,
            Some(old) if old.ssrc == ssrc => Beginning::Moved,
            Some(old) => Beginning::Changed { old: old.ssrc },
        };
        self.candidates = [Candidate::NONE; 2];
        if self.config().learn == Learn::Anyone {
            self.latch.settle(at_ns, from);
        }
        self.current = Some(Current {
            heard_ns: at_ns,
            spacing_ns: self.current.map_or(0, |old| old.spacing_ns),
            ssrc,
            last: seq,
            has_audio,
            is_here: true,
        });
        beginning
    }

    /// Judges a datagram of RTCP: see [`Latch::judge_rtcp`].
    pub(super) fn judge_rtcp(&self, from: SocketAddr, mux: bool) -> Result<(), Refusal> {
        self.latch.judge_rtcp(from, mux)
    }

    /// Notes RTCP that was accepted: see [`Latch::note_rtcp`].
    pub(super) fn note_rtcp(&mut self, at_ns: u64, from: SocketAddr) {
        self.latch.note_rtcp(at_ns, from);
    }

    /// Resets the state as if nothing had been received.
    pub(super) fn begin_anew(&mut self, now_ns: u64, config: AdmissionConfig) {
        *self = Admission::new(now_ns, config);
    }

    /// Applies new signalling: see [`Latch::relearn`].
    pub(super) fn relearn(&mut self, now_ns: u64, config: AdmissionConfig) {
        self.latch.relearn(now_ns, config);
        self.candidates = [Candidate::NONE; 2];
        if self.latch.party().is_none() {
            self.current = None;
        }
    }
}

impl Candidate {
    const NONE: Candidate = Candidate {
        ssrc: Ssrc(0),
        last: SeqNum(0),
        packets: 0,
    };

    fn new((ssrc, last): Mark, packets: u8) -> Candidate {
        Candidate {
            ssrc,
            last,
            packets,
        }
    }
}

impl Current {
    #[inline]
    fn note(&mut self, at_ns: u64, seq: SeqNum) {
        if seq == self.last.plus(1) {
            let spacing_ns = at_ns.saturating_sub(self.heard_ns);
            self.spacing_ns = spacing_ns.min(SPACING_NS_MAX) as u32;
        }
        self.last = seq;
        self.heard_ns = self.heard_ns.max(at_ns);
    }

    /// Returns the duration of silence after which the current source has missed its turn.
    fn turn_ns(&self) -> u64 {
        let spacing_ns = match self.spacing_ns {
            0 => SPACING_NS_DEFAULT,
            spacing_ns => u64::from(spacing_ns),
        };
        spacing_ns + spacing_ns / 2
    }
}

/// Maximum number of packets that a sender may have sent while it moved to another address (MAX_DROPOUT in RFC 3550, appendix A.1). With 20
/// ms each, they are a minute.
const CONTINUES_PACKETS_MAX: u32 = 3000;
/// Assumed time between packets. "The default packetization interval SHOULD have a duration of 20 ms" (RFC 3551, section 4.2).
const SPACING_NS_DEFAULT: u64 = 20_000_000;
/// Maximum time between packets. Receivers should accept packets of 0 to 200 ms (RFC 3551, section 4.2).
const SPACING_NS_MAX: u64 = 200_000_000;
