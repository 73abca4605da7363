//! UDP sockets: how they are opened, their options, and the addresses that they reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use threadbare_runtime::{RawAddr, disconnect, received_memory};

/// The reason why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Descriptors have run out.
    #[error(
        "cannot get a descriptor for a socket at {address}: {source}; the limit of open files of this process is {soft}, and can be raised to \
        {hard} (ulimit -n, systemd's LimitNOFILE=)"
    )]
    Descriptors {
        /// The requested address.
        address: SocketAddr,
        /// The limit that applies.
        soft: u64,
        /// The limit to which the process may raise it.
        hard: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The system refuses a socket or an option.
    #[error("cannot open a UDP socket at {address}: {source}")]
    Open {
        /// The requested address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The address is in use, or the machine does not have it.
    #[error("cannot bind to {address}: {source}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
}

impl SocketError {
    /// Whether another socket has the address.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self, SocketError::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    fn opening(address: SocketAddr, source: io::Error) -> SocketError {
        match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ENFILE) => {
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

/// The error if a socket does not reach a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the socket at {local} cannot send to {destination}; expected one of {} addresses",
    reach_of(.local).families()
)]
pub struct Unreachable {
    /// The local address.
    pub local: SocketAddr,
    /// The refused destination.
    pub destination: SocketAddr,
}

/// Checks whether a socket that is bound to `local` reaches `destination`. Call this when a destination is set.
///
/// # Errors
/// Fails if the socket cannot send there. A socket on an IPv4 address cannot send to IPv6 addresses. A socket on an IPv6 address cannot
/// send to IPv4 addresses, unless the address is `::`.
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
    /// Both families. The socket is bound to the unspecified IPv6 address, and reaches IPv4 by mapped addresses (RFC 4291, section
    /// 2.5.5.2).
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

    /// Returns the address in the form for this socket. `None`: the socket does not reach it.
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

/// Returns the addresses that a socket bound to `local` reaches.
pub(crate) fn reach_of(local: &SocketAddr) -> Reach {
    match local.ip() {
        IpAddr::V4(_) => Reach::V4,
        IpAddr::V6(ip) if ip.is_unspecified() || ip.to_ipv4_mapped().is_some() => Reach::Both,
        IpAddr::V6(_) => Reach::V6,
    }
}

/// Converts an IPv4-mapped address, as an IPv6 socket reports it, to the IPv4 address.
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

/// A bound, non-blocking UDP socket, which reports the kernel's receive times and ICMP errors.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: Socket,
    local: SocketAddr,
    /// Type of service of sent datagrams.
    tos: u8,
    /// The kernel's count of drops, as last read.
    drops: u32,
}

impl Udp {
    /// Binds `address`, where port 0 means any free one. `buffer_bytes` is the kernel's receive buffer, which the system limits.
    pub(crate) fn bind(
        address: SocketAddr,
        buffer_bytes: Option<usize>,
    ) -> Result<Udp, SocketError> {
        Udp::bound(address, buffer_bytes, false)
    }

