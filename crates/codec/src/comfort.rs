//! Comfort noise (RFC 3389): analysis of background noise, its payload, and generation of noise from it.
//!
//! A payload contains a level and, optionally, reflection coefficients k of an all-pole filter. They are those of the Levinson
//! recursion with 1/A(z), A(z) = 1 + a1/z + ..., so that k1 = -r1/r0. They describe the audio at the payload type's clock rate.

use thiserror::Error;

use threadbare_rtp_types::rng::SplitMix;

/// A description of noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComfortNoise {
    /// "Noise level [...] expressed in -dBov, with values from 0 to 127 representing 0 to -127 dBov" (section 3.1). A square wave
    /// of full scale has 0 dBov.
    level: u8,
    reflections: [f64; ORDER_MAX],
    order: usize,
}

/// Why a payload is not valid comfort noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ComfortError {
    /// The payload has no level.
    #[error("the payload is empty")]
    Empty,
}

impl ComfortNoise {
    /// Creates white noise, `level` dB below overload; at most 127.
    #[must_use]
    pub fn white(level: u8) -> ComfortNoise {
        ComfortNoise {
            level: level.min(LEVEL_MAX),
            reflections: [0.0; ORDER_MAX],
            order: 0,
        }
    }

    /// Parses a payload. Coefficients after the 16th are ignored: "the decoder may reduce the model order by setting higher order
    /// reflection coefficients to zero" (section 3).
    ///
    /// # Errors
    /// Fails if the payload is empty. Any other payload is valid.
    pub fn parse(payload: &[u8]) -> Result<ComfortNoise, ComfortError> {
        let (level, coefficients) = payload.split_first().ok_or(ComfortError::Empty)?;
        // "With the most significant bit unused and always set to 0".
        let mut noise = ComfortNoise::white(level & LEVEL_MAX);
        for (to, from) in noise.reflections.iter_mut().zip(coefficients) {
            // 255 would mean an unbounded filter; the format allows only 0 to 254.
            *to = STEP * (f64::from((*from).min(INDEX_MAX)) - INDEX_ZERO);
        }
        noise.order = coefficients.len().min(ORDER_MAX);
        Ok(noise)
    }

    /// Appends the payload.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.level);
        out.extend(self.reflections().iter().map(|k| {
            let index = (k / STEP + INDEX_ZERO).round();
            index.clamp(0.0, f64::from(INDEX_MAX)) as u8
        }));
    }

    /// Returns the level in dB below overload, 0 to 127.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns the reflection coefficients, each between -1 and 1. White noise has none.
    #[must_use]
    pub fn reflections(&self) -> &[f64] {
        &self.reflections[..self.order]
    }

    /// Returns the same noise at another level, at most 127.
    #[must_use]
    pub fn at_level(mut self, level: u8) -> ComfortNoise {
        self.level = level.min(LEVEL_MAX);
        self
    }
}

/// Generates noise from a description: mono, full scale 1.
#[derive(Debug, Clone)]
pub struct ComfortGenerator {
    random: SplitMix,
    noise: ComfortNoise,
    kept: [f64; ORDER_MAX],
    /// The present level, and the level towards which it moves.
    level: f64,
    level_wanted: f64,
    /// State of the filter, a normalised lattice. Each stage rotates a pair of values, so it neither adds nor removes energy. All
    /// values have level 1, whatever the coefficients are, and even while they change.
    backward: [f64; ORDER_MAX + 1],
}

impl ComfortGenerator {
    /// Creates a generator. `seed` determines the noise.
    #[must_use]
    pub fn new(noise: ComfortNoise, seed: u64) -> ComfortGenerator {
        ComfortGenerator {
            random: SplitMix(seed),
            kept: kept(&noise),
            noise,
            level: linear(noise.level),
            level_wanted: linear(noise.level),
            backward: [0.0; ORDER_MAX + 1],
        }
    }

    /// Changes to another noise. The level moves smoothly to the new one, within a few hundred milliseconds.
    pub fn set(&mut self, noise: ComfortNoise) {
        self.noise = noise;
        self.kept = kept(&noise);
        self.level_wanted = linear(noise.level);
    }

    /// Appends `frames` of noise.
    pub fn generate(&mut self, frames: usize, out: &mut Vec<f32>) {
        for _ in 0..frames {
            self.level += (self.level_wanted - self.level) * LEVEL_STEP;
            let mut forward = unit_noise(&mut self.random);
            for (at, k) in self.noise.reflections().iter().enumerate().rev() {
                let kept = self.kept[at];
                let backward = self.backward[at];
                self.backward[at + 1] = k * forward + kept * backward;
                forward = kept * forward - k * backward;
            }
            self.backward[0] = forward;
            out.push((self.level * forward) as f32);
        }
    }
}

