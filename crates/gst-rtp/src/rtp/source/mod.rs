//! `ts-rtpsrc`: receives an RTP session on a context's thread.

mod imp;
mod receiver;
mod settings;

use gst::glib;
use gst::prelude::*;

pub(super) use settings::ClockSkew;

glib::wrapper! {
    /// Receives RTP, reorders it, and handles the RTCP.
    pub struct RtpSrc(ObjectSubclass<imp::RtpSrc>)
        @extends gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(plugin, "ts-rtpsrc", gst::Rank::NONE, RtpSrc::static_type())
}
