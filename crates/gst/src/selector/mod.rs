//! `ts-input-selector`: one of several streams, which may be changed while they play.
//!
//! - `imp`: properties, pads, states.
//! - `turns`: whose turn it is to push, and which buffers are held or dropped meanwhile.

mod imp;
mod pad;
mod turns;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Passes one of its inputs on.
    pub struct InputSelector(ObjectSubclass<imp::InputSelector>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = InputSelector::static_type();
    gst::Element::register(plugin, "ts-input-selector", gst::Rank::NONE, type_)
}
