//! Output of a normaliser: it has as many frames as the input, reaches the target and stays below the limit, whatever the calls
//! are.

use std::f64::consts::TAU;

use crate::counting::{allocated_bytes, allocations};
use proptest::prelude::*;
use threadbare_loudness::{
    Channel, Meter, Mode, NormalizeError, Normalizer, NormalizerSettings, Sample,
};

const RATE: u32 = 48_000;
const STEREO: [Channel; 2] = [Channel::Left, Channel::Right];

fn settings(target: f64, peak: f64) -> NormalizerSettings {
    NormalizerSettings {
        loudness_target_lufs: target,
        max_true_peak_dbtp: peak,
        ..Default::default()
    }
}

fn normalizer(rate_hz: u32, channels: usize, settings: NormalizerSettings) -> Normalizer {
    Normalizer::new(rate_hz, &Channel::default_layout(channels), settings).unwrap()
}

/// Takes all ready frames, in pieces.
fn take_all<T: Sample + Default>(normalizer: &mut Normalizer, piece: usize, to: &mut Vec<T>) {
    let channels = normalizer.channels();
    let mut block = vec![T::default(); piece * channels];
    loop {
        let frames = normalizer.take_interleaved(&mut block).unwrap();
        if frames == 0 {
            return;
        }
        to.extend_from_slice(&block[..frames * channels]);
    }
}

/// Passes all of `input` through a normaliser, in pieces. The pieces have these lengths in turn.
fn through<T: Sample + Default>(
    normalizer: &mut Normalizer,
    input: &[T],
    pieces: &[usize],
) -> Vec<T> {
    let channels = normalizer.channels();
    let (mut output, mut rest) = (Vec::new(), input);
    for piece in pieces.iter().cycle() {
        let count = (piece * channels).min(rest.len());
        let (mut now, later) = rest.split_at(count);
        while !now.is_empty() {
            let taken = normalizer.add_interleaved(now).unwrap();
            now = &now[taken * channels..];
            take_all(normalizer, *piece, &mut output);
        }
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    normalizer.drain();
    take_all(normalizer, pieces[0], &mut output);
    assert_eq!(normalizer.held(), 0);
    output
}

fn normalized(rate_hz: u32, channels: usize, to: NormalizerSettings, input: &[f32]) -> Vec<f32> {
    let output = through(&mut normalizer(rate_hz, channels, to), input, &[1_000]);
    assert_eq!(output.len(), input.len());
    assert!(output.iter().all(|value| value.is_finite()));
    output
}

fn db(factor: f64) -> f64 {
    20.0 * factor.log10()
}

fn lin(db: f64) -> f64 {
    10f64.powf(db / 20.0)
}

/// Returns a tone of this peak level on both channels.
fn tone(rate_hz: u32, hz: f64, level_db: f64, seconds: f64) -> Vec<f32> {
    let frames = (f64::from(rate_hz) * seconds) as usize;
    let sample =
        |n: usize| (lin(level_db) * (TAU * hz * n as f64 / f64::from(rate_hz)).sin()) as f32;
    (0..frames).flat_map(|n| [sample(n); 2]).collect()
}

fn noise(samples: usize, seed: u32, level: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(7919).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        level * (((state >> 8) as f32) / ((1 << 23) as f32) - 1.0)
    };
    (0..samples).map(|_| next()).collect()
}

/// Noise in syllables and sentences, sometimes louder and sometimes quieter, with faint noise in the pauses.
fn speech(seconds: usize, level_db: f64) -> Vec<f32> {
    let mut last = 0.0f32;
    let carrier = noise(seconds * RATE as usize, 3, 1.0);
    let sample = |(n, value): (usize, f32)| {
        let t = n as f64 / f64::from(RATE);
        last += 0.3 * (value - last);
        let syllable = (0.5 - 0.5 * (TAU * 3.7 * t).cos()) * (0.7 + 0.3 * (TAU * 0.31 * t).sin());
        let is_pause = t % 4.0 > 3.0;
        let gain = if is_pause { 0.003 } else { syllable };
        last * (gain * lin(level_db)) as f32
    };
    carrier
        .into_iter()
        .enumerate()
        .map(sample)
        .flat_map(|value| [value; 2])
        .collect()
}

