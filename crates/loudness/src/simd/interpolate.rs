//! Finds the largest value between the samples with a polyphase filter. Of the filter's output, only the peak is kept.

use super::vector::{Floats, Single};
use crate::weighting::{FoldedPhases, Oversampling, largest_gain};

/// Raises `peaks` to the largest magnitudes of the signal between its samples, and of the samples themselves. Values that are not
/// numbers are skipped.
///
/// `samples` are whole frames of `G` lanes. The first frames, as many as the filter's history has, are only the context of the
/// later frames.
#[inline(always)]
pub(crate) fn raise_peaks<const G: usize, V: Floats>(
    proof: V::Proof,
    oversampling: Oversampling,
    phases: &FoldedPhases,
    samples: &[f32],
    peaks: &mut [f32; 4],
) {
    match oversampling {
        Oversampling::None => {}
        Oversampling::Twice => {
            let filter = Twice::<V> {
                half: phases.half.map(|tap| V::splat(proof, tap)),
            };
            let rest = Twice::<Single> {
                half: phases.half.map(|tap| Single::splat((), tap)),
            };
            cover::<G, V, _, _>(proof, oversampling, &filter, &rest, samples, peaks);
        }
        Oversampling::FourTimes => {
            let filter = FourTimes::<V>::new(proof, phases);
            let rest = FourTimes::<Single>::new((), phases);
            cover::<G, V, _, _>(proof, oversampling, &filter, &rest, samples, peaks);
        }
    }
}

/// One of the two filters. `N` vectors of outputs are computed at once, which hides the latency.
trait Filter<V: Floats> {
    /// Raises `best` to the magnitudes of the outputs whose oldest sample is in `samples`.
    fn raise<const G: usize, const N: usize>(
        &self,
        proof: V::Proof,
        samples: &[f32],
        best: &mut [V; N],
    );
}

/// Number of vectors computed at once.
const VECTORS: usize = 2;
/// Number of values that are checked together first, because often none can reach the peak.
const SPAN: usize = 128;
/// Array size: more lanes than a vector of any architecture has.
const LANES_MAX: usize = 8;

#[inline(always)]
fn cover<const G: usize, V: Floats, F: Filter<V>, R: Filter<Single>>(
    proof: V::Proof,
    oversampling: Oversampling,
    filter: &F,
    rest: &R,
    samples: &[f32],
    peaks: &mut [f32; 4],
) {
    let lead_in = oversampling.history_frames() * G;
    let values = samples.len().saturating_sub(lead_in);
    let tile = VECTORS * V::LANES;
    if values < tile {
        for at in 0..values {
            let mut best = [Single::splat((), peaks[at % G])];
            rest.raise::<G, 1>((), &samples[at..], &mut best);
            best[0].store(&mut peaks[at % G..]);
        }
        return;
    }
    let mut lanes: [f32; LANES_MAX] = std::array::from_fn(|lane| peaks[lane % G]);
    let mut best = [V::load(proof, &lanes); VECTORS];
    let gain = V::splat(proof, largest_gain(oversampling));
    let mut start = 0;
    while start < values {
        let end = (start + SPAN).min(values);
        if can_reach(
            proof,
            &samples[start..end + lead_in],
            gain,
            best[0].larger(best[1]),
        ) {
            for at in (start..end).step_by(tile) {
                // The last tile starts early enough to be whole: computing a value twice does no harm.
                filter.raise::<G, VECTORS>(proof, &samples[at.min(values - tile)..], &mut best);
            }
        }
        start = end;
    }
    best[0].larger(best[1]).store(&mut lanes);
    for (lane, best) in lanes.into_iter().enumerate().take(V::LANES) {
        peaks[lane % G] = if best > peaks[lane % G] {
            best
        } else {
            peaks[lane % G]
        };
    }
}

/// Whether an output of `samples` may exceed `best`. This is not the case if each sample times the filter's largest gain does not
/// exceed `best`.
#[inline(always)]
fn can_reach<V: Floats>(proof: V::Proof, samples: &[f32], gain: V, best: V) -> bool {
    let mut largest = [V::splat(proof, 0.0); 4];
    let mut at = 0;
    while at + V::LANES <= samples.len() {
        let next = V::load(proof, &samples[at..]).magnitude();
        let slot = &mut largest[at / V::LANES % 4];
        *slot = next.larger(*slot);
        at += V::LANES;
    }
    // The remaining values are checked from the end, some of them twice.
    let last = V::load(proof, &samples[samples.len() - V::LANES..]).magnitude();
    let largest = largest
        .into_iter()
        .fold(last.larger(V::splat(proof, 0.0)), V::larger);
    !largest.multiply(gain).is_within(best)
}

/// Four values per sample: see [`FoldedPhases`].
struct FourTimes<V> {
    even: [V; 6],
    odd: [V; 6],
    middle: [V; 6],
}

impl<V: Floats> FourTimes<V> {
    #[inline(always)]
    fn new(proof: V::Proof, phases: &FoldedPhases) -> Self {
        let splat = |tap| V::splat(proof, tap);
        FourTimes {
            even: phases.even.map(splat),
            odd: phases.odd.map(splat),
            middle: phases.middle.map(splat),
        }
    }
}

impl<V: Floats> Filter<V> for FourTimes<V> {
    #[inline(always)]
    fn raise<const G: usize, const N: usize>(
        &self,
        proof: V::Proof,
        samples: &[f32],
        best: &mut [V; N],
    ) {
        let samples = &samples[..11 * G + N * V::LANES];
        let at = |frame: usize, n: usize| V::load(proof, &samples[frame * G + n * V::LANES..]);
        let zero = [V::splat(proof, 0.0); N];
        let (mut even, mut odd, mut middle) = (zero, zero, zero);
        for tap in 0..6 {
            for n in 0..N {
                let (near, far) = (at(11 - tap, n), at(tap, n));
                let (sum, difference) = (near.add(far), near.subtract(far));
                even[n] = sum.multiply_add(self.even[tap], even[n]);
                odd[n] = difference.multiply_add(self.odd[tap], odd[n]);
                middle[n] = sum.multiply_add(self.middle[tap], middle[n]);
            }
        }
        for n in 0..N {
            let same = at(11 - Oversampling::FourTimes.delay_frames(), n);
            best[n] = even[n].magnitude().add(odd[n].magnitude()).larger(best[n]);
            best[n] = middle[n].magnitude().larger(best[n]);
            best[n] = same.magnitude().larger(best[n]);
        }
    }
}

/// Two values per sample.
struct Twice<V> {
    half: [V; 12],
}

impl<V: Floats> Filter<V> for Twice<V> {
    #[inline(always)]
    fn raise<const G: usize, const N: usize>(
        &self,
        proof: V::Proof,
        samples: &[f32],
        best: &mut [V; N],
    ) {
        let samples = &samples[..23 * G + N * V::LANES];
        let at = |frame: usize, n: usize| V::load(proof, &samples[frame * G + n * V::LANES..]);
        let mut half = [V::splat(proof, 0.0); N];
        for tap in 0..12 {
            for (n, half) in half.iter_mut().enumerate() {
                let sum = at(23 - tap, n).add(at(tap, n));
                *half = sum.multiply_add(self.half[tap], *half);
            }
        }
        for n in 0..N {
            let same = at(23 - Oversampling::Twice.delay_frames(), n);
            best[n] = half[n].magnitude().larger(best[n]);
            best[n] = same.magnitude().larger(best[n]);
        }
    }
}
