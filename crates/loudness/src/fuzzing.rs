//! The body of the fuzz target `loudness`. It is in the library, so that `cargo test` can replay the corpus in `fuzz/corpus`
//! (`tests/it/corpus.rs`) without the nightly compiler that a fuzzer needs.

use crate::{Builder, Meter, Mode, ReadError, Resolution};

/// Runs the target. The bytes are a format, the lengths of pieces, and samples. The function panics unless the readings are equal
/// for any division into pieces, for interleaved and planar samples, and for the best instructions and the baseline.
pub fn loudness(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() else {
        return;
    };
    let [channels, rate, mode, resolution, pieces @ ..] = *head;
    let channels = 1 + usize::from(channels) % 9;
    let rate_hz = RATES_HZ[usize::from(rate) % RATES_HZ.len()];
    let mode = Mode::from_bits(u32::from(mode) | Mode::MOMENTARY.bits());
    let all = [Resolution::Frame, Resolution::Block, Resolution::Step];
    let resolution = all[usize::from(resolution) % 3];
    let builder = Meter::builder(rate_hz, channels)
        .mode(mode)
        .resolution(resolution);
    let samples = samples(rest, channels, rate_hz);
    let whole = in_pieces(&builder, &samples, &[usize::MAX]);
    let pieces = pieces.map(|frames| usize::from(frames) * 4 + 1);
    let cut = in_pieces(&builder.clone().baseline(), &samples, &pieces);
    let planar = planar(&builder, &samples, pieces[0] * 7);
    // Below this rate, which is far below the corner of the shelf, every filter is unstable.
    let is_comparable = rate_hz >= 4_000;
    let largest = samples
        .iter()
        .fold(0.0, |largest: f32, sample| largest.max(sample.abs()));
    for meter in [&whole, &cut, &planar] {
        check(meter);
        if is_comparable {
            compare(&whole, meter, largest);
        }
    }
}

const HEAD_BYTES: usize = 8;
const RATES_HZ: [u32; 9] = [
    48_000, 44_100, 8_000, 16, 97, 1_000, 96_000, 192_000, 22_051,
];
/// Maximum number of samples. Longer inputs are slow and find nothing new.
const SAMPLES_MAX: usize = 60_000;

/// Repeats the bytes for some seconds, as raw numbers of 32 bits, including NaNs and all magnitudes.
fn samples(bytes: &[u8], channels: usize, rate_hz: u32) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    let frames = (rate_hz as usize * 4).min(SAMPLES_MAX / channels);
    let values = words.iter().map(|word| f32::from_le_bytes(*word));
    values
        .cycle()
        .take(if words.is_empty() {
            0
        } else {
            frames * channels
        })
        .collect()
}

fn in_pieces(builder: &Builder, samples: &[f32], pieces: &[usize]) -> Meter {
    let mut meter = builder.build().expect("within the limits");
    let (mut rest, mut pieces) = (samples, pieces.iter().cycle());
    while let Some(frames) = pieces.next().filter(|_| !rest.is_empty()) {
        let piece = frames.saturating_mul(meter.channels()).min(rest.len());
        let (now, later) = rest.split_at(piece);
        meter.add_interleaved(now).expect("whole frames");
        rest = later;
    }
    meter
}

fn planar(builder: &Builder, samples: &[f32], piece: usize) -> Meter {
    let mut meter = builder.build().expect("within the limits");
    let channels = meter.channels();
    let plane = |channel| {
        samples
            .iter()
            .skip(channel)
            .step_by(channels)
            .copied()
            .collect()
    };
    let planes: Vec<Vec<f32>> = (0..channels).map(plane).collect();
    for at in (0..samples.len() / channels).step_by(piece) {
        let part = |plane: &Vec<f32>| plane[at..(at + piece).min(plane.len())].to_vec();
        meter
            .add_planar(&planes.iter().map(part).collect::<Vec<_>>())
            .expect("equally long");
    }
    meter
}

fn check(meter: &Meter) {
    let mode = meter.mode();
    let read = |reading: Result<f64, ReadError>| reading.expect("in the mode");
    for channel in 0..meter.channels() {
        if mode.contains(Mode::TRUE_PEAK) {
            let peak = read(meter.true_peak(channel));
            assert!(peak >= read(meter.sample_peak(channel)));
            assert!(peak >= read(meter.last_true_peak(channel)));
        }
    }
    if mode.contains(Mode::INTEGRATED) {
        let (integrated, gate) = (read(meter.integrated()), read(meter.relative_threshold()));
        assert!(integrated == f64::NEG_INFINITY || integrated >= gate);
    }
    if mode.contains(Mode::RANGE) {
        let range = meter.range().expect("in the mode");
        assert!(range.lu >= 0.0 && range.low_lufs <= range.high_lufs);
    }
}

/// Returns momentary loudness, the loudness of another window and peaks, and separately the gated readings.
fn readings(meter: &Meter) -> (Vec<f64>, Vec<f64>) {
    let windows = [Ok(meter.momentary()), meter.window(7)];
    let peaks = (0..meter.channels()).flat_map(|n| [meter.sample_peak(n), meter.true_peak(n)]);
    let decibels = peaks.map(|peak| peak.map(|peak| 20.0 * peak.log10()));
    let gated = [
        meter.integrated(),
        meter.range().map(|range| range.high_lufs),
    ];
    (
        windows.into_iter().chain(decibels).flatten().collect(),
        gated.into_iter().flatten().collect(),
    )
}

/// Compares the readings of two meters. `largest` is the largest sample that the meters have got.
fn compare(a: &Meter, b: &Meter, largest: f32) {
    // After a loud signal, or with a constant one, the filter leaves a residue. With and without fused products, this residue is
    // rounded differently. The same is true for values near denormals.
    let residue = (20.0 * f64::from(largest).log10() - 180.0).max(-650.0);
    let ((sharp, gated), (other_sharp, other_gated)) = (readings(a), readings(b));
    for (n, (a, b)) in sharp.into_iter().zip(other_sharp).enumerate() {
        let is_near = (a - b).abs() < 1e-3 || (a < residue && b < residue);
        assert!(
            a == b || a.is_nan() && b.is_nan() || is_near,
            "reading {n}: {a} {b}"
        );
    }
    // Rounding may move a block to the other side of a gate, so only the number of readings is compared.
    assert_eq!(gated.len(), other_gated.len());
}
