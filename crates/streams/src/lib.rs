//! Runs the streams of a configuration file. [`lines`] starts a stream as a line of the relay. [`gateway`] keeps all streams running. For
//! comparison, [`pipeline`] carries streams with GStreamer's own elements.
//!
//! [`description`] creates the GStreamer elements of a stream's `pipeline`. The parts that need GStreamer are behind the cargo
//! feature `gstreamer`.
//!
//! This crate is a part of the gateway `threadbare`, and not a public interface.
#![forbid(unsafe_code)]

pub mod backoff;
#[cfg(feature = "gstreamer")]
mod bus;
pub mod description;
pub mod event;
pub mod gateway;
mod kept;
pub mod lines;
pub mod order;
pub mod pipeline;
#[cfg(feature = "gstreamer")]
mod reason;
pub mod reload;
pub mod stats;

#[cfg(feature = "gstreamer")]
use miette::{Context, IntoDiagnostic};

/// Does nothing in a program without GStreamer.
#[cfg(not(feature = "gstreamer"))]
pub fn init_gstreamer() -> miette::Result<()> {
    Ok(())
}

/// Initialises GStreamer, redirects its log to the log of this program, and registers the built-in elements.
#[cfg(feature = "gstreamer")]
pub fn init_gstreamer() -> miette::Result<()> {
    gst::init()
        .into_diagnostic()
        .wrap_err("GStreamer does not start")?;
    threadbare_process::logging::bridge_gstreamer();
    gstthreadbare::plugin_register_static()
        .into_diagnostic()
        .wrap_err("Threadbare's elements cannot be registered")
}
