//! Where a call's ports come from.

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
    /// `IP4`.
    V4,
    /// `IP6`.
    V6,
}

impl Family {
    /// That of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// As in SDP.
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
    /// Its name.
    pub name: InterfaceName,
    /// It has addresses of these families, the preferred one first.
    pub families: Vec<Family>,
}

/// How many ports a leg needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PortUse {
    /// An even port for RTP and the next one for RTCP (RFC 3550, section 11).
    Pair,
    /// One port: RTP and RTCP together (RFC 5761), or media without RTCP.
    Single,
}

/// What is to be opened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PortRequest {
    /// Where.
    pub interface: InterfaceName,
    /// Of which family.
    pub family: Family,
    /// How many.
    pub port_use: PortUse,
}

/// The open ports of one leg.
#[derive(Debug)]
pub struct Opened<P> {
    /// Closes the ports when it is dropped.
    pub ports: P,
    /// What the party is told: the advertised address with the RTP port.
    pub rtp: SocketAddr,
    /// The same for RTCP; `None` for [`PortUse::Single`].
    pub rtcp: Option<SocketAddr>,
}

/// No port could be opened: the reason, with what an operator can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoPorts(pub String);

/// Opens ports. Implemented by whoever has sockets.
pub trait PortSource<P> {
    /// All interfaces, the default one first.
    fn interfaces(&self) -> &[Interface];

    /// Opens the ports of one leg.
    ///
    /// # Errors
    /// The interface has no such address, or no port is free.
    fn open(&mut self, request: &PortRequest) -> Result<Opened<P>, NoPorts>;

    /// Opens the ports of a leg again that another process had: the same numbers, for a party that was told `rtp` and `rtcp`.
    ///
    /// # Errors
    /// The interface is not there any more or is told otherwise, or another process has the ports.
    fn reopen(
        &mut self,
        request: &PortRequest,
        rtp: SocketAddr,
        rtcp: Option<SocketAddr>,
    ) -> Result<P, NoPorts> {
        let _ = (request, rtcp);
        Err(NoPorts(format!("ports cannot be opened again here: {rtp}")))
    }
}
