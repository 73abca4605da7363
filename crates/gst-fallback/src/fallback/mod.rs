//! Elements that switch to another stream when a stream fails.

mod fill;
mod source;
mod switch;

use gst::glib;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    switch::register(plugin)?;
    source::register(plugin)
}
