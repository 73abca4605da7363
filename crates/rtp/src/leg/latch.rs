//! Learns the address that a party sends from. The same decision serves media that are parsed ([`Leg`](super::Leg)) and media that are only
//! forwarded ([`Gate`](super::Gate)).
//!
//! A sender takes over the leg with the following number of consecutive packets, if the party's present address has been silent for the
//! following time:
//!
//! | sender | packets | silence | when |
//! |---|---|---|---|
//! | the signalled address | 2 | none | always |
//! | the first other address | 2 or 5 | - | the signalled address has sent nothing; [`Method`] |
//! | the address that a new offer or answer replaced | 50, or 5 if the IP address stays | - | as above |
//! | another port of the signalled IP address, while the party uses another IP address | 5 | none | always |
//! | another port of the same IP address | 5 | 0.5 s | until [`Learn::Once`] is fixed |
//! | another IP address, packets authenticated by SRTP | 2 | 0.5 s | until [`Learn::Once`] is fixed |
//! | another IP address of a better rank | 5 | none | [`Method::Heuristic`], for 3 s |
//! | another IP address | 5 | 0.5 s | [`Method::Delayed`], for 3 s |
//! | another IP address | 5 | as configured | [`Learn::Follow`] |
//!
//! Each address has its own count, and the signalled address has its own place. So the packet of a stranger never changes the count of
//! another sender. Packets that arrived before the last offer or answer count only if they come from the signalled address.

use std::net::SocketAddr;
use threadbare_base::NS_PER_MS;

use super::rules::{AdmissionConfig, Learn, Method, Once, Refusal};
use crate::id::{SeqNum, Ssrc};
use crate::reception::MIN_SEQUENTIAL;
use crate::session::{ADDRESS_PACKETS, ADDRESS_SILENCE_NS};

/// Learns the address of a party: see the module documentation.
#[derive(Debug, Clone)]
pub(super) struct Latch {
    party: Option<Heard>,
    config: AdmissionConfig,
    /// Whether the packets that reach the latch have passed SRTP's authentication.
    is_authenticated: bool,
    /// Time of the last signalling of the address.
    since_ns: u64,
    /// Time of the party's first packet after `since_ns`. [`NEVER_NS`]: none has come yet.
    settled_ns: u64,
    /// Whether RTCP came from the signalled address, which shows that the party is not behind a NAT.
    is_signalled_heard: bool,
    /// The addresses that compete for the party. They are allocated when the first packet from another address arrives.
    contest: Option<Box<Contest>>,
}

/// The addresses that may become the party's.
#[derive(Debug, Clone)]
struct Contest {
    signalled: Candidate,
    others: Vec<Candidate>,
    /// The party's address before the last offer or answer.
    left: Option<SocketAddr>,
}

/// An address, with the time of its last packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) address: SocketAddr,
    pub(super) at_ns: u64,
}

/// An address that may become the party's.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    address: SocketAddr,
    packets: u32,
    at_ns: u64,
    mark: Option<Mark>,
}

/// The SSRC and number of an RTP packet.
pub(super) type Mark = (Ssrc, SeqNum);

/// The verdict of a [`Latch`] on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Addresses do not matter ([`Learn::Anyone`]).
    Uncounted,
    /// The party now sends from this address. `before` is the mark of the previous packet from this address.
    Moved { before: Option<Mark> },
    /// More packets must follow before this address is accepted. `may_hold` means that this packet may be worth keeping until then.
    Candidate { may_hold: bool },
    /// The packet does not belong to the party.
    Refused(Refusal),
}

/// What a sender must do to become the party.
struct Rule {
    packets: u32,
    silence_ns: u64,
}

impl Latch {
    pub(super) fn new(now_ns: u64, config: AdmissionConfig) -> Latch {
        Latch {
            party: None,
            is_authenticated: false,
            since_ns: since(now_ns, &config),
            settled_ns: NEVER_NS,
            is_signalled_heard: false,
            contest: None,
            config,
        }
    }

    /// Returns the party's present address.
    #[inline]
    pub(super) fn party(&self) -> Option<Heard> {
        self.party
    }

    pub(super) fn config(&self) -> &AdmissionConfig {
        &self.config
    }

    /// Returns the destination: the party's address or, until its first packet, the signalled one. `None`: nothing is known, or the
    /// signalled address puts the party on hold (RFC 3264, section 8.4).
    #[inline]
    pub(super) fn to(&self) -> Option<SocketAddr> {
        if self.config.peer.is_some_and(is_none) {
            return None;
        }
        match self.config.learn {
            Learn::Anyone => self.config.peer,
            _ => match self.party {
                Some(party) => Some(party.address),
                None => self.config.peer.filter(|_| !self.config.waits),
            },
        }
    }

