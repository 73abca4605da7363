//! `fallbacksrc`: plays a source, and other sources while that one fails.
//!
//! - `core`: decides which sources run, retries and their delays, when all are given up, and when silence and black are produced.
//! - `slot`, `running`, `shell`: a place in the order of sources, a run of its source, and the bin around the run.
//! - `output`: a switch for audio and one for video, with silence or black after the sources.
//! - `acting`: the core's actions and time-outs.
//! - `imp`, `options`, `state`, `statistics`: properties, states, messages of the sources.
//!
//! Threads: a source has its own threads up to the `ts-queue` in its run. Streams, time-outs, silence and black are on the
//! element's context. Blocking work (a source's change of state) runs in GStreamer's thread pool.

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
    /// Plays the first of several sources that delivers.
    pub struct FallbackSrc(ObjectSubclass<imp::FallbackSrc>) @extends gst::Bin, gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = FallbackSrc::static_type();
    gst::Element::register(plugin, "fallbacksrc", gst::Rank::NONE, type_)
}
