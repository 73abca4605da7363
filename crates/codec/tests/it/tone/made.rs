//! Output of the tone generator.

use std::process::Command;

use proptest::prelude::*;
use threadbare_codec::codec::SAMPLE_RATES_HZ;
use threadbare_codec::tone::{Part, Tone, ToneError, ToneGenerator, key_frequencies_hz};

use super::{KEYS, key, peak};
use crate::audio::{Spectrum, db, rms};

fn generate(rate_hz: u32, tone: Tone, ms: u32) -> Vec<f32> {
    let mut generator = ToneGenerator::new(rate_hz).expect("a supported rate");
    generator.start(tone);
    let mut audio = Vec::new();
    generator.generate((rate_hz * ms / 1000) as usize, &mut audio);
    audio
}

#[test]
fn digits_have_the_frequencies_of_q23_at_the_requested_level() {
    for rate_hz in SAMPLE_RATES_HZ {
        for (name, number, low, high) in KEYS {
            assert_eq!(key_frequencies_hz(key(number)), [low, high]);
            for volume in [0, 10, 36] {
                let audio = generate(rate_hz, Tone::key(key(number), volume, 0), 300);
                let steady = &audio[rate_hz as usize / 20..];
                // Two equal tones have 3.01 dB more than each.
                let each = peak(-f64::from(volume) - 3.01);
                for hz in [low, high] {
                    let found = Spectrum::of(steady, rate_hz, hz);
                    assert!(
                        db(found.level / each).abs() < 0.05,
                        "{name} at {rate_hz}: {hz} Hz {found:?}"
                    );
                }
                let whole = peak(-f64::from(volume)) / 2_f64.sqrt();
                assert!(db(rms(steady) / whole).abs() < 0.1, "{name}");
                assert!(audio.iter().all(|x| x.abs() <= 1.0));
            }
        }
    }
}

#[test]
fn the_tone_of_a_digit_ends_on_time_without_a_click() {
    let mut generator = ToneGenerator::new(48_000).expect("a supported rate");
    generator.start(Tone::key(key(5), 6, 100));
    assert!(generator.is_active());
    let mut audio = Vec::new();
    generator.generate(48 * 200, &mut audio);
    assert!(!generator.is_active());
    // 100 ms, and 5 ms of fading.
    assert!(audio[48 * 105..].iter().all(|x| *x == 0.0));
    assert!(rms(&audio[48 * 90..48 * 100]) > 0.1);
    // No step is steeper than the steps of the tone itself. Without fading, both ends would have larger steps.
    let step = |pair: &[f32]| (pair[1] - pair[0]).abs();
    let steepest = 0.35 * (770.0 + 1336.0) / 48_000.0 * std::f32::consts::TAU;
    assert!(audio.windows(2).all(|pair| step(pair) < steepest));
    // A tone that is replaced or stopped in the middle also fades.
    audio.clear();
    for number in [1, 9, 14] {
        generator.start(Tone::key(key(number), 6, 0));
        generator.generate(1_003, &mut audio);
    }
    generator.stop();
    generator.generate(1_003, &mut audio);
    let steepest = 2.0 * 0.35 * (852.0 + 1633.0) / 48_000.0 * std::f32::consts::TAU;
    assert!(audio.windows(2).all(|pair| step(pair) < steepest));
    assert!(!generator.is_active());
}

#[test]
fn a_cadence_repeats() {
    // The busy tone of Europe (ITU-T E.180, supplement 2).
    let busy: Tone = "425/500,0/500".parse().expect("a tone");
    let audio = generate(8_000, busy, 3_000);
    for half in 0..6 {
        let middle = &audio[half * 4_000 + 400..half * 4_000 + 3_600];
        let expected = if half % 2 == 0 {
            peak(-10.0) / 2_f64.sqrt()
        } else {
            0.0
        };
        assert!((rms(middle) - expected).abs() < 0.001, "{half}");
    }
    let ringing: Tone = "440+480/2000,0/4000".parse().expect("a tone");
    let audio = generate(8_000, ringing.at_level(-20.0), 2_000);
    for hz in [440.0, 480.0] {
        let found = Spectrum::of(&audio[800..], 8_000, hz);
        assert!(db(found.level / peak(-23.01)).abs() < 0.1, "{found:?}");
    }
}

