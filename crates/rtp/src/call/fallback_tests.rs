//! Streams with fallbacks in virtual time, as the far end hears them.

use std::f64::consts::TAU;

use super::test_bed::{MS, format, leg};
use super::*;
use crate::codec::{Decoder, Encoder, Encoding};
use crate::id::Ssrc;
use crate::leg::{AdmissionConfig, Destination, Learn, LegConfig, Payload};
use crate::packet::Packet;
use std::net::SocketAddr;

/// Frequencies that identify the senders. None is a multiple of another.
const MAIN_HZ: f64 = 997.0;
const OTHER_HZ: f64 = 661.0;
const TONE_HZ: f64 = 440.0;

const PCMU: Encoding = Encoding::Pcmu;

fn listener() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 9], 7000))
}

fn audio(format: Format) -> Vec<Payload> {
    vec![Payload::audio(96, format)]
}

fn open(side: Side, format: Format) -> LegConfig {
    LegConfig {
        mux: false,
        admission: AdmissionConfig::default(),
        ..leg(side, &audio(format))
    }
}

fn to_listener(format: Format) -> Target {
    Target::Other(Box::new(LegConfig {
        admission: AdmissionConfig {
            peer: Some(listener()),
            learn: Learn::Never,
            ..AdmissionConfig::default()
        },
        destination: Destination::Fixed {
            rtp: listener(),
            rtcp: None,
        },
        ..open(Side::B, format)
    }))
}

fn fallback(input: FallbackInput) -> Fallback {
    Fallback {
        input,
        timeout_ns: 500 * MS,
        recover_after_ns: 1000 * MS,
    }
}

fn tone() -> FallbackInput {
    FallbackInput::Sound(Sound::Tone(Box::new("440".parse().unwrap())))
}

/// A sender of a tone in packets of 20 ms.
struct Sender {
    leg: u8,
    hz: f64,
    encoder: Encoder,
    format: Format,
    sent: u32,
}

impl Sender {
    fn new(leg: u8, hz: f64, format: Format) -> Sender {
        let encoder = Encoder::new(format, &EncoderSettings::default()).unwrap();
        Sender {
            leg,
            hz,
            encoder,
            format,
            sent: 0,
        }
    }

    /// Makes the network lose this sender's packets for this long.
    fn outage(&mut self, ms: u32) {
        self.sent += ms / 20;
    }

    fn packet(&mut self) -> Vec<u8> {
        let frames = self.format.sample_rate_hz / 50;
        let sample = |n: u32| {
            let turn = self.hz * f64::from(n) / f64::from(self.format.sample_rate_hz);
            (0.25 * (TAU * turn).sin()) as f32
        };
        let first = self.sent * frames;
        let channels = usize::from(self.format.channels);
        let frame = |n| std::iter::repeat_n(sample(n), channels);
        let pcm: Vec<f32> = (first..first + frames).flat_map(frame).collect();
        let time = self.sent * self.format.clock_units(frames);
        let mut bytes = vec![0x80, 96];
        bytes.extend((self.sent as u16).to_be_bytes());
        bytes.extend(time.to_be_bytes());
        bytes.extend([0xfe, 0xed, 0, self.leg]);
        self.encoder.encode(&pcm, &mut bytes).unwrap();
        self.sent += 1;
        bytes
    }
}

/// The stream that the far end gets.
struct Heard {
    at_ns: u64,
    packet: Vec<u8>,
}

/// A stream with its senders and its listener.
struct Bed {
    stream: Session,
    scratch: Scratch,
    now_ns: u64,
    to: Format,
    heard: Vec<Heard>,
    /// Numbers of the legs whose ports have sent reports.
    reports_from: std::collections::BTreeSet<u8>,
    switches: Vec<(u64, Switch)>,
}

impl Bed {
    fn new(main: Format, to: Format, packet_ns: u64, fallbacks: Vec<Fallback>) -> Bed {
        let direction = DirectionConfig {
            packet_ns,
            first_time: RtpTime(u32::MAX - 20_000),
            ..DirectionConfig::default()
        };
        let config = SessionSpec::stream(open(Side::A, main), to_listener(to), direction);
        Bed {
            stream: Session::new(0, config.with_fallbacks(fallbacks)).unwrap(),
            scratch: Scratch::default(),
            now_ns: 0,
            to,
            heard: Vec::new(),
            reports_from: std::collections::BTreeSet::new(),
            switches: Vec::new(),
        }
    }

