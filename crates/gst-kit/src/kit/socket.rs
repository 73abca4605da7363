//! UDP sockets: opening, multicast, options and property conversions.
#![allow(missing_docs, reason = "no stable interface")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use gio::prelude::*;
use gst::glib;

use super::PropertyGroup;

/// Why a socket could not be set up: the request, and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("cannot resolve '{host}': {source}")]
    Resolve {
        host: String,
        source: std::io::Error,
    },
    #[error("'{host}' has no address")]
    NoAddress { host: String },
    #[error(
        "cannot open a UDP socket: {source} (is the limit of open files reached? see `ulimit -n`)"
    )]
    Open { source: glib::Error },
    #[error(
        "cannot share the socket given by property: {source} (is the limit of open files reached? see `ulimit -n`)"
    )]
    Duplicate { source: std::io::Error },
    #[error("cannot bind to {address}: {source}")]
    Bind {
        address: SocketAddr,
        source: glib::Error,
    },
    #[error("cannot join {group} on interface '{interface}': {source}")]
    Join {
        group: IpAddr,
        interface: String,
        source: glib::Error,
    },
    #[error(
        "multicast-source '{value}': expected addresses, each after a '+', such as \"+10.1.2.3+10.1.2.4\""
    )]
    MulticastSource { value: String },
    #[error("cannot send multicast through interface '{name}': {source}")]
    Interface {
        name: String,
        source: std::io::Error,
    },
    #[error("multicast-iface: network interface '{name}' not found (see `ip link`)")]
    UnknownInterface { name: String },
    #[error(
        "there is no free port for RTCP directly above RTP port {port}: set rtcp-port or rtcp-mux"
    )]
    NoRtcpPort { port: u16 },
    #[error("the socket given by property is closed (see close-socket)")]
    Closed,
    #[error("'{value}' is not a Differentiated Services code point (0..63)")]
    Dscp { value: i32 },
}