fn loudness(rate_hz: u32, channels: usize, samples: &[f32]) -> f64 {
    let mut meter = Meter::builder(rate_hz, channels).build().unwrap();
    meter.add_interleaved(samples).unwrap();
    meter.integrated().unwrap()
}

/// Returns the largest value between the samples, in dBTP, as a player or another meter finds it. As in libswresample, the filter
/// has 32 taps in a Kaiser window that ends at 0.97 of the band. But it checks 31 positions between two samples.
fn true_peak(samples: &[f32], channels: usize) -> f64 {
    const REACH: i64 = 16;
    const BAND: f64 = 0.97;
    fn bessel(x: f64) -> f64 {
        let terms = (1..40).scan(1.0, |term, n| {
            *term *= (x / 2.0 / f64::from(n)).powi(2);
            Some(*term)
        });
        1.0 + terms.sum::<f64>()
    }
    let places: Vec<Vec<f64>> = (1..32)
        .map(|place| {
            let tap = |tap: i64| {
                let x = f64::from(place) / 32.0 - tap as f64;
                let window =
                    bessel(9.0 * (1.0 - (x / REACH as f64).powi(2)).max(0.0).sqrt()) / bessel(9.0);
                let angle = std::f64::consts::PI * x * BAND;
                BAND * window * angle.sin() / angle
            };
            (1 - REACH..=REACH).map(tap).collect()
        })
        .collect();
    let mut peak = 0.0f64;
    for channel in 0..channels {
        let values: Vec<f64> = samples[channel..]
            .iter()
            .step_by(channels)
            .map(|v| f64::from(*v))
            .collect();
        let largest = values
            .iter()
            .fold(0.0f64, |peak, value| peak.max(value.abs()));
        peak = peak.max(largest);
        for n in 0..values.len() as i64 {
            // Values between samples that are all far below the peak are negligible.
            let around = |reach: i64| {
                let span = (n - reach).max(0)..(n + reach + 2).min(values.len() as i64);
                span.map(|n| values[n as usize].abs()).fold(0.0, f64::max)
            };
            if around(2) < peak * 0.3 {
                continue;
            }
            for taps in &places {
                let mut sum = 0.0;
                for (tap, factor) in taps.iter().enumerate() {
                    let at = n + tap as i64 + 1 - REACH;
                    if (0..values.len() as i64).contains(&at) {
                        sum += factor * values[at as usize];
                    }
                }
                peak = peak.max(sum.abs());
            }
        }
    }
    db(peak)
}

/// Returns the gain in dB at the loudest sample of each 10 ms.
fn gains(input: &[f32], output: &[f32]) -> Vec<f64> {
    let peak = |part: &[f32]| {
        let at = (0..part.len()).max_by(|a, b| part[*a].abs().total_cmp(&part[*b].abs()));
        at.unwrap()
    };
    let parts = input.chunks(960).zip(output.chunks(960));
    parts
        .map(|(input, output)| {
            let at = peak(input);
            db(f64::from(output[at] / input[at]))
        })
        .collect()
}

#[test]
fn tone_at_the_target_is_unchanged() {
    for (rate_hz, hz) in [
        (8_000, 500.0),
        (44_100, 1_000.0),
        (48_000, 1_000.0),
        (96_000, 997.0),
    ] {
        let input = tone(rate_hz, hz, -23.0, 8.0);
        let at_target = loudness(rate_hz, 2, &input);
        let output = normalized(rate_hz, 2, settings(at_target, -2.0), &input);
        for (input, output) in input.iter().zip(&output) {
            let gain = if input.abs() < 1e-4 {
                1.0
            } else {
                output / input
            };
            assert!(db(f64::from(gain)).abs() < 0.1, "{rate_hz}: {gain}");
        }
    }
}

#[test]
fn tone_of_any_level_reaches_the_target() {
    for level_db in [-45.0, -30.0, -10.0, 0.0] {
        let output = normalized(
            RATE,
            2,
            settings(-23.0, -2.0),
            &tone(RATE, 1_000.0, level_db, 6.0),
        );
        let found = loudness(RATE, 2, &output);
        assert!((found + 23.0).abs() < 0.1, "{level_db}: {found}");
    }
}

