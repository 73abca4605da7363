//! `ts-queue`: a queue whose downstream side runs on a context's thread.

mod imp;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Decouples its upstream from its downstream without its own thread.
    pub struct Queue(ObjectSubclass<imp::Queue>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    gst::Element::register(plugin, "ts-queue", gst::Rank::NONE, Queue::static_type())
}
