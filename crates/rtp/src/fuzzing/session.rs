//! Targets `rtcp` and `session`.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::id::{NtpTime, PayloadType, RtpTime, SeqNum, Ssrc};
use crate::session::{
    Config, Event, MinimumInterval, Profile, RtcpError, RtcpSession, RtpHeader, RtpVerdict,
};

/// Maximum number of packets that a session sends at one time, in any state: a BYE for an old SSRC, an early packet, and a regular one.
const TRANSMISSIONS_MAX: usize = 4;
/// Maximum memory of a session with a table of [`SOURCES`].
const MEMORY_BYTES_MAX: usize = 64 * 1024;
const SOURCES: usize = 4;
/// Maximum number of packets on their way between the sessions.
const FLYING_MAX: usize = 64;
const OUT_BYTES: usize = 1500;

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host % 4], 5000 + u16::from(host / 128)))
}

fn config(ssrc: u32, flags: u8) -> Config {
    let mut config = Config::call(Ssrc(ssrc), "fuzz@example.org", 8000, u64::from(flags));
    config.ntp_at_zero = NtpTime(0xe0e0_e0e0_0000_0000);
    config.sources_max = SOURCES;
    config.reduced_size = flags & 1 != 0;
    if flags & 2 != 0 {
        config.profile = Profile::Avpf {
            regular_interval_ns: if flags & 4 != 0 { 5_000_000_000 } else { 0 },
            feedback_delay_ns_max: 200_000_000,
        };
    }
    if flags & 8 != 0 {
        config.minimum_interval = MinimumInterval::Reduced;
        config.session_bandwidth_bps = u64::MAX;
    }
    if flags & 16 != 0 {
        config.rtcp_bandwidth_bps = Some(0);
    }
    config
}

/// Checks the invariants.
fn check(session: &RtcpSession) {
    let stats = session.stats();
    // A session that is leaving counts BYEs instead of members.
    assert!(stats.members >= 1 && stats.senders <= stats.members);
    assert!(session.sources().count() <= SOURCES);
    for source in session.sources() {
        assert_ne!(source.ssrc, session.ssrc(), "we are not our own source");
        assert!(source.is_valid || !source.is_sender);
    }
    let bytes = session.memory_bytes();
    assert!(bytes <= MEMORY_BYTES_MAX, "{bytes} bytes");
}

fn handle_rtcp(
    session: &mut RtcpSession,
    now_ns: u64,
    from: SocketAddr,
    bytes: &[u8],
) -> Result<(), RtcpError> {
    let (before, sources) = (session.stats(), session.sources().count());
    let has_left = session.has_left();
    let result = session.handle_rtcp(now_ns, from, bytes);
    let after = session.stats();
    match result {
        Ok(()) if has_left => assert_eq!(before, after),
        Ok(()) => assert_eq!(after.rtcp_received, before.rtcp_received + 1),
        Err(_) => {
            assert_eq!(after.rtcp_errors.total(), before.rtcp_errors.total() + 1);
            assert_eq!(
                (after.members, after.senders),
                (before.members, before.senders)
            );
            assert_eq!(session.sources().count(), sources, "all or nothing");
        }
    }
    check(session);
    result
}

/// Sends everything that is due, and checks that the timer has moved on. Returns the packets.
fn transmit(session: &mut RtcpSession, now_ns: u64) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut out = [0; OUT_BYTES];
    while let Some(bytes) = session.poll_transmit(now_ns, &mut out) {
        assert!(bytes > 0 && bytes % 4 == 0);
        packets.push(out[..bytes].to_vec());
        assert!(
            packets.len() <= TRANSMISSIONS_MAX,
            "an endless transmission"
        );
    }
    match session.next_timeout() {
        Some(at_ns) => assert!(at_ns > now_ns, "the timer stands still"),
        None => assert!(session.has_left()),
    }
    check(session);
    packets
}

