//! `ts-rtpg711`: depayloads, converts and payloads G.711 and L16 in one hop.
//!
//! - `imp`: properties, pads, negotiation.
//! - `line_meter`: measures the output.

mod imp;
mod line_meter;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Converts RTP packets of PCMU, PCMA and L16 into one another.
    pub struct RtpG711(ObjectSubclass<imp::RtpG711>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(
        plugin,
        "ts-rtpg711",
        gst::Rank::NONE,
        RtpG711::static_type(),
    )
}
