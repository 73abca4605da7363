//! Finds messages in a stream of bytes (TCP). A message ends where its dictionary is closed, and the next one follows. White
//! space between them is allowed.
//!
//! A message is parsed only as far as necessary to find its end. [`Message::decode`](super::Message::decode) checks the rest.

use super::message::{COOKIE_BYTES_MAX, NoMessage};
use super::value::MESSAGE_BYTES_MAX;

/// Finds the messages of one connection.
///
/// Contract: before passing in more bytes, call [`poll_message`](Framer::poll_message) until it returns `None`. Then at most
/// [`FRAME_BYTES_MAX`] bytes are stored. After an error, no further message can be found.
#[derive(Debug, Default)]
pub struct Framer {
    bytes: Vec<u8>,
    /// Start of the current message. [`handle_bytes`](Self::handle_bytes) removes the bytes before it, all at once.
    start: usize,
    /// Number of bytes of the current message that are parsed already.
    seen: usize,
    place: Place,
}

/// Maximum length of a message: cookie, space and dictionary.
pub const FRAME_BYTES_MAX: usize = COOKIE_BYTES_MAX + 1 + MESSAGE_BYTES_MAX;

/// The reason why bytes cannot be messages. Later messages on the connection cannot be found either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes do not begin as a message does.
    #[error(transparent)]
    NoMessage(#[from] NoMessage),
    /// The end of the dictionary cannot be found.
    #[error("byte {0:#04x} is not valid bencode here")]
    Bencode(u8),
    /// The message is too long.
    #[error("expected a dictionary of at most {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, Default)]
enum Place {
    /// White space between messages.
    #[default]
    Between,
    Cookie,
    /// The first byte of the dictionary.
    First,
    /// A value, a key or an end, with the number of open dictionaries and lists.
    Item {
        depth: u32,
    },
    Integer {
        depth: u32,
    },
    /// The length of a string.
    Length {
        depth: u32,
        length: usize,
    },
    /// The text of a string, with the number of bytes left.
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
    /// Adds bytes that the connection received.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.start));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete message.
    ///
    /// # Errors
    /// Fails if the bytes cannot be messages.
    pub fn poll_message(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        while let Some(&byte) = self.bytes.get(self.start + self.seen) {
            self.seen += 1;
            self.place = self.next(byte)?;
            match self.place {
                Place::Between => {
                    self.start += 1;
                    self.seen = 0;
                }
                Place::End => {
                    let end = self.start + std::mem::take(&mut self.seen);
                    let message = self.bytes[self.start..end].to_vec();
                    self.start = end;
                    self.place = Place::Between;
                    return Ok(Some(message));
                }
                _ if self.seen >= FRAME_BYTES_MAX => return Err(FrameError::TooLong),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether a message has begun but is not complete.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.start < self.bytes.len()
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

/// Returns what follows the end of a dictionary or list. If the dictionary or list is within another one, `outer` returns it.
fn closed(depth: u32, outer: impl FnOnce(u32) -> Place) -> Place {
    match depth - 1 {
        0 => Place::End,
        depth => outer(depth),
    }
}