    fn poll(&mut self) {
        let (heard, reports, at_ns) = (&mut self.heard, &mut self.reports_from, self.now_ns);
        let mut send = |out: Outgoing<'_>| match out.channel {
            Channel::Rtp => {
                assert_eq!((out.ports, out.to), (0, listener()));
                let packet = out.bytes.to_vec();
                heard.push(Heard { at_ns, packet });
            }
            Channel::Rtcp => {
                reports.insert(out.ports);
            }
        };
        self.stream
            .poll_transmit(self.now_ns, true, &mut self.scratch, &mut send);
        while let Some(event) = self.stream.poll_event() {
            if let SessionEvent::Input(switch) = event {
                self.switches.push((self.now_ns / MS, switch));
            }
        }
    }

    /// Runs these senders for this long.
    fn run(&mut self, ms: u64, senders: &mut [&mut Sender]) {
        let end_ns = self.now_ns + ms * MS;
        while self.now_ns < end_ns {
            for sender in senders.iter_mut() {
                let bytes = sender.packet();
                let from = SocketAddr::from(([192, 0, 2, 1], 5000 + 2 * u16::from(sender.leg)));
                let (now_ns, ports) = (self.now_ns, sender.leg);
                self.stream
                    .handle_datagram(now_ns, now_ns, ports, Channel::Rtp, from, &bytes);
                self.poll();
            }
            let next_ns = self.now_ns + 20 * MS;
            while let Some(due_ns) = self
                .stream
                .next_timeout()
                .filter(|due_ns| *due_ns < next_ns)
            {
                assert!(due_ns >= self.now_ns || due_ns == 0 || !self.heard.is_empty());
                self.now_ns = self.now_ns.max(due_ns);
                self.poll();
            }
            self.now_ns = next_ns;
        }
    }

    /// Asserts that the output is one stream. It must have one SSRC, consecutive numbers, timestamps that follow the time and never
    /// decrease, and a marker at each change of the input.
    fn assert_one_stream(&self) {
        let rate_hz = u64::from(self.to.clock_rate_hz);
        let mut last: Option<(Packet<'_>, u64, u32)> = None;
        let first = &self.heard[0];
        let begin = Packet::parse(&first.packet).unwrap();
        for heard in &self.heard {
            let packet = Packet::parse(&heard.packet).unwrap();
            let frames = self.to.payload_samples(packet.payload().len());
            let units = self.to.clock_units(frames.unwrap());
            assert_eq!((packet.ssrc(), packet.payload_type().0), (Ssrc(0xa001), 96));
            if let Some((before, at_ns, units)) = last {
                assert_eq!(packet.seq(), before.seq().plus(1));
                let step = packet.time().distance_from(before.time());
                assert!(
                    step >= i64::from(units),
                    "{step} at {} ms",
                    heard.at_ns / MS
                );
                let is_gap = heard.at_ns - at_ns > 200 * MS;
                assert!(!is_gap || packet.marker(), "at {} ms", heard.at_ns / MS);
            }
            let passed = packet.time().distance_from(begin.time()) as u64 * 1000 / rate_hz;
            let passed_by_clock = (heard.at_ns - first.at_ns) / MS;
            assert!(
                passed.abs_diff(passed_by_clock) <= 100,
                "{passed} ms of audio after {passed_by_clock} ms"
            );
            last = Some((packet, heard.at_ns, units));
        }
        for (at_ms, switch) in &self.switches {
            let behind = self.heard.iter().find(|heard| heard.at_ns / MS >= *at_ms);
            let Some(behind) = behind.map(|heard| Packet::parse(&heard.packet).unwrap()) else {
                continue;
            };
            assert!(behind.marker(), "at {at_ms} ms, {switch:?}");
        }
    }

    /// Returns the level of a tone in the packets that were sent between these times, relative to the sender's level. 1 means equal.
    fn level(&self, hz: f64, from_ms: u64, to_ms: u64) -> f64 {
        let mut decoder = Decoder::new(self.to).unwrap();
        let mut pcm = Vec::new();
        let range = from_ms * MS..to_ms * MS;
        for heard in self
            .heard
            .iter()
            .filter(|heard| range.contains(&heard.at_ns))
        {
            let packet = Packet::parse(&heard.packet).unwrap();
            decoder.decode(packet.payload(), &mut pcm).unwrap();
        }
        let mono: Vec<_> = pcm
            .chunks(usize::from(self.to.channels))
            .map(|f| f[0])
            .collect();
        let angle = |n: usize| TAU * hz * n as f64 / f64::from(self.to.sample_rate_hz);
        let part = |wave: fn(f64) -> f64| {
            let product = mono
                .iter()
                .enumerate()
                .map(|(n, s)| f64::from(*s) * wave(angle(n)));
            2.0 * product.sum::<f64>() / mono.len().max(1) as f64
        };
        part(f64::sin).hypot(part(f64::cos)) / 0.25
    }

    /// Asserts which of the three inputs is audible in these 400 ms.
    fn assert_heard(&self, expected_hz: f64, from_ms: u64) {
        for hz in [MAIN_HZ, OTHER_HZ, TONE_HZ] {
            let level = self.level(hz, from_ms, from_ms + 400);
            // The generated tone has another level: -10 dBm0, which is 1 dB lower.
            let is_there = level > 0.7;
            assert!(
                is_there == (hz == expected_hz) && (is_there || level < 0.1),
                "{hz} Hz at {level:.2} of its level from {from_ms} ms, expected {expected_hz} Hz in {}",
                self.to
            );
        }
    }
}

