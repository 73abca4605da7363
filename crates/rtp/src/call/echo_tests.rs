//! Calls with an echo: each party hears itself.

use std::f64::consts::TAU;

use super::test_bed::{MS, address, format, leg, with_keys};
use super::*;
use crate::codec::{Decoder, Encoder, Encoding};
use crate::id::SeqNum;
use crate::leg::Learn;
use crate::packet::Packet;

const TONES_HZ: [f64; 2] = [500.0, 1250.0];
const LEVEL: f64 = 0.25;

/// The stream that a party gets.
#[derive(Debug, Clone)]
struct Heard {
    seq: SeqNum,
    time: RtpTime,
    payload_type: u8,
    payload: Vec<u8>,
}

/// A call of two parties with different tones.
struct Bed {
    call: Session,
    scratch: Scratch,
    now_ns: u64,
    formats: [Format; 2],
    encoders: [Encoder; 2],
    sent: [u32; 2],
    heard: [Vec<Heard>; 2],
    keys: Vec<Side>,
}

impl Bed {
    fn new(formats: [Format; 2], direction: DirectionConfig) -> Bed {
        let leg = |side: Side| {
            let mut leg = leg(side, &with_keys(formats[side as usize], 101, 8000));
            leg.admission.learn = Learn::Never;
            leg
        };
        let config = SessionSpec::call(Side::BOTH.map(leg), [direction; 2]);
        let encoder = |format| Encoder::new(format, &EncoderSettings::default()).unwrap();
        Bed {
            call: Session::new(0, config).unwrap(),
            scratch: Scratch::default(),
            now_ns: 0,
            formats,
            encoders: formats.map(encoder),
            sent: [0; 2],
            heard: [Vec::new(), Vec::new()],
            keys: Vec::new(),
        }
    }

    fn poll(&mut self) {
        let (now_ns, heard) = (self.now_ns, &mut self.heard);
        self.call
            .poll_transmit(now_ns, true, &mut self.scratch, &mut |outgoing| {
                assert_eq!(outgoing.to, address(LegId(outgoing.ports).side()));
                if outgoing.channel == Channel::Rtp {
                    let packet = Packet::parse(outgoing.bytes).unwrap();
                    heard[usize::from(outgoing.ports)].push(Heard {
                        seq: packet.seq(),
                        time: packet.time(),
                        payload_type: packet.payload_type().0,
                        payload: packet.payload().to_vec(),
                    });
                }
            });
        while let Some(event) = self.call.poll_event() {
            if let SessionEvent::Key(leg, _) = event {
                self.keys.push(leg.side());
            }
        }
    }

    fn send(&mut self, side: Side, payload_type: u8, time: u32, payload: &[u8]) {
        let at = side as usize;
        let mut bytes = vec![0x80, payload_type];
        bytes.extend((self.sent[at] as u16).to_be_bytes());
        bytes.extend(time.to_be_bytes());
        bytes.extend([0, 0, 0, 1 + side as u8]);
        bytes.extend(payload);
        self.sent[at] += 1;
        let (now_ns, from) = (self.now_ns, address(side));
        self.call
            .handle_datagram(now_ns, now_ns, side as u8, Channel::Rtp, from, &bytes);
        self.poll();
    }

    /// Lets these sides speak for this many packets of 20 ms.
    fn speak(&mut self, sides: &[Side], packets: usize) {
        for _ in 0..packets {
            for side in sides {
                let at = *side as usize;
                let format = self.formats[at];
                let frames = format.sample_rate_hz as usize / 50;
                let first = self.sent[at] as usize * frames;
                let pcm: Vec<f32> = (first..first + frames)
                    .map(|n| {
                        let phase =
                            TAU * TONES_HZ[at] * n as f64 / f64::from(format.sample_rate_hz);
                        (LEVEL * phase.sin()) as f32
                    })
                    .collect();
                let mut payload = Vec::new();
                self.encoders[at].encode(&pcm, &mut payload).unwrap();
                let time = self.sent[at] * format.clock_units(frames as u32);
                self.send(*side, 96, time, &payload);
            }
            self.wait_ms(20);
        }
    }

