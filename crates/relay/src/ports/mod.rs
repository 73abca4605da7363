//! The ports of a call's legs: a pair of numbers of a range, or a place on a shared port.

mod numbers;
mod range;
mod shared;

use std::net::{IpAddr, SocketAddr};

use threadbare_rtp::demux::{DemuxError, Filter};

pub(crate) use self::range::{NumberLease, random};
pub use self::range::{PortRange, PortUse, RangeSettings};
pub(crate) use self::shared::{SharedHome, SharedPlace, SharedSockets};
pub use self::shared::{SharedPort, SharedSettings};
use crate::fence::Fence;
use crate::socket::{SocketError, Udp, Unreachable, check_destination};

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The range is not one.
    #[error(
        "ports {first} to {last}: there is no room for {wanted}; allowed are ports from 1 to 65535, the first not after the \
         last"
    )]
    Range {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// What one leg needs.
        wanted: &'static str,
    },
    /// All numbers are in use.
    #[error(
        "ports {first} to {last} at {address}: none of {units} is free; {in_use} carry calls, {quarantined} are kept back \
         until late packets have ended or because other programs have them; allow a wider range"
    )]
    Exhausted {
        /// The address of the range.
        address: IpAddr,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// Legs that the range has room for.
        units: u32,
        /// Legs that have ports of it.
        in_use: u32,
        /// Ports in quarantine.
        quarantined: u32,
    },
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The shared port cannot tell this leg from another.
    #[error("shared port {local}, filter {filter:?}: {error}")]
    Filter {
        /// The shared port.
        local: SocketAddr,
        /// The refused filter.
        filter: Filter,
        /// The reason.
        error: DemuxError,
    },
}

/// The ports of one leg, open: [`PortRange::lease`], [`SharedPort::lease`]. Datagrams wait in them until a call is created
/// with them. Dropped, they are free for others.
#[derive(Debug)]
pub struct LegPorts(pub(crate) LegKind);

#[derive(Debug)]
pub(crate) enum LegKind {
    Own(OwnPorts),
    Shared(SharedPlace),
}

/// Sockets of one leg's own. Dropped in this order: a number is free when its sockets are closed.
#[derive(Debug)]
pub(crate) struct OwnPorts {
    pub(crate) rtp: Udp,
    /// `None`: RTCP comes with the RTP.
    pub(crate) rtcp: Option<Udp>,
    /// `None`: the ports were named.
    pub(crate) lease: Option<NumberLease>,
    /// `None`: what is sent depends on nobody.
    pub(crate) fence: Option<Fence>,
}

impl LegPorts {
    /// Opens ports that were named: RTP at `rtp`, RTCP at `rtcp`; without it, there is none, or it comes with the RTP. A multicast
    /// address is joined.
    ///
    /// # Errors
    /// An address is in use, or the machine does not have it, or descriptors have run out.
    pub fn open(rtp: SocketAddr, rtcp: Option<SocketAddr>) -> Result<LegPorts, SocketError> {
        let own = OwnPorts {
            rtp: Udp::bind(rtp, None)?,
            rtcp: rtcp.map(|rtcp| Udp::bind(rtcp, None)).transpose()?,
            lease: None,
            fence: None,
        };
        for udp in std::iter::once(&own.rtp).chain(&own.rtcp) {
            udp.join()?;
        }
        Ok(LegPorts(LegKind::Own(own)))
    }

    /// The address of the RTP port.
    #[must_use]
    pub fn rtp_address(&self) -> SocketAddr {
        match &self.0 {
            LegKind::Own(own) => own.rtp.local(),
            LegKind::Shared(place) => place.sockets().rtp.local(),
        }
    }

    /// The address of the RTCP port; `None`: RTCP and RTP share one (RFC 5761).
    #[must_use]
    pub fn rtcp_address(&self) -> Option<SocketAddr> {
        let rtcp = match &self.0 {
            LegKind::Own(own) => own.rtcp.as_ref(),
            LegKind::Shared(place) => place.sockets().rtcp.as_ref(),
        };
        rtcp.map(Udp::local)
    }

    /// What is sent from these ports has this in its IP header: the type of service (RFC 2474), or the traffic class of IPv6. A
    /// shared port keeps its own.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn set_tos(&self, tos: u8) -> std::io::Result<()> {
        let LegKind::Own(own) = &self.0 else {
            return Ok(());
        };
        let mut sockets = std::iter::once(&own.rtp).chain(&own.rtcp);
        sockets.try_for_each(|udp| udp.set_tos(tos))
    }

    /// These ports send only while the fence is open. A shared port has none.
    #[must_use]
    pub fn fenced(mut self, fence: Fence) -> LegPorts {
        if let LegKind::Own(own) = &mut self.0 {
            own.fence = Some(fence);
        }
        self
    }

    /// [`check_destination`](crate::check_destination) for these ports.
    ///
    /// # Errors
    /// They do not reach it.
    pub fn check_destination(&self, destination: SocketAddr) -> Result<(), Unreachable> {
        check_destination(self.rtp_address(), destination)
    }
}
