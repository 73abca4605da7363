//! Collisions, loops, strangers, floods, garbage, and peers that move.

use proptest::prelude::*;
use threadbare_rtp::id::{PayloadType, Ssrc};
use threadbare_rtp::session::{Config, Event, RtcpError, RtcpSession, RtpVerdict, SOURCES_MAX};

use super::{MS, S, address, compound, config, events, packet, run, session};

/// Returns a session that has received packets 0..100 of source 7, the last at 1.98 s.
fn in_call() -> RtcpSession {
    let mut session = session(1);
    for number in 0..100 {
        session.handle_rtp(number * 20 * MS, address(9), packet(7, number));
    }
    events(&mut session);
    session
}

/// Another implementation ignores the new address for ever.
#[test]
fn a_peer_that_moves_to_another_address_is_accepted_again() {
    let mut session = in_call();
    let verdicts: Vec<_> = (100..200)
        .map(|number| session.handle_rtp(number * 20 * MS, address(99), packet(7, number)))
        .collect();
    let refused = verdicts
        .iter()
        .filter(|verdict| !verdict.is_valid())
        .count();
    assert!(refused <= 25, "{refused} packets of 20 ms"); // half a second
    assert_eq!(verdicts.last(), Some(&RtpVerdict::Valid));
    assert_eq!(
        events(&mut session),
        [Event::AddressChanged {
            ssrc: Ssrc(7),
            from: address(99)
        }]
    );
    let source = session.sources().next().expect("it is there");
    assert_eq!(source.rtp_from, Some(address(99)));
}

#[test]
fn stranger_with_the_same_ssrc_is_refused_while_the_peer_sends() {
    let mut session = in_call();
    for number in 100..1000 {
        let now_ns = number * 20 * MS;
        let own = session.handle_rtp(now_ns, address(9), packet(7, number));
        let other = session.handle_rtp(now_ns + MS, address(66), packet(7, number + 30_000));
        assert_eq!((own, other), (RtpVerdict::Valid, RtpVerdict::Conflict));
    }
    assert_eq!(session.stats().conflicts, 900);
    // The stranger's BYE does not end the source either.
    session
        .handle_rtcp(20 * S, address(10), &compound(7, false))
        .expect("good");
    let mut stranger = address(10);
    stranger.set_ip([198, 51, 100, 1].into());
    session
        .handle_rtcp(20 * S, stranger, &compound(7, true))
        .expect("good");
    assert_eq!(session.stats().members, 2);
    assert_eq!(events(&mut session), []);
}

#[test]
fn another_ssrc_takes_over_when_the_first_is_silent() {
    let mut session = in_call();
    assert_eq!(session.current_ssrc(), Some(Ssrc(7)));
    let mut current = Vec::new();
    for number in 100..110 {
        session.handle_rtp(number * 20 * MS, address(9), packet(8, number));
        current.push(session.current_ssrc());
    }
    assert_eq!(current.last(), Some(&Some(Ssrc(8))));
    let (active, changed) = (
        Event::SsrcActive {
            ssrc: Ssrc(8),
            from: address(9),
        },
        Event::SsrcChanged {
            old: Ssrc(7),
            new: Ssrc(8),
        },
    );
    assert_eq!(events(&mut session), [active, changed]);
}

#[test]
fn ssrc_collision_changes_our_ssrc_and_sends_a_bye() {
    let mut session = session(1);
    session.handle_rtp_sent(0, packet(1, 0).time, 160, 1);
    let verdict = session.handle_rtp(S, address(9), packet(1, 77));
    assert_eq!(verdict, RtpVerdict::Collision);
    let new = session.ssrc();
    assert_ne!(new, Ssrc(1));
    assert_eq!(
        events(&mut session),
        [Event::Collision { old: Ssrc(1), new }]
    );
    let sent = run(&mut session, S);
    let parts: Vec<_> = rtcp_types::Compound::parse(&sent[0].1)
        .expect("a compound")
        .collect();
    assert!(
        matches!(parts.last(), Some(Ok(rtcp_types::Packet::Bye(bye))) if bye.ssrcs().eq([1])),
        "{parts:?}"
    );
    // The other sender keeps the SSRC, and is now a source like any other.
    session.handle_rtp(S + 20 * MS, address(9), packet(1, 78));
    session.handle_rtp(S + 40 * MS, address(9), packet(1, 79));
    assert_eq!(session.current_ssrc(), Some(Ssrc(1)));
}

