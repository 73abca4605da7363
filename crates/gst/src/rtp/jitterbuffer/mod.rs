//! `ts-rtpjitterbuffer`: the jitter buffer as an element of its own, for pipelines that have the packets already.
//!
//! - `imp`: properties, pads, states.
//! - `orderer`: puts packets in order, events in their place between them, and times on what comes out.
//! - `pusher`: the downstream side, on a context's thread.

mod imp;
mod orderer;
mod pusher;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Puts RTP packets in order and tells what is missing.
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