fn to(at_ms: u64, from: usize, to: usize) -> (u64, Switch) {
    (at_ms, Switch { from, to })
}

/// The stream changes from the main sender to a second sender with another codec, to a tone, and all the way back.
#[test]
fn far_end_hears_the_best_available_input_in_one_stream() {
    let outs = [
        (format(PCMU, 8000, 1), 0),
        (format(Encoding::Pcma, 8000, 1), 0),
        (format(Encoding::Pcma, 8000, 1), 40 * MS),
        (format(Encoding::L16, 16_000, 1), 0),
        (format(Encoding::L16, 48_000, 2), 5 * MS),
    ];
    for (number, (out, packet_ns)) in outs.into_iter().enumerate() {
        let main_format = format(PCMU, 8000, 1);
        let other_format = format(Encoding::L16, 16_000, 1);
        let other_leg = FallbackInput::Leg(Box::new(open(Side::A, other_format)));
        let all = vec![fallback(other_leg), fallback(tone())];
        let mut bed = Bed::new(main_format, out, packet_ns, all);
        let mut main = Sender::new(0, MAIN_HZ, main_format);
        let mut other = Sender::new(1, OTHER_HZ, other_format);
        bed.run(2000, &mut [&mut main, &mut other]);
        bed.run(2000, &mut [&mut other]);
        bed.run(2000, &mut []);
        // In half of the cases the packets are sent but lost, and in the others the sender's clock stops.
        if number % 2 == 0 {
            other.outage(2000);
            main.outage(6000);
        }
        bed.run(2000, &mut [&mut other]);
        bed.run(2000, &mut [&mut main, &mut other]);
        let expected = [
            to(2480, 0, 1),
            to(4480, 1, 2),
            to(7020, 2, 1),
            to(9020, 1, 0),
        ];
        for ((at_ms, switch), (expected_ms, expected)) in bed.switches.iter().zip(expected) {
            assert_eq!(*switch, expected);
            assert!(at_ms.abs_diff(expected_ms) <= 60, "{:?}", bed.switches);
        }
        assert_eq!(bed.switches.len(), 4, "{:?}", bed.switches);
        bed.assert_heard(MAIN_HZ, 1500);
        bed.assert_heard(OTHER_HZ, 3000);
        bed.assert_heard(TONE_HZ, 5000);
        bed.assert_heard(TONE_HZ, 6500);
        bed.assert_heard(OTHER_HZ, 7500);
        bed.assert_heard(OTHER_HZ, 8500);
        bed.assert_heard(MAIN_HZ, 9500);
        bed.assert_one_stream();
        let stats = bed.stream.stats();
        assert_eq!(
            (stats.directions[0].active, stats.directions[0].switches),
            (0, 4)
        );
        assert_eq!(stats.legs.len(), 3);
        assert!(stats.legs[2].packets > 200, "{}", stats.legs[2].packets);
        assert!(bed.reports_from.contains(&1), "{:?}", bed.reports_from);
    }
}

