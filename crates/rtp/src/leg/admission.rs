//! Which datagrams belong to a leg: decided once, in the order address, SSRC, payload type. The sequence number comes after
//! that, by RFC 3550, appendix A.1, where the reports are kept.
//!
//! The [`Latch`] decides on the address. All SSRCs of the party's address are the party's:
//!
//! - One is the *current source*. The reports and the jitter buffer follow it. Another SSRC with audio becomes the current source with
//!   two packets in a row, once the current one has missed its turn or has left its address.
//! - Telephone events and comfort noise under another SSRC go *beside* the current source, and never replace it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

use super::latch::{Latch, Mark, Standing, is_near};
use crate::id::{PayloadType, SeqNum, Ssrc};
use crate::reception::MIN_SEQUENTIAL;
use crate::session::RtpHeader;

/// A range of addresses, in the notation of RFC 4632: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Whether the address lies in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits));
                (u32::from(own) ^ u32::from(other)) & mask.unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits));
                (u128::from(own) ^ u128::from(other)) & mask.unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// A text is no [`Network`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is no network: expected an address with a prefix length, such as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7"
)]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let error = || NetworkError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            None => bits_max,
            Some(prefix) => prefix.parse().map_err(|_| error())?,
        };
        if prefix_bits > bits_max {
            return Err(error());
        }
        Ok(Network {
            address,
            prefix_bits,
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// How a leg learns where its peer is (symmetric RTP, RFC 4961). The table of [`leg`](super) `latch.rs` has the exact rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learn {
    /// Not at all: only [`AdmissionConfig::peer`] counts.
    Never,
    /// One address is learned unless the signalled address sends. It changes with a new offer or answer, with the port of a NAT,
    /// or by authenticated packets.
    Once(Once),
    /// As [`Once`](Learn::Once), and another host follows when the present one has been silent for this long: another media
    /// server takes over, a stream's source is restarted elsewhere.
    Follow {
        /// The required silence, ms.
        silence_ms: u32,
    },
    /// Addresses do not count, except that the signalled one wins: the sender with the current SSRC is the peer, and another SSRC
    /// follows when that one has missed its turn. For groups, and for closed networks. Nothing is sent to an address that is
    /// learned so.
    Anyone,
}

/// Settings of [`Learn::Once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Once {
    /// How the address is chosen.
    pub method: Method,
    /// The address is fixed this long after the party was first heard, ms; `None`: a NAT may move its port at any time.
    pub fixed_ms: Option<u32>,
}

/// How an address is chosen that was not signalled: rtpengine's `endpoint-learning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// With its second packet.
    Immediate,
    /// With its fifth packet; another address may follow within three seconds, when the first one falls silent.
    Delayed,
    /// With its fifth packet; an address that has more in common with the signalled one may follow within three seconds.
    #[default]
    Heuristic,
}

impl Learn {
    /// For streams without signalling: another host follows after three seconds of silence.
    pub const FOLLOW: Learn = Learn::Follow {
        silence_ms: OTHER_HOST_SILENCE_MS,
    };
}

/// Who may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Only from these networks; empty: from anywhere.
    pub sources: Vec<Network>,
    /// The peer's address as signalled. Other addresses are believed later than this one.
    pub peer: Option<SocketAddr>,
    /// Where its RTCP was signalled to be (RFC 3605); `None`: at the port after RTP's.
    pub rtcp: Option<SocketAddr>,
    /// Whether other addresses are believed.
    pub learn: Learn,
    /// Nothing is sent to `peer` before the party was heard: rtpengine's `NAT-wait`.
    pub waits: bool,
}

impl AdmissionConfig {
    /// Whether [`sources`](Self::sources) have this address.
    pub(super) fn allows(&self, from: SocketAddr) -> bool {
        let networks = &self.sources;
        networks.is_empty() || networks.iter().any(|network| network.contains(from.ip()))
    }
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        AdmissionConfig {
            sources: Vec::new(),
            peer: None,
            rtcp: None,
            learn: Learn::FOLLOW,
            waits: false,
        }
    }
}

