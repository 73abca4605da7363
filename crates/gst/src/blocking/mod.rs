//! `ts-blocking-adapter`: a separate thread for a downstream that blocks.

mod imp;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Lets shared threads push into elements that may block.
    pub struct BlockingAdapter(ObjectSubclass<imp::BlockingAdapter>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = BlockingAdapter::static_type();
    gst::Element::register(plugin, "ts-blocking-adapter", gst::Rank::NONE, type_)
}
