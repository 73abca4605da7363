//! Interpolation filter for the values between the samples, as a player or another meter would find them.
//!
//! The filter of ITU-R BS.1770, annex 2, has four phases with 12 taps each. Converters and other meters have longer filters and
//! check other positions between two samples. In dense material, they find up to several tenths of a decibel more. The limiter
//! therefore uses 32 taps, whose gain is accurate up to the end of the band, at eight positions per sample.

use std::f64::consts::PI;

/// Number of samples on either side of a gap that the filter uses.
pub(crate) const REACH_FRAMES: usize = 16;

/// The coefficients by distance from the gap's ends, the farthest first. Positions that mirror each other share them. Their
/// outputs are computed from the sum and the difference of two samples at the same distance from the gap: one output is `even`
/// plus `odd`, the other is `even` minus `odd`.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    pub(crate) even: [[f32; 16]; 3],
    pub(crate) odd: [[f32; 16]; 3],
    /// Coefficients of the position half-way.
    pub(crate) middle: [f32; 16],
    /// Maximum gain: at no position, the signal exceeds the samples around it by a larger factor.
    pub(crate) gain_max: f32,
}

impl Taps {
    pub(crate) fn new() -> Taps {
        let places: [[f64; 32]; 4] = std::array::from_fn(|n| place((n + 1) as f64 / 8.0));
        let fold = |place: usize, sign: f64| -> [f32; 16] {
            let taps = &places[place];
            std::array::from_fn(|tap| ((taps[tap] + sign * taps[31 - tap]) / 2.0) as f32)
        };
        let gains = places.map(|taps| taps.iter().map(|tap| tap.abs()).sum::<f64>());
        Taps {
            even: std::array::from_fn(|place| fold(place, 1.0)),
            odd: std::array::from_fn(|place| fold(place, -1.0)),
            middle: fold(3, 1.0),
            // This includes a margin for rounding.
            gain_max: gains.into_iter().fold(0.0, f64::max) as f32 * 1.001,
        }
    }
}

/// Returns the coefficients of a position: a sinc in a Kaiser window, `at` samples after the 16th of 32.
fn place(at: f64) -> [f64; 32] {
    let tap = |tap: usize| {
        let x = at - (tap as f64 - 15.0);
        let sinc = (PI * x).sin() / (PI * x);
        let edge = x / REACH_FRAMES as f64;
        sinc * bessel(BETA * (1.0 - edge * edge).max(0.0).sqrt()) / bessel(BETA)
    };
    let taps: [f64; 32] = std::array::from_fn(tap);
    let sum: f64 = taps.iter().sum();
    taps.map(|tap| tap / sum)
}

/// Parameter of the window. With it, the gain is within 0.01 dB up to nine tenths of the band.
const BETA: f64 = 5.0;

/// Returns the modified Bessel function of the first kind, order 0.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for n in 1..40 {
        term *= (x / 2.0 / f64::from(n)).powi(2);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The magnitude of a tone up to nine tenths of the band is found, at any phase.
    #[test]
    fn tones_are_found_at_their_magnitude() {
        for cycles in [0.01, 0.1, 0.25, 0.4, 0.45] {
            for start in 0..20 {
                let value = |at: f64| (2.0 * PI * (cycles * at + f64::from(start) / 20.0)).sin();
                for eighth in 1..8 {
                    let at = f64::from(eighth) / 8.0;
                    let found: f64 = (place(at).iter().enumerate())
                        .map(|(tap, factor)| factor * value(tap as f64 - 15.0))
                        .sum();
                    let error = (found - value(at)).abs();
                    assert!(error < 0.012, "{cycles} {start} {eighth}: {error}");
                }
            }
        }
    }

    #[test]
    fn mirrored_positions_have_mirrored_taps() {
        for eighth in 1..4 {
            let (one, other) = (
                place(f64::from(eighth) / 8.0),
                place(1.0 - f64::from(eighth) / 8.0),
            );
            for tap in 0..32 {
                assert!((one[tap] - other[31 - tap]).abs() < 1e-12);
            }
        }
    }
}