/// Why a datagram is refused. Each has a count in [`Refusals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Neither RTP nor RTCP.
    Malformed,
    /// Its address is in none of [`AdmissionConfig::sources`].
    NotAllowed,
    /// It comes from another address than the peer's.
    Stranger,
    /// From the peer's address, with another SSRC, while the current source sends.
    OtherSource,
    /// A payload type that was not agreed on.
    PayloadType(PayloadType),
    /// Its number is far from its source's sequence, and the next one did not follow it.
    OutOfRange,
    /// It bears our own SSRC.
    OwnSsrc,
}

/// Datagrams refused, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusals {
    /// [`Refusal::Malformed`].
    pub malformed: u64,
    /// [`Refusal::NotAllowed`].
    pub not_allowed: u64,
    /// [`Refusal::Stranger`].
    pub strangers: u64,
    /// [`Refusal::OtherSource`].
    pub other_sources: u64,
    /// [`Refusal::PayloadType`].
    pub payload_types: u64,
    /// [`Refusal::OutOfRange`].
    pub out_of_range: u64,
    /// [`Refusal::OwnSsrc`].
    pub own_ssrc: u64,
}

impl Refusals {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Refusals {
            malformed,
            not_allowed,
            strangers,
            other_sources,
            payload_types,
            out_of_range,
            own_ssrc,
        } = self;
        malformed
            + not_allowed
            + strangers
            + other_sources
            + payload_types
            + out_of_range
            + own_ssrc
    }

    pub(super) fn count(&mut self, refusal: Refusal) {
        *match refusal {
            Refusal::Malformed => &mut self.malformed,
            Refusal::NotAllowed => &mut self.not_allowed,
            Refusal::Stranger => &mut self.strangers,
            Refusal::OtherSource => &mut self.other_sources,
            Refusal::PayloadType(_) => &mut self.payload_types,
            Refusal::OutOfRange => &mut self.out_of_range,
            Refusal::OwnSsrc => &mut self.own_ssrc,
        } += 1;
    }
}

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is of the current source.
    Current,
    /// It is an event or noise of the same party, under another SSRC.
    Beside,
    /// It may be the beginning of the next source: keep it.
    Hold,
    /// It and what is kept of the same source are of the current source from now on.
    Begin(Beginning),
    /// It does not belong.
    Refuse(Refusal),
}

/// How a current source came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// It is the first one.
    First,
    /// The same source sends from another address; the numbers continue.
    Moved,
    /// Another SSRC.
    Changed {
        /// The SSRC before.
        old: Ssrc,
    },
}

/// The meaning of a packet's payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may carry the party's main stream.
    Audio,
    /// Telephone events or comfort noise.
    Beside,
    /// It was not agreed on.
    Unknown,
}

/// The party's address and its sources. See the module.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    current: Option<Current>,
    latch: Latch,
    /// SSRCs that may become the current source, the newest first; without packets: none.
    candidates: [Candidate; 2],
}

#[derive(Debug, Clone, Copy)]
struct Current {
    heard_ns: u64,
    /// Between its last two packets in a row; 0 while unknown.
    spacing_ns: u32,
    ssrc: Ssrc,
    last: SeqNum,
    /// It began with audio.
    has_audio: bool,
    /// It sends from the party's present address.
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

    /// The current source's address and SSRC.
    pub(super) fn current(&self) -> Option<(SocketAddr, Ssrc)> {
        let (address, ssrc, _) = self.source()?;
        Some((address, ssrc))
    }

    /// When it was heard last, ns.
    pub(super) fn heard_ns(&self) -> Option<u64> {
        self.current.map(|current| current.heard_ns)
    }

    pub(super) fn config(&self) -> &AdmissionConfig {
        self.latch.config()
    }

    /// See [`Latch::to`].
    #[inline]
    pub(super) fn to(&self) -> Option<SocketAddr> {
        match self.config().learn {
            // Nothing is sent to an address that is learned so.
            Learn::Anyone => None,
            _ => self.latch.to(),
        }
    }

    /// The current source, with the number of its last packet.
    pub(super) fn source(&self) -> Option<(SocketAddr, Ssrc, SeqNum)> {
        let (party, current) = (self.latch.party()?, self.current?);
        Some((party.address, current.ssrc, current.last))
    }

