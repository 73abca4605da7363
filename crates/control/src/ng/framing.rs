//! Messages in a stream of bytes (TCP): one begins where the last one's dictionary is closed. There may be white space between two.
//!
//! Only as much is read of a message as is needed to find its end; [`Message::decode`](super::Message::decode) judges the rest.

use super::message::{COOKIE_BYTES_MAX, NoMessage};
use super::value::MESSAGE_BYTES_MAX;

/// Finds the messages of one connection.
///
/// Contract: [`poll_message`](Framer::poll_message) until it has none, before more bytes are handed in. What is kept is then less than
/// [`FRAME_BYTES_MAX`]. After an error, no message can be found any more.
#[derive(Debug, Default)]
pub struct Framer {
    bytes: Vec<u8>,
    /// Bytes of the current message that have been looked at.
    seen: usize,
    place: Place,
}

/// Cookie, space, dictionary.
pub const FRAME_BYTES_MAX: usize = COOKIE_BYTES_MAX + 1 + MESSAGE_BYTES_MAX;

/// Why bytes are no messages, nor can any be found behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It begins like no message.
    #[error(transparent)]
    NoMessage(#[from] NoMessage),
    /// Its dictionary has no end that can be found.
    #[error("byte {0:#04x} does not fit into bencode there")]
    Bencode(u8),
    /// It is too long.
    #[error("a dictionary of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
}

/// What the next byte is part of.
#[derive(Debug, Clone, Copy, Default)]
enum Place {
    /// White space between messages.
    #[default]
    Between,
    Cookie,
    /// The first byte of the dictionary.
    First,
    /// A value, a key or an end; dictionaries and lists that are open.
    Item {
        depth: u32,
    },
    Integer {
        depth: u32,
    },
    /// Of a string.
    Length {
        depth: u32,
        length: usize,
    },
    /// So many bytes are left of it.
    Text {
        depth: u32,
        left: usize,
    },
    Json {
        depth: u32,
    },
    JsonText {
        depth: u32,
        is_escaped: bool,
    },
    End,
}

impl Framer {
    /// More bytes of the connection.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message that is there to its end.
    ///
    /// # Errors
    /// The bytes are no messages.
    pub fn poll_message(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        while let Some(&byte) = self.bytes.get(self.seen) {
            self.seen += 1;
            self.place = self.next(byte)?;
            match self.place {
                Place::Between => {
                    self.bytes.drain(..self.seen);
                    self.seen = 0;
                }
                Place::End => {
                    let rest = self.bytes.split_off(self.seen);
                    self.seen = 0;
                    self.place = Place::Between;
                    return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
                }
                _ if self.seen >= FRAME_BYTES_MAX => return Err(FrameError::TooLong),
                _ => {}
            }
        }
        Ok(None)
    }

    /// A message has begun, and is not there to its end.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.bytes.is_empty()
    }

    fn next(&self, byte: u8) -> Result<Place, FrameError> {
        Ok(match self.place {
            Place::Between | Place::End if byte.is_ascii_whitespace() => Place::Between,
            Place::Between | Place::End => Place::Cookie,
            Place::Cookie if byte == b' ' => Place::First,
            Place::Cookie if self.seen > COOKIE_BYTES_MAX => return Err(NoMessage::Cookie.into()),
            Place::Cookie => Place::Cookie,
            Place::First => match byte {
                b'd' => Place::Item { depth: 1 },
                b'{' => Place::Json { depth: 1 },
                _ => return Err(NoMessage::Dictionary.into()),
            },
            Place::Json { depth } => match byte {
                b'"' => Place::JsonText {
                    depth,
                    is_escaped: false,
                },
                b'{' | b'[' => Place::Json { depth: depth + 1 },
                b'}' | b']' => closed(depth, |depth| Place::Json { depth }),
                _ => Place::Json { depth },
            },
            Place::JsonText { depth, is_escaped } => match byte {
                b'"' if !is_escaped => Place::Json { depth },
                _ => Place::JsonText {
                    depth,
                    is_escaped: byte == b'\\' && !is_escaped,
                },
            },
            bencode => bencode_next(bencode, byte)?,
        })
    }
}

fn bencode_next(place: Place, byte: u8) -> Result<Place, FrameError> {
    let digit = usize::from(byte.wrapping_sub(b'0'));
    Ok(match (place, byte) {
        (Place::Item { depth }, b'd' | b'l') => Place::Item { depth: depth + 1 },
        (Place::Item { depth }, b'e') => closed(depth, |depth| Place::Item { depth }),
        (Place::Item { depth }, b'i') => Place::Integer { depth },
        (Place::Item { depth }, b'0'..=b'9') => Place::Length {
            depth,
            length: digit,
        },
        (Place::Integer { depth }, b'e') => Place::Item { depth },
        (Place::Integer { depth }, b'-' | b'0'..=b'9') => Place::Integer { depth },
        (Place::Length { depth, length }, b'0'..=b'9') => {
            let length = length * 10 + digit;
            if length > MESSAGE_BYTES_MAX {
                return Err(FrameError::TooLong);
            }
            Place::Length { depth, length }
        }
        (Place::Length { depth, length: 0 }, b':') => Place::Item { depth },
        (Place::Length { depth, length }, b':') => Place::Text {
            depth,
            left: length,
        },
        (Place::Text { depth, left: 1 }, _) => Place::Item { depth },
        (Place::Text { depth, left }, _) => Place::Text {
            depth,
            left: left - 1,
        },
        (_, byte) => return Err(FrameError::Bencode(byte)),
    })
}

/// The end of a dictionary or list.
fn closed(depth: u32, outer: impl FnOnce(u32) -> Place) -> Place {
    match depth - 1 {
        0 => Place::End,
        depth => outer(depth),
    }
}
