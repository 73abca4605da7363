//! Loudness as EBU R128 has it.
//!
//! - `frames`: buffers as samples, caps as the layout of a meter.
//! - `readings`: what a meter has measured, as the fields of a structure.
//! - `level`: `ebur128level`.
//! - `normalizer`: `audioloudnorm`.

mod frames;
mod level;
mod normalizer;
mod readings;

use gst::glib;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    level::register(plugin)?;
    normalizer::register(plugin)
}
