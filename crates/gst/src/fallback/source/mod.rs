//! `fallbacksrc`: plays a source, and others while that fails.
//!
//! - `core`: which sources run, retries and their pauses, when all are given up, when silence and black are made.
//! - `slot`, `running`, `shell`: a place in the order of sources, a run of what is played there, and the bin around that.
//! - `output`: a switch for audio and one for video, with silence or black behind the sources.
//! - `acting`: the core's actions and time-outs.
//! - `imp`, `options`, `state`, `statistics`: properties, states, messages of the sources.
//!
//! Threads: a source has its own up to the `ts-queue` in its run. Streams, time-outs, silence and black are on the element's context. What
//! may wait (a source's change of state) is a job for GStreamer's pool of threads.

mod acting;
mod core;
mod imp;
mod options;
mod output;
mod running;
mod shell;
mod slot;
mod state;
mod statistics;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Plays the best of several sources that delivers.
    pub struct FallbackSrc(ObjectSubclass<imp::FallbackSrc>) @extends gst::Bin, gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = FallbackSrc::static_type();
    gst::Element::register(plugin, "fallbacksrc", gst::Rank::NONE, type_)
}
