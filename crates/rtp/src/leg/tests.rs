use proptest::prelude::*;

use super::test_bed::*;
use super::*;
use crate::codec::{Encoding, Format};

#[test]
fn a_sender_is_accepted_after_two_packets_and_both_are_heard() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    assert_eq!(bed.send(&mut peer), Verdict::Held);
    assert_eq!(bed.leg.rtp_to(), None, "one packet sets no destination");
    bed.wait_ms(20);
    assert_eq!(bed.send(&mut peer), Verdict::Media);
    assert_eq!(bed.heard, ["p", "p"]);
    assert_eq!(bed.leg.rtp_to(), Some(address(PEER)));
    assert!(matches!(
        bed.events[0],
        LegEvent::Source {
            ssrc: Ssrc(1),
            beginning: Beginning::First,
            ..
        }
    ));
}

#[test]
fn packets_of_strangers_are_counted_and_not_heard() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 10);
    // There are 32 sources. Each sends five packets between any two of the peer's, and one of them has our own SSRC.
    let mut strangers: Vec<Sender> = (0..32)
        .map(|n| Sender::new(ELSEWHERE, if n == 31 { OURS.0 } else { 0x100 + n }, b's'))
        .collect();
    for _ in 0..50 {
        bed.send(&mut peer);
        for stranger in &mut strangers {
            for _ in 0..5 {
                let verdict = bed.send(stranger);
                assert_eq!(verdict, Verdict::Refused(Refusal::Stranger));
            }
        }
        bed.wait_ms(20);
    }
    assert_eq!((bed.heard("p"), bed.heard("s")), (60, 0));
    assert_eq!(bed.leg.stats().refused.strangers, 50 * 32 * 5);
    assert_eq!(bed.leg.stats().session.members, 2, "the peer and we");
    assert_eq!(bed.leg.sources().count(), 1);
    assert_eq!(bed.leg.ssrc(), OURS, "no collision can be forced");
}

/// Returns a receiver report. Its 8 bytes are enough for valid RTCP (RFC 3550, section 6.4).
fn receiver_report(ssrc: u32) -> Vec<u8> {
    let mut bytes = vec![0x80, 201, 0, 1];
    bytes.extend(ssrc.to_be_bytes());
    bytes
}

fn bye(ssrc: u32) -> Vec<u8> {
    let mut bytes = receiver_report(ssrc);
    bytes.extend([0x81, 203, 0, 1]);
    bytes.extend(ssrc.to_be_bytes());
    bytes
}

#[test]
fn forged_rtcp_redirects_nothing_to_a_stranger() {
    for mux in [true, false] {
        let mut bed = Bed::new(LegConfig { mux, ..telephony() });
        let forged = receiver_report(5);
        for _ in 0..100 {
            let verdict = bed.leg.handle_rtcp(bed.now_ns, address(ELSEWHERE), &forged);
            assert_eq!(verdict, Verdict::Refused(Refusal::Stranger));
        }
        assert_eq!((bed.leg.rtp_to(), bed.leg.rtcp_to()), (None, None));
        let mut peer = Sender::new(PEER, 1, b'p');
        bed.stream(&mut peer, 2);
        assert_eq!(bed.leg.rtp_to(), Some(address(PEER)));
        let rtcp_to = if mux { PEER } else { "192.0.2.1:5001" };
        assert_eq!(bed.leg.rtcp_to(), Some(address(rtcp_to)));
        bed.leg.handle_rtcp(bed.now_ns, address(ELSEWHERE), &forged);
        assert_eq!(bed.leg.rtcp_to(), Some(address(rtcp_to)));
        if !mux {
            // The peer is behind a NAT, so the port differs.
            bed.leg
                .handle_rtcp(bed.now_ns, address("192.0.2.1:61000"), &receiver_report(1));
            assert_eq!(bed.leg.rtcp_to(), Some(address("192.0.2.1:61000")));
        }
    }
}

