//! The products of a builder: a meter, a batch of meters, or the parts of a programme.

use crate::batch::Batch;
use crate::builder::Builder;
use crate::limits::BuildError;
use crate::meter::Meter;
use crate::parts::{self, Part};

impl Builder {
    /// # Errors
    /// Fails if rate, channels, mode or window are not within the limits, or memory is short.
    pub fn build(&self) -> Result<Meter, BuildError> {
        Meter::new(self.clone())
    }

    /// Builds a batch of this many streams with these settings. Its windows are exact to 10 ms.
    ///
    /// # Errors
    /// Fails if rate, channels, mode or window are not within the limits, if the number of streams is zero or too large, or if
    /// memory is short.
    pub fn build_batch(&self, streams: usize) -> Result<Batch, BuildError> {
        Batch::new(self, streams)
    }

    /// Splits a programme of this many frames into at most `parts` parts. Each part is measured by a separate meter
    /// ([`Part::meter`]), and [`merge`](crate::merge) combines the meters. Each part lasts several seconds, and at least as long
    /// as the earlier frames that its meter needs. So a short programme is split into fewer parts.
    #[must_use]
    pub fn split(&self, frames: u64, parts: usize) -> Vec<Part> {
        parts::split(self, frames, parts)
    }
}
