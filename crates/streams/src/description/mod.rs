//! `pipeline = "..."`: GStreamer elements that process a stream's audio between decoding and encoding.
//!
//! The elements run on the stream's context thread. The thread pushes audio into them, and uses the output of the same call.

#[cfg(feature = "gstreamer")]
mod built_in;
#[cfg(feature = "gstreamer")]
mod filter;
#[cfg(not(feature = "gstreamer"))]
mod none;

#[cfg(feature = "gstreamer")]
pub use self::built_in::{check, filter};
#[cfg(not(feature = "gstreamer"))]
pub use self::none::{check, filter};

use threadbare_process::NO_GSTREAMER;

/// Why a description is refused, or does not start.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// GStreamer's own message.
    #[error("{0}")]
    Refused(String),
    /// The elements are not a filter.
    #[error(
        "the description has no unlinked {0} pad; a filter has one sink pad and one source pad, such as `audioamplify amplification=0.5`"
    )]
    NoPad(&'static str),
    /// This program was built without GStreamer.
    #[error("{NO_GSTREAMER}")]
    NoGStreamer,
}
