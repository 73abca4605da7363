//! UDP sockets: opening, options, which addresses they reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use threadbare_runtime::RawAddr;

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Descriptors have run out.
    #[error(
        "no descriptor for a socket at {address}: {source}; the limit of open files of this process is {soft}, it may be \
         raised to {hard} (ulimit -n, systemd's LimitNOFILE=)"
    )]
    Descriptors {
        /// The wanted address.
        address: SocketAddr,
        /// The limit in force.
        soft: u64,
        /// The limit that the process may set itself.
        hard: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The system refuses a socket or an option.
    #[error("cannot open a UDP socket at {address}: {source}")]
    Open {
        /// The wanted address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The address is in use, or the machine does not have it.
    #[error("cannot bind to {address}: {source}")]
    Bind {
        /// The wanted address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
}

impl SocketError {
    /// Another socket has the address.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self, SocketError::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    fn opening(address: SocketAddr, source: io::Error) -> SocketError {
        match source.raw_os_error().map(nix::errno::Errno::from_raw) {
            Some(nix::errno::Errno::EMFILE | nix::errno::Errno::ENFILE) => {
                let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
                SocketError::Descriptors {
                    address,
                    soft,
                    hard,
                    source,
                }
            }
            _ => SocketError::Open { address, source },
        }
    }
}

/// A destination that a socket does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "destination {destination}: the socket at {local} does not reach it; allowed from there: {} addresses",
    reach_of(.local).families()
)]
pub struct Unreachable {
    /// Where the socket is bound.
    pub local: SocketAddr,
    /// The refused destination.
    pub destination: SocketAddr,
}

/// Whether a socket bound to `local` reaches `destination`: to be asked when a destination is set.
///
/// # Errors
/// It does not: an IPv4 socket and an IPv6 destination, or the reverse.
pub fn check_destination(local: SocketAddr, destination: SocketAddr) -> Result<(), Unreachable> {
    match reach_of(&local).raw(destination) {
        Some(_) => Ok(()),
        None => Err(Unreachable { local, destination }),
    }
}

/// The address families that a socket reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    V4,
    V6,
    /// Bound to all addresses of IPv6: IPv4 is reached by mapped addresses (RFC 4291, section 2.5.5.2).
    Both,
}

impl Reach {
    fn families(self) -> &'static str {
        match self {
            Reach::V4 => "IPv4",
            Reach::V6 => "IPv6",
            Reach::Both => "IPv4 and IPv6",
        }
    }

    /// The address in the form that the socket takes; `None` if the socket does not reach it.
    #[inline]
    pub(crate) fn raw(self, to: SocketAddr) -> Option<RawAddr> {
        match (canonical(to), self) {
            (to @ SocketAddr::V4(_), Reach::V4) => Some(RawAddr::from(to)),
            (SocketAddr::V4(v4), Reach::Both) => {
                let mapped = SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()));
                Some(RawAddr::from(mapped))
            }
            (to @ SocketAddr::V6(_), Reach::V6 | Reach::Both) => Some(RawAddr::from(to)),
            (SocketAddr::V4(_), Reach::V6) | (SocketAddr::V6(_), Reach::V4) => None,
        }
    }
}

/// What a socket bound to `local` reaches.
pub(crate) fn reach_of(local: &SocketAddr) -> Reach {
    match local.ip() {
        IpAddr::V4(_) => Reach::V4,
        IpAddr::V6(ip) if ip.is_unspecified() || ip.to_ipv4_mapped().is_some() => Reach::Both,
        IpAddr::V6(_) => Reach::V6,
    }
}

/// An IPv4 address as such, also where an IPv6 socket gives it as a mapped one.
#[inline]
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

/// A bound UDP socket, without waiting, with the kernel's receive times and ICMP errors.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: Socket,
    local: SocketAddr,
}

impl Udp {
    /// Binds `address`; port 0: any free one. `buffer_bytes`: of the kernel's receive buffer, at most what the system
    /// allows.
    pub(crate) fn bind(
        address: SocketAddr,
        buffer_bytes: Option<usize>,
    ) -> Result<Udp, SocketError> {
        Udp::bound(address, buffer_bytes, false)
    }

    /// Also where the machine has not the address yet.
    pub(crate) fn bind_ahead(
        address: SocketAddr,
        buffer_bytes: Option<usize>,
    ) -> Result<Udp, SocketError> {
        Udp::bound(address, buffer_bytes, true)
    }

