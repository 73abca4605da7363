//! Signals, and measurements of signals. They are computed from the definitions, in `f64`.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::f64::consts::TAU;

/// Returns `frames` of a tone of peak `level` on every channel, interleaved.
pub(crate) fn tone(rate_hz: u32, channels: usize, hz: f64, level: f64, frames: usize) -> Vec<f32> {
    let sample =
        |frame: usize| (level * (TAU * hz * frame as f64 / f64::from(rate_hz)).sin()) as f32;
    (0..frames * channels)
        .map(|index| sample(index / channels))
        .collect()
}

/// Returns white noise of peak `level` from a seed. Its generator (additive congruential) is not that of the tested code.
pub(crate) fn noise(seed: u64, level: f64, samples: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 11) as f64 / (1_u64 << 53) as f64;
        (level * (2.0 * unit - 1.0)) as f32
    };
    (0..samples).map(next).collect()
}

/// Returns a sweep from 0 to half the rate.
pub(crate) fn sweep(rate_hz: u32, level: f64, frames: usize) -> Vec<f32> {
    let mut phase = 0.0;
    let next = |frame: usize| {
        let hz = f64::from(rate_hz) / 2.0 * frame as f64 / frames as f64;
        phase += TAU * hz / f64::from(rate_hz);
        (level * phase.sin()) as f32
    };
    (0..frames).map(next).collect()
}

/// Returns one channel of interleaved audio.
pub(crate) fn channel(audio: &[f32], channels: usize, channel: usize) -> Vec<f32> {
    audio
        .iter()
        .skip(channel)
        .step_by(channels)
        .copied()
        .collect()
}

/// A signal that is split into a tone and the rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spectrum {
    /// Peak level of the tone.
    pub(crate) level: f64,
    /// Root mean square of all the rest.
    pub(crate) rest: f64,
}

impl Spectrum {
    /// Analyses mono `audio` with a tone of `hz`. Because of the Hann window, the number of periods need not be whole.
    pub(crate) fn of(audio: &[f32], rate_hz: u32, hz: f64) -> Spectrum {
        let count = audio.len() as f64;
        let window = |at: usize| 0.5 - 0.5 * (TAU * at as f64 / count).cos();
        let angle = |at: usize| TAU * hz * at as f64 / f64::from(rate_hz);
        let (mut re, mut im) = (0.0, 0.0);
        for (at, sample) in audio.iter().enumerate() {
            re += window(at) * f64::from(*sample) * angle(at).cos();
            im += window(at) * f64::from(*sample) * angle(at).sin();
        }
        // The window's mean is a half.
        let (re, im) = (4.0 * re / count, 4.0 * im / count);
        let mut power = 0.0;
        for (at, sample) in audio.iter().enumerate() {
            let fit = re * angle(at).cos() + im * angle(at).sin();
            power += (window(at) * (f64::from(*sample) - fit)).powi(2);
        }
        Spectrum {
            level: re.hypot(im),
            // The mean of the window's square is 3/8.
            rest: (power / count / 0.375).sqrt(),
        }
    }

    /// Returns the ratio of signal to noise in dB.
    pub(crate) fn snr_db(self) -> f64 {
        db(self.level / 2_f64.sqrt() / self.rest.max(1e-12))
    }
}

pub(crate) fn rms(audio: &[f32]) -> f64 {
    let power: f64 = audio.iter().map(|x| f64::from(*x).powi(2)).sum();
    (power / audio.len() as f64).sqrt()
}

pub(crate) fn db(ratio: f64) -> f64 {
    20.0 * ratio.log10()
}
