//! Loudness as EBU R128 and ITU-R BS.1770 define it: momentary, short-term, integrated, range, peaks.
//!
//! - [`Meter`]: one stream, or one file. [`integrated_of`] and [`range_of`] combine several meters.
//! - [`Part`]: a part of a long file, so that several cores can measure the file; [`merge`] combines the parts.
//! - [`Batch`]: hundreds or thousands of live streams.
//! - [`Normalizer`]: adjusts one live stream to a target loudness, under a true-peak limit.
//!
//! The crate has no clock, no threads and no I/O: samples go in, readings come out. Time is counted in frames (one sample of each
//! channel). Samples are 16-bit or 32-bit integers, or floats. They are either interleaved, or in a separate slice for each
//! channel.
//!
//! This example measures two songs, one by one and as an album, and computes the gains for -23 LUFS:
//!
//! ```
//! use threadbare_loudness::{Meter, Mode, integrated_of};
//!
//! /// Stereo at 48 kHz: a sine of 1 kHz, this many dB below full scale.
//! fn song(seconds: usize, level_db: f32) -> Vec<f32> {
//!     let peak = 10f32.powf(level_db / 20.0);
//!     let sample = |frame: usize| peak * (frame as f32 * std::f32::consts::TAU / 48.0).sin();
//!     (0..48_000 * seconds).flat_map(|frame| [sample(frame); 2]).collect()
//! }
//!
//! let mut meters = Vec::new();
//! for samples in [song(4, -26.0), song(4, -20.0)] {
//!     let mode = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK;
//!     let mut meter = Meter::builder(48_000, 2).mode(mode).build()?;
//!     // Blocks may have any size.
//!     for block in samples.chunks(2 * 1024) {
//!         meter.add_interleaved(block)?;
//!     }
//!     meters.push(meter);
//! }
//! // EBU Tech 3341: such a sine at -23 dB measures -23 LUFS.
//! let gain = |lufs: f64| -23.0 - lufs;
//! assert!((gain(meters[0].integrated()?) - 3.0).abs() < 0.1);
//! assert!((gain(meters[1].integrated()?) + 3.0).abs() < 0.1);
//! // The mean of their energies: 10 log10((10^-2.6 + 10^-2) / 2) = -22.0.
//! assert!((gain(integrated_of(&meters)?) + 1.0).abs() < 0.1);
//! let true_peak_dbtp = 20.0 * meters[1].true_peak(0)?.log10();
//! assert!((true_peak_dbtp + 20.0).abs() < 0.2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Further reading: [`Meter`] for its readings and other inputs, [`Builder`] for channels and memory, [`Mode`] for the cost of
//! measurements, [`Normalizer`] for changing audio.
#![warn(clippy::unwrap_used)]

mod batch;
mod build;
mod builder;
mod channel;
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod lanes;
mod limits;
mod meter;
mod mode;
mod normalizer;
mod parts;
mod sample;
mod simd;
mod source;
mod taps;
mod weighting;
mod window;

pub use batch::Batch;
pub use builder::{Builder, RangeStep};
pub use channel::Channel;
pub use limits::{BATCH_CHANNELS_MAX, BuildError, CHANNELS_MAX, RATE_HZ_MAX, RATE_HZ_MIN};
pub use meter::{LoudnessRange, Meter, ReadError, integrated_of, range_of};
pub use mode::Mode;
pub use normalizer::{NormalizeError, Normalizer, NormalizerSettings, NormalizerState};
pub use parts::{Part, merge};
pub use sample::{InputError, Sample};
pub use simd::with_denormals_flushed;
pub use window::Resolution;
