//! Conversion of rates and channels, measured by the frequency and the level of tones after the conversion.

use std::f64::consts::TAU;

use crate::audio::{Spectrum, channel, db, noise, rms, tone};
use proptest::prelude::*;
use threadbare_codec::codec::SAMPLE_RATES_HZ;
use threadbare_codec::convert::{ConvertError, Converter};

fn converter(from: u32, to: u32) -> Converter {
    Converter::new(from, 1, to, 1).expect("supported rates")
}

fn pairs() -> impl Iterator<Item = (u32, u32)> {
    let all = SAMPLE_RATES_HZ.into_iter();
    all.flat_map(|from| SAMPLE_RATES_HZ.into_iter().map(move |to| (from, to)))
}

/// Converts in packets of about 20 ms.
fn convert(from: u32, to: u32, audio: &[f32]) -> Vec<f32> {
    let mut converter = converter(from, to);
    let mut out = Vec::new();
    for packet in audio.chunks(from as usize / 50) {
        converter.process(packet, &mut out);
    }
    out
}

#[test]
fn a_tone_keeps_its_frequency_and_level() {
    for (from, to) in pairs() {
        let nyquist = f64::from(from.min(to)) / 2.0;
        for part in [0.02, 0.25, 0.5, 0.7, 0.85] {
            let hz = (nyquist * part).round();
            let pcm = tone(from, 1, hz, 0.5, from as usize / 2);
            let out = convert(from, to, &pcm);
            let found = Spectrum::of(&out[out.len() / 5..], to, hz);
            let off_db = db(found.level / 0.5);
            assert!(off_db.abs() < 0.1, "{from} to {to}: {hz} Hz {off_db} dB");
            // Everything else consists of images and rounding.
            assert!(
                found.snr_db() > 60.0,
                "{from} to {to}: {hz} Hz {} dB",
                found.snr_db()
            );
        }
    }
}

#[test]
fn aliasing_frequencies_are_removed() {
    for (from, to) in pairs().filter(|(from, to)| from > to) {
        let (low, high) = (f64::from(to) / 2.0, f64::from(from) / 2.0);
        for hz in [
            low * 1.02,
            low * 1.2,
            low * 1.5,
            low * 2.0 - 300.0,
            high * 0.97,
        ] {
            if hz < low * 1.02 || hz > high * 0.98 {
                continue;
            }
            let out = convert(from, to, &tone(from, 1, hz, 0.5, from as usize / 2));
            let left_db =
                db(rms(&out[out.len() / 5..]) / rms(&tone(from, 1, hz, 0.5, from as usize)));
            assert!(left_db < -60.0, "{from} to {to}: {hz} Hz {left_db} dB");
        }
    }
}

#[test]
fn each_input_packet_makes_one_output_packet_for_hours() {
    for (from, to) in pairs() {
        let mut converter = converter(from, to);
        let (mut taken, mut made) = (0_u64, 0_u64);
        let packet = vec![0.1; from as usize];
        let mut out = Vec::new();
        // First use odd sizes, then whole seconds.
        let sizes = (1..60).chain(std::iter::repeat_n(packet.len(), 20));
        for frames in sizes {
            out.clear();
            converter.process(&packet[..frames], &mut out);
            taken += frames as u64;
            made += out.len() as u64;
            assert_eq!(
                made,
                taken * u64::from(to) / u64::from(from),
                "{from} to {to}"
            );
        }
    }
    // Convert an hour of audio between two rates whose ratio has no finite binary fraction.
    let mut converter = converter(11_025, 8_000);
    let packet = vec![0.1; 11_025];
    let mut out = Vec::new();
    for _ in 0..3_600 {
        out.clear();
        converter.process(&packet, &mut out);
        assert_eq!(out.len(), 8_000);
    }
    assert!(
        out.iter().all(|x| (x - 0.1).abs() < 1e-4),
        "a constant stays one"
    );
}