#[test]
fn valid_descriptions_of_tones_are_parsed_and_invalid_ones_refused() {
    for text in [
        "425",
        "440+480/2000,0/4000",
        "950/330,1400/330,1800/330,0/1000",
    ] {
        let tone: Tone = text.parse().expect(text);
        assert_eq!(tone.to_string(), text);
    }
    for (text, expected) in [
        (
            "",
            "frequency \"\": expected 20 to 3900 Hz, or 0 for silence",
        ),
        (
            "4000",
            "frequency \"4000\": expected 20 to 3900 Hz, or 0 for silence",
        ),
        (
            "NaN",
            "frequency \"NaN\": expected 20 to 3900 Hz, or 0 for silence",
        ),
        ("425/x", "duration \"x\": expected 1 to 3600000 ms"),
        ("425/0", "duration \"0\": expected 1 to 3600000 ms"),
        (
            "1000+1100+1200+1300+1400",
            "5 frequencies at once, must be 1 to 4",
        ),
        ("1000,0,0,0,0,0,0,0,0", "9 parts, must be 1 to 8"),
    ] {
        let error = text.parse::<Tone>().expect_err(text);
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(Tone::new(&[], true), Err(ToneError::Parts(0)));
    let part = Part {
        hz: [f64::INFINITY; 4],
        level_dbm0: 0.0,
        ms: 0,
    };
    assert!(Tone::new(&[part], false).is_err());
    assert_eq!(
        ToneGenerator::new(7_999).map(drop),
        Err(ToneError::Rate(7_999))
    );
}

#[test]
fn another_detector_recognises_the_digits() {
    let mut generator = ToneGenerator::new(8_000).expect("a supported rate");
    let mut audio = Vec::new();
    for (_, number, ..) in KEYS {
        generator.start(Tone::key(key(number), 10, 80));
        generator.generate(8 * 160, &mut audio);
    }
    generator.generate(8_000, &mut audio);
    let heard = other_detector(&audio);
    assert_eq!(heard, KEYS.map(|(_, number, ..)| number));
}

proptest! {
    #[test]
    fn any_text_is_parsed_as_a_tone_or_refused(text in "[0-9+/,.eNa -]{0,40}") {
        if let Ok(tone) = text.parse::<Tone>() {
            let audio = generate(8_000, tone, 100);
            prop_assert!(audio.iter().all(|x| x.abs() <= 2.0));
            prop_assert_eq!(tone.to_string().parse::<Tone>(), Ok(tone));
        }
    }
}

/// Returns the digits that GStreamer's detector (SpanDSP) finds in audio at 8 kHz.
pub(crate) fn other_detector(audio: &[f32]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys.raw");
    let bytes = audio
        .iter()
        .flat_map(|x| ((x * 32_767.0) as i16).to_le_bytes());
    std::fs::write(&path, bytes.collect::<Vec<_>>()).expect("room on the disk");
    let output = Command::new("gst-launch-1.0")
        .args([
            "-m",
            "filesrc",
            &format!("location={}", path.display()),
            "!",
        ])
        .args([
            "rawaudioparse",
            "sample-rate=8000",
            "num-channels=1",
            "pcm-format=s16le",
            "!",
        ])
        .args(["dtmfdetect", "!", "fakesink"])
        .output()
        .expect("gst-launch-1.0 is installed (scripts/setup test)");
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |line: &str| {
        let (_, rest) = line.split_once("dtmf-event, type=(int)1, number=(int)")?;
        rest.split(',').next()?.parse::<u8>().ok()
    };
    text.lines().filter_map(number).collect()
}
