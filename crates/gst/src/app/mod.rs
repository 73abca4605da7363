//! `ts-appsrc` and `ts-appsink` move an application's own data into and out of shared threads.

mod sink;
mod source;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Pushes the application's buffers, on a context's thread.
    pub struct AppSrc(ObjectSubclass<source::imp::AppSrc>) @extends gst::Element, gst::Object;
}

glib::wrapper! {
    /// Hands buffers to the application.
    pub struct AppSink(ObjectSubclass<sink::AppSink>) @extends gst::Element, gst::Object;
}

pub use sink::SampleStream;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(plugin, "ts-appsrc", gst::Rank::NONE, AppSrc::static_type())?;
    gst::Element::register(
        plugin,
        "ts-appsink",
        gst::Rank::NONE,
        AppSink::static_type(),
    )
}
