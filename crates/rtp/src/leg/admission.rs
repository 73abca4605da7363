//! Which datagrams belong to a leg: decided once, in the order address, SSRC, payload type. The sequence number comes after
//! that, by RFC 3550, appendix A.1, where the reports are kept.
//!
//! There is one current source, an address and an SSRC. The reports and the jitter buffer are told of it.
//!
//! ```text
//!            packets in a row, or nearly so, from one address with one SSRC
//!  nobody ───────────────────────────────────────────────────→ current source
//!                                                                │  ↑ the same, and the current source has missed
//!                                                                ↓  │ its turn (see the table at `Admission::rule`)
//!                                                              candidate
//! ```
//!
//! No single packet moves anything, so a forged one does not. A stranger's packet is refused before anything is noted of it but a
//! count.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

use crate::id::{PayloadType, SeqNum, Ssrc};
use crate::reception::MIN_SEQUENTIAL;
use crate::session::{ADDRESS_PACKETS, ADDRESS_SILENCE_NS, RtpHeader};

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

/// How a leg learns where its peer is (symmetric RTP, RFC 4961).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learn {
    /// Not at all: only [`AdmissionConfig::peer`] counts.
    Never,
    /// Within this time from the first packet on. From then on the address is fixed, until [`Leg::relearn`](super::Leg::relearn).
    Once {
        /// The window, ns.
        window_ns: u64,
    },
    /// From the first packets, and again when the peer moves: its NAT rebinds, its program is started again, another
    /// media server takes over.
    Follow,
    /// Addresses do not count: whoever bears the current SSRC is the peer, and another SSRC follows when that one has missed its
    /// turn. For groups, and for networks where nobody else can send. Nothing is sent to an address that is learned so.
    Anyone,
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
}

impl Learn {
    /// Whether an address may be learned now. `fixed_ns`: the end of the window, once that began.
    pub(super) fn is_open(self, fixed_ns: &mut Option<u64>, at_ns: u64) -> bool {
        match self {
            Learn::Never => false,
            Learn::Once { window_ns } => {
                at_ns < *fixed_ns.get_or_insert(at_ns.saturating_add(window_ns))
            }
            Learn::Follow | Learn::Anyone => true,
        }
    }
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
            learn: Learn::Follow,
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

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is of the current source.
    Current,
    /// It may be the beginning of the next source: keep it. `is_first`: forget what is kept.
    Hold { is_first: bool },
    /// It and what is kept are of the current source from now on.
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
    Moved {
        /// Its address before.
        from: SocketAddr,
    },
    /// Another SSRC.
    Changed {
        /// The SSRC before.
        old: Ssrc,
    },
}

/// The current source and the one that may follow it. See the module.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    current: Option<Current>,
    candidate: Option<Candidate>,
    /// End of the window for learning, once that began.
    fixed_ns: Option<u64>,
    config: AdmissionConfig,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    address: SocketAddr,
    ssrc: Ssrc,
    heard_ns: u64,
    /// Between its last two packets in a row; 0 while unknown.
    spacing_ns: u64,
    last: SeqNum,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    address: SocketAddr,
    ssrc: Ssrc,
    last: SeqNum,
    packets: u32,
}

/// What it takes to become the current source.
struct Rule {
    packets: u32,
    silence_ns: u64,
}

impl Admission {
    pub(super) fn new(config: AdmissionConfig) -> Admission {
        Admission {
            current: None,
            candidate: None,
            fixed_ns: None,
            config,
        }
    }

    /// The current source's address and SSRC.
    pub(super) fn current(&self) -> Option<(SocketAddr, Ssrc)> {
        let current = self.current?;
        Some((current.address, current.ssrc))
    }

    /// When it was heard last, ns.
    pub(super) fn heard_ns(&self) -> Option<u64> {
        self.current.map(|current| current.heard_ns)
    }

    pub(super) fn config(&self) -> &AdmissionConfig {
        &self.config
    }

    /// The current source, with the number of its last packet.
    pub(super) fn source(&self) -> Option<(SocketAddr, Ssrc, SeqNum)> {
        let current = self.current?;
        Some((current.address, current.ssrc, current.last))
    }