    /// Whether packets from this address belong to the party. If they do, notes the time of the present packet.
    #[inline]
    pub(super) fn hears(&mut self, at_ns: u64, from: SocketAddr) -> bool {
        match &mut self.party {
            Some(party) if party.address == from => {
                party.at_ns = party.at_ns.max(at_ns);
                true
            }
            _ => false,
        }
    }

    /// Judges a packet from an address other than the party's.
    #[cold]
    pub(super) fn consider(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        mark: Option<Mark>,
        continues: bool,
    ) -> Standing {
        if !self.config.allows(from) {
            return Standing::Refused(Refusal::NotAllowed);
        }
        if self.config.learn == Learn::Anyone {
            return Standing::Uncounted;
        }
        let is_signalled = self.config.peer == Some(from);
        let Some(rule) = self.rule(at_ns, from, mark.is_some(), continues) else {
            return Standing::Refused(Refusal::Stranger);
        };
        let (packets, before) = self.count(at_ns, from, mark, is_signalled);
        let silence_ns = self.silence_ns(at_ns);
        if packets < rule.packets || silence_ns < rule.silence_ns {
            return Standing::Candidate {
                may_hold: is_signalled || silence_ns >= HOLD_SILENCE_NS,
            };
        }
        self.settle(at_ns, from);
        Standing::Moved { before }
    }

    /// Counts a packet of a candidate. Returns the number of consecutive packets, and the mark of the previous one. With `any_row`, all
    /// packets count, even if they are not consecutive.
    pub(super) fn count(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        mark: Option<Mark>,
        any_row: bool,
    ) -> (u32, Option<Mark>) {
        let is_signalled = self.config.peer == Some(from);
        let contest = self.contest.get_or_insert_with(Contest::begin);
        let candidate = contest.candidate(is_signalled, from);
        let before = candidate.mark;
        candidate.packets = if any_row || is_near(before, mark) {
            candidate.packets.saturating_add(1)
        } else {
            1
        };
        (candidate.at_ns, candidate.mark) = (at_ns, mark);
        (candidate.packets, before)
    }

    /// Whether a packet that does not count comes between the packets of a candidate. In this case, the packets before and after it still
    /// count as consecutive.
    pub(super) fn keeps_place(&mut self, from: SocketAddr, mark: Mark) -> bool {
        let Some(contest) = &mut self.contest else {
            return false;
        };
        let mut candidates = std::iter::once(&mut contest.signalled).chain(&mut contest.others);
        let known = candidates.find(|known| known.address == from && known.packets > 0);
        let Some(known) = known.filter(|known| is_near(known.mark, Some(mark))) else {
            return false;
        };
        known.mark = Some(mark);
        true
    }

    /// Returns the row of the module's table for this sender. `None`: the sender never becomes the party.
    fn rule(&self, at_ns: u64, from: SocketAddr, is_rtp: bool, continues: bool) -> Option<Rule> {
        let learn = self.config.learn;
        let rule = |packets, silence_ns| {
            Some(Rule {
                packets,
                silence_ns,
            })
        };
        if self.config.peer == Some(from) {
            // There may be few opaque datagrams. For example, a T.38 session starts with one.
            let is_free = self.party.is_none() && !is_rtp;
            return rule(if is_free { 1 } else { SIGNALLED_PACKETS }, 0);
        }
        if at_ns < self.since_ns || learn == Learn::Never {
            return None;
        }
        let Some(party) = self.party else {
            return rule(self.first_packets(from)?, 0);
        };
        let is_signalled_host = |ip| self.config.peer.is_some_and(|peer| peer.ip() == ip);
        if is_signalled_host(from.ip()) && !is_signalled_host(party.address.ip()) {
            return rule(ADDRESS_PACKETS, 0);
        }
        if let Learn::Once(Once {
            fixed_ms: Some(fixed_ms),
            ..
        }) = learn
            && !self.is_within(at_ns, ns(fixed_ms))
        {
            return None;
        }
        if party.address.ip() == from.ip() {
            return rule(ADDRESS_PACKETS, ADDRESS_SILENCE_NS);
        }
        if self.is_authenticated {
            return rule(SIGNALLED_PACKETS, ADDRESS_SILENCE_NS);
        }
        match learn {
            Learn::Follow { .. } if continues => rule(ADDRESS_PACKETS, ADDRESS_SILENCE_NS),
            Learn::Follow { silence_ms } => rule(ADDRESS_PACKETS, ns(silence_ms)),
            Learn::Once(once) => {
                // The source that was replaced may still send, from a port that looks like the signalled one.
                let is_learning = !self.has_left(from)
                    && self.config.peer != Some(party.address)
                    && self.is_within(at_ns, LEARNING_NS);
                match once.method {
                    Method::Delayed if is_learning => rule(ADDRESS_PACKETS, ADDRESS_SILENCE_NS),
                    Method::Heuristic
                        if is_learning && self.rank(from) < self.rank(party.address) =>
                    {
                        rule(ADDRESS_PACKETS, 0)
                    }
                    _ => None,
                }
            }
            Learn::Never | Learn::Anyone => None,
        }
    }

