//! `ts-clocksync`: synchronises buffers to the clock without a waiting thread.
//!
//! - `imp`: properties, pads, states.
//! - `reader`: holds early buffers on the branch's thread.

mod imp;
mod reader;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Holds buffers until their time.
    pub struct ClockSync(ObjectSubclass<imp::ClockSync>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = ClockSync::static_type();
    gst::Element::register(plugin, "ts-clocksync", gst::Rank::NONE, type_)
}
