//! Compares each kernel, at each level of this processor, with a scalar model.

use super::*;

fn levels() -> Vec<Level> {
    let mut levels = vec![Level::BASELINE];
    if Level::detect() != Level::BASELINE {
        levels.push(Level::detect());
    }
    levels
}

/// Deterministic noise.
fn noise(count: usize, seed: u32) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Lengths around those at which a kernel switches from vectors to the remainder.
const LENGTHS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 129, 500];

fn rows<const G: usize>(values: &[f64]) -> Vec<[f64; G]> {
    values.as_chunks().0.to_vec()
}

/// ITU-R BS.1770, annex 1: the difference equations of the two filters, of one channel.
fn naive_weighting(k: &KWeighting, x: &[f64]) -> Vec<f64> {
    let section = |x: &[f64], b: [f64; 3], a: [f64; 2]| {
        let mut y: Vec<f64> = Vec::new();
        for n in 0..x.len() {
            let at = |values: &[f64], back: usize| if n >= back { values[n - back] } else { 0.0 };
            let forward = b[0] * x[n] + b[1] * at(x, 1) + b[2] * at(x, 2);
            y.push(forward - a[0] * at(&y, 1) - a[1] * at(&y, 2));
        }
        y
    };
    section(
        &section(x, k.shelf_b, k.shelf_a),
        [1.0, -2.0, 1.0],
        k.pass_a,
    )
}

fn check_weighting<const G: usize>(level: Level) {
    let k = KWeighting::new(48_000);
    let (mut state, mut energy, mut squares) = (KState::default(), [0.0; 4], Vec::new());
    let input = noise(LENGTHS.iter().sum::<usize>() * G, 1);
    let mut rest: &[f64] = &input;
    for length in LENGTHS {
        let (now, later) = rest.split_at(length * G);
        let mut lanes = rows::<G>(now);
        level.weight(&k, &mut state, &mut lanes, &mut energy);
        squares.extend(lanes);
        rest = later;
    }
    for lane in 0..G {
        let channel: Vec<f64> = rows::<G>(&input).iter().map(|row| row[lane]).collect();
        let twin: Vec<f64> = naive_weighting(&k, &channel)
            .iter()
            .map(|y| y * y)
            .collect();
        for (n, (found, twin)) in squares.iter().zip(&twin).enumerate() {
            assert!(
                (found[lane] - twin).abs() < 1e-11,
                "{level:?} {G} {lane} {n}: {} {twin}",
                found[lane]
            );
        }
        assert!(
            (energy[lane] - twin.iter().sum::<f64>()).abs() < 1e-9,
            "{level:?} {G} {lane}"
        );
    }
}

#[test]
fn the_weighting_equals_that_of_bs_1770() {
    for level in levels() {
        check_weighting::<1>(level);
        check_weighting::<2>(level);
        check_weighting::<4>(level);
    }
}

/// A naive peak meter: filters phase by phase, in `f64`, and keeps only the largest value.
fn naive_peak(oversampling: Oversampling, x: &[f64]) -> f64 {
    let history = oversampling.history_frames();
    let phases: Vec<Vec<f64>> = match oversampling {
        Oversampling::None => vec![],
        Oversampling::Twice => vec![oversampling.phase(1)],
        Oversampling::FourTimes => (1..4).map(|phase| oversampling.phase(phase)).collect(),
    };
    let mut peak = 0f64;
    for n in history..x.len() {
        peak = peak.max(x[n - oversampling.delay_frames()].abs());
        for phase in &phases {
            let value: f64 = phase
                .iter()
                .enumerate()
                .map(|(back, tap)| tap * x[n - back])
                .sum();
            peak = peak.max(value.abs());
        }
    }
    peak
}

fn check_peaks<const G: usize>(level: Level, oversampling: Oversampling, length: usize, seed: u32) {
    let frames = oversampling.history_frames() + length;
    // One part is loud, so that most of the signal can be skipped.
    let gain = |n: usize| if n / G == frames * 2 / 3 { 1.0 } else { 0.4 };
    let input: Vec<f64> = noise(frames * G, seed)
        .iter()
        .enumerate()
        .map(|(n, x)| x * gain(n))
        .collect();
    let narrow: Vec<f32> = input.iter().map(|x| *x as f32).collect();
    let mut peaks = [0.0; 4];
    level.interpolate::<G>(oversampling, &FoldedPhases::new(), &narrow, &mut peaks);
    for lane in 0..G {
        let channel: Vec<f64> = rows::<G>(&input).iter().map(|row| row[lane]).collect();
        let twin = naive_peak(oversampling, &channel);
        let found = f64::from(peaks[lane]);
        assert!(
            (found - twin).abs() < 1e-6,
            "{level:?} {oversampling:?} {G} {length}: {found} {twin}"
        );
    }
}