#[test]
fn a_bye_counts_only_if_it_comes_from_the_peer() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 10);
    bed.hand_in(address(ELSEWHERE), &bye(1));
    assert_eq!(
        bed.leg.sources().next().map(|source| source.is_sender),
        Some(true)
    );
    bed.hand_in(address(PEER), &bye(1));
    assert_eq!(
        bed.leg.sources().next().map(|source| source.is_sender),
        Some(false)
    );
    let is_bye = |event: &LegEvent| matches!(event, LegEvent::Report(Event::Bye { .. }));
    assert_eq!(bed.events.iter().filter(|event| is_bye(event)).count(), 1);
    // If a source sends a BYE and continues, it is accepted.
    bed.heard.clear();
    bed.stream(&mut peer, 200);
    assert_eq!(bed.heard("p"), 200);
    assert_eq!(
        bed.leg.sources().next().map(|source| source.is_sender),
        Some(true)
    );
}

#[test]
fn two_senders_at_one_address_do_not_mix() {
    let mut bed = Bed::new(telephony());
    let (mut first, mut second) = (Sender::new(PEER, 1, b'1'), Sender::new(PEER, 2, b'2'));
    bed.stream(&mut first, 10);
    for _ in 0..500 {
        bed.send(&mut first);
        bed.wait_ms(10);
        bed.send(&mut second);
        bed.wait_ms(10);
    }
    assert_eq!(
        (bed.heard("1"), bed.heard("2"), bed.heard.len()),
        (510, 0, 0)
    );
    // When the first sender stops, the second one is accepted. Its packets are played from the first one after the first
    // sender's last packet.
    bed.stream(&mut second, 50);
    assert_eq!(bed.heard("2"), 51);
}

#[test]
fn two_forged_packets_do_not_mute_the_caller() {
    // An attacker knows the address and spoofs it: at once, or just when the caller's next packet is due.
    for pause_ms in [0, 15, 19] {
        let mut bed = Bed::new(telephony());
        let (mut peer, mut forger) = (Sender::new(PEER, 1, b'p'), Sender::new(PEER, 2, b'f'));
        bed.stream(&mut peer, 10);
        for _ in 0..100 {
            bed.send(&mut peer);
            bed.wait_ms(pause_ms);
            bed.send(&mut forger);
            bed.send(&mut forger);
            bed.wait_ms(20 - pause_ms);
        }
        assert_eq!(
            (bed.heard("p"), bed.heard("f"), bed.heard.len()),
            (110, 0, 0),
            "{pause_ms}"
        );
    }
}

#[test]
fn a_change_of_the_source_loses_no_packet() {
    let mut bed = Bed::new(telephony());
    let (mut first, mut second) = (Sender::new(PEER, 1, b'1'), Sender::new(PEER, 2, b'2'));
    bed.stream(&mut first, 50);
    bed.stream(&mut second, 50);
    assert_eq!((bed.heard("1"), bed.heard("2")), (50, 50));
    assert_eq!(bed.heard, ["restart"]);
}

#[test]
fn restarted_program_is_accepted_after_half_a_second() {
    let mut bed = Bed::new(telephony());
    bed.stream(&mut Sender::new(PEER, 1, b'1'), 100);
    let mut again = Sender::new("192.0.2.1:5044", 2, b'2');
    bed.stream(&mut again, 100);
    // As documented, the program is accepted with its next packet after half a second. Its packets that were kept are played too.
    let heard = bed.heard("2");
    assert!((100 - 26..=100).contains(&heard), "{heard}");
    assert_eq!(bed.leg.rtp_to(), Some(again.from));
}

#[test]
fn a_nat_that_rebinds_loses_half_a_second_at_most() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 100);
    peer.from = address(ELSEWHERE);
    bed.stream(&mut peer, 100);
    let heard = bed.heard("p");
    assert!((200 - 26..=200).contains(&heard), "{heard}");
    assert_eq!(bed.leg.rtp_to(), Some(peer.from));
    assert_eq!(bed.leg.stats().session.members, 2);
    let moved = |event: &LegEvent| {
        matches!(
            event,
            LegEvent::Source {
                beginning: Beginning::Moved,
                ..
            }
        )
    };
    assert!(bed.events.iter().any(moved));
}

