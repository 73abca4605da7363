//! Compares the detector with the limits of ITU-T Q.24, annex A, for AT&T.

use proptest::prelude::*;
use threadbare_codec::codec::{
    Decoder, Encoder, EncoderSettings, Encoding, Format, SAMPLE_RATES_HZ,
};
use threadbare_codec::tone::{DtmfDetector, KeyEvent, Tone, ToneError, ToneGenerator};

use super::{KEYS, hear, key, peak, presses};
use crate::audio::{noise, tone};

/// Two tones with hard edges, which is the worst case. Levels are in dBm0.
#[derive(Debug, Clone, Copy)]
struct Press {
    low_hz: f64,
    high_hz: f64,
    low_dbm0: f64,
    high_dbm0: f64,
    ms: u32,
}

impl Press {
    fn of((_, _, low_hz, high_hz): (char, u8, f64, f64)) -> Press {
        Press {
            low_hz,
            high_hz,
            low_dbm0: -10.0,
            high_dbm0: -10.0,
            ms: 40,
        }
    }

    /// Returns the tone between silences, the first of `lead` frames.
    fn audio(self, rate_hz: u32, lead: usize) -> Vec<f32> {
        let frames = (rate_hz * self.ms / 1000) as usize;
        let low = tone(rate_hz, 1, self.low_hz, peak(self.low_dbm0), frames);
        let high = tone(rate_hz, 1, self.high_hz, peak(self.high_dbm0), frames);
        let both = low.iter().zip(high).map(|(low, high)| low + high);
        let mut audio = vec![0.0; lead];
        audio.extend(both);
        audio.resize(audio.len() + rate_hz as usize / 10, 0.0);
        audio
    }
}

#[test]
fn every_digit_is_detected_at_every_rate() {
    for rate_hz in SAMPLE_RATES_HZ {
        for press in KEYS {
            // Try any position of the windows relative to the tone.
            for lead in 0..8 {
                let lead = rate_hz as usize / 20 + lead * rate_hz as usize / 2_000;
                let audio = Press::of(press).audio(rate_hz, lead);
                let events = hear(rate_hz, &audio);
                assert_eq!(presses(&events), [press.1], "{rate_hz} Hz: {press:?}");
                let [
                    KeyEvent::Down {
                        at_frame, volume, ..
                    },
                    KeyEvent::Up { at_frame: end, .. },
                ] = events[..]
                else {
                    panic!("one press: {events:?}");
                };
                // Times are accurate to 6 ms. Two tones of -10 dBm0 have -7 dBm0 together.
                let off = |frame: u64, expected: usize| {
                    (frame as f64 - expected as f64).abs() / f64::from(rate_hz)
                };
                assert!(
                    off(at_frame, lead) < 0.006,
                    "{rate_hz} Hz: {at_frame}, {lead}"
                );
                let expected = lead + rate_hz as usize / 25;
                assert!(
                    off(end, expected) < 0.006,
                    "{rate_hz} Hz: {end}, {expected}"
                );
                assert!((6..=8).contains(&volume), "{volume}");
            }
        }
    }
}

#[test]
fn every_permitted_level_and_twist_is_detected() {
    for press in KEYS {
        for low in [0.0, -3.0, -10.0, -17.0, -25.0] {
            for twist in [-8.0, -4.0, 0.0, 4.0] {
                let high = low + twist;
                if !(-25.0..=0.0).contains(&high) {
                    continue;
                }
                for (low_off, high_off) in [
                    (0.0, 0.0),
                    (0.015, 0.015),
                    (-0.015, 0.015),
                    (0.015, -0.015),
                    (-0.015, -0.015),
                ] {
                    let one = Press::of(press);
                    let one = Press {
                        low_hz: one.low_hz * (1.0 + low_off),
                        high_hz: one.high_hz * (1.0 + high_off),
                        low_dbm0: low,
                        high_dbm0: high,
                        ..one
                    };
                    let heard = presses(&hear(8_000, &one.audio(8_000, 171)));
                    assert_eq!(heard, [press.1], "{one:?}");
                }
            }
        }
    }
}

/// Digits after G.711, which limits them to 3 dBm0 in total.
#[test]
fn clipped_digits_are_detected() {
    for press in KEYS {
        let one = Press {
            low_dbm0: 0.0,
            high_dbm0: 0.0,
            ..Press::of(press)
        };
        let mut audio = one.audio(8_000, 171);
        audio.iter_mut().for_each(|x| *x = x.clamp(-1.0, 1.0));
        assert_eq!(presses(&hear(8_000, &audio)), [press.1]);
    }
}

#[test]
fn detuned_frequencies_are_not_digits() {
    for press in KEYS {
        for (low_off, high_off) in [
            (0.035, 0.0),
            (-0.035, 0.0),
            (0.0, 0.035),
            (0.0, -0.035),
            (0.035, 0.035),
            (-0.05, 0.05),
        ] {
            for twist in [-8.0, 0.0, 4.0] {
                for rate_hz in [8_000, 44_100, 48_000] {
                    let one = Press::of(press);
                    let one = Press {
                        low_hz: one.low_hz * (1.0 + low_off),
                        high_hz: one.high_hz * (1.0 + high_off),
                        low_dbm0: one.low_dbm0 - twist,
                        ms: 500,
                        ..one
                    };
                    let heard = presses(&hear(rate_hz, &one.audio(rate_hz, 171)));
                    assert!(heard.is_empty(), "{rate_hz} Hz: {one:?}");
                }
            }
        }
    }
}

