//! True peak.

use std::f64::consts::{PI, TAU};

use threadbare_loudness::Mode;

use super::{Bench, each_format};

/// Feeds the same signal on the left and on the right, and returns the true peak in dBTP.
fn true_peak_db(bench: &mut Bench, signal: &[f64]) -> f64 {
    bench.meter.reset();
    let channels = bench.meter.channels();
    let frame = |sample: &f64| {
        (0..channels)
            .map(|n| if n < 2 { *sample as f32 } else { 0.0 })
            .collect()
    };
    let samples: Vec<Vec<f32>> = signal.iter().map(frame).collect();
    for call in samples.concat().chunks(bench.call_frames * channels) {
        bench.meter.add_interleaved(call).expect("whole frames");
    }
    let peaks = [0, 1].map(|channel| bench.meter.true_peak(channel).unwrap());
    assert_eq!(peaks[0], peaks[1]);
    20.0 * peaks[0].log10()
}

/// The tolerance is "+0.2/-0.4 dB" (Tech 3341).
fn assert_peak(found_db: f64, expected_db: f64, what: &str) {
    let is_within = (expected_db - 0.4..=expected_db + 0.2).contains(&found_db);
    assert!(
        is_within,
        "{what}: {found_db:.3} dBTP, expected {expected_db} +0.2/-0.4"
    );
}

/// Returns a second of a sine of `periods_per_frame`, with 10 ms tapers.
fn sine(rate_hz: u32, amplitude: f64, periods_per_frame: f64, degrees: f64) -> Vec<f64> {
    let (length, taper) = (rate_hz as usize, rate_hz as f64 / 100.0);
    let sample = |n: usize| {
        let edge = (n.min(length - 1 - n) as f64 / taper).min(1.0);
        let fade = 0.5 - 0.5 * (PI * edge).cos();
        amplitude * fade * (TAU * periods_per_frame * n as f64 + degrees.to_radians()).sin()
    };
    (0..length).map(sample).collect()
}

/// Returns how many times closer than at 48 kHz the signals are sampled. Tech 3341 gives frequencies relative to a rate of 48
/// kHz.
fn density(bench: &Bench) -> usize {
    (bench.meter.rate_hz() / 48_000).max(1) as usize
}

/// Tech 3341, cases 15 to 19.
#[test]
fn the_true_peak_of_sines_sampled_off_their_peaks_is_measured() {
    let cases = [
        (0.50, 4.0, 0.0, -6.0),
        (0.50, 4.0, 45.0, -6.0),
        (0.50, 6.0, 60.0, -6.0),
        (0.50, 8.0, 67.5, -6.0),
        (1.41, 4.0, 45.0, 3.0),
    ];
    each_format(Mode::TRUE_PEAK, |bench, what| {
        let density = density(bench) as f64;
        for (amplitude, frames_per_period, degrees, expected_db) in cases {
            let periods_per_frame = 1.0 / (frames_per_period * density);
            let signal = sine(bench.meter.rate_hz(), amplitude, periods_per_frame, degrees);
            assert_peak(true_peak_db(bench, &signal), expected_db, what);
        }
    });
}

/// Tech 3341, cases 20 to 23.
#[test]
fn the_true_peak_of_a_louder_period_is_measured() {
    each_format(Mode::TRUE_PEAK, |bench, what| {
        let each = 4 / density(bench);
        let oversampled = low_passed(&burst(12_000));
        for offset in 0..each {
            let signal: Vec<f64> = oversampled
                .iter()
                .copied()
                .skip(offset)
                .step_by(each)
                .collect();
            assert_peak(
                true_peak_db(bench, &signal),
                0.0,
                &format!("{what}, offset {offset}"),
            );
        }
    });
}

/// Returns a burst at four times the rate: a sine of a sixth of the rate with amplitude 0.50, and in the middle one period of a
/// quarter of the rate with amplitude 1.00.
fn burst(periods: usize) -> Vec<f64> {
    let slow: Vec<f64> = (0..24)
        .map(|n| 0.5 * (TAU * f64::from(n) / 24.0).sin())
        .collect();
    let fast: Vec<f64> = (0..16).map(|n| (TAU * f64::from(n) / 16.0).sin()).collect();
    let half = slow.repeat(periods / 12);
    [half.as_slice(), &fast, &half].concat()
}

/// Removes everything above half of the rate, for the decimation by four: a sinc in a Blackman window.
fn low_passed(signal: &[f64]) -> Vec<f64> {
    const REACH: i64 = 128;
    let tap = |n: i64| {
        let x = PI * n as f64 / 4.0;
        let sinc = if n == 0 { 1.0 } else { x.sin() / x };
        let at = PI * n as f64 / REACH as f64;
        sinc / 4.0 * (0.42 + 0.5 * at.cos() + 0.08 * (2.0 * at).cos())
    };
    let taps: Vec<f64> = (-REACH..=REACH).map(tap).collect();
    signal
        .windows(taps.len())
        .map(|part| part.iter().zip(&taps).map(|(x, tap)| x * tap).sum())
        .collect()
}
