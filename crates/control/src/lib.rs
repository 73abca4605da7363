//! Control of live calls. It never reads a clock, draws a random number or touches a socket.
//!
//! The crate is for programs that connect a SIP proxy with a media relay. Such a program passes in requests and the time, and carries out
//! the resulting actions. This example is a media relay that puts its own address into an offer:
//!
//! ```
//! use threadbare_control::ng::{Command, Dictionary, Request};
//! use threadbare_control::sdp::Sdp;
//!
//! // The proxy's request.
//! let offer = "v=0\r\no=- 1 1 IN IP4 198.51.100.1\r\ns=-\r\nt=0 0\r\n\
//!              m=audio 4000 RTP/AVP 0 8\r\nc=IN IP4 198.51.100.1\r\na=x-unknown:stays\r\n";
//! let mut keys = Dictionary::new();
//! for (key, value) in [("command", "offer"), ("call-id", "1"), ("from-tag", "a"), ("sdp", offer)] {
//!     keys.push(key, value);
//! }
//! let request = Request::new(keys)?;
//! assert_eq!(request.command(), Command::Offer);
//!
//! // The description for the other party. All bytes that are not edited stay.
//! let mut sdp = Sdp::parse(offer.as_bytes())?;
//! let codecs = sdp.media[0].codecs();
//! assert_eq!(codecs[1].name, "PCMA");
//! sdp.media[0].set_port(30_000);
//! sdp.media[0].set_connection("203.0.113.7".parse()?);
//! let told = String::from_utf8(sdp.to_bytes())?;
//! assert_eq!(told, offer.replace("4000", "30000").replace("c=IN IP4 198.51.100.1", "c=IN IP4 203.0.113.7"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The module [`calls`] does all this for whole calls. Its documentation has an example with ports.
//!
//! - [`calls`]: the registry of live calls, between the protocol and the media plane.
//! - [`codec`]: which codecs each side is offered, and what is transcoded.
//! - [`ng`]: the control protocol of SIP proxies.
//! - [`saved`]: the encoding of saved states.
//! - [`sdp`]: session descriptions. Edits leave all other bytes unchanged.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod calls;
pub mod codec;
#[doc(hidden)]
pub mod fuzzing;
mod mirror;
pub mod ng;
pub mod saved;
pub mod sdp;
mod text;
