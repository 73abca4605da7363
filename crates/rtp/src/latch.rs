//! Symmetric RTP (RFC 4961): learns the peer's address from its packets, and keeps it.
//!
//! A peer behind a NAT does not know its public address and often signals a private one. So the first valid packets
//! decide. From then on a stranger's packets must not move the stream away, yet a peer that really moves (the NAT
//! rebinds, the phone changes networks) must not lose the stream for good. The test is whether the old address has
//! fallen silent.

use std::net::SocketAddr;

use crate::id::Ssrc;

/// When the peer counts as moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Never: the first valid source stays the peer.
    Never,
    /// With the first valid packet with its SSRC from elsewhere after its address was silent for `silence_ns`.
    AfterSilence {
        /// Required silence of the present address.
        silence_ns: u64,
    },
    /// The same, but only with the last of `packets` of them in a row from one address, without any from the present
    /// address in between.
    AfterPackets {
        /// How many.
        packets: u32,
        /// Required silence of the present address.
        silence_ns: u64,
    },
}

/// How a [`Latch`] behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatchConfig {
    /// When the peer counts as moved, with an unchanged SSRC.
    pub follow: Follow,
    /// Required silence before packets with another SSRC from another host count as the peer's: a media server that
    /// hands over to another. `None` for never. From another port of the same host (a restarted program), they are
    /// treated like those with the same SSRC.
    pub other_ssrc_silence_ns: Option<u64>,
}

impl LatchConfig {
    /// For RTP: half a second of silence and five packets in a row, as in the session; 3 s with another SSRC from
    /// another host.
    pub const RTP: LatchConfig = LatchConfig {
        follow: Follow::AfterPackets {
            packets: crate::session::ADDRESS_PACKETS,
            silence_ns: crate::session::ADDRESS_SILENCE_NS,
        },
        other_ssrc_silence_ns: Some(3_000_000_000),
    };

    /// For RTCP, with a packet every 5 s or so: three times in silence.
    pub const RTCP: LatchConfig = LatchConfig {
        follow: Follow::AfterSilence {
            silence_ns: crate::session::RTCP_ADDRESS_SILENCE_NS,
        },
        other_ssrc_silence_ns: Some(crate::session::RTCP_ADDRESS_SILENCE_NS),
    };
}

/// A packet's effect on the latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatchVerdict {
    /// It was the first: this is the peer's address.
    Latched,
    /// It came from the peer's address.
    Peer,
    /// The peer has moved here.
    Moved {
        /// Where it was.
        from: SocketAddr,
    },
    /// It came from elsewhere. Do not play it, and send nothing there.
    Stranger,
}

/// Counters of a latch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatchStats {
    /// Packets from the peer's address.
    pub peer: u64,
    /// Packets from elsewhere.
    pub strangers: u64,
    /// Times that the peer moved.
    pub moves: u64,
}

/// One learned address. See the module.
#[derive(Debug, Clone)]
pub struct Latch {
    config: LatchConfig,
    held: Option<Held>,
    /// The possible new address of the peer, and how many packets in a row came from it.
    candidate: Option<(SocketAddr, Ssrc, u32)>,
    stats: LatchStats,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    address: SocketAddr,
    ssrc: Ssrc,
    heard_ns: u64,
}

impl Latch {
    /// A latch that holds nothing yet.
    #[must_use]
    pub fn new(config: LatchConfig) -> Latch {
        Latch {
            config,
            held: None,
            candidate: None,
            stats: LatchStats::default(),
        }
    }

    /// Notes a packet that arrived at `now_ns` from `from`. Call it only for a valid source: the first packet of any
    /// sender must not be enough to redirect the stream.
    #[inline]
    pub fn handle_valid(&mut self, now_ns: u64, from: SocketAddr, ssrc: Ssrc) -> LatchVerdict {
        match &mut self.held {
            Some(held) if held.address == from => {
                held.heard_ns = now_ns;
                held.ssrc = ssrc;
                self.candidate = None;
                self.stats.peer += 1;
                LatchVerdict::Peer
            }
            Some(held) => {
                let held = *held;
                self.consider(now_ns, from, ssrc, held)
            }
            None => {
                self.hold(now_ns, from, ssrc);
                LatchVerdict::Latched
            }
        }
    }

