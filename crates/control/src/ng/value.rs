//! The values of ng messages. They are the same for bencode and JSON.

use std::borrow::Cow;
use std::ops::Deref;

use crate::text::shown;

/// A string of a message: any bytes in bencode, UTF-8 in JSON. Strings that are constants of the program are not copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(Cow<'static, [u8]>);

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&'static str> for Bytes {
    fn from(text: &'static str) -> Bytes {
        Bytes(Cow::Borrowed(text.as_bytes()))
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes::from(text.into_bytes())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Cow::Owned(bytes))
    }
}

/// A value of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string.
    Bytes(Bytes),
    /// A whole number.
    Integer(i64),
    /// Values in order.
    List(Vec<Value>),
    /// Keys and values in order.
    Dictionary(Dictionary),
}

impl Value {
    /// Creates a string with a copy of the text.
    #[must_use]
    pub fn text(text: &str) -> Value {
        Value::bytes(text.as_bytes())
    }

    /// Creates a string with a copy of the bytes.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.to_vec().into())
    }

    /// Returns the text, if the value is a string of valid UTF-8.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Returns a short form of the value for error texts: the beginning of a text, or the kind of the value.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Value::Bytes(bytes) => shown(bytes),
            Value::Integer(number) => number.to_string(),
            Value::List(_) => "a list".to_owned(),
            Value::Dictionary(_) => "a dictionary".to_owned(),
        }
    }
}

impl<T: Into<Bytes>> From<T> for Value {
    fn from(bytes: T) -> Value {
        Value::Bytes(bytes.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Integer(number)
    }
}

impl From<Dictionary> for Value {
    fn from(dictionary: Dictionary) -> Value {
        Value::Dictionary(dictionary)
    }
}

/// Keys and values in the order of the message. A message is written as it was read, so nothing is sorted or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dictionary(Vec<(Bytes, Value)>);

impl Dictionary {
    /// Creates an empty dictionary.
    #[must_use]
    pub fn new() -> Dictionary {
        Dictionary::default()
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, key: impl Into<Bytes>, value: impl Into<Value>) {
        self.0.push((key.into(), value.into()));
    }

    /// Adds an entry at the beginning.
    pub(crate) fn push_first(&mut self, key: impl Into<Bytes>, value: impl Into<Value>) {
        self.0.insert(0, (key.into(), value.into()));
    }

    /// Returns the value of `key`. If there are several, returns the last one.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let mut entries = self.0.iter().rev();
        entries
            .find(|(name, _)| **name == *key.as_bytes())
            .map(|(_, value)| value)
    }

    /// Returns the value of `key`. If it is missing, adds `default()` and returns that.
    pub(crate) fn entry(&mut self, key: &str, default: impl FnOnce() -> Value) -> &mut Value {
        let found = self
            .0
            .iter()
            .rposition(|(name, _)| **name == *key.as_bytes());
        let at = found.unwrap_or_else(|| {
            self.push(key.to_owned(), default());
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Replaces the value of `key`, or adds an entry.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        *self.entry(key, || Value::Integer(0)) = value.into();
    }

    /// Returns all entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &Value)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the dictionary is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl IntoIterator for Dictionary {
    type Item = (Bytes, Value);
    type IntoIter = std::vec::IntoIter<(Bytes, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: Into<Bytes>> FromIterator<(K, Value)> for Dictionary {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        Dictionary(entries.map(|(key, value)| (key.into(), value)).collect())
    }
}

/// Maximum depth of nested values. The dictionary of the message counts as 1. The deepest documented key, `sdp-attr` with `substitute`,
/// reaches 5. Reading is recursive, so this limit also bounds the stack.
pub const DEPTH_MAX: usize = 8;

/// Maximum number of values in a message, keys not counted. A value takes about ten times the memory of its shortest text.
pub const VALUES_MAX: usize = 4096;

/// Maximum length of a message. This is more than a UDP datagram can carry. An SDP of 64 media lines has about 20,000 bytes.
pub const MESSAGE_BYTES_MAX: usize = 65_536;

/// The reason why a message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The byte at this position of the dictionary is not as expected.
    #[error("byte {at}: expected {expected}")]
    Syntax {
        /// The position, from 0.
        at: usize,
        /// What was expected there, in words.
        expected: &'static str,
    },
    /// The error of serde_json, with line and column.
    #[error("the JSON text is invalid: {0}")]
    Json(String),
    /// Lists and dictionaries are nested too deep.
    #[error("expected values that are nested at most {DEPTH_MAX} deep")]
    TooDeep,
    /// The message has too many values.
    #[error("expected at most {VALUES_MAX} values")]
    TooMany,
    /// The message has too many bytes.
    #[error("the message has {0} bytes: expected at most {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
}

/// Counts values and their depth while a message is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    values_left: usize,
}

impl Budget {
    pub(crate) fn new() -> Budget {
        let values_left = VALUES_MAX;
        Budget { values_left }
    }

    /// Counts a value at `depth`. The outermost value has depth 1.
    pub(crate) fn take(&mut self, depth: usize) -> Result<(), DecodeError> {
        if depth > DEPTH_MAX {
            return Err(DecodeError::TooDeep);
        }
        let left = self.values_left.checked_sub(1);
        self.values_left = left.ok_or(DecodeError::TooMany)?;
        Ok(())
    }
}
