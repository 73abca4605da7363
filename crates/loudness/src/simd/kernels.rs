//! The inner loops, written once for all processors. They work on arrays with as many values as a vector register. The compiler
//! generates vector instructions if they are inlined into a function compiled for such a processor.
//!
//! `G` is the number of lanes of a group: 1, 2 or 4 channels. `FMA` says whether the processor has fused multiply-add
//! instructions. Without them, a fused product would be a function call.

use crate::sample::Sample;
use crate::weighting::KWeighting;

/// The memory of the K-weighting of up to four lanes: for each section, the last two inputs and outputs. The output of the first
/// section is the input of the second section.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct KState {
    /// The last inputs, the newest first.
    pub(crate) input: [[f64; 4]; 2],
    /// The last values between the shelf and the high-pass.
    pub(crate) middle: [[f64; 4]; 2],
    /// The last outputs.
    pub(crate) output: [[f64; 4]; 2],
}

#[inline(always)]
fn fused<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Returns the larger value, or `b` if `a` is not a number, like a `max` instruction.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// Copies the channels from `first` on of interleaved frames to the lanes `to`.
#[inline(always)]
pub(crate) fn gather<T: Sample, const G: usize>(
    samples: &[T],
    channels: usize,
    first: usize,
    to: std::ops::Range<usize>,
    lanes: &mut [[f64; G]],
) {
    if channels == G && to.len() == G {
        for (to, from) in lanes.as_flattened_mut().iter_mut().zip(samples) {
            *to = from.steps() * T::STEP;
        }
    } else if to.len() == G {
        for (to, frame) in lanes.iter_mut().zip(samples.chunks_exact(channels)) {
            let from: &[T; G] = frame[first..].first_chunk().expect("so many lanes");
            for lane in 0..G {
                to[lane] = from[lane].steps() * T::STEP;
            }
        }
    } else if channels == 2 && to.len() == 2 {
        let (frames, _) = samples.as_chunks::<2>();
        for (row, frame) in lanes.iter_mut().zip(frames) {
            row[to.start] = frame[0].steps() * T::STEP;
            row[to.start + 1] = frame[1].steps() * T::STEP;
        }
    } else {
        for (row, frame) in lanes.iter_mut().zip(samples.chunks_exact(channels)) {
            for (to, from) in row[to.clone()].iter_mut().zip(&frame[first..]) {
                *to = from.steps() * T::STEP;
            }
        }
    }
}

/// Copies one plane to a lane.
#[inline(always)]
pub(crate) fn gather_plane<T: Sample, const G: usize>(
    samples: &[T],
    lane: usize,
    lanes: &mut [[f64; G]],
) {
    for (to, from) in lanes.iter_mut().zip(samples) {
        to[lane] = from.steps() * T::STEP;
    }
}

/// Raises `peaks` to the largest magnitudes. Values that are not numbers are skipped.
#[inline(always)]
pub(crate) fn sample_peaks<const G: usize>(lanes: &[[f64; G]], peaks: &mut [f64; 4]) {
    // Four rows are handled at once, because a loop over single rows would wait for each result.
    let mut rows = [take::<4, G, _>(peaks); 4];
    let (fours, rest) = lanes.as_chunks::<4>();
    for four in fours {
        for (row, values) in rows.iter_mut().zip(four) {
            for lane in 0..G {
                row[lane] = larger(values[lane].abs(), row[lane]);
            }
        }
    }
    for (row, values) in rows.iter_mut().zip(rest) {
        for lane in 0..G {
            row[lane] = larger(values[lane].abs(), row[lane]);
        }
    }
    for lane in 0..G {
        for row in &rows {
            peaks[lane] = larger(row[lane], peaks[lane]);
        }
    }
}

