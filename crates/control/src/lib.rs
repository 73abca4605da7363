//! Control of live calls that never reads a clock, draws a random number or touches a socket.
//!
//! - [`calls`]: the registry of live calls, behind the protocol and before the media plane.
//! - [`cluster`]: streams spread over nodes by a store that all of them see.
//! - [`codec`]: which codecs are offered to whom, and what is transcoded.
//! - [`ng`]: the control protocol of SIP proxies.
//! - [`sdp`]: session descriptions, read and edited without touching what is not meant.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod calls;
pub mod cluster;
pub mod codec;
#[doc(hidden)]
pub mod fuzzing;
mod mirror;
pub mod ng;
pub mod sdp;
mod text;
