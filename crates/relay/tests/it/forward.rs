//! Media that are only forwarded.

use std::net::SocketAddr;

use crate::common::media::{Bed, MS, call, party, party_keys, protected, speech};
use crate::common::{engine, next, next_port, peer, range, receiver_report, two_legs};
use threadbare_relay::{
    AudioSession, Engine, Forward, ForwardSide, ForwardSpec, MediaSession, PortId, PortUse,
};
use threadbare_rtp::call::Side;
use threadbare_rtp::leg::{AdmissionConfig, Learn, Outage};
use threadbare_rtp::srtp::{RTP_TRAILER_BYTES_MAX, Suite};

fn side(side: Side) -> ForwardSide {
    ForwardSide {
        admission: AdmissionConfig {
            peer: Some(party(side)),
            ..AdmissionConfig::default()
        },
        ..ForwardSide::default()
    }
}

fn bed() -> Bed<Forward> {
    Bed::new(0, Forward::new(0, Side::BOTH.map(side)))
}

fn change(bed: &mut Bed<Forward>, change: impl FnOnce(&mut ForwardSpec)) {
    let mut spec = bed.call.spec().clone();
    change(&mut spec);
    bed.call.apply(bed.now_ns, spec);
}

const A: PortId = PortId::rtp(0);
const B: PortId = PortId::rtp(1);
const A_RTCP: PortId = PortId::rtcp(0);
const B_RTCP: PortId = PortId::rtcp(1);

#[test]
fn datagrams_pass_as_they_are_between_ports_of_a_kind() {
    let mut bed = bed();
    // These are T.38 (UDPTL), which is neither RTP nor RTCP, and a datagram that looks like RTCP by chance.
    let datagrams: [&[u8]; 4] = [&[0, 1, 6, 0x80], b"", &[0x80, 200, 0, 0], &[7; 2000]];
    for (from, source, to, at) in [
        (A, party(Side::A), B, party(Side::B)),
        (B, party(Side::B), A, party(Side::A)),
        (
            A_RTCP,
            next_port(party(Side::A)),
            B_RTCP,
            next_port(party(Side::B)),
        ),
        (
            B_RTCP,
            next_port(party(Side::B)),
            A_RTCP,
            next_port(party(Side::A)),
        ),
    ] {
        for datagram in datagrams {
            bed.now_ns += MS;
            bed.hand_in(from, source, datagram);
            let staged = bed.take(to);
            // An empty datagram is not forwarded.
            let expected = usize::from(!datagram.is_empty());
            assert_eq!(staged.len(), expected);
            assert!(
                staged
                    .iter()
                    .all(|staged| staged.bytes == datagram && staged.to == at)
            );
            assert_eq!(bed.tray.staged, [], "each causes one at most");
        }
    }
    for (stats, last_ms) in bed.call.stats().iter().zip([4, 8]) {
        assert_eq!(
            (stats.received[0].packets, stats.received[0].bytes),
            (4, 2008)
        );
        assert_eq!(stats.received[0].last_ns, Some(last_ms * MS));
        assert_eq!((stats.sent[1].packets, stats.sent[1].bytes), (4, 2008));
        assert_eq!((stats.no_destination, stats.no_room), (0, 0));
    }
}

/// The party is behind a NAT, so it sends from another address than the signalled one.
#[test]
fn an_address_is_learned_and_nothing_is_sent_to_a_stranger() {
    let mut bed = bed();
    let behind: SocketAddr = "198.51.100.7:4321".parse().unwrap();
    let stranger: SocketAddr = "203.0.113.66:1".parse().unwrap();
    bed.hand_in(B, party(Side::B), b"to A");
    assert_eq!(bed.take(A)[0].to, party(Side::A), "as signalled");
    for _ in 0..10 {
        bed.hand_in(A, behind, b"from A");
        bed.now_ns += 20 * MS;
    }
    // By the table in `latch.rs`, the first four packets are not yet accepted.
    assert_eq!(bed.take(B).len(), 6);
    for _ in 0..100 {
        bed.hand_in(A, stranger, b"from a stranger");
        bed.hand_in(A_RTCP, stranger, b"from a stranger");
        bed.hand_in(A, behind, b"from A");
        bed.now_ns += 20 * MS;
    }
    assert!(bed.take(B).iter().all(|staged| staged.bytes == b"from A"));
    bed.hand_in(B, party(Side::B), b"to A");
    bed.hand_in(B_RTCP, next_port(party(Side::B)), b"report");
    assert_eq!(bed.take(A)[0].to, behind);
    assert_eq!(bed.take(A_RTCP)[0].to, next_port(behind));
    let [a, _] = bed.call.stats();
    assert_eq!(a.refused.strangers, 4 + 200);
    // New signalling gives the party another address.
    let settings = ForwardSide {
        admission: AdmissionConfig {
            peer: Some(stranger),
            rtcp: Some(behind),
            learn: Learn::Never,
            ..AdmissionConfig::default()
        },
        ..ForwardSide::default()
    };
    change(&mut bed, |spec| spec.sides[0] = settings);
    bed.hand_in(A, behind, b"from A");
    assert_eq!(bed.take(B), []);
    bed.hand_in(B, party(Side::B), b"to A");
    bed.hand_in(B_RTCP, next_port(party(Side::B)), b"report");
    assert_eq!(
        (bed.take(A)[0].to, bed.take(A_RTCP)[0].to),
        (stranger, behind)
    );
}

