//! NACK, PLI and FIR: when they are sent (RFC 4585, section 3.5), and which events they cause.

use threadbare_rtp::id::{SeqNum, Ssrc};
use threadbare_rtp::session::{Config, Event, NACKS_MAX, Profile, RtcpSession};

use super::{MS, S, address, compound, config, events, packet, run};

fn session_with(regular_interval_ns: u64, reduced_size: bool) -> RtcpSession {
    let config = Config {
        profile: Profile::Avpf {
            regular_interval_ns,
            feedback_delay_ns_max: 200 * MS,
        },
        reduced_size,
        ..config(1)
    };
    let mut session = RtcpSession::new(0, config);
    session.handle_rtp(0, address(9), packet(7, 0));
    session.handle_rtp(20 * MS, address(9), packet(7, 1));
    events(&mut session);
    session
}

/// Returns the numbers that a packet requests again, as read by another parser.
fn nacked(bytes: &[u8]) -> Vec<u16> {
    let mut lost = Vec::new();
    for part in rtcp_types::Compound::parse(bytes).expect("a compound") {
        if let Ok(rtcp_types::Packet::TransportFeedback(feedback)) = part {
            let nack = feedback.parse_fci::<rtcp_types::Nack>().expect("a NACK");
            assert_eq!((feedback.sender_ssrc(), feedback.media_ssrc()), (1, 7));
            lost.extend(nack.entries());
        }
    }
    lost
}

#[test]
fn first_feedback_to_one_peer_is_sent_at_once_and_the_next_waits() {
    let mut session = session_with(0, false);
    run(&mut session, 10 * S);
    let now_ns = session.next_timeout().expect("a timer") - 100 * MS;
    let seqs = [5, 6, 7, 22, 23, 40].map(SeqNum);
    assert!(session.request_nack(now_ns, Ssrc(7), seqs));
    let sent = run(&mut session, now_ns);
    assert_eq!(sent.len(), 1);
    assert_eq!(nacked(&sent[0].1), [5, 6, 7, 22, 23, 40]);
    // The next request waits for the regular packet, which the early packet has postponed.
    assert!(
        !session.request_nack(now_ns + MS, Ssrc(7), [SeqNum(50)]),
        "too late to be of use"
    );
    assert_eq!(session.stats().feedback_dropped, 1);
    let regular_ns = session.next_timeout().expect("a timer");
    assert!(session.request_nack(regular_ns - 100 * MS, Ssrc(7), [SeqNum(60)]));
    let sent = run(&mut session, regular_ns + 10 * S);
    assert_eq!(nacked(&sent[0].1), [60]);
    assert!(sent.len() > 1 && nacked(&sent[1].1).is_empty());
}

#[test]
fn in_a_group_feedback_is_delayed_and_dropped_if_another_member_sent_it() {
    let mut waits = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let config = Config {
            profile: Profile::Avpf {
                regular_interval_ns: 0,
                feedback_delay_ns_max: 10 * S,
            },
            seed,
            ..config(1)
        };
        let mut session = RtcpSession::new(0, config);
        for ssrc in 7..20 {
            session
                .handle_rtcp(0, address(ssrc as u16), &compound(ssrc, false))
                .expect("good");
        }
        run(&mut session, 20 * S);
        let regular_ns = session.next_timeout().expect("a timer");
        let now_ns = 20 * S;
        assert!(session.request_nack(now_ns, Ssrc(7), [SeqNum(5)]));
        assert!(session.request_pli(now_ns, Ssrc(7)));
        let at_ns = session.next_timeout().expect("a timer");
        assert!(at_ns <= regular_ns);
        waits.insert(at_ns - now_ns);
        if at_ns < regular_ns {
            // Another member has already requested all these packets.
            let mut bytes = compound(8, false);
            bytes.extend([0x81, 205, 0, 3, 0, 0, 0, 8, 0, 0, 0, 7, 0, 3, 0, 2]);
            bytes.extend([0x81, 206, 0, 2, 0, 0, 0, 8, 0, 0, 0, 7]);
            session
                .handle_rtcp(now_ns, address(8), &bytes)
                .expect("good");
            assert_eq!(session.next_timeout(), Some(regular_ns));
        }
    }
    assert!(waits.len() > 10, "{waits:?}");
}

#[test]
fn reduced_size_feedback_is_sent_without_a_report() {
    let mut session = session_with(0, true);
    run(&mut session, 10 * S);
    let now_ns = session.next_timeout().expect("a timer") - 50 * MS;
    assert!(session.request_pli(now_ns, Ssrc(7)));
    let sent = run(&mut session, now_ns);
    assert_eq!(sent[0].1, [0x81, 206, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7]);
}

#[test]
fn regular_reports_are_omitted_within_their_minimum_interval() {
    let count = |regular_interval_ns| {
        let mut session = session_with(regular_interval_ns, false);
        for number in 2..50 * 300 {
            session.handle_rtp(number * 20 * MS, address(9), packet(7, number));
        }
        run(&mut session, 300 * S).len()
    };
    let (often, rarely) = (count(0), count(10 * S));
    assert!(often > 600, "as often as 500 bytes/s allow: {often}");
    assert!((15..50).contains(&rarely), "{rarely}");
}

