//! Decides by source address alone which datagrams of a port pair to accept, for media whose contents are unknown. The decision is that of
//! a leg's [`Latch`], but without SSRCs and numbers.
//!
//! Datagrams from a new address are refused until the address is accepted. They are not queued, because nothing shows whether they are
//! media.

use std::net::SocketAddr;

use super::latch::{Heard, Latch, Standing};
use super::{AdmissionConfig, Learn, Refusal, Refusals};
use crate::session::RTCP_ADDRESS_SILENCE_NS;

/// Decides which datagrams come from one party. At each of the two ports, at most one address belongs to the party. See the module
/// documentation.
#[derive(Debug, Clone)]
pub struct Gate {
    latch: Latch,
    rtcp_from: Option<Heard>,
    refused: Refusals,
}

/// The state of a [`Gate`] for the next process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateState {
    /// Address that the party sends from.
    pub address: Option<SocketAddr>,
    /// Source address of the party's RTCP.
    pub rtcp_from: Option<SocketAddr>,
    /// Whether the time for learning addresses has passed.
    pub is_fixed: bool,
}

impl Gate {
    /// Creates the state of a party from which nothing was received.
    #[must_use]
    pub fn new(now_ns: u64, config: AdmissionConfig) -> Gate {
        Gate {
            latch: Latch::new(now_ns, config),
            rtcp_from: None,
            refused: Refusals::default(),
        }
    }

    /// Judges a datagram of the first port.
    ///
    /// # Errors
    /// Fails if the datagram does not belong to the party. Such datagrams are counted.
    #[inline]
    pub fn judge(&mut self, at_ns: u64, from: SocketAddr) -> Result<(), Refusal> {
        if self.latch.hears(at_ns, from) {
            return Ok(());
        }
        match self.latch.consider(at_ns, from, None, false) {
            Standing::Uncounted => Ok(()),
            Standing::Moved { .. } => {
                // Reports must no longer go to an address of the previous host.
                self.rtcp_from = self
                    .rtcp_from
                    .filter(|heard| heard.address.ip() == from.ip());
                Ok(())
            }
            Standing::Candidate { .. } => self.refuse(Refusal::Stranger),
            Standing::Refused(refusal) => self.refuse(refusal),
        }
    }

    /// Judges a datagram of the second port. It is accepted from the signalled RTCP address, and from the host that sends the other
    /// datagrams.
    ///
    /// # Errors
    /// Fails if the datagram does not belong to the party. Such datagrams are counted.
    pub fn judge_rtcp(&mut self, at_ns: u64, from: SocketAddr) -> Result<(), Refusal> {
        if !self.latch.config().allows(from) {
            return self.refuse(Refusal::NotAllowed);
        }
        if let Err(refusal) = self.latch.judge_rtcp(from, false) {
            return self.refuse(refusal);
        }
        self.latch.note_rtcp(at_ns, from);
        let is_heard = self.rtcp_from.is_some_and(|heard| {
            heard.address != from && at_ns.saturating_sub(heard.at_ns) < RTCP_ADDRESS_SILENCE_NS
        });
        if !is_heard && self.latch.config().learn != Learn::Anyone {
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

    /// Returns the destination: the address that the party sends from or, until it sends, the signalled one. An address that was neither
    /// signalled nor used by the party gets nothing.
    #[inline]
    #[must_use]
    pub fn to(&self) -> Option<SocketAddr> {
        self.latch.to()
    }

    /// Returns the destination of RTCP: the source address of received RTCP. Until that is known, it is the signalled address, or the port
    /// after [`to`](Self::to) (RFC 3550, section 11).
    #[must_use]
    pub fn rtcp_to(&self) -> Option<SocketAddr> {
        let to = self.latch.to()?;
        if let Some(heard) = self.rtcp_from {
            return Some(heard.address);
        }
        let config = self.latch.config();
        match config.rtcp {
            Some(rtcp) if config.peer == Some(to) => Some(rtcp),
            _ => super::send::after(to),
        }
    }

    /// Applies a new description of the party. If the description does not replace the party's address, it stays.
    pub fn relearn(&mut self, now_ns: u64, config: AdmissionConfig) {
        self.latch.relearn(now_ns, config);
        self.rtcp_from = None;
    }

    /// Sets whether later datagrams have passed SRTP's authentication.
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.latch.set_authenticated(is_authenticated);
    }

    /// Returns the numbers of refused datagrams.
    #[must_use]
    pub fn refused(&self) -> Refusals {
        self.refused
    }

    /// Returns the state with which another process continues.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> GateState {
        GateState {
            address: self.latch.party().map(|party| party.address),
            rtcp_from: self.rtcp_from.map(|heard| heard.address),
            is_fixed: self.latch.is_fixed(now_ns),
        }
    }

