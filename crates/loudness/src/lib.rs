//! Loudness as EBU R128 and ITU-R BS.1770 define it: momentary, short-term, integrated, range, peaks.
//!
//! - [`Meter`]: one stream, or one file. [`integrated_of`] and [`range_of`] take several as one.
//!
//! No clock, no threads, no I/O: samples in, readings out. Time is counted in frames (one sample of each channel).
#![warn(clippy::unwrap_used)]

mod builder;
mod channel;
mod history;
mod lanes;
mod meter;
mod mode;
mod sample;
mod simd;
mod weighting;
mod window;

pub use builder::{Builder, CHANNELS_MAX, RATE_HZ_MAX, RATE_HZ_MIN, RangeStep, Resolution};
pub use channel::Channel;
pub use meter::{BuildError, LoudnessRange, Meter, ReadError, integrated_of, range_of};
pub use mode::Mode;
pub use sample::{InputError, Sample};
