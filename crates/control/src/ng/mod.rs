//! The control protocol "ng", by which SIP proxies offer and answer calls to a media relay.
//!
//! A message is `COOKIE SP DICTIONARY`, the dictionary in bencode or JSON; a reply has its request's cookie and encoding. [`Desk`] takes
//! messages in and gives out requests and replies; [`Request`] reads the keys.

pub mod bencode;
mod desk;
mod flags;
mod framing;
pub mod json;
mod message;
mod replies;
mod reply;
mod request;
mod value;

pub use desk::{Desk, Incoming, Ticket};
pub use flags::{FlagsError, unfold};
pub use framing::{FRAME_BYTES_MAX, FrameError, Framer};
pub use message::{COOKIE_BYTES_MAX, Encoding, Message, NoMessage, write};
pub use reply::Reply;
pub use request::{Command, Refusal, Request};
pub use value::{Bytes, DEPTH_MAX, DecodeError, Dictionary, MESSAGE_BYTES_MAX, VALUES_MAX, Value};