#[test]
fn speech_comes_to_the_target_and_its_pauses_stay_quiet() {
    for level_db in [-30.0, -6.0] {
        let input = speech(30, level_db);
        let output = normalized(RATE, 2, settings(-23.0, -2.0), &input);
        let found = loudness(RATE, 2, &output);
        assert!((found + 23.0).abs() < 1.0, "{level_db}: {found}");
        // The gain does not follow pauses: in a pause, it is the same as for the words around it.
        let gains = gains(&input, &output);
        for second in 4..28 {
            let change = gains[second * 100] - gains[second * 100 + 100];
            assert!(change.abs() < 1.0, "{level_db} {second}: {change}");
        }
    }
}

#[test]
fn surround_channels_have_more_weight_and_the_subwoofer_none() {
    // The material is 5.1 with sound on one channel only, at the same level. A side channel counts 1.5 dB louder.
    let levels = [0, 3, 4].map(|channel| {
        let mono = tone(RATE, 1_000.0, -40.0, 5.0);
        let frames = mono.as_chunks::<2>().0.iter();
        let input: Vec<f32> = frames
            .flat_map(|frame| {
                let mut row = [0.0; 6];
                row[channel] = frame[0];
                row[1] = frame[0] * 0.05;
                row
            })
            .collect();
        let output = normalized(RATE, 6, settings(-30.0, -2.0), &input);
        db(f64::from(
            output[6 * 100_003 + channel] / input[6 * 100_003 + channel],
        ))
    });
    assert!((levels[0] - levels[2] - 1.49).abs() < 0.1, "{levels:?}");
    // Only the right channel is audible: it needs more gain than allowed, so it gets the maximum.
    assert!((levels[1] - 30.0).abs() < 0.1, "{levels:?}");
}

#[test]
fn silence_stays_silence() {
    let output = normalized(RATE, 2, settings(-5.0, 0.0), &vec![0.0; 96_000 * 4]);
    assert!(output.iter().all(|value| *value == 0.0));
}

#[test]
fn leading_silence_does_not_change_later_output() {
    let programme = speech(8, -12.0);
    let alone = normalized(RATE, 2, settings(-23.0, -2.0), &programme);
    for steps in [3, 17, 45, 100] {
        let silence = vec![0.0; 9_600 * steps];
        let both = [&silence[..], &programme].concat();
        let output = normalized(RATE, 2, settings(-23.0, -2.0), &both);
        assert!(output[..silence.len()].iter().all(|value| *value == 0.0));
        assert_eq!(output[silence.len()..], alone, "{steps}");
    }
}

#[test]
fn silence_by_count_is_silence_by_samples() {
    let programme = speech(6, -12.0);
    let (start, end) = programme.split_at(2 * 100_000);
    let mut by_count = normalizer(RATE, 2, settings(-23.0, -2.0));
    let mut found: Vec<f32> = Vec::new();
    let feed = |normalizer: &mut Normalizer, mut part: &[f32], found: &mut Vec<f32>| {
        while !part.is_empty() {
            part = &part[normalizer.add_interleaved(part).unwrap() * 2..];
            take_all(normalizer, 777, found);
        }
    };
    feed(&mut by_count, start, &mut found);
    let mut gap = 70_000;
    while gap > 0 {
        gap -= by_count.add_silence(gap);
        take_all(&mut by_count, 777, &mut found);
    }
    feed(&mut by_count, end, &mut found);
    by_count.drain();
    take_all(&mut by_count, 777, &mut found);
    let both = [start, &vec![0.0; 140_000], end].concat();
    assert_eq!(found, normalized(RATE, 2, settings(-23.0, -2.0), &both));
}

#[test]
fn all_frames_of_a_short_input_are_output_at_the_target() {
    for frames in [
        0, 1, 2, 23, 24, 25, 480, 4_799, 4_800, 4_801, 30_000, 143_999, 144_000, 144_001,
    ] {
        let input = &tone(RATE, 1_000.0, -40.0, 3.1)[..frames * 2];
        let output = normalized(RATE, 2, settings(-23.0, -2.0), input);
        assert_eq!(output.len(), input.len());
        if frames >= 480 {
            let at = frames / 2;
            let gain = db(f64::from(output[at * 2 + 1] / input[at * 2 + 1]));
            assert!((gain - 17.0).abs() < 1.5, "{frames}: {gain}");
        }
    }
}