/// After three seconds of silence, as in hold, another sender comes.
#[test]
fn another_sender_cannot_take_a_held_call() {
    let signalled = AdmissionConfig {
        peer: Some(address(PEER)),
        ..AdmissionConfig::default()
    };
    let networks = vec!["192.0.2.0/24".parse().unwrap()];
    let cases = [
        ("follows", AdmissionConfig::default(), None),
        (
            "only that address",
            AdmissionConfig {
                learn: Learn::Never,
                ..signalled.clone()
            },
            Some(Refusal::Stranger),
        ),
        (
            "a window",
            AdmissionConfig {
                learn: Learn::Once(Once {
                    fixed_ms: Some(1000),
                    ..Once::default()
                }),
                ..signalled
            },
            Some(Refusal::Stranger),
        ),
        (
            "networks",
            AdmissionConfig {
                sources: networks,
                ..AdmissionConfig::default()
            },
            Some(Refusal::NotAllowed),
        ),
    ];
    for (name, admission, refusal) in cases {
        let mut bed = Bed::new(LegConfig {
            admission,
            ..telephony()
        });
        let mut peer = Sender::new(PEER, 1, b'p');
        bed.stream(&mut peer, 100);
        bed.wait_ms(60_000);
        let mut stranger = Sender::new(ELSEWHERE, 2, b's');
        bed.stream(&mut stranger, 100);
        if let Some(refusal) = refusal {
            assert_eq!(bed.heard("s"), 0, "{name}");
            assert_eq!(bed.leg.rtp_to(), Some(address(PEER)), "{name}");
            assert_eq!(bed.send(&mut stranger), Verdict::Refused(refusal), "{name}");
            bed.stream(&mut peer, 100);
            assert_eq!(bed.heard("p"), 200, "{name}");
        } else {
            assert!(bed.heard("s") > 90, "{name}");
        }
    }
}

#[test]
fn a_peer_behind_a_nat_is_learned_within_the_window() {
    let admission = AdmissionConfig {
        peer: Some(address("10.0.0.7:5000")),
        learn: Learn::Once(Once {
            fixed_ms: Some(3000),
            ..Once::default()
        }),
        ..AdmissionConfig::default()
    };
    let mut bed = Bed::new(LegConfig {
        admission: admission.clone(),
        ..telephony()
    });
    assert_eq!(
        bed.leg.rtp_to(),
        admission.peer,
        "as signalled, until packets come"
    );
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 10);
    assert_eq!(
        (bed.heard("p"), bed.leg.rtp_to()),
        (10, Some(address(PEER)))
    );
    // A new offer has another address (RFC 3264, section 8.3.1), so the leg learns again.
    let moved = AdmissionConfig {
        peer: Some(address("10.0.0.8:5000")),
        ..admission
    };
    bed.leg.relearn(bed.now_ns, moved, Destination::Peer);
    peer.from = address(ELSEWHERE);
    bed.stream(&mut peer, 10);
    assert_eq!(
        (bed.heard("p"), bed.leg.rtp_to()),
        (10, Some(address(ELSEWHERE)))
    );
}

#[test]
fn unnegotiated_payload_type_is_not_a_loss() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 10);
    for payload_type in [3, 9, 18, 96, 127] {
        peer.payload_type = payload_type;
        bed.stream(&mut peer, 1);
        peer.payload_type = 0;
        bed.stream(&mut peer, 5);
    }
    assert_eq!(
        (bed.heard("p"), bed.heard("?"), bed.heard.len()),
        (35, 5, 0)
    );
    // A single packet does not make a source.
    let mut bed = Bed::new(telephony());
    peer.payload_type = 18;
    bed.stream(&mut peer, 10);
    assert_eq!(bed.heard.len(), 0);
    assert_eq!(bed.leg.stats().refused.payload_types, 10);
}

/// If no packet is lost or delayed, there is no jitter, whatever the clock rate is (RFC 3550, appendix A.8).
#[test]
fn a_clean_line_of_44100_hz_has_no_jitter() {
    for first in [0, 11] {
        let mut bed = Bed::new(config(&[pcmu(), l16_44100()]));
        let mut peer = Sender::new(PEER, 1, b'p');
        for number in 0..1000 {
            peer.payload_type = if number < 3 { first } else { 11 };
            peer.time = number * 882;
            bed.stream(&mut peer, 1);
        }
        let stats = bed.leg.sources().next().unwrap();
        assert!(stats.jitter_ns < MS, "{} ns", stats.jitter_ns);
        assert!(bed.leg.stats().jitter.jitter_ns < MS);
        assert_eq!(
            bed.heard("p"),
            1000,
            "and nothing that was held is thrown away"
        );
    }
}

