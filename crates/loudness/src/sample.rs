//! What a meter takes: samples of four types.

use thiserror::Error;

/// A type of sample. Full scale is 1.0 for floating point, and the magnitude of the least value for integers.
pub trait Sample: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The value of one step, relative to full scale.
    #[doc(hidden)]
    const STEP: f64;

    /// The value, in steps.
    #[doc(hidden)]
    fn steps(self) -> f64;

    /// The nearest one to a value relative to full scale, cut at full scale where the type ends there.
    #[doc(hidden)]
    fn rounded(value: f32) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i16 {}
    impl Sealed for i32 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Sample for i16 {
    const STEP: f64 = 1.0 / 32_768.0;

    #[inline(always)]
    fn steps(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        // A conversion of what is too large gives the largest.
        (value * 32_768.0).round_ties_even() as i16
    }
}

impl Sample for i32 {
    const STEP: f64 = 1.0 / 2_147_483_648.0;

    #[inline(always)]
    fn steps(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        (f64::from(value) * 2_147_483_648.0).round_ties_even() as i32
    }
}

impl Sample for f32 {
    const STEP: f64 = 1.0;

    #[inline(always)]
    fn steps(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        value
    }
}

impl Sample for f64 {
    const STEP: f64 = 1.0;

    #[inline(always)]
    fn steps(self) -> f64 {
        self
    }

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        f64::from(value)
    }
}

/// Why samples were not taken. Nothing of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// Interleaved samples do not make whole frames.
    #[error("{samples} samples are no whole frames of {channels} channels")]
    PartialFrame {
        /// How many samples there were.
        samples: usize,
        /// How many make a frame.
        channels: usize,
    },
    /// Not one plane per channel.
    #[error("{planes} planes for {channels} channels")]
    Planes {
        /// How many planes there were.
        planes: usize,
        /// How many channels the meter has.
        channels: usize,
    },
    /// Planes, or the streams of a batch, differ in length.
    #[error("part {index} has {frames} frames, the first has {expected}")]
    Uneven {
        /// Which plane or stream.
        index: usize,
        /// How long it is.
        frames: usize,
        /// How long the first is.
        expected: usize,
    },
    /// Not one slice per stream of a batch.
    #[error("{inputs} inputs for {streams} streams")]
    Streams {
        /// How many slices there were.
        inputs: usize,
        /// How many streams the batch has.
        streams: usize,
    },
}
