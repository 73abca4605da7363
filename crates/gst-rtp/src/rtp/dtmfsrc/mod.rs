//! `ts-rtpdtmfsrc`: telephone events as RTP (RFC 4733), from `dtmf-event` events.
//!
//! - `imp`: properties, events, states.
//! - `keyer`: sends the packets, on a context's thread.

mod imp;
mod keyer;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Sends requested DTMF digits as telephone events.
    pub struct RtpDtmfSrc(ObjectSubclass<imp::RtpDtmfSrc>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = RtpDtmfSrc::static_type();
    gst::Element::register(plugin, "ts-rtpdtmfsrc", gst::Rank::NONE, type_)
}
