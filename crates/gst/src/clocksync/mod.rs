//! `ts-clocksync`: lets what passes go at its time, without a thread that waits.
//!
//! - `imp`: properties, pads, states.
//! - `holder`: holds what comes too early, on its branch's thread.

mod holder;
mod imp;

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
