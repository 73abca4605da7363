//! SRTP and SRTCP (RFC 3711, 6188, 7714) with keys from SDP (RFC 4568): a transform of packets in place.
//!
//! A [`Sender`] protects packets under one master key, and a [`Receiver`] checks and decrypts packets under another. Each
//! direction of a call has its own key. Sender and receiver read the source (SSRC) and the sequence number from the packet. For
//! each SSRC, they track the rollover counter, the SRTCP index and the replay window.
//!
//! | suite | cipher | tag of SRTP, of SRTCP | specification |
//! |---|---|---|---|
//! | AES_CM_128_HMAC_SHA1_80 | AES-128, counter mode | 10, 10 bytes | RFC 3711 |
//! | AES_CM_128_HMAC_SHA1_32 | AES-128, counter mode | 4, 10 bytes | RFC 3711, 4568 |
//! | AES_256_CM_HMAC_SHA1_80 | AES-256, counter mode | 10, 10 bytes | RFC 6188 |
//! | AEAD_AES_128_GCM | AES-128, GCM | 16, 16 bytes | RFC 7714 |
//! | AEAD_AES_256_GCM | AES-256, GCM | 16, 16 bytes | RFC 7714 |
//!
//! A [`Protection`] combines a sender and a receiver for one party, with keys that change while the call runs.
//!
//! Each direction has one key, with an identifier ([`Mki`]) or without. Re-keying by a key derivation rate is not supported.
//! Memory is allocated only for a new SSRC. Randomness is a parameter ([`MasterKey::from_random`]).
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod aead;
mod counter;
mod derive;
#[doc(hidden)]
pub mod fuzzing;
mod header;
mod index;
mod keystream;
mod protection;
mod receiver;
mod sender;
mod sources;
mod transform;
#[cfg(test)]
mod vectors;

pub use index::PacketIndex;
pub use protection::{
    Keys, OLD_KEY_NS, OLD_KEY_NS_MAX, Protection, ProtectionState, ProtectionStats, Rollover,
    Unsaved,
};
pub use receiver::{ROLLOVER_MAX, ROLLOVERS_PER_PACKET, Receiver, UnprotectError};
pub use sender::{ProtectError, Sender};
pub use sources::{REPLAY_WINDOW, RestoreError, SOURCES_MAX, SourceError, SourceState};
pub use threadbare_rtp_types::srtp::{
    Crypto, CryptoError, KeyError, MASTER_KEY_BYTES_MAX, MKI_BYTES_MAX, MasterKey, Mki, Suite,
};

/// Maximum number of bytes that protection adds to an RTP packet: the tag of GCM, and the key's identifier.
pub const RTP_TRAILER_BYTES_MAX: usize = 16 + MKI_BYTES_MAX;

/// Maximum number of bytes that protection adds to an RTCP packet: as many as for RTP, and the word with the index.
pub const RTCP_TRAILER_BYTES_MAX: usize = RTP_TRAILER_BYTES_MAX + 4;

/// The packet is not authentic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Forged;
