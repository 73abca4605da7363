//! Loudness as EBU R128 has it.
//!
//! - `frames`: buffers as samples, caps as the layout of a meter.

#[allow(dead_code, reason = "nothing in this folder uses it yet")]
mod frames;
