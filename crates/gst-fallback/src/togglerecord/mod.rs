//! `togglerecord`: several streams that start and stop together, while the pipeline plays.
//!
//! - `core`: starts, stops, cuts and offsets.
//! - `turns`: the pads' streams, their order and their waits.
//! - `passing`: pushes, messages, ends.
//! - `imp`: properties, pads, states.

mod core;
mod imp;
mod passing;
mod turns;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Passes all its streams between a common start and a common stop.
    pub struct ToggleRecord(ObjectSubclass<imp::ToggleRecord>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = ToggleRecord::static_type();
    gst::Element::register(plugin, "togglerecord", gst::Rank::NONE, type_)
}
