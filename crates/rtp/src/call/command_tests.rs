//! Changes by the owner of a running call: DTMF digits inserted or blocked, settings, other codecs, hold.

use proptest::prelude::*;

use super::direction::units_of;
use super::tests::{Bed, Heard, MS, address, format, with_keys};
use super::*;
use crate::codec::{Decoder, Encoder, Encoding};
use crate::dtmf::Key;
use crate::leg::{AdmissionConfig, Destination, Payload};
use crate::tone::{self, DtmfDetector};

fn digit(number: u8) -> DtmfDigit {
    DtmfDigit {
        key: Key::new(number).unwrap(),
        duration_ns: 100 * MS,
        pause_ns: 100 * MS,
        volume: 8,
    }
}

/// Formats of the side that receives digits.
fn listeners() -> Vec<Format> {
    vec![
        format(Encoding::Pcmu, 8000, 1),
        format(Encoding::Pcma, 8000, 1),
        format(Encoding::G722, 16_000, 1),
        format(Encoding::L16, 44_100, 2),
        format(Encoding::Opus, 48_000, 2),
    ]
}

/// Formats whose packets of 20 ms fit a datagram.
fn speakers() -> Vec<Format> {
    listeners()
        .into_iter()
        .map(|one| match one.encoding {
            Encoding::L16 => format(Encoding::L16, 16_000, 1),
            _ => one,
        })
        .collect()
}

fn pcmu() -> Format {
    format(Encoding::Pcmu, 8000, 1)
}

/// The fields of an event packet (RFC 4733, section 2.3): number, end, volume, duration.
fn event(heard: &Heard) -> (u8, bool, u8, u16) {
    let [number, flags, high, low] = heard.payload[..].try_into().expect("four bytes");
    let duration = u16::from_be_bytes([high, low]);
    (number, flags & 0x80 != 0, flags & 0x3f, duration)
}

/// Asserts that sequence numbers increase by one and timestamps never decrease.
fn assert_one_stream(bed: &Bed, name: &str) {
    for pair in bed.heard.windows(2) {
        assert_eq!(pair[1].seq, pair[0].seq.plus(1), "{name}");
        let step = pair[1].time.distance_from(pair[0].time);
        assert!(step >= 0, "{name}: {step}");
    }
}

/// DTMF digits detected in audio, each with its length in ms.
fn detect(pcm: &[f32], to: Format) -> Vec<(u8, u64)> {
    let mono: Vec<f32> = pcm
        .iter()
        .step_by(usize::from(to.channels))
        .copied()
        .chain(std::iter::repeat_n(0.0, 4800))
        .collect();
    let mut detector = DtmfDetector::new(to.sample_rate_hz).unwrap();
    let mut events = Vec::new();
    detector.feed(&mono, &mut events);
    let mut began = 0;
    let mut keys = Vec::new();
    for event in events {
        match event {
            tone::KeyEvent::Down { at_frame, .. } => began = at_frame,
            tone::KeyEvent::Up { key, at_frame, .. } => {
                let ms = (at_frame - began) * 1000 / u64::from(to.sample_rate_hz);
                keys.push((key.number(), ms));
            }
        }
    }
    keys
}