/// Replaces each value by its K-weighted value, squared, and adds the squares to `energy`, by lane.
///
/// The shelf comes first, then the high-pass, both in direct form I. Only one product and sum of the recursion lie between two
/// outputs, so a processor works on several frames and both sections at once. The form also keeps rounding errors small: a single
/// recursion of fourth order for both sections would have errors a thousand times as large.
#[inline(always)]
pub(crate) fn weight<const G: usize, const FMA: bool>(
    k: &KWeighting,
    state: &mut KState,
    lanes: &mut [[f64; G]],
    energy: &mut [f64; 4],
) {
    let (shelf, pass) = (Section::<G>::shelf(k), Section::<G>::pass(k));
    let [mut x1, mut x2] = state.input.map(|row| take::<4, G, _>(&row));
    let [mut p1, mut p2] = state.middle.map(|row| take::<4, G, _>(&row));
    let [mut y1, mut y2] = state.output.map(|row| take::<4, G, _>(&row));
    let mut sum = [0.0; G];
    for row in lanes {
        let x = *row;
        let p = shelf.step::<FMA>(&x, &x1, &x2, &p1, &p2);
        let y = pass.step::<FMA>(&p, &p1, &p2, &y1, &y2);
        for lane in 0..G {
            row[lane] = y[lane] * y[lane];
            sum[lane] += row[lane];
        }
        (x2, x1, p2, p1, y2, y1) = (x1, x, p1, p, y1, y);
    }
    for lane in 0..G {
        energy[lane] += sum[lane];
        (state.input[0][lane], state.input[1][lane]) = (x1[lane], x2[lane]);
        (state.middle[0][lane], state.middle[1][lane]) = (p1[lane], p2[lane]);
        (state.output[0][lane], state.output[1][lane]) = (y1[lane], y2[lane]);
    }
}

/// One section of a filter, with coefficients for each lane. The signs of `a` are inverted.
struct Section<const W: usize> {
    b: [[f64; W]; 3],
    a: [[f64; W]; 2],
}

impl<const W: usize> Section<W> {
    #[inline(always)]
    fn shelf(k: &KWeighting) -> Self {
        Section {
            b: k.shelf_b.map(|b| [b; W]),
            a: k.shelf_a.map(|a| [-a; W]),
        }
    }

    #[inline(always)]
    fn pass(k: &KWeighting) -> Self {
        Section {
            b: [[1.0; W], [-2.0; W], [1.0; W]],
            a: k.pass_a.map(|a| [-a; W]),
        }
    }

    /// Returns the output for this input, from the last two inputs and outputs.
    #[inline(always)]
    fn step<const FMA: bool>(
        &self,
        x: &[f64; W],
        x1: &[f64; W],
        x2: &[f64; W],
        y1: &[f64; W],
        y2: &[f64; W],
    ) -> [f64; W] {
        let mut y = [0.0; W];
        for lane in 0..W {
            let older = fused::<FMA>(self.b[1][lane], x1[lane], self.b[2][lane] * x2[lane]);
            let forward = fused::<FMA>(self.b[0][lane], x[lane], older);
            let back = fused::<FMA>(self.a[1][lane], y2[lane], forward);
            y[lane] = fused::<FMA>(self.a[0][lane], y1[lane], back);
        }
        y
    }
}

#[inline(always)]
fn take<const W: usize, const G: usize, T: Copy>(from: &[T; W]) -> [T; G] {
    std::array::from_fn(|lane| from[lane])
}

/// Writes the weighted sums of the lanes' squares to `frames`, or adds them.
#[inline(always)]
pub(crate) fn sum_lanes<const G: usize, const FMA: bool>(
    squares: &[[f64; G]],
    weights: &[f64; 4],
    is_first: bool,
    frames: &mut [f64],
) {
    for (frame, row) in frames.iter_mut().zip(squares) {
        let mut sum = if is_first { 0.0 } else { *frame };
        for lane in 0..G {
            sum = fused::<FMA>(weights[lane], row[lane], sum);
        }
        *frame = sum;
    }
}

/// Converts the samples to `f32`, for the interpolation.
#[inline(always)]
pub(crate) fn narrow(wide: &[f64], narrow: &mut [f32]) {
    for (to, from) in narrow.iter_mut().zip(wide) {
        *to = *from as f32;
    }
}
