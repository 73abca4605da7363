//! `pipeline = "..."`: a stream's audio through GStreamer elements, between decoding and encoding.
//!
//! The elements run on the stream's context thread: its audio is pushed into them, and what comes out in the same call goes on.

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

/// Whether this program has GStreamer.
pub const HAS_GSTREAMER: bool = cfg!(feature = "gstreamer");

/// What a user of a program without GStreamer is told.
pub const NO_GSTREAMER: &str =
    "this program was built without GStreamer (cargo feature `gstreamer`)";

/// Why a description is refused, or does not start.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// GStreamer's own words.
    #[error("{0}")]
    Refused(String),
    /// It is no filter.
    #[error(
        "it has no unlinked {0} pad; a filter has one sink pad and one source pad, such as `audioamplify amplification=0.5`"
    )]
    NoPad(&'static str),
    /// This program cannot have any.
    #[error("{NO_GSTREAMER}")]
    NoGStreamer,
}
