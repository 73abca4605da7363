//! AES in counter mode: a keystream (RFC 3711, section 4.1.1). Key derivation uses it, too.

use aes::{Aes128Enc, Aes256Enc};
use ctr::CtrCore;
use ctr::cipher::{InnerIvInit, KeyInit, StreamCipherCore};
use ctr::flavors::Ctr128BE;

/// An AES key that is expanded for encryption. Counter mode does not need decryption.
pub(crate) enum AesKey {
    Aes128(Aes128Enc),
    Aes256(Aes256Enc),
}

impl AesKey {
    /// Expands a key of 16 or 32 bytes, the lengths of all suites.
    pub(crate) fn new(key: &[u8]) -> AesKey {
        match <&[u8; 16]>::try_from(key) {
            Ok(key) => AesKey::Aes128(Aes128Enc::new(key.into())),
            Err(_) => AesKey::Aes256(
                Aes256Enc::new_from_slice(key).expect("suites have keys of 16 or 32 bytes"),
            ),
        }
    }

    /// XORs `data` with the keystream that starts at the counter block `iv`.
    pub(crate) fn apply_keystream(&self, iv: &[u8; 16], data: &mut [u8]) {
        match self {
            AesKey::Aes128(key) => CtrCore::<_, Ctr128BE>::inner_iv_init(key, iv.into())
                .apply_keystream_partial(data.into()),
            AesKey::Aes256(key) => CtrCore::<_, Ctr128BE>::inner_iv_init(key, iv.into())
                .apply_keystream_partial(data.into()),
        }
    }
}