    /// Continues from the state of another process.
    pub fn restore(&mut self, now_ns: u64, state: GateState) {
        self.latch.restore(now_ns, state.address, state.is_fixed);
        self.rtcp_from = state.rtcp_from.map(|address| Heard {
            address,
            at_ns: now_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leg::Once;

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
        Gate::new(0, config)
    }

    /// Returns the number of datagrams from an address, 20 ms apart, that are refused before one is accepted. `None`: all are refused.
    fn refused_first(gate: &mut Gate, now_ns: u64, from: SocketAddr) -> Option<usize> {
        (0..300).position(|number| gate.judge(now_ns + number * 20 * MS, from).is_ok())
    }

    #[test]
    fn each_row_of_the_table_of_senders_applies() {
        let signalled = address(1, 10);
        let once = Learn::Once(Once::default());
        for learn in [Learn::Never, Learn::FOLLOW, once] {
            let mut gate = gate(Some(signalled), learn);
            assert_eq!(refused_first(&mut gate, 0, signalled), Some(0));
        }
        let mut open = gate(None, Learn::FOLLOW);
        assert_eq!(open.to(), None);
        assert_eq!(refused_first(&mut open, 0, signalled), Some(1));
        assert_eq!(open.to(), Some(signalled));
        let mut elsewhere = gate(Some(signalled), Learn::FOLLOW);
        assert_eq!(elsewhere.to(), Some(signalled));
        assert_eq!(refused_first(&mut elsewhere, 0, address(2, 20)), Some(4));
        // The time counts from 80 ms. It is 0.5 s for another port, and 3 s for another host.
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
    fn a_fixed_address_changes_only_to_the_signalled_one() {
        let once = Learn::Once(Once {
            fixed_ms: Some(100),
            ..Once::default()
        });
        let mut gate = gate(Some(address(1, 10)), once);
        assert_eq!(refused_first(&mut gate, 0, address(2, 20)), Some(4));
        assert_eq!(refused_first(&mut gate, 10_000 * MS, address(2, 22)), None);
        assert_eq!(refused_first(&mut gate, 20_000 * MS, address(3, 30)), None);
        assert_eq!(
            refused_first(&mut gate, 30_000 * MS, address(1, 10)),
            Some(1)
        );
    }

    #[test]
    fn reports_go_to_their_source_if_it_is_the_party() {
        let mut gate = gate(Some(address(1, 10)), Learn::FOLLOW);
        assert_eq!(gate.rtcp_to(), Some(address(1, 11)));
        assert_eq!(gate.judge_rtcp(0, address(2, 9)), Err(Refusal::Stranger));
        assert_eq!(gate.judge_rtcp(0, address(1, 9)), Ok(()));
        assert_eq!(gate.rtcp_to(), Some(address(1, 9)));
        // Another port of the host is accepted, but becomes the destination only after a silence.
        assert_eq!(gate.judge_rtcp(MS, address(1, 13)), Ok(()));
        assert_eq!(gate.rtcp_to(), Some(address(1, 9)));
        assert!(gate.judge_rtcp(16_000 * MS, address(1, 13)).is_ok());
        assert_eq!(gate.rtcp_to(), Some(address(1, 13)));
        gate.relearn(
            0,
            AdmissionConfig {
                rtcp: Some(address(4, 4)),
                ..AdmissionConfig::default()
            },
        );
        assert_eq!((gate.to(), gate.rtcp_to()), (None, None));
    }
}