    fn wait_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ns += MS;
            self.poll();
        }
    }

    /// Returns the levels of both tones in a party's stream from packet `first` on, in dB relative to the sent tones.
    fn levels(&self, side: Side, first: usize) -> [f64; 2] {
        let format = self.formats[side as usize];
        let mut decoder = Decoder::new(format).unwrap();
        let mut pcm = Vec::new();
        let mut begin = 0;
        for (index, heard) in self.heard[side as usize].iter().enumerate() {
            if index == first {
                begin = pcm.len();
            }
            assert_eq!(heard.payload_type, 96);
            decoder.decode(&heard.payload, &mut pcm).unwrap();
        }
        let pcm = &pcm[begin..];
        TONES_HZ.map(|hz| {
            let length = pcm.len() as f64;
            let (mut re, mut im) = (0.0, 0.0);
            for (n, sample) in pcm.iter().enumerate() {
                let n = n as f64;
                let windowed = f64::from(*sample) * (1.0 - (TAU * n / length).cos());
                let phase = TAU * hz * n / f64::from(format.sample_rate_hz);
                re += windowed * phase.cos();
                im += windowed * phase.sin();
            }
            20.0 * (2.0 * f64::hypot(re, im) / length / LEVEL).log10()
        })
    }

    /// Asserts that numbers are consecutive and timestamps never decrease.
    fn assert_one_stream(&self, side: Side) {
        for pair in self.heard[side as usize].windows(2) {
            assert_eq!(pair[1].seq, pair[0].seq.plus(1));
            assert!(pair[1].time.distance_from(pair[0].time) >= 0);
        }
    }

    fn echo_backwards(&mut self) {
        self.call.set_echo(true);
        self.call.set_mode(Side::B, Mode::Hold);
    }
}

fn narrow(encoding: Encoding) -> Format {
    format(encoding, 8000, 1)
}

fn pairs() -> Vec<[Format; 2]> {
    let (pcmu, pcma) = (narrow(Encoding::Pcmu), narrow(Encoding::Pcma));
    vec![
        [pcmu, pcmu],
        [pcmu, pcma],
        [format(Encoding::G722, 16_000, 1), pcmu],
        [format(Encoding::Opus, 48_000, 1), pcma],
    ]
}

fn each_way(check: impl Fn([Format; 2], DirectionConfig)) {
    for formats in pairs() {
        for passes_directly in [false, true] {
            let direction = DirectionConfig {
                passes_directly,
                ..DirectionConfig::default()
            };
            check(formats, direction);
        }
    }
}

#[test]
fn party_gets_its_own_tone_in_its_own_codec() {
    each_way(|formats, direction| {
        let mut bed = Bed::new(formats, direction);
        bed.call.set_echo(true);
        bed.speak(&Side::BOTH, 100);
        bed.wait_ms(200);
        for side in Side::BOTH {
            let levels = bed.levels(side, 5);
            let (own, other) = (levels[side as usize], levels[side.other() as usize]);
            assert!(own.abs() < 1.0, "{formats:?} {side:?}: {own} dB");
            assert!(other < -30.0, "{formats:?} {side:?}: {other} dB");
            bed.assert_one_stream(side);
            assert!(bed.heard[side as usize].len() <= 100);
        }
    });
}

#[test]
fn held_party_gets_nothing_during_an_echo() {
    each_way(|formats, direction| {
        let mut bed = Bed::new(formats, direction);
        bed.echo_backwards();
        bed.speak(&Side::BOTH, 50);
        bed.wait_ms(200);
        assert_eq!(bed.heard[1].len(), 0, "{formats:?}");
        let [own, other] = bed.levels(Side::A, 5);
        assert!(own.abs() < 1.0 && other < -30.0, "{own} {other}");
    });
}

#[test]
fn echo_begins_and_ends_in_one_stream_to_each_party() {
    each_way(|formats, direction| {
        let mut bed = Bed::new(formats, direction);
        let mut firsts = Vec::new();
        for echoes in [false, true, false, true] {
            bed.call.set_echo(echoes);
            bed.speak(&Side::BOTH, 150);
            bed.wait_ms(200);
            firsts.push([bed.heard[0].len(), bed.heard[1].len()]);
            for side in Side::BOTH {
                let at = side as usize;
                let before = firsts
                    .len()
                    .checked_sub(2)
                    .map_or(0, |last| firsts[last][at]);
                let levels = bed.levels(side, before + 3);
                let speaker = if echoes { at } else { 1 - at };
                assert!(
                    levels[speaker].abs() < 1.0,
                    "{formats:?} {firsts:?} {echoes} {levels:?}"
                );
                assert!(
                    levels[1 - speaker] < -30.0,
                    "{formats:?} {firsts:?} {echoes} {levels:?}"
                );
            }
        }
        for side in Side::BOTH {
            bed.assert_one_stream(side);
            assert!(bed.heard[side as usize].len() <= bed.sent[side as usize] as usize);
        }
    });
}

#[test]
fn an_echo_has_at_most_as_much_audio_as_arrived() {
    each_way(|formats, direction| {
        let mut bed = Bed::new(formats, direction);
        bed.call.set_echo(true);
        let tail = (TAIL_NS_MAX / (20 * MS)) as usize;
        let mut received = 0;
        for _ in 0..50 {
            bed.speak(&[Side::A], 2);
            received += 2;
            bed.sent[0] += 8;
            bed.wait_ms(160);
        }
        bed.wait_ms(500);
        let heard = bed.heard[0].len();
        assert!(heard >= received && heard <= 2 * received + tail, "{heard}");
        assert!(bed.heard[1].is_empty());
    });
}

