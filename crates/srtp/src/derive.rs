//! Session keys from a master key (RFC 3711, section 4.3; key derivation rate 0: once).

use zeroize::Zeroizing;

use crate::keystream::AesKey;
use crate::{MasterKey, Suite};

/// The protocol that keys are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rtp,
    Rtcp,
}

/// The session keys of one protocol. Each key is as long as the suite requires; the rest of its array is zero.
pub(crate) struct SessionKeys {
    pub(crate) suite: Suite,
    pub(crate) cipher: Zeroizing<[u8; 32]>,
    pub(crate) salt: Zeroizing<[u8; 14]>,
    /// Key of HMAC-SHA1. Suites with GCM do not use it.
    pub(crate) auth: Zeroizing<[u8; 20]>,
}

impl SessionKeys {
    /// Derives keys by the labels of RFC 3711, section 4.3.2.
    pub(crate) fn derive(master: &MasterKey, protocol: Protocol) -> SessionKeys {
        let prf = AesKey::new(master.expose_key());
        let (cipher, auth, salt) = match protocol {
            Protocol::Rtp => (0, 1, 2),
            Protocol::Rtcp => (3, 4, 5),
        };
        let mut keys = SessionKeys {
            suite: master.suite(),
            cipher: Zeroizing::default(),
            salt: Zeroizing::default(),
            auth: Zeroizing::default(),
        };
        let (key_bytes, salt_bytes) = (master.expose_key().len(), master.expose_salt().len());
        generate(
            &prf,
            master.expose_salt(),
            cipher,
            &mut keys.cipher[..key_bytes],
        );
        generate(
            &prf,
            master.expose_salt(),
            salt,
            &mut keys.salt[..salt_bytes],
        );
        generate(&prf, master.expose_salt(), auth, keys.auth.as_mut());
        keys
    }

    /// Returns the cipher's key.
    pub(crate) fn cipher(&self) -> &[u8] {
        &self.cipher[..self.suite.key_bytes()]
    }
}

/// Derives a key by RFC 3711, sections 4.3.1 and 4.3.3. It is the keystream of AES in counter mode for the IV x * 2^16. Here, x
/// is key_id XOR master_salt, of 112 bits, and key_id is the label followed by 48 bits of zero. In RFC 7714, section 11, a salt
/// of 96 bits is followed by 16 zero bits.
pub(crate) fn generate(prf: &AesKey, master_salt: &[u8], label: u8, key: &mut [u8]) {
    let mut iv = Zeroizing::new([0; 16]);
    iv[..master_salt.len()].copy_from_slice(master_salt);
    iv[7] ^= label;
    key.fill(0);
    prf.apply_keystream(&iv, key);
}