    /// Returns the number of packets that an address needs while the leg has no party. `None`: the party sends from its signalled address.
    fn first_packets(&self, from: SocketAddr) -> Option<u32> {
        let Some(peer) = self.config.peer else {
            return Some(u32::from(MIN_SEQUENTIAL));
        };
        if self.is_signalled_heard && peer.ip() != from.ip() {
            return None;
        }
        Some(match self.config.learn {
            _ if self.has_left(from) && peer.ip() != from.ip() => LEFT_PACKETS,
            // A NAT in front of the new address may have kept the old port.
            _ if self.has_left(from) => ADDRESS_PACKETS,
            Learn::Once(Once {
                method: Method::Immediate,
                ..
            }) => u32::from(MIN_SEQUENTIAL),
            _ => ADDRESS_PACKETS,
        })
    }

    /// Returns how much an address differs from the signalled one: 0 for not at all, 3 for completely.
    fn rank(&self, address: SocketAddr) -> u8 {
        let Some(peer) = self.config.peer else {
            return 3;
        };
        match (peer.ip() == address.ip(), peer.port() == address.port()) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        }
    }

    /// Whether the party's first packet came less than `ns` ago.
    fn is_within(&self, at_ns: u64, ns: u64) -> bool {
        self.settled_ns != LONG_AGO_NS && at_ns < self.settled_ns.saturating_add(ns)
    }

    /// Makes this address the party's.
    pub(super) fn settle(&mut self, at_ns: u64, from: SocketAddr) {
        self.party = Some(Heard {
            address: from,
            at_ns,
        });
        self.settled_ns = self.settled_ns.min(at_ns.max(LONG_AGO_NS + 1));
        let is_signalled = self.config.peer == Some(from);
        if let Some(contest) = &mut self.contest {
            if is_signalled {
                contest.signalled = Candidate::NONE;
            }
            contest.others.retain(|other| other.address != from);
        }
        if self.contest.as_deref().is_some_and(Contest::is_over) {
            self.contest = None;
        }
    }

    /// Whether the last offer or answer replaced this address.
    fn has_left(&self, from: SocketAddr) -> bool {
        self.contest
            .as_ref()
            .is_some_and(|contest| contest.left == Some(from))
    }

    pub(super) fn silence_ns(&self, at_ns: u64) -> u64 {
        self.party
            .map_or(u64::MAX, |party| at_ns.saturating_sub(party.at_ns))
    }

    /// Whether RTCP from this address may be the party's. It may come from the host that sends RTP, from the signalled host, and from the
    /// signalled RTCP address. With mux, it may come only from the RTP address.
    pub(super) fn judge_rtcp(&self, from: SocketAddr, mux: bool) -> Result<(), Refusal> {
        if self.config.learn == Learn::Anyone {
            return Ok(());
        }
        let party = self.party.map(|party| party.address);
        let mut known = [party, self.config.peer].into_iter().flatten();
        let is_known = if mux {
            known.any(|known| known == from)
        } else {
            known.any(|known| known.ip() == from.ip()) || self.config.rtcp == Some(from)
        };
        if is_known {
            Ok(())
        } else {
            Err(Refusal::Stranger)
        }
    }

    /// Notes RTCP from an address that [`judge_rtcp`](Self::judge_rtcp) accepts. A party that only listens shows its address only by RTCP.
    #[inline]
    pub(super) fn note_rtcp(&mut self, at_ns: u64, from: SocketAddr) {
        let is_signalled = self.config.peer.is_some_and(|peer| peer.ip() == from.ip());
        self.is_signalled_heard |= is_signalled && at_ns >= self.since_ns;
    }

    /// Applies another description. The party's address stays if the description still has it, or does not replace it.
    pub(super) fn relearn(&mut self, now_ns: u64, config: AdmissionConfig) {
        let old = std::mem::replace(&mut self.config, config);
        self.since_ns = since(now_ns, &self.config);
        if let Some(contest) = &mut self.contest {
            contest.signalled = Candidate::NONE;
            contest.others.clear();
        }
        let peer = self.config.peer;
        let is_replaced = peer != old.peer && !peer.is_some_and(is_none);
        if !is_replaced {
            return;
        }
        self.is_signalled_heard = false;
        let party = self.party.map(|party| party.address);
        if party.is_none() || party == peer {
            return;
        }
        (self.party, self.settled_ns) = (None, NEVER_NS);
        self.contest.get_or_insert_with(Contest::begin).left = party;
    }

    pub(super) fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
    }

    /// Whether the time for learning addresses has passed.
    pub(super) fn is_fixed(&self, now_ns: u64) -> bool {
        let window_ns = match self.config.learn {
            Learn::Once(once) => once.fixed_ms.map_or(LEARNING_NS, ns),
            Learn::Never | Learn::Follow { .. } | Learn::Anyone => LEARNING_NS,
        };
        !self.is_within(now_ns, window_ns)
    }

    /// Continues with an address that another process has admitted.
    pub(super) fn restore(&mut self, now_ns: u64, address: Option<SocketAddr>, is_fixed: bool) {
        self.party = address.map(|address| Heard {
            address,
            at_ns: now_ns,
        });
        self.settled_ns = match address {
            None => NEVER_NS,
            Some(_) if is_fixed => LONG_AGO_NS,
            Some(_) => now_ns.max(LONG_AGO_NS + 1),
        };
    }
}