/// The collision is handled as in RFC 3550, section 8.2.
#[test]
fn after_a_collision_everything_but_the_bye_has_the_new_ssrc() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 10);
    let stamp = Stamp {
        payload_type: PayloadType(0),
        time: RtpTime(0),
        marker: false,
        elapsed: 0,
    };
    let mut header = [0; HEADER_BYTES];
    assert_eq!(
        bed.leg.packetize(bed.now_ns, stamp, 160, &mut header),
        Some(address(PEER))
    );
    assert_eq!(header[8..], OURS.0.to_be_bytes());
    // By chance, the peer chooses our SSRC.
    peer.ssrc = OURS.0;
    bed.stream(&mut peer, 3);
    let new = bed.leg.ssrc();
    assert_ne!(new, OURS);
    for _ in 0..1000 {
        bed.leg
            .packetize(bed.now_ns, stamp, 160, &mut header)
            .unwrap();
        assert_eq!(header[8..], new.0.to_be_bytes());
        bed.wait_ms(20);
    }
    let ssrc_of = |bytes: &[u8]| Ssrc(u32::from_be_bytes(bytes[4..8].try_into().unwrap()));
    let says_bye = |bytes: &[u8], ssrc: Ssrc| {
        bytes
            .windows(8)
            .any(|part| part[..4] == [0x81, 203, 0, 5] && part[4..] == ssrc.0.to_be_bytes())
    };
    let old: Vec<_> = bed
        .rtcp
        .iter()
        .filter(|(bytes, _)| ssrc_of(bytes) == OURS)
        .collect();
    assert_eq!(old.len(), 1, "the BYE for the old one, and nothing else");
    assert!(says_bye(&old[0].0, OURS), "{:x?}", old[0]);
    assert!(
        bed.rtcp
            .iter()
            .filter(|(bytes, _)| ssrc_of(bytes) == new)
            .count()
            >= 2
    );
    assert!(!bed.rtcp.iter().any(|(bytes, _)| says_bye(bytes, new)));
}

#[test]
fn reports_keep_one_ssrc_and_end_with_a_bye() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 1000);
    let mut header = [0; HEADER_BYTES];
    let stamp = Stamp {
        payload_type: PayloadType(0),
        time: RtpTime(0),
        marker: true,
        elapsed: 0,
    };
    bed.leg.packetize(bed.now_ns, stamp, 160, &mut header);
    bed.stream(&mut peer, 1000);
    let reports = bed.rtcp.len();
    assert!(reports >= 4, "{reports}");
    for (bytes, to) in &bed.rtcp {
        assert_eq!(bytes[4..8], OURS.0.to_be_bytes());
        assert_eq!(*to, address(PEER));
        assert!(!bytes.windows(2).any(|part| part == [0x81, 203]), "no BYE");
    }
    bed.leg.leave(bed.now_ns, "");
    bed.drain();
    assert!(
        bed.rtcp
            .last()
            .unwrap()
            .0
            .windows(2)
            .any(|part| part == [0x81, 203])
    );
}

/// The timestamp "Corresponds to the same time as the NTP timestamp" (RFC 3550, section 6.4.1).
#[test]
fn report_ties_its_timestamp_to_the_present_even_during_a_digit() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    let mut header = [0; HEADER_BYTES];
    for number in 0..1000_u32 {
        bed.send(&mut peer);
        // After one second, a digit is pressed and held.
        let elapsed = (number * 160).saturating_sub(8000);
        let stamp = Stamp {
            payload_type: PayloadType(if elapsed > 0 { 101 } else { 0 }),
            time: RtpTime(number * 160 - elapsed),
            marker: false,
            elapsed,
        };
        bed.leg.packetize(bed.now_ns, stamp, 160, &mut header);
        bed.wait_ms(20);
    }
    let reports: Vec<_> = bed
        .rtcp
        .iter()
        .filter(|(bytes, _)| bytes[1] == 200)
        .collect();
    assert!(reports.len() >= 2);
    for (bytes, _) in reports {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let ntp_ms = f64::from(word(8)) * 1000.0 + f64::from(word(12)) / 4_294_967.296;
        let rtp_ms = f64::from(word(16)) / 8.0;
        assert!((ntp_ms - rtp_ms).abs() < 21.0, "{ntp_ms} {rtp_ms}");
    }
}