/// Returns signals that are difficult for limiters.
fn dense(rate_hz: u32) -> Vec<(&'static str, Vec<f32>)> {
    let frames = rate_hz as usize * 4;
    let stereo = |sample: &dyn Fn(usize) -> f32| -> Vec<f32> {
        (0..frames).flat_map(|n| [sample(n), -sample(n)]).collect()
    };
    let white = noise(frames * 2, 5, 0.9);
    let second = rate_hz as usize;
    let bursts: Vec<f32> = (white.iter().enumerate())
        .map(|(n, value)| {
            if n / 2 % (second / 7) < second / 50 {
                *value
            } else {
                value * 0.02
            }
        })
        .collect();
    // A sinc half-way between two samples has these signs, so this pattern gives the maximum between samples.
    let pattern = |n: usize| {
        let at = n as i64 % 4_001 - 2_000;
        let sign = if at % 2 == 0 { 1.0 } else { -1.0 };
        let sign = if at >= 0 { -sign } else { sign };
        if at.abs() < 40 {
            sign * 0.8
        } else {
            sign * 0.01
        }
    };
    vec![
        (
            "square",
            stereo(&|n| if n / 37 % 2 == 0 { 0.8 } else { -0.8 }),
        ),
        (
            "fast square",
            stereo(&|n| if n / 3 % 2 == 0 { 0.5 } else { -0.5 }),
        ),
        (
            "impulses",
            stereo(&|n| {
                if n % 4_801 == 17 {
                    1.0
                } else {
                    0.0003 * (n as f32 * 0.1).sin()
                }
            }),
        ),
        (
            "quarter of the rate",
            stereo(&|n| (n as f32 * std::f32::consts::FRAC_PI_2 + 0.785).sin()),
        ),
        (
            "high tone",
            stereo(&|n| (n as f32 * 2.7 + 0.3).sin() * (n as f32 * 0.0001).sin()),
        ),
        ("white noise", white),
        ("bursts", bursts),
        ("signs of a sinc", stereo(&pattern)),
        (
            "growing peaks",
            stereo(&|n| {
                let level = if n % 1_000 < 20 {
                    0.1 + (n % 24_000) as f32 / 12_000.0
                } else {
                    0.05
                };
                level * (n as f32 * 0.9).sin()
            }),
        ),
    ]
}

#[test]
fn the_true_peak_stays_below_its_limit() {
    for rate_hz in [8_000, 44_100, 48_000, 96_000] {
        for (name, input) in dense(rate_hz) {
            for (target, peak) in [(-23.0, -9.0), (-5.0, -2.0), (-5.0, 0.0)] {
                if rate_hz > 48_000 && peak > -9.0 {
                    continue;
                }
                let output = normalized(
                    rate_hz,
                    2,
                    settings(target, peak),
                    &input[..input.len() / 2],
                );
                let found = true_peak(&output, 2);
                assert!(
                    found <= peak,
                    "{name}, {rate_hz} Hz, {target} {peak}: {found}"
                );
            }
        }
    }
}

#[test]
fn the_limiter_stays_close_to_its_limit() {
    // The limiter must leave the peak of a pure tone just below the limit.
    let output = normalized(
        RATE,
        2,
        settings(-5.0, -9.0),
        &tone(RATE, 1_000.0, -20.0, 5.0),
    );
    let found = true_peak(&output[96_000..], 2);
    assert!((-9.2..=-9.0).contains(&found), "{found}");
}

/// Between two clicks on top of a quiet tone, the gain recovers without a step.
#[test]
fn gain_recovers_without_a_step() {
    let mut input = tone(RATE, 1_000.0, -30.0, 8.0);
    for click in [150_000, 200_000, 200_700, 201_000] {
        input[2 * click] = 0.9;
        input[2 * click + 1] = 0.9;
    }
    let output = normalized(RATE, 2, settings(-23.0, -9.0), &input);
    let gains = gains(&input, &output);
    let calm = gains[250];
    for (n, pair) in gains.windows(2).enumerate() {
        assert!(
            pair[1] < calm + 0.2 && pair[1] > calm - 25.0,
            "{n}: {}",
            pair[1]
        );
    }
    // The click is at 3.125 s. The gain falls before it, rises for a few 100 ms, and is the same as before.
    assert!(gains[311] < calm - 3.0, "{}", gains[311]);
    for n in 314..350 {
        assert!(
            gains[n + 1] >= gains[n] - 0.02,
            "{n}: {} {}",
            gains[n],
            gains[n + 1]
        );
    }
    assert!((gains[380] - calm).abs() < 0.2);
}

