//! AES in counter mode with HMAC-SHA1 (RFC 3711, sections 4.1.1 and 4.2.1; RFC 6188 for AES-256).

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use zeroize::Zeroizing;

use crate::Forged;
use crate::derive::SessionKeys;
use crate::keystream::AesKey;
use threadbare_rtp_types::id::Ssrc;

/// Encryption and authentication of one protocol.
pub(crate) struct CounterMode {
    cipher: AesKey,
    salt: Zeroizing<[u8; 14]>,
    mac: Hmac<Sha1>,
    pub(crate) tag_bytes: usize,
}

impl CounterMode {
    pub(crate) fn new(keys: &SessionKeys, tag_bytes: usize) -> CounterMode {
        CounterMode {
            cipher: AesKey::new(keys.cipher()),
            salt: keys.salt.clone(),
            mac: Hmac::new_from_slice(keys.auth.as_ref()).expect("HMAC takes keys of any length"),
            tag_bytes,
        }
    }

    /// Encrypts or decrypts, which is the same operation.
    pub(crate) fn apply(&self, ssrc: Ssrc, index: u64, data: &mut [u8]) {
        self.cipher.apply_keystream(&self.iv(ssrc, index), data);
    }

    /// Writes the tag of `packet` followed by `behind` to `tag`.
    pub(crate) fn tag(&self, packet: &[u8], behind: &[u8], tag: &mut [u8]) {
        let mac = self.mac.clone().chain_update(packet).chain_update(behind);
        // RFC 3711, section 4.2: the tag is the leftmost part.
        tag.copy_from_slice(&mac.finalize().into_bytes()[..self.tag_bytes]);
    }

    /// Compares a tag in constant time.
    pub(crate) fn verify(&self, packet: &[u8], behind: &[u8], tag: &[u8]) -> Result<(), Forged> {
        let mac = self.mac.clone().chain_update(packet).chain_update(behind);
        mac.verify_truncated_left(tag).map_err(|_| Forged)
    }

    /// RFC 3711, section 4.1.1: IV = (k_s * 2^16) XOR (SSRC * 2^64) XOR (i * 2^16).
    fn iv(&self, ssrc: Ssrc, index: u64) -> [u8; 16] {
        let mut salt = [0; 16];
        salt[..14].copy_from_slice(self.salt.as_ref());
        let iv = u128::from_be_bytes(salt) ^ u128::from(ssrc.0) << 64 ^ u128::from(index) << 16;
        iv.to_be_bytes()
    }
}
