//! The inner loops, written once for all processors: over arrays of as many values as a vector register has, so that
//! the compiler makes vector instructions of them wherever this is inlined into a function compiled for such a processor.
//!
//! `G` is the number of lanes of a group: 1, 2 or 4 channels side by side. `FMA` says whether a product and a sum are
//! one instruction there; where they are not, asking for it would cost a call.

use crate::sample::Sample;
use crate::weighting::KWeighting;

/// The memory of the K-weighting of up to four lanes: per section the last two values in and out. The output of the
/// first section is the input of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct KState {
    /// What came in, the newest first.
    pub(crate) input: [[f64; 4]; 2],
    /// Between the shelf and the high-pass.
    pub(crate) middle: [[f64; 4]; 2],
    /// What went out.
    pub(crate) output: [[f64; 4]; 2],
}

#[inline(always)]
fn fused<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The larger one, and `b` if `a` is not a number: what a `max` instruction does.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The channels from `first` on, of interleaved frames, to the lanes `to`.
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

/// One plane.
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

/// Raises `peaks` to the largest magnitudes. What is not a number is passed over.
#[inline(always)]
pub(crate) fn sample_peaks<const G: usize>(lanes: &[[f64; G]], peaks: &mut [f64; 4]) {
    // Four rows at once: a single one would wait for itself.
    let mut rows = [take::<4, G, _>(peaks, 0); 4];
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

/// Replaces each value by the square of its K-weighting, and adds the squares to `energy`.
///
/// The four lanes go through the shelf and then the high-pass. Both in direct form I: of the recursion, only one product
/// and sum lie between one output and the next.
#[inline(always)]
pub(crate) fn weight_four<const FMA: bool>(
    k: &KWeighting,
    state: &mut KState,
    lanes: &mut [[f64; 4]],
    energy: &mut [f64; 4],
) {
    let shelf = Section::shelf(k);
    let pass = Section::pass(k);
    let [mut x1, mut x2] = state.input;
    let [mut p1, mut p2] = state.middle;
    let [mut y1, mut y2] = state.output;
    let mut sum = *energy;
    for row in lanes {
        let x = *row;
        let p = shelf.step::<FMA>(&x, &x1, &x2, &p1, &p2);
        let y = pass.step::<FMA>(&p, &p1, &p2, &y1, &y2);
        for lane in 0..4 {
            row[lane] = y[lane] * y[lane];
            sum[lane] += row[lane];
        }
        (x2, x1, p2, p1, y2, y1) = (x1, x, p1, p, y1, y);
    }
    state.input = [x1, x2];
    state.middle = [p1, p2];
    state.output = [y1, y2];
    *energy = sum;
}

/// The same for `G` lanes, 1 or 2, in vectors of `W` = 2 `G`: the high-pass of a frame runs in the second half of the
/// vector, beside the shelf of the next frame in the first half.
#[inline(always)]
pub(crate) fn weight_skewed<const G: usize, const W: usize, const FMA: bool>(
    k: &KWeighting,
    state: &mut KState,
    lanes: &mut [[f64; G]],
    energy: &mut [f64; 4],
) {
    let Some(&first) = lanes.first() else { return };
    let (shelf, pass) = (Section::<G>::shelf(k), Section::<G>::pass(k));
    let both = Section::<W>::beside(&shelf, &pass);
    let [x1, x2] = state.input.map(|row| take::<4, G, _>(&row, 0));
    let [p1, p2] = state.middle.map(|row| take::<4, G, _>(&row, 0));
    let [y1, y2] = state.output.map(|row| take::<4, G, _>(&row, 0));
    let ahead = shelf.step::<FMA>(&first, &x1, &x2, &p1, &p2);
    let (mut in1, mut in2) = (join::<G, W>(&first, &p1), join::<G, W>(&x1, &p2));
    let (mut out1, mut out2) = (join::<G, W>(&ahead, &y1), join::<G, W>(&p1, &y2));
    let mut sum = [0.0; W];
    for at in 1..lanes.len() {
        let input = join::<G, W>(&lanes[at], &take::<W, G, _>(&out1, 0));
        let out = both.step::<FMA>(&input, &in1, &in2, &out1, &out2);
        let mut square = [0.0; W];
        for lane in 0..W {
            square[lane] = out[lane] * out[lane];
            sum[lane] += square[lane];
        }
        lanes[at - 1] = take::<W, G, _>(&square, G);
        (in2, in1, out2, out1) = (in1, input, out1, out);
    }
    let (p1, p2) = (take::<W, G, _>(&out1, 0), take::<W, G, _>(&out2, 0));
    let (y1, y2) = (take::<W, G, _>(&out1, G), take::<W, G, _>(&out2, G));
    let y = pass.step::<FMA>(&p1, &p2, &take::<W, G, _>(&in2, G), &y1, &y2);
    let last = lanes.len() - 1;
    for lane in 0..G {
        lanes[last][lane] = y[lane] * y[lane];
        energy[lane] += sum[G + lane] + lanes[last][lane];
        state.input[0][lane] = in1[lane];
        state.input[1][lane] = in2[lane];
        state.middle[0][lane] = p1[lane];
        state.middle[1][lane] = p2[lane];
        state.output[0][lane] = y[lane];
        state.output[1][lane] = y1[lane];
    }
}

/// One section of a filter, with coefficients for each lane; `a` with the sign turned.
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

    #[inline(always)]
    fn beside<const G: usize>(first: &Section<G>, second: &Section<G>) -> Self {
        Section {
            b: std::array::from_fn(|n| join::<G, W>(&first.b[n], &second.b[n])),
            a: std::array::from_fn(|n| join::<G, W>(&first.a[n], &second.a[n])),
        }
    }

    /// The output, from the input and what went in and out before, once and twice.
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
fn join<const G: usize, const W: usize>(first: &[f64; G], second: &[f64; G]) -> [f64; W] {
    std::array::from_fn(|lane| {
        if lane < G {
            first[lane]
        } else {
            second[lane - G]
        }
    })
}

#[inline(always)]
fn take<const W: usize, const G: usize, T: Copy>(from: &[T; W], at: usize) -> [T; G] {
    std::array::from_fn(|lane| from[at + lane])
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

/// The samples as `f32`, for the interpolation.
#[inline(always)]
pub(crate) fn narrow(wide: &[f64], narrow: &mut [f32]) {
    for (to, from) in narrow.iter_mut().zip(wide) {
        *to = *from as f32;
    }
}