#[test]
fn the_gain_changes_gradually() {
    // The level changes by 15 dB down and up.
    let parts = [-35.0, -20.0, -35.0, -50.0, -20.0].map(|level| tone(RATE, 1_000.0, level, 20.0));
    let input = parts.concat();
    let output = normalized(RATE, 2, settings(-23.0, -2.0), &input);
    let gains = gains(&input, &output);
    for (n, pair) in gains.windows(2).enumerate() {
        // The gain changes by at most 3.5 dB in 100 ms.
        assert!((pair[0] - pair[1]).abs() < 0.35, "{n}: {pair:?}");
    }
    // Four seconds before each part ends, the level is right again. Loud parts never stand out.
    for part in 0..5 {
        let second = &output[(part * 20 + 15) * 96_000..][..96_000];
        let found = loudness(RATE, 2, second);
        assert!((found + 23.0).abs() < 1.0, "{part}: {found}");
    }
    let mut meter = Meter::builder(RATE, 2).build().unwrap();
    for step in output.chunks(9_600) {
        meter.add_interleaved(step).unwrap();
        let found = meter.momentary();
        assert!(found < -23.0 + 4.0, "{found}");
    }
}

#[test]
fn a_wider_range_target_allows_a_wider_loudness_range() {
    // The level changes by 6 LU every 4 s, which is within the range.
    let parts: Vec<Vec<f32>> = (0..10)
        .map(|n| tone(RATE, 1_000.0, [-26.0, -20.0][n % 2], 4.0))
        .collect();
    let range_of = |range: f64| {
        let to = NormalizerSettings {
            loudness_range_target_lu: range,
            ..settings(-23.0, -2.0)
        };
        let output = normalized(RATE, 2, to, &parts.concat());
        let mut meter = Meter::builder(RATE, 2).mode(Mode::RANGE).build().unwrap();
        meter.add_interleaved(&output).unwrap();
        meter.range().unwrap().lu
    };
    let (narrow, wide) = (range_of(1.0), range_of(20.0));
    assert!(narrow < 3.0, "{narrow}");
    assert!(wide > 3.5, "{wide}");
}

#[test]
fn changes_are_applied_gradually() {
    let input = tone(RATE, 1_000.0, -23.0, 14.0);
    let mut normalizer = normalizer(RATE, 2, settings(-23.0, 0.0));
    let mut output: Vec<f32> = Vec::new();
    for (n, part) in input.chunks(9_600).enumerate() {
        let changed = match n {
            40 => settings(-40.0, 0.0),
            70 => settings(-13.0, 0.0),
            100 => settings(-13.0, -9.0),
            120 => NormalizerSettings {
                offset_lu: -20.0,
                ..settings(-13.0, 0.0)
            },
            _ => *normalizer.settings(),
        };
        normalizer.set_settings(changed).unwrap();
        assert_eq!(normalizer.add_interleaved(part).unwrap(), part.len() / 2);
        take_all(&mut normalizer, 4_800, &mut output);
    }
    normalizer.drain();
    take_all(&mut normalizer, 4_800, &mut output);
    let gains = gains(&input, &output);
    for (n, pair) in gains.windows(2).enumerate() {
        // The gain changes by at most 3 dB in 100 ms, and by as much again while the limit changes.
        assert!((pair[0] - pair[1]).abs() < 0.65, "{n}: {pair:?}");
    }
    // A change at 4 s affects the audio from before 2 s on: the delay is 3 s, and the change starts after 0.3 s.
    assert!(
        gains[100].abs() < 0.2 && (gains[300] + 17.0).abs() < 0.2,
        "{} {}",
        gains[100],
        gains[300]
    );
    assert!((gains[550] - 10.0).abs() < 0.2, "{}", gains[550]);
}

