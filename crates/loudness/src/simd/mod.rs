//! Selects instructions at run time, and compiles the inner loops for them.
//!
//! [`kernels`] contains each loop once. On x86-64, each loop is compiled twice: for the baseline (SSE2), and for AVX2 with FMA.
//! Other architectures have only the baseline; on AArch64, it includes NEON and fused products.

mod denormals;
mod interpolate;
mod kernels;
mod normalize;
#[cfg(test)]
mod tests;
mod vector;

pub use denormals::with_denormals_flushed;
pub(crate) use kernels::KState;

use crate::sample::Sample;
use crate::taps::Taps;
use crate::weighting::{FoldedPhases, KWeighting, Oversampling};

/// The instructions that the inner loops are compiled for. Only [`Level::detect`] creates values other than the baseline, so a
/// value proves that the instructions exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

/// Whether the baseline has fused multiply-add instructions.
const BASELINE_FMA: bool = cfg!(target_arch = "aarch64");

/// Gives [`Level`] a method that runs a kernel compiled for that level.
///
/// In the kernel's call, `FMA` is whether fused products exist.
macro_rules! dispatch {
    ($(
        $(#[$doc:meta])*
        fn $name:ident [$($generic:tt)*] [$($pass:tt)*] ($($arg:ident: $type:ty),* $(,)?) = |$fma:ident| $call:expr;
    )*) => { impl Level { $(
        $(#[$doc])*
        #[inline]
        pub(crate) fn $name<$($generic)*>(self, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($generic)*>($($arg: $type),*) {
                const $fma: bool = true;
                $call
            }
            match self.0 {
                Instructions::Baseline => {
                    const $fma: bool = BASELINE_FMA;
                    $call
                }
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only `detect` creates `Avx2`, after it has found AVX2 and FMA in this processor.
                Instructions::Avx2 => unsafe { avx2::<$($pass)*>($($arg),*) },
            }
        }
    )* } };
}

impl Level {
    /// Returns the best instructions of this processor.
    pub(crate) fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            return Level(Instructions::Avx2);
        }
        Level::BASELINE
    }

    /// The instructions of every processor of this architecture.
    pub(crate) const BASELINE: Level = Level(Instructions::Baseline);

    /// See [`interpolate::raise_peaks`].
    #[inline]
    pub(crate) fn interpolate<const G: usize>(
        self,
        oversampling: Oversampling,
        phases: &FoldedPhases,
        samples: &[f32],
        peaks: &mut [f32; 4],
    ) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2<const G: usize>(
            oversampling: Oversampling,
            phases: &FoldedPhases,
            samples: &[f32],
            peaks: &mut [f32; 4],
        ) {
            // SAFETY: this function is running, so the processor has the instructions that it was compiled for.
            let proof = unsafe { vector::HasAvx2::new() };
            interpolate::raise_peaks::<G, vector::Avx2>(
                proof,
                oversampling,
                phases,
                samples,
                peaks,
            );
        }
        match self.0 {
            Instructions::Baseline => interpolate::raise_peaks::<G, vector::Baseline>(
                (),
                oversampling,
                phases,
                samples,
                peaks,
            ),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` creates `Avx2`, after it has found AVX2 and FMA in this processor.
            Instructions::Avx2 => unsafe { avx2::<G>(oversampling, phases, samples, peaks) },
        }
    }
}

dispatch! {
    /// See [`kernels::gather`].
    fn gather [T: Sample, const G: usize] [T, G] (
        samples: &[T], channels: usize, first: usize, to: std::ops::Range<usize>, lanes: &mut [[f64; G]],
    ) = |_FMA| kernels::gather(samples, channels, first, to, lanes);

    /// See [`kernels::gather_plane`].
    fn gather_plane [T: Sample, const G: usize] [T, G] (
        samples: &[T], lane: usize, lanes: &mut [[f64; G]],
    ) = |_FMA| kernels::gather_plane(samples, lane, lanes);

    /// See [`kernels::sample_peaks`].
    fn sample_peaks [const G: usize] [G] (
        lanes: &[[f64; G]], peaks: &mut [f64; 4],
    ) = |_FMA| kernels::sample_peaks(lanes, peaks);

    /// See [`kernels::weight`].
    fn weight [const G: usize] [G] (
        k: &KWeighting, state: &mut KState, lanes: &mut [[f64; G]], energy: &mut [f64; 4],
    ) = |FMA| kernels::weight::<G, FMA>(k, state, lanes, energy);

    /// See [`kernels::sum_lanes`].
    fn sum_lanes [const G: usize] [G] (
        squares: &[[f64; G]], weights: &[f64; 4], is_first: bool, frames: &mut [f64],
    ) = |FMA| kernels::sum_lanes::<G, FMA>(squares, weights, is_first, frames);

    /// See [`kernels::narrow`].
    fn narrow [] [] (wide: &[f64], narrow: &mut [f32]) = |_FMA| kernels::narrow(wide, narrow);

    /// See [`normalize::take_in`].
    fn take_in [T: Sample, const G: usize] [T, G] (
        samples: &[T], channels: usize, first: usize, limit: f32, rows: &mut [f32],
    ) = |_FMA| normalize::take_in::<T, G>(samples, channels, first, limit, rows);

    /// See [`normalize::take_in_plane`].
    fn take_in_plane [T: Sample, const G: usize] [T, G] (
        samples: &[T], lane: usize, limit: f32, rows: &mut [f32],
    ) = |_FMA| normalize::take_in_plane::<T, G>(samples, lane, limit, rows);

    /// See [`normalize::give_out`].
    fn give_out [T: Sample, const G: usize] [T, G] (
        rows: &[f32], channels: usize, first: usize, samples: &mut [T],
    ) = |_FMA| normalize::give_out::<T, G>(rows, channels, first, samples);

    /// See [`normalize::give_out_plane`].
    fn give_out_plane [T: Sample, const G: usize] [T, G] (
        rows: &[f32], lane: usize, samples: &mut [T],
    ) = |_FMA| normalize::give_out_plane::<T, G>(rows, lane, samples);

    /// See [`normalize::loudest`].
    fn loudest [] [] (samples: &[f32], peak: &mut f32) = |_FMA| normalize::loudest(samples, peak);

    /// See [`normalize::ramp`].
    fn ramp [const G: usize] [G] (
        samples: &mut [f32], from: f32, step: f32,
    ) = |FMA| normalize::ramp::<G, FMA>(samples, from, step);

    /// See [`normalize::between`].
    fn between [const G: usize] [G] (
        taps: &Taps, samples: &[f32], peak: &mut f32,
    ) = |FMA| normalize::between::<G, FMA>(taps, samples, peak);
}
