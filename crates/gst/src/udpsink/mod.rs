//! `ts-udpsink`: sends UDP packets, synchronised to the clock without a waiting thread.

mod clients;
mod imp;
mod sender;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Sends arriving data to a list of destinations.
    pub struct UdpSink(ObjectSubclass<imp::UdpSink>)
        @extends gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(
        plugin,
        "ts-udpsink",
        gst::Rank::NONE,
        UdpSink::static_type(),
    )
}
