//! Control of live calls that never reads a clock, draws a random number or touches a socket.
//!
//! - [`ng`]: the control protocol of SIP proxies.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

#[doc(hidden)]
pub mod fuzzing;
pub mod ng;
mod text;