#[test]
fn nan_becomes_silence_and_the_stream_continues() {
    let mut input = tone(RATE, 1_000.0, -30.0, 6.0);
    let clean = normalized(RATE, 2, settings(-23.0, -2.0), &input);
    for (n, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX]
        .into_iter()
        .enumerate()
    {
        input[100_000 + 2 * n] = bad;
    }
    let output = normalized(RATE, 2, settings(-23.0, -2.0), &input);
    assert!((0..4).all(|n| output[100_000 + 2 * n] == 0.0));
    let late = 5 * 96_000;
    for (output, clean) in output[late..].iter().zip(&clean[late..]) {
        assert!((output - clean).abs() < 0.4 * clean.abs() + 1e-3);
    }
    let mut wide = normalizer(RATE, 1, settings(-23.0, -2.0));
    let huge: Vec<f64> = (0..48_000)
        .map(|n| if n % 2 == 0 { 1e300 } else { -1e300 })
        .collect();
    assert!(
        through(&mut wide, &huge, &[500])
            .iter()
            .all(|value| value.is_finite())
    );
}

/// A damaged file, or a cable being plugged in: samples far above full scale. A listener misses only some tenths of a second
/// around them.
#[test]
fn click_reduces_the_gain_only_briefly() {
    let input = speech(40, -20.0);
    let clean = normalized(RATE, 2, settings(-23.0, -2.0), &input);
    let quiet = gains(&input, &clean);
    for (level_db, samples) in [
        (20.0, 1),
        (30.0, 1),
        (30.0, 5),
        (45.0, 1),
        (58.0, 1),
        (90.0, 1),
    ] {
        let mut damaged = input.clone();
        let at = 15 * 96_000;
        for n in 0..2 * samples {
            damaged[at + n] = lin(level_db) as f32 * if n / 2 % 2 == 0 { 1.0 } else { -1.0 };
        }
        let output = normalized(RATE, 2, settings(-23.0, -2.0), &damaged);
        assert!(true_peak(&output, 2) <= -2.0);
        let gains = gains(&input, &output);
        let off = |from: usize, to: usize| {
            let differences = gains[from..to].iter().zip(&quiet[from..to]);
            differences
                .map(|(with, without)| (with - without).abs())
                .fold(0.0, f64::max)
        };
        // There is one gain for each 10 ms.
        let (near, late) = (off(1_600, 1_900), off(1_900, 3_900));
        let before = off(0, 1_480);
        assert!(
            near < 4.0 && late < 2.0,
            "{level_db} dB x {samples}: {before} {near} {late}"
        );
    }
}

#[test]
fn every_format_and_layout_gives_the_same_output() {
    let input: Vec<f32> = speech(4, -20.0)
        .iter()
        .map(|v| (v * 32_768.0).round() / 32_768.0)
        .collect();
    let to = settings(-23.0, -2.0);
    let floats = normalized(RATE, 2, to, &input);
    let shorts: Vec<i16> = input.iter().map(|v| (v * 32_768.0) as i16).collect();
    let longs: Vec<i32> = input
        .iter()
        .map(|v| (f64::from(*v) * 2_147_483_648.0) as i32)
        .collect();
    let doubles: Vec<f64> = input.iter().map(|v| f64::from(*v)).collect();
    let shorts = through(&mut normalizer(RATE, 2, to), &shorts, &[333]);
    let longs = through(&mut normalizer(RATE, 2, to), &longs, &[333]);
    let doubles = through(&mut normalizer(RATE, 2, to), &doubles, &[333]);
    for (n, float) in floats.iter().enumerate() {
        assert_eq!(f64::from(*float), doubles[n]);
        assert_eq!(shorts[n], (float * 32_768.0).round_ties_even() as i16);
        assert!((f64::from(longs[n]) / 2_147_483_648.0 - f64::from(*float)).abs() < 1e-9);
    }
    for channels in [1, 2, 3, 5, 6, 8] {
        let planes: Vec<Vec<f32>> = (0..channels as u32)
            .map(|n| noise(200_000, n, 0.01 * (n + 1) as f32))
            .collect();
        let mut planar = normalizer(RATE, channels, to);
        let mut found = vec![vec![0f32; 200_000]; channels];
        let mut at = [0, 0];
        while at[0] < 200_000 {
            let parts: Vec<&[f32]> = planes
                .iter()
                .map(|p| &p[at[0]..(at[0] + 1_111).min(200_000)])
                .collect();
            at[0] += planar.add_planar(&parts).unwrap();
            if at[0] == 200_000 {
                planar.drain();
            }
            let mut room: Vec<&mut [f32]> = found.iter_mut().map(|p| &mut p[at[1]..]).collect();
            at[1] += planar.take_planar(&mut room).unwrap();
        }
        let interleave = |planes: &[Vec<f32>]| -> Vec<f32> {
            (0..200_000)
                .flat_map(|n| planes.iter().map(move |plane| plane[n]))
                .collect()
        };
        assert_eq!(
            interleave(&found),
            normalized(RATE, channels, to, &interleave(&planes)),
            "{channels}"
        );
    }
}

