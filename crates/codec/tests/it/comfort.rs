//! Comfort noise: level, spectrum and payloads.

use std::f64::consts::TAU;

use crate::audio::{db, noise, rms, tone};
use proptest::prelude::*;
use threadbare_codec::comfort::{ComfortAnalyser, ComfortError, ComfortGenerator, ComfortNoise};

const RATE: u32 = 8_000;

fn generate(noise: ComfortNoise, seed: u64, seconds: usize) -> Vec<f32> {
    let mut generator = ComfortGenerator::new(noise, seed);
    let mut audio = Vec::new();
    generator.generate(RATE as usize * seconds, &mut audio);
    audio
}

fn parse(payload: &[u8]) -> ComfortNoise {
    ComfortNoise::parse(payload).expect("a payload")
}

fn payload(noise: &ComfortNoise) -> Vec<u8> {
    let mut payload = Vec::new();
    noise.write(&mut payload);
    payload
}

fn analyse(audio: &[f32], order: usize) -> ComfortNoise {
    let mut analyser = ComfortAnalyser::new(RATE, order);
    audio.chunks(160).for_each(|packet| analyser.feed(packet));
    analyser.noise()
}

/// Returns the response of the filter at `hz` from the definition: k = 258 (N - 127) / 32768 (RFC 3389, section 3.2), and the
/// step-up recursion.
fn response(payload: &[u8], hz: f64) -> f64 {
    let mut filter = vec![1.0];
    for index in &payload[1..] {
        let k = 258.0 * (f64::from(*index) - 127.0) / 32_768.0;
        filter.push(0.0);
        let mirror: Vec<f64> = filter.iter().rev().copied().collect();
        for (tap, mirror) in filter.iter_mut().zip(mirror) {
            *tap += k * mirror;
        }
    }
    let (mut re, mut im) = (0.0, 0.0);
    for (at, tap) in filter.iter().enumerate() {
        let angle = TAU * hz / f64::from(RATE) * at as f64;
        re += tap * angle.cos();
        im -= tap * angle.sin();
    }
    1.0 / re.hypot(im)
}

/// Returns the mean power at `hz`, computed from periodograms of 32 ms.
fn power_at(audio: &[f32], hz: f64) -> f64 {
    let blocks = audio.chunks_exact(256);
    let count = blocks.len() as f64;
    let power = |block: &[f32]| {
        let (mut re, mut im) = (0.0, 0.0);
        for (at, sample) in block.iter().enumerate() {
            let window = 0.5 - 0.5 * (TAU * at as f64 / 256.0).cos();
            let angle = TAU * hz / f64::from(RATE) * at as f64;
            re += window * f64::from(*sample) * angle.cos();
            im += window * f64::from(*sample) * angle.sin();
        }
        re * re + im * im
    };
    blocks.map(power).sum::<f64>() / count
}

/// White noise; low-pass noise; high-pass noise; a hum at about 1 kHz; noise with ten coefficients, as in ITU-T G.711, appendix
/// II.
const SPECTRA: [&[u8]; 5] = [
    &[],
    &[20],
    &[230],
    &[37, 240],
    &[60, 170, 110, 140, 120, 135, 125, 130, 126, 128],
];

fn with_level(level: u8, spectrum: &[u8]) -> Vec<u8> {
    [&[level], spectrum].concat()
}

#[test]
fn noise_has_the_level_of_the_payload() {
    for level in [10, 30, 50, 70, 90] {
        for spectrum in SPECTRA {
            let noise = parse(&with_level(level, spectrum));
            for seed in 0..3 {
                let audio = generate(noise, seed, 8);
                let off_db = db(rms(&audio)) + f64::from(level);
                assert!(off_db.abs() < 1.0, "{level}, {spectrum:?}: {off_db} dB");
            }
        }
    }
    assert!(rms(&generate(parse(&[127]), 1, 1)) < 1e-6);
}

#[test]
fn noise_has_the_spectrum_of_the_payload() {
    for spectrum in SPECTRA {
        let payload = with_level(40, spectrum);
        let audio = generate(parse(&payload), 5, 60);
        let reference_db = db(power_at(&audio, 1_000.0).sqrt() / response(&payload, 1_000.0));
        for hz in [200.0, 500.0, 1_500.0, 2_000.0, 2_700.0, 3_400.0, 3_800.0] {
            let found_db = db(power_at(&audio, hz).sqrt() / response(&payload, hz));
            let off_db = found_db - reference_db;
            assert!(off_db.abs() < 1.0, "{spectrum:?} at {hz} Hz: {off_db} dB");
        }
    }
}

