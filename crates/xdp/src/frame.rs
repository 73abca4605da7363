//! Reads and writes frames with headers of Ethernet, IP and UDP. All functions are pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Path on which a peer's frames arrive: device, queue and Ethernet addresses. Frames to that peer take the same path back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    pub(crate) device: u16,
    pub(crate) queue: u16,
    pub(crate) ours: [u8; 6],
    pub(crate) theirs: [u8; 6],
}

impl Way {
    /// An unknown path.
    pub const NONE: Way = Way {
        device: u16::MAX,
        queue: 0,
        ours: [0; 6],
        theirs: [0; 6],
    };
}

/// A frame that carries a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) way: Way,
    pub(crate) payload: &'a [u8],
}

/// Returns the datagram in a frame. Checks the frame as the kernel does, and returns `None` if the kernel would drop it.
pub(crate) fn parse(frame: &[u8]) -> Option<Parsed<'_>> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
    let way = Way {
        device: 0,
        queue: 0,
        ours: ethernet[..6].try_into().ok()?,
        theirs: ethernet[6..12].try_into().ok()?,
    };
    let (source, pseudo, datagram) = match ethernet[12..] {
        [0x08, 0x00] => parse_v4(packet)?,
        [0x86, 0xdd] => parse_v6(packet)?,
        _ => return None,
    };
    let (udp, rest) = datagram.split_at_checked(UDP_BYTES)?;
    let port = u16::from_be_bytes([udp[0], udp[1]]);
    let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let payload = rest.get(..length.checked_sub(UDP_BYTES)?)?;
    if port == 0 || !is_source(source) {
        return None;
    }
    let checksum = [udp[6], udp[7]];
    let pseudo = pseudo + word((length as u16).to_be_bytes());
    if !is_good(
        checksum,
        pseudo,
        &datagram[..length],
        matches!(source, IpAddr::V4(_)),
    ) {
        return None;
    }
    Some(Parsed {
        from: SocketAddr::new(source, port),
        way,
        payload,
    })
}

/// Parses an IPv4 packet (RFC 791, section 3.1). Returns the source, the sum of the pseudo header without the length, and the
/// data after the header.
fn parse_v4(packet: &[u8]) -> Option<(IpAddr, u64, &[u8])> {
    let header = packet.get(..V4_BYTES)?;
    // The XDP program passes packets with options, and fragments, to the kernel.
    let is_plain = header[0] == 0x45 && header[6] & 0x3f == 0 && header[7] == 0;
    if !is_plain || header[9] != UDP || fold(sum(0, header)) != 0xffff {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let source: [u8; 4] = header[12..16].try_into().ok()?;
    let pseudo = sum(0, &header[12..20]) + word([0, UDP]);
    Some((
        Ipv4Addr::from(source).into(),
        pseudo,
        packet.get(V4_BYTES..total)?,
    ))
}

/// Acts as [`parse_v4`], for IPv6 (RFC 8200, sections 3 and 8.1).
fn parse_v6(packet: &[u8]) -> Option<(IpAddr, u64, &[u8])> {
    let header = packet.get(..V6_BYTES)?;
    if header[0] >> 4 != 6 || header[6] != UDP {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let source: [u8; 16] = header[8..24].try_into().ok()?;
    let pseudo = sum(0, &header[8..40]) + word([0, UDP]);
    Some((
        Ipv6Addr::from(source).into(),
        pseudo,
        packet.get(V6_BYTES..V6_BYTES + length)?,
    ))
}

/// Whether a host may send from this address over a link (RFC 1122, section 3.2.1.3).
fn is_source(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || is_broadcast)
}

/// Whether a datagram's checksum is correct. In IPv4, a checksum of 0 means that there is none (RFC 768); IPv6 does not allow
/// this (RFC 8200, section 8.1). If the sender is on the same machine, it leaves the checksum to the device, and the field
/// contains only the sum of the pseudo header.
fn is_good(checksum: [u8; 2], pseudo: u64, datagram: &[u8], may_be_none: bool) -> bool {
    match checksum {
        [0, 0] => may_be_none,
        _ => fold(sum(pseudo, datagram)) == 0xffff || fold(pseudo) == u16::from_ne_bytes(checksum),
    }
}

/// Writes a frame that carries `payload` from `from` to `to`, back on `way`. Returns the length of the frame, or `None` if the
/// addresses are of different families or `room` is too small.
pub(crate) fn write(
    room: &mut [u8],
    way: &Way,
    from: SocketAddr,
    to: SocketAddr,
    tos: u8,
    payload: &[u8],
) -> Option<usize> {
    let length = UDP_BYTES + payload.len();
    let ip_bytes = if from.is_ipv4() { V4_BYTES } else { V6_BYTES };
    let total = ETHERNET_BYTES + ip_bytes + length;
    let frame = room.get_mut(..total)?;
    let length = u16::try_from(length).ok()?;
    let (ethernet, packet) = frame.split_at_mut(ETHERNET_BYTES);
    let (ip, udp) = packet.split_at_mut(ip_bytes);
    ethernet[..6].copy_from_slice(&way.theirs);
    ethernet[6..12].copy_from_slice(&way.ours);
    let pseudo = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ethernet[12..].copy_from_slice(&[0x08, 0x00]);
            write_v4(ip, from, to, tos, length)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ethernet[12..].copy_from_slice(&[0x86, 0xdd]);
            write_v6(ip, from, to, tos, length)
        }
        _ => return None,
    };
    udp[..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&length.to_be_bytes());
    udp[6..8].fill(0);
    udp[UDP_BYTES..].copy_from_slice(payload);
    let checksum = !fold(sum(pseudo, udp));
    // RFC 768: a checksum of 0 is sent as all ones.
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    udp[6..8].copy_from_slice(&checksum.to_ne_bytes());
    Some(total)
}