impl From<SocketError> for gst::ErrorMessage {
    fn from(error: SocketError) -> Self {
        gst::error_msg!(gst::ResourceError::OpenRead, ["{error}"])
    }
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port`.
pub fn split_host_port(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => after.is_empty().then_some((host, None)),
        };
    }
    match text.rsplit_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((text, None)),
    }
}

/// Formats host and port: the inverse of [`split_host_port`].
pub fn format_host_port(host: &str, port: i32) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Opens a non-blocking UDP socket bound to `address`.
pub fn bind(address: SocketAddr, reuse: bool) -> Result<Udp, SocketError> {
    let socket = open(address.is_ipv6())?;
    // For port 0, Linux may choose the port of another socket if both sockets allow sharing. So this socket allows sharing only
    // after it is bound.
    let any_port = address.port() == 0;
    socket
        .bind(&to_gio(address), reuse && !any_port)
        .map_err(|source| SocketError::Bind { address, source })?;
    if reuse && any_port {
        for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            let _ = socket.set_option(libc::SOL_SOCKET, option, 1);
        }
    }
    Ok(Udp::new(socket))
}

/// Opens a non-blocking UDP socket to receive a multicast group on.
pub fn bind_group(
    group: SocketAddr,
    interfaces: Option<&str>,
    reuse: bool,
) -> Result<Udp, SocketError> {
    let bound = match group.ip() {
        IpAddr::V6(ip) if is_scoped(ip) => match interfaces {
            Some(name) if !name.trim().is_empty() && !name.contains(',') => {
                let scope = interface_index(name.trim())?;
                SocketAddr::V6(SocketAddrV6::new(ip, group.port(), 0, scope))
            }
            // Without an interface, or with several, the memberships decide.
            _ => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), group.port()),
        },
        _ => group,
    };
    bind(bound, reuse)
}

/// Interface-local and link-local groups need their zone (RFC 4291, section 2.7; RFC 4007).
fn is_scoped(group: Ipv6Addr) -> bool {
    matches!(group.octets(), [0xff, scope, ..] if matches!(scope & 0x0f, 1 | 2))
}

fn open(is_v6: bool) -> Result<gio::Socket, SocketError> {
    let family = if is_v6 {
        gio::SocketFamily::Ipv6
    } else {
        gio::SocketFamily::Ipv4
    };
    let socket = gio::Socket::new(family, gio::SocketType::Datagram, gio::SocketProtocol::Udp)
        .map_err(|source| SocketError::Open { source })?;
    socket.set_blocking(false);
    Ok(socket)
}

pub fn to_gio(address: SocketAddr) -> gio::InetSocketAddress {
    let ip = gio::InetAddress::from(address.ip());
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => glib::Object::builder()
            .property("address", ip)
            .property("port", u32::from(v6.port()))
            .property("scope-id", v6.scope_id())
            .build(),
        _ => gio::InetSocketAddress::new(&ip, address.port()),
    }
}

/// A GSocket of an application, which may close it at any time and from any thread.
#[derive(Debug, Clone)]
pub struct GivenSocket(gio::Socket);

// SAFETY: different threads use only the socket's state and its close, which GSocket serialises itself, and read its descriptor;
// its reference count is atomic.
unsafe impl Send for GivenSocket {}
// SAFETY: as above.
unsafe impl Sync for GivenSocket {}

impl GivenSocket {
    pub fn new(socket: gio::Socket) -> Self {
        GivenSocket(socket)
    }

    pub fn get(&self) -> &gio::Socket {
        &self.0
    }
}

/// A UDP socket for context threads, with a private descriptor. No other code can close it, so its number never becomes that of
/// another file while it is in use. It closes with the last clone.
#[derive(Debug, Clone)]
pub struct Udp {
    raw: i32,
    own: Arc<Own>,
}

#[derive(Debug)]
struct Own {
    /// Only this type has access, so the socket stays open until it is dropped.
    socket: gio::Socket,
    /// The socket for applications: the same socket with another descriptor.
    shown: OnceLock<GivenSocket>,
}

// SAFETY: different threads use only the descriptor (an immutable field), socket options and membership (one system call each) of
// the private socket. Its reference count is atomic, and nothing closes it before the last drop.
unsafe impl Send for Own {}
// SAFETY: as above.
unsafe impl Sync for Own {}

impl Udp {
    /// Wraps a newly opened socket, which has no other owner.
    pub fn new(socket: gio::Socket) -> Self {
        Udp {
            raw: socket.as_raw_fd(),
            own: Arc::new(Own {
                socket,
                shown: OnceLock::new(),
            }),
        }
    }

    /// Wraps an application's socket, with a private descriptor.
    pub fn sharing(given: &GivenSocket) -> Result<Self, SocketError> {
        // The descriptor of a closed GSocket may belong to another socket by now.
        if given.0.is_closed() {
            return Err(SocketError::Closed);
        }
        let udp = Udp::new(duplicate(&given.0)?);
        let _ = udp.own.shown.set(given.clone());
        Ok(udp)
    }

    /// Whether `other` is a clone of this socket.
    pub fn is_same(&self, other: &Udp) -> bool {
        Arc::ptr_eq(&self.own, &other.own)
    }

    /// Returns the socket, for socket options and membership.
    pub fn socket(&self) -> &gio::Socket {
        &self.own.socket
    }

    /// Returns the GSocket for applications, always the same one. Returns `None` if descriptors have run out.
    pub fn shown(&self) -> Option<gio::Socket> {
        let shown = self.own.shown.get().cloned();
        let shown = shown.or_else(|| {
            let copy = GivenSocket(duplicate(&self.own.socket).ok()?);
            Some(self.own.shown.get_or_init(|| copy).clone())
        })?;
        Some(shown.0)
    }

    /// Closes the GSocket that applications have; this socket stays open until its last clone is dropped.
    pub fn close_shown(&self) {
        if let Some(shown) = self.own.shown.get() {
            let _ = shown.0.close();
        }
    }

    /// Returns the port to which the socket is bound.
    pub fn port(&self) -> u16 {
        self.socket()
            .local_address()
            .ok()
            .and_then(|address| address.downcast::<gio::InetSocketAddress>().ok())
            .map_or(0, |address| address.port())
    }

    /// Returns the number of packets that the kernel has dropped since the socket was opened, modulo 2^32, because the socket's
    /// buffer was full or a checksum was wrong. SO_RXQ_OVFL attaches the same number to each packet. Here, it is read on demand,
    /// without a cost per packet.
    pub fn kernel_drops(&self) -> u32 {
        threadbare_runtime::kernel_drops(self.fd())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `raw` is the open descriptor of the private socket, which the result's lifetime borrows, and which is
        // not closed before it is dropped.
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }
}

/// Duplicates a socket: the same socket with another descriptor.
fn duplicate(socket: &gio::Socket) -> Result<gio::Socket, SocketError> {
    let copy = socket.as_fd().try_clone_to_owned();
    let copy = copy.map_err(|source| SocketError::Duplicate { source })?;
    gio::Socket::from_fd(copy).map_err(|source| SocketError::Open { source })
}

/// A sender's address for a GStreamer meta.
#[derive(Debug, Clone)]
pub struct GioAddress(gio::SocketAddress);

// SAFETY: a GInetSocketAddress never changes once created, and its reference count is atomic.
unsafe impl Send for GioAddress {}
// SAFETY: as above.
unsafe impl Sync for GioAddress {}

impl GioAddress {
    pub fn new(address: SocketAddr) -> Self {
        GioAddress(to_gio(address).upcast())
    }

    pub fn get(&self) -> &gio::SocketAddress {
        &self.0
    }
}

/// The properties `auto-multicast`, `loop` and `multicast-iface`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MulticastSettings {
    pub auto: bool,
    pub loops: bool,
    pub interface: Option<String>,
}

impl Default for MulticastSettings {
    fn default() -> Self {
        MulticastSettings {
            auto: true,
            loops: true,
            interface: None,
        }
    }
}

impl PropertyGroup for MulticastSettings {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecBoolean::builder("auto-multicast")
                .nick("Auto multicast")
                .blurb("Join and leave multicast groups automatically")
                .default_value(true)
                .build(),
            glib::ParamSpecBoolean::builder("loop")
                .nick("Multicast loop")
                .blurb("Loop sent multicast packets back to this host")
                .default_value(true)
                .build(),
            glib::ParamSpecString::builder("multicast-iface")
                .nick("Multicast interface")
                .blurb("Interfaces for the multicast groups, separated by commas; empty: the system's choice")
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        match name {
            "auto-multicast" => self.auto = value.get().unwrap_or(true),
            "loop" => self.loops = value.get().unwrap_or(true),
            "multicast-iface" => self.interface = value.get().unwrap_or(None),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "auto-multicast" => self.auto.to_value(),
            "loop" => self.loops.to_value(),
            "multicast-iface" => self.interface.to_value(),
            _ => return None,
        })
    }
}

/// The multicast group of a socket, with its requested options.
#[derive(Debug, Clone)]
pub struct Membership {
    group: IpAddr,
    interfaces: Vec<String>,
    sources: Vec<IpAddr>,
}

impl Membership {
    /// Creates a membership. `interfaces`: names, separated by commas. `sources`: addresses, each after a `+`.
    pub fn new(
        group: IpAddr,
        interfaces: Option<&str>,
        sources: Option<&str>,
    ) -> Result<Self, SocketError> {
        let interfaces = interfaces
            .unwrap_or_default()
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        Ok(Membership {
            group,
            interfaces,
            sources: parse_sources(sources.unwrap_or_default())?,
        })
    }

    pub fn group(&self) -> IpAddr {
        self.group
    }

    pub fn join(&self, socket: &gio::Socket) -> Result<(), SocketError> {
        // GIO would use the default interface instead of an unknown name.
        for name in &self.interfaces {
            interface_index(name)?;
        }
        self.each(|group, source, interface| {
            let joined = match source {
                Some(source) => socket.join_multicast_group_ssm(group, Some(source), interface),
                None => socket.join_multicast_group(group, false, interface),
            };
            joined.map_err(|source| SocketError::Join {
                group: self.group,
                interface: interface.unwrap_or("any").to_owned(),
                source,
            })
        })
    }

    /// Leaves the joined groups. A group that the kernel has dropped (the interface was removed) counts as left.
    pub fn leave(&self, socket: &gio::Socket) {
        let _ = self.each(|group, source, interface| {
            let left = match source {
                Some(source) => socket.leave_multicast_group_ssm(group, Some(source), interface),
                None => socket.leave_multicast_group(group, false, interface),
            };
            if let Err(error) = left {
                gst::debug!(super::CAT, "leaving {}: {error}", self.group);
            }
            Ok(())
        });
    }

    fn each(
        &self,
        mut f: impl FnMut(
            &gio::InetAddress,
            Option<&gio::InetAddress>,
            Option<&str>,
        ) -> Result<(), SocketError>,
    ) -> Result<(), SocketError> {
        let group = gio::InetAddress::from(self.group);
        let any = [None];
        let interfaces: Vec<Option<&str>> = self
            .interfaces
            .iter()
            .map(|name| Some(name.as_str()))
            .collect();
        for interface in if interfaces.is_empty() {
            &any[..]
        } else {
            &interfaces[..]
        } {
            if self.sources.is_empty() {
                f(&group, None, *interface)?;
            }
            for source in &self.sources {
                f(&group, Some(&gio::InetAddress::from(*source)), *interface)?;
            }
        }
        Ok(())
    }
}

fn parse_sources(value: &str) -> Result<Vec<IpAddr>, SocketError> {
    let error = || SocketError::MulticastSource {
        value: value.to_owned(),
    };
    let value_trimmed = value.trim();
    if value_trimmed.is_empty() {
        return Ok(Vec::new());
    }
    let list = value_trimmed.strip_prefix('+').ok_or_else(error)?;
    list.split('+')
        .map(|ip| ip.trim().parse().map_err(|_| error()))
        .collect()
}

/// Sets the DSCP of outgoing packets (RFC 2474). -1: the system's default.
pub fn set_dscp(socket: &gio::Socket, dscp: i32) -> Result<(), SocketError> {
    if dscp < 0 {
        return Ok(());
    }
    if dscp > 63 {
        return Err(SocketError::Dscp { value: dscp });
    }
    // The code point is the upper six bits of the octet.
    let octet = dscp << 2;
    let result = if socket.family() == gio::SocketFamily::Ipv6 {
        socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, octet)
    } else {
        socket.set_option(libc::IPPROTO_IP, libc::IP_TOS, octet)
    };
    result.map_err(|source| SocketError::Open { source })
}

/// Sets the kernel's receive (`SO_RCVBUF`) or send (`SO_SNDBUF`) buffer and returns the granted size.
pub fn set_buffer_size(socket: &gio::Socket, option: i32, bytes: i32) -> Option<i32> {
    if bytes <= 0 {
        return None;
    }
    let _ = socket.set_option(libc::SOL_SOCKET, option, bytes);
    // Linux reports twice the size that it uses for payload (socket(7)).
    let granted = || {
        let granted = socket.option(libc::SOL_SOCKET, option).ok()?;
        Some(granted / 2)
    };
    if granted().is_some_and(|granted| granted < bytes) {
        // A process with CAP_NET_ADMIN may exceed the limit.
        let force = match option {
            libc::SO_RCVBUF => libc::SO_RCVBUFFORCE,
            _ => libc::SO_SNDBUFFORCE,
        };
        let _ = socket.set_option(libc::SOL_SOCKET, force, bytes);
    }
    granted()
}

fn interface_index(name: &str) -> Result<u32, SocketError> {
    let unknown = |_| SocketError::UnknownInterface {
        name: name.to_owned(),
    };
    let c_name = std::ffi::CString::new(name).map_err(|_| unknown(()))?;
    // SAFETY: a NUL-terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    (index != 0).then_some(index).ok_or_else(|| unknown(()))
}

/// Sends multicast packets through the interface with this name.
pub fn set_multicast_interface(udp: &Udp, name: &str) -> Result<(), SocketError> {
    let failed = |error: std::io::Error| SocketError::Interface {
        name: name.to_owned(),
        source: error,
    };
    let index = interface_index(name)?;
    let fd = udp.fd().as_raw_fd();
    let result = if udp.socket().family() == gio::SocketFamily::Ipv6 {
        // SAFETY: passes a live u32 with its size, as ipv6(7) requires.
        unsafe {
            libc::setsockopt(
                fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_MULTICAST_IF,
                (&raw const index).cast(),
                4,
            )
        }
    } else {
        let request = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: index as i32,
        };
        let size = size_of::<libc::ip_mreqn>() as libc::socklen_t;
        // SAFETY: passes a live ip_mreqn with its size, as ip(7) requires.
        unsafe {
            libc::setsockopt(
                fd,
                libc::IPPROTO_IP,
                libc::IP_MULTICAST_IF,
                (&raw const request).cast(),
                size,
            )
        }
    };
    if result < 0 {
        Err(failed(std::io::Error::last_os_error()))
    } else {
        Ok(())
    }
}

/// Makes the kernel attach a timestamp to each packet.
pub fn set_timestamps(socket: &gio::Socket) {
    let _ = socket.set_option(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_lists_of_sources_are_parsed_and_invalid_ones_refused() {
        let two: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(parse_sources("+10.0.0.1 + fe80::1").unwrap(), two);
        assert!(parse_sources("").unwrap().is_empty());
        assert!(parse_sources("10.0.0.1").is_err());
        assert!(parse_sources("+x").is_err());
    }
}