#[test]
fn the_actual_latency_equals_the_reported_latency() {
    for (from, to) in pairs() {
        // Measure the delay with the phase of a slow tone. At 20 Hz, the phase is unambiguous up to 50 ms.
        let out = convert(from, to, &tone(from, 1, 20.0, 0.5, from as usize));
        let second = &out[out.len() - to as usize / 2..];
        let first = out.len() - second.len();
        let (mut re, mut im) = (0.0, 0.0);
        for (at, sample) in second.iter().enumerate() {
            let angle = TAU * 20.0 * (first + at) as f64 / f64::from(to);
            re += f64::from(*sample) * angle.cos();
            im += f64::from(*sample) * angle.sin();
        }
        let frames = -re.atan2(im) / TAU / 20.0 * f64::from(to);
        let told = converter(from, to).latency_frames();
        assert!(
            (frames - told as f64).abs() < 0.6,
            "{from} to {to}: {frames}, told {told}"
        );
        // At most 6 ms at the lowest rate, and proportionally less at others.
        assert!(told as f64 / f64::from(to) < 48.0 / f64::from(from.min(to)));
    }
}

#[test]
fn channels_are_copied_and_averaged() {
    let mixed = |from, to, input: &[f32]| {
        let mut converter = Converter::new(8_000, from, 8_000, to).expect("supported");
        let mut out = Vec::new();
        converter.process(input, &mut out);
        out
    };
    assert_eq!(mixed(1, 3, &[0.5, -1.0]), [0.5, 0.5, 0.5, -1.0, -1.0, -1.0]);
    assert_eq!(mixed(2, 1, &[0.5, -1.0, 1.0, 1.0]), [-0.25, 1.0]);
    assert_eq!(mixed(2, 4, &[0.1, 0.2]), [0.1, 0.2, 0.1, 0.2]);
    assert_eq!(mixed(4, 2, &[0.5, 0.25, 1.0, 0.75]), [0.75, 0.5]);
    assert_eq!(mixed(3, 2, &[0.5, 0.25, 1.0]), [0.75, 0.25]);
    assert_eq!(mixed(2, 2, &[0.1, 0.2]), [0.1, 0.2]);
    // The same must hold if the rate changes, too.
    for (from, to) in [(1, 2), (2, 1), (2, 2), (8, 2), (1, 8)] {
        let mut converter = Converter::new(48_000, from, 8_000, to).expect("supported");
        let pcm = tone(48_000, usize::from(from), 440.0, 0.4, 48_000);
        let mut out = Vec::new();
        converter.process(&pcm, &mut out);
        assert_eq!(out.len(), 8_000 * usize::from(to));
        for number in 0..usize::from(to) {
            let one = channel(&out, usize::from(to), number);
            let found = Spectrum::of(&one[1_000..], 8_000, 440.0);
            assert!(db(found.level / 0.4).abs() < 0.1, "{from} to {to}");
        }
    }
}

#[test]
fn a_reset_discards_earlier_audio() {
    let mut converter = converter(48_000, 8_000);
    let (mut first, mut loud, mut again) = (Vec::new(), Vec::new(), Vec::new());
    let pcm = tone(48_000, 1, 440.0, 0.4, 4_801);
    converter.process(&pcm, &mut first);
    converter.process(&noise(1, 1.0, 1_111), &mut loud);
    converter.reset();
    converter.process(&pcm, &mut again);
    assert_eq!(first, again);
}

#[test]
fn refusals_state_the_value_and_the_allowed_values() {
    let refused = |from, from_channels, to, to_channels| {
        Converter::new(from, from_channels, to, to_channels).map(drop)
    };
    assert_eq!(
        refused(8_000, 1, 44_101, 1),
        Err(ConvertError::Rate(44_101))
    );
    assert_eq!(refused(0, 1, 8_000, 1), Err(ConvertError::Rate(0)));
    let error = refused(8_000, 9, 8_000, 1).expect_err("nine channels");
    assert_eq!(error.to_string(), "9 channels, must be 1 to 8");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packet_sizes_do_not_change_the_output(
        from in 0_usize..11,
        to in 0_usize..11,
        sizes in prop::collection::vec(0_usize..1_500, 1..20),
    ) {
        let (from, to) = (SAMPLE_RATES_HZ[from], SAMPLE_RATES_HZ[to]);
        let pcm = noise(7, 0.5, sizes.iter().sum());
        let mut whole = Vec::new();
        converter(from, to).process(&pcm, &mut whole);
        let mut parts = Vec::new();
        let mut converter = converter(from, to);
        let mut rest = &pcm[..];
        for size in sizes {
            let (packet, after) = rest.split_at(size);
            converter.process(packet, &mut parts);
            rest = after;
        }
        prop_assert_eq!(whole.len(), parts.len());
        // The phase of a sample is the same, except for rounding of rubato's position.
        prop_assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
