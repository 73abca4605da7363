//! `ts-input-selector`: passes one of several streams. Another stream can be selected while they play.
//!
//! - `imp`: properties, pads, states.
//! - `turns`: decides which input may push, and which buffers are held or dropped.

mod imp;
mod pad;
mod turns;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Passes one of its inputs.
    pub struct InputSelector(ObjectSubclass<imp::InputSelector>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = InputSelector::static_type();
    gst::Element::register(plugin, "ts-input-selector", gst::Rank::NONE, type_)
}