#[test]
fn the_interpolation_finds_the_peak_of_all_phases() {
    for level in levels() {
        for oversampling in [Oversampling::FourTimes, Oversampling::Twice] {
            for (seed, length) in LENGTHS.into_iter().enumerate() {
                check_peaks::<1>(level, oversampling, length, seed as u32);
                check_peaks::<2>(level, oversampling, length, seed as u32);
                check_peaks::<4>(level, oversampling, length, seed as u32);
            }
        }
    }
}

/// The vectors for other architectures find the same peak on this one.
#[test]
fn vectors_of_other_architectures_find_the_same_peak() {
    let samples: Vec<f32> = noise(1_000, 7).iter().map(|x| *x as f32).collect();
    for oversampling in [Oversampling::FourTimes, Oversampling::Twice] {
        let (mut plain, mut twin) = ([0.0; 4], [0.0; 4]);
        let phases = FoldedPhases::new();
        interpolate::raise_peaks::<2, vector::Four>(
            (),
            oversampling,
            &phases,
            &samples,
            &mut plain,
        );
        Level::BASELINE.interpolate::<2>(oversampling, &phases, &samples, &mut twin);
        for (plain, twin) in plain.into_iter().zip(twin) {
            assert!(
                (plain - twin).abs() < 1e-6,
                "{oversampling:?}: {plain} {twin}"
            );
        }
    }
}

#[test]
fn nan_is_ignored() {
    for level in levels() {
        let mut samples: Vec<f32> = noise(600, 5).iter().map(|x| *x as f32 * 0.5).collect();
        samples[300] = f32::NAN;
        let mut peaks = [0.0; 4];
        level.interpolate::<2>(
            Oversampling::FourTimes,
            &FoldedPhases::new(),
            &samples,
            &mut peaks,
        );
        assert!(peaks[0] > 0.4 && peaks[1] > 0.4, "{peaks:?}");
        let lanes = [[0.25, f64::NAN], [f64::NAN, -0.5], [0.1, 0.1]];
        let mut peaks = [0.0; 4];
        level.sample_peaks(&lanes, &mut peaks);
        assert_eq!(peaks, [0.25, 0.5, 0.0, 0.0]);
    }
}

#[test]
fn largest_sample_is_found_at_any_position() {
    for level in levels() {
        for length in 1..20 {
            for at in 0..length {
                let mut lanes = vec![[0.1, -0.2, 0.3, 0.0]; length];
                lanes[at] = [-0.9, 0.8, 0.3, -0.7];
                let mut peaks = [0.0; 4];
                level.sample_peaks(&lanes, &mut peaks);
                assert_eq!(peaks, [0.9, 0.8, 0.3, 0.7], "{length} {at}");
            }
        }
    }
}

fn check_gathering<const G: usize>(
    level: Level,
    channels: usize,
    first: usize,
    run: usize,
    lane: usize,
) {
    let samples: Vec<i16> = (0..channels * 9).map(|n| n as i16 * 100).collect();
    let mut lanes = vec![[-1.0; G]; 9];
    level.gather(&samples, channels, first, lane..lane + run, &mut lanes);
    for (frame, row) in lanes.iter().enumerate() {
        for (at, found) in row.iter().enumerate() {
            let twin = match at.checked_sub(lane).filter(|at| *at < run) {
                Some(at) => f64::from(samples[frame * channels + first + at]) / 32_768.0,
                None => -1.0,
            };
            assert_eq!(*found, twin, "{G} {channels} {first} {run} {lane}");
        }
    }
}

