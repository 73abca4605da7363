//! `ts-rtpsink`: sends an RTP session from a context's thread.

mod imp;
mod sender;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Sends RTP, and handles the RTCP.
    pub struct RtpSink(ObjectSubclass<imp::RtpSink>)
        @extends gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(
        plugin,
        "ts-rtpsink",
        gst::Rank::NONE,
        RtpSink::static_type(),
    )
}