#[test]
fn a_loop_changes_our_ssrc_once() {
    let mut session = session(1);
    session.handle_rtp_sent(0, packet(1, 0).time, 160, 1);
    let verdicts: Vec<_> = (0..1000)
        .map(|number| {
            let ours = session.ssrc().0;
            session.handle_rtp(number * 20 * MS, address(9), packet(ours, number))
        })
        .collect();
    assert_eq!(verdicts[0], RtpVerdict::Collision);
    assert!(
        verdicts[1..]
            .iter()
            .all(|verdict| *verdict == RtpVerdict::Loop)
    );
    let told = events(&mut session);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1], Event::Loop { from: address(9) });
    assert_eq!(session.stats().collisions, 1);
}

/// A single packet in a pause is not enough to replace the peer, and neither is one from time to time.
#[test]
fn forged_packets_in_pauses_do_not_shut_the_peer_out() {
    let mut session = in_call();
    let (mut valid, mut forged) = (0, 0);
    for talk in 1..100 {
        // There are two seconds of speech, and one second of silence with some packets of a stranger.
        for number in 0..100 {
            let now_ns = talk * 3 * S + number * 20 * MS;
            let verdict = session.handle_rtp(now_ns, address(9), packet(7, talk * 100 + number));
            valid += u32::from(verdict.is_valid());
        }
        for at in 0..4 {
            let now_ns = talk * 3 * S + 2100 * MS + at * 200 * MS;
            let verdict = session.handle_rtp(now_ns, address(66), packet(7, talk * 100 + 100 + at));
            forged += u32::from(verdict != RtpVerdict::Conflict);
        }
    }
    assert_eq!((valid, forged), (9900, 0));
}

#[test]
fn flood_does_not_evict_validated_members() {
    let mut session = in_call();
    // This member only listens, and sends a report every 5 s.
    for round in 0..50_000_u32 {
        let now_ns = 2 * S + u64::from(round) * MS;
        if round % 5000 == 0 {
            session
                .handle_rtcp(now_ns, address(11), &compound(8, false))
                .expect("good");
        }
        let stranger = address(round as u16);
        session.handle_rtp(now_ns, stranger, packet(round | 1 << 31, 5));
    }
    assert!(session.sources().any(|source| source.ssrc == Ssrc(8)));
    assert_eq!(session.stats().members, 3);
}

/// Another implementation keeps everything that it receives.
#[test]
fn flood_of_sources_takes_no_memory_and_disturbs_no_call() {
    for by_rtcp in [false, true] {
        let mut session = in_call();
        for round in 0..20_000_u32 {
            let now_ns = 2 * S + u64::from(round) * 100_000;
            let (ssrc, from) = (
                round.wrapping_mul(2_654_435_761) | 1 << 31,
                address(round as u16),
            );
            if by_rtcp {
                session
                    .handle_rtcp(now_ns, from, &compound(ssrc, false))
                    .expect("good");
            } else {
                session.handle_rtp(now_ns, from, packet(ssrc, 5));
                session.handle_rtp(now_ns, from, packet(ssrc, 6));
            }
            if round % 200 == 0 {
                let number = 100 + u64::from(round) / 200;
                let verdict = session.handle_rtp(now_ns, address(9), packet(7, number));
                assert_eq!(verdict, RtpVerdict::Valid, "{round}");
            }
            while session.poll_event().is_some() {}
        }
        let stats = session.stats();
        assert!(stats.members <= 33 && stats.senders <= 32, "{stats:?}");
        assert!(session.sources().count() <= 32);
        assert!(
            session.memory_bytes() < 32 * 1024,
            "{} bytes",
            session.memory_bytes()
        );
        assert!(stats.evictions > 19_000);
        assert_eq!(session.current_ssrc(), Some(Ssrc(7)));
    }
}