#[test]
fn each_channel_goes_to_its_lane() {
    for level in levels() {
        check_gathering::<1>(level, 1, 0, 1, 0);
        check_gathering::<1>(level, 5, 4, 1, 0);
        check_gathering::<2>(level, 2, 0, 2, 0);
        check_gathering::<2>(level, 6, 4, 2, 0);
        check_gathering::<4>(level, 4, 0, 4, 0);
        check_gathering::<4>(level, 7, 2, 4, 0);
        check_gathering::<4>(level, 7, 4, 3, 0);
        check_gathering::<4>(level, 2, 0, 2, 2);
        check_gathering::<4>(level, 1, 0, 1, 3);
        check_gathering::<4>(level, 6, 4, 2, 0);
    }
}

#[test]
fn lanes_add_up_by_weight() {
    for level in levels() {
        let lanes: Vec<[f64; 4]> = rows(&noise(44, 3));
        let weights = [1.0, 1.41, 0.0, 2.0];
        let mut frames = [7.0; 11];
        level.sum_lanes(&lanes, &weights, true, &mut frames);
        level.sum_lanes(&lanes, &weights, false, &mut frames);
        for (found, row) in frames.iter().zip(&lanes) {
            let twin: f64 = 2.0
                * row
                    .iter()
                    .zip(weights)
                    .map(|(x, weight)| x * weight)
                    .sum::<f64>();
            assert!((found - twin).abs() < 1e-14);
        }
    }
}

/// The normaliser's kernels, with `G` lanes, compared with their definition.
fn check_normalizing<const G: usize>(level: Level) {
    let taps = Taps::new();
    for frames in LENGTHS {
        let input: Vec<f32> = noise((frames + 31) * G, 5)
            .iter()
            .map(|v| *v as f32)
            .collect();
        let mut found = 0.0;
        level.between::<G>(&taps, &input, &mut found);
        let mut twin = 0.0f64;
        for at in 0..frames * G {
            let of = |tap: usize| f64::from(input[at + tap * G]);
            let sum = |taps: &[f32; 16], sign: f64| -> f64 {
                (0..16)
                    .map(|tap| f64::from(taps[tap]) * (of(tap) + sign * of(31 - tap)))
                    .sum()
            };
            for pair in 0..3 {
                let (even, odd) = (sum(&taps.even[pair], 1.0), sum(&taps.odd[pair], -1.0));
                twin = twin.max((even + odd).abs()).max((even - odd).abs());
            }
            twin = twin.max(sum(&taps.middle, 1.0).abs());
        }
        assert!(
            (f64::from(found) - twin).abs() < 1e-5,
            "{level:?} {G} {frames}: {found} {twin}"
        );

        let mut found = 0.0;
        level.loudest(&input, &mut found);
        assert_eq!(
            found,
            input
                .iter()
                .fold(0.0f32, |peak, value| peak.max(value.abs()))
        );

        let mut found = input.clone();
        level.ramp::<G>(&mut found, 0.25, 1e-3);
        for (n, (found, input)) in found.iter().zip(&input).enumerate() {
            let gain = 0.25 + 1e-3 * (n / G) as f32;
            assert!(
                (found - input * gain).abs() < 1e-5,
                "{level:?} {G} {frames}"
            );
        }
    }
}

#[test]
fn normaliser_equals_its_naive_twins() {
    for level in levels() {
        check_normalizing::<1>(level);
        check_normalizing::<2>(level);
        check_normalizing::<4>(level);
    }
}

#[test]
fn samples_are_converted_into_rows_and_back() {
    for level in levels() {
        let samples = [0.5f32, f32::NAN, -0.25, -20.0, 2_000.0, 1.5];
        let mut rows = [9.0f32; 8];
        level.take_in::<f32, 4>(&samples, 3, 0, 16.0, &mut rows);
        assert_eq!(rows, [0.5, 0.0, -0.25, 9.0, -16.0, 0.0, 1.5, 9.0]);
        let mut out = [0i16; 6];
        level.give_out::<i16, 4>(&rows, 3, 0, &mut out);
        assert_eq!(out, [16_384, 0, -8_192, i16::MIN, 0, i16::MAX]);
        let mut plane = [0i32; 2];
        level.give_out_plane::<i32, 4>(&rows, 2, &mut plane);
        assert_eq!(plane, [-(1 << 29), i32::MAX]);
        level.take_in_plane::<f64, 4>(&[-1e-3, f64::INFINITY], 1, 16.0, &mut rows);
        assert_eq!(rows, [0.5, -1e-3, -0.25, 9.0, -16.0, 0.0, 1.5, 9.0]);
    }
}
