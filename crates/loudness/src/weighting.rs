//! The coefficients of the two filters: K-weighting before the energy, and interpolation before the true peak.

use std::f64::consts::PI;

/// The K-weighting of ITU-R BS.1770, annex 1: a shelf for the head, then a high-pass.
///
/// `shelf_b` and `shelf_a` are the shelf's numerator and denominator, without the leading 1 of the denominator. The numerator of
/// the high-pass is (1, -2, 1), which tables 1 and 2 of the annex leave unnormalised; `pass_a` is its denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KWeighting {
    pub(crate) shelf_b: [f64; 3],
    pub(crate) shelf_a: [f64; 2],
    pub(crate) pass_a: [f64; 2],
}

impl KWeighting {
    /// Computes the filters for audio of `rate_hz`.
    ///
    /// The annex gives coefficients only for 48 kHz. These filters are the corresponding analogue filters, converted by the
    /// bilinear transform at the given rate. Far below 4 kHz, the shelf has no meaning, but it can still be computed.
    pub(crate) fn new(rate_hz: u32) -> KWeighting {
        let (k, gain) = (prewarp(SHELF_HZ, rate_hz), 10f64.powf(SHELF_GAIN_DB / 20.0));
        let band = gain.powf(SHELF_BAND_EXPONENT);
        let norm = 1.0 + k / SHELF_Q + k * k;
        let shelf_b = [
            (gain + band * k / SHELF_Q + k * k) / norm,
            2.0 * (k * k - gain) / norm,
            (gain - band * k / SHELF_Q + k * k) / norm,
        ];
        KWeighting {
            shelf_b,
            shelf_a: denominator(k, SHELF_Q),
            pass_a: denominator(prewarp(PASS_HZ, rate_hz), PASS_Q),
        }
    }
}

fn prewarp(corner_hz: f64, rate_hz: u32) -> f64 {
    (PI * corner_hz / f64::from(rate_hz)).tan()
}

fn denominator(k: f64, q: f64) -> [f64; 2] {
    let norm = 1.0 + k / q + k * k;
    [2.0 * (k * k - 1.0) / norm, (1.0 - k / q + k * k) / norm]
}

const SHELF_HZ: f64 = 1_681.974_450_955_533;
const SHELF_GAIN_DB: f64 = 3.999_843_853_973_347;
const SHELF_Q: f64 = 0.707_175_236_955_419_6;
const SHELF_BAND_EXPONENT: f64 = 0.499_666_774_154_541_6;
const PASS_HZ: f64 = 38.135_470_876_024_44;
const PASS_Q: f64 = 0.500_327_037_323_877_3;

/// Number of values per sample that a true-peak meter checks (ITU-R BS.1770, annex 2: at least 192 kHz in total).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oversampling {
    /// None: from 192 kHz on, the samples are close enough.
    None,
    Twice,
    FourTimes,
}

impl Oversampling {
    pub(crate) const fn at(rate_hz: u32) -> Oversampling {
        match rate_hz {
            0..96_000 => Oversampling::FourTimes,
            96_000..192_000 => Oversampling::Twice,
            _ => Oversampling::None,
        }
    }

    const fn factor(self) -> usize {
        match self {
            Oversampling::None => 1,
            Oversampling::Twice => 2,
            Oversampling::FourTimes => 4,
        }
    }

    /// Returns the number of frames before the newest frame that the filter uses.
    pub(crate) const fn history_frames(self) -> usize {
        match self {
            Oversampling::None => 0,
            Oversampling::Twice => 23,
            Oversampling::FourTimes => 11,
        }
    }

    /// Returns the delay of phase 0, in frames. Phase 0 returns the samples unchanged; the other phases lie around it.
    pub(crate) const fn delay_frames(self) -> usize {
        match self {
            Oversampling::None => 0,
            Oversampling::Twice => 12,
            Oversampling::FourTimes => 6,
        }
    }

    /// Returns the coefficients of `phase`, 1 to factor - 1, newest sample first: a sinc in a Hann window of 49 taps.
    pub(crate) fn phase(self, phase: usize) -> Vec<f64> {
        let factor = self.factor();
        let taps = (TAPS - phase).div_ceil(factor);
        let tap = |n: usize| {
            let at = (phase + n * factor) as f64;
            let x = PI * (at - CENTER as f64) / factor as f64;
            let hann = 0.5 * (1.0 - (2.0 * PI * at / (TAPS - 1) as f64).cos());
            hann * x.sin() / x
        };
        (0..taps).map(tap).collect()
    }
}