/// "Two sequential packets -- assume that the other side restarted" (RFC 3550, appendix A.1).
#[test]
fn a_restart_of_the_sequence_numbers_loses_no_packet() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 100);
    (peer.seq, peer.time) = (40_000, 7);
    bed.stream(&mut peer, 100);
    assert_eq!(bed.heard("p"), 200);
    assert_eq!(bed.heard, ["restart"]);
    // A stray packet does not change the source.
    let mut stray = Sender { seq: 9, ..peer };
    bed.send(&mut stray);
    bed.stream(&mut peer, 100);
    assert_eq!((bed.heard("p"), bed.heard.len()), (100, 1));
    assert_eq!(bed.leg.stats().refused.out_of_range, 1);
}

#[test]
fn a_leg_needs_little_memory() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 1, b'p');
    bed.stream(&mut peer, 100);
    let bytes = size_of::<Leg>() + bed.leg.heap_bytes() + 64 * 64;
    // The documentation says 10 KiB for a leg, including the ring of the jitter buffer.
    assert!(bytes < 10 * 1024, "{bytes} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No input from the network causes a panic or leaks a place of the store.
    #[test]
    fn every_place_is_freed_after_any_input(
        steps in proptest::collection::vec(
            (0_u8..4, 0_u16..6, 0_u32..4, any::<u8>(), 0_u64..60, 0_usize..40),
            0..400,
        ),
    ) {
        let mut bed = Bed::new(telephony());
        for (host, step, ssrc, second, ms, len) in steps {
            let mut bytes = vec![0x80, if second < 200 { 0 } else { second }];
            // The numbers are close together, far apart, and on both sides of the wrap-around.
            let seq = [65_534_u16, 0, 1, 30_000, 30_001, 30_200][usize::from(step)];
            bytes.extend(seq.wrapping_add(u16::from(second) % 3).to_be_bytes());
            bytes.extend((u32::from(seq) * 160).to_be_bytes());
            bytes.extend(ssrc.to_be_bytes());
            bytes.resize(12 + len, second);
            bed.hand_in(SocketAddr::from(([192, 0, 2, host], 5000)), &bytes);
            bed.wait_ms(ms);
        }
        bed.wait_ms(60_000);
        let now_ns = bed.now_ns;
        bed.leg
            .relearn(now_ns, AdmissionConfig::default(), Destination::Peer);
        bed.drain();
        prop_assert_eq!(bed.leg.store.held(), bed.leg.jitter.held_packets() as usize);
    }
}

/// The description states the port of RTCP "when that port is not the next higher (odd) port number following the RTP port" (RFC 3605), and
/// its address if that differs.
#[test]
fn reports_go_to_the_signalled_address() {
    let elsewhere = SocketAddr::from(([192, 0, 2, 77], 9_000));
    let stranger = SocketAddr::from(([192, 0, 2, 78], 9_000));
    let peer = SocketAddr::from(([192, 0, 2, 1], 5_000));
    let signalled = LegConfig {
        admission: AdmissionConfig {
            peer: Some(peer),
            rtcp: Some(elsewhere),
            ..AdmissionConfig::default()
        },
        mux: false,
        ..telephony()
    };
    let mut bed = Bed::new(signalled.clone());
    assert_eq!(bed.leg.rtcp_to(), Some(elsewhere));
    // This is an empty receiver report (RFC 3550, section 6.4.2).
    let report = [0x80, 201, 0, 1, 0, 0, 0, 9];
    let refused = Verdict::Refused(Refusal::Stranger);
    assert_eq!(bed.leg.handle_rtcp(0, stranger, &report), refused);
    assert_eq!(bed.leg.handle_rtcp(0, elsewhere, &report), Verdict::Rtcp);
    assert_eq!(bed.leg.rtcp_to(), Some(elsewhere));
    // The party is behind a NAT, where its media and its reports have the same address. So the reports do not come from the signalled
    // address.
    let behind = SocketAddr::from(([198, 51, 100, 4], 6_000));
    let mut bed = Bed::new(signalled.clone());
    for number in 0..20_u16 {
        let mut bytes = vec![0x80, 0];
        bytes.extend(number.to_be_bytes());
        bytes.extend((u32::from(number) * 160).to_be_bytes());
        bytes.extend([0, 0, 0, 9]);
        bed.hand_in(behind, &bytes);
        bed.wait_ms(20);
    }
    assert_eq!(bed.leg.rtp_to(), Some(behind));
    assert_eq!(bed.leg.rtcp_to(), Some(SocketAddr::new(behind.ip(), 6_001)));
    // If both share a port, reports go to the RTP port (RFC 5761).
    let mut bed = Bed::new(LegConfig {
        mux: true,
        ..signalled
    });
    assert_eq!(bed.leg.rtcp_to(), Some(peer));
    assert_eq!(bed.leg.handle_rtcp(0, elsewhere, &report), refused);
}

