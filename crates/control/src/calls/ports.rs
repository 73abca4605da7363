//! The source of a call's ports.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The name of a local interface, as requests have it in `direction` and `interface`.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct InterfaceName(pub Arc<str>);

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A version of the Internet Protocol.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Family {
    /// IPv4, `IP4` in SDP.
    V4,
    /// IPv6, `IP6` in SDP.
    V6,
}

impl Family {
    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns the name in SDP.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IP4",
            Family::V6 => "IP6",
        }
    }
}

/// A local interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: InterfaceName,
    /// The families of the interface's addresses, the preferred one first.
    pub families: Vec<Family>,
}

/// The ports that a leg needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PortUse {
    /// An even port for RTP and the next one for RTCP (RFC 3550, section 11).
    Pair,
    /// One port: RTP and RTCP together (RFC 5761), or media without RTCP.
    Single,
}

/// A request for open ports.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PortRequest {
    /// The interface.
    pub interface: InterfaceName,
    /// The address family.
    pub family: Family,
    /// A pair, or a single port.
    pub port_use: PortUse,
}

/// The open ports of one leg.
#[derive(Debug)]
pub struct Opened<P> {
    /// The ports; dropping them closes them.
    pub ports: P,
    /// The advertised address and port for RTP.
    pub rtp: SocketAddr,
    /// The advertised address and port for RTCP. `None` for [`PortUse::Single`].
    pub rtcp: Option<SocketAddr>,
}

/// The reason why no port could be opened, and what the operator can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoPorts(pub String);

/// Opens ports. The owner of the sockets implements this trait.
pub trait PortSource<P> {
    /// Returns all interfaces, the default one first.
    fn interfaces(&self) -> &[Interface];

    /// Opens the ports of one leg.
    ///
    /// # Errors
    /// Fails if the interface has no address of the family, or if no port is free.
    fn open(&mut self, request: &PortRequest) -> Result<Opened<P>, NoPorts>;

    /// Opens the ports of another process's leg again, with the same numbers. `rtp` and `rtcp` are the addresses that the
    /// party knows.
    ///
    /// # Errors
    /// Fails if the interface is gone or has another advertised address, or if another process has the ports.
    fn reopen(
        &mut self,
        request: &PortRequest,
        rtp: SocketAddr,
        rtcp: Option<SocketAddr>,
    ) -> Result<P, NoPorts> {
        let _ = (request, rtcp);
        Err(NoPorts(format!(
            "these ports cannot be opened again: {rtp}"
        )))
    }
}
