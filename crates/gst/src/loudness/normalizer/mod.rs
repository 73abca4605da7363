//! `audioloudnorm`: normalises live audio to a target loudness.
//!
//! - `imp`: properties, pads, events.
//! - `held`: one stream's normaliser with what it holds: audio, and events that belong between it.
//! - `timeline`: which time each frame has that comes out.
//! - `output`: the buffers of the output.

mod held;
mod imp;
mod output;
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