    /// Whether the time for learning addresses is over.
    pub(super) fn is_fixed(&self, now_ns: u64) -> bool {
        self.fixed_ns.is_some_and(|fixed_ns| fixed_ns <= now_ns)
    }

    /// Goes on with a source that another process has admitted.
    pub(super) fn restore(
        &mut self,
        now_ns: u64,
        source: Option<(SocketAddr, Ssrc, SeqNum)>,
        is_fixed: bool,
    ) {
        self.current = source.map(|(address, ssrc, last)| Current {
            address,
            ssrc,
            heard_ns: now_ns,
            spacing_ns: 0,
            last,
        });
        self.fixed_ns = is_fixed.then_some(now_ns);
    }

    /// Judges an RTP packet. `is_known`: its payload type was agreed on.
    #[inline]
    pub(super) fn judge(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        header: &RtpHeader,
        is_known: bool,
    ) -> Decision {
        if let Some(current) = &mut self.current
            && current.ssrc == header.ssrc
            && (current.address == from || self.config.learn == Learn::Anyone)
        {
            current.address = from;
            if header.seq == current.last.plus(1) {
                current.spacing_ns = at_ns.saturating_sub(current.heard_ns);
            }
            current.last = header.seq;
            current.heard_ns = current.heard_ns.max(at_ns);
            self.candidate = None;
            return Decision::Current;
        }
        self.consider(at_ns, from, header, is_known)
    }

    #[cold]
    fn consider(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        header: &RtpHeader,
        is_known: bool,
    ) -> Decision {
        if !self.config.allows(from) {
            return Decision::Refuse(Refusal::NotAllowed);
        }
        let Some(rule) = self.rule(at_ns, from, header) else {
            return Decision::Refuse(Refusal::Stranger);
        };
        if !is_known {
            return self.consider_unknown(from, header);
        }
        let packets = match self.candidate {
            Some(candidate) if self.is_of(candidate, from, header) => {
                candidate.packets.saturating_add(1)
            }
            _ => 1,
        };
        self.candidate = Some(Candidate {
            address: from,
            ssrc: header.ssrc,
            last: header.seq,
            packets,
        });
        let silence_ns = self.silence_ns(at_ns);
        if packets >= rule.packets && silence_ns >= rule.silence_ns {
            return Decision::Begin(self.begin(at_ns, from, header));
        }
        if silence_ns >= HOLD_SILENCE_NS || self.is_at_current(from) {
            return Decision::Hold {
                is_first: packets == 1,
            };
        }
        // The current source is sending: nothing is kept of a stranger.
        Decision::Refuse(Refusal::Stranger)
    }

    /// A payload type that was not agreed on begins nothing; among a candidate's packets it keeps its place.
    fn consider_unknown(&mut self, from: SocketAddr, header: &RtpHeader) -> Decision {
        match self.candidate {
            Some(candidate) if self.is_of(candidate, from, header) => {
                self.candidate = Some(Candidate {
                    last: header.seq,
                    ..candidate
                });
                Decision::Hold { is_first: false }
            }
            _ => Decision::Refuse(Refusal::PayloadType(header.payload_type)),
        }
    }

    /// Whether a packet goes on from a candidate's last one: it may overtake some, or be overtaken, from the beginning on.
    fn is_of(&self, candidate: Candidate, from: SocketAddr, header: &RtpHeader) -> bool {
        let distance = header.seq.distance_from(candidate.last);
        candidate.ssrc == header.ssrc
            && (candidate.address == from || self.config.learn == Learn::Anyone)
            && (1..=NEAR_PACKETS).contains(&distance.abs())
    }