#[test]
fn short_weak_or_twisted_tones_are_not_digits() {
    for press in KEYS {
        for lead in 0..32 {
            let one = Press {
                ms: 23,
                ..Press::of(press)
            };
            assert!(
                hear(8_000, &one.audio(8_000, 100 + lead)).is_empty(),
                "{one:?}"
            );
        }
        for (low, high) in [
            (-35.0, -35.0),
            (-10.0, 0.0),
            (0.0, -14.0),
            (-20.0, -60.0),
            (-60.0, -20.0),
        ] {
            let one = Press {
                low_dbm0: low,
                high_dbm0: high,
                ms: 500,
                ..Press::of(press)
            };
            assert!(hear(8_000, &one.audio(8_000, 100)).is_empty(), "{one:?}");
        }
    }
}

#[test]
fn a_pause_ends_a_digit_and_a_shorter_interruption_does_not() {
    for press in KEYS {
        for (pause_ms, count) in [(5, 1), (10, 1), (40, 2), (60, 2)] {
            for lead in 0..16 {
                let one = Press {
                    ms: 60,
                    ..Press::of(press)
                }
                .audio(8_000, 100 + 2 * lead);
                let tone_end = one.len() - 800;
                let mut audio = one[..tone_end + pause_ms * 8].to_vec();
                audio.extend_from_slice(&one[100 + 2 * lead..]);
                let heard = presses(&hear(8_000, &audio));
                assert_eq!(heard, vec![press.1; count], "{pause_ms} ms after {press:?}");
            }
        }
    }
}

#[test]
fn fast_dialling_is_detected_through_g711_and_noise() {
    for encoding in [Encoding::Pcmu, Encoding::Pcma] {
        for rate_hz in [8_000, 16_000] {
            let format = Format::new(encoding, rate_hz, 1).expect("a format");
            let mut generator = ToneGenerator::new(rate_hz).expect("a supported rate");
            let mut audio = Vec::new();
            let ms = rate_hz as usize / 1000;
            for (_, number, ..) in KEYS {
                generator.start(Tone::key(key(number), 13, 50));
                generator.generate(ms * 93, &mut audio);
            }
            generator.generate(ms * 100, &mut audio);
            // 18 dB below the tones.
            let hum = noise(3, peak(-31.0) * 1.225, audio.len());
            let noisy: Vec<_> = audio.iter().zip(hum).map(|(a, b)| a + b).collect();
            let mut encoder =
                Encoder::new(format, &EncoderSettings::default()).expect("an encoder");
            let mut decoder = Decoder::new(format).expect("a decoder");
            let (mut payload, mut heard) = (Vec::new(), Vec::new());
            for packet in noisy.chunks(ms * 20) {
                payload.clear();
                encoder.encode(packet, &mut payload).expect("it encodes");
                decoder.decode(&payload, &mut heard).expect("it decodes");
            }
            let expected: Vec<_> = KEYS.iter().map(|one| one.1).collect();
            assert_eq!(presses(&hear(rate_hz, &heard)), expected, "{format}");
        }
    }
}

#[test]
fn digit_change_without_a_pause_is_two_digits() {
    for (first, second) in KEYS.iter().zip(KEYS.iter().skip(1)) {
        let mut audio = Press::of(*first).audio(8_000, 80);
        audio.truncate(80 + 320);
        audio.extend(Press::of(*second).audio(8_000, 0));
        assert_eq!(presses(&hear(8_000, &audio)), [first.1, second.1]);
    }
}

#[test]
fn a_reset_releases_the_pressed_digit() {
    let mut detector = DtmfDetector::new(8_000).expect("a supported rate");
    let audio = Press::of(KEYS[0]).audio(8_000, 0);
    let mut events = Vec::new();
    detector.feed(&audio[..320], &mut events);
    assert_eq!(detector.pressed(), Some(key(1)));
    detector.reset(&mut events);
    assert_eq!((presses(&events), events.len()), (vec![1], 2));
    assert_eq!(detector.pressed(), None);
    detector.reset(&mut events);
    assert_eq!(events.len(), 2);
    assert_eq!(DtmfDetector::new(1).map(drop), Err(ToneError::Rate(1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_detector_accepts_any_audio(rate in 0_usize..11, audio in prop::collection::vec(any::<f32>(), 0..3_000)) {
        let rate_hz = SAMPLE_RATES_HZ[rate];
        let mut whole = audio;
        // The detector still detects a digit afterwards.
        whole.extend(Press::of(KEYS[5]).audio(rate_hz, rate_hz as usize / 10));
        let heard = presses(&hear(rate_hz, &whole));
        prop_assert_eq!(heard.last(), Some(&KEYS[5].1));
    }

    #[test]
    fn packet_sizes_do_not_change_the_detected_digits(sizes in prop::collection::vec(1_usize..400, 1..10)) {
        let audio = Press::of(KEYS[9]).audio(44_100, 999);
        let mut detector = DtmfDetector::new(44_100).expect("a supported rate");
        let mut events = Vec::new();
        let mut rest = &audio[..];
        for size in sizes.iter().cycle() {
            let (packet, after) = rest.split_at((*size).min(rest.len()));
            detector.feed(packet, &mut events);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(events, hear(44_100, &audio));
    }
}