    #[cold]
    fn consider(&mut self, now_ns: u64, from: SocketAddr, ssrc: Ssrc, held: Held) -> LatchVerdict {
        let packets = match self.candidate {
            Some((address, candidate, packets)) if (address, candidate) == (from, ssrc) => {
                packets.saturating_add(1)
            }
            _ => 1,
        };
        self.candidate = Some((from, ssrc, packets));
        let (packets_min, silence_ns_min) = match self.config.follow {
            Follow::Never => (u32::MAX, u64::MAX),
            Follow::AfterSilence { silence_ns } => (1, silence_ns),
            Follow::AfterPackets {
                packets,
                silence_ns,
            } => (packets, silence_ns),
        };
        let silence_ns = now_ns.saturating_sub(held.heard_ns);
        let is_peer = packets >= packets_min
            && if ssrc == held.ssrc || from.ip() == held.address.ip() {
                silence_ns >= silence_ns_min
            } else {
                let other_ns_min = self.config.other_ssrc_silence_ns;
                other_ns_min.is_some_and(|other_ns_min| silence_ns >= other_ns_min)
            };
        if !is_peer {
            self.stats.strangers += 1;
            return LatchVerdict::Stranger;
        }
        self.stats.moves += 1;
        self.hold(now_ns, from, ssrc);
        LatchVerdict::Moved { from: held.address }
    }

    fn hold(&mut self, now_ns: u64, address: SocketAddr, ssrc: Ssrc) {
        self.candidate = None;
        self.stats.peer += 1;
        self.held = Some(Held {
            address,
            ssrc,
            heard_ns: now_ns,
        });
    }

    /// The peer's address, once it is known.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.held.map(|held| held.address)
    }

    /// Forgets the address: signalling announced another peer.
    pub fn reset(&mut self) {
        self.held = None;
        self.candidate = None;
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> LatchStats {
        self.stats
    }
}

/// Both addresses of a peer.
#[derive(Debug, Clone)]
pub struct PeerLatch {
    /// Where its RTP comes from.
    pub rtp: Latch,
    /// Where its RTCP comes from; not used with `mux`.
    pub rtcp: Latch,
    mux: bool,
}

impl PeerLatch {
    /// Latches for both. With `mux`, RTCP shares RTP's address (RFC 5761).
    #[must_use]
    pub fn new(rtp: LatchConfig, rtcp: LatchConfig, mux: bool) -> PeerLatch {
        PeerLatch {
            rtp: Latch::new(rtp),
            rtcp: Latch::new(rtcp),
            mux,
        }
    }

    /// Notes an RTCP packet that the session accepted, as [`Latch::handle_valid`] does. RTCP alone does not latch: one
    /// forged packet must not keep the true peer out, nor redirect anything. Once RTP has found the peer, RTCP of its
    /// host or its source shows the peer's RTCP address.
    pub fn handle_valid_rtcp(&mut self, now_ns: u64, from: SocketAddr, ssrc: Ssrc) -> LatchVerdict {
        let Some(peer) = self.rtp.held else {
            return LatchVerdict::Stranger;
        };
        if self.mux {
            return match peer.address == from {
                true => LatchVerdict::Peer,
                false => LatchVerdict::Stranger,
            };
        }
        if from.ip() != peer.address.ip() && ssrc != peer.ssrc {
            return LatchVerdict::Stranger;
        }
        self.rtcp.handle_valid(now_ns, from, ssrc)
    }

    /// Where to send RTCP: the address it comes from; until that is known, the next port after RTP's (RFC 3550, section
    /// 11: "the corresponding RTCP stream SHOULD use the next higher (odd) destination port number"). With `mux`, RTP's
    /// address.
    #[must_use]
    pub fn rtcp_address(&self) -> Option<SocketAddr> {
        let rtp = self.rtp.address();
        if self.mux {
            return rtp;
        }
        self.rtcp.address().or_else(|| {
            let mut guess = rtp?;
            guess.set_port(guess.port().checked_add(1)?);
            Some(guess)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// From 100 on: another port of the host 100 below.
    fn address(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host % 100], 5000 + u16::from(host / 100)))
    }