/// One party speaks and the other is silent; both receive the digits.
#[test]
fn digits_are_events_in_the_stream_for_a_side_that_accepts_events() {
    for to in listeners() {
        for speaks in [true, false] {
            let name = format!("{to} {speaks}");
            let b = with_keys(to, 110, to.clock_rate_hz);
            let mut bed = Bed::new(
                &[Payload::audio(96, pcmu())],
                &b,
                DirectionConfig::default(),
            );
            bed.tone(pcmu(), 20, 300, |_| false);
            let began_ns = bed.now_ns;
            for number in [5, 11] {
                bed.call
                    .insert_dtmf(bed.now_ns, Side::A, digit(number))
                    .unwrap();
            }
            if speaks {
                bed.tone(pcmu(), 20, 600, |_| false)
            } else {
                bed.wait_ms(600)
            }
            assert_one_stream(&bed, &name);
            let events: Vec<&Heard> = bed
                .heard
                .iter()
                .filter(|heard| heard.payload_type == 110)
                .collect();
            // Two updates, and the end three times (RFC 4733, sections 2.5.1.2 and 2.5.1.4), each.
            assert_eq!(events.len(), 10, "{name}");
            let unit = to.clock_rate_hz / 20;
            for (half, number) in [(0, 5), (5, 11)] {
                let key = &events[half..half + 5];
                let told: Vec<_> = key.iter().map(|heard| event(heard)).collect();
                let full = 2 * unit as u16;
                let expected = [
                    (number, false, 8, unit as u16),
                    (number, false, 8, full),
                    (number, true, 8, full),
                    (number, true, 8, full),
                    (number, true, 8, full),
                ];
                assert_eq!(told, expected, "{name}");
                assert!(key.iter().all(|heard| heard.time == key[0].time), "{name}");
                let markers: Vec<bool> = key.iter().map(|heard| heard.marker).collect();
                assert_eq!(markers, [true, false, false, false, false], "{name}");
            }
            let apart = events[5].time.distance_from(events[0].time) as f64;
            let apart_ms = apart * 1000.0 / f64::from(to.clock_rate_hz);
            assert!((200.0..=222.0).contains(&apart_ms), "{name}: {apart_ms}");
            assert!(events[0].at_ns - began_ns <= 20 * MS, "{name}");
            // The audio keeps its position on the time line, between the digits and after them.
            if speaks {
                let last = bed.heard.last().unwrap();
                let ms = last.time.distance_from(bed.heard[0].time) as f64 * 1000.0
                    / f64::from(to.clock_rate_hz);
                assert!((840.0..=897.0).contains(&ms), "{name}: {ms}");
                let between = bed
                    .heard
                    .iter()
                    .filter(|heard| heard.payload_type != 110 && heard.at_ns > began_ns + 120 * MS);
                assert!(between.count() >= 15, "{name}");
            }
        }
    }
}

#[test]
fn digits_are_tones_for_a_side_without_events() {
    for to in listeners() {
        for speaks in [true, false] {
            let name = format!("{to} {speaks}");
            let mut bed = Bed::between(pcmu(), to);
            bed.tone(pcmu(), 20, 200, |_| false);
            for number in [1, 9, 15] {
                bed.call
                    .insert_dtmf(bed.now_ns, Side::A, digit(number))
                    .unwrap();
            }
            for _ in 0..40 {
                if speaks {
                    // Silence, because speech would be audible between the digits.
                    bed.speak(96, &[0xff; 160]);
                    bed.time = bed.time.wrapping_add(160);
                }
                bed.wait_ms(20);
            }
            assert_one_stream(&bed, &name);
            let keys = detect(&bed.decoded(to), to);
            let numbers: Vec<u8> = keys.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, [1, 9, 15], "{name}");
            for (_, ms) in keys {
                assert!((85..=115).contains(&ms), "{name}: {ms} ms");
            }
        }
    }
}

/// A digit longer than the duration field: RFC 4733, section 2.5.1.3.
#[test]
fn long_digit_is_sent_in_segments() {
    let to = format(Encoding::L16, 48_000, 1);
    let b = with_keys(to, 110, 48_000);
    let mut bed = Bed::new(
        &[Payload::audio(96, pcmu())],
        &b,
        DirectionConfig::default(),
    );
    let long = DtmfDigit {
        duration_ns: DTMF_NS_MAX,
        ..digit(7)
    };
    bed.call.insert_dtmf(0, Side::A, long).unwrap();
    bed.wait_ms(6000);
    assert_one_stream(&bed, "long");
    let first = bed.heard[0].time;
    let mut end = first;
    for pair in bed.heard.windows(2) {
        let (_, is_end, _, duration) = event(&pair[0]);
        assert!(!is_end || event(&pair[1]).1);
        if pair[1].time != pair[0].time {
            assert_eq!(
                (duration, pair[1].time),
                (u16::MAX, pair[0].time.plus(0xffff))
            );
        }
        end = pair[1].time.plus(u32::from(event(&pair[1]).3));
    }
    assert_eq!(end.distance_from(first), 240_000);
}

