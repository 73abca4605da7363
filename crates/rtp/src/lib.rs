//! Building blocks for RTP audio that never read a clock, draw a random number or touch a socket.
//!
//! - [`id`]: sequence numbers, timestamps and their arithmetic.
//! - [`g711`]: conversions between PCMU, PCMA and 16-bit linear audio.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod g711;
pub mod id;
