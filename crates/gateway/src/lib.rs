//! The gateway `threadbare`: receives RTP audio streams, transcodes them and sends them on, thousands of streams on a
//! fixed number of threads.
//!
//! This library is the inside of the binary, for its tests; it is not a public interface.
//!
//! - [`config`] checks the configuration, [`lines`] starts one stream, [`gateway`] keeps all of them running. [`pipeline`] is for
//!   comparison.
//! - [`description`] is a stream's GStreamer elements. What needs GStreamer is behind the cargo feature `gstreamer`.
//! - [`cli`] is the command line; each of its commands is a module.
#![forbid(unsafe_code)]

// First: its macros are used in the modules below.
#[macro_use]
mod output;

pub mod backoff;
#[cfg(feature = "gstreamer")]
pub mod bench;
#[cfg(feature = "gstreamer")]
mod bus;
pub mod cli;
pub mod clip;
pub mod cluster;
pub mod codec;
pub mod config;
pub mod demo;
pub mod description;
pub mod doctor;
pub mod event;
pub mod fuzzing;
pub mod gateway;
mod inspect;
pub mod limit;
pub mod lines;
pub mod logging;
#[cfg(feature = "gstreamer")]
mod loudness;
mod manual;
pub mod order;
pub mod pipeline;
pub mod process;
#[cfg(feature = "gstreamer")]
mod reason;
pub mod recording;
pub mod reload;
mod remote;
pub mod run;
pub mod serve;
pub mod stats;
pub mod subprocess;
mod system;
pub mod watch;