#[test]
fn analyser_recovers_the_generators_parameters() {
    for spectrum in SPECTRA {
        for level in [20, 45, 70] {
            let told = with_level(level, spectrum);
            let found = payload(&analyse(&generate(parse(&told), 9, 10), spectrum.len()));
            assert_eq!(found.len(), told.len());
            assert!(found[0].abs_diff(told[0]) <= 1, "{found:?}, {told:?}");
            // From a quarter of a second, a coefficient can be determined to about 0.02 to 0.04, which is five steps.
            let close = found[1..]
                .iter()
                .zip(&told[1..])
                .all(|(a, b)| a.abs_diff(*b) <= 16);
            assert!(close, "{found:?}, {told:?}");
        }
    }
    // Another kind of noise: uniform, white, -4.8 dB below its peak of -20 dB.
    let found = analyse(&noise(3, 0.1, 80_000), 4);
    assert_eq!(found.level(), 25);
    assert!(
        found.reflections().iter().all(|k| k.abs() < 0.1),
        "{found:?}"
    );
}

#[test]
fn the_analyser_describes_silence_and_a_tone() {
    assert_eq!(
        payload(&analyse(&[0.0; 800], 10)),
        [vec![127], vec![127; 10]].concat()
    );
    assert_eq!(payload(&ComfortAnalyser::new(RATE, 0).noise()), [127]);
    let hum = analyse(&tone(RATE, 1, 50.0, 0.01, 16_000), 10);
    // 40 dB, and 3 dB for the peak; the filter rings, but is stable.
    assert_eq!(hum.level(), 43);
    let heard = generate(hum, 1, 20);
    assert!(heard.iter().all(|x| x.abs() < 0.2));
    let mut analyser = ComfortAnalyser::new(RATE, 2);
    analyser.feed(&[1.0; 4_000]);
    analyser.reset();
    assert_eq!(analyser.noise().level(), 127);
}

#[test]
fn a_change_of_level_is_gradual() {
    let mut generator = ComfortGenerator::new(ComfortNoise::white(30), 1);
    let mut audio = Vec::new();
    generator.generate(8_000, &mut audio);
    generator.set(ComfortNoise::white(60));
    generator.generate(8_000, &mut audio);
    let level_db = |from: usize, to: usize| db(rms(&audio[from..to]));
    assert!((level_db(7_500, 8_000) + 30.0).abs() < 1.5);
    assert!(level_db(8_000, 8_080) > -33.0);
    assert!((level_db(15_000, 16_000) + 60.0).abs() < 1.0);
}

#[test]
fn unusual_payloads_are_parsed() {
    assert_eq!(ComfortNoise::parse(&[]), Err(ComfortError::Empty));
    // The unused bit is ignored.
    assert_eq!(parse(&[0x80 | 40]), ComfortNoise::white(40));
    assert_eq!(ComfortNoise::white(200).level(), 127);
    assert_eq!(parse(&[3, 127]).at_level(50).level(), 50);
    // 255 is not in the format, so the nearest valid value is used.
    assert_eq!(payload(&parse(&[40, 255])), [40, 254]);
    // More coefficients than any sender uses.
    assert_eq!(parse(&[130; 1_000]).reflections().len(), 16);
}

proptest! {
    #[test]
    fn payloads_round_trip(level in 0_u8..128, spectrum in prop::collection::vec(0_u8..255, 0..17)) {
        let bytes = with_level(level, &spectrum);
        prop_assert_eq!(payload(&parse(&bytes)), bytes);
    }

    #[test]
    fn no_payload_makes_noise_above_its_level(bytes in prop::collection::vec(any::<u8>(), 1..40), other in prop::collection::vec(any::<u8>(), 1..40), seed in any::<u64>()) {
        let mut generator = ComfortGenerator::new(parse(&bytes), seed);
        let mut audio = Vec::new();
        generator.generate(2_000, &mut audio);
        generator.set(parse(&other));
        generator.generate(2_000, &mut audio);
        // The filters ring into each other. But no sample exceeds ten times the level of the louder noise.
        let level = parse(&bytes).level().min(parse(&other).level());
        let peak = 10.0 * 10_f32.powf(-f32::from(level) / 20.0);
        prop_assert!(audio.iter().all(|x| x.abs() < peak));
    }

    #[test]
    fn the_analyser_accepts_any_audio(audio in prop::collection::vec(any::<f32>(), 0..500), order in 0_usize..40) {
        let found = analyse(&audio, order);
        prop_assert!(found.reflections().iter().all(|k| k.abs() < 1.0));
        let heard = generate(found, 1, 1);
        prop_assert!(heard.iter().all(|x| x.is_finite()));
    }
}