#[test]
fn strangers_cause_no_echo() {
    let mut bed = Bed::new([narrow(Encoding::Pcmu); 2], DirectionConfig::default());
    bed.call.set_echo(true);
    let stranger = SocketAddr::from(([203, 0, 113, 9], 9));
    for number in 0..50_u8 {
        let mut bytes = vec![0x80, 96, 0, number, 0, 0, number, 0, 0, 0, 0, 1];
        bytes.extend([0x2a; 160]);
        let now_ns = bed.now_ns;
        bed.call.handle_datagram(
            now_ns,
            now_ns,
            Side::A as u8,
            Channel::Rtp,
            stranger,
            &bytes,
        );
        bed.wait_ms(20);
    }
    assert!(bed.heard.iter().all(Vec::is_empty));
}

#[test]
fn clip_plays_before_the_echo() {
    let pcmu = narrow(Encoding::Pcmu);
    let mut bed = Bed::new([pcmu; 2], DirectionConfig::default());
    bed.echo_backwards();
    bed.speak(&[Side::A], 20);
    let first = bed.heard[0].len();
    let silence = Clip {
        pcm: vec![0.0; 8000].into(),
        rate_hz: 8000,
        channels: 1,
        times: 0,
    };
    bed.call.play(bed.now_ns, Side::A, silence).unwrap();
    bed.speak(&[Side::A], 50);
    let [own, _] = bed.levels(Side::A, first + 5);
    assert!(own < -60.0, "{own} dB");
    // The playback continues after a change of the echo.
    bed.call.set_echo(false);
    bed.speak(&[Side::A], 10);
    bed.call.set_echo(true);
    let first = bed.heard[0].len();
    bed.speak(&[Side::A], 50);
    assert!(bed.heard[0].len() > first + 40);
    assert!(bed.levels(Side::A, first + 5)[0] < -60.0);
    bed.call.stop_play(Side::A);
    let first = bed.heard[0].len();
    bed.speak(&[Side::A], 50);
    let [own, _] = bed.levels(Side::A, first + 5);
    assert!(own.abs() < 1.0, "{own} dB");
    bed.assert_one_stream(Side::A);
}

#[test]
fn digits_play_before_the_echo() {
    let pcmu = narrow(Encoding::Pcmu);
    let mut bed = Bed::new([pcmu; 2], DirectionConfig::default());
    bed.echo_backwards();
    bed.speak(&[Side::A], 20);
    let digit = DtmfDigit {
        key: crate::dtmf::Key::new(5).unwrap(),
        duration_ns: 100 * MS,
        pause_ns: 100 * MS,
        volume: 10,
    };
    bed.call.insert_dtmf(bed.now_ns, Side::B, digit).unwrap();
    let first = bed.heard[0].len();
    bed.speak(&[Side::A], 50);
    let events = bed.heard[0][first..]
        .iter()
        .filter(|heard| heard.payload_type == 101)
        .collect::<Vec<_>>();
    assert!(events.len() >= 4 && events.iter().all(|heard| heard.payload[0] == 5));
    assert!(bed.keys.is_empty());
    bed.assert_one_stream(Side::A);
}

#[test]
fn digits_and_taps_belong_to_the_party_that_speaks() {
    let pcmu = narrow(Encoding::Pcmu);
    let mut bed = Bed::new([pcmu; 2], DirectionConfig::default());
    bed.call.tap(Side::A, true);
    bed.call.set_echo(true);
    bed.speak(&[Side::A], 20);
    assert!(bed.call.tapped(Side::A) > 0 && bed.call.tapped(Side::B) == 0);
    for units in [160_u16, 320, 480] {
        let [high, low] = units.to_be_bytes();
        bed.send(Side::A, 101, 20 * 160, &[1, 10, high, low]);
        bed.wait_ms(20);
    }
    bed.wait_ms(500);
    assert_eq!(bed.keys, [Side::A; 2]);
    assert!(bed.heard[0].iter().any(|heard| heard.payload_type == 101));
    assert!(bed.heard[1].is_empty());
}

#[test]
fn state_continues_in_another_process() {
    let formats = [narrow(Encoding::Pcmu), narrow(Encoding::Pcma)];
    let mut bed = Bed::new(formats, DirectionConfig::default());
    bed.call.set_echo(true);
    bed.speak(&Side::BOTH, 50);
    bed.wait_ms(200);
    let state = bed.call.snapshot(bed.now_ns);
    let mut next = Bed::new(formats, DirectionConfig::default());
    next.call.set_echo(true);
    let outage = crate::leg::Outage {
        elapsed_ns: 0,
        unsaved_ns: 0,
    };
    next.call.restore(0, &state, outage);
    next.sent = bed.sent;
    next.heard = bed.heard.clone();
    let first = next.heard[1].len();
    next.speak(&Side::BOTH, 50);
    next.wait_ms(200);
    let [other, own] = next.levels(Side::B, first);
    assert!(own.abs() < 1.0 && other < -30.0, "{own} {other}");
    next.assert_one_stream(Side::B);
}
