//! Loudness as EBU R128 has it: elements that measure, and [`frames`] for programs that measure what a pipeline of theirs decodes.
//!
//! - `frames`: buffers as samples, caps as the layout of a meter.
//! - `readings`: what a meter has measured, as the fields of a structure.
//! - `level`: `ebur128level`.
//! - `normalizer`: `audioloudnorm`.

pub mod frames;
mod level;
mod normalizer;
pub(crate) mod readings;

use gst::glib;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    level::register(plugin)?;
    normalizer::register(plugin)
}
