//! `audioloudnorm`: normalises live audio to a target loudness.
//!
//! - `imp`: properties, pads, events.
//! - `queue`: one stream's normaliser with its queue of audio, and events in between.
//! - `timeline`: the times of output frames.
//! - `output`: the buffers of the output.

mod imp;
mod output;
mod queue;
mod timeline;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Normalises live audio to a target loudness.
    pub struct AudioLoudNorm(ObjectSubclass<imp::AudioLoudNorm>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = AudioLoudNorm::static_type();
    gst::Element::register(plugin, "audioloudnorm", gst::Rank::NONE, type_)
}