#[test]
fn inserted_digits_wait_for_the_partys_own_and_are_bounded_and_checked() {
    let both = |audio| with_keys(audio, 101, 8000);
    let mut bed = Bed::new(&both(pcmu()), &both(pcmu()), DirectionConfig::default());
    bed.tone(pcmu(), 20, 100, |_| false);
    // A presses a digit itself; its end follows later.
    bed.speak(101, &[3, 10, 1, 0x90]);
    bed.call.insert_dtmf(bed.now_ns, Side::A, digit(5)).unwrap();
    bed.wait_ms(100);
    let of = |bed: &Bed, number: u8| {
        let keys = bed.heard.iter().filter(|heard| heard.payload_type == 101);
        keys.filter(|heard| event(heard).0 == number).count()
    };
    assert_eq!((of(&bed, 3), of(&bed, 5)), (1, 0));
    bed.speak(101, &[3, 0x80 | 10, 3, 0x20]);
    bed.wait_ms(300);
    assert_eq!((of(&bed, 3), of(&bed, 5)), (2, 5));
    assert_one_stream(&bed, "wait");
    for _ in 0..DTMF_DIGITS_MAX {
        bed.call.insert_dtmf(bed.now_ns, Side::A, digit(1)).unwrap();
    }
    let refused = bed
        .call
        .insert_dtmf(bed.now_ns, Side::A, digit(1))
        .unwrap_err();
    assert_eq!(refused, DtmfError::TooMany);
    let wrong = DtmfDigit {
        duration_ns: 1,
        ..digit(1)
    };
    let refused = bed
        .call
        .insert_dtmf(0, Side::A, wrong)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("duration_ns of a DTMF digit: 1 ns, must be 40000000"),
        "{refused}"
    );
    let loud = DtmfDigit {
        volume: 64,
        ..digit(1)
    };
    let refused = bed.call.insert_dtmf(0, Side::A, loud).unwrap_err();
    assert_eq!(refused, DtmfError::Volume(64));
}

#[test]
fn clip_resumes_after_a_digit() {
    for to in listeners() {
        let mut bed = Bed::between(pcmu(), to);
        let clip = Clip {
            pcm: vec![0.0; 8000].into(),
            rate_hz: 8000,
            channels: 1,
            times: 1,
        };
        bed.call.play(0, Side::B, clip).unwrap();
        bed.wait_ms(200);
        bed.call.insert_dtmf(bed.now_ns, Side::A, digit(4)).unwrap();
        bed.wait_ms(2000);
        assert!(bed.events.contains(&CallEvent::PlayEnded(Side::B)));
        assert_one_stream(&bed, &to.to_string());
        let keys = detect(&bed.decoded(to), to);
        assert_eq!(keys.len(), 1, "{to}");
        assert_eq!(keys[0].0, 4, "{to}");
        let ms = bed.heard_ms(to);
        assert!((1090.0..=1145.0).contains(&ms), "{to}: {ms}");
    }
}

#[test]
fn blocked_digits_are_reported_and_not_heard() {
    let (from, to) = (pcmu(), format(Encoding::L16, 16_000, 1));
    let events = with_keys(from, 101, 8000);
    for b in [with_keys(to, 110, 16_000), vec![Payload::audio(97, to)]] {
        let mut bed = Bed::new(&events, &b, DirectionConfig::default());
        bed.call.block_keys(Side::A, true);
        let key = |bed: &mut Bed, number: u8| {
            for (flags, duration) in [(10, 400_u16), (10, 800), (0x8a, 800), (0x8a, 800)] {
                let [high, low] = duration.to_be_bytes();
                bed.speak(101, &[number, flags, high, low]);
                bed.wait_ms(50);
            }
            bed.time = bed.time.wrapping_add(1600);
        };
        bed.tone(from, 20, 100, |_| false);
        key(&mut bed, 3);
        bed.tone(from, 20, 100, |_| false);
        assert!(bed.heard.iter().all(|heard| heard.payload_type != 110));
        assert_eq!(detect(&bed.decoded(to), to), []);
        let told = bed
            .events
            .iter()
            .filter(|event| matches!(event, CallEvent::Key(Side::A, _)));
        assert_eq!(told.count(), 2, "pressed and released");
        // The owner's own digits are played.
        bed.heard.clear();
        bed.call.insert_dtmf(bed.now_ns, Side::A, digit(8)).unwrap();
        bed.wait_ms(400);
        match b.len() {
            1 => assert_eq!(detect(&bed.decoded(to), to)[0].0, 8),
            _ => assert_eq!(event(&bed.heard[0]).0, 8),
        }
        bed.call.block_keys(Side::A, false);
        bed.heard.clear();
        key(&mut bed, 6);
        bed.wait_ms(300);
        match b.len() {
            1 => assert_eq!(detect(&bed.decoded(to), to)[0].0, 6),
            _ => assert_eq!(event(&bed.heard[0]).0, 6),
        }
        assert_one_stream(&bed, "blocked");
    }
}

