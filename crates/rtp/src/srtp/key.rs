//! Master keys.

use std::fmt;

use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroize;

use super::Suite;

/// The longest master key with its salt, bytes: AES_256_CM_HMAC_SHA1_80.
pub const MASTER_KEY_BYTES_MAX: usize = 46;

/// A master key has the wrong length for its suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("key and salt of {actual} bytes, {suite} takes {}", .suite.key_bytes() + .suite.salt_bytes())]
pub struct KeyError {
    /// For this suite.
    pub suite: Suite,
    /// Bytes of key and salt.
    pub actual: usize,
}

/// The master key and master salt of one direction, with their suite. Secret: the debug output names the suite alone, and
/// the bytes are overwritten when the key is dropped.
#[derive(Clone)]
pub struct MasterKey {
    suite: Suite,
    bytes: [u8; MASTER_KEY_BYTES_MAX],
}

impl MasterKey {
    /// A key from `key_and_salt`: the key, and behind it the salt, as SDP has them (RFC 4568, section 6.1).
    ///
    /// # Errors
    /// The length is not the one of the suite.
    pub fn new(suite: Suite, key_and_salt: &[u8]) -> Result<MasterKey, KeyError> {
        let mut bytes = [0; MASTER_KEY_BYTES_MAX];
        let actual = key_and_salt.len();
        if actual != suite.key_bytes() + suite.salt_bytes() {
            return Err(KeyError { suite, actual });
        }
        bytes[..actual].copy_from_slice(key_and_salt);
        Ok(MasterKey { suite, bytes })
    }

    /// A new key from bytes of a cryptographic random generator, of which the suite takes as many as it needs. The same
    /// bytes for two keys undo the protection of both.
    #[must_use]
    pub fn from_random(suite: Suite, random: &[u8; MASTER_KEY_BYTES_MAX]) -> MasterKey {
        let mut bytes = *random;
        bytes[suite.key_bytes() + suite.salt_bytes()..].fill(0);
        MasterKey { suite, bytes }
    }

    /// The key's suite.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Key and salt, for SDP and for a store that outlives the process. Secret.
    #[must_use]
    pub fn expose_secret(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes() + self.suite.salt_bytes()]
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes()]
    }

    pub(super) fn salt(&self) -> &[u8] {
        &self.expose_secret()[self.suite.key_bytes()..]
    }
}

impl PartialEq for MasterKey {
    /// Takes the same time wherever the keys differ.
    fn eq(&self, other: &MasterKey) -> bool {
        self.suite == other.suite && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for MasterKey {}

impl Drop for MasterKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({}, secret)", self.suite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_wrong_length_is_refused() {
        for suite in Suite::ALL {
            let right = suite.key_bytes() + suite.salt_bytes();
            for actual in (0..=MASTER_KEY_BYTES_MAX + 1).filter(|&length| length != right) {
                let refused = MasterKey::new(suite, &vec![1; actual]);
                assert_eq!(refused, Err(KeyError { suite, actual }));
            }
            assert_eq!(
                MasterKey::new(suite, &vec![1; right])
                    .unwrap()
                    .expose_secret(),
                vec![1; right]
            );
        }
        let refused = KeyError {
            suite: Suite::AeadAes128Gcm,
            actual: 30,
        };
        assert_eq!(
            refused.to_string(),
            "key and salt of 30 bytes, AEAD_AES_128_GCM takes 28"
        );
    }

    #[test]
    fn a_key_from_random_bytes_takes_what_it_needs_and_keeps_nothing_else() {
        let random = std::array::from_fn(|at| at as u8 + 1);
        for suite in Suite::ALL {
            let key = MasterKey::from_random(suite, &random);
            assert_eq!(key, MasterKey::new(suite, key.expose_secret()).unwrap());
            assert_eq!(
                key.expose_secret(),
                &random[..suite.key_bytes() + suite.salt_bytes()]
            );
        }
    }

    #[test]
    fn debug_output_has_no_secret() {
        let key = MasterKey::from_random(Suite::AeadAes128Gcm, &[0xa5; MASTER_KEY_BYTES_MAX]);
        assert_eq!(format!("{key:?}"), "MasterKey(AEAD_AES_128_GCM, secret)");
    }
}
