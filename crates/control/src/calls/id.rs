//! Names of streams and calls.

use std::fmt;
use std::sync::Arc;

/// The name of a stream in the media plane. A number is never used twice.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct StreamId(pub u64);

/// The name of a call: a SIP Call-ID, or what another program uses instead. It may be any bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct CallId(#[serde(with = "crate::mirror")] pub Arc<[u8]>);

impl CallId {
    /// Makes the id from the bytes in a request.
    #[must_use]
    pub fn new(bytes: &[u8]) -> CallId {
        CallId(bytes.into())
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}
