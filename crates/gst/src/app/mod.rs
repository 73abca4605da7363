//! `ts-appsrc` and `ts-appsink`: a program's own data in and out of shared threads.

mod source;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Pushes what the application gives it, on a context's thread.
    pub struct AppSrc(ObjectSubclass<source::imp::AppSrc>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(plugin, "ts-appsrc", gst::Rank::NONE, AppSrc::static_type())
}
