//! The ports of a call's legs. They are a pair of numbers of a range, or a place on a shared port.

mod numbers;
mod open_sockets;
mod range;
mod shared;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use threadbare_rtp::demux::{DemuxError, Filter};

pub(crate) use self::range::{NumberLease, random};
pub use self::range::{PortRange, PortUse, RangeSettings};
pub(crate) use self::shared::{SharedHome, SharedPlace, open_shared};
pub use self::shared::{SharedPort, SharedSettings};
use crate::fence::Fence;
use crate::socket::{SocketError, Udp, Unreachable, check_destination};

/// The reason why no port was opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The range is invalid.
    #[error(
        "ports {first} to {last}: the range has no room for {wanted}; expected ports from 1 to 65535, the first one not above the last one"
    )]
    Range {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// What one leg needs.
        wanted: &'static str,
    },
    /// All numbers of the range are in use.
    #[error(
        "ports {first} to {last} at {address}: none of {units} is free: {in_use} carry calls, and {quarantined} must not be used, \
        because their calls have just ended or other programs use them; configure a wider range"
    )]
    Exhausted {
        /// The address of the range.
        address: IpAddr,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// Number of legs for which the range has room.
        units: u32,
        /// Number of legs that use its ports.
        in_use: u32,
        /// Number of ports in quarantine.
        quarantined: u32,
    },
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The shared port cannot distinguish this leg from another one.
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

/// The open ports of one leg, from [`PortRange::lease`] or [`SharedPort::lease`]. They queue datagrams until a call is created with them.
/// Dropping this releases them.
#[derive(Debug)]
pub struct LegPorts(pub(crate) LegKind);

#[derive(Debug)]
pub(crate) enum LegKind {
    Own(OwnPorts),
    Shared(SharedPlace),
}

/// The sockets of one leg, or of a shared port.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) rtp: Udp,
    /// The socket for RTCP. `None`: RTCP shares the RTP port.
    pub(crate) rtcp: Option<Udp>,
    /// The epoll instance that contains all these sockets, even between two calls. `None`: they were never watched.
    pub(crate) watch: Option<Arc<Epoll>>,
}

impl Sockets {
    /// Creates the value from sockets that were just opened.
    pub(crate) fn new(rtp: Udp, rtcp: Option<Udp>) -> Sockets {
        let watch = None;
        Sockets { rtp, rtcp, watch }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Udp> {
        std::iter::once(&self.rtp).chain(&self.rtcp)
    }

    pub(crate) fn each_mut(&mut self) -> impl Iterator<Item = &mut Udp> {
        std::iter::once(&mut self.rtp).chain(&mut self.rtcp)
    }
}

/// The separate ports of one leg. Dropping this returns ports of a range to the range, which decides whether they stay open. Other ports
/// are closed.
#[derive(Debug)]
pub(crate) struct OwnPorts {
    /// The sockets. They are `None` only while this value is dropped or taken apart.
    sockets: Option<Sockets>,
    /// The lease of the number. `None`: the ports were given by number.
    lease: Option<NumberLease>,
    /// The fence for sending. `None`: there is no fence.
    pub(crate) fence: Option<Fence>,
}

impl OwnPorts {
    pub(crate) fn new(sockets: Sockets, lease: Option<NumberLease>) -> OwnPorts {
        OwnPorts {
            sockets: Some(sockets),
            lease,
            fence: None,
        }
    }

    /// Removes the sockets from their epoll instance, and notes that they are in `watch`.
    fn set_watch(&mut self, watch: &Arc<Epoll>) {
        let Some(sockets) = &mut self.sockets else {
            return;
        };
        if let Some(before) = sockets.watch.replace(watch.clone()) {
            for udp in sockets.each() {
                // This cannot fail for a socket that is registered.
                let _ = before.delete(udp.fd());
            }
        }
    }

