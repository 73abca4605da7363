//! Which datagrams of a port pair belong where nothing of them is understood but their address: the rule of a leg, without SSRCs and numbers.
//!
//! | sender | datagrams in a row | silence of the present one |
//! |---|---|---|
//! | the signalled address, first | 1 | |
//! | the first, without a signalled address | 2 | |
//! | the first, from elsewhere than signalled | 5 | |
//! | the same host, another port | 5 | 0.5 s |
//! | any other | 5 | 3 s |
//!
//! Those that decide are refused, but for the last: there is nothing to tell whether they are media.

use std::net::SocketAddr;

use super::admission::OTHER_HOST_SILENCE_NS;
use super::{AdmissionConfig, Learn, Refusal, Refusals};
use crate::reception::MIN_SEQUENTIAL;
use crate::session::{ADDRESS_PACKETS, ADDRESS_SILENCE_NS, RTCP_ADDRESS_SILENCE_NS};

/// See the module. One party; at most one address of it for each of its two ports.
#[derive(Debug, Clone)]
pub struct Gate {
    config: AdmissionConfig,
    current: Option<Heard>,
    rtcp_from: Option<Heard>,
    /// A possible next one, and how many datagrams in a row came from there.
    candidate: Option<(SocketAddr, u32)>,
    /// End of the window for learning, once that began.
    fixed_ns: Option<u64>,
    refused: Refusals,
}

/// An address, and when it was heard last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    address: SocketAddr,
    at_ns: u64,
}

/// What a [`Gate`] keeps over a restart of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateState {
    /// Where the party sends from.
    pub address: Option<SocketAddr>,
    /// Where its RTCP comes from.
    pub rtcp_from: Option<SocketAddr>,
    /// The time for learning addresses is over.
    pub is_fixed: bool,
}

impl Gate {
    /// A party of which nothing was heard.
    #[must_use]
    pub fn new(config: AdmissionConfig) -> Gate {
        Gate {
            config,
            current: None,
            rtcp_from: None,
            candidate: None,
            fixed_ns: None,
            refused: Refusals::default(),
        }
    }

    /// Judges a datagram of the first port.
    ///
    /// # Errors
    /// It does not belong. It is counted.
    #[inline]
    pub fn judge(&mut self, at_ns: u64, from: SocketAddr) -> Result<(), Refusal> {
        if let Some(current) = &mut self.current
            && current.address == from
        {
            current.at_ns = current.at_ns.max(at_ns);
            self.candidate = None;
            return Ok(());
        }
        self.consider(at_ns, from)
    }

    #[cold]
    fn consider(&mut self, at_ns: u64, from: SocketAddr) -> Result<(), Refusal> {
        if !self.config.allows(from) {
            return self.refuse(Refusal::NotAllowed);
        }
        if self.config.learn == Learn::Anyone {
            return Ok(());
        }
        let Some((wanted, silence_ns)) = self.rule(at_ns, from) else {
            return self.refuse(Refusal::Stranger);
        };
        let packets = match self.candidate {
            Some((address, packets)) if address == from => packets.saturating_add(1),
            _ => 1,
        };
        self.candidate = Some((from, packets));
        let heard_ns = self.current.map(|current| current.at_ns);
        let is_silent =
            heard_ns.is_none_or(|heard_ns| at_ns.saturating_sub(heard_ns) >= silence_ns);
        if packets < wanted || !is_silent {
            return self.refuse(Refusal::Stranger);
        }
        self.candidate = None;
        self.current = Some(Heard {
            address: from,
            at_ns,
        });
        // Another host's reports go to that host.
        self.rtcp_from = self
            .rtcp_from
            .filter(|heard| heard.address.ip() == from.ip());
        Ok(())
    }

    /// Datagrams in a row, and silence of the present address; `None`: never.
    fn rule(&mut self, at_ns: u64, from: SocketAddr) -> Option<(u32, u64)> {
        let is_signalled = self.config.peer == Some(from);
        let may_learn = self.config.learn.is_open(&mut self.fixed_ns, at_ns);
        if !may_learn && !is_signalled {
            return None;
        }
        Some(match self.current {
            None if is_signalled => (1, 0),
            None if self.config.peer.is_none() => (u32::from(MIN_SEQUENTIAL), 0),
            None => (ADDRESS_PACKETS, 0),
            Some(current) if current.address.ip() == from.ip() => {
                (ADDRESS_PACKETS, ADDRESS_SILENCE_NS)
            }
            Some(_) => (ADDRESS_PACKETS, OTHER_HOST_SILENCE_NS),
        })
    }

