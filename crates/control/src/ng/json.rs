//! Reads JSON (RFC 8259) into the same values as bencode. Because bencode has neither fractions nor `null`, these are errors.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::text::SHOWN_CHARS_MAX;

use super::value::{Budget, DecodeError, Dictionary, MESSAGE_BYTES_MAX, Value};

/// Reads an object that takes up all of `bytes`. `true` becomes 1, and `false` 0.
///
/// # Errors
/// Fails if the value is not an object, if it has a fraction, `null` or a number beyond 64 bits, or if a bound of [`DecodeError`] is
/// exceeded.
pub fn decode(bytes: &[u8]) -> Result<Dictionary, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut budget = Budget::new();
    let mut breach = None;
    let seed = Seed {
        depth: 1,
        budget: &mut budget,
        breach: &mut breach,
    };
    let value = seed.deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Dictionary(dictionary)) => Ok(dictionary),
        Ok(_) => Err(DecodeError::Syntax {
            at: 0,
            expected: "an object",
        }),
        // The error text may quote the input, so it is shortened.
        Err(error) => Err(breach.unwrap_or_else(|| DecodeError::Json(short(&error.to_string())))),
    }
}

/// Appends `dictionary` to `out`. Invalid UTF-8 becomes replacement characters, because JSON is UTF-8.
pub fn encode(dictionary: &Dictionary, out: &mut Vec<u8>) {
    let written = serde_json::to_writer(out, &Object(dictionary));
    debug_assert!(written.is_ok(), "keys are strings, and memory takes all");
}

fn short(text: &str) -> String {
    let last = text.chars().rev().take(3 * SHOWN_CHARS_MAX);
    // The end is kept, because it contains the position.
    last.collect::<Vec<_>>().into_iter().rev().collect()
}

/// Reads one value within the bounds.
struct Seed<'a> {
    depth: usize,
    budget: &'a mut Budget,
    /// The bound that was exceeded. It is stored here, because errors of serde contain only text.
    breach: &'a mut Option<DecodeError>,
}

impl Seed<'_> {
    fn inner(&mut self) -> Seed<'_> {
        Seed {
            depth: self.depth + 1,
            budget: self.budget,
            breach: self.breach,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        if let Err(breach) = self.budget.take(self.depth) {
            *self.breach = Some(breach);
            return Err(de::Error::custom(
                "the limit of values or of nesting is exceeded",
            ));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, whole number of 64 bits, list or object")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        let number = i64::try_from(value);
        number
            .map(Value::Integer)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(self.inner())? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        let mut dictionary = Dictionary::new();
        while let Some(key) = access.next_key::<String>()? {
            dictionary.push(key, access.next_value_seed(self.inner())?);
        }
        Ok(Value::Dictionary(dictionary))
    }
}

/// Converts bytes to text. Almost all text is valid UTF-8, and `from_utf8` checks it faster than the lossy conversion.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

struct Object<'a>(&'a Dictionary);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0.iter() {
            map.serialize_entry(&text_of(key), &Item(value))?;
        }
        map.end()
    }
}

struct Item<'a>(&'a Value);

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Bytes(bytes) => serializer.serialize_str(&text_of(bytes)),
            Value::Integer(number) => serializer.serialize_i64(*number),
            Value::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(&Item(value))?;
                }
                list.end()
            }
            Value::Dictionary(dictionary) => Object(dictionary).serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::{DEPTH_MAX, VALUES_MAX};
    use super::*;

    fn written(dictionary: &Dictionary) -> String {
        let mut out = Vec::new();
        encode(dictionary, &mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn objects_are_read_and_written_in_order() {
        let text = r#"{"z":"v=0\r\n","a":[1,-2,"x",[]],"":{"k":{}}}"#;
        let dictionary = decode(text.as_bytes()).expect(text);
        assert_eq!(written(&dictionary), text);
        let text = " {\"a\":true, \"b\":false, \"c\":\"\\u00e9\"}\n";
        let dictionary = decode(text.as_bytes()).expect(text);
        assert_eq!(written(&dictionary), r#"{"a":1,"b":0,"c":"é"}"#);
    }

    #[test]
    fn json_without_a_bencode_equivalent_is_refused() {
        for text in [
            "",
            "{",
            "[]",
            "1",
            "{} x",
            r#"{"a":1.5}"#,
            r#"{"a":null}"#,
            r#"{"a":9223372036854775808}"#,
            r#"{a:1}"#,
            "{\"a\":\"\u{1}\"}",
        ] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        let mut dictionary = Dictionary::new();
        dictionary.push(vec![0xff], vec![b'a', 0xfe]);
        assert_eq!(written(&dictionary), "{\"\u{fffd}\":\"a\u{fffd}\"}");
    }

    #[test]
    fn depth_count_and_length_are_bounded() {
        let nested =
            |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(decode(nested(DEPTH_MAX - 1).as_bytes()).is_ok());
        assert_eq!(
            decode(nested(DEPTH_MAX).as_bytes()),
            Err(DecodeError::TooDeep)
        );
        let counted = |count: usize| format!(r#"{{"a":[{}0]}}"#, "0,".repeat(count));
        assert!(decode(counted(VALUES_MAX - 3).as_bytes()).is_ok());
        assert_eq!(
            decode(counted(VALUES_MAX - 2).as_bytes()),
            Err(DecodeError::TooMany)
        );
        let long = vec![b' '; MESSAGE_BYTES_MAX + 1];
        assert_eq!(decode(&long), Err(DecodeError::TooLong(long.len())));
        // serde_json quotes the whole string that it did not expect.
        let text = format!("{:?}", "x".repeat(9999));
        let error = decode(format!("{{{text}: {{{text}}}}}").as_bytes());
        assert!(error.expect_err("no value").to_string().len() < 200);
    }
}
