//! A message on the wire: `COOKIE SP DICTIONARY`.

use super::value::{DecodeError, Dictionary};
use super::{bencode, json};

/// The encoding of a dictionary. A reply has the encoding of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Bencode (BEP 3), but with keys in any order.
    Bencode,
    /// JSON (RFC 8259).
    Json,
}

/// A message whose dictionary has not been read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The cookie that the client chose, 1 to [`COOKIE_BYTES_MAX`] bytes. The reply has the same cookie.
    pub cookie: &'a [u8],
    /// The encoding, which the first byte of the dictionary shows.
    pub encoding: Encoding,
    /// The dictionary's bytes.
    pub body: &'a [u8],
}

/// Maximum length of a cookie. Cookies of Kamailio and OpenSIPS have about 20 bytes. The limit bounds the memory that each message takes in
/// a table.
pub const COOKIE_BYTES_MAX: usize = 128;

/// The reason why a datagram is not a message. Such a datagram gets no reply, because its sender does not speak the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoMessage {
    /// No space follows the first bytes.
    #[error("expected a cookie of 1 to {COOKIE_BYTES_MAX} bytes, then a space")]
    Cookie,
    /// The dictionary does not begin with `d` or `{`.
    #[error("expected a bencode or JSON dictionary after the cookie")]
    Dictionary,
    /// The dictionary has `result` and no `command`, so it is a reply. A reply to a reply could start an endless loop.
    #[error("expected a request, but this is a reply")]
    Reply,
}

impl<'a> Message<'a> {
    /// Splits a datagram into cookie and dictionary.
    ///
    /// # Errors
    /// Fails if the cookie or the dictionary is missing.
    pub fn split(datagram: &'a [u8]) -> Result<Message<'a>, NoMessage> {
        let head = &datagram[..datagram.len().min(COOKIE_BYTES_MAX + 1)];
        let space = head.iter().position(|&byte| byte == b' ');
        let space = space.filter(|&at| at > 0).ok_or(NoMessage::Cookie)?;
        let body = &datagram[space + 1..];
        let encoding = match body.first() {
            Some(b'd') => Encoding::Bencode,
            Some(b'{') => Encoding::Json,
            _ => return Err(NoMessage::Dictionary),
        };
        Ok(Message {
            cookie: &datagram[..space],
            encoding,
            body,
        })
    }

    /// Reads the dictionary.
    ///
    /// # Errors
    /// Fails as [`bencode::decode`] and [`json::decode`] do.
    pub fn decode(&self) -> Result<Dictionary, DecodeError> {
        match self.encoding {
            Encoding::Bencode => bencode::decode(self.body),
            Encoding::Json => json::decode(self.body),
        }
    }
}

/// Writes a message with `cookie`.
#[must_use]
pub fn write(cookie: &[u8], encoding: Encoding, dictionary: &Dictionary) -> Vec<u8> {
    let mut out = cookie.to_vec();
    out.push(b' ');
    match encoding {
        Encoding::Bencode => bencode::encode(dictionary, &mut out),
        Encoding::Json => json::encode(dictionary, &mut out),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ping_of_the_documentation_is_read_and_answered() {
        let message = Message::split(b"5323_1 d7:command4:pinge").expect("a message");
        assert_eq!(message.cookie, b"5323_1");
        let command = message.decode().expect("a dictionary");
        assert_eq!(command.get("command"), Some(&"ping".into()));
        let mut pong = Dictionary::new();
        pong.push("result", "pong");
        let reply = write(message.cookie, message.encoding, &pong);
        assert_eq!(reply, b"5323_1 d6:result4:ponge");
        let json = Message::split(b"a {\"command\":\"ping\"}").expect("a message");
        let reply = write(json.cookie, json.encoding, &pong);
        assert_eq!(reply, b"a {\"result\":\"pong\"}");
    }

    #[test]
    fn malformed_start_is_not_a_message() {
        let long = [&[b'c'; COOKIE_BYTES_MAX][..], b" de"].concat();
        assert!(Message::split(&long).is_ok());
        let longer = [b"c", long.as_slice()].concat();
        for (datagram, why) in [
            (&b""[..], NoMessage::Cookie),
            (b"ping", NoMessage::Cookie),
            (b" d7:command4:pinge", NoMessage::Cookie),
            (&longer, NoMessage::Cookie),
            (b"cookie ", NoMessage::Dictionary),
            (b"cookie [1]", NoMessage::Dictionary),
        ] {
            assert_eq!(Message::split(datagram), Err(why));
        }
    }
}