    /// Judges a datagram of the second port: it is believed from where it was signalled to come from, and from the host that the others come
    /// from.
    ///
    /// # Errors
    /// It does not belong. It is counted.
    pub fn judge_rtcp(&mut self, at_ns: u64, from: SocketAddr) -> Result<(), Refusal> {
        if !self.config.allows(from) {
            return self.refuse(Refusal::NotAllowed);
        }
        let host = self.current.map(|current| current.address);
        let host = host.or(self.config.peer).map(|address| address.ip());
        let is_known = host == Some(from.ip()) || self.config.rtcp == Some(from);
        match self.config.learn {
            Learn::Anyone => return Ok(()),
            _ if is_known => {}
            _ => return self.refuse(Refusal::Stranger),
        }
        let is_heard = self.rtcp_from.is_some_and(|heard| {
            heard.address != from && at_ns.saturating_sub(heard.at_ns) < RTCP_ADDRESS_SILENCE_NS
        });
        if !is_heard {
            self.rtcp_from = Some(Heard {
                address: from,
                at_ns,
            });
        }
        Ok(())
    }

    #[cold]
    fn refuse(&mut self, refusal: Refusal) -> Result<(), Refusal> {
        self.refused.count(refusal);
        Err(refusal)
    }

    /// Where to send: where the party sends from, or, until it does, where it was signalled to be. Nothing is sent to an address that nothing
    /// came from and that was not signalled.
    #[inline]
    #[must_use]
    pub fn to(&self) -> Option<SocketAddr> {
        let current = self.current.map(|current| current.address);
        current.or(self.config.peer)
    }

    /// Where to send RTCP: where it comes from, or was signalled to be, or to the port after [`to`](Self::to) (RFC 3550, section 11).
    #[must_use]
    pub fn rtcp_to(&self) -> Option<SocketAddr> {
        if let Some(heard) = self.rtcp_from {
            return Some(heard.address);
        }
        let to = self.to()?;
        let is_elsewhere = self.current.is_some() && self.config.peer != Some(to);
        match self.config.rtcp {
            Some(rtcp) if !is_elsewhere => Some(rtcp),
            _ => super::send::after(to),
        }
    }

    /// The party is another one, or elsewhere, as signalled: learns anew. Who sends from where it is said to be goes on.
    pub fn relearn(&mut self, config: AdmissionConfig) {
        let stays = |current: &Heard| config.peer == Some(current.address);
        self.current = self.current.filter(stays);
        (self.rtcp_from, self.candidate, self.fixed_ns) = (None, None, None);
        self.config = config;
    }

    /// Datagrams that did not belong.
    #[must_use]
    pub fn refused(&self) -> Refusals {
        self.refused
    }