#[test]
fn undrained_events_are_bounded() {
    let mut session = in_call();
    let mut nack = vec![
        0x80, 201, 0, 1, 0, 0, 0, 7, 0x81, 205, 0, 202, 0, 0, 0, 7, 0, 0, 0, 1,
    ];
    nack.extend([0; 800]);
    for _ in 0..100 {
        session
            .handle_rtcp(2 * S, address(10), &nack)
            .expect("good");
    }
    assert!(events(&mut session).len() <= 128);
    assert!(session.stats().events_dropped > 19_000);
}

#[test]
fn a_session_with_one_peer_is_small() {
    let mut session = in_call();
    session
        .handle_rtcp(2 * S, address(10), &compound(7, false))
        .expect("good");
    run(&mut session, 20 * S);
    assert!(
        session.memory_bytes() <= 1536,
        "{} bytes",
        session.memory_bytes()
    );
}

#[test]
fn bad_rtcp_is_refused_and_counted_by_cause() {
    let good = compound(7, true);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        (vec![], RtcpError::Truncated { missing: 4 }),
        (good[..6].to_vec(), RtcpError::Truncated { missing: 2 }),
        (
            good[..good.len() - 1].to_vec(),
            RtcpError::Truncated { missing: 1 },
        ),
        (with(0, 0x40), RtcpError::Version(1)),
        (with(8, 0x00), RtcpError::Version(0)),
        (good[8..].to_vec(), RtcpError::FirstPacket(202)),
        (with(0, 0xa0), RtcpError::Padding(201)),
        (
            with(0, 0x81),
            RtcpError::Malformed {
                packet_type: 201,
                count: 1,
            },
        ),
        (
            with(24, 0x82),
            RtcpError::Malformed {
                packet_type: 203,
                count: 2,
            },
        ),
    ];
    let mut session = in_call();
    for (bytes, error) in &cases {
        assert_eq!(
            session.handle_rtcp(2 * S, address(10), bytes),
            Err(*error),
            "{bytes:02x?}"
        );
    }
    let stats = session.stats();
    assert_eq!(stats.rtcp_errors.total(), cases.len() as u64);
    assert_eq!(
        (stats.rtcp_errors.truncated, stats.rtcp_errors.malformed),
        (3, 2)
    );
    assert_eq!(events(&mut session), [], "none of them has an effect");
    // Unknown packet types are skipped.
    let mut unknown = compound(7, false);
    unknown.extend([
        0x80, 207, 0, 1, 1, 2, 3, 4, 0x85, 204, 0, 2, 0, 0, 0, 7, 1, 2, 3, 4,
    ]);
    assert_eq!(session.handle_rtcp(2 * S, address(10), &unknown), Ok(()));
}

#[test]
fn reduced_size_needs_an_agreement() {
    let bye = &compound(7, true)[24..];
    let mut plain = in_call();
    assert_eq!(
        plain.handle_rtcp(2 * S, address(10), bye),
        Err(RtcpError::FirstPacket(203))
    );
    let mut reduced = RtcpSession::new(
        0,
        Config {
            reduced_size: true,
            ..config(1)
        },
    );
    assert_eq!(reduced.handle_rtcp(2 * S, address(10), bye), Ok(()));
}

/// Returns a report block from 7 about us (SSRC 1) with this LSR and DLSR.
fn report(lsr: u32, dlsr: u32) -> Vec<u8> {
    let mut bytes = vec![0x81, 201, 0, 7, 0, 0, 0, 7, 0, 0, 0, 1];
    bytes.extend([12, 0xff, 0xff, 0xfe, 0, 1, 0, 9, 0, 0, 0, 40]);
    bytes.extend(lsr.to_be_bytes());
    bytes.extend(dlsr.to_be_bytes());
    bytes
}

