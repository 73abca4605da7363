//! Master keys.

use std::fmt;

use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroize;

use super::Suite;

/// Length of the longest master key with its salt, in bytes: that of AES_256_CM_HMAC_SHA1_80.
pub const MASTER_KEY_BYTES_MAX: usize = 46;

/// Length of the longest identifier of a master key, in bytes (RFC 4568, section 6.1).
pub const MKI_BYTES_MAX: usize = 128;

/// Identifier of a master key (MKI). Each packet that the key protects contains the identifier (RFC 3711, section 3.1). If it is
/// empty, packets have none.
///
/// In SDP, the identifier is a decimal number, and senders use small numbers. So only the last bytes are stored; the bytes before
/// them are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mki {
    last: [u8; NUMBER_BYTES],
    length: u8,
}

const NUMBER_BYTES: usize = 16;

impl Mki {
    /// Creates an identifier of these bytes. Returns `None` if they are more than [`MKI_BYTES_MAX`], or if their number has more
    /// than 128 bits.
    #[must_use]
    pub fn new(identifier: &[u8]) -> Option<Mki> {
        let zeros = identifier.len().saturating_sub(NUMBER_BYTES);
        let (zeros, number) = identifier.split_at(zeros);
        let fits = identifier.len() <= MKI_BYTES_MAX && zeros.iter().all(|byte| *byte == 0);
        let length = u8::try_from(identifier.len()).ok().filter(|_| fits)?;
        let mut last = [0; NUMBER_BYTES];
        last[NUMBER_BYTES - number.len()..].copy_from_slice(number);
        Some(Mki { last, length })
    }

    /// Creates an identifier with the number `value` in `length` bytes, most significant first, as in SDP. Returns `None` if the
    /// number does not fit.
    #[must_use]
    pub fn of_number(value: u128, length: usize) -> Option<Mki> {
        let last = value.to_be_bytes();
        let unused = NUMBER_BYTES.saturating_sub(length);
        let fits = length <= MKI_BYTES_MAX && last[..unused].iter().all(|byte| *byte == 0);
        let length = u8::try_from(length).ok().filter(|_| fits)?;
        Some(Mki { last, length })
    }

    /// Returns the identifier as packets contain it.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.write(&mut bytes);
        bytes
    }

    /// Returns the length of the identifier in a packet, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }

    /// Writes the identifier into a packet, at `place`, which must have [`len`](Self::len) bytes.
    pub fn write(&self, place: &mut [u8]) {
        let number = self.len().min(NUMBER_BYTES);
        let (zeros, last) = place.split_at_mut(self.len() - number);
        zeros.fill(0);
        last.copy_from_slice(&self.last[NUMBER_BYTES - number..]);
    }

    /// Whether `place` of a packet contains the identifier.
    #[must_use]
    pub fn is_at(&self, place: &[u8]) -> bool {
        Mki::new(place) == Some(*self)
    }

    /// Returns the identifier as a number.
    #[must_use]
    pub fn number(&self) -> u128 {
        u128::from_be_bytes(self.last)
    }

    /// Whether packets have no identifier.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// A master key has the wrong length for its suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("key and salt have {actual} bytes, but {suite} needs {}", .suite.key_bytes() + .suite.salt_bytes())]
pub struct KeyError {
    /// The suite of the key.
    pub suite: Suite,
    /// Bytes of key and salt.
    pub actual: usize,
}

/// The master key and master salt of one direction, with their suite. They are secret: debug output contains only the suite, and
/// the bytes are overwritten when the key is dropped.
#[derive(Clone)]
pub struct MasterKey {
    suite: Suite,
    bytes: [u8; MASTER_KEY_BYTES_MAX],
    mki: Mki,
}

impl MasterKey {
    /// Creates a key from `key_and_salt`: the key followed by the salt, as in SDP (RFC 4568, section 6.1).
    ///
    /// # Errors
    /// Fails if the length does not match the suite.
    pub fn new(suite: Suite, key_and_salt: &[u8]) -> Result<MasterKey, KeyError> {
        let mut bytes = [0; MASTER_KEY_BYTES_MAX];
        let actual = key_and_salt.len();
        if actual != suite.key_bytes() + suite.salt_bytes() {
            return Err(KeyError { suite, actual });
        }
        bytes[..actual].copy_from_slice(key_and_salt);
        let mki = Mki::default();
        Ok(MasterKey { suite, bytes, mki })
    }

    /// Creates a key from the bytes of a cryptographic random generator, of which the suite uses as many as it needs. Using the
    /// same bytes for two keys would break the protection of both.
    #[must_use]
    pub fn from_random(suite: Suite, random: &[u8; MASTER_KEY_BYTES_MAX]) -> MasterKey {
        let mut bytes = *random;
        bytes[suite.key_bytes() + suite.salt_bytes()..].fill(0);
        let mki = Mki::default();
        MasterKey { suite, bytes, mki }
    }

    /// Returns the same key, with this identifier in its packets.
    #[must_use]
    pub fn with_mki(mut self, mki: Mki) -> MasterKey {
        self.mki = mki;
        self
    }

    /// Returns the identifier that packets contain.
    #[must_use]
    pub fn mki(&self) -> Mki {
        self.mki
    }

    /// Returns the key's suite.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Returns key and salt, for SDP and for a store that outlives the process. They are secret.
    #[must_use]
    pub fn expose_secret(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes() + self.suite.salt_bytes()]
    }

    /// Returns the key alone. It is secret.
    #[must_use]
    pub fn expose_key(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes()]
    }

    /// Returns the salt alone. It is secret.
    #[must_use]
    pub fn expose_salt(&self) -> &[u8] {
        &self.expose_secret()[self.suite.key_bytes()..]
    }
}

impl PartialEq for MasterKey {
    /// Compares in constant time, wherever the keys differ.
    fn eq(&self, other: &MasterKey) -> bool {
        let is_same = (self.suite, self.mki) == (other.suite, other.mki);
        is_same && bool::from(self.bytes.ct_eq(&other.bytes))
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
            "key and salt have 30 bytes, but AEAD_AES_128_GCM needs 28"
        );
    }

    #[test]
    fn key_from_random_bytes_uses_only_as_many_bytes_as_the_suite_needs() {
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
    fn key_identifiers_are_numbers_of_a_given_length() {
        // RFC 4568, section 6.1: "1:4" is the number 1 in four bytes.
        let one = Mki::of_number(1, 4).expect("it fits");
        assert_eq!((one.to_vec(), one.number()), (vec![0, 0, 0, 1], 1));
        assert_eq!(Mki::new(&[0, 0, 0, 1]), Some(one));
        assert!(Mki::default().is_empty() && !one.is_empty());
        let long = Mki::of_number(u128::MAX, MKI_BYTES_MAX).expect("it fits");
        assert_eq!(long.number(), u128::MAX);
        assert_eq!(Mki::new(&long.to_vec()), Some(long));
        assert_eq!(Mki::of_number(256, 1), None);
        assert_eq!(Mki::of_number(1, MKI_BYTES_MAX + 1), None);
        assert_eq!(Mki::new(&[0; MKI_BYTES_MAX + 1]), None);
        let key = || MasterKey::from_random(Suite::AeadAes128Gcm, &[1; MASTER_KEY_BYTES_MAX]);
        assert_ne!(key().with_mki(one), key());
    }

    #[test]
    fn debug_output_has_no_secret() {
        let key = MasterKey::from_random(Suite::AeadAes128Gcm, &[0xa5; MASTER_KEY_BYTES_MAX]);
        assert_eq!(format!("{key:?}"), "MasterKey(AEAD_AES_128_GCM, secret)");
    }
}