/// A DTMF digit in the audio of a party without telephone events. Forwarded packets of G.722 keep the bytes that were sent;
/// packets that are re-encoded differ.
#[test]
fn equal_codecs_are_reencoded_for_inband_digits() {
    let both = format(Encoding::G722, 16_000, 1);
    let (a, b) = (
        vec![Payload::audio(96, both)],
        vec![Payload::audio(97, both)],
    );
    let payloads = |bed: &mut Bed| -> Vec<Vec<u8>> {
        bed.heard.clear();
        bed.tone(both, 20, 200, |_| false);
        bed.wait_ms(200);
        assert_one_stream(bed, "encoded again");
        bed.heard
            .iter()
            .map(|heard| heard.payload.clone())
            .collect()
    };
    let passed = payloads(&mut Bed::new(&a, &b, DirectionConfig::default()));
    assert_eq!(passed.len(), 10);
    for (first, later) in [(false, true), (true, false)] {
        let config = DirectionConfig {
            makes_anew: first,
            ..DirectionConfig::default()
        };
        let mut bed = Bed::new(&a, &b, config);
        for makes_anew in [first, later] {
            bed.call.set_makes_anew(Side::A, makes_anew);
            assert_eq!(payloads(&mut bed) != passed, makes_anew);
        }
    }
}

/// The ng protocol, `block media` and `silence media`: "DTMF packets can still pass through when media blocking is enabled".
#[test]
fn digits_pass_while_audio_is_muted_or_held() {
    let (from, to) = (pcmu(), format(Encoding::Pcma, 8000, 1));
    let (a, b) = (with_keys(from, 101, 8000), with_keys(to, 110, 8000));
    for (mode, passes) in [(Mode::Hold, true), (Mode::Mute, true), (Mode::Hold, false)] {
        let mut bed = Bed::new(&a, &b, DirectionConfig::default());
        bed.tone(from, 20, 100, |_| false);
        bed.wait_ms(100);
        bed.call.set_mode(Side::A, mode);
        bed.call.pass_keys(Side::A, passes);
        bed.heard.clear();
        bed.tone(from, 20, 100, |_| false);
        for (flags, duration) in [(10, 400_u16), (10, 800), (0x8a, 800), (0x8a, 800)] {
            let [high, low] = duration.to_be_bytes();
            bed.speak(101, &[7, flags, high, low]);
            bed.wait_ms(50);
        }
        bed.wait_ms(200);
        let keys: Vec<_> = bed
            .heard
            .iter()
            .filter(|heard| heard.payload_type == 110)
            .collect();
        if passes {
            assert!(keys.iter().all(|key| event(key).0 == 7) && keys.len() >= 4)
        } else {
            assert_eq!(keys.len(), 0)
        }
        let audio = bed.heard.iter().filter(|heard| heard.payload_type != 110);
        let mut codes = audio.flat_map(|heard| &heard.payload);
        // ITU-T G.711: the codes of A-law for the smallest values, even bits inverted.
        assert!(codes.all(|code| matches!(code, 0x55 | 0xd5)), "{mode:?}");
        assert_one_stream(&bed, "kept back");
        // A held party gets no digits.
        bed.call.set_held(Side::B, true);
        bed.heard.clear();
        bed.speak(101, &[8, 10, 1, 0x90]);
        bed.wait_ms(200);
        assert_eq!(bed.heard.len(), 0);
    }
}

fn speak_key(bed: &mut Bed, from: Format, number: u8) {
    let mut generator = tone::ToneGenerator::new(from.sample_rate_hz).unwrap();
    let mut encoder = Encoder::new(from, &EncoderSettings::default()).unwrap();
    let frames = from.sample_rate_hz as usize / 50;
    for packet in 0..30 {
        if packet == 5 {
            generator.start(tone::Tone::key(Key::new(number).unwrap(), 10, 200));
        }
        let (mut pcm, mut payload) = (Vec::new(), Vec::new());
        generator.generate(frames, &mut pcm);
        encoder.encode(&pcm, &mut payload).unwrap();
        bed.speak(96, &payload);
        bed.time = bed.time.wrapping_add(from.clock_units(frames as u32));
        bed.wait_ms(20);
    }
}

