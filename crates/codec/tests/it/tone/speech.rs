//! Long audio without digits: synthetic voices, music of pure tones, noise.

use std::f64::consts::TAU;

use super::made::other_detector;
use super::{hear, presses};

/// The expected result: no digits.
const NO_KEYS: [u8; 0] = [];
use crate::audio::noise;

const RATE: u32 = 8_000;

/// A reproducible random number from 0 to 1.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, least: f64, greatest: f64) -> f64 {
        least + (greatest - least) * self.roll()
    }
}

/// Returns vowels: harmonics of a gliding pitch under two formants, in syllables of 60 to 300 ms with pauses. They resemble
/// speech. With a steady pitch and narrow formants, they resemble singing, which is harder for a detector.
fn voice(seed: u64, seconds: usize, bandwidth_hz: f64, glide: f64) -> Vec<f32> {
    let mut dice = Dice(seed);
    let mut audio = Vec::new();
    while audio.len() < seconds * RATE as usize {
        let pitch = dice.between(80.0, 350.0);
        let glide = 1.0 + dice.between(-glide, glide);
        let formants = [dice.between(250.0, 1_000.0), dice.between(800.0, 2_400.0)];
        let weights = [1.0, dice.between(0.2, 1.0)];
        let frames = (dice.between(0.06, 0.3) * f64::from(RATE)) as usize;
        let level = dice.between(0.02, 0.4);
        let strength = |hz: f64| {
            let peaks = formants
                .iter()
                .zip(weights)
                .map(|(formant, weight)| weight / (1.0 + ((hz - formant) / bandwidth_hz).powi(2)));
            peaks.sum::<f64>()
        };
        let count = (3_600.0 / pitch) as usize;
        let harmonics: Vec<_> = (1..=count).map(|n| strength(pitch * n as f64)).collect();
        let mut turns = 0.0;
        for frame in 0..frames {
            let part = frame as f64 / frames as f64;
            turns += pitch * (1.0 + (glide - 1.0) * part) / f64::from(RATE);
            let sum: f64 = harmonics
                .iter()
                .enumerate()
                .map(|(n, x)| x * (TAU * turns * (n + 1) as f64).sin())
                .sum();
            audio.push((level * (part * TAU / 2.0).sin() * sum) as f32);
        }
        let pause = (dice.between(0.0, 0.1) * f64::from(RATE)) as usize;
        audio.resize(audio.len() + pause, 0.0);
    }
    audio
}

/// These voices are pure harmonics without breath or wavering, so two harmonics may equal a digit for a moment. The detector must
/// be wrong less often than a widely used one.
#[test]
fn pure_voices_cause_fewer_false_digits_than_in_another_detector() {
    let (mut ours, mut theirs) = (0, 0);
    for seed in 0..6 {
        for (bandwidth_hz, glide) in [(90.0, 0.2), (60.0, 0.01)] {
            let audio = voice(seed, 120, bandwidth_hz, glide);
            ours += presses(&hear(RATE, &audio)).len();
            theirs += other_detector(&audio).len();
        }
    }
    assert!(ours < theirs, "{ours} keys here, {theirs} there");
}

/// The voices contain breath noise, 15 dB below the voice, as real voices do.
#[test]
fn minutes_of_voices_cause_no_false_digit() {
    for seed in 0..8 {
        let audio = voice(seed, 120, 90.0, 0.2);
        let breath = noise(seed, 1.0, audio.len());
        let mut level = 0.0_f32;
        let both = audio.iter().zip(breath).map(|(x, breath)| {
            level = (level * 0.995).max(x.abs());
            x + breath * level * 0.3
        });
        assert_eq!(
            presses(&hear(RATE, &both.collect::<Vec<_>>())),
            NO_KEYS,
            "{seed}"
        );
    }
}

#[test]
fn noise_causes_no_false_digit() {
    for seed in 0..4 {
        let white = noise(seed, 0.5, 120 * RATE as usize);
        assert_eq!(presses(&hear(RATE, &white)), NO_KEYS, "{seed}");
        // Low-pass noise: more power at the frequencies of digits.
        let mut last = 0.0;
        let dull: Vec<_> = white
            .iter()
            .map(|x| {
                last += 0.6 * (x - last);
                last
            })
            .collect();
        assert_eq!(presses(&hear(RATE, &dull)), NO_KEYS, "{seed}");
    }
}

#[test]
fn single_tones_and_other_signals_cause_no_false_digit() {
    let play = |frequencies: &[f64]| {
        let sample = |frame: usize| {
            let turns = frame as f64 / f64::from(RATE);
            let sum: f64 = frequencies.iter().map(|hz| (TAU * hz * turns).sin()).sum();
            (0.2 * sum) as f32
        };
        (0..RATE as usize / 4).map(sample).collect::<Vec<_>>()
    };
    for hz in (50..3_900).step_by(7) {
        assert_eq!(
            presses(&hear(RATE, &play(&[f64::from(hz)]))),
            NO_KEYS,
            "{hz} Hz"
        );
    }
    // Three tones of the keypad; two rows; two columns; the tones of E.180, fax and modems.
    for frequencies in [
        &[697.0, 1209.0, 1477.0][..],
        &[697.0, 770.0, 1336.0],
        &[697.0, 941.0],
        &[1209.0, 1633.0],
        &[350.0, 440.0],
        &[440.0, 480.0],
        &[480.0, 620.0],
        &[425.0],
        &[1100.0],
        &[2100.0],
        &[950.0, 1400.0, 1800.0],
        // ITU-T Q.320, the register signals of R1.
        &[700.0, 900.0],
        &[700.0, 1100.0],
        &[900.0, 1300.0],
        &[1100.0, 1700.0],
        &[1300.0, 1500.0],
    ] {
        assert_eq!(
            presses(&hear(RATE, &play(frequencies))),
            NO_KEYS,
            "{frequencies:?}"
        );
    }
}
