//! Packets that were created or changed without the key.

use proptest::prelude::*;
use threadbare_rtp_types::packet::PacketError;
use threadbare_srtp::{ProtectError, UnprotectError};

use super::*;

/// Returns a receiver in the middle of a stream, and its next packets: RTP, RTCP.
fn under_way(suite: Suite) -> (Receiver, [Vec<u8>; 2]) {
    let (mut sender, mut receiver) = pair(suite);
    for number in 0..3 {
        let mut packet = protect_rtp(&mut sender, &rtp(SSRC, SeqNum(65_534).plus(number), 1));
        receiver.unprotect_rtp(&mut packet).expect("it arrives");
        let mut packet = protect_rtcp(&mut sender, &rtcp(SSRC, 1));
        receiver.unprotect_rtcp(&mut packet).expect("it arrives");
    }
    let next = [
        protect_rtp(&mut sender, &rtp(SSRC, SeqNum(1), 4)),
        protect_rtcp(&mut sender, &rtcp(SSRC, 4)),
    ];
    (receiver, next)
}

fn unprotect(
    receiver: &mut Receiver,
    is_rtcp: bool,
    packet: &mut [u8],
) -> Result<usize, UnprotectError> {
    if is_rtcp {
        receiver.unprotect_rtcp(packet)
    } else {
        receiver.unprotect_rtp(packet)
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_and_changes_nothing() {
    for suite in Suite::ALL {
        let (mut receiver, next) = under_way(suite);
        let state: Vec<_> = receiver.sources().collect();
        for (is_rtcp, packet) in [(false, &next[0]), (true, &next[1])] {
            for bit in 0..packet.len() * 8 {
                let mut forged = packet.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                let before = forged.clone();
                unprotect(&mut receiver, is_rtcp, &mut forged).expect_err("it is forged");
                assert_eq!(forged, before, "{suite}, bit {bit}");
                assert_eq!(
                    receiver.sources().collect::<Vec<_>>(),
                    state,
                    "{suite}, bit {bit}"
                );
            }
        }
        // The genuine packets still arrive.
        for (is_rtcp, mut packet) in [(false, next[0].clone()), (true, next[1].clone())] {
            unprotect(&mut receiver, is_rtcp, &mut packet).expect("it arrives");
        }
    }
}

#[test]
fn a_packet_cut_short_anywhere_is_refused() {
    for suite in Suite::ALL {
        let (mut receiver, next) = under_way(suite);
        for (is_rtcp, packet) in [(false, &next[0]), (true, &next[1])] {
            for length in 0..packet.len() {
                unprotect(&mut receiver, is_rtcp, &mut packet[..length].to_vec())
                    .expect_err("it is cut short");
            }
        }
    }
}

#[test]
fn other_keys_suites_and_directions_are_refused() {
    for suite in Suite::ALL {
        let (_, next) = under_way(suite);
        for other in Suite::ALL {
            for seed in [1, 2] {
                if (other, seed) == (suite, 1) {
                    continue;
                }
                let mut receiver = Receiver::new(&key(other, seed));
                let tags_differ = |rtcp: bool| {
                    let bytes = |suite: Suite| {
                        if rtcp {
                            suite.rtcp_tag_bytes()
                        } else {
                            suite.rtp_tag_bytes()
                        }
                    };
                    bytes(suite) != bytes(other)
                        || suite.key_bytes() != other.key_bytes()
                        || seed != 1
                };
                for (is_rtcp, packet) in [(false, &next[0]), (true, &next[1])] {
                    if tags_differ(is_rtcp) {
                        unprotect(&mut receiver, is_rtcp, &mut packet.clone())
                            .expect_err("the key is another");
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn forged_bytes_neither_panic_nor_pass(
        suite in prop::sample::select(&Suite::ALL[..]),
        mut packet in prop::collection::vec(any::<u8>(), 0..120),
        likely in prop::bool::weighted(0.9),
        is_rtcp in any::<bool>(),
        bytes in 0..200_usize,
    ) {
        let (mut sender, mut receiver) = pair(suite);
        if let Some(first) = packet.first_mut().filter(|_| likely) {
            *first = 0x80 | *first & 0x1f;
        }
        // With the shortest tag, one forged packet in 2^32 is accepted.
        prop_assert!(unprotect(&mut receiver, is_rtcp, &mut packet.clone()).is_err());
        prop_assert_eq!(receiver.sources().count(), 0);
        let before = packet.clone();
        let result = if is_rtcp {
            sender.protect_rtcp(&mut packet, bytes)
        } else {
            sender.protect_rtp(&mut packet, bytes)
        };
        match result {
            Ok(length) => {
                let back = unprotect(&mut receiver, is_rtcp, &mut packet[..length]);
                prop_assert_eq!(back, Ok(bytes));
                prop_assert_eq!(&packet[..bytes], &before[..bytes]);
            }
            Err(_) => prop_assert_eq!(packet, before),
        }
    }
}

#[test]
fn truncated_packet_is_refused_with_its_lengths() {
    let (mut sender, mut receiver) = pair(Suite::AeadAes128Gcm);
    let truncated = |expected, actual| PacketError::Truncated { expected, actual };
    assert_eq!(
        receiver.unprotect_rtp(&mut [0x80; 27]),
        Err(truncated(28, 27).into())
    );
    assert_eq!(
        receiver.unprotect_rtcp(&mut [0x80; 27]),
        Err(truncated(28, 27).into())
    );
    assert_eq!(
        sender.protect_rtp(&mut [0x80; 40], 11),
        Err(truncated(12, 11).into())
    );
    assert_eq!(
        sender.protect_rtcp(&mut [0x80; 40], 7),
        Err(truncated(8, 7).into())
    );
    let no_room = ProtectError::NoRoom {
        needed: 41,
        actual: 40,
    };
    assert_eq!(sender.protect_rtp(&mut [0x80; 40], 25), Err(no_room));
    assert_eq!(sender.protect_rtcp(&mut [0x80; 40], 21), Err(no_room));
    assert!(sender.protect_rtp(&mut [0x80; 40], usize::MAX).is_err());
    assert_eq!(
        no_room.to_string(),
        "the buffer has 40 bytes, but the protected packet needs 41"
    );
    assert_eq!(sender.sources().count() + receiver.sources().count(), 0);
}
