//! Encrypts the states of calls for etcd, because they contain SRTP keys. The cipher is XChaCha20-Poly1305
//! (draft-irtf-cfrg-xchacha-03), with a key that is derived from the cluster's key. Nonces are random; with 24 bytes, they do not
//! repeat. A state is bound to its call, so that an attacker who can write to etcd cannot swap the states of calls.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};
use threadbare_member::{CallName, Key, StreamName};

use super::key::ClusterKey;
use threadbare_process::system::random_bytes;

/// Encrypts and decrypts states of calls.
#[derive(Clone)]
pub(super) struct Seal(XChaCha20Poly1305);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    pub(super) fn new(key: &ClusterKey) -> Seal {
        let mut hash = Sha256::new();
        hash.update(PURPOSE);
        hash.update(key.0);
        Seal(XChaCha20Poly1305::new(&hash.finalize()))
    }

    /// Encrypts the state of a call for etcd.
    pub(super) fn seal(&self, service: &StreamName, call: &CallName, state: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        random_bytes(&mut nonce);
        let place = Key::State(service.clone(), call.clone()).path();
        let payload = Payload {
            msg: state,
            aad: place.as_bytes(),
        };
        // This fails only for a state of 256 GB.
        let sealed = self.0.encrypt(XNonce::from_slice(&nonce), payload);
        [&[VERSION][..], &nonce, &sealed.unwrap_or_default()].concat()
    }

    /// Decrypts a state. `None`: it is not a state of this call, or was encrypted with another key.
    pub(super) fn open(
        &self,
        service: &StreamName,
        call: &CallName,
        sealed: &[u8],
    ) -> Option<Vec<u8>> {
        let (&version, sealed) = sealed.split_first()?;
        let (nonce, sealed) = sealed.split_at_checked(NONCE_BYTES)?;
        let place = Key::State(service.clone(), call.clone()).path();
        let payload = Payload {
            msg: sealed,
            aad: place.as_bytes(),
        };
        let opened = self.0.decrypt(XNonce::from_slice(nonce), payload);
        opened.ok().filter(|_| version == VERSION)
    }
}

/// Context of the key derivation. No other key is derived with this text.
const PURPOSE: &[u8] = b"threadbare: states of calls, version 1\0";
const VERSION: u8 = 1;
const NONCE_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_decrypted_only_for_its_call_and_with_its_key() {
        let seal = Seal::new(&ClusterKey([7; 32]));
        let (service, call) = (StreamName::from("service:a"), CallName::from("c"));
        let sealed = seal.seal(&service, &call, b"inline:secret");
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        let opened = seal.open(&service, &call, &sealed);
        assert_eq!(opened.as_deref(), Some(&b"inline:secret"[..]));
        assert_ne!(seal.seal(&service, &call, b"inline:secret"), sealed);
        let other = Seal::new(&ClusterKey([8; 32]));
        assert_eq!(other.open(&service, &call, &sealed), None);
        assert_eq!(seal.open(&"service:b".into(), &call, &sealed), None);
        assert_eq!(seal.open(&service, &"d".into(), &sealed), None);
        for at in 0..sealed.len() {
            let mut odd = sealed.clone();
            odd[at] ^= 1;
            assert_eq!(seal.open(&service, &call, &odd), None, "byte {at}");
            assert_eq!(
                seal.open(&service, &call, &sealed[..at]),
                None,
                "{at} bytes"
            );
        }
    }
}