/// Writes an IPv4 header. Returns the sum of the pseudo header.
fn write_v4(ip: &mut [u8], from: Ipv4Addr, to: Ipv4Addr, tos: u8, length: u16) -> u64 {
    ip[0] = 0x45;
    ip[1] = tos;
    ip[2..4].copy_from_slice(&(V4_BYTES as u16 + length).to_be_bytes());
    // RFC 6864: a datagram that must not be fragmented needs no identification.
    ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
    ip[8] = HOPS;
    ip[9] = UDP;
    ip[10..12].fill(0);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let checksum = !fold(sum(0, ip));
    ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
    sum(0, &ip[12..20]) + word([0, UDP]) + word(length.to_be_bytes())
}

fn write_v6(ip: &mut [u8], from: Ipv6Addr, to: Ipv6Addr, tos: u8, length: u16) -> u64 {
    ip[..4].copy_from_slice(&(0x6000_0000 | u32::from(tos) << 20).to_be_bytes());
    ip[4..6].copy_from_slice(&length.to_be_bytes());
    ip[6] = UDP;
    ip[7] = HOPS;
    ip[8..24].copy_from_slice(&from.octets());
    ip[24..40].copy_from_slice(&to.octets());
    sum(0, &ip[8..40]) + word([0, UDP]) + word(length.to_be_bytes())
}

/// Adds bytes, padded to an even number, to a sum of 16-bit words. The bytes are read in the machine's byte order, because the
/// sum does not depend on the order (RFC 1071, section 2), and four at a time.
#[inline]
fn sum(mut total: u64, bytes: &[u8]) -> u64 {
    let (fours, rest) = bytes.as_chunks::<4>();
    for four in fours {
        total += u64::from(u32::from_ne_bytes(*four));
    }
    for two in rest.chunks(2) {
        total += word([two[0], two.get(1).copied().unwrap_or(0)]);
    }
    total
}

const fn word(bytes: [u8; 2]) -> u64 {
    u16::from_ne_bytes(bytes) as u64
}

#[inline]
fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

pub(crate) const ETHERNET_BYTES: usize = 14;
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Maximum length of all headers together.
pub(crate) const HEADERS_BYTES_MAX: usize = ETHERNET_BYTES + V6_BYTES + UDP_BYTES;
/// Protocol number of UDP (RFC 768).
const UDP: u8 = 17;
/// Time to live of sent packets: the default of Linux, which RFC 1700 recommends.
const HOPS: u8 = 64;

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
