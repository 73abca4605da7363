use super::test_bed::{format, leg};
use super::*;
use crate::codec::Encoding;
use crate::id::{SeqNum, Ssrc};
use crate::leg::{AdmissionConfig, Destination, Learn, LegConfig, Payload, PayloadMap};
use crate::packet::Packet;
use std::net::SocketAddr;

const MS: u64 = 1_000_000;

fn sender() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 5000))
}

fn listener() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 9], 7000))
}

fn next_port(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

fn pcmu() -> Payload {
    Payload::audio(0, format(Encoding::Pcmu, 8000, 1))
}

fn pcma() -> Payload {
    Payload::audio(8, format(Encoding::Pcma, 8000, 1))
}

fn source(payloads: &[Payload]) -> LegConfig {
    LegConfig {
        mux: false,
        admission: AdmissionConfig::default(),
        ..leg(Side::A, payloads)
    }
}

fn target(payloads: &[Payload]) -> Box<LegConfig> {
    Box::new(LegConfig {
        mux: false,
        admission: AdmissionConfig {
            peer: Some(listener()),
            learn: Learn::Never,
            ..AdmissionConfig::default()
        },
        destination: Destination::Fixed {
            rtp: listener(),
            rtcp: None,
        },
        ..leg(Side::B, payloads)
    })
}

/// A stream in virtual time, with all datagrams that it sent.
struct Bed {
    stream: Session,
    scratch: Scratch,
    now_ns: u64,
    sent: Vec<(Channel, SocketAddr, Vec<u8>)>,
    /// Times at which RTP was sent, ms.
    rtp_ms: Vec<u64>,
}

impl Bed {
    fn new(source: LegConfig, target: Target) -> Bed {
        Bed {
            stream: Session::new(
                0,
                SessionSpec::stream(source, target, DirectionConfig::default()),
            )
            .unwrap(),
            scratch: Scratch::default(),
            now_ns: 0,
            sent: Vec::new(),
            rtp_ms: Vec::new(),
        }
    }

    fn hand_in(&mut self, channel: Channel, from: SocketAddr, bytes: &[u8]) {
        let now_ns = self.now_ns;
        self.stream
            .handle_datagram(now_ns, now_ns, 0, channel, from, bytes);
        self.poll();
    }

    fn poll(&mut self) {
        let (sent, rtp_ms, now_ms) = (&mut self.sent, &mut self.rtp_ms, self.now_ns / MS);
        self.stream
            .poll_transmit(self.now_ns, true, &mut self.scratch, &mut |out| {
                rtp_ms.extend((out.channel == Channel::Rtp).then_some(now_ms));
                sent.push((out.channel, out.to, out.bytes.to_vec()));
            });
    }

    /// Returns packets of 20 ms with all optional parts of a header.
    fn stream(&mut self, payload_type: u8, packets: u32) -> Vec<Vec<u8>> {
        (0..packets)
            .map(|number| {
                let mut bytes = vec![0xb1, payload_type];
                bytes.extend((number as u16).wrapping_sub(3).to_be_bytes());
                bytes.extend((number * 160).to_be_bytes());
                bytes.extend(0xfeed_u32.to_be_bytes());
                bytes.extend([0, 0, 0, 7, 0xbe, 0xde, 0, 1, 0x10, 0xff, 0, 0]);
                bytes.extend([number as u8; 160]);
                bytes.extend([0, 0, 0, 4]);
                self.hand_in(Channel::Rtp, sender(), &bytes);
                self.wait_ms(20);
                bytes
            })
            .collect()
    }

    fn wait_ms(&mut self, ms: u64) {
        let until_ns = self.now_ns + ms * MS;
        while let Some(due_ns) = self
            .stream
            .next_timeout()
            .filter(|due_ns| *due_ns <= until_ns)
        {
            self.now_ns = self.now_ns.max(due_ns);
            self.poll();
        }
        self.now_ns = until_ns;
    }

    fn rtp(&self) -> Vec<&(Channel, SocketAddr, Vec<u8>)> {
        let sent = self.sent.iter();
        sent.filter(|(channel, ..)| *channel == Channel::Rtp)
            .collect()
    }

    /// Returns the reports sent to an address.
    fn reports_to(&self, address: SocketAddr) -> Vec<&[u8]> {
        let sent = self.sent.iter();
        sent.filter(|(channel, to, _)| (*channel, *to) == (Channel::Rtcp, address))
            .map(|(_, _, bytes)| &bytes[..])
            .collect()
    }
}

#[test]
fn unchanged_packets_are_forwarded_byte_for_byte() {
    let any = Arc::new(PayloadMap::any(Some(8000)).unwrap());
    let mut from = source(&[pcmu()]);
    from.payloads = any.clone();
    let mut to = target(&[pcmu()]);
    to.payloads = any;
    // 18 is G.729, for which this crate has no codec.
    for payload_type in [0, 18, 97] {
        let mut bed = Bed::new(from.clone(), Target::Verbatim(to.clone()));
        let said = bed.stream(payload_type, 500);
        bed.wait_ms(60);
        let heard: Vec<_> = bed
            .rtp()
            .into_iter()
            .map(|(_, to, bytes)| (*to, bytes.clone()))
            .collect();
        let said: Vec<_> = said.into_iter().map(|bytes| (listener(), bytes)).collect();
        assert_eq!(heard, said, "{payload_type}");
        // Reports to the listener have the sender's SSRC, and are about it. Reports to the sender have our SSRC.
        let to_listener = bed.reports_to(next_port(listener()));
        assert!(
            to_listener
                .iter()
                .any(|report| report[1] == 200 && report[4..8] == 0xfeed_u32.to_be_bytes())
        );
        let to_sender = bed.reports_to(next_port(sender()));
        assert!(!to_sender.is_empty());
        assert!(
            to_sender
                .iter()
                .all(|report| report[4..8] == 0xa000_u32.to_be_bytes())
        );
    }
}

#[test]
fn converted_packets_go_to_the_listener_and_reports_to_both() {
    let mut bed = Bed::new(source(&[pcmu()]), Target::Other(target(&[pcma()])));
    bed.stream(0, 1000);
    bed.wait_ms(60);
    assert_eq!(bed.rtp().len(), 1000);
    for (index, (_, to, bytes)) in bed.rtp().into_iter().enumerate() {
        let packet = Packet::parse(bytes).unwrap();
        assert_eq!(
            (*to, packet.ssrc(), packet.payload_type().0),
            (listener(), Ssrc(0xa001), 8)
        );
        assert_eq!(packet.seq(), SeqNum(65_500).plus(index as u16));
    }
    // The listener gets a sender report, and the sender a receiver report (RFC 3550, section 6.4).
    let to_listener = bed.reports_to(next_port(listener()));
    let to_sender = bed.reports_to(next_port(sender()));
    assert!(to_listener.len() >= 2 && to_sender.len() >= 2);
    assert!(to_listener.iter().any(|report| report[1] == 200));
    assert!(
        to_sender
            .iter()
            .any(|report| report[1] == 201 && report[8..12] == 0xfeed_u32.to_be_bytes())
    );
    assert!(
        to_listener
            .iter()
            .all(|report| report[4..8] == 0xa001_u32.to_be_bytes())
    );
}

#[test]
fn reports_of_each_party_reach_its_own_leg() {
    let mut bed = Bed::new(source(&[pcmu()]), Target::Other(target(&[pcma()])));
    bed.stream(0, 10);
    let report = |ssrc: u32| {
        let mut bytes = vec![0x80, 201, 0, 1];
        bytes.extend(ssrc.to_be_bytes());
        bytes
    };
    bed.hand_in(Channel::Rtcp, next_port(sender()), &report(0xfeed));
    bed.hand_in(Channel::Rtcp, next_port(listener()), &report(0xbeef));
    bed.hand_in(
        Channel::Rtcp,
        SocketAddr::from(([203, 0, 113, 5], 9)),
        &report(0xdead),
    );
    let stats = bed.stream.stats();
    assert_eq!(stats.legs[0].session.rtcp_received, 1);
    assert_eq!(stats.legs[1].session.rtcp_received, 1);
    assert_eq!(stats.legs[0].refused.strangers, 1);
}

#[test]
fn stream_back_to_its_sender_uses_one_ssrc() {
    let mut bed = Bed::new(source(&[pcmu()]), Target::Same);
    bed.stream(0, 1000);
    bed.wait_ms(60);
    assert_eq!(bed.rtp().len(), 1000);
    for (channel, to, bytes) in &bed.sent {
        let at = if *channel == Channel::Rtp { 8 } else { 4 };
        assert_eq!(bytes[at..at + 4], 0xa000_u32.to_be_bytes());
        let to_whom = if *channel == Channel::Rtp {
            sender()
        } else {
            next_port(sender())
        };
        assert_eq!(*to, to_whom);
    }
}

#[test]
fn stream_without_a_destination_only_listens() {
    let mut bed = Bed::new(source(&[pcmu()]), Target::Nobody);
    bed.stream.tap(LegId::A, true);
    let mut pcm = Vec::new();
    for _ in 0..10 {
        bed.stream(0, 5);
    }
    bed.stream.take_tapped(LegId::A, |tapped| {
        assert_eq!(tapped.format, format(Encoding::Pcmu, 8000, 1));
        tapped.decode(&mut pcm);
    });
    assert!(
        bed.rtp().is_empty() && pcm.len() >= 5 * 160,
        "{}",
        pcm.len()
    );
}

/// A normaliser looks ahead, so it delays audio. When the party pauses, that audio leaves during the pause, with the right timestamps. The
/// far side gets the pause too. No packet is sent for which none arrived.
#[test]
fn audio_held_by_a_filter_leaves_in_a_pause() {
    #[derive(Debug)]
    struct Late(std::collections::VecDeque<f32>);
    const LATE_MS: u64 = 500;
    impl Filter for Late {
        fn process(&mut self, _: Format, pcm: &mut Vec<f32>) {
            self.0.extend(pcm.drain(..));
            let ready = self.0.len().saturating_sub(LATE_MS as usize * 8);
            pcm.extend(self.0.drain(..ready));
        }
        fn finish(&mut self, _: Format, pcm: &mut Vec<f32>) {
            pcm.extend(self.0.drain(..));
        }
    }
    let mut bed = Bed::new(source(&[pcmu()]), Target::Other(target(&[pcmu()])));
    bed.stream
        .set_filter(LegId::A, Box::new(Late(Default::default())));
    // The talkspurts last a second. Each packet consists of one code, which no codec changes. The pauses are longer or shorter than the
    // filter's delay.
    let starts_ms = [0, 3000, 4200, 5300, 8000];
    let mut said = Vec::new();
    for (talk, start_ms) in starts_ms.into_iter().enumerate() {
        bed.wait_ms(start_ms - bed.now_ns / MS);
        for number in 0..50_u64 {
            let (at_ms, seq) = (start_ms + number * 20, said.len() as u16);
            let mut bytes = vec![0x80, u8::from(number == 0) << 7];
            bytes.extend(seq.to_be_bytes());
            bytes.extend((at_ms as u32 * 8).to_be_bytes());
            bytes.extend(0xfeed_u32.to_be_bytes());
            bytes.extend([(talk as u8) * 0x10 + number as u8; 160]);
            bed.hand_in(Channel::Rtp, sender(), &bytes);
            bed.wait_ms(20);
            said.push((at_ms, bytes[12]));
        }
    }
    bed.wait_ms(1000);
    let rtp = bed.rtp();
    let packets: Vec<_> = rtp
        .iter()
        .map(|sent| Packet::parse(&sent.2).unwrap())
        .collect();
    assert_eq!(packets.len(), said.len());
    let first = packets[0].time().0;
    for (index, ((packet, sent_ms), (at_ms, code))) in
        packets.iter().zip(&bed.rtp_ms).zip(&said).enumerate()
    {
        assert!(packet.payload().iter().all(|byte| byte == code), "{index}");
        assert_eq!(u64::from(packet.time().0 - first), at_ms * 8, "{index}");
        assert_eq!(packet.marker(), index % 50 == 0, "{index}");
        assert_eq!(
            packet.seq().0,
            packets[0].seq().0.wrapping_add(index as u16)
        );
        // The packets are late by the delays of the jitter buffer and the filter, and by the time to detect a pause.
        let late_ms = sent_ms - at_ms;
        assert!(
            (LATE_MS..LATE_MS + 160).contains(&late_ms),
            "{index}: {late_ms}"
        );
    }
}

/// Returns a packet of 20 ms.
fn packet(number: u32) -> Vec<u8> {
    let mut bytes = vec![0x80, 0];
    bytes.extend((number as u16).wrapping_sub(60).to_be_bytes());
    bytes.extend((u32::MAX - 3000).wrapping_add(number * 160).to_be_bytes());
    bytes.extend(0xfeed_u32.to_be_bytes());
    bytes.extend([number as u8; 160]);
    bytes
}

/// Hands over a stream. Both processes hear the sender, and the second one gets the state `late_ms` after the first one has stopped.
fn handed_over(stream: impl Fn(u8) -> Bed, late_ms: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut first, mut second) = (stream(1), stream(2));
    second.stream.hold();
    let mut state = None;
    for number in 0..120 {
        for bed in [&mut first, &mut second] {
            bed.hand_in(Channel::Rtp, sender(), &packet(number));
        }
        if number == 90 {
            state = Some(first.stream.snapshot(first.now_ns));
        }
        if let Some(state) = state.take_if(|_| u64::from(number - 90) * 20 >= late_ms) {
            assert_eq!(second.sent, []);
            second.stream.go_on(Some(state));
            second.poll();
        }
        if number < 90 {
            first.wait_ms(20);
        } else {
            first.now_ns += 20 * MS;
        }
        second.wait_ms(20);
        if number >= 90 {
            // The first process has removed its stream.
            first.stream = stream(1).stream;
        }
    }
    let rtp = |bed: Bed| {
        let sent = bed.sent.into_iter();
        let rtp = sent.filter(|(channel, ..)| *channel == Channel::Rtp);
        rtp.map(|(_, _, bytes)| bytes).collect::<Vec<_>>()
    };
    (rtp(first), rtp(second))
}

