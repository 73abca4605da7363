//! `pipeline = "..."`: GStreamer elements that process a stream's audio between decoding and encoding.
//!
//! The elements run on the stream's context thread. This thread pushes audio into the elements, and takes the output that they produce
//! during the call.

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

/// The reason why a description is refused, or why its elements do not start.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// GStreamer's own message.
    #[error("{0}")]
    Refused(String),
    /// The elements do not make a filter.
    #[error(
        "the description has no unlinked {0} pad; a filter has one sink pad and one source pad, such as `audioamplify amplification=0.5`"
    )]
    NoPad(&'static str),
    /// This program was built without GStreamer.
    #[error("{NO_GSTREAMER}")]
    NoGStreamer,
}