    /// Takes this apart for `attach`.
    pub(crate) fn into_parts(mut self) -> Option<(Sockets, Option<NumberLease>, Option<Fence>)> {
        let sockets = self.sockets.take()?;
        Some((sockets, self.lease.take(), self.fence.take()))
    }
}

/// Moves the sockets of legs to the epoll instance of another media worker, which does not watch them yet. This reserves what `attach`
/// needs there, so that `attach` cannot fail for lack of it.
///
/// # Errors
/// Fails if the system refuses to watch a socket. Then nothing has changed.
pub(crate) fn move_to(legs: &mut [(u32, LegKind)], watch: &Arc<Epoll>) -> nix::Result<()> {
    let sockets = || legs.iter().flat_map(|(_, ports)| ports.sockets());
    for (count, udp) in sockets().enumerate() {
        let event = EpollEvent::new(EpollFlags::empty(), UNWATCHED);
        if let Err(error) = watch.add(udp.fd(), event) {
            for added in sockets().take(count) {
                // This cannot fail for a socket that has just been added.
                let _ = watch.delete(added.fd());
            }
            return Err(error);
        }
    }
    for (_, ports) in legs {
        if let LegKind::Own(own) = ports {
            own.set_watch(watch);
        }
    }
    Ok(())
}

impl LegKind {
    /// Returns the sockets that no other leg uses.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Udp> {
        let own = match self {
            LegKind::Own(own) => own.sockets.as_ref(),
            LegKind::Shared(_) => None,
        };
        own.into_iter().flat_map(Sockets::each)
    }
}

impl Drop for OwnPorts {
    fn drop(&mut self) {
        if let (Some(sockets), Some(lease)) = (self.sockets.take(), self.lease.take()) {
            lease.give_back(sockets);
        }
    }
}

impl LegPorts {
    /// Opens the given ports: RTP at `rtp`, and RTCP at `rtcp`. Without `rtcp`, there is no RTCP, or it shares the RTP port. A multicast
    /// address is joined.
    ///
    /// # Errors
    /// Fails if an address is in use, if the machine does not have it, or if descriptors have run out.
    pub fn open(rtp: SocketAddr, rtcp: Option<SocketAddr>) -> Result<LegPorts, SocketError> {
        let rtp = Udp::bind(rtp, None)?;
        let rtcp = rtcp.map(|rtcp| Udp::bind(rtcp, None)).transpose()?;
        let sockets = Sockets::new(rtp, rtcp);
        sockets.each().try_for_each(Udp::join)?;
        Ok(LegPorts(LegKind::Own(OwnPorts::new(sockets, None))))
    }

    /// Returns the epoll instance that has the sockets from an earlier call.
    pub(crate) fn watch(&self) -> Option<&Arc<Epoll>> {
        match &self.0 {
            LegKind::Own(own) => own.sockets.as_ref()?.watch.as_ref(),
            LegKind::Shared(_) => None,
        }
    }

    /// Returns the address of the RTP port.
    #[must_use]
    pub fn rtp_address(&self) -> SocketAddr {
        match &self.0 {
            LegKind::Own(own) => own.sockets.as_ref().map_or(NOWHERE, |own| own.rtp.local()),
            LegKind::Shared(place) => place.sockets().rtp.local(),
        }
    }

    /// Returns the address of the RTCP port. `None`: RTCP and RTP share one port (RFC 5761).
    #[must_use]
    pub fn rtcp_address(&self) -> Option<SocketAddr> {
        let rtcp = match &self.0 {
            LegKind::Own(own) => own.sockets.as_ref().and_then(|own| own.rtcp.as_ref()),
            LegKind::Shared(place) => place.sockets().rtcp.as_ref(),
        };
        rtcp.map(Udp::local)
    }

    /// Sets the type of service (RFC 2474) or IPv6 traffic class of datagrams from these ports. A shared port keeps its own.
    ///
    /// # Errors
    /// Fails if the system refuses the setting.
    pub fn set_tos(&mut self, tos: u8) -> std::io::Result<()> {
        let LegKind::Own(own) = &mut self.0 else {
            return Ok(());
        };
        let mut sockets = own.sockets.iter_mut().flat_map(Sockets::each_mut);
        sockets.try_for_each(|udp| udp.set_tos(tos))
    }

    /// Allows these ports to send only while the fence is open. Has no effect on a shared port.
    #[must_use]
    pub fn fenced(mut self, fence: Fence) -> LegPorts {
        if let LegKind::Own(own) = &mut self.0 {
            own.fence = Some(fence);
        }
        self
    }

    /// Checks whether these ports reach a destination: see [`check_destination`](crate::check_destination).
    ///
    /// # Errors
    /// Fails if the ports cannot reach the destination.
    pub fn check_destination(&self, destination: SocketAddr) -> Result<(), Unreachable> {
        check_destination(self.rtp_address(), destination)
    }
}

/// Key of a socket in an epoll instance until `attach` sets the right one. No port has this key.
const UNWATCHED: u64 = u64::MAX;
/// Address of ports that are being returned. It is never read.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