/// Returns the settings of a leg, as in the gateway.
fn at_deadline(payloads: &[Payload]) -> LegConfig {
    let mut config = source(payloads);
    config.jitter.release = crate::jitter::Release::AtDeadline;
    config
}

#[test]
fn a_stream_that_is_handed_over_sends_one_stream() {
    let seeded = |config: LegConfig, seed: u8| LegConfig {
        first_seq: SeqNum(u16::from(seed) * 1000),
        ssrc: Ssrc(u32::from(seed)),
        ..config
    };
    let to_pcma = |seed| {
        let target = seeded(*target(&[pcma()]), seed);
        Bed::new(at_deadline(&[pcmu()]), Target::Other(Box::new(target)))
    };
    let l16 = Payload::audio(99, format(Encoding::L16, 16_000, 1));
    let reencoded = |seed| {
        let target = seeded(*target(&[l16]), seed);
        Bed::new(at_deadline(&[pcmu()]), Target::Other(Box::new(target)))
    };
    let verbatim = |_| Bed::new(at_deadline(&[pcmu()]), Target::Verbatim(target(&[pcmu()])));
    // If the codecs differ, the audio that is in the converter and the encoder is lost.
    type Make<'a> = &'a dyn Fn(u8) -> Bed;
    let streams: [(Make<'_>, u32, i64); 3] = [
        (&to_pcma, 160, 0),
        (&reencoded, 320, 2),
        (&verbatim, 160, 0),
    ];
    for (stream, units, packets_missing_max) in streams {
        for late_ms in [0, 40, 300] {
            let (first, second) = handed_over(stream, late_ms);
            assert!(first.len() > 50 && second.len() > 20);
            let all: Vec<_> = first.iter().chain(&second).collect();
            let read = |bytes: &Vec<u8>| {
                let packet = Packet::parse(bytes).unwrap();
                (packet.ssrc(), packet.seq(), packet.time())
            };
            let mut missing = 0;
            for (before, after) in all.iter().zip(&all[1..]) {
                let ((ssrc, seq, time), next) = (read(before), read(after));
                assert_eq!((next.0, next.1), (ssrc, seq.plus(1)), "{late_ms} ms");
                missing += next.2.distance_from(time.plus(units));
            }
            assert!(missing <= packets_missing_max * i64::from(units));
            assert!(missing >= 0 && missing % i64::from(units) == 0);
        }
    }
}

/// The previous owner has died, so its last packet is unknown.
#[test]
fn held_stream_without_state_resumes_with_due_packets() {
    let mut bed = Bed::new(at_deadline(&[pcmu()]), Target::Other(target(&[pcma()])));
    bed.stream.hold();
    for number in 0..40 {
        if number == 30 {
            assert_eq!(bed.sent, []);
            bed.stream.go_on(None);
            bed.poll();
        }
        bed.hand_in(Channel::Rtp, sender(), &packet(number));
        bed.wait_ms(20);
    }
    // The packets do not come in a burst, but only those that were due since then are sent.
    assert!((9..=11).contains(&bed.rtp_ms.len()), "{:?}", bed.rtp_ms);
}

/// If a held stream had timers, it would be polled in each slice.
#[test]
fn a_held_stream_sleeps_between_packets() {
    let mut bed = Bed::new(at_deadline(&[pcmu()]), Target::Other(target(&[pcma()])));
    bed.stream.hold();
    for number in 0..100 {
        bed.hand_in(Channel::Rtp, sender(), &packet(number));
        let due_ns = bed.stream.next_timeout();
        assert!(due_ns.is_none_or(|due_ns| due_ns > bed.now_ns));
        bed.wait_ms(20);
    }
    assert_eq!(bed.sent, []);
}

/// With multiplexing, RTP and RTCP use one port (RFC 5761, section 3).
#[test]
fn reports_leave_from_the_port_that_the_parties_agreed_on() {
    for (mux, port) in [(false, Channel::Rtcp), (true, Channel::Rtp)] {
        let mut from = source(&[pcmu()]);
        from.mux = mux;
        let mut to = target(&[pcma()]);
        to.mux = mux;
        let mut bed = Bed::new(from, Target::Other(to));
        let mut ports = Vec::new();
        for number in 0..1000 {
            let now_ns = bed.now_ns;
            bed.stream
                .handle_datagram(now_ns, now_ns, 0, Channel::Rtp, sender(), &packet(number));
            bed.stream
                .poll_transmit(now_ns, true, &mut bed.scratch, &mut |out| {
                    if out.channel == Channel::Rtcp {
                        ports.push((out.ports, out.leaves_from));
                    }
                });
            bed.now_ns += 20 * MS;
        }
        assert!(ports.len() >= 4, "{ports:?}");
        assert!(ports.iter().all(|one| *one == (0, port)), "{ports:?}");
    }
}

#[test]
fn a_payload_type_that_was_not_agreed_on_is_reported_once() {
    let mut bed = Bed::new(source(&[pcmu()]), Target::Other(target(&[pcma()])));
    let mut told = Vec::new();
    for payload_type in [97, 97, 98, 0] {
        bed.stream(payload_type, 5);
        told.extend(std::iter::from_fn(|| bed.stream.poll_event()));
    }
    told.retain(|event| matches!(event, SessionEvent::PayloadType(..)));
    let first = SessionEvent::PayloadType(LegId::A, crate::id::PayloadType(97));
    assert_eq!(told, [first]);
}
