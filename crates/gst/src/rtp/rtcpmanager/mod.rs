//! `ts-rtcpmanager`: RTCP for pipelines that move their RTP by other means.
//!
//! - `imp`: properties, request pads, states.
//! - `member`: one session's pads and what goes through them.
//! - `reporter`: what the session has to say, from a context's thread.

mod imp;
mod member;
mod reporter;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Counts the RTP that passes, and reports on it.
    pub struct RtcpManager(ObjectSubclass<imp::RtcpManager>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(
        plugin,
        "ts-rtcpmanager",
        gst::Rank::NONE,
        RtcpManager::static_type(),
    )
}
