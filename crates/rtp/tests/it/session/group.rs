//! Groups, in which members share the bandwidth, come, go and fall silent.

use threadbare_rtp::id::Ssrc;
use threadbare_rtp::session::{Config, Event, RtcpSession};

use super::{MS, S, address, compound, config, events, packet, run, session};

fn group_config(ssrc: u32, members: usize) -> Config {
    Config {
        sources_max: members,
        ..config(ssrc)
    }
}

/// Returns a session with `others` further members, which have sent reports at `now_ns`.
fn in_group(now_ns: u64, others: u32) -> RtcpSession {
    let mut session = RtcpSession::new(now_ns, group_config(1, 4096));
    for other in 0..others {
        let ssrc = 1000 + other;
        let from = address(ssrc as u16);
        let bytes = compound(ssrc, false);
        session.handle_rtcp(now_ns, from, &bytes).expect("good");
    }
    events(&mut session);
    session
}

/// Sessions that all receive each other run for an hour. However many they are, together they use at most the bandwidth.
#[test]
fn the_group_keeps_to_its_bandwidth() {
    // The bandwidth is 5 % of 80 kbit/s.
    const BYTES_PER_S: f64 = 500.0;
    const LOWER_LAYERS: usize = 28;
    let mut sessions: Vec<RtcpSession> = (0..40)
        .map(|at| RtcpSession::new(0, group_config(at + 1, 64)))
        .collect();
    let mut out = [0; 1500];
    let (mut bytes_sent, mut packets) = (0, 0);
    let warm_ns = 600 * S;
    loop {
        let due = sessions.iter().enumerate();
        let (at, now_ns) = due
            .map(|(at, session)| (at, session.next_timeout().expect("no member leaves")))
            .min_by_key(|(_, at_ns)| *at_ns)
            .expect("there are sessions");
        if now_ns > warm_ns + 3600 * S {
            break;
        }
        while let Some(bytes) = sessions[at].poll_transmit(now_ns, &mut out) {
            for (other, session) in sessions.iter_mut().enumerate() {
                if other != at {
                    session
                        .handle_rtcp(now_ns, address(at as u16), &out[..bytes])
                        .expect("good");
                }
            }
            if now_ns > warm_ns {
                bytes_sent += bytes + LOWER_LAYERS;
                packets += 1;
            }
        }
    }
    assert!(sessions.iter().all(|session| session.stats().members == 40));
    let rate = bytes_sent as f64 / 3600.0;
    // Receivers share three quarters of the bandwidth.
    assert!(
        (0.85 * 0.75..1.15 * 0.75).contains(&(rate / BYTES_PER_S)),
        "{rate} bytes/s, {packets}"
    );
}

#[test]
fn one_of_a_thousand_converges_to_its_share() {
    let mut session = in_group(0, 999);
    assert_eq!(session.stats().members, 1000);
    let size = compound(1000, false).len() + 28;
    let mut sent = Vec::new();
    // The others send a report every 100 s, so that none of them times out.
    for round in 0..360 {
        let now_ns = round * 100 * S;
        for other in 0..999 {
            let ssrc = 1000 + other;
            session
                .handle_rtcp(now_ns, address(ssrc as u16), &compound(ssrc, false))
                .expect("good");
        }
        sent.extend(run(&mut session, now_ns + 100 * S - 1));
    }
    assert_eq!(session.stats().members, 1000);
    let gaps: Vec<u64> = sent.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let mean_s = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64 / 1e9;
    // The interval is n * C: a thousand receivers share 375 bytes/s.
    let share_s = 1000.0 * size as f64 / 375.0;
    assert!(
        (0.8..1.25).contains(&(mean_s / share_s)),
        "{mean_s} s instead of {share_s} s"
    );
}

#[test]
fn new_member_of_a_large_group_waits_for_its_interval() {
    // The first packet is scheduled for a group of one. Then a thousand others send.
    let alone_ns = session(1).next_timeout().expect("a timer");
    assert!(alone_ns < 4 * S);
    let mut session = in_group(0, 999);
    let sent = run(&mut session, 30 * S);
    assert_eq!(sent.len(), 0, "timer reconsideration");
}

#[test]
fn timer_fires_earlier_after_most_members_leave() {
    let mut session = in_group(0, 999);
    run(&mut session, 60 * S);
    let before_ns = session.next_timeout().expect("a timer") - 60 * S;
    for other in 0..990 {
        let ssrc = 1000 + other;
        session
            .handle_rtcp(60 * S, address(ssrc as u16), &compound(ssrc, true))
            .expect("good");
    }
    assert_eq!(session.stats().members, 10);
    let after_ns = session.next_timeout().expect("a timer") - 60 * S;
    assert!(after_ns <= before_ns / 50, "{before_ns} then {after_ns}");
}

#[test]
fn a_bye_to_a_large_group_backs_off_and_counts_the_others() {
    let mut session = in_group(0, 999);
    session.handle_rtp_sent(S, packet(1, 0).time, 160, 1);
    session.send_bye(S, "moving on");
    // All other members leave too.
    for other in 0..999 {
        let ssrc = 1000 + other;
        session
            .handle_rtcp(S, address(ssrc as u16), &compound(ssrc, true))
            .expect("good");
    }
    let sent = run(&mut session, 2000 * S);
    assert_eq!(sent.len(), 1);
    assert!(session.has_left());
    assert!(
        sent[0].0 > 60 * S,
        "a thousand BYEs of 100 bytes at 375 bytes/s: {}",
        sent[0].0
    );
}

