//! DTMF digits that the owner of a call inserts or blocks.

use super::test_bed::{Bed, Heard, MS, format, with_keys};
use super::*;
use crate::codec::{Encoder, Encoding};
use crate::dtmf::Key;
use crate::leg::Payload;
use crate::tone::{self, DtmfDetector};

pub(super) fn digit(number: u8) -> DtmfDigit {
    DtmfDigit {
        key: Key::new(number).unwrap(),
        duration_ns: 100 * MS,
        pause_ns: 100 * MS,
        volume: 8,
    }
}

/// Returns the formats of the side that receives digits.
pub(super) fn listeners() -> Vec<Format> {
    vec![
        format(Encoding::Pcmu, 8000, 1),
        format(Encoding::Pcma, 8000, 1),
        format(Encoding::G722, 16_000, 1),
        format(Encoding::L16, 44_100, 2),
        format(Encoding::Opus, 48_000, 2),
    ]
}

/// Returns the formats whose packets of 20 ms fit a datagram.
pub(super) fn speakers() -> Vec<Format> {
    listeners()
        .into_iter()
        .map(|one| match one.encoding {
            Encoding::L16 => format(Encoding::L16, 16_000, 1),
            _ => one,
        })
        .collect()
}

pub(super) fn pcmu() -> Format {
    format(Encoding::Pcmu, 8000, 1)
}

/// Returns the fields of an event packet (RFC 4733, section 2.3): number, end, volume, duration.
pub(super) fn event(heard: &Heard) -> (u8, bool, u8, u16) {
    let [number, flags, high, low] = heard.payload[..].try_into().expect("four bytes");
    let duration = u16::from_be_bytes([high, low]);
    (number, flags & 0x80 != 0, flags & 0x3f, duration)
}

/// Asserts that sequence numbers increase by one and timestamps never decrease.
pub(super) fn assert_one_stream(bed: &Bed, name: &str) {
    for pair in bed.heard.windows(2) {
        assert_eq!(pair[1].seq, pair[0].seq.plus(1), "{name}");
        let step = pair[1].time.distance_from(pair[0].time);
        assert!(step >= 0, "{name}: {step}");
    }
}

/// Detects DTMF digits in audio. Returns each digit with its length in ms.
pub(super) fn detect(pcm: &[f32], to: Format) -> Vec<(u8, u64)> {
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

/// One party speaks and the other is silent, and both receive the digits.
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
            // Each digit has two updates, and its end three times (RFC 4733, sections 2.5.1.2 and 2.5.1.4).
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
            // The audio between and after the digits has its original position on the time line.
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
                    // The payload is silence, because speech would be audible between the digits.
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

/// The digit is longer than the duration field allows (RFC 4733, section 2.5.1.3).
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
    // A presses a digit, whose end comes later.
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
        assert!(bed.events.contains(&SessionEvent::PlayEnded(LegId::B)));
        assert_one_stream(&bed, &to.to_string());
        let keys = detect(&bed.decoded(to), to);
        assert_eq!(keys.len(), 1, "{to}");
        assert_eq!(keys[0].0, 4, "{to}");
        let ms = bed.heard_ms(to);
        assert!((1090.0..=1145.0).contains(&ms), "{to}: {ms}");
    }
}

#[test]
fn blocked_digits_are_reported_but_not_passed_on() {
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
            .filter(|event| matches!(event, SessionEvent::Key(LegId::A, _)));
        assert_eq!(told.count(), 2, "pressed and released");
        // The digits that the owner inserts are still played.
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

/// The DTMF digit is in the audio of a party without telephone events. G.722 packets that were forwarded have the same bytes as before, and
/// packets that were re-encoded differ.
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

/// The ng protocol says about `block media` and `silence media`: "DTMF packets can still pass through when media blocking is enabled".
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
        // These are the A-law codes of the smallest values, with the even bits inverted (ITU-T G.711).
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

pub(super) fn speak_key(bed: &mut Bed, from: Format, number: u8) {
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
                .filter(|event| matches!(event, SessionEvent::Key(..)));
            assert_eq!(told.count(), 2, "{to}");
            let pcm = bed.decoded_with_silence(to);
            let heard: u64 = detect(&pcm, to).iter().map(|(_, ms)| ms).sum();
            // The tone lasts 200 ms. If it is blocked, B still hears the 40 ms before the digit is detected, and the rest of a packet.
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
                    .any(|event| matches!(event, SessionEvent::Key(..)))
            );
        }
    }
}