fn linear(level: u8) -> f64 {
    10_f64.powf(-f64::from(level) / 20.0)
}

/// Returns the cosines of the angles whose sines are the reflection coefficients.
fn kept(noise: &ComfortNoise) -> [f64; ORDER_MAX] {
    noise.reflections.map(|k| (1.0 - k * k).sqrt())
}

/// Returns a random number of a nearly Gaussian distribution with level 1: the sum of three uniform numbers from -1 to 1.
fn unit_noise(random: &mut SplitMix) -> f64 {
    let bits = random.next_u64();
    let part = |shift: u32| ((bits >> shift) & 0x1f_ffff) as f64 / f64::from(1 << 20) - 1.0;
    part(0) + part(21) + part(42)
}

/// Describes noise. Its input should be the background noise without speech.
#[derive(Debug, Clone)]
pub struct ComfortAnalyser {
    order: usize,
    /// The last samples, newest first.
    past: [f64; ORDER_MAX + 1],
    /// Sums of products of samples that are `n` apart. Older products fade.
    products: [f64; ORDER_MAX + 1],
    /// The sum of the weights of these products.
    weight: f64,
    fading: f64,
}

impl ComfortAnalyser {
    /// Creates an analyser for audio of `rate_hz`. `order` is the number of coefficients, at most 16; 0 describes only the level.
    #[must_use]
    pub fn new(rate_hz: u32, order: usize) -> ComfortAnalyser {
        ComfortAnalyser {
            order: order.min(ORDER_MAX),
            past: [0.0; ORDER_MAX + 1],
            products: [0.0; ORDER_MAX + 1],
            weight: 0.0,
            fading: 1.0 - 1.0 / (f64::from(rate_hz.max(1)) * MEMORY_S),
        }
    }

    /// Adds more of the noise, as mono samples.
    pub fn feed(&mut self, audio: &[f32]) {
        for sample in audio {
            let sample = f64::from(*sample);
            // A NaN would stay in the sums for ever.
            let sample = if sample.is_finite() {
                sample.clamp(-1.0, 1.0)
            } else {
                0.0
            };
            self.past.copy_within(..ORDER_MAX, 1);
            self.past[0] = sample;
            let products = self.products.iter_mut().zip(self.past);
            for (product, past) in products.take(self.order + 1) {
                *product = *product * self.fading + sample * past;
            }
            self.weight = self.weight * self.fading + 1.0;
        }
    }

    /// Describes the noise of the last half second.
    #[must_use]
    pub fn noise(&self) -> ComfortNoise {
        let power = self.products[0] / self.weight.max(1.0);
        let level_db = -10.0 * power.max(1e-20).log10();
        let mut noise =
            ComfortNoise::white(level_db.round().clamp(0.0, f64::from(LEVEL_MAX)) as u8);
        noise.order = self.order;
        // The Levinson recursion. A little white noise keeps it stable.
        let mut error = self.products[0] * WHITENING;
        if error <= 0.0 {
            return noise;
        }
        let mut filter = [0.0; ORDER_MAX + 1];
        filter[0] = 1.0;
        for stage in 1..=self.order {
            let sum: f64 = (0..stage)
                .map(|at| filter[at] * self.products[stage - at])
                .sum();
            let k = (-sum / error).clamp(-REFLECTION_MAX, REFLECTION_MAX);
            let before = filter;
            for at in 1..=stage {
                filter[at] = before[at] + k * before[stage - at];
            }
            noise.reflections[stage - 1] = k;
            error *= 1.0 - k * k;
        }
        noise
    }

    /// Forgets the noise so far.
    pub fn reset(&mut self) {
        self.past.fill(0.0);
        self.products.fill(0.0);
        self.weight = 0.0;
    }
}

/// Maximum number of coefficients. ITU-T G.711, appendix II, has 10.
const ORDER_MAX: usize = 16;

/// Maximum level: the field has 7 bits.
const LEVEL_MAX: u8 = 0x7f;

/// Section 3.2: k = 258 (N - 127) / 32768, for N from 0 to 254.
const STEP: f64 = 258.0 / 32_768.0;
const INDEX_ZERO: f64 = 127.0;
const INDEX_MAX: u8 = 254;

/// The greatest coefficient that a payload can contain.
const REFLECTION_MAX: f64 = STEP * INDEX_ZERO;

/// Part of the distance to the new level by which the level moves at each sample: a time constant of 64 ms at 8 kHz.
const LEVEL_STEP: f64 = 1.0 / 512.0;

/// The analyser's time constant.
const MEMORY_S: f64 = 0.25;

/// Factor that adds white noise at 40 dB below the noise.
const WHITENING: f64 = 1.0001;
