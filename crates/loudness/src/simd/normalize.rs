//! The inner loops of the normaliser. They are written like those in [`super::kernels`], for any vector size.

use crate::sample::Sample;
use crate::taps::Taps;

#[inline(always)]
fn fused<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Maximum of a sample: +60 dB of full scale. Larger samples come from damaged data; they are neither sounds nor clicks.
const CLICK_MAX: f32 = 1_000.0;

/// Copies samples of interleaved frames, of the channels from `first` on, to rows of `G` lanes. Samples beyond `limit` are
/// clipped to it; samples beyond [`CLICK_MAX`] become silence.
#[inline(always)]
pub(crate) fn take_in<T: Sample, const G: usize>(
    samples: &[T],
    channels: usize,
    first: usize,
    limit: f32,
    rows: &mut [f32],
) {
    let rows = rows.as_chunks_mut::<G>().0;
    if channels == G {
        for (to, from) in rows.as_flattened_mut().iter_mut().zip(samples) {
            *to = sound((from.steps() * T::STEP) as f32, limit);
        }
        return;
    }
    let live = (channels - first).min(G);
    for (row, frame) in rows.iter_mut().zip(samples.chunks_exact(channels)) {
        for (to, from) in row[..live].iter_mut().zip(&frame[first..]) {
            *to = sound((from.steps() * T::STEP) as f32, limit);
        }
    }
}

/// Copies the samples of one channel to a lane. Treats the samples as [`take_in`] does.
#[inline(always)]
pub(crate) fn take_in_plane<T: Sample, const G: usize>(
    samples: &[T],
    lane: usize,
    limit: f32,
    rows: &mut [f32],
) {
    for (row, from) in rows.as_chunks_mut::<G>().0.iter_mut().zip(samples) {
        row[lane] = sound((from.steps() * T::STEP) as f32, limit);
    }
}

#[inline(always)]
fn sound(value: f32, limit: f32) -> f32 {
    // This comparison is also false for values that are not numbers.
    if value.abs() <= CLICK_MAX {
        value.max(-limit).min(limit)
    } else {
        0.0
    }
}

/// Copies rows of `G` lanes to interleaved frames, to the channels from `first` on.
#[inline(always)]
pub(crate) fn give_out<T: Sample, const G: usize>(
    rows: &[f32],
    channels: usize,
    first: usize,
    samples: &mut [T],
) {
    let rows = rows.as_chunks::<G>().0;
    if channels == G {
        for (to, from) in samples.iter_mut().zip(rows.as_flattened()) {
            *to = T::rounded(*from);
        }
        return;
    }
    let live = (channels - first).min(G);
    for (row, frame) in rows.iter().zip(samples.chunks_exact_mut(channels)) {
        for (to, from) in frame[first..].iter_mut().zip(&row[..live]) {
            *to = T::rounded(*from);
        }
    }
}

/// Copies one lane of the rows to the samples of one channel.
#[inline(always)]
pub(crate) fn give_out_plane<T: Sample, const G: usize>(
    rows: &[f32],
    lane: usize,
    samples: &mut [T],
) {
    for (to, row) in samples.iter_mut().zip(rows.as_chunks::<G>().0) {
        *to = T::rounded(row[lane]);
    }
}

/// Raises `peak` to the largest magnitude.
#[inline(always)]
pub(crate) fn loudest(samples: &[f32], peak: &mut f32) {
    let mut lanes = [*peak; 16];
    let (tiles, rest) = samples.as_chunks::<16>();
    for tile in tiles {
        for lane in 0..16 {
            lanes[lane] = larger(tile[lane].abs(), lanes[lane]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = larger(value.abs(), *lane);
    }
    *peak = lanes.into_iter().fold(*peak, larger);
}

/// Multiplies frames of `G` lanes by a gain that starts at `from` and changes by `step` per frame.
#[inline(always)]
pub(crate) fn ramp<const G: usize, const FMA: bool>(samples: &mut [f32], from: f32, step: f32) {
    let (tiles, rest) = samples.as_chunks_mut::<16>();
    let frames_per_tile = (16 / G) as f32;
    let mut gains: [f32; 16] =
        std::array::from_fn(|value| fused::<FMA>((value / G) as f32, step, from));
    let advance = frames_per_tile * step;
    for tile in tiles {
        for lane in 0..16 {
            tile[lane] *= gains[lane];
            gains[lane] += advance;
        }
    }
    for (value, gain) in rest.iter_mut().zip(gains) {
        *value *= gain;
    }
}

/// Raises `peak` to the largest magnitude of the signal between its samples, over all lanes. It checks the gap after each frame
/// of `samples` that has 15 frames before it and 16 frames after it.
#[inline(always)]
pub(crate) fn between<const G: usize, const FMA: bool>(
    taps: &Taps,
    samples: &[f32],
    peak: &mut f32,
) {
    let values = samples.len().saturating_sub(31 * G);
    if values < WIDE {
        for at in 0..values {
            raise::<G, 1, FMA>(taps, &samples[at..], peak);
        }
        return;
    }
    for at in (0..values).step_by(WIDE) {
        // The last tile overlaps the one before, because every tile must be whole.
        raise::<G, WIDE, FMA>(taps, &samples[at.min(values - WIDE)..], peak);
    }
}

const WIDE: usize = 8;

#[inline(always)]
fn raise<const G: usize, const W: usize, const FMA: bool>(
    taps: &Taps,
    samples: &[f32],
    peak: &mut f32,
) {
    let samples = &samples[..31 * G + W];
    let mut even = [[0.0f32; W]; 3];
    let mut odd = [[0.0f32; W]; 3];
    let mut middle = [0.0f32; W];
    for tap in 0..16 {
        let near: &[f32; W] = samples[tap * G..].first_chunk().expect("so many");
        let far: &[f32; W] = samples[(31 - tap) * G..].first_chunk().expect("so many");
        for lane in 0..W {
            let (sum, difference) = (near[lane] + far[lane], near[lane] - far[lane]);
            for pair in 0..3 {
                even[pair][lane] = fused::<FMA>(taps.even[pair][tap], sum, even[pair][lane]);
                odd[pair][lane] = fused::<FMA>(taps.odd[pair][tap], difference, odd[pair][lane]);
            }
            middle[lane] = fused::<FMA>(taps.middle[tap], sum, middle[lane]);
        }
    }
    let mut best = [0.0f32; W];
    for lane in 0..W {
        best[lane] = middle[lane].abs();
        for pair in 0..3 {
            best[lane] = larger(even[pair][lane].abs() + odd[pair][lane].abs(), best[lane]);
        }
    }
    *peak = best.into_iter().fold(*peak, larger);
}