#[test]
fn datagrams_of_an_echo_return_only_to_their_sender() {
    let mut bed = bed();
    change(&mut bed, |spec| spec.echoes = true);
    let stranger: SocketAddr = "203.0.113.66:1".parse().unwrap();
    for (port, from) in [
        (A, party(Side::A)),
        (B, party(Side::B)),
        (A_RTCP, next_port(party(Side::A))),
        (B_RTCP, next_port(party(Side::B))),
    ] {
        bed.hand_in(port, from, b"to itself");
        let staged = bed.take(port);
        assert_eq!(staged.len(), 1);
        assert_eq!(
            (staged[0].to, &staged[0].bytes[..]),
            (from, &b"to itself"[..])
        );
        bed.hand_in(port, stranger, b"from a stranger");
        assert_eq!(bed.tray.staged, []);
    }
    change(&mut bed, |spec| spec.sides[0].is_held = true);
    bed.hand_in(A, party(Side::A), b"held back");
    assert_eq!(bed.tray.staged, []);
    change(&mut bed, |spec| spec.echoes = false);
    bed.hand_in(A, party(Side::A), b"to B");
    assert_eq!(bed.take(B)[0].to, party(Side::B));
}

#[test]
fn nothing_is_sent_to_unknown_or_held_parties() {
    let unknown = ForwardSide::default();
    let mut bed = Bed::new(0, Forward::new(0, [side(Side::A), unknown]));
    bed.hand_in(A, party(Side::A), b"lost");
    assert_eq!(bed.tray.staged, []);
    assert_eq!(bed.call.stats()[1].no_destination, 1);
    for _ in 0..2 {
        bed.hand_in(B, party(Side::B), b"from B");
    }
    assert_eq!(bed.take(A).len(), 1);
    change(&mut bed, |spec| spec.sides[1].is_held = true);
    bed.hand_in(A, party(Side::A), b"held back");
    bed.hand_in(A_RTCP, next_port(party(Side::A)), b"report");
    assert_eq!(bed.take(B), []);
    assert_eq!(bed.take(B_RTCP).len(), 1, "RTCP goes on");
    change(&mut bed, |spec| spec.sides[1].is_held = false);
    bed.hand_in(A, party(Side::A), b"again");
    assert_eq!(bed.take(B).len(), 1);
}

#[test]
fn one_side_may_use_one_port_and_the_other_side_two() {
    let mux = ForwardSide {
        mux: true,
        ..side(Side::A)
    };
    let mut bed = Bed::new(0, Forward::new(0, [mux, side(Side::B)]));
    bed.hand_in(A, party(Side::A), &speech(99, 5, 1));
    bed.hand_in(A, party(Side::A), &receiver_report(5));
    assert_eq!((bed.take(B).len(), bed.take(B_RTCP).len()), (1, 1));
    bed.hand_in(B_RTCP, next_port(party(Side::B)), &receiver_report(6));
    let staged = bed.take(A);
    assert_eq!((staged.len(), staged[0].to), (1, party(Side::A)));
}

#[test]
fn srtp_on_either_side_drops_replays() {
    for suite in Suite::ALL {
        for secured in [[true, false], [false, true], [true, true]] {
            let mut bed = bed();
            let (keys_a, mut sends_a, _) = party_keys(suite, 1);
            let (keys_b, _, mut receives_b) = party_keys(suite, 2);
            if secured[0] {
                change(&mut bed, |spec| spec.sides[0].keys = Some(keys_a));
            }
            if secured[1] {
                change(&mut bed, |spec| spec.sides[1].keys = Some(keys_b));
            }
            for number in [1, 2, 3, 3, 5, 4] {
                let packet = speech(99, 5, number);
                let mut sealed = packet.clone();
                if secured[0] {
                    if number == 3 && bed.tray.staged.len() == 3 {
                        continue; // the party's own transform does not encrypt a packet twice
                    }
                    sealed = protected(&mut sends_a, &packet);
                }
                bed.hand_in(A, party(Side::A), &sealed);
                if secured[0] {
                    bed.hand_in(A, party(Side::A), &sealed);
                }
            }
            let staged = bed.take(B);
            assert_eq!(staged.len(), 5, "{suite} {secured:?}");
            for (staged, number) in staged.iter().zip([1, 2, 3, 5, 4]) {
                let bytes = if secured[1] {
                    staged.opened(&mut receives_b)
                } else {
                    staged.bytes.clone()
                };
                assert_eq!(bytes, speech(99, 5, number));
            }
            let report = if secured[0] {
                protected(&mut sends_a, &receiver_report(5))
            } else {
                receiver_report(5)
            };
            bed.hand_in(A_RTCP, next_port(party(Side::A)), &report);
            let staged = bed.take(B_RTCP);
            let bytes = if secured[1] {
                staged[0].opened(&mut receives_b)
            } else {
                staged[0].bytes.clone()
            };
            assert_eq!(bytes, receiver_report(5));
            let [a, b] = bed.call.stats();
            if secured[0] {
                assert_eq!(a.protection.expect("keys").replayed, 5);
            }
            if secured[1] {
                let repeated = u64::from(!secured[0]);
                assert_eq!(b.protection.expect("keys").repeated, repeated);
            }
        }
    }
}