    struct Case {
        name: &'static str,
        config: LatchConfig,
        /// From when on, every how many ms, until when, from which host and SSRC.
        senders: &'static [(u64, u64, u64, u8, u32)],
        /// Which host is held in the end, after how many moves.
        held: u8,
        moves: u64,
    }

    const NEVER: LatchConfig = LatchConfig {
        follow: Follow::Never,
        other_ssrc_silence_ns: None,
    };

    const CASES: &[Case] = &[
        Case {
            name: "a steady peer",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 60_000, 1, 7)],
            held: 1,
            moves: 0,
        },
        Case {
            name: "a stranger with another SSRC",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 60_000, 1, 7), (1001, 5, 60_000, 2, 8)],
            held: 1,
            moves: 0,
        },
        Case {
            name: "a stranger who guessed the SSRC and sends more",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 60_000, 1, 7), (1001, 1, 60_000, 2, 7)],
            held: 1,
            moves: 0,
        },
        Case {
            name: "a peer that moves",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 5000, 1, 7), (5000, 20, 6000, 2, 7)],
            held: 2,
            moves: 1,
        },
        Case {
            name: "a peer that moves and back again",
            config: LatchConfig::RTP,
            senders: &[
                (0, 20, 5000, 1, 7),
                (5000, 20, 9000, 2, 7),
                (9000, 20, 12_000, 1, 7),
            ],
            held: 1,
            moves: 2,
        },
        Case {
            name: "one packet from elsewhere during a pause",
            config: LatchConfig::RTP,
            senders: &[
                (0, 20, 5000, 1, 7),
                (9000, 20, 9020, 2, 7),
                (9500, 20, 12_000, 1, 7),
            ],
            held: 1,
            moves: 0,
        },
        Case {
            name: "another server with another SSRC takes over",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 5000, 1, 7), (5000, 20, 9000, 2, 8)],
            held: 2,
            moves: 1,
        },
        Case {
            name: "another server is not believed for three seconds",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 5000, 1, 7), (5000, 20, 7900, 2, 8)],
            held: 1,
            moves: 0,
        },
        Case {
            name: "a program that is started again, on another port with another SSRC",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 5000, 1, 7), (5000, 20, 5620, 101, 8)],
            held: 101,
            moves: 1,
        },
        Case {
            name: "another program of the same host while the first one sends",
            config: LatchConfig::RTP,
            senders: &[(0, 20, 60_000, 1, 7), (5000, 5, 60_000, 101, 8)],
            held: 1,
            moves: 0,
        },
        Case {
            name: "the same, told to stay",
            config: NEVER,
            senders: &[(0, 20, 5000, 1, 7), (5000, 20, 60_000, 2, 7)],
            held: 1,
            moves: 0,
        },
        Case {
            name: "RTCP of a peer that moves",
            config: LatchConfig::RTCP,
            senders: &[(0, 5000, 60_000, 1, 7), (60_000, 5000, 90_000, 2, 7)],
            held: 2,
            moves: 1,
        },
        Case {
            name: "RTCP of a stranger",
            config: LatchConfig::RTCP,
            senders: &[(0, 5000, 600_000, 1, 7), (100, 1000, 600_000, 2, 7)],
            held: 1,
            moves: 0,
        },
    ];

    #[test]
    fn peers_are_followed_and_strangers_are_not() {
        for case in CASES {
            let mut latch = Latch::new(case.config);
            for now_ms in 0..=600_000 {
                for &(from_ms, every_ms, until_ms, host, ssrc) in case.senders {
                    let is_on = (from_ms..until_ms).contains(&now_ms);
                    if is_on && (now_ms - from_ms) % every_ms == 0 {
                        latch.handle_valid(now_ms * MS, address(host), Ssrc(ssrc));
                    }
                }
            }
            assert_eq!(latch.address(), Some(address(case.held)), "{}", case.name);
            assert_eq!(latch.stats().moves, case.moves, "{}", case.name);
        }
    }

    #[test]
    fn what_happens_is_told() {
        let mut latch = Latch::new(LatchConfig::RTP);
        assert_eq!(latch.address(), None);
        assert_eq!(
            latch.handle_valid(0, address(1), Ssrc(7)),
            LatchVerdict::Latched
        );
        assert_eq!(
            latch.handle_valid(MS, address(1), Ssrc(7)),
            LatchVerdict::Peer
        );
        let verdicts: Vec<_> = (0..5)
            .map(|at| latch.handle_valid((600 + at) * MS, address(2), Ssrc(7)))
            .collect();
        assert_eq!(verdicts[..4], [LatchVerdict::Stranger; 4]);
        assert_eq!(verdicts[4], LatchVerdict::Moved { from: address(1) });
        let LatchStats {
            peer,
            strangers,
            moves,
        } = latch.stats();
        assert_eq!((peer, strangers, moves), (3, 4, 1));
        latch.reset();
        assert_eq!(latch.address(), None);
    }

    #[test]
    fn rtcp_goes_where_it_comes_from_and_before_that_where_it_should() {
        let mut peer = PeerLatch::new(LatchConfig::RTP, LatchConfig::RTCP, false);
        assert_eq!(peer.rtcp_address(), None);
        // RTCP of a stranger does not latch.
        let verdict = peer.handle_valid_rtcp(0, address(9), Ssrc(7));
        assert_eq!(verdict, LatchVerdict::Stranger);
        assert_eq!(peer.rtcp_address(), None);
        peer.rtp.handle_valid(0, address(1), Ssrc(7));
        let next = SocketAddr::from(([192, 0, 2, 1], 5001));
        assert_eq!(peer.rtcp_address(), Some(next));
        let verdict = peer.handle_valid_rtcp(0, address(9), Ssrc(8));
        assert_eq!(verdict, LatchVerdict::Stranger);
        peer.handle_valid_rtcp(0, address(9), Ssrc(7));
        assert_eq!(peer.rtcp_address(), Some(address(9)));
        let mut peer = PeerLatch::new(LatchConfig::RTP, LatchConfig::RTCP, false);
        peer.rtp.handle_valid(0, address(1), Ssrc(7));
        peer.handle_valid_rtcp(0, address(101), Ssrc(8));
        assert_eq!(peer.rtcp_address(), Some(address(101)));
        // The last port has no next one.
        let mut peer = PeerLatch::new(LatchConfig::RTP, LatchConfig::RTCP, false);
        peer.rtp
            .handle_valid(0, SocketAddr::from(([192, 0, 2, 1], u16::MAX)), Ssrc(7));
        assert_eq!(peer.rtcp_address(), None);
    }

    #[test]
    fn with_mux_there_is_one_address_and_rtp_moves_it() {
        let mut peer = PeerLatch::new(LatchConfig::RTP, LatchConfig::RTCP, true);
        assert_eq!(
            peer.handle_valid_rtcp(0, address(2), Ssrc(7)),
            LatchVerdict::Stranger
        );
        assert_eq!(peer.rtcp_address(), None);
        assert_eq!(
            peer.rtp.handle_valid(0, address(1), Ssrc(7)),
            LatchVerdict::Latched
        );
        assert_eq!(
            peer.handle_valid_rtcp(0, address(1), Ssrc(7)),
            LatchVerdict::Peer
        );
        let late_ns = 60_000 * MS;
        assert_eq!(
            peer.handle_valid_rtcp(late_ns, address(2), Ssrc(7)),
            LatchVerdict::Stranger
        );
        assert_eq!(peer.rtcp_address(), Some(address(1)));
        for _ in 0..5 {
            peer.rtp.handle_valid(late_ns, address(2), Ssrc(7));
        }
        assert_eq!(peer.rtcp_address(), Some(address(2)));
    }
}