#[test]
fn detected_tones_are_blocked() {
    for to in listeners() {
        let direction = DirectionConfig {
            detect_keys: true,
            ..DirectionConfig::default()
        };
        for (detects_later, blocks) in [(false, true), (true, true), (false, false)] {
            let mut bed = Bed::new(
                &[Payload::audio(96, pcmu())],
                &[Payload::audio(97, to)],
                DirectionConfig {
                    detect_keys: !detects_later,
                    ..direction
                },
            );
            bed.call.block_keys(Side::A, blocks);
            bed.call.set_detect_keys(Side::A, true);
            speak_key(&mut bed, pcmu(), 5);
            let told = bed
                .events
                .iter()
                .filter(|event| matches!(event, CallEvent::Key(..)));
            assert_eq!(told.count(), 2, "{to}");
            let pcm = bed.decoded_with_silence(to);
            let heard: u64 = detect(&pcm, to).iter().map(|(_, ms)| ms).sum();
            // 200 ms of tone. If it is blocked, B hears the 40 ms before the digit is detected, and a packet.
            if blocks {
                assert!(heard <= 60, "{to}: {heard} ms")
            } else {
                assert!(heard >= 180, "{to}: {heard} ms")
            }
            // With detection switched off, no digit is reported.
            bed.events.clear();
            bed.call.set_detect_keys(Side::A, false);
            speak_key(&mut bed, pcmu(), 5);
            assert!(
                !bed.events
                    .iter()
                    .any(|event| matches!(event, CallEvent::Key(..)))
            );
        }
    }
}

impl Bed {
    /// The audio that B hears, with silence for missing packets.
    fn decoded_with_silence(&self, to: Format) -> Vec<f32> {
        let mut decoder = Decoder::new(to).unwrap();
        let mut pcm = Vec::new();
        let first = self.heard[0].time;
        for heard in &self.heard {
            let units = heard.time.distance_from(first) as u32;
            let at = to.frames_of_units(units) as usize * usize::from(to.channels);
            pcm.resize(at.max(pcm.len()), 0.0);
            decoder.decode(&heard.payload, &mut pcm).unwrap();
        }
        pcm
    }
}

#[test]
fn the_packet_time_changes_live() {
    for to in [
        pcmu(),
        format(Encoding::Pcma, 8000, 1),
        format(Encoding::Opus, 48_000, 2),
    ] {
        let mut bed = Bed::between(pcmu(), to);
        bed.tone(pcmu(), 20, 200, |_| false);
        for (packet_ns, ms) in [(40 * MS, 40), (10 * MS, 10), (0, 20)] {
            bed.call.set_packet_ns(Side::A, packet_ns).unwrap();
            let before = bed.heard.len();
            bed.tone(pcmu(), 20, 400, |_| false);
            // The audio gathered so far leaves in one packet; after that, all packets have the new length.
            let new = &bed.heard[before + 2..];
            let unit = i64::from(to.clock_rate_hz) / 1000;
            assert!(new.len() >= 6, "{to} {ms}: {}", new.len());
            for pair in new.windows(2) {
                assert_eq!(
                    pair[1].time.distance_from(pair[0].time),
                    ms * unit,
                    "{to} {ms}"
                );
            }
            assert_one_stream(&bed, &to.to_string());
        }
    }
    let mut bed = Bed::between(pcmu(), format(Encoding::L16, 44_100, 2));
    let refused = bed
        .call
        .set_packet_ns(Side::A, 20 * MS)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("20000 µs"), "{refused}");
}

/// A re-INVITE: B takes other codecs from now on. B hears one continuous stream.
#[test]
fn changed_codec_continues_the_stream() {
    for from in speakers() {
        for first in listeners() {
            for second in listeners() {
                let name = format!("{from} to {first}, then {second}");
                let mut bed = Bed::between(from, first);
                bed.tone(from, 20, 410, |_| false);
                let before = bed.heard.len();
                let end = bed.heard[before - 1].time;
                let takes = Arc::new(PayloadMap::new(&[Payload::audio(111, second)]).unwrap());
                bed.call.set_payloads(Side::B, takes.clone(), takes);
                bed.tone(from, 20, 400, |_| false);
                assert_one_stream(&bed, &name);
                let after = &bed.heard[before..];
                assert!(
                    after.iter().all(|heard| heard.payload_type == 111),
                    "{name}"
                );
                assert!(after.len() >= 18, "{name}: {}", after.len());
                assert!(after[0].marker, "{name}");
                // The new codec's audio starts one packet time later, plus the audio gathered for the old codec.
                let step = after[0].time.distance_from(end);
                let first_ms = step as f64 * 1000.0 / f64::from(first.clock_rate_hz);
                let second_ms = step as f64 * 1000.0 / f64::from(second.clock_rate_hz);
                assert!(
                    first_ms.min(second_ms) <= 45.0,
                    "{name}: {first_ms} {second_ms}"
                );
                let span = after[after.len() - 1].time.distance_from(after[0].time) as f64;
                let span_ms = span * 1000.0 / f64::from(second.clock_rate_hz);
                assert!((339.0..=400.0).contains(&span_ms), "{name}: {span_ms} ms");
            }
        }
    }
}

