//! AES in Galois/counter mode (RFC 7714).

use aes::{Aes128Enc, Aes256Enc};
use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{AeadInOut, KeyInit};
use zeroize::Zeroizing;

use crate::Forged;
use crate::derive::SessionKeys;
use threadbare_rtp_types::id::Ssrc;

enum Key {
    Aes128(AesGcm<Aes128Enc, U12>),
    Aes256(AesGcm<Aes256Enc, U12>),
}

/// Encryption and authentication of one protocol.
pub(crate) struct Gcm {
    key: Key,
    salt: Zeroizing<[u8; 12]>,
}

impl Gcm {
    pub(crate) fn new(keys: &SessionKeys) -> Gcm {
        let key = match <&[u8; 16]>::try_from(keys.cipher()) {
            Ok(key) => Key::Aes128(AesGcm::new(key.into())),
            Err(_) => Key::Aes256(
                AesGcm::new_from_slice(keys.cipher()).expect("suites have keys of 16 or 32 bytes"),
            ),
        };
        let mut salt = Zeroizing::new([0; 12]);
        salt.copy_from_slice(&keys.salt[..12]);
        Gcm { key, salt }
    }

    /// Encrypts `data` and computes the tag over it and `associated`.
    pub(crate) fn seal(
        &self,
        ssrc: Ssrc,
        index: u64,
        associated: &[u8],
        data: &mut [u8],
    ) -> [u8; GCM_TAG_BYTES] {
        let nonce = self.nonce(ssrc, index).into();
        let tag = match &self.key {
            Key::Aes128(key) => key.encrypt_inout_detached(&nonce, associated, data.into()),
            Key::Aes256(key) => key.encrypt_inout_detached(&nonce, associated, data.into()),
        };
        // GCM's limit is 64 GiB (RFC 5116, section 5.1); that of a UDP datagram is 64 KiB.
        tag.expect("a packet is shorter than GCM's limit").into()
    }

    /// Decrypts `data` if the tag matches `data` and `associated`. Otherwise `data` stays unchanged.
    pub(crate) fn open(
        &self,
        ssrc: Ssrc,
        index: u64,
        associated: &[u8],
        data: &mut [u8],
        tag: [u8; GCM_TAG_BYTES],
    ) -> Result<(), Forged> {
        let (nonce, tag) = (self.nonce(ssrc, index).into(), tag.into());
        match &self.key {
            Key::Aes128(key) => key.decrypt_inout_detached(&nonce, associated, data.into(), &tag),
            Key::Aes256(key) => key.decrypt_inout_detached(&nonce, associated, data.into(), &tag),
        }
        .map_err(|_| Forged)
    }

    /// RFC 7714, sections 8.1 and 9.1: 16 bits of zero, SSRC and the packet's index of 48 bits (for SRTCP: 17 bits of zero and
    /// the index of 31), XOR the salt.
    fn nonce(&self, ssrc: Ssrc, index: u64) -> [u8; 12] {
        let mut salt = [0; 16];
        salt[4..].copy_from_slice(self.salt.as_ref());
        let nonce = u128::from_be_bytes(salt) ^ u128::from(ssrc.0) << 48 ^ u128::from(index);
        let mut out = [0; 12];
        out.copy_from_slice(&nonce.to_be_bytes()[4..]);
        out
    }
}

/// Bytes of the tag (RFC 7714, section 12.1: both suites have 16).
pub(crate) const GCM_TAG_BYTES: usize = 16;
