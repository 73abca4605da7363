//! Audio files that a gateway plays: WAV, FLAC, MP3 and Ogg Opus, read into memory for prompts and fallbacks.
//!
//! Part of the gateway `threadbare`; not a public interface.
#![forbid(unsafe_code)]

pub mod audio_file;
pub mod clip;
#[doc(hidden)]
pub mod fuzzing;
pub mod wav;