/// Another implementation reports twice the true value.
#[test]
fn round_trip_equals_the_example_of_the_rfc() {
    let now_ns = 10 * S;
    let session_at = |now_ns| {
        let middle = in_call().wall_clock(now_ns).middle();
        move |back_units: u32| middle.wrapping_sub(back_units)
    };
    let before = session_at(now_ns);
    let cases = [
        // The values are LSR, DLSR, and the round trip in units.
        (before(65_536), 65_536 / 2, Some(32_768)),
        (before(5 * 65_536 + 100), 5 * 65_536, Some(100)),
        (before(10), 10, Some(0)),
        (before(10), 12, Some(0)),      // because both clocks round
        (before(0), 65_536, None),      // the result would be negative
        (before(40 * 65_536), 0, None), // the result would be absurdly long
        (before(0).wrapping_add(65_536 * 3600), 0, None), // the LSR is in the future
        (0, 0, None),                   // no SR was received
    ];
    for (lsr, dlsr, units) in cases {
        let mut session = in_call();
        session
            .handle_rtcp(now_ns, address(10), &report(lsr, dlsr))
            .expect("good");
        let told = events(&mut session);
        let [
            Event::ReportAboutUs {
                from: Ssrc(7),
                view,
            },
        ] = told.as_slice()
        else {
            panic!("{told:?}");
        };
        assert_eq!(
            view.rtt_ns,
            units.map(|units: u64| units * S / 65_536),
            "{lsr:#x} {dlsr}"
        );
        assert_eq!(
            (view.fraction_lost, view.cumulative_lost, view.jitter_units),
            (12, -2, 40)
        );
        assert_eq!(session.stats().rtt_ns, view.rtt_ns);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever packets arrive and in whatever order, the bounds hold, the timer advances, and other parsers can read the output.
    #[test]
    fn a_session_stays_within_its_bounds_after_any_packets(
        steps in prop::collection::vec((0..8_u8, 0..6_u32, any::<u16>(), 0..3_000_000_000_u64), 1..300),
        seed in any::<u64>(),
    ) {
        let mut session = RtcpSession::new(0, Config { seed, sources_max: 4, ..config(1) });
        let mut now_ns = 0;
        let mut out = [0; 600];
        for (kind, who, number, wait_ns) in steps {
            now_ns += wait_ns;
            match kind {
                0..=2 => {
                    let mut arrival = packet(who, u64::from(number));
                    arrival.payload_type = PayloadType((number % 3) as u8);
                    session.handle_rtp(now_ns, address(who as u16), arrival);
                }
                3 => session.handle_rtp_sent(now_ns, packet(1, u64::from(number)).time, 160, 1),
                4 => session.handle_rtcp(now_ns, address(number % 4), &compound(who, false)).expect("good"),
                5 => session.handle_rtcp(now_ns, address(number % 4), &compound(who, true)).expect("good"),
                6 => {
                    let mut bytes = compound(who, true);
                    let at = usize::from(number) % bytes.len();
                    bytes[at] ^= (number >> 8) as u8;
                    let _ = session.handle_rtcp(now_ns, address(who as u16), &bytes);
                }
                _ => {
                    while let Some(bytes) = session.poll_transmit(now_ns, &mut out) {
                        for part in rtcp_types::Compound::parse(&out[..bytes]).expect("a compound") {
                            part.expect("a packet");
                        }
                    }
                    prop_assert!(session.next_timeout().is_some_and(|at_ns| at_ns > now_ns));
                }
            }
            let stats = session.stats();
            prop_assert!(stats.members >= 1 && stats.members <= 5);
            prop_assert!(stats.senders <= stats.members);
            prop_assert!(session.sources().count() <= 4);
            prop_assert!(session.sources().all(|source| source.ssrc != session.ssrc()));
        }
    }
}

#[test]
fn the_configured_maximum_of_sources_is_limited() {
    let mut session = RtcpSession::new(
        0,
        Config {
            sources_max: usize::MAX,
            ..config(1)
        },
    );
    for ssrc in 0..5000 {
        session.handle_rtp(u64::from(ssrc), address(9), packet(ssrc + 10, 0));
    }
    assert_eq!(session.sources().count(), SOURCES_MAX);
}