#[test]
fn state_continues_after_a_restart() {
    let suite = Suite::AeadAes128Gcm;
    let mut before = bed();
    let (keys, _, mut receives) = party_keys(suite, 1);
    change(&mut before, |spec| spec.sides[1].keys = Some(keys));
    let behind: SocketAddr = "198.51.100.7:4321".parse().unwrap();
    let mut heard = Vec::new();
    for number in 0..20 {
        before.hand_in(A, behind, &speech(99, 5, 65_525_u16.wrapping_add(number)));
        before.now_ns += 20 * MS;
        heard.extend(before.take(B));
    }
    let state = before.call.snapshot(before.now_ns);
    let mut after = bed();
    let outage = Outage::default();
    after.call.restore(0, &state, outage).expect("it goes on");
    // This is so from the first packet on, because the address was learned and the counter has wrapped.
    for number in 20..30 {
        after.hand_in(A, behind, &speech(99, 5, 65_525_u16.wrapping_add(number)));
        heard.extend(after.take(B));
    }
    assert_eq!(heard.len(), 26);
    for staged in &heard {
        assert_eq!(staged.opened(&mut receives).len(), 172);
    }
    after.hand_in(B_RTCP, next_port(party(Side::B)), &receiver_report(5));
    assert_eq!(after.take(A_RTCP), [], "B is SRTP");
    after.hand_in(B, party(Side::B), &speech(99, 6, 1));
    assert_eq!(
        after.call.stats()[1].protection.expect("keys").unauthentic,
        1
    );
}

#[test]
fn one_engine_carries_audio_and_forwarded_media() {
    let engine: Engine<MediaSession> = engine(10, -1);
    let ports = range(PortUse::Pair);
    let audio = AudioSession::new(call(0, false), std::time::Duration::from_millis(10));
    let audio = engine
        .create("audio", two_legs(&ports), audio.into())
        .unwrap();
    let legs = two_legs(&ports);
    let [at_a, at_b] = [legs[0].rtp_address(), legs[1].rtp_address()];
    let (a, b) = (peer(), peer());
    let sides = [&a, &b].map(|peer| ForwardSide {
        admission: AdmissionConfig {
            peer: peer.local_addr().ok(),
            learn: Learn::Never,
            ..AdmissionConfig::default()
        },
        ..ForwardSide::default()
    });
    let fax = engine
        .create("fax", legs, Forward::new(0, sides).into())
        .unwrap();
    a.send_to(b"page", at_a).unwrap();
    assert_eq!(next(&b), (b"page".to_vec(), at_b));
    b.send_to(b"confirmed", at_b).unwrap();
    assert_eq!(next(&a), (b"confirmed".to_vec(), at_a));
    let received = fax.with(|fax, _| fax.forward_mut().map(|fax| fax.stats()[0].received[0]));
    assert_eq!(
        received.wait().unwrap().map(|traffic| traffic.packets),
        Some(1)
    );
    let is_audio = audio.with(|audio, _| audio.audio_mut().is_some());
    assert!(is_audio.wait().unwrap());
}

/// The payload types 64 to 95 belong to RTCP only if RTP and RTCP share a port (RFC 5761, section 4).
#[test]
fn rtp_with_numbers_of_rtcp_passes_between_srtp_and_rtp_without_mux() {
    let mut bed = bed();
    let (keys, mut sends, mut receives) = party_keys(Suite::ALL[0], 1);
    change(&mut bed, |spec| spec.sides[0].keys = Some(keys));
    let mut packet = speech(0, 5, 1);
    packet[1] = 0x80 | 72;
    let mut srtp = [&packet[..], &[0; RTP_TRAILER_BYTES_MAX]].concat();
    let bytes = sends.protect_rtp(&mut srtp, packet.len());
    srtp.truncate(bytes.expect("it is protected"));
    bed.hand_in(A, party(Side::A), &srtp);
    assert_eq!(bed.take(B)[0].bytes, packet);
    bed.hand_in(B, party(Side::B), &packet);
    let mut staged = bed.take(A).remove(0).bytes;
    let bytes = receives.unprotect_rtp(&mut staged).expect("it is SRTP");
    assert_eq!(staged[..bytes], packet);
    let received = bed
        .call
        .stats()
        .map(|side| side.received.map(|one| one.packets));
    assert_eq!(received, [[1, 0], [1, 0]]);
    assert_eq!(bed.tray.staged, []);
}
