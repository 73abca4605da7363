//! Packet files for Wireshark. They contain the decrypted packets of the parties, with their addresses.
//!
//! The format is that of libpcap with times in nanoseconds (draft-ietf-opsawg-pcap), with bare IP packets (LINKTYPE_RAW, 101).
//! IP and UDP headers are generated, because sockets do not provide them. This module produces bytes, and uses no file or
//! clock.

use std::net::{IpAddr, SocketAddr};
use threadbare_base::NS_PER_S;

/// Returns the header of a file.
pub(super) fn head() -> Vec<u8> {
    let mut head = Vec::new();
    head.extend(MAGIC_NS.to_le_bytes());
    // The version is 2.4. Two fields follow that are always 0.
    head.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    head.extend(PACKET_BYTES_MAX.to_le_bytes());
    head.extend(LINKTYPE_RAW.to_le_bytes());
    head
}

/// Appends a datagram.
pub(super) fn add(
    unix_ns: u64,
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let packet = packet(from, to, payload);
    let len = packet.len() as u32;
    // Both values fit into 32 bits until 2106.
    let times = [unix_ns / NS_PER_S, unix_ns % NS_PER_S].map(|part| part as u32);
    for field in [times[0], times[1], len, len] {
        out.extend(field.to_le_bytes());
    }
    out.extend(packet);
}

/// Returns the end of the last complete packet. `length` is the number of bytes after the header. `peek` returns 16 of these bytes from a
/// position on, padded with zeros.
pub(super) fn whole(length: u64, peek: &dyn Fn(u64) -> [u8; 16]) -> u64 {
    let mut end = 0;
    while end + 16 <= length {
        let head = peek(end);
        let bytes = head[8..12].iter().rev();
        let next = end + 16 + bytes.fold(0, |value, byte| value << 8 | u64::from(*byte));
        if next > length {
            break;
        }
        end = next;
    }
    end
}

/// Returns an IP packet with a UDP datagram.
fn packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (UDP_BYTES + payload.len()) as u16;
    let mut udp = Vec::with_capacity(usize::from(udp_bytes));
    for field in [from.port(), to.port(), udp_bytes, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.extend(payload);
    let mut packet = Vec::new();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // This is IPv4 (RFC 791, section 3.1). UDP needs no checksum (RFC 768).
            let bytes = (IPV4_BYTES + udp.len()) as u16;
            packet.extend([0x45, 0]);
            packet.extend(bytes.to_be_bytes());
            packet.extend([0, 0, 0x40, 0, HOPS, UDP, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = checksum(&[&packet]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (from, to) => {
            // This is IPv6 (RFC 8200, section 3). An IPv4 address becomes a mapped one. UDP needs a checksum (section 8.1).
            let [from, to] = [from, to].map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            });
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(udp_bytes.to_be_bytes());
            packet.extend([UDP, HOPS]);
            packet.extend(from);
            packet.extend(to);
            let [high, low] = udp_bytes.to_be_bytes();
            let pseudo = [0, 0, high, low, 0, 0, 0, UDP];
            let sum = checksum(&[&from, &to, &pseudo, &udp]);
            // "If the computed checksum is zero, it is transmitted as all ones" (RFC 768).
            let sum = if sum == 0 { u16::MAX } else { sum };
            udp[6..8].copy_from_slice(&sum.to_be_bytes());
        }
    }
    packet.extend(udp);
    packet
}

/// Returns the Internet checksum (RFC 1071). All parts except for the last one must have an even number of bytes.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let value =
        |word: &[u8]| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = words.map(value).fold(0, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

const MAGIC_NS: u32 = 0xa1b2_3c4d;
const LINKTYPE_RAW: u32 = 101;
/// Maximum length of a packet. It is that of the largest datagram with its headers.
const PACKET_BYTES_MAX: u32 = 65_535;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Protocol number of UDP (IANA).
const UDP: u8 = 17;
const HOPS: u8 = 64;
