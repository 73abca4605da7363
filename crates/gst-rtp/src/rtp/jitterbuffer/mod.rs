//! `ts-rtpjitterbuffer`: the jitter buffer as an element, for pipelines that receive packets in another way.
//!
//! - `imp`: properties, pads, states.
//! - `orderer`: orders packets, keeps events in their place, and sets output times.
//! - `reader`: the downstream side, on a context's thread.

mod imp;
mod orderer;
mod reader;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Reorders RTP packets and reports missing ones.
    pub struct RtpJitterBuffer(ObjectSubclass<imp::RtpJitterBuffer>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(
        plugin,
        "ts-rtpjitterbuffer",
        gst::Rank::NONE,
        RtpJitterBuffer::static_type(),
    )
}
