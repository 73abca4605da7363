//! `ebur128level`: measures the loudness of audio.
//!
//! - `imp`: properties, pads, events.
//! - `measuring`: one stream's meter, and the readings that are due at each interval.

mod imp;
mod measuring;

use gst::glib;
use gst::prelude::*;

/// The measurements, with the names and numbers of the stock element.
#[glib::flags(name = "ThreadbareEbuR128LevelMode")]
pub enum LevelMode {
    #[flags_value(name = "Momentary loudness (400 ms)", nick = "momentary")]
    MOMENTARY = 1 << 0,
    #[flags_value(name = "Short-term loudness (3 s)", nick = "short-term")]
    SHORT_TERM = 1 << 1,
    #[flags_value(name = "Integrated loudness and its relative gate", nick = "global")]
    GLOBAL = 1 << 2,
    #[flags_value(name = "Loudness range", nick = "loudness-range")]
    LOUDNESS_RANGE = 1 << 3,
    #[flags_value(name = "Sample peaks", nick = "sample-peak")]
    SAMPLE_PEAK = 1 << 4,
    #[flags_value(name = "True peaks", nick = "true-peak")]
    TRUE_PEAK = 1 << 5,
}

glib::wrapper! {
    /// Measures loudness and peaks of audio.
    pub struct EbuR128Level(ObjectSubclass<imp::EbuR128Level>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = EbuR128Level::static_type();
    gst::Element::register(plugin, "ebur128level", gst::Rank::NONE, type_)
}
