//! The settings of who may send to a leg, and the reasons and counts of refusals.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

use crate::id::PayloadType;

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

/// Required silence before another host counts as the source of a stream without signalling.
const OTHER_HOST_SILENCE_MS: u32 = 3_000;

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