/// Runs the target `rtcp`, for which the input is RTCP of any bytes. The first octet selects the settings. The second one is the length of
/// the first packet, then the packet follows, and so on.
pub fn rtcp(data: &[u8]) {
    let Some((&flags, mut rest)) = data.split_first() else {
        return;
    };
    let mut session = RtcpSession::new(0, config(1, flags));
    // These packets make the peer known.
    for number in 0..2_u16 {
        let header = RtpHeader {
            ssrc: Ssrc(7),
            seq: SeqNum(number),
            time: RtpTime(0),
            payload_type: PayloadType(0),
        };
        session.handle_rtp(u64::from(number), address(0), header);
    }
    let mut now_ns = 0;
    // Each round takes at least an octet.
    while let Some((&length, after)) = rest.split_first() {
        let (packet, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        now_ns += u64::from(length) * 100_000_000;
        let _ = handle_rtcp(&mut session, now_ns, address(length), packet);
        transmit(&mut session, now_ns);
    }
    while session.poll_event().is_some() {}
}

/// One end of a call.
struct End {
    session: RtcpSession,
    seq: SeqNum,
    host: u8,
}

enum Flying {
    Rtp(RtpHeader),
    Rtcp(Vec<u8>),
}

/// Runs the target `session`, which is a whole call of two sessions. Each octet of the input is an event for them.
pub fn session(data: &[u8]) {
    let [first, second, steps @ ..] = data else {
        return;
    };
    // Either both agree on reduced size, or neither does.
    let second = second & !1 | first & 1;
    let mut ends = [(1, *first, 1), (2, second, 2)].map(|(ssrc, flags, host)| End {
        session: RtcpSession::new(0, config(ssrc, flags)),
        seq: SeqNum(u16::MAX - 5),
        host,
    });
    let mut flying: VecDeque<(usize, Flying)> = VecDeque::new();
    let mut now_ns = 0_u64;
    for &step in steps {
        let (kind, argument) = (step >> 4, step & 15);
        let at = usize::from(argument & 1);
        match kind {
            0..=3 => send_rtp(&mut ends[at], at, now_ns, argument, &mut flying),
            4..=6 => deliver(&mut ends, now_ns, &mut flying),
            7 => drop(flying.pop_front()),
            8 | 9 => now_ns += 20_000_000 << (argument >> 1),
            // This is half an hour for each unit, and up to five days in all.
            10 => now_ns += u64::from(argument) * 1_800_000_000_000,
            11 => garbage(&mut ends[at], now_ns, argument),
            12 => {
                let (ssrc, seq) = (ends[1 - at].session.ssrc(), SeqNum(u16::from(argument)));
                let lost = (0..u16::from(argument)).map(|step| seq.plus(step * 7));
                ends[at].session.request_nack(now_ns, ssrc, lost);
                ends[at].session.request_pli(now_ns, ssrc);
                ends[at].session.request_fir(now_ns, ssrc);
            }
            13 => collide(&mut ends[at], now_ns, argument),
            14 if argument >= 14 => ends[at].session.send_bye(now_ns, "fuzzed"),
            _ => {}
        }
        for (at, end) in ends.iter_mut().enumerate() {
            for packet in transmit(&mut end.session, now_ns) {
                push(&mut flying, at, Flying::Rtcp(packet));
            }
            check_events(end);
        }
    }
}

fn push(flying: &mut VecDeque<(usize, Flying)>, at: usize, thing: Flying) {
    if flying.len() < FLYING_MAX {
        flying.push_back((1 - at, thing));
    }
}

fn send_rtp(
    end: &mut End,
    at: usize,
    now_ns: u64,
    argument: u8,
    flying: &mut VecDeque<(usize, Flying)>,
) {
    end.seq = end.seq.plus(1 + u16::from(argument == 15) * 5000);
    let header = RtpHeader {
        ssrc: end.session.ssrc(),
        seq: end.seq,
        time: RtpTime((now_ns / 125_000) as u32),
        payload_type: PayloadType(argument >> 1 & 1),
    };
    end.session.handle_rtp_sent(now_ns, header.time, 160, 1);
    push(flying, at, Flying::Rtp(header));
}

fn deliver(ends: &mut [End; 2], now_ns: u64, flying: &mut VecDeque<(usize, Flying)>) {
    let Some((to, thing)) = flying.pop_front() else {
        return;
    };
    let from = address(ends[1 - to].host);
    let end = &mut ends[to];
    match thing {
        Flying::Rtp(header) => {
            end.session.handle_rtp(now_ns, from, header);
        }
        Flying::Rtcp(bytes) => {
            let result = handle_rtcp(&mut end.session, now_ns, from, &bytes);
            assert_eq!(result, Ok(()), "one side accepts the other's packets");
        }
    }
    check(&end.session);
}

fn garbage(end: &mut End, now_ns: u64, argument: u8) {
    let mut bytes = [0x80 | argument; 36];
    bytes[1] = 200 + (argument & 7);
    bytes[2] = 0;
    bytes[3] = argument;
    let _ = handle_rtcp(&mut end.session, now_ns, address(argument), &bytes);
}

/// Lets a sender with our SSRC send, or one of many unknown senders.
fn collide(end: &mut End, now_ns: u64, argument: u8) {
    let ours = end.session.ssrc();
    let is_ours = argument & 2 != 0;
    let header = RtpHeader {
        ssrc: if is_ours {
            ours
        } else {
            Ssrc(100 + u32::from(argument))
        },
        seq: SeqNum((now_ns >> 20) as u16),
        time: RtpTime(0),
        payload_type: PayloadType(0),
    };
    let verdict = end.session.handle_rtp(now_ns, address(argument), header);
    if is_ours {
        assert!(matches!(verdict, RtpVerdict::Collision | RtpVerdict::Loop));
        assert_eq!(end.session.ssrc() == ours, verdict == RtpVerdict::Loop);
    }
    check(&end.session);
}

fn check_events(end: &mut End) {
    while let Some(event) = end.session.poll_event() {
        match event {
            Event::Collision { old, new } => assert_ne!(old, new),
            Event::SsrcChanged { old, new } => assert_ne!(old, new),
            Event::ReportAboutUs { view, .. } => {
                assert!((-0x80_0000..=0x7f_ffff).contains(&view.cumulative_lost));
                assert!(view.rtt_ns.is_none_or(|rtt_ns| rtt_ns <= 30_000_000_000));
            }
            _ => {}
        }
    }
}
