//! Settings for accepting senders, and the reasons and counts of refusals.

use std::net::SocketAddr;

pub use threadbare_rtp_types::learn::{Learn, Method, Once};
pub use threadbare_rtp_types::network::{Network, NetworkError};

use crate::id::PayloadType;

/// Rules for accepting senders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Networks whose senders are accepted. If there are none, any sender is.
    pub sources: Vec<Network>,
    /// The signalled address of the peer. Other addresses are accepted later than this one.
    pub peer: Option<SocketAddr>,
    /// The signalled address of the peer's RTCP (RFC 3605). `None`: the port after that of RTP.
    pub rtcp: Option<SocketAddr>,
    /// Whether other addresses are accepted.
    pub learn: Learn,
    /// Whether nothing is sent to `peer` before the party's first packet. This is rtpengine's `NAT-wait`.
    pub waits: bool,
}

impl AdmissionConfig {
    /// Whether [`sources`](Self::sources) contain this address.
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

/// The reason why a datagram is refused. Each reason has a count in [`Refusals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is neither RTP nor RTCP.
    Malformed,
    /// Its address is in none of [`AdmissionConfig::sources`].
    NotAllowed,
    /// It comes from an address other than the peer's.
    Stranger,
    /// It comes from the peer's address, but with another SSRC while the current source sends.
    OtherSource,
    /// Its payload type was not agreed on.
    PayloadType(PayloadType),
    /// Its number is far from the sequence of its source, and the next packet did not follow it.
    OutOfRange,
    /// It has our own SSRC.
    OwnSsrc,
}

/// Numbers of refused datagrams, by reason.
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
    /// Returns the sum of all counts.
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
