//! Copies of parties' packets for subscribers.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::media::{Bed, MS, call, party, party_keys, protected, speech};
use threadbare_relay::{AudioSession, PortId};
use threadbare_rtp::call::Side;
use threadbare_rtp::srtp::Suite;

const A: PortId = PortId::rtp(0);
const B: PortId = PortId::rtp(1);

fn bed() -> Bed<AudioSession> {
    Bed::new(
        0,
        AudioSession::new(call(0, false), Duration::from_millis(20)),
    )
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Lets a side send a packet. Returns the datagrams that leave that side's port for these addresses.
fn copies(
    bed: &mut Bed<AudioSession>,
    side: Side,
    packet: &[u8],
    to: &[SocketAddr],
) -> Vec<Vec<u8>> {
    bed.now_ns += 20 * MS;
    let port = PortId::rtp(side as u8);
    bed.hand_in(port, party(side), packet);
    let staged = bed.take(port).into_iter();
    staged
        .filter(|one| to.contains(&one.to))
        .map(|one| one.bytes)
        .collect()
}

#[test]
fn each_packet_of_a_side_is_copied_to_each_subscriber() {
    let mut bed = bed();
    let two = [address(7000), address(7002)];
    bed.call.set_copies(Side::A, &two);
    // The first packet of a source waits for the second one (RFC 3550, appendix A.1).
    assert!(copies(&mut bed, Side::A, &speech(0, 7, 0), &two).is_empty());
    let mut heard = 0;
    for number in 1..10 {
        let packet = speech(0, 7, number);
        let copied = copies(&mut bed, Side::A, &packet, &two);
        assert_eq!(copied, [packet.clone(), packet], "unchanged, at once");
        heard += bed.take(B).len();
        assert!(copies(&mut bed, Side::B, &speech(8, 9, number), &two).is_empty());
    }
    // The copies do not affect the other party.
    assert!(heard >= 7, "{heard} packets");
    bed.call.set_copies(Side::A, &two[..1]);
    assert_eq!(copies(&mut bed, Side::A, &speech(0, 7, 10), &two).len(), 1);
    bed.call.set_copies(Side::A, &[]);
    assert!(copies(&mut bed, Side::A, &speech(0, 7, 11), &two).is_empty());
}

/// A sender that the call refuses cannot reach the subscribers. A new source needs two consecutive packets (RFC 3550, appendix A.1).
#[test]
fn strangers_are_not_copied() {
    let mut bed = bed();
    let to = [address(7000)];
    bed.call.set_copies(Side::A, &to);
    for number in 0..3 {
        copies(&mut bed, Side::A, &speech(0, 7, number), &to);
    }
    let stranger: SocketAddr = "203.0.113.66:1".parse().expect("an address");
    for number in 100..110 {
        bed.now_ns += MS;
        bed.hand_in(A, stranger, &speech(0, 666, number));
        assert!(bed.take(A).iter().all(|one| one.to != to[0]));
    }
    assert_eq!(copies(&mut bed, Side::A, &speech(0, 7, 3), &to).len(), 1);
}

#[test]
fn copies_of_srtp_are_in_the_clear() {
    let mut bed = bed();
    let to = [address(7000)];
    let (keys, mut sends, _) = party_keys(Suite::AesCm128HmacSha1_80, 1);
    bed.call.set_keys(0, Side::A, Some(keys));
    bed.call.set_copies(Side::A, &to);
    for number in 0..5 {
        let packet = speech(0, 7, number);
        let sent = protected(&mut sends, &packet);
        let copied = copies(&mut bed, Side::A, &sent, &to);
        // The first packet waits for the second one.
        if number > 0 {
            assert_eq!(copied.last(), Some(&packet));
        }
    }
    // A forged packet is not copied.
    let mut forged = protected(&mut sends, &speech(0, 7, 5));
    *forged.last_mut().expect("a tag") ^= 1;
    assert!(copies(&mut bed, Side::A, &forged, &to).is_empty());
}

/// A turn has room for only some datagrams. The other copies wait for the next turn, in order.
#[test]
fn copies_wait_for_room() {
    let mut bed = bed();
    bed.room = 1;
    let three = [address(7000), address(7002), address(7004)];
    bed.call.set_copies(Side::A, &three);
    for number in 0..4 {
        bed.now_ns += 20 * MS;
        bed.hand_in(A, party(Side::A), &speech(0, 7, number));
    }
    let staged = bed.take(A);
    let numbers: Vec<u16> = staged
        .iter()
        .filter(|one| one.to == three[0])
        .map(|one| one.seq())
        .collect();
    assert!(numbers.is_sorted() && numbers.len() >= 3, "{numbers:?}");
}