/// A re-INVITE: the party that speaks takes other codecs from now on.
#[test]
fn changed_codec_of_the_speaker_continues_the_stream() {
    for first in speakers() {
        for second in speakers() {
            for to in listeners() {
                let name = format!("{first}, then {second}, to {to}");
                let mut bed = Bed::between(first, to);
                bed.tone(first, 20, 400, |_| false);
                let sends = Arc::new(PayloadMap::new(&[Payload::audio(96, second)]).unwrap());
                bed.call.set_payloads(Side::A, sends.clone(), sends);
                bed.tone(second, 20, 400, |_| false);
                assert_one_stream(&bed, &name);
                let ms = bed.heard_ms(to);
                assert!((740.0..=822.0).contains(&ms), "{name}: {ms} ms");
                assert!(
                    bed.heard.iter().all(|heard| heard.payload_type == 97),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn clip_continues_in_another_codec() {
    for first in listeners() {
        for second in listeners() {
            let name = format!("{first}, then {second}");
            let mut bed = Bed::between(pcmu(), first);
            let clip = Clip {
                pcm: vec![0.1; 16_000].into(),
                rate_hz: 8000,
                channels: 1,
                times: 1,
            };
            bed.call.play(0, Side::B, clip).unwrap();
            bed.wait_ms(500);
            let before = bed.heard.len();
            let takes = Arc::new(PayloadMap::new(&[Payload::audio(111, second)]).unwrap());
            bed.call.set_payloads(Side::B, takes.clone(), takes);
            bed.wait_ms(3000);
            assert!(
                bed.events.contains(&CallEvent::PlayEnded(Side::B)),
                "{name}"
            );
            assert_one_stream(&bed, &name);
            let after = &bed.heard[before..];
            assert!(
                after.iter().all(|heard| heard.payload_type == 111),
                "{name}"
            );
            assert!(after.len() >= 72, "{name}: {}", after.len());
        }
    }
}

/// Hold for minutes, then resume: in the meantime only reports are sent, and no audio is produced.
#[test]
fn held_party_gets_only_reports_and_resumes_in_one_stream() {
    for to in listeners() {
        for speaks in [true, false] {
            let name = format!("{to} {speaks}");
            let mut bed = Bed::between(pcmu(), to);
            bed.tone(pcmu(), 20, 400, |_| false);
            let before = bed.heard.len();
            bed.call.set_held(Side::B, true);
            let reports = bed.call.leg(Side::B).stats().session.rtcp_sent;
            bed.call.insert_dtmf(bed.now_ns, Side::A, digit(1)).unwrap();
            if speaks {
                bed.tone(pcmu(), 20, 60_000, |_| false)
            } else {
                bed.wait_ms(60_000);
                bed.time = bed.time.wrapping_add(60_000 * 8);
            }
            assert_eq!(bed.heard.len(), before, "{name}");
            let stats = bed.call.leg(Side::B).stats();
            assert!(stats.session.rtcp_sent >= reports + 5, "{name}");
            assert_eq!(stats.rtp_to, None);
            bed.call.set_held(Side::B, false);
            bed.tone(pcmu(), 20, 400, |_| false);
            assert_one_stream(&bed, &name);
            let after = &bed.heard[before..];
            assert!(
                after.len() >= 18 && after[0].marker,
                "{name}: {}",
                after.len()
            );
            let pause = after[0].time.distance_from(bed.heard[before - 1].time) as f64;
            let pause_ms = pause * 1000.0 / f64::from(to.clock_rate_hz);
            assert!(
                (59_960.0..=60_060.0).contains(&pause_ms),
                "{name}: {pause_ms}"
            );
        }
    }
}

/// The old way to hold: `c=IN IP4 0.0.0.0` (RFC 3264, section 8.4). The kernel would take that address for this machine.
#[test]
fn nothing_is_sent_to_0_0_0_0() {
    let nowhere: SocketAddr = "0.0.0.0:6000".parse().unwrap();
    let mut bed = Bed::between(pcmu(), pcmu());
    bed.tone(pcmu(), 20, 200, |_| false);
    let before = bed.heard.len();
    for destination in [
        Destination::Peer,
        Destination::Fixed {
            rtp: nowhere,
            rtcp: None,
        },
    ] {
        let admission = AdmissionConfig {
            peer: Some(nowhere),
            ..AdmissionConfig::default()
        };
        let now_ns = bed.now_ns;
        bed.call
            .leg_mut(Side::B)
            .relearn(now_ns, admission, destination);
        bed.tone(pcmu(), 20, 200, |_| false);
        assert_eq!(bed.heard.len(), before);
        assert_eq!(bed.call.leg(Side::B).rtcp_to(), None);
    }
    let admission = AdmissionConfig {
        peer: Some(address(Side::B)),
        ..AdmissionConfig::default()
    };
    let now_ns = bed.now_ns;
    bed.call
        .leg_mut(Side::B)
        .relearn(now_ns, admission, Destination::Peer);
    bed.tone(pcmu(), 20, 200, |_| false);
    assert_one_stream(&bed, "back");
    assert!(bed.heard.len() >= before + 8);
}

/// A sender may stop its timestamps during a pause. A digit inserted during or after the pause replaces the audio for the length
/// of the digit, not for the length of the pause.
#[test]
fn digit_after_a_pause_replaces_only_audio_of_its_own_length() {
    for to in listeners() {
        for (pause_ms, pauses_between) in [(0, false), (300, false), (3000, false), (3000, true)] {
            let name = format!("{to} {pause_ms} ms, again {pauses_between}");
            let b = with_keys(to, 110, to.clock_rate_hz);
            let mut bed = Bed::new(
                &[Payload::audio(96, pcmu())],
                &b,
                DirectionConfig::default(),
            );
            bed.tone(pcmu(), 20, 400, |_| false);
            bed.wait_ms(pause_ms);
            if pauses_between {
                bed.tone(pcmu(), 20, 400, |_| false);
            }
            bed.call.insert_dtmf(bed.now_ns, Side::A, digit(5)).unwrap();
            bed.tone(pcmu(), 20, 200, |_| false);
            let before = bed.heard.len();
            bed.tone(pcmu(), 20, 1000, |_| false);
            let audio = bed.heard[before..]
                .iter()
                .filter(|heard| heard.payload_type != 110);
            // The digit lasts 100 ms, the jitter buffer delays by 60 ms.
            let payload = Payload::audio(96, to);
            let units = audio.map(|heard| u64::from(units_of(&payload, &heard.payload)));
            let spoken_ms = units.sum::<u64>() * 1000 / u64::from(to.clock_rate_hz);
            assert!(spoken_ms >= 940, "{name}: {spoken_ms} ms of 1000");
            assert_one_stream(&bed, &name);
        }
    }
}

/// An action of the owner.
#[derive(Debug, Clone)]
enum Step {
    /// A speaks this long, in this format.
    Speak(u8),
    /// This number of A's packets is lost.
    Lose(u8),
    /// A sends nothing.
    Wait(u16),
    /// A restarts as another source.
    Restart,
    Digit(u8, u8),
    Block(bool),
    Detect(bool),
    Hold(bool),
    Mode(u8),
    PacketTime(u8),
    Codec(u8),
    Play(u16),
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..20_u8).prop_map(Step::Speak),
        1 => (1..4_u8).prop_map(Step::Lose),
        2 => (0..400_u16).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        3 => (0..16_u8, 0..200_u8).prop_map(|(key, ms)| Step::Digit(key, ms)),
        1 => any::<bool>().prop_map(Step::Block),
        1 => any::<bool>().prop_map(Step::Detect),
        2 => any::<bool>().prop_map(Step::Hold),
        1 => (0..3_u8).prop_map(Step::Mode),
        1 => (0..5_u8).prop_map(Step::PacketTime),
        2 => (0..5_u8).prop_map(Step::Codec),
        1 => (1..4000_u16).prop_map(Step::Play),
        1 => Just(Step::Stop),
    ]
}

impl Bed {
    fn take_step(&mut self, step: &Step, events: bool) {
        let now_ns = self.now_ns;
        match *step {
            Step::Speak(packets) => {
                for _ in 0..packets {
                    self.speak(96, &[0x23; 160]);
                    self.time = self.time.wrapping_add(160);
                    self.wait_ms(20);
                }
            }
            Step::Lose(packets) => {
                self.seq = self.seq.wrapping_add(u16::from(packets));
                self.time = self.time.wrapping_add(160 * u32::from(packets));
                self.wait_ms(20 * u64::from(packets));
            }
            Step::Wait(ms) => {
                self.time = self.time.wrapping_add(8 * u32::from(ms));
                self.wait_ms(ms.into());
            }
            Step::Restart => {
                (self.seq, self.time) = (self.seq.wrapping_mul(77), self.time.wrapping_mul(99));
                self.ssrc = self.ssrc.wrapping_add(1);
            }
            Step::Digit(key, ms) => {
                let digit = DtmfDigit {
                    duration_ns: (40 + u64::from(ms)) * MS,
                    pause_ns: 40 * MS,
                    ..digit(key)
                };
                let _ = self.call.insert_dtmf(now_ns, Side::A, digit);
            }
            Step::Block(blocks) => self.call.block_keys(Side::A, blocks),
            Step::Detect(detects) => self.call.set_detect_keys(Side::A, detects),
            Step::Hold(is_held) => self.call.set_held(Side::B, is_held),
            Step::Mode(mode) => {
                let modes = [Mode::Pass, Mode::Mute, Mode::Hold];
                self.call.set_mode(Side::A, modes[usize::from(mode)]);
            }
            Step::PacketTime(tens) => {
                let _ = self.call.set_packet_ns(Side::A, u64::from(tens) * 10 * MS);
            }
            Step::Codec(codec) => {
                let format = listeners()[usize::from(codec)];
                let takes = with_payload(100 + codec, format, events);
                self.call.set_payloads(Side::B, takes.clone(), takes);
            }
            Step::Play(samples) => {
                let clip = Clip {
                    pcm: vec![0.1; samples.into()].into(),
                    rate_hz: 8000,
                    channels: 1,
                    times: 1,
                };
                self.call.play(now_ns, Side::B, clip).unwrap();
            }
            Step::Stop => self.call.stop_play(Side::B),
        }
    }
}

fn with_payload(number: u8, audio: Format, events: bool) -> Arc<PayloadMap> {
    let mut payloads = vec![Payload::audio(number, audio)];
    if events {
        payloads.push(Payload::telephone_event(120, audio.clock_rate_hz));
    }
    Arc::new(PayloadMap::new(&payloads).unwrap())
}

/// A new answer arrives during a tone, and a loss is concealed: audio gathered from the tone must not follow.
#[test]
fn interrupted_tone_leaves_nothing_queued() {
    use Step::{Codec, Digit, Lose, PacketTime, Speak};
    let b = with_payload(97, pcmu(), false);
    let b: Vec<Payload> = b.iter().copied().collect();
    let mut bed = Bed::new(
        &[Payload::audio(96, pcmu())],
        &b,
        DirectionConfig::default(),
    );
    for step in [
        PacketTime(3),
        Codec(0),
        Speak(1),
        Digit(0, 41),
        Speak(1),
        Lose(2),
        Codec(0),
        Speak(1),
    ] {
        bed.take_step(&step, false);
    }
    bed.wait_ms(2000);
    assert!(bed.heard.len() > 5);
    for (at, pair) in bed.heard.windows(2).enumerate() {
        assert!(pair[1].time.distance_from(pair[0].time) > 0, "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any changes by the owner, the far side gets one stream: no number repeats, no timestamp decreases, and it accepts the
    /// codec of every packet.
    #[test]
    fn far_side_has_one_stream_after_any_commands(
        events in any::<bool>(),
        passes_directly in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let a = [Payload::audio(96, pcmu())];
        let b = with_payload(97, pcmu(), events);
        let b: Vec<Payload> = b.iter().copied().collect();
        let direction = DirectionConfig {
            passes_directly,
            ..DirectionConfig::default()
        };
        let mut bed = Bed::new(&a, &b, direction);
        let mut is_held = false;
        for step in &steps {
            let before = bed.heard.len();
            bed.take_step(step, events);
            let takes = bed.call.leg(Side::B).takes().clone();
            for heard in &bed.heard[before..] {
                prop_assert!(takes.get(crate::id::PayloadType(heard.payload_type)).is_some());
            }
            if is_held {
                prop_assert_eq!(bed.heard.len(), before);
            }
            if let Step::Hold(held) = step {
                is_held = *held;
            }
        }
        bed.call.set_held(Side::B, false);
        bed.wait_ms(2000);
        for (at, pair) in bed.heard.windows(2).enumerate() {
            prop_assert!(pair[1].seq.distance_from(pair[0].seq) >= 1, "{at}");
            let step = pair[1].time.distance_from(pair[0].time);
            prop_assert!(step >= 0, "{}: {}", at, step);
        }
    }
}
