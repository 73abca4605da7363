//! `ts-rtcpmanager`: RTCP for pipelines whose RTP uses another transport.
//!
//! - `imp`: properties, request pads, states.
//! - `member`: one session's pads and their data.
//! - `reports`: one session's RTCP.
//! - `reporter`: sends the session's RTCP from a context's thread.

mod imp;
mod member;
mod reporter;
mod reports;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Counts RTP that passes through it, and reports on it.
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
