//! `ts-rtpdemux`: one input, a source pad for each stream in it.
//!
//! - `imp`: properties, pads, states.
//! - `streams`: maps packets to streams, and lists the streams.
//! - `branch`: a source pad, pushed by the thread upstream or by a context's thread.

mod branch;
mod imp;
mod streams;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Creates a separate pad for each stream of an RTP input.
    pub struct RtpDemux(ObjectSubclass<imp::RtpDemux>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(
        plugin,
        "ts-rtpdemux",
        gst::Rank::NONE,
        RtpDemux::static_type(),
    )
}
