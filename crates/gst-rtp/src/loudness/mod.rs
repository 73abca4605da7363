//! Loudness by EBU R128: elements, and [`frames`] for programs that measure their pipelines' output.
//!
//! - `frames`: buffers as samples, caps as the layout of a meter.
//! - `readings`: a meter's readings as the fields of a structure.
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
