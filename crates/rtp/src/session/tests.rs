use proptest::prelude::*;

use super::*;

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 5000))
}

/// Asserts that the numbers of members and senders agree with the table.
fn assert_counted(session: &RtcpSession) {
    let with = |flags: u8| {
        let all = session.sources.iter();
        all.filter(|source| source.has(flags)).count() as u32
    };
    assert_eq!(session.timing.members, 1 + with(flag::MEMBER));
    assert_eq!(
        session.timing.senders,
        u32::from(session.timing.we_sent) + with(flag::SENDER)
    );
    assert_eq!(with(flag::LEFT | flag::MEMBER), 0);
    assert!(session.events.len() <= EVENTS_MAX);
    for source in session.sources.iter() {
        let place = session.sources.find(source.ssrc).expect("it is there");
        assert_eq!(session.sources.get(place).ssrc, source.ssrc);
    }
}

proptest! {
    #[test]
    fn random_packets_keep_the_counts_of_members_and_senders_right(
        steps in prop::collection::vec((0..7_u8, 2..9_u32, any::<u8>(), 0..8_000_000_000_u64), 1..200),
    ) {
        let mut config = Config::call(Ssrc(1), "us", 8000, 1);
        config.sources_max = 5;
        let mut session = RtcpSession::new(0, config);
        let (mut now_ns, mut out) = (0, [0; 1500]);
        for (kind, who, number, wait_ns) in steps {
            now_ns += wait_ns >> (number % 16);
            let ssrc = Ssrc(who % 8 + 1);
            let from = address(number % 3);
            let mut rtcp = [0_u8; 64];
            let mut writer = wire::Writer::new(&mut rtcp);
            writer.report(ssrc, None, std::iter::empty());
            match kind {
                0..=2 => {
                    let arrival = RtpHeader {
                        ssrc,
                        seq: SeqNum(u16::from(number / 2)),
                        time: RtpTime(0),
                        payload_type: PayloadType(0),
                    };
                    session.handle_rtp(now_ns, from, arrival);
                }
                3 => session.handle_rtp_sent(now_ns, RtpTime(0), 160, 1),
                4 => {
                    writer.cname(ssrc, "them");
                }
                5 => {
                    writer.bye(ssrc, "enough");
                }
                _ => while session.poll_transmit(now_ns, &mut out).is_some() {},
            }
            let bytes = writer.bytes();
            if kind == 4 || kind == 5 {
                session.handle_rtcp(now_ns, from, &rtcp[..bytes]).expect("our own writing");
            }
            assert_counted(&session);
        }
    }
}
