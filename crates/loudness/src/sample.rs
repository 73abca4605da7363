//! Sample types of a meter.

use thiserror::Error;

/// A type of sample. Full scale is 1.0 for floating point, and the magnitude of the lowest value for integers.
pub trait Sample: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The value of one step, relative to full scale.
    #[doc(hidden)]
    const STEP: f64;

    /// Returns the value of the sample, in steps.
    #[doc(hidden)]
    fn steps(self) -> f64;

    /// Returns the sample nearest to `value`, which is relative to full scale. The value is clipped at full scale if the type
    /// ends there.
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
        // The conversion saturates.
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

/// Why samples were not accepted. No frame was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// Interleaved samples do not make whole frames.
    #[error("{samples} samples are not a whole number of frames of {channels} channels")]
    PartialFrame {
        /// Number of samples.
        samples: usize,
        /// Samples per frame.
        channels: usize,
    },
    /// The number of planes is not that of the channels.
    #[error("expected {channels} planes, one for each channel, but got {planes}")]
    Planes {
        /// Number of planes.
        planes: usize,
        /// Channels of the meter.
        channels: usize,
    },
    /// Planes, or the streams of a batch, differ in length.
    #[error("part {index} has {frames} frames, but the first part has {expected}")]
    Uneven {
        /// Index of the plane or stream.
        index: usize,
        /// Length of that plane or stream.
        frames: usize,
        /// Length of the first one.
        expected: usize,
    },
    /// The number of slices is not that of the streams of a batch.
    #[error("expected {streams} inputs, one for each stream, but got {inputs}")]
    Streams {
        /// Number of slices.
        inputs: usize,
        /// Streams of the batch.
        streams: usize,
    },
}
