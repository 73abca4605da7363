//! Codecs, conversion, noise and tones, judged by measurements of their audio.

mod audio;
mod codec;
mod comfort;
mod convert;
mod tone;
