//! The control protocol "ng". SIP proxies use it to pass the offers and answers of calls to a media relay.
//!
//! A message is `COOKIE SP DICTIONARY`, with the dictionary in bencode or JSON. A reply has the cookie and the encoding of its request.
//! [`RequestTable`] accepts messages, and returns requests and replies. [`Request`] reads the keys.

pub mod bencode;
mod flags;
mod framing;
pub mod json;
mod message;
mod renamed;
mod replies;
mod reply;
mod request;
mod request_table;
mod value;

pub use flags::{FlagsError, unfold};
pub use framing::{FRAME_BYTES_MAX, FrameError, Framer};
pub use message::{COOKIE_BYTES_MAX, Encoding, Message, NoMessage, write};
pub use renamed::*;
pub use reply::Reply;
pub use request::{Command, Refusal, Request};
pub use request_table::{Incoming, RequestTable, Ticket};
pub use value::{Bytes, DEPTH_MAX, DecodeError, Dictionary, MESSAGE_BYTES_MAX, VALUES_MAX, Value};
