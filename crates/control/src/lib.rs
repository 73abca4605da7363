//! Control of live calls that never reads a clock, draws a random number or touches a socket.
//!
//! - [`ng`]: the control protocol of SIP proxies.
//! - [`sdp`]: session descriptions, read and edited without touching what is not meant.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

#[doc(hidden)]
pub mod fuzzing;
pub mod ng;
pub mod sdp;
mod text;
