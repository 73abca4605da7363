//! Reads and writes bencode: `4:text`, `i-5e`, `l...e`, `d...e` (BEP 3, "Bencoding"). Keys need not be sorted, because clients of ng do not
//! sort them.

use std::fmt::Arguments;
use std::io::Write;

use super::value::{Budget, DecodeError, Dictionary, MESSAGE_BYTES_MAX, Value};

/// Reads a dictionary that takes up all of `bytes`.
///
/// # Errors
/// Fails if the value is not a dictionary, if bytes follow it, or if a bound of [`DecodeError`] is exceeded.
pub fn decode(bytes: &[u8]) -> Result<Dictionary, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let mut reader = Reader {
        bytes,
        at: 0,
        budget: Budget::new(),
    };
    if reader.peek() != Some(b'd') {
        return Err(reader.expected("a dictionary"));
    }
    let Value::Dictionary(dictionary) = reader.value(1)? else {
        return Err(reader.expected("a dictionary"));
    };
    // Some clients add a line feed to the datagram.
    if !bytes[reader.at..].iter().all(u8::is_ascii_whitespace) {
        return Err(reader.expected("the end of the message"));
    }
    Ok(dictionary)
}

/// Appends `dictionary` to `out`. The keys keep their order.
pub fn encode(dictionary: &Dictionary, out: &mut Vec<u8>) {
    out.push(b'd');
    for (key, value) in dictionary.iter() {
        encode_bytes(key, out);
        encode_value(value, out);
    }
    out.push(b'e');
}

fn encode_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Bytes(bytes) => encode_bytes(bytes, out),
        Value::Integer(number) => append(out, format_args!("i{number}e")),
        Value::List(values) => {
            out.push(b'l');
            for value in values {
                encode_value(value, out);
            }
            out.push(b'e');
        }
        Value::Dictionary(dictionary) => encode(dictionary, out),
    }
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    append(out, format_args!("{}:", bytes.len()));
    out.extend(bytes);
}

fn append(out: &mut Vec<u8>, text: Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "memory takes all");
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    budget: Budget,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expected(&self, expected: &'static str) -> DecodeError {
        let at = self.at;
        DecodeError::Syntax { at, expected }
    }

    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        self.budget.take(depth)?;
        match self.peek() {
            Some(b'0'..=b'9') => Ok(self.string()?.into()),
            Some(b'i') => {
                self.at += 1;
                Ok(Value::Integer(self.number(b'e', "a whole number")?))
            }
            Some(b'l') => {
                self.at += 1;
                let mut values = Vec::new();
                while !self.ends()? {
                    values.push(self.value(depth + 1)?);
                }
                Ok(Value::List(values))
            }
            Some(b'd') => {
                self.at += 1;
                let mut dictionary = Dictionary::new();
                while !self.ends()? {
                    let key = self.string()?;
                    dictionary.push(key, self.value(depth + 1)?);
                }
                Ok(Value::Dictionary(dictionary))
            }
            _ => Err(self.expected("a value")),
        }
    }

    /// If the next byte ends a list or dictionary, skips this byte and returns `true`.
    fn ends(&mut self) -> Result<bool, DecodeError> {
        match self.peek() {
            Some(b'e') => {
                self.at += 1;
                Ok(true)
            }
            Some(_) => Ok(false),
            None => Err(self.expected("more bytes, because a list or dictionary is not closed")),
        }
    }

    fn string(&mut self) -> Result<Vec<u8>, DecodeError> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.expected("the length of a string"));
        }
        let len = self.number(b':', "the length of a string")?;
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes =
            bytes.ok_or_else(|| self.expected("more bytes, because a string is cut off"))?;
        self.at += bytes.len();
        Ok(bytes.to_vec())
    }

    /// Reads a number up to the byte `end`, and skips that byte.
    fn number(&mut self, end: u8, expected: &'static str) -> Result<i64, DecodeError> {
        let rest = &self.bytes[self.at..];
        let found = rest
            .iter()
            .take(NUMBER_BYTES_MAX + 1)
            .position(|&byte| byte == end);
        let text = found.and_then(|len| std::str::from_utf8(&rest[..len]).ok());
        // `parse` accepts a plus sign, which bencode does not have.
        let number = text
            .filter(|text| !text.starts_with('+'))
            .and_then(|text| text.parse().ok());
        let (Some(number), Some(len)) = (number, found) else {
            return Err(self.expected(expected));
        };
        self.at += len + 1;
        Ok(number)
    }
}

/// Length of an `i64` with all its digits and the sign.
const NUMBER_BYTES_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::value::{DEPTH_MAX, VALUES_MAX};
    use super::*;

    fn written(dictionary: &Dictionary) -> Vec<u8> {
        let mut out = Vec::new();
        encode(dictionary, &mut out);
        out
    }

    #[test]
    fn the_examples_of_the_protocol_are_read_and_written() {
        // The examples are the ping of the public ng documentation, and the strings, numbers, lists and dictionaries of BEP 3.
        for text in [
            "d7:command4:pinge",
            "d6:result4:ponge",
            "d4:spaml1:a1:be3:cow3:moo1:ii-3e1:zi0e1:dde1:n0:e",
        ] {
            let dictionary = decode(text.as_bytes()).expect(text);
            assert_eq!(String::from_utf8(written(&dictionary)).as_deref(), Ok(text));
        }
    }

    #[test]
    fn unsorted_and_repeated_keys_keep_their_order() {
        let dictionary = decode(b"d1:zi1e1:ai2e1:zi3ee\r\n").expect("a dictionary");
        let keys: Vec<_> = dictionary.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [b"z", b"a", b"z"]);
        assert_eq!(dictionary.get("z"), Some(&Value::Integer(3)));
    }

    #[test]
    fn malformed_bencode_is_refused_with_its_position() {
        for (text, place) in [
            ("", 0),
            ("4:spam", 0),
            ("d", 1),
            ("d1:a", 4),
            ("d1:a9:bce", 6),
            ("d1:a99999999999999999999:bce", 4),
            ("d1:ai1.5ee", 5),
            ("d1:ai+5ee", 5),
            ("d1:aiee", 5),
            ("di5e1:ae", 1),
            ("d-1:ae", 1),
            ("dex", 2),
        ] {
            let error = decode(text.as_bytes()).expect_err(text);
            assert!(
                matches!(error, DecodeError::Syntax { at, .. } if at == place),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn depth_count_and_length_are_bounded() {
        let nested = |depth: usize| format!("d1:a{}{}e", "l".repeat(depth), "e".repeat(depth));
        assert!(decode(nested(DEPTH_MAX - 1).as_bytes()).is_ok());
        assert_eq!(
            decode(nested(DEPTH_MAX).as_bytes()),
            Err(DecodeError::TooDeep)
        );
        let counted = |count: usize| format!("d1:al{}ee", "le".repeat(count));
        assert!(decode(counted(VALUES_MAX - 2).as_bytes()).is_ok());
        assert_eq!(
            decode(counted(VALUES_MAX - 1).as_bytes()),
            Err(DecodeError::TooMany)
        );
        let long = vec![b' '; MESSAGE_BYTES_MAX + 1];
        assert_eq!(decode(&long), Err(DecodeError::TooLong(long.len())));
    }
}
