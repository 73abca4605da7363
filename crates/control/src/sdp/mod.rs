//! Session descriptions (RFC 8866) as SIP clients send them: read and written without changing a byte that nobody asked to change.
//!
//! [`Sdp`] holds lines, those of the session and those of each medium. What a line means is read when it is asked for; edits touch the lines
//! that they are for. Unknown lines and attributes pass in order.

mod codecs;
mod document;
mod media;

pub use codecs::Codec;
pub(crate) use codecs::RTCP_NUMBERS;
pub use document::{LINES_MAX, Line, MEDIA_MAX, SDP_BYTES_MAX, Sdp, SdpError, Section};
pub use media::{Address, Direction, MediaLine, MediaOutline, RtcpAttribute};