    /// Whether the time for learning addresses is over.
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
        if is_party {
            return self.consider_source(at_ns, from, header, kind);
        }
        if kind == Kind::Unknown && self.config().learn != Learn::Anyone {
            return Decision::Refuse(if self.config().allows(from) {
                Refusal::PayloadType(header.payload_type)
            } else {
                Refusal::NotAllowed
            });
        }
        let mark = (header.ssrc, header.seq);
        let continues = self.continues(header);
        match self.latch.consider(at_ns, from, Some(mark), continues) {
            Standing::Refused(refusal) => Decision::Refuse(refusal),
            Standing::Candidate { may_hold: true, .. } => Decision::Hold,
            Standing::Candidate { .. } => Decision::Refuse(Refusal::Stranger),
            Standing::Party => self.consider_anyone(at_ns, from, header, kind),
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
        self.consider_source(at_ns, from, header, kind)
    }

    /// A packet of the party that is not of the current source at its address.
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
            // A payload type that was not agreed on begins nothing; among a candidate's packets it keeps its place.
            _ if kind == Kind::Unknown => {
                return Decision::Refuse(Refusal::PayloadType(header.payload_type));
            }
            _ => 1,
        };
        self.note_candidate(Candidate::new(mark, packets));
        let is_from_elsewhere = self.config().learn == Learn::Anyone
            && self.config().peer == Some(from)
            && self
                .latch
                .party()
                .is_some_and(|party| party.address != from);
        let has_turn = current.is_none_or(|current| {
            !current.is_here
                || is_from_elsewhere
                || kind == Kind::Audio && !current.has_audio
                || at_ns.saturating_sub(current.heard_ns) >= current.turn_ns()
        });
        if packets >= MIN_SEQUENTIAL && has_turn && kind != Kind::Unknown {
            return Decision::Begin(self.begin(at_ns, from, mark, kind == Kind::Audio));
        }
        Decision::Hold
    }

    /// The newest first; the one before stays, as a party may begin with audio and events at once.
    fn note_candidate(&mut self, candidate: Candidate) {
        let [newest, before] = self.candidates;
        let is_newest = newest.ssrc == candidate.ssrc;
        self.candidates = [candidate, if is_newest { before } else { newest }];
    }

    /// Whether a packet may be the current source's, sent from elsewhere.
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

    /// See [`Latch::judge_rtcp`].
    pub(super) fn judge_rtcp(&self, from: SocketAddr, mux: bool) -> Result<(), Refusal> {
        self.latch.judge_rtcp(from, mux)
    }

    /// See [`Latch::note_rtcp`].
    pub(super) fn note_rtcp(&mut self, at_ns: u64, from: SocketAddr) {
        self.latch.note_rtcp(at_ns, from);
    }

    /// As if nothing had been received.
    pub(super) fn begin_anew(&mut self, now_ns: u64, config: AdmissionConfig) {
        *self = Admission::new(now_ns, config);
    }

    /// See [`Latch::relearn`].
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

    /// It has missed its turn after this much silence.
    fn turn_ns(&self) -> u64 {
        let spacing_ns = match self.spacing_ns {
            0 => SPACING_NS_DEFAULT,
            spacing_ns => u64::from(spacing_ns),
        };
        spacing_ns + spacing_ns / 2
    }
}

/// Required silence before another host counts as the source of a stream without signalling.
const OTHER_HOST_SILENCE_MS: u32 = 3_000;
/// A sender that continues elsewhere has sent no more packets on the way there than this: a minute's (RFC 3550, A.1:
/// MAX_DROPOUT).
const CONTINUES_PACKETS_MAX: u32 = 3000;
/// RFC 3551, section 4.2: "The default packetization interval SHOULD have a duration of 20 ms".
const SPACING_NS_DEFAULT: u64 = 20_000_000;
/// RFC 3551, section 4.2: receivers should accept 0 to 200 ms.
const SPACING_NS_MAX: u64 = 200_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_as_written() {
        // RFC 5737 and RFC 3849: addresses for documentation.
        let cases = [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("192.0.2.7/32", "192.0.2.8", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db8::1", true),
            ("192.0.2.0/24", "::ffff:192.0.2.9", true),
        ];
        for (network, address, contains) in cases {
            let network: Network = network.parse().unwrap();
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(network.contains(address), contains, "{network} {address}");
        }
        for text in [
            "",
            "192.0.2.0/33",
            "192.0.2/24",
            "::/129",
            "host",
            "192.0.2.0/-1",
            "192.0.2.0/",
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("192.0.2.0/24"),
                "{error}"
            );
        }
    }
}
