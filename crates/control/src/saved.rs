//! Encoding of the saved states of calls and streams: a version byte, then CBOR (RFC 8949) with field names.
//!
//! Later releases read the states of earlier ones, and nodes of a cluster read the states of nodes with other releases. Therefore:
//!
//! - Readers ignore unknown fields, and the names of fields and variants never change.
//! - A new field needs `#[serde(default)]`, because older writers lack it. A plain `Option` has this default anyway.
//! - The version changes only with an incompatible change, for example if a state without a new field would be unsafe to use.

use std::fmt;

use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use threadbare_rtp_types::srtp::{MasterKey, Mki, Suite};
use zeroize::Zeroizing;

/// The versions of a format.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The version of states with field names.
    pub version: u8,
    /// The version of states without field names, if the format has one. Such a state contains the fields in the order of the types, so
    /// each new field needs a new version.
    pub positional: Option<u8>,
}

/// The program that will read a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// This release or a later one. The state has field names.
    Later,
    /// A node that takes over at once, while the parties hear nothing. The state has no field names. It is read several times faster, but
    /// only by nodes of the same version.
    Node,
}

/// The reason why bytes are not a saved state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The state was saved by a program with an incompatible format.
    #[error("the state was saved in format version {found}, but this program reads version {read}")]
    Version {
        /// The version of the bytes.
        found: u8,
        /// The version of this program.
        read: u8,
    },
    /// The bytes were changed after saving.
    #[error("the state is damaged: {0}")]
    Damaged(String),
}

impl Format {
    /// Encodes a state for this reader.
    pub fn write_for<T: Serialize>(self, reader: Reader, state: &T) -> Vec<u8> {
        match (reader, self.positional) {
            // Writing to memory cannot fail here, because all lengths are known.
            (Reader::Node, Some(version)) => {
                postcard::to_allocvec(&(version, state)).unwrap_or_default()
            }
            (Reader::Later, _) | (_, None) => self.write(state),
        }
    }

    /// Encodes a state with field names.
    pub fn write<T: Serialize>(self, state: &T) -> Vec<u8> {
        let mut bytes = vec![self.version];
        // Writing to memory cannot fail, and CBOR can express all values of a state.
        let written = ciborium::into_writer(state, &mut bytes);
        debug_assert!(written.is_ok(), "{written:?}");
        bytes
    }

    /// Decodes bytes, which may come from an untrusted source. Nesting is limited. At most 1 MiB is reserved for a list before its values
    /// are read, whatever length it claims.
    ///
    /// # Errors
    /// Fails as [`FormatError`] lists.
    pub fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, FormatError> {
        let (&found, bytes) = bytes
            .split_first()
            .ok_or_else(|| damaged("it has no bytes"))?;
        let (state, left) = match found {
            _ if found == self.version => read_named(bytes)?,
            _ if Some(found) == self.positional => read_positional(bytes)?,
            _ => {
                let read = self.version;
                return Err(FormatError::Version { found, read });
            }
        };
        if left.is_empty() {
            Ok(state)
        } else {
            Err(damaged("there are bytes after its end"))
        }
    }
}

/// The decoder copies texts and byte strings through a buffer of this size. The names of fields must fit in the buffer.
const BUFFER_BYTES: usize = 1024;

/// Reads CBOR that is nested at most 256 levels deep, which is the decoder's own limit.
fn read_named<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<(T, &[u8]), FormatError> {
    use ciborium::de::Error;
    // Encryption keys pass through the buffer, so it is overwritten at the end.
    let mut buffer = Zeroizing::new([0; BUFFER_BYTES]);
    match ciborium::de::from_reader_with_buffer(&mut bytes, &mut *buffer) {
        Ok(state) => Ok((state, bytes)),
        // The reason may quote the bytes and goes to the log, so it is escaped.
        Err(Error::Semantic(_, reason)) => Err(damaged(reason.escape_debug())),
        Err(Error::Syntax(at)) => Err(damaged(format!("byte {at} is not valid CBOR"))),
        Err(Error::Io(_)) => Err(damaged("it ends too early")),
        Err(Error::RecursionLimitExceeded) => Err(damaged("it is nested too deeply")),
    }
}

fn read_positional<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), FormatError> {
    postcard::take_from_bytes(bytes).map_err(damaged)
}

fn damaged(reason: impl ToString) -> FormatError {
    FormatError::Damaged(reason.to_string())
}

/// Bytes that are saved as a byte string instead of a list of numbers. They are overwritten when dropped, because many of them are keys.
pub(crate) struct ByteString(pub(crate) Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> ByteString {
        ByteString(Zeroizing::new(bytes))
    }
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteString, D::Error> {
        deserializer.deserialize_byte_buf(ByteVisitor)
    }
}

struct ByteVisitor;

impl Visitor<'_> for ByteVisitor {
    type Value = ByteString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<ByteString, E> {
        Ok(bytes.to_vec().into())
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<ByteString, E> {
        Ok(bytes.into())
    }
}

/// The saved form of a [`MasterKey`]. It is a separate type, so that keys themselves cannot be serialised.
#[derive(Serialize, Deserialize)]
#[expect(missing_debug_implementations, reason = "it contains a key")]
pub struct SavedKey {
    pub(crate) suite: String,
    pub(crate) key_and_salt: ByteString,
    pub(crate) mki: ByteString,
}

impl From<&MasterKey> for SavedKey {
    fn from(key: &MasterKey) -> SavedKey {
        SavedKey {
            suite: key.suite().name().to_owned(),
            key_and_salt: key.expose_secret().to_vec().into(),
            mki: key.mki().to_vec().into(),
        }
    }
}

impl TryFrom<SavedKey> for MasterKey {
    type Error = &'static str;

    fn try_from(saved: SavedKey) -> Result<MasterKey, &'static str> {
        let suite = Suite::from_name(&saved.suite).ok_or("the crypto suite is unknown")?;
        let key = MasterKey::new(suite, &saved.key_and_salt.0);
        let key = key.map_err(|_| "the length of a key does not fit its crypto suite")?;
        let mki = Mki::new(&saved.mki.0).ok_or("a key identifier (MKI) is too long")?;
        Ok(key.with_mki(mki))
    }
}
