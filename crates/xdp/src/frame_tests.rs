#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const OURS: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

fn way() -> Way {
    Way {
        device: 0,
        queue: 0,
        ours: OURS,
        theirs: THEIRS,
    }
}

fn frame(from: &str, to: &str, tos: u8, payload: &[u8]) -> Vec<u8> {
    let mut room = [0; 2048];
    let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
    let len = write(&mut room, &way(), from, to, tos, payload).unwrap();
    room[..len].to_vec()
}

/// Returns the checksum of RFC 1071, section 4.1, in its simplest form: the sum of words in network order, with carries added at
/// the end.
fn naive_checksum(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// The header is a common example of IPv4 headers, with the checksum b861.
#[test]
fn a_published_ipv4_header_gets_its_known_checksum() {
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert_eq!(fold(sum(0, &header)), 0xffff);
    let from = Ipv4Addr::new(192, 168, 0, 1);
    let mut made = [0; 20];
    write_v4(
        &mut made,
        from,
        Ipv4Addr::new(192, 168, 0, 199),
        0,
        0x73 - 20,
    );
    assert_eq!(made, header);
}

/// RFC 791, section 3.1; RFC 768; Ethernet II.
#[test]
fn ipv4_frame_has_the_layout_of_the_rfcs() {
    let frame = frame("192.0.2.1:30000", "198.51.100.7:4000", 0xb8, b"abc");
    assert_eq!(&frame[..6], &THEIRS, "the frame goes back to its sender");
    assert_eq!(&frame[6..12], &OURS);
    assert_eq!(&frame[12..14], &[0x08, 0x00]);
    let ip = &frame[14..34];
    assert_eq!((ip[0], ip[1]), (0x45, 0xb8));
    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 20 + 8 + 3);
    assert_eq!(ip[6] & 0x40, 0x40, "the packet must not be fragmented");
    assert_eq!(ip[9], 17);
    assert_eq!(naive_checksum(ip), 0);
    assert_eq!(&ip[12..16], &[192, 0, 2, 1]);
    assert_eq!(&ip[16..20], &[198, 51, 100, 7]);
    let udp = &frame[34..];
    assert_eq!(u16::from_be_bytes([udp[0], udp[1]]), 30000);
    assert_eq!(u16::from_be_bytes([udp[2], udp[3]]), 4000);
    assert_eq!(u16::from_be_bytes([udp[4], udp[5]]), 11);
    assert_eq!(&udp[8..], b"abc");
    let mut pseudo = ip[12..20].to_vec();
    pseudo.extend([0, 17, 0, 11]);
    pseudo.extend(udp);
    assert_eq!(naive_checksum(&pseudo), 0);
}

/// RFC 8200, sections 3 and 8.1.
#[test]
fn ipv6_frame_has_the_layout_of_the_rfc() {
    let frame = frame("[2001:db8::1]:30000", "[2001:db8::7]:4000", 0xb8, b"abcd");
    assert_eq!(&frame[12..14], &[0x86, 0xdd]);
    let ip = &frame[14..54];
    assert_eq!(ip[..4], [0x6b, 0x80, 0, 0], "version and traffic class");
    assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 12);
    assert_eq!(ip[6], 17);
    let udp = &frame[54..];
    let mut pseudo = ip[8..40].to_vec();
    pseudo.extend([0, 0, 0, 12, 0, 0, 0, 17]);
    pseudo.extend(udp);
    assert_eq!(naive_checksum(&pseudo), 0);
}

#[test]
fn frames_that_the_kernel_would_drop_are_dropped() {
    let good = frame("192.0.2.1:30000", "198.51.100.7:4000", 0, b"abcdef");
    assert!(parse(&good).is_some());
    for (what, at, value) in [
        ("the IP header is damaged", 14 + 8, 1),
        ("the payload is damaged", 14 + 20 + 8, b'x'),
        ("the UDP length exceeds the packet", 14 + 20 + 4, 1),
        ("the EtherType is not IP", 12, 0x09),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(parse(&bad), None, "{what}");
    }
    for from in [
        "0.0.0.0:1",
        "127.0.0.1:1",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "192.0.2.1:0",
    ] {
        let bad = frame(from, "198.51.100.7:4000", 0, b"abcdef");
        assert_eq!(parse(&bad), None, "RFC 1122, section 3.2.1.3: {from}");
    }
    for len in 0..good.len() {
        assert_eq!(parse(&good[..len]), None, "cut off at {len}");
    }
}

