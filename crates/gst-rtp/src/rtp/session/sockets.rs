//! The pair of sockets of a session.

use std::net::SocketAddr;

use gio::prelude::*;
use threadbare_runtime::RawAddr;

use crate::kit::resolve::resolve;
use crate::kit::socket::{self, Membership, MulticastSettings, SocketError, Udp};

/// Addresses and ports to listen on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SocketSettings {
    pub(crate) address: String,
    /// Port number; 0 for any free one.
    pub(crate) port: u16,
    /// Port of RTCP; `None`: the port after RTP's (RFC 3550, section 11).
    pub(crate) rtcp_port: Option<u16>,
    /// Whether RTP and RTCP share one port (RFC 5761).
    pub(crate) mux: bool,
    pub(crate) reuse: bool,
    pub(crate) buffer_bytes: i32,
    pub(crate) multicast: MulticastSettings,
}

/// Open sockets. They close when the last user drops them.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) rtp: Udp,
    /// The socket of RTCP; `None`: RTCP shares the RTP port.
    pub(crate) rtcp: Option<Udp>,
    pub(crate) readers: Readers,
    /// Whether the sockets are IPv6 ones. If they are bound to all addresses, they reach IPv4 by mapped addresses.
    is_ipv6: bool,
    memberships: Vec<(Udp, Membership)>,
}

/// Readers of a session's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// A source reads the RTP, and with rtcp-mux the RTCP on its port. The session's agent reads the remaining RTCP.
    Source,
    /// The session's agent reads everything; without a source, RTP is ignored.
    Agent,
    /// A shared port's agent, for several sessions.
    Port,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for (udp, membership) in &self.memberships {
            membership.leave(udp.socket());
        }
    }
}

impl Sockets {
    /// Binds the configured addresses, to be read by `readers`.
    pub(crate) fn open(
        settings: &SocketSettings,
        readers: Readers,
    ) -> Result<Sockets, SocketError> {
        let address = resolve(&settings.address, settings.port)?;
        let (rtp, rtcp) = match (settings.mux, settings.rtcp_port, settings.port) {
            (true, ..) => (bind(settings, address)?, None),
            (false, Some(rtcp_port), _) => {
                let rtp = bind(settings, address)?;
                let rtcp = bind(settings, with_port(address, rtcp_port))?;
                (rtp, Some(rtcp))
            }
            (false, None, 0) => any_pair(settings, address)?,
            (false, None, port) => {
                let next = port
                    .checked_add(1)
                    .ok_or(SocketError::NoRtcpPort { port })?;
                let rtp = bind(settings, address)?;
                (rtp, Some(bind(settings, with_port(address, next))?))
            }
        };
        socket::set_buffer_size(rtp.socket(), libc::SO_RCVBUF, settings.buffer_bytes);
        // Request the arrival time of each packet instead of that of its slice, because jitter is measured in fractions of a
        // slice.
        for udp in std::iter::once(&rtp).chain(&rtcp) {
            socket::set_timestamps(udp.socket());
        }
        let mut memberships = Vec::new();
        if address.ip().is_multicast() && settings.multicast.auto {
            let interface = settings.multicast.interface.as_deref();
            for udp in std::iter::once(&rtp).chain(&rtcp) {
                let membership = Membership::new(address.ip(), interface, None)?;
                membership.join(udp.socket())?;
                memberships.push((udp.clone(), membership));
            }
        }
        Ok(Sockets {
            rtp,
            rtcp,
            readers,
            is_ipv6: address.is_ipv6(),
            memberships,
        })
    }

    /// Converts an address to the family of these sockets.
    pub(crate) fn reaching(&self, address: SocketAddr) -> RawAddr {
        let address = match address {
            SocketAddr::V4(v4) if self.is_ipv6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            other => other,
        };
        RawAddr::from(address)
    }
}

fn bind(settings: &SocketSettings, address: SocketAddr) -> Result<Udp, SocketError> {
    let udp = if address.ip().is_multicast() {
        let interface = settings.multicast.interface.as_deref();
        socket::bind_group(
            address,
            interface.filter(|_| settings.multicast.auto),
            settings.reuse,
        )?
    } else {
        socket::bind(address, settings.reuse)?
    };
    udp.socket()
        .set_multicast_loopback(settings.multicast.loops);
    Ok(udp)
}

/// Binds two consecutive free ports, the first of them even (RFC 3550, section 11).
fn any_pair(
    settings: &SocketSettings,
    address: SocketAddr,
) -> Result<(Udp, Option<Udp>), SocketError> {
    let mut refused = None;
    let mut odd = Vec::new();
    for _ in 0..PAIR_ATTEMPTS {
        let rtp = bind(settings, address)?;
        let port = rtp.port();
        if port % 2 == 1 || port == u16::MAX {
            // Keep the socket open, so that the system does not choose the same port again.
            odd.push(rtp);
            continue;
        }
        match bind(settings, with_port(address, port + 1)) {
            Ok(rtcp) => return Ok((rtp, Some(rtcp))),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or(SocketError::NoRtcpPort { port: 0 }))
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Maximum number of tries. About half of the ports that the system chooses are odd, and few ports are in use.
const PAIR_ATTEMPTS: usize = 64;