#[test]
fn any_rate_and_number_of_channels_works() {
    for rate_hz in [
        4_000, 4_001, 5_999, 8_000, 11_025, 22_050, 32_000, 44_100, 88_200, 192_000, 384_000,
        2_822_400,
    ] {
        let channels = if rate_hz > 400_000 { 1 } else { 2 };
        let hz = f64::from(rate_hz).min(16_000.0) / 16.0;
        let frames = f64::from(rate_hz) * 4.0;
        let input: Vec<f32> = (0..frames as usize * channels)
            .map(|n| (0.5 * (TAU * hz * (n / channels) as f64 / f64::from(rate_hz)).sin()) as f32)
            .collect();
        let mut normalizer = normalizer(rate_hz, channels, settings(-23.0, -2.0));
        assert_eq!(
            normalizer.latency_frames(),
            u64::from(rate_hz + 5) / 10 * 30
        );
        let output = through(&mut normalizer, &input, &[rate_hz as usize / 50 + 1]);
        assert_eq!(output.len(), input.len());
        let found = loudness(rate_hz, channels, &output);
        assert!((found + 23.0).abs() < 0.2, "{rate_hz}: {found}");
    }
    let input = noise(64 * 20_000, 9, 0.1);
    let output = normalized(8_000, 64, settings(-23.0, -2.0), &input);
    let found = loudness(8_000, 64, &output);
    assert!((found + 23.0).abs() < 0.3, "{found}");
}

#[test]
fn nothing_is_allocated_and_a_stereo_stream_stays_below_3_mib() {
    let before = allocated_bytes();
    let mut normalizer = normalizer(RATE, 2, settings(-14.0, -1.0));
    let bytes = allocated_bytes() - before;
    assert!(bytes < 3 << 20, "{bytes}");
    let input = speech(8, 0.0);
    let mut block = vec![0f32; 2_000];
    let count = allocations();
    for part in input.chunks(2_000) {
        normalizer.add_interleaved(part).unwrap();
        normalizer.take_interleaved(&mut block).unwrap();
    }
    let _ = normalizer.state();
    normalizer.drain();
    while normalizer.take_interleaved(&mut block).unwrap() > 0 {}
    normalizer.restart();
    normalizer.reset();
    assert_eq!(allocations(), count);
}

#[test]
fn a_restart_keeps_the_gain_and_a_reset_does_not() {
    let first = speech(8, -20.0);
    let mut normalizer = normalizer(RATE, 2, settings(-23.0, -2.0));
    let gain_of = |normalizer: &mut Normalizer, input: &[f32]| {
        let output = through(normalizer, input, &[1_000]);
        let at = (0..96_000)
            .max_by(|a, b| input[*a].abs().total_cmp(&input[*b].abs()))
            .unwrap();
        db(f64::from(output[at] / input[at]))
    };
    gain_of(&mut normalizer, &first);
    normalizer.restart();
    let kept = normalizer.state().gain_db;
    // A rise of 3 LU is within the range, so the gain hardly changes.
    let louder: Vec<f32> = first.iter().map(|value| value * 1.4).collect();
    let restarted = gain_of(&mut normalizer, &louder);
    normalizer.reset();
    let fresh = gain_of(&mut normalizer, &louder);
    assert!(restarted - fresh > 1.0, "{kept} {restarted} {fresh}");
}