/// RFC 768 allows datagrams without a checksum. RFC 8200, section 8.1, does not allow them with IPv6.
#[test]
fn an_ipv4_datagram_may_have_no_udp_checksum() {
    let mut v4 = frame("192.0.2.1:30000", "198.51.100.7:4000", 0, b"abc");
    v4[14 + 20 + 6..14 + 20 + 8].fill(0);
    assert_eq!(parse(&v4).unwrap().payload, b"abc");
    let mut v6 = frame("[2001:db8::1]:30000", "[2001:db8::7]:4000", 0, b"abc");
    v6[14 + 40 + 6..14 + 40 + 8].fill(0);
    assert_eq!(parse(&v6), None);
}

/// Frames of a virtual device have such a checksum if the sender is on the same machine (Linux: CHECKSUM_PARTIAL).
#[test]
fn a_checksum_that_the_device_should_compute_is_accepted() {
    let mut partial = frame("192.0.2.1:30000", "198.51.100.7:4000", 0, b"abc");
    let mut pseudo = partial[14 + 12..14 + 20].to_vec();
    pseudo.extend([0, 17, 0, 11]);
    let sum = !naive_checksum(&pseudo);
    partial[14 + 20 + 6..14 + 20 + 8].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(parse(&partial).unwrap().payload, b"abc");
}

/// Ethernet's shortest frame is 60 bytes (IEEE 802.3, clause 4).
#[test]
fn padding_is_not_payload() {
    let mut padded = frame("192.0.2.1:30000", "198.51.100.7:4000", 0, b"abc");
    padded.resize(60, 0xee);
    assert_eq!(parse(&padded).unwrap().payload, b"abc");
}

fn address(is_v6: bool, seed: u64, port: u16) -> SocketAddr {
    let ip = if is_v6 {
        Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(seed)).into()
    } else {
        Ipv4Addr::from(0x0a00_0000 | (seed as u32 & 0xff_ffff) | 1).into()
    };
    SocketAddr::new(ip, port.max(1))
}

proptest! {
    #[test]
    fn written_data_round_trips(
        is_v6: bool, from: u64, to: u64, from_port: u16, to_port: u16, tos: u8,
        payload in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        let (from, to) = (address(is_v6, from, from_port), address(is_v6, to, to_port));
        let mut room = [0xaa; 2048];
        let len = write(&mut room, &way(), from, to, tos, &payload).unwrap();
        let parsed = parse(&room[..len]).unwrap();
        prop_assert_eq!(parsed.from, from);
        prop_assert_eq!(parsed.payload, &payload[..]);
        prop_assert_eq!((parsed.way.ours, parsed.way.theirs), (THEIRS, OURS));
    }

    #[test]
    fn sum_equals_the_naive_checksum(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(!fold(sum(0, &bytes)), naive_checksum(&bytes).to_be());
    }

    #[test]
    fn no_frame_causes_a_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&frame);
    }

    #[test]
    fn a_flipped_bit_is_detected(
        payload in proptest::collection::vec(any::<u8>(), 1..200), at: usize, bit in 0..8u8,
    ) {
        let mut frame = frame("192.0.2.1:30000", "198.51.100.7:4000", 0, &payload);
        // Only bits after the Ethernet header: the checksum of the Ethernet frame, which drivers remove, protects that header.
        let at = 14 + at % (frame.len() - 14);
        frame[at] ^= 1 << bit;
        // If the flipped bit turns the checksum into 0, the datagram counts as one without a checksum.
        prop_assume!(frame[14 + 20 + 6..14 + 20 + 8] != [0, 0]);
        prop_assert_eq!(parse(&frame), None);
    }
}