    /// What another process needs to go on.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> GateState {
        GateState {
            address: self.current.map(|current| current.address),
            rtcp_from: self.rtcp_from.map(|heard| heard.address),
            is_fixed: self.fixed_ns.is_some_and(|fixed_ns| fixed_ns <= now_ns),
        }
    }

    /// Goes on where another process stopped.
    pub fn restore(&mut self, now_ns: u64, state: GateState) {
        let heard = |address| Heard {
            address,
            at_ns: now_ns,
        };
        self.current = state.address.map(heard);
        self.rtcp_from = state.rtcp_from.map(heard);
        self.fixed_ns = state.is_fixed.then_some(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn address(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], port))
    }

    fn gate(peer: Option<SocketAddr>, learn: Learn) -> Gate {
        let config = AdmissionConfig {
            peer,
            learn,
            ..AdmissionConfig::default()
        };
        Gate::new(config)
    }

    /// How many datagrams of an address, 20 ms apart, are refused before one is taken; `None`: all.
    fn refused_first(gate: &mut Gate, now_ns: u64, from: SocketAddr) -> Option<usize> {
        (0..300).position(|number| gate.judge(now_ns + number * 20 * MS, from).is_ok())
    }

    #[test]
    fn the_table_holds() {
        let signalled = address(1, 10);
        for learn in [Learn::Never, Learn::Follow, Learn::Once { window_ns: MS }] {
            assert_eq!(
                refused_first(&mut gate(Some(signalled), learn), 0, signalled),
                Some(0)
            );
        }
        let mut open = gate(None, Learn::Follow);
        assert_eq!(open.to(), None);
        assert_eq!(refused_first(&mut open, 0, signalled), Some(1));
        assert_eq!(open.to(), Some(signalled));
        let mut elsewhere = gate(Some(signalled), Learn::Follow);
        assert_eq!(elsewhere.to(), Some(signalled));
        assert_eq!(refused_first(&mut elsewhere, 0, address(2, 20)), Some(4));
        // From 80 ms on: 0.5 s for the host, 3 s for another one.
        assert_eq!(
            refused_first(&mut elsewhere, 100 * MS, address(2, 22)),
            Some(24)
        );
        assert_eq!(
            refused_first(&mut elsewhere, 600 * MS, address(3, 20)),
            Some(149)
        );
        let mut never = gate(Some(signalled), Learn::Never);
        assert_eq!(refused_first(&mut never, 0, address(1, 11)), None);
    }

    #[test]
    fn a_window_for_learning_ends() {
        let once = Learn::Once {
            window_ns: 100 * MS,
        };
        let mut gate = gate(Some(address(1, 10)), once);
        assert_eq!(refused_first(&mut gate, 0, address(2, 20)), Some(4));
        assert_eq!(refused_first(&mut gate, 10_000 * MS, address(3, 30)), None);
        // The signalled one is believed after a silence, later too.
        assert!(refused_first(&mut gate, 30_000 * MS, address(1, 10)).is_some());
    }

    #[test]
    fn reports_go_where_they_come_from_if_that_is_the_party() {
        let mut gate = gate(Some(address(1, 10)), Learn::Follow);
        assert_eq!(gate.rtcp_to(), Some(address(1, 11)));
        assert_eq!(gate.judge_rtcp(0, address(2, 9)), Err(Refusal::Stranger));
        assert_eq!(gate.judge_rtcp(0, address(1, 9)), Ok(()));
        assert_eq!(gate.rtcp_to(), Some(address(1, 9)));
        // Another port of the host is heard, but followed only after a silence.
        assert_eq!(gate.judge_rtcp(MS, address(1, 13)), Ok(()));
        assert_eq!(gate.rtcp_to(), Some(address(1, 9)));
        assert!(gate.judge_rtcp(16_000 * MS, address(1, 13)).is_ok());
        assert_eq!(gate.rtcp_to(), Some(address(1, 13)));
        gate.relearn(AdmissionConfig {
            rtcp: Some(address(4, 4)),
            ..AdmissionConfig::default()
        });
        assert_eq!((gate.to(), gate.rtcp_to()), (None, None));
    }

    proptest! {
        /// Whatever comes: nothing is sent to an address that was not signalled, and from which fewer than two datagrams came; and the
        /// present one stays as long as it speaks.
        #[test]
        fn nobody_is_sent_what_they_did_not_ask_for(
            peer in prop::option::of(0..3_u8),
            once in any::<bool>(),
            steps in prop::collection::vec((0..4_u8, 0..2_u16, 0..1_000_u64, any::<bool>()), 0..300),
        ) {
            let peer = peer.map(|host| address(host, 10));
            let learn = match once {
                true => Learn::Once { window_ns: 1_000 * MS },
                false => Learn::Follow,
            };
            let mut gate = gate(peer, learn);
            let mut seen: BTreeMap<SocketAddr, u32> = BTreeMap::new();
            let (mut now_ns, mut heard_ns) = (0, 0);
            for (host, port, ms, is_rtcp) in steps {
                now_ns += ms * MS;
                let from = address(host, 10 + port);
                *seen.entry(from).or_default() += 1;
                let before = gate.current;
                if is_rtcp {
                    let _ = gate.judge_rtcp(now_ns, from);
                } else if gate.judge(now_ns, from).is_ok() {
                    if before.is_some_and(|before| before.address != from) {
                        prop_assert!(now_ns - heard_ns >= ADDRESS_SILENCE_NS);
                    }
                    heard_ns = now_ns;
                }
                if let Some(to) = gate.to() {
                    prop_assert!(Some(to) == peer || seen[&to] >= 2, "{to}");
                }
            }
        }
    }
}
