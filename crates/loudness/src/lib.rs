//! Loudness as EBU R128 and ITU-R BS.1770 define it: momentary, short-term, integrated, range, peaks.
//!
//! - [`Meter`]: one stream, or one file. [`integrated_of`] and [`range_of`] take several as one.
//! - [`Part`]: a part of a long file, to be measured by a core of its own; [`merge`] puts them together.
//! - [`Batch`]: hundreds or thousands of live streams.
//! - [`Normalizer`]: brings one stream to a target loudness, live, under a true-peak limit.
//!
//! No clock, no threads, no I/O: samples in, readings out. Time is counted in frames (one sample of each channel).
#![warn(clippy::unwrap_used)]

mod batch;
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
pub use builder::{Builder, RangeStep, Resolution};
pub use channel::Channel;
pub use limits::{BATCH_CHANNELS_MAX, BuildError, CHANNELS_MAX, RATE_HZ_MAX, RATE_HZ_MIN};
pub use meter::{LoudnessRange, Meter, ReadError, integrated_of, range_of};
pub use mode::Mode;
pub use normalizer::{NormalizeError, Normalizer, NormalizerSettings, NormalizerState};
pub use parts::{Part, merge};
pub use sample::{InputError, Sample};
pub use simd::with_denormals_flushed;
