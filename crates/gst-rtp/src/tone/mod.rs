//! `ts-tonesrc` and `ts-audiotestsrc`: sources that generate sound.
//!
//! - `generator`: telephone tones. `wave`: test signals. Neither uses a clock.
//! - `format`: raw audio, and negotiation with downstream.
//! - `player`: cuts a signal into buffers, on a context's thread, each at its time.
//! - `source`: the other common parts of both elements.
//! - `tonesrc`, `testsrc`: properties.

mod format;
mod generator;
mod player;
mod source;
mod testsrc;
mod tonesrc;
mod wave;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    /// Plays telephone tones.
    pub struct ToneSrc(ObjectSubclass<tonesrc::ToneSrc>) @extends gst::Element, gst::Object;
}

glib::wrapper! {
    /// Plays test signals.
    pub struct AudioTestSrc(ObjectSubclass<testsrc::AudioTestSrc>) @extends gst::Element, gst::Object;
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let rank = gst::Rank::NONE;
    gst::Element::register(plugin, "ts-tonesrc", rank, ToneSrc::static_type())?;
    gst::Element::register(plugin, "ts-audiotestsrc", rank, AudioTestSrc::static_type())
}