impl Contest {
    fn begin() -> Box<Contest> {
        Box::new(Contest {
            signalled: Candidate::NONE,
            others: Vec::new(),
            left: None,
        })
    }

    /// Whether there is no state left that must be kept.
    fn is_over(&self) -> bool {
        self.signalled.packets == 0 && self.others.is_empty() && self.left.is_none()
    }

    /// Finds or creates the entry of an address. If the table is full, it drops the candidate with the fewest packets, and the oldest one
    /// of several.
    fn candidate(&mut self, is_signalled: bool, from: SocketAddr) -> &mut Candidate {
        if is_signalled {
            self.signalled.address = from;
            return &mut self.signalled;
        }
        let fresh = Candidate {
            address: from,
            ..Candidate::NONE
        };
        let known = self.others.iter().position(|other| other.address == from);
        let at = known.unwrap_or_else(|| {
            if self.others.len() < CANDIDATES_MAX {
                self.others.push(fresh);
                return self.others.len() - 1;
            }
            let key = |at: &usize| (self.others[*at].packets, self.others[*at].at_ns);
            let at = (0..CANDIDATES_MAX).min_by_key(key).unwrap_or(0);
            self.others[at] = fresh;
            at
        });
        &mut self.others[at]
    }
}

impl Candidate {
    const NONE: Candidate = Candidate {
        address: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
        packets: 0,
        at_ns: 0,
        mark: None,
    };
}

/// Whether a packet continues from the one before it. Packets may overtake each other. Datagrams without marks always continue.
pub(super) fn is_near(before: Option<Mark>, mark: Option<Mark>) -> bool {
    match (before, mark) {
        (Some((old, last)), Some((ssrc, seq))) => {
            old == ssrc && (1..=NEAR_PACKETS).contains(&seq.distance_from(last).abs())
        }
        (None, None) => true,
        _ => false,
    }
}

/// Whether this address only puts a party on hold (RFC 3264, section 8.4).
pub(super) fn is_none(address: SocketAddr) -> bool {
    address.ip().is_unspecified() || address.port() == 0
}

/// Returns the time from which packets count. Without a signalled address it is 0, so even the socket's first packets count.
fn since(now_ns: u64, config: &AdmissionConfig) -> u64 {
    match config.learn {
        Learn::Once(_) if config.peer.is_some() => now_ns,
        _ => 0,
    }
}

fn ns(ms: u32) -> u64 {
    u64::from(ms) * NS_PER_MS
}

/// Later than any other time.
const NEVER_NS: u64 = u64::MAX;
/// A time before this process started.
const LONG_AGO_NS: u64 = 0;
/// Number of packets from the expected sender. Two are enough (RFC 3550, appendix A.1).
const SIGNALLED_PACKETS: u32 = MIN_SEQUENTIAL as u32;
/// Number of packets for an address that an offer or answer has replaced, because its sender may continue for seconds. A party
/// behind a NAT that still sends from the same address is learned again after a second.
const LEFT_PACKETS: u32 = 50;
/// Time for which `delayed` and `heuristic` look for a better address, as in rtpengine.
const LEARNING_NS: u64 = 3_000_000_000;
/// Maximum number of addresses that are counted. A stranger gains nothing with more addresses, because a single address with five packets
/// is learned too.
const CANDIDATES_MAX: usize = 8;
/// Maximum distance of packets that overtake each other.
const NEAR_PACKETS: i32 = 4;
/// Silence of the party after which a candidate's packets are queued. Jitter would not explain such a silence.
const HOLD_SILENCE_NS: u64 = 100_000_000;
