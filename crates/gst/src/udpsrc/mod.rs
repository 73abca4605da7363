//! `ts-udpsrc`: receives UDP packets on a shared thread.

mod imp;
mod receiver;
mod settings;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Receives UDP packets on the thread of a context it shares with others.
    pub struct UdpSrc(ObjectSubclass<imp::UdpSrc>)
        @extends gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(plugin, "ts-udpsrc", gst::Rank::NONE, UdpSrc::static_type())
}