#[test]
fn avp_sends_no_feedback_requests() {
    let mut session = RtcpSession::new(0, config(1));
    assert!(!session.request_nack(0, Ssrc(7), [SeqNum(5)]));
    assert!(!session.request_pli(0, Ssrc(7)));
    assert_eq!(session.stats().feedback_dropped, 2);
    assert!(nacked(&run(&mut session, 10 * S)[0].1).is_empty());
}

#[test]
fn requests_are_bounded() {
    let mut session = session_with(0, false);
    let all = (0..=u16::MAX)
        .cycle()
        .map(|seq| SeqNum(seq.wrapping_mul(40)));
    assert!(!session.request_nack(S, Ssrc(7), all));
    let sent = run(&mut session, 5 * S);
    assert_eq!(nacked(&sent[0].1).len(), NACKS_MAX);
}

#[test]
fn feedback_for_our_stream_is_reported() {
    let mut session = session_with(0, false);
    let mut bytes = compound(7, false);
    bytes.extend([
        0x81, 205, 0, 4, 0, 0, 0, 7, 0, 0, 0, 1, 0xff, 0xfe, 0x80, 1, 0, 9, 0, 0,
    ]);
    bytes.extend([0x81, 205, 0, 3, 0, 0, 0, 7, 0, 0, 0, 2, 0, 9, 0, 0]); // about another source
    bytes.extend([0x81, 206, 0, 2, 0, 0, 0, 7, 0, 0, 0, 1]);
    bytes.extend([
        0x84, 206, 0, 4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 42, 0, 0, 0,
    ]);
    bytes.extend([
        0x84, 206, 0, 4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 42, 0, 0, 0, // a repetition
    ]);
    session.handle_rtcp(S, address(10), &bytes).expect("good");
    let (from, media) = (Ssrc(7), Ssrc(1));
    assert_eq!(
        events(&mut session),
        [
            Event::Nack {
                from,
                media,
                first: SeqNum(0xfffe),
                following: 0x8001
            },
            Event::Nack {
                from,
                media,
                first: SeqNum(9),
                following: 0
            },
            Event::Pli { from, media },
            Event::Fir { from, media },
        ]
    );
    let received = session.stats().feedback_received;
    assert_eq!((received.nacks, received.plis, received.firs), (4, 1, 1));
}

/// The next number is a new request. For a while, the same number is a repetition (RFC 5104, section 4.3.1.1).
#[test]
fn each_full_intra_request_is_reported_once() {
    let mut session = session_with(0, true);
    let mut told = |now_ns, number| {
        let bytes = [
            0x84, 206, 0, 4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, number, 0, 0, 0,
        ];
        session
            .handle_rtcp(now_ns, address(10), &bytes)
            .expect("good");
        events(&mut session).len()
    };
    assert_eq!(told(S, 255), 1);
    assert_eq!(told(S + 300 * MS, 255), 0);
    assert_eq!(told(S + 300 * MS, 0), 1);
    assert_eq!(told(3 * S, 0), 1, "long after");
    let other = Event::Fir {
        from: Ssrc(8),
        media: Ssrc(1),
    };
    let bytes = [
        0x84, 206, 0, 4, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
    ];
    session
        .handle_rtcp(3 * S, address(11), &bytes)
        .expect("good");
    assert_eq!(events(&mut session), [other], "of somebody else");
}

/// Returns the request's number in a packet that consists of a full intra request to 7, as read by another parser.
fn fir_number(bytes: &[u8]) -> u8 {
    let mut parts = rtcp_types::Compound::parse(bytes).expect("a compound");
    let Some(Ok(rtcp_types::Packet::PayloadFeedback(feedback))) = parts.next() else {
        panic!("no feedback");
    };
    assert_eq!((feedback.sender_ssrc(), feedback.media_ssrc()), (1, 0));
    let fir = feedback.parse_fci::<rtcp_types::Fir>().expect("a FIR");
    let entries = fir.entries().collect::<Vec<_>>();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].ssrc(), 7);
    assert!(parts.next().is_none());
    entries[0].sequence()
}

#[test]
fn full_intra_requests_are_numbered_and_a_pending_one_is_not_repeated() {
    let mut session = session_with(0, true);
    run(&mut session, 10 * S);
    for number in 0..300_u32 {
        let now_ns = session.next_timeout().expect("a timer") - 50 * MS;
        assert!(session.request_fir(now_ns, Ssrc(7)));
        assert!(session.request_fir(now_ns, Ssrc(7)));
        let sent = run(&mut session, now_ns);
        assert_eq!(fir_number(&sent[0].1), number as u8);
        run(&mut session, now_ns + S);
    }
    assert_eq!(session.stats().feedback_sent.firs, 300);
}

#[test]
fn a_profile_that_is_negotiated_later_applies_from_then_on() {
    let mut session = RtcpSession::new(0, config(1));
    let profile = Profile::Avpf {
        regular_interval_ns: 0,
        feedback_delay_ns_max: S,
    };
    assert!(!session.request_pli(0, Ssrc(7)));
    session.set_profile(S, profile, true);
    let first_ns = session.next_timeout().expect("a timer");
    assert!(first_ns < 3 * S, "{first_ns}");
    assert!(session.request_pli(S, Ssrc(7)));
    let sent = run(&mut session, S);
    assert_eq!(sent[0].1, [0x81, 206, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7]);
    session.set_profile(2 * S, Profile::Avp, false);
    assert!(!session.request_pli(2 * S, Ssrc(7)));
    let sent = run(&mut session, 100 * S);
    assert!((15..30).contains(&sent.len()), "{}", sent.len());
}