#[test]
fn bye_to_one_peer_is_sent_at_once() {
    let mut session = session(1);
    session.handle_rtp_sent(S, packet(1, 0).time, 160, 1);
    session.send_bye(S, "good bye");
    let sent = run(&mut session, S);
    assert_eq!(sent.len(), 1);
    let parts: Vec<_> = rtcp_types::Compound::parse(&sent[0].1)
        .expect("a compound")
        .collect();
    let Some(Ok(rtcp_types::Packet::Bye(bye))) = parts.last() else {
        panic!("{parts:?}");
    };
    assert_eq!(bye.ssrcs().collect::<Vec<_>>(), [1]);
    assert_eq!(bye.reason(), Some(&b"good bye"[..]));
    assert!(session.has_left());
    assert_eq!(session.next_timeout(), None);
}

#[test]
fn member_that_never_sent_leaves_without_a_bye() {
    let mut session = session(1);
    session.send_bye(S, "");
    assert_eq!(run(&mut session, 100 * S).len(), 0);
    assert!(session.has_left());
}

#[test]
fn a_silent_sender_and_then_a_silent_member_time_out() {
    let mut session = session(1);
    for number in 0..100 {
        session.handle_rtp(number * 20 * MS, address(9), packet(7, number));
    }
    session
        .handle_rtcp(2 * S, address(10), &compound(7, false))
        .expect("good");
    assert_eq!((session.stats().members, session.stats().senders), (2, 1));
    events(&mut session);
    // The source continues to send reports, but no RTP.
    for at_s in 3..60 {
        if at_s % 4 == 0 {
            session
                .handle_rtcp(at_s * S, address(10), &compound(7, false))
                .expect("good");
        }
        run(&mut session, at_s * S);
    }
    assert_eq!(
        events(&mut session),
        [Event::SenderTimeout { ssrc: Ssrc(7) }]
    );
    assert_eq!((session.stats().members, session.stats().senders), (2, 0));
    run(&mut session, 120 * S);
    assert_eq!(
        events(&mut session),
        [Event::SourceTimeout { ssrc: Ssrc(7) }]
    );
    assert_eq!((session.stats().members, session.sources().count()), (1, 0));
    // The source returns.
    session.handle_rtp(130 * S, address(9), packet(7, 5000));
    session.handle_rtp(130 * S, address(9), packet(7, 5001));
    assert_eq!((session.stats().members, session.stats().senders), (2, 1));
}

#[test]
fn packets_that_arrive_after_a_bye_do_not_revive_its_source() {
    let mut session = session(1);
    for number in 0..100 {
        session.handle_rtp(number * 20 * MS, address(9), packet(7, number));
    }
    session
        .handle_rtcp(2 * S, address(10), &compound(7, true))
        .expect("good");
    let last = events(&mut session).pop();
    assert_eq!(
        last,
        Some(Event::Bye {
            ssrc: Ssrc(7),
            reason: None
        })
    );
    assert_eq!(session.stats().members, 1);
    for number in 100..110 {
        let verdict = session.handle_rtp(2 * S + number * MS, address(9), packet(7, number));
        assert!(
            verdict.is_valid(),
            "packets sent before the BYE are still to be played"
        );
    }
    assert_eq!((session.stats().members, session.stats().senders), (1, 0));
    // Some senders pause, as in hold, and return with the same SSRC.
    for number in 600..700 {
        session.handle_rtp(number * 20 * MS, address(9), packet(7, number));
    }
    assert_eq!((session.stats().members, session.stats().senders), (2, 1));
}

#[test]
fn forty_sources_are_reported_in_turn() {
    let mut session = RtcpSession::new(0, group_config(1, 64));
    let mut reported = std::collections::HashMap::new();
    for number in 0..50 * 60 {
        for source in 100..140 {
            let from = address(source as u16);
            session.handle_rtp(number * 20 * MS, from, packet(source, number));
        }
        for (_, bytes) in run(&mut session, number * 20 * MS) {
            let mut compound = rtcp_types::Compound::parse(&bytes).expect("a compound");
            let Some(Ok(rtcp_types::Packet::Rr(report))) = compound.next() else {
                panic!("we send nothing");
            };
            assert_eq!(report.n_reports(), 31);
            for block in report.report_blocks() {
                *reported.entry(block.ssrc()).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(reported.len(), 40);
    let (least, most) = (reported.values().min(), reported.values().max());
    assert!(most.unwrap() - least.unwrap() <= 1, "{reported:?}");
}

#[test]
fn without_bandwidth_nothing_is_sent_and_silent_members_still_time_out() {
    let mut session = RtcpSession::new(
        0,
        Config {
            rtcp_bandwidth_bps: Some(0),
            ..config(1)
        },
    );
    session.handle_rtp(0, address(9), packet(7, 0));
    session.handle_rtp(20 * MS, address(9), packet(7, 1));
    events(&mut session);
    assert_eq!(run(&mut session, 100 * S).len(), 0);
    assert_eq!(
        events(&mut session),
        [
            Event::SenderTimeout { ssrc: Ssrc(7) },
            Event::SourceTimeout { ssrc: Ssrc(7) }
        ]
    );
}