#[test]
fn a_tone_replaces_a_sender_until_its_first_packet() {
    let out = format(Encoding::Opus, 48_000, 2);
    let main_format = format(PCMU, 8000, 1);
    let mut bed = Bed::new(main_format, out, 0, vec![fallback(tone())]);
    bed.run(2000, &mut []);
    let mut main = Sender::new(0, MAIN_HZ, main_format);
    bed.run(500, &mut [&mut main]);
    bed.run(900, &mut []);
    bed.run(2000, &mut [&mut main]);
    // Half a second of packets is too short for a switch back.
    assert_eq!(bed.switches.len(), 2, "{:?}", bed.switches);
    assert_eq!(bed.switches[0], to(500, 0, 1));
    assert!(bed.switches[1].0 >= 4400, "{:?}", bed.switches);
    assert!(bed.heard[0].at_ns / MS <= 520);
    let tail = bed.heard.len();
    assert!(tail > 200, "{tail}");
    let packets: Vec<_> = bed
        .heard
        .iter()
        .map(|h| Packet::parse(&h.packet).unwrap())
        .collect();
    assert!(
        packets
            .windows(2)
            .all(|pair| pair[1].seq() == pair[0].seq().plus(1))
    );
}

/// The last fallback is a sender that is silent. It stays the active input until the main sender is back, which replaces it at once.
#[test]
fn main_sender_replaces_a_silent_last_fallback_at_once() {
    let pcmu = format(PCMU, 8000, 1);
    let other_leg = FallbackInput::Leg(Box::new(open(Side::A, pcmu)));
    let mut bed = Bed::new(pcmu, pcmu, 0, vec![fallback(other_leg)]);
    let mut main = Sender::new(0, MAIN_HZ, pcmu);
    bed.run(1000, &mut [&mut main]);
    bed.run(5000, &mut []);
    let heard = bed.heard.len();
    assert!((45..=50).contains(&heard), "{heard}");
    assert_eq!(bed.stream.stats().directions[0].active, 1);
    bed.run(1000, &mut [&mut main]);
    bed.assert_heard(MAIN_HZ, 6500);
    bed.assert_one_stream();
}

/// The clip is the samples of a file, in stereo at another rate, and is repeated.
#[test]
fn a_clip_is_played_from_its_beginning_and_repeated() {
    let turn = |n: u32| TAU * OTHER_HZ * f64::from(n) / 44_100.0;
    let frame = |n| [(0.25 * f64::sin(turn(n))) as f32; 2];
    // The clip lasts a whole second, which is a whole number of periods.
    let pcm: Vec<f32> = (0..44_100).flat_map(frame).collect();
    let clip = Clip {
        pcm: pcm.into(),
        rate_hz: 44_100,
        channels: 2,
        times: 0,
    };
    let pcmu = format(PCMU, 8000, 1);
    let clip = FallbackInput::Sound(Sound::Clip(clip));
    let mut bed = Bed::new(pcmu, pcmu, 0, vec![fallback(clip)]);
    bed.run(4000, &mut []);
    for from_ms in [600, 1300, 2300, 3300] {
        bed.assert_heard(OTHER_HZ, from_ms);
    }
    bed.assert_one_stream();
}

/// With the target [`Same`](Target::Same), the tone cannot be sent before a sender is known.
#[test]
fn tone_is_sent_once_the_sender_is_known() {
    let pcmu = format(PCMU, 8000, 1);
    let direction = DirectionConfig::default();
    let config = SessionSpec::stream(open(Side::A, pcmu), Target::Same, direction);
    let config = config.with_fallbacks(vec![fallback(tone())]);
    let mut stream = Session::new(0, config).unwrap();
    let mut scratch = Scratch::default();
    let mut heard = Vec::new();
    let from = SocketAddr::from(([192, 0, 2, 1], 5000));
    let mut main = Sender::new(0, MAIN_HZ, pcmu);
    for now_ns in (0..6000).step_by(20).map(|ms| ms * MS) {
        if (2000 * MS..2100 * MS).contains(&now_ns) {
            stream.handle_datagram(now_ns, now_ns, 0, Channel::Rtp, from, &main.packet());
        }
        stream.poll_transmit(now_ns, true, &mut scratch, &mut |out| {
            if out.channel == Channel::Rtp {
                heard.push((now_ns / MS, out.to));
            }
        });
    }
    assert_eq!(stream.stats().legs[0].no_destination, 0);
    assert!(heard.iter().all(|(ms, to)| *ms >= 2000 && *to == from));
    // The tone starts when the first packet arrives, and continues at its normal pace.
    assert!((190..=260).contains(&heard.len()), "{}", heard.len());
}