    /// Acts as [`bind`](Self::bind), but works even if the machine does not have the address yet.
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
            // This option also works for IPv6 sockets.
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
        let udp = Udp {
            socket,
            local,
            tos: TOS_USUAL,
            drops: 0,
        };
        udp.set_options(buffer_bytes).map_err(open)?;
        Ok(udp)
    }

    fn set_options(&self, buffer_bytes: Option<usize>) -> io::Result<()> {
        setsockopt(&self.socket, sockopt::ReceiveTimestampns, &true)?;
        // Without these options, an unconnected socket gets no ICMP errors.
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

    /// Joins the multicast group to which the socket is bound, if it is bound to one.
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

    /// Sets the type of service, or the IPv6 traffic class, in the IP header of sent packets.
    pub(crate) fn set_tos(&mut self, tos: u8) -> io::Result<()> {
        if tos != self.tos {
            set_tos(&self.socket, reach_of(&self.local), tos)?;
            self.tos = tos;
        }
        Ok(())
    }

    /// Takes the socket apart: the socket without its address, to save memory, the TOS, and the count of drops.
    pub(crate) fn into_parts(self) -> (Socket, u8, u32) {
        (self.socket, self.tos, self.drops)
    }

    /// Reverses [`into_parts`](Self::into_parts).
    pub(crate) fn from_parts(socket: Socket, local: SocketAddr, tos: u8, drops: u32) -> Udp {
        Udp {
            socket,
            local,
            tos,
            drops,
        }
    }

    /// Seals the socket: it is emptied, stays open and keeps its port, but looks closed to others. For this, it is connected to itself. The
    /// kernel passes only the datagrams of the peer to a connected socket.
    ///
    /// # Errors
    /// Fails if the socket is not bound to a single address, or the machine does not have the address.
    pub(crate) fn seal(&self) -> io::Result<()> {
        let ip = self.local.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.socket.connect(&self.local.into())?;
        self.empty()
    }

    /// Reverses [`seal`](Self::seal), so that the socket is like one that was just opened. It keeps its port, because it was bound by
    /// number.
    ///
    /// # Errors
    /// Fails if the system refuses the change.
    pub(crate) fn unseal(&mut self) -> io::Result<()> {
        // Datagrams for the unsealed socket may have arrived after it was emptied.
        self.empty()?;
        self.set_tos(TOS_USUAL)?;
        disconnect(self.fd())
    }

    /// Drops all queued datagrams.
    fn empty(&self) -> io::Result<()> {
        for flags in [MsgFlags::empty(), MsgFlags::MSG_ERRQUEUE] {
            for _ in 0..WAITING_MAX {
                if received_memory(self.fd()) == 0 {
                    return Ok(());
                }
                // Any other error belongs to an earlier packet, and this call has cleared it.
                if recv(self.socket.as_raw_fd(), &mut [], flags) == Err(Errno::EAGAIN) {
                    break;
                }
            }
        }
        match received_memory(self.fd()) {
            0 => Ok(()),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets the type of service in the IP header of sent packets. An IPv6 socket has one word for each family that it reaches.
pub(crate) fn set_tos(socket: &Socket, reach: Reach, tos: u8) -> io::Result<()> {
    if reach != Reach::V6 {
        socket.set_tos_v4(tos.into())?;
    }
    match reach {
        Reach::V4 => Ok(()),
        Reach::V6 | Reach::Both => socket.set_tclass_v6(tos.into()),
    }
}

/// The default type of service.
pub const TOS_USUAL: u8 = 0;
/// Maximum number of datagrams to drop. A receive buffer has room for fewer.
const WAITING_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    /// getsockopt(2) returns the value that the kernel uses.
    #[test]
    fn the_type_of_service_is_set_for_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(mut udp) = super::Udp::bind(address.parse().unwrap(), None) else {
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

    /// For a socket that was sealed and unsealed, the kernel reports the same as for a new one.
    #[test]
    fn sealed_socket_looks_closed_and_unsealed_socket_looks_new() {
        for ip in ["127.0.0.1", "::1"] {
            let at: IpAddr = ip.parse().unwrap();
            let bind = || {
                let socket = std::net::UdpSocket::bind((at, 0))?;
                // Only a test that fails waits for this long.
                socket.set_read_timeout(Some(std::time::Duration::from_secs(30)))?;
                io::Result::Ok(socket)
            };
            let (Ok(party), Ok(free)) = (bind(), bind()) else {
                assert_eq!(ip, "::1", "a machine without IPv6");
                continue;
            };
            let local = free.local_addr().unwrap();
            drop(free);
            let mut udp = Udp::bind(local, None).unwrap();
            for _ in 0..3 {
                udp.set_tos(184).unwrap();
                party.send_to(b"late", local).unwrap();
                // An ICMP error is queued too.
                let nobody = bind().unwrap().local_addr().unwrap();
                threadbare_runtime::send_to(udp.fd(), b"x", &RawAddr::from(nobody)).unwrap();
                assert_ne!(received_memory(udp.fd()), 0);
                udp.seal().unwrap();
                assert_eq!(received_memory(udp.fd()), 0);
                let stranger = bind().unwrap();
                stranger.connect(local).unwrap();
                let refused = stranger.send(b"x").and_then(|_| stranger.recv(&mut [0; 4]));
                assert_eq!(
                    refused.unwrap_err().kind(),
                    io::ErrorKind::ConnectionRefused,
                    "{ip}"
                );
                udp.unseal().unwrap();
                let bound = udp.socket.local_addr().unwrap();
                assert_eq!(bound.as_socket(), Some(local));
                assert!(udp.socket.peer_addr().is_err());
                assert!(udp.socket.take_error().unwrap().is_none());
                let tos = match at {
                    IpAddr::V4(_) => udp.socket.tos_v4().unwrap(),
                    IpAddr::V6(_) => udp.socket.tclass_v6().unwrap(),
                };
                assert_eq!(tos, 0);
                party.send_to(b"new", local).unwrap();
                let mut bytes = [0; 8];
                let received = recv(udp.socket.as_raw_fd(), &mut bytes, MsgFlags::empty());
                assert_eq!(received, Ok(3));
                assert_eq!(bytes[..3], *b"new");
            }
        }
        let wildcard = Udp::bind(address("0.0.0.0:0"), None).unwrap();
        let error = wildcard.seal().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn socket_reaches_the_families_of_linux() {
        for (local, reaches_v4, reaches_v6) in [
            ("127.0.0.1:0", true, false),
            ("[::1]:0", false, true),
            ("[::]:0", true, true),
        ] {
            let Ok(udp) = Udp::bind(address(local), None) else {
                continue; // the machine has no IPv6
            };
            let reach = reach_of(&udp.local());
            // The kernel itself shows what is expected.
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
    fn limit_of_open_files_is_reported_with_its_values() {
        let source = io::Error::from_raw_os_error(Errno::EMFILE as i32);
        let error = SocketError::opening(address("127.0.0.1:1"), source);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let text = error.to_string();
        assert!(
            text.contains(&format!("is {soft}, and can be raised to {hard}")),
            "{text}"
        );
    }
}