#[test]
fn settings_and_input_are_checked() {
    let new =
        |rate, layout: &[Channel], settings| Normalizer::new(rate, layout, settings).map(drop);
    assert_eq!(
        new(3_999, &STEREO, settings(-23.0, -2.0)),
        Err(NormalizeError::Rate(3_999))
    );
    assert_eq!(
        new(RATE, &[], settings(-23.0, -2.0)),
        Err(NormalizeError::Channels(0))
    );
    let mixed = [Channel::Left, Channel::DualMono];
    assert_eq!(
        new(RATE, &mixed, settings(-23.0, -2.0)),
        Err(NormalizeError::DualMono(2))
    );
    for bad in [
        settings(-4.0, -2.0),
        settings(f64::NAN, -2.0),
        settings(-23.0, 0.1),
        NormalizerSettings {
            offset_lu: 100.0,
            ..Default::default()
        },
        NormalizerSettings {
            loudness_range_target_lu: 0.5,
            ..Default::default()
        },
    ] {
        assert!(
            matches!(new(RATE, &STEREO, bad), Err(NormalizeError::Setting { .. })),
            "{bad:?}"
        );
    }
    let mut stereo = normalizer(RATE, 2, settings(-23.0, -2.0));
    assert!(stereo.add_interleaved(&[0f32; 3]).is_err());
    assert!(stereo.add_planar(&[[0f32; 3]]).is_err());
    assert!(stereo.add_planar(&[&[0f32; 3][..], &[0f32; 2]]).is_err());
    stereo.drain();
    assert_eq!(stereo.add_interleaved(&[0f32; 4]), Ok(0));
}

#[test]
fn state_reports_gain_and_limiting() {
    // 24 dB of gain bring a sine from -30 dBFS to -6, 3 dB above the limit.
    let mut normalizer = normalizer(RATE, 2, settings(-6.0, -9.0));
    let mut output = Vec::new();
    for part in tone(RATE, 1_000.0, -30.0, 9.0).chunks(4_800) {
        normalizer.add_interleaved(part).unwrap();
        take_all::<f32>(&mut normalizer, 2_400, &mut output);
    }
    let state = normalizer.state();
    assert!((state.gain_db - 24.0).abs() < 0.1, "{state:?}");
    assert!((state.short_term_in_lufs + 30.0).abs() < 0.1, "{state:?}");
    // The limiter removes the excess over -9 dBTP, and 0.15 dB for other meters.
    assert!((state.limiter_db + 3.15).abs() < 0.2, "{state:?}");
    assert!(state.true_peak_out_dbtp <= -9.0, "{state:?}");
    assert!(
        (state.short_term_out_lufs - state.integrated_out_lufs).abs() < 0.2,
        "{state:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_output_does_not_depend_on_the_lengths_of_the_pieces(
        pieces in prop::collection::vec(1usize..9_000, 1..8),
        channels in 1usize..8,
        rate_hz in prop::sample::select(vec![8_000u32, 11_025, 44_100, 48_000]),
        frames in 0usize..200_000,
        seed in 0u32..1_000,
    ) {
        let mut input = noise(frames * channels, seed, 0.5);
        for (n, value) in input.iter_mut().enumerate() {
            *value *= ((n / channels) as f32 * 1e-4).sin().abs();
        }
        let to = settings(-14.0, -3.0);
        let whole = through(&mut normalizer(rate_hz, channels, to), &input, &[250_000]);
        let cut = through(&mut normalizer(rate_hz, channels, to), &input, &pieces);
        prop_assert_eq!(whole.len(), input.len());
        prop_assert!(whole == cut);
    }

    #[test]
    fn peaks_at_any_position_stay_below_the_limit(
        peaks in prop::collection::vec((0usize..96_000, -4.0f32..4.0, 1usize..40), 1..60),
        hz in 50.0f64..20_000.0,
        level in -40.0f64..0.0,
    ) {
        let mut input = tone(RATE, hz, level, 2.0);
        for (at, value, length) in peaks {
            for (n, sample) in input.iter_mut().skip(at * 2 % 190_000).take(length).enumerate() {
                *sample = if n % 3 == 0 { value } else { -value };
            }
        }
        let output = normalized(RATE, 2, settings(-14.0, -1.0), &input);
        let found = true_peak(&output, 2);
        prop_assert!(found <= -1.0, "{}", found);
    }
}
