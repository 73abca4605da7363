//! Functions that a long-running process needs: log and output, resource usage, child processes, signals, and limits for
//! connections.
//!
//! Part of the gateway `threadbare`; not a public interface.
#![forbid(unsafe_code)]

// This module comes first because the others use its macros.
#[macro_use]
pub mod output;

pub mod limit;
pub mod logging;
pub mod places;
pub mod signals;
pub mod subprocess;
pub mod system;
pub mod usage;

/// Whether this program was built with GStreamer.
pub const HAS_GSTREAMER: bool = cfg!(feature = "gstreamer");

/// The message to a user of a program without GStreamer.
pub const NO_GSTREAMER: &str =
    "this program was built without GStreamer (cargo feature `gstreamer`)";