const TAPS: usize = 49;
const CENTER: usize = TAPS / 2;

/// The phases in the form for the kernels: mirrored phases are folded, so that a filter of 12 taps takes 6 products. Let s be the
/// sums and d the differences of two samples at the same distance from the middle. With (x, y) for the sum of products, phase 1
/// is (s, `even`) + (d, `odd`), and phase 3 is (s, `even`) - (d, `odd`). The larger of their magnitudes is |(s, `even`)| + |(d,
/// `odd`)|. Phase 2 is symmetric: (s, `middle`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FoldedPhases {
    pub(crate) even: [f32; 6],
    pub(crate) odd: [f32; 6],
    pub(crate) middle: [f32; 6],
    /// The only phase between the samples at twice the rate.
    pub(crate) half: [f32; 12],
}

impl FoldedPhases {
    pub(crate) fn new() -> FoldedPhases {
        let first = Oversampling::FourTimes.phase(1);
        let second = Oversampling::FourTimes.phase(2);
        let half = Oversampling::Twice.phase(1);
        let fold =
            |sign: f64| std::array::from_fn(|n| ((first[n] + sign * first[11 - n]) / 2.0) as f32);
        FoldedPhases {
            even: fold(1.0),
            odd: fold(-1.0),
            middle: std::array::from_fn(|n| second[n] as f32),
            half: std::array::from_fn(|n| half[n] as f32),
        }
    }
}

/// Returns the maximum gain of a peak by a phase: the largest sum of a phase's magnitudes (1.864 at four times the rate, 2.307 at
/// twice the rate), with a margin for rounding.
pub(crate) const fn largest_gain(oversampling: Oversampling) -> f32 {
    match oversampling {
        Oversampling::None => 1.0,
        Oversampling::Twice => 2.308,
        Oversampling::FourTimes => 1.865,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The coefficients at 48 kHz are in ITU-R BS.1770, annex 1, tables 1 and 2.
    #[test]
    fn at_48_khz_the_coefficients_equal_those_of_bs_1770() {
        let k = KWeighting::new(48_000);
        let found = [k.shelf_b.as_slice(), &k.shelf_a, &k.pass_a].concat();
        let expected = [
            1.535_124_859_586_97,
            -2.691_696_189_406_38,
            1.198_392_810_852_85,
            -1.690_659_293_182_41,
            0.732_480_774_215_85,
            -1.990_047_454_833_98,
            0.990_072_250_366_21,
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-11, "{found} {expected}");
        }
    }

    #[test]
    fn phases_mirror_each_other() {
        let four = Oversampling::FourTimes;
        let (first, second, third) = (four.phase(1), four.phase(2), four.phase(3));
        let half = Oversampling::Twice.phase(1);
        assert_eq!(
            [first.len(), second.len(), third.len(), half.len()],
            [12, 12, 12, 24]
        );
        for n in 0..12 {
            assert!((first[n] - third[11 - n]).abs() < 1e-15);
            assert!((second[n] - second[11 - n]).abs() < 1e-15);
            assert!((half[n] - half[23 - n]).abs() < 1e-15);
        }
    }

    #[test]
    fn no_phase_of_the_filter_raises_a_peak_above_the_documented_gain() {
        for (oversampling, phases) in [(Oversampling::FourTimes, 1..4), (Oversampling::Twice, 1..2)]
        {
            let gains = phases.map(|phase| {
                oversampling
                    .phase(phase)
                    .iter()
                    .map(|tap| tap.abs())
                    .sum::<f64>()
            });
            let largest = gains.fold(0.0, f64::max);
            let stated = f64::from(largest_gain(oversampling));
            assert!(
                largest < stated && stated < largest * 1.001,
                "{largest} {stated}"
            );
        }
    }

    #[test]
    fn oversampling_reaches_192_khz() {
        let factors =
            [8_000, 95_999, 96_000, 191_999, 192_000].map(|hz| Oversampling::at(hz).factor());
        assert_eq!(factors, [4, 4, 2, 2, 1]);
    }
}