/// Filter and tap get the outgoing audio in one format, whatever the input is.
#[test]
fn filter_and_tap_get_one_format() {
    #[derive(Debug)]
    struct Half;
    impl Filter for Half {
        fn process(&mut self, format: Format, pcm: &mut Vec<f32>) {
            assert_eq!((format.sample_rate_hz, format.channels), (16_000, 1));
            pcm.iter_mut().for_each(|sample| *sample *= 0.5);
        }
    }
    let main_format = format(PCMU, 8000, 1);
    let out = format(Encoding::L16, 16_000, 1);
    let mut bed = Bed::new(main_format, out, 0, vec![fallback(tone())]);
    bed.stream.set_filter(LegId::A, Box::new(Half));
    bed.stream.tap(LegId::A, true);
    let mut main = Sender::new(0, MAIN_HZ, main_format);
    let mut taken = Vec::new();
    for senders in [&mut [&mut main][..], &mut []] {
        for _ in 0..4 {
            if senders.is_empty() {
                bed.run(500, &mut []);
            } else {
                bed.run(500, senders);
            }
            let before = taken.len();
            bed.stream.take_tapped(LegId::A, |tapped| {
                assert_eq!(tapped.format, out);
                tapped.decode(&mut taken);
            });
            assert!(taken.len() > before);
        }
    }
    assert!((bed.level(MAIN_HZ, 1000, 2000) - 0.5).abs() < 0.05);
    assert!((0.35..0.5).contains(&bed.level(TONE_HZ, 3000, 4000)));
    let left: usize = bed
        .heard
        .iter()
        .map(|heard| (heard.packet.len() - 12) / 2)
        .sum();
    // Less than one packet is still queued.
    assert!(
        taken.len() - left < 320,
        "{} tapped, {left} left",
        taken.len()
    );
    let peak = taken
        .iter()
        .fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
    assert!((0.1..0.13).contains(&peak), "{peak}");
}

#[test]
fn a_sound_that_cannot_be_played_is_refused() {
    let pcmu = format(PCMU, 8000, 1);
    for (samples, rate_hz, channels) in [(0, 8000, 1), (3, 8000, 2), (4, 12_345, 1), (18, 8000, 9)]
    {
        let clip = Clip {
            pcm: vec![0.0; samples].into(),
            rate_hz,
            channels,
            times: 0,
        };
        let direction = DirectionConfig::default();
        let config = SessionSpec::stream(open(Side::A, pcmu), to_listener(pcmu), direction);
        let clip = fallback(FallbackInput::Sound(Sound::Clip(clip)));
        let refused = Session::new(0, config.with_fallbacks(vec![clip]));
        assert!(
            matches!(refused, Err(SessionError::Sound(_))),
            "{refused:?}"
        );
    }
}

/// The stream has only listeners, so nothing is sent to any party.
#[test]
fn stream_without_a_destination_ignores_fallbacks() {
    let pcmu = format(PCMU, 8000, 1);
    let direction = DirectionConfig::default();
    let config = SessionSpec::stream(open(Side::A, pcmu), Target::Nobody, direction);
    let config = config.with_fallbacks(vec![fallback(tone())]);
    let mut stream = Session::new(0, config).unwrap();
    let mut scratch = Scratch::default();
    let from = SocketAddr::from(([192, 0, 2, 1], 5000));
    let mut main = Sender::new(0, MAIN_HZ, pcmu);
    for now_ns in (0..3000).step_by(20).map(|ms| ms * MS) {
        if now_ns < 100 * MS {
            stream.handle_datagram(now_ns, now_ns, 0, Channel::Rtp, from, &main.packet());
        }
        stream.poll_transmit(now_ns, true, &mut scratch, &mut |out| {
            assert_eq!(out.channel, Channel::Rtcp, "at {} ms", now_ns / MS);
        });
    }
}
