//! `ts-splitfilesink`: a stream cut into files at its keyframes.
//!
//! The stream is a muxed one that can be cut (MPEG-TS, Ogg, streamable Matroska), an encoded one, or a raw one. [`rotation`]
//! decides where to cut, and [`template`] names the files; [`cutter`] fills them, and [`imp`] is the element.

mod cutter;
pub(crate) mod headers;
mod imp;
pub(crate) mod rotation;
pub(crate) mod template;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Cuts a stream into files.
    pub struct SplitFileSink(ObjectSubclass<imp::Imp>) @extends gst::Element, gst::Object;
}

pub(super) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let kind = SplitFileSink::static_type();
    gst::Element::register(plugin, "ts-splitfilesink", gst::Rank::NONE, kind)
}