/// The SSRC of a payloader changes, or two payloaders send through one sink. The reports use one of the SSRCs that were sent.
#[test]
fn reports_use_the_ssrc_of_packets_that_the_owner_numbers() {
    let mut bed = Bed::new(LegConfig {
        destination: Destination::Fixed {
            rtp: address(PEER),
            rtcp: None,
        },
        ..telephony()
    });
    let sent = |bed: &mut Bed, ssrcs: &[u32]| {
        for ssrc in ssrcs {
            bed.now_ns += 20 * MS;
            let time = RtpTime((bed.now_ns / MS * 8) as u32);
            bed.leg.note_sent(bed.now_ns, Ssrc(*ssrc), time, 160);
        }
        bed.leg.ssrc().0
    };
    // At first, the reports use the first packet's SSRC.
    assert_eq!(sent(&mut bed, &[7]), 7);
    // A single packet with another SSRC changes nothing. Two such packets do, and after that the first SSRC is never used again.
    assert_eq!(sent(&mut bed, &[8, 7, 7]), 7);
    assert_eq!(sent(&mut bed, &[8, 8]), 8);
    assert_eq!(sent(&mut bed, &[7, 7, 7, 8]), 8);
    assert_eq!(bed.leg.stats().session.packets_sent, 2);
    // After a collision, this SSRC is never used again, and the reports use the SSRC of the next packet.
    let mut peer = Sender::new(PEER, 8, b'a');
    bed.send(&mut peer);
    bed.send(&mut peer);
    let other = bed.leg.ssrc();
    assert_ne!(other, Ssrc(8));
    assert_eq!(sent(&mut bed, &[8, 8, 8]), other.0);
    assert_eq!(sent(&mut bed, &[9, 9]), 9);
}

/// The sender is a multicast group, or the receiver accepts any sender. Every packet with the SSRC is accepted, and nothing is sent to the
/// sender.
#[test]
fn only_the_ssrc_counts_if_anyone_may_send() {
    let mut bed = Bed::new(LegConfig {
        admission: AdmissionConfig {
            learn: Learn::Anyone,
            ..AdmissionConfig::default()
        },
        ..telephony()
    });
    let mut one = Sender::new(PEER, 7, b'a');
    for number in 0..6 {
        one.from = address([PEER, ELSEWHERE][number % 2]);
        bed.send(&mut one);
        bed.now_ns += 20 * MS;
    }
    bed.now_ns += 20 * MS;
    let mut other = Sender::new(ELSEWHERE, 8, b'b');
    for _ in 0..3 {
        bed.send(&mut other);
        bed.now_ns += 20 * MS;
    }
    assert_eq!(bed.heard.concat(), "aaaaaarestartbbb");
    assert_eq!(bed.leg.rtp_to(), None);
}

/// A receiver that is stopped and started again forgets its sender, but its reports continue.
#[test]
fn leg_that_receives_again_learns_again() {
    let config = telephony();
    let mut bed = Bed::new(config.clone());
    let mut peer = Sender::new(PEER, 7, b'a');
    for _ in 0..3 {
        bed.send(&mut peer);
        bed.now_ns += 20 * MS;
    }
    let receiving = Receiving {
        payloads: Arc::new(PayloadMap::new(&[l16_44100()]).unwrap()),
        jitter: config.jitter,
        admission: config.admission,
    };
    bed.leg.receive_anew(receiving).unwrap();
    assert!(bed.leg.take_moved() && bed.leg.source().is_none());
    let mut other = Sender::new(ELSEWHERE, 8, b'b');
    other.payload_type = 11;
    for _ in 0..3 {
        bed.send(&mut other);
        bed.now_ns += 20 * MS;
    }
    assert_eq!(bed.heard.concat(), "aaabbb");
    assert_eq!(bed.leg.source(), Some((address(ELSEWHERE), Ssrc(8))));
    assert!(bed.leg.is_consistent());
}