    fn bound(
        address: SocketAddr,
        buffer_bytes: Option<usize>,
        is_ahead: bool,
    ) -> Result<Udp, SocketError> {
        let open = |source| SocketError::opening(address, source);
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )
        .map_err(open)?;
        if reach_of(&address) == Reach::Both {
            socket.set_only_v6(false).map_err(open)?;
        }
        if is_ahead {
            // Of IPv6 sockets, too.
            setsockopt(&socket, sockopt::IpFreebind, &true).map_err(|error| open(error.into()))?;
        }
        socket
            .bind(&address.into())
            .map_err(|source| SocketError::Bind { address, source })?;
        let mut local = address;
        if address.port() == 0 {
            let bound = socket.local_addr().map_err(open)?;
            local.set_port(bound.as_socket().map_or(0, |bound| bound.port()));
        }
        let udp = Udp { socket, local };
        udp.set_options(buffer_bytes).map_err(open)?;
        Ok(udp)
    }

    fn set_options(&self, buffer_bytes: Option<usize>) -> io::Result<()> {
        setsockopt(&self.socket, sockopt::ReceiveTimestampns, &true)?;
        // Without these, an unconnected socket is told nothing of ICMP errors.
        setsockopt(&self.socket, sockopt::Ipv4RecvErr, &true)?;
        if self.local.is_ipv6() {
            setsockopt(&self.socket, sockopt::Ipv6RecvErr, &true)?;
        }
        if let Some(bytes) = buffer_bytes
            // A process with CAP_NET_ADMIN may exceed the limit.
            && setsockopt(&self.socket, sockopt::RcvBufForce, &bytes).is_err()
        {
            self.socket.set_recv_buffer_size(bytes)?;
        }
        Ok(())
    }

    /// Joins the group that it is bound to, if that is one.
    pub(crate) fn join(&self) -> Result<(), SocketError> {
        let joined = match self.local.ip() {
            IpAddr::V4(group) if group.is_multicast() => self
                .socket
                .join_multicast_v4(&group, &std::net::Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(group) if group.is_multicast() => self.socket.join_multicast_v6(&group, 0),
            _ => Ok(()),
        };
        let address = self.local;
        joined.map_err(|source| SocketError::Open { address, source })
    }

    /// Packets that are sent have this in their IP header: the type of service, or the traffic class of IPv6.
    pub(crate) fn set_tos(&self, tos: u8) -> io::Result<()> {
        set_tos(&self.socket, reach_of(&self.local), tos)
    }

    /// The socket without its address, for places where memory is dear.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// The reverse.
    pub(crate) fn from_parts(socket: Socket, local: SocketAddr) -> Udp {
        Udp { socket, local }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Packets that are sent have this in their IP header. A socket of IPv6 has one word for each family that it reaches.
pub(crate) fn set_tos(socket: &Socket, reach: Reach, tos: u8) -> io::Result<()> {
    if reach != Reach::V6 {
        socket.set_tos_v4(tos.into())?;
    }
    match reach {
        Reach::V4 => Ok(()),
        Reach::V6 | Reach::Both => socket.set_tclass_v6(tos.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    /// getsockopt(2) tells what the kernel has.
    #[test]
    fn the_type_of_service_is_set_for_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(udp) = super::Udp::bind(address.parse().unwrap(), None) else {
                assert!(address.starts_with('['), "a machine without IPv6");
                continue;
            };
            udp.set_tos(184).unwrap();
            if reach_of(&udp.local) != Reach::V6 {
                assert_eq!(udp.socket.tos_v4().unwrap(), 184, "{address}");
            }
            if reach_of(&udp.local) != Reach::V4 {
                assert_eq!(udp.socket.tclass_v6().unwrap(), 184, "{address}");
            }
        }
    }

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_socket_reaches_the_families_that_linux_lets_it_reach() {
        for (local, reaches_v4, reaches_v6) in [
            ("127.0.0.1:0", true, false),
            ("[::1]:0", false, true),
            ("[::]:0", true, true),
        ] {
            let Ok(udp) = Udp::bind(address(local), None) else {
                continue; // A machine without IPv6.
            };
            let reach = reach_of(&udp.local());
            // The kernel itself is the source of the expectation.
            for (peer, expected) in [("127.0.0.1:0", reaches_v4), ("[::1]:0", reaches_v6)] {
                let Ok(peer) = Udp::bind(address(peer), None) else {
                    continue;
                };
                let raw = reach.raw(peer.local());
                assert_eq!(raw.is_some(), expected, "{local} to {}", peer.local());
                let forced = match (peer.local(), udp.local()) {
                    (SocketAddr::V4(v4), SocketAddr::V6(_)) => {
                        RawAddr::from(SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())))
                    }
                    (to, _) => RawAddr::from(to),
                };
                let sent = threadbare_runtime::send_to(udp.fd(), b"x", &forced);
                assert_eq!(sent.is_ok(), expected, "{local} to {}", peer.local());
            }
        }
    }

    #[test]
    fn an_unreachable_destination_is_named_with_the_socket() {
        let error = Unreachable {
            local: address("10.0.0.1:20000"),
            destination: address("[2001:db8::1]:5004"),
        };
        let text = error.to_string();
        for part in ["10.0.0.1:20000", "[2001:db8::1]:5004", "IPv4 addresses"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_limit_of_files_is_told_with_its_values() {
        let source = io::Error::from_raw_os_error(nix::errno::Errno::EMFILE as i32);
        let error = SocketError::opening(address("127.0.0.1:1"), source);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let text = error.to_string();
        assert!(
            text.contains(&format!("is {soft}, it may be raised to {hard}")),
            "{text}"
        );
    }
}
