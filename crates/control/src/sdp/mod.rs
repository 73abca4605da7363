//! Session descriptions (RFC 8866) from SIP clients. Reading and writing keep every byte that no edit changes.
//!
//! [`Sdp`] contains the lines of the session and of each medium. The meaning of a line is read only when it is needed, and an edit changes
//! only its own line. Unknown lines and attributes stay in their order.

mod codecs;
mod document;
mod media;

pub use codecs::Codec;
pub(crate) use codecs::RTCP_NUMBERS;
pub use document::{LINES_MAX, Line, MEDIA_MAX, SDP_BYTES_MAX, Sdp, SdpError, Section};
pub use media::{Address, Direction, MediaLine, MediaOutline, RtcpAttribute};