/// DLSR is "the delay [...] between receiving the last SR packet from source SSRC_n and sending this reception report block", in units of
/// 1/65536 s (RFC 3550, section 6.4.1). The arrival time counts, and not the time at which the slice was handled.
#[test]
fn the_delay_since_a_report_counts_from_its_arrival() {
    let mut bed = Bed::new(telephony());
    let mut peer = Sender::new(PEER, 7, b'a');
    for _ in 0..3 {
        bed.send(&mut peer);
        bed.now_ns += 20 * MS;
    }
    let mut report = vec![0x80, 200, 0, 6];
    report.extend(7_u32.to_be_bytes());
    report.extend([0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    report.extend([0; 12]);
    let arrived_ns = bed.now_ns - 17 * MS;
    let verdict = bed.leg.handle_rtcp(arrived_ns, address(PEER), &report);
    assert_eq!(verdict, Verdict::Rtcp);
    while bed.rtcp.is_empty() {
        bed.now_ns += 20 * MS;
        bed.send(&mut peer);
    }
    let word = |at: usize| u32::from_be_bytes(bed.rtcp[0].0[at..at + 4].try_into().unwrap());
    // A receiver report has a header of 8 bytes. Its block has 24 bytes, with LSR and DLSR at the end.
    assert_eq!(word(24), 0x3344_5566);
    let expected = (bed.now_ns - arrived_ns) * 65_536 / 1_000_000_000;
    assert!(
        u64::from(word(28)).abs_diff(expected) <= 1,
        "{} {expected}",
        word(28)
    );
}

/// Equal payload maps are shared while one of them is in use.
#[test]
fn equal_payload_maps_are_shared() {
    let map = |number| {
        let format = Format::new(Encoding::L16, 44_100, 2).unwrap();
        PayloadMap::new(&[Payload::audio(number, format)])
            .unwrap()
            .shared()
    };
    let (first, same, other) = (map(110), map(110), map(111));
    assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
    assert_eq!(first, same);
    let gone = Arc::downgrade(&first);
    drop((first, same));
    assert!(gone.upgrade().is_none(), "the table keeps none alive");
    assert_eq!(map(110).audio().payload_type.0, 110);
}

/// The payload types 64 to 95 are excluded from media only if RTP and RTCP share a port (RFC 5761, section 4).
#[test]
fn payload_types_64_to_95_are_media_on_a_leg_without_mux() {
    let payloads = [Payload {
        payload_type: PayloadType(72),
        ..pcmu()
    }];
    assert_eq!(PayloadMap::new(&payloads), Err(PayloadMapError::Number(72)));
    let all = [payloads[0], pcmu()];
    let map = Arc::new(PayloadMap::without_mux(&all).unwrap());
    let with = |mux| {
        Bed::new(LegConfig {
            payloads: map.clone(),
            mux,
            ..config(&[pcmu()])
        })
    };
    let mut peer = Sender::new(PEER, 1, b'p');
    peer.payload_type = 0x80 | 72;
    let mut apart = with(false);
    apart.stream(&mut peer, 10);
    apart.wait_ms(100);
    assert_eq!(apart.heard, ["p"; 10]);
    // The second byte is 200. With mux, the datagrams are a sender report and a malformed one.
    let mut shared = with(true);
    let mut known = Sender::new(PEER, 1, b'k');
    shared.stream(&mut known, 3);
    known.payload_type = 0x80 | 72;
    assert_eq!(shared.send(&mut known), Verdict::MalformedRtcp);
    known.payload_type = 72;
    shared.send(&mut known);
    shared.wait_ms(100);
    assert_eq!(
        shared.heard,
        ["k", "k", "k", "lost 1", "?"],
        "it was not agreed on"
    );
    // By a new description, there is one port, and the payload types stay until others are agreed on.
    apart.leg.set_mux(true);
    apart.stream(&mut peer, 5);
    apart.wait_ms(100);
    assert_eq!(apart.heard("p"), 10);
    apart.leg.set_mux(false);
    apart.leg.set_payloads(map.clone(), map);
    apart.stream(&mut peer, 5);
    apart.wait_ms(100);
    assert_eq!(apart.heard("p"), 5);
}
