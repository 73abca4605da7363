//! Elements for RTP sessions and for audio.
//!
//! - `rtp`: sessions, jitter buffers, a demultiplexer, RTCP, G.711, DTMF.
//! - `tone`: `ts-tonesrc` and `ts-audiotestsrc`.
//! - [`loudness`]: `ebur128level` and `audioloudnorm`.
//!
//! [`register`] is for the plugin, `gst-plugin-threadbare`.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod loudness;
mod rtp;
mod tone;

use threadbare_gst_kit::{kit, sink_life, source_life};

/// Registers the elements.
///
/// # Errors
/// Fails if an element cannot be registered.
pub fn register(plugin: Option<&gst::Plugin>) -> Result<(), gst::glib::BoolError> {
    rtp::register(plugin)?;
    tone::register(plugin)?;
    loudness::register(plugin)
}