    /// What it takes this sender to become the current source; `None`: never.
    ///
    /// | sender | packets in a row | silence of the current source |
    /// |---|---|---|
    /// | the first, from the signalled address or without one | 2 (RFC 3550, A.1) | |
    /// | the first, from elsewhere | 5 | |
    /// | the current address, or with [`Learn::Anyone`] any; another SSRC | 2 | a packet and a half |
    /// | the same host, or the same SSRC with numbers that continue | 5 | 0.5 s |
    /// | any other | 5 | 3 s |
    fn rule(&mut self, at_ns: u64, from: SocketAddr, header: &RtpHeader) -> Option<Rule> {
        let is_signalled = self.config.peer == Some(from);
        let may_learn = self.config.learn.is_open(&mut self.fixed_ns, at_ns);
        let Some(current) = self.current else {
            let is_expected = is_signalled || self.config.peer.is_none();
            return (may_learn || is_signalled).then_some(Rule {
                packets: if is_expected {
                    u32::from(MIN_SEQUENTIAL)
                } else {
                    ADDRESS_PACKETS
                },
                silence_ns: 0,
            });
        };
        if from == current.address || self.config.learn == Learn::Anyone {
            return Some(Rule {
                packets: u32::from(MIN_SEQUENTIAL),
                silence_ns: current.turn_ns(),
            });
        }
        if !may_learn && !is_signalled {
            return None;
        }
        let ahead = header.seq.distance_from(current.last);
        let continues = header.ssrc == current.ssrc && (0..CONTINUES_PACKETS_MAX).contains(&ahead);
        Some(Rule {
            packets: ADDRESS_PACKETS,
            silence_ns: if continues || from.ip() == current.address.ip() {
                ADDRESS_SILENCE_NS
            } else {
                OTHER_HOST_SILENCE_NS
            },
        })
    }

    fn begin(&mut self, at_ns: u64, from: SocketAddr, header: &RtpHeader) -> Beginning {
        let beginning = match self.current {
            None => Beginning::First,
            Some(old) if old.ssrc == header.ssrc => Beginning::Moved { from: old.address },
            Some(old) => Beginning::Changed { old: old.ssrc },
        };
        self.candidate = None;
        self.current = Some(Current {
            address: from,
            ssrc: header.ssrc,
            heard_ns: at_ns,
            spacing_ns: self.current.map_or(0, |old| old.spacing_ns),
            last: header.seq,
        });
        beginning
    }

    fn silence_ns(&self, at_ns: u64) -> u64 {
        self.current
            .map_or(u64::MAX, |current| at_ns.saturating_sub(current.heard_ns))
    }

    fn is_at_current(&self, from: SocketAddr) -> bool {
        self.config.learn == Learn::Anyone
            || self.current.is_some_and(|current| current.address == from)
    }

    /// Whether RTCP from here may be the peer's. One forged packet must neither keep the true peer out nor draw anything to
    /// a stranger, so RTCP is believed from the host that RTP comes from, or was signalled to come from, and from where it was signalled itself.
    pub(super) fn judge_rtcp(&self, from: SocketAddr, mux: bool) -> Result<(), Refusal> {
        let known = self.current.map(|current| current.address);
        match known.or(self.config.peer) {
            _ if self.config.learn == Learn::Anyone => Ok(()),
            Some(known) if mux && known == from => Ok(()),
            Some(known) if !mux && known.ip() == from.ip() => Ok(()),
            _ if !mux && self.config.rtcp == Some(from) => Ok(()),
            _ => Err(Refusal::Stranger),
        }
    }

    /// As if nothing had been received.
    pub(super) fn begin_anew(&mut self, config: AdmissionConfig) {
        *self = Admission::new(config);
    }

    /// Learns anew, as signalled.
    pub(super) fn relearn(&mut self, config: AdmissionConfig) {
        // Who sends from where the peer is said to be goes on.
        let stays = |current: &Current| config.peer == Some(current.address);
        self.current = self.current.filter(stays);
        self.candidate = None;
        self.fixed_ns = None;
        self.config = config;
    }
}

impl Current {
    /// It has missed its turn after this much silence.
    fn turn_ns(&self) -> u64 {
        let spacing_ns = match self.spacing_ns {
            0 => SPACING_NS_DEFAULT,
            spacing_ns => spacing_ns.min(SPACING_NS_MAX),
        };
        spacing_ns + spacing_ns / 2
    }
}

/// Required silence before packets with another SSRC from another host count as the peer's.
pub(super) const OTHER_HOST_SILENCE_NS: u64 = 3_000_000_000;
/// A sender that goes on elsewhere has sent no more packets on the way there than this: a minute's (RFC 3550, A.1:
/// MAX_DROPOUT).
const CONTINUES_PACKETS_MAX: i32 = 3000;
/// As far as packets overtake each other.
const NEAR_PACKETS: i32 = 4;
/// A candidate's packets are kept once the current source may have stopped: longer than jitter makes it seem so.
const HOLD_SILENCE_NS: u64 = 100_000_000;
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
