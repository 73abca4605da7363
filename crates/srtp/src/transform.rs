//! Protects and unprotects packets with the session keys of one protocol.
//!
//! ```text
//!                     | in the clear |                                 | the tag covers
//! SRTP, counter mode  | header       | payload  | MKI | tag            | header, payload, then the rollover counter
//! SRTP, GCM           | header       | payload  | tag | MKI            | header, payload
//! SRTCP, counter mode | 8 bytes      | the rest | E, index | MKI | tag | all before the MKI
//! SRTCP, GCM          | 8 bytes      | the rest | tag | E, index | MKI | 8 bytes, E and index, the rest
//! ```
//!
//! RFC 3711, sections 3.1 and 3.4; RFC 7714, sections 8 and 9. "E" says whether the rest is encrypted. "MKI" is the key's
//! identifier, if it has one; the tag does not cover it.

use crate::aead::{GCM_TAG_BYTES, Gcm};
use crate::counter::CounterMode;
use crate::derive::{Protocol, SessionKeys};
use crate::header::{RTCP_CLEAR_BYTES, RtpHeader, word};
use crate::sources::RTCP_INDEX_MAX;
use crate::{Forged, MasterKey, Mki, PacketIndex};
use threadbare_rtp_types::id::Ssrc;

/// E and index, in the word that SRTCP adds to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RtcpWord(u32);

impl RtcpWord {
    pub(crate) fn new(index: u32, encrypted: bool) -> RtcpWord {
        RtcpWord(u32::from(encrypted) << 31 | index & RTCP_INDEX_MAX)
    }

    pub(crate) fn index(self) -> u32 {
        self.0 & RTCP_INDEX_MAX
    }

    fn is_encrypted(self) -> bool {
        self.0 > RTCP_INDEX_MAX
    }

    fn bytes(self) -> [u8; WORD_BYTES] {
        self.0.to_be_bytes()
    }

    /// Returns the start of the encrypted part in a packet of this many bytes.
    fn clear_bytes(self, bytes: usize) -> usize {
        if self.is_encrypted() {
            RTCP_CLEAR_BYTES
        } else {
            bytes
        }
    }
}

/// The protection of one protocol.
pub(crate) struct Transform {
    cipher: Cipher,
    mki: Mki,
}

enum Cipher {
    Counter(CounterMode),
    Gcm(Gcm),
}

impl Transform {
    /// Derives the session keys. They are on the heap, because moving a key would leave a copy that is never overwritten.
    pub(crate) fn new(master: &MasterKey, protocol: Protocol) -> Box<Transform> {
        let keys = SessionKeys::derive(master, protocol);
        Box::new(Transform::from_session_keys(&keys, protocol, master.mki()))
    }

    pub(crate) fn from_session_keys(keys: &SessionKeys, protocol: Protocol, mki: Mki) -> Transform {
        let tag_bytes = match protocol {
            Protocol::Rtp => keys.suite.rtp_tag_bytes(),
            Protocol::Rtcp => keys.suite.rtcp_tag_bytes(),
        };
        let cipher = if keys.suite.is_aead() {
            Cipher::Gcm(Gcm::new(keys))
        } else {
            Cipher::Counter(CounterMode::new(keys, tag_bytes))
        };
        Transform { cipher, mki }
    }

    /// Returns the number of bytes that protection adds to an RTP packet.
    pub(crate) fn rtp_trailer(&self) -> usize {
        let tag_bytes = match &self.cipher {
            Cipher::Counter(counter) => counter.tag_bytes,
            Cipher::Gcm(_) => GCM_TAG_BYTES,
        };
        tag_bytes + self.mki.len()
    }

    /// Returns the number of bytes that protection adds to an RTCP packet.
    pub(crate) fn rtcp_trailer(&self) -> usize {
        self.rtp_trailer() + WORD_BYTES
    }

    /// Protects the packet at the start of `buffer`. The buffer ends with room for the trailer.
    pub(crate) fn seal_rtp(&self, buffer: &mut [u8], header: RtpHeader, index: PacketIndex) {
        let (packet, trailer) = buffer.split_at_mut(buffer.len() - self.rtp_trailer());
        match &self.cipher {
            Cipher::Counter(counter) => {
                let tag = self.write_mki_first(trailer);
                counter.apply(header.ssrc, index.get(), &mut packet[header.bytes..]);
                counter.tag(packet, &index.rollover().to_be_bytes(), tag);
            }
            Cipher::Gcm(gcm) => {
                let (tag, mki) = trailer.split_at_mut(GCM_TAG_BYTES);
                self.mki.write(mki);
                let (clear, payload) = packet.split_at_mut(header.bytes);
                tag.copy_from_slice(&gcm.seal(header.ssrc, index.get(), clear, payload));
            }
        }
    }

    /// Checks and decrypts a packet in place. `packet` ends before the trailer.
    pub(crate) fn open_rtp(
        &self,
        packet: &mut [u8],
        header: RtpHeader,
        index: PacketIndex,
    ) -> Result<(), Forged> {
        let (packet, trailer) = packet.split_at_mut(packet.len() - self.rtp_trailer());
        match &self.cipher {
            Cipher::Counter(counter) => {
                let tag = self.check_mki_first(trailer)?;
                counter.verify(packet, &index.rollover().to_be_bytes(), tag)?;
                counter.apply(header.ssrc, index.get(), &mut packet[header.bytes..]);
                Ok(())
            }
            Cipher::Gcm(gcm) => {
                let (tag, mki) = trailer.split_at(GCM_TAG_BYTES);
                self.check_mki(mki)?;
                let (clear, payload) = packet.split_at_mut(header.bytes);
                gcm.open(header.ssrc, index.get(), clear, payload, gcm_tag(tag))
            }
        }
    }

    /// Protects the packet at the start of `buffer`. The buffer ends with room for the trailer.
    pub(crate) fn seal_rtcp(&self, buffer: &mut [u8], ssrc: Ssrc, word: RtcpWord) {
        let bytes = buffer.len() - self.rtcp_trailer();
        let (clear_bytes, index) = (word.clear_bytes(bytes), u64::from(word.index()));
        match &self.cipher {
            Cipher::Counter(counter) => {
                let (packet, trailer) = buffer.split_at_mut(bytes + WORD_BYTES);
                let tag = self.write_mki_first(trailer);
                counter.apply(ssrc, index, &mut packet[clear_bytes..bytes]);
                packet[bytes..].copy_from_slice(&word.bytes());
                counter.tag(packet, &[], tag);
            }
            Cipher::Gcm(gcm) => {
                let (buffer, mki) = buffer.split_at_mut(bytes + GCM_TAG_BYTES + WORD_BYTES);
                self.mki.write(mki);
                let tag = with_associated(buffer, bytes, word, |associated, rest| {
                    gcm.seal(ssrc, index, associated, rest)
                });
                buffer[bytes..][..GCM_TAG_BYTES].copy_from_slice(&tag);
                buffer[bytes + GCM_TAG_BYTES..].copy_from_slice(&word.bytes());
            }
        }
    }

    /// E and index of a packet that is at least as long as its trailer.
    pub(crate) fn rtcp_word(&self, packet: &[u8]) -> RtcpWord {
        let tag_bytes = match &self.cipher {
            Cipher::Counter(counter) => counter.tag_bytes,
            Cipher::Gcm(_) => 0,
        };
        let behind = tag_bytes + self.mki.len();
        RtcpWord(word(packet, packet.len() - behind - WORD_BYTES))
    }

    /// Checks and decrypts a packet in place. `packet` ends before the trailer.
    pub(crate) fn open_rtcp(
        &self,
        packet: &mut [u8],
        ssrc: Ssrc,
        word: RtcpWord,
    ) -> Result<(), Forged> {
        let bytes = packet.len() - self.rtcp_trailer();
        let (clear_bytes, index) = (word.clear_bytes(bytes), u64::from(word.index()));
        match &self.cipher {
            Cipher::Counter(counter) => {
                let (packet, trailer) = packet.split_at_mut(bytes + WORD_BYTES);
                let tag = self.check_mki_first(trailer)?;
                counter.verify(packet, &[], tag)?;
                counter.apply(ssrc, index, &mut packet[clear_bytes..bytes]);
                Ok(())
            }
            Cipher::Gcm(gcm) => {
                let (packet, mki) = packet.split_at_mut(bytes + GCM_TAG_BYTES + WORD_BYTES);
                self.check_mki(mki)?;
                let tag = gcm_tag(&packet[bytes..][..GCM_TAG_BYTES]);
                with_associated(packet, bytes, word, |associated, rest| {
                    gcm.open(ssrc, index, associated, rest, tag)
                })
            }
        }
    }

    /// Writes the identifier to the start of a trailer, and returns the rest.
    fn write_mki_first<'a>(&self, trailer: &'a mut [u8]) -> &'a mut [u8] {
        let (mki, tag) = trailer.split_at_mut(self.mki.len());
        self.mki.write(mki);
        tag
    }

    /// Checks the identifier at the start of a trailer, and returns the rest.
    fn check_mki_first<'a>(&self, trailer: &'a [u8]) -> Result<&'a [u8], Forged> {
        let (mki, tag) = trailer.split_at(self.mki.len());
        self.check_mki(mki).map(|()| tag)
    }

    /// Refuses a packet with another identifier, because that belongs to another key. The comparison need not take constant time,
    /// because identifiers are public.
    fn check_mki(&self, mki: &[u8]) -> Result<(), Forged> {
        if self.mki.is_at(mki) {
            Ok(())
        } else {
            Err(Forged)
        }
    }
}

/// Calls `work` with the part that GCM only authenticates, and the part that it encrypts (RFC 7714, sections 9.2 and 9.3). A
/// packet without encryption has only the first part. The packet is in the first `bytes` of the buffer.
fn with_associated<T>(
    buffer: &mut [u8],
    bytes: usize,
    word: RtcpWord,
    work: impl FnOnce(&[u8], &mut [u8]) -> T,
) -> T {
    if word.is_encrypted() {
        let (clear, rest) = buffer[..bytes].split_at_mut(RTCP_CLEAR_BYTES);
        let mut associated = [0; RTCP_CLEAR_BYTES + WORD_BYTES];
        associated[..RTCP_CLEAR_BYTES].copy_from_slice(clear);
        associated[RTCP_CLEAR_BYTES..].copy_from_slice(&word.bytes());
        return work(&associated, rest);
    }
    // For a moment, the word must follow the packet, in the place of the tag.
    let behind = &mut buffer[bytes..bytes + WORD_BYTES];
    let mut kept = [0; WORD_BYTES];
    kept.copy_from_slice(behind);
    behind.copy_from_slice(&word.bytes());
    let result = work(&buffer[..bytes + WORD_BYTES], &mut []);
    buffer[bytes..bytes + WORD_BYTES].copy_from_slice(&kept);
    result
}

fn gcm_tag(bytes: &[u8]) -> [u8; GCM_TAG_BYTES] {
    let mut tag = [0; GCM_TAG_BYTES];
    tag.copy_from_slice(bytes);
    tag
}

/// Bytes of E and index.
const WORD_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use aes::{Aes128Enc, Aes256Enc};
    use aes_gcm::AesGcm;
    use aes_gcm::aead::consts::U12;
    use sha1::block_api::Sha1Core;
    use zeroize::ZeroizeOnDrop;

    use super::*;

    #[test]
    fn keys_are_overwritten_on_drop() {
        fn check<T: ZeroizeOnDrop>() {}
        check::<Aes128Enc>();
        check::<Aes256Enc>();
        check::<AesGcm<Aes128Enc, U12>>();
        check::<AesGcm<Aes256Enc, U12>>();
        // The two states in which HMAC stores its key.
        check::<Sha1Core>();
    }

    #[test]
    fn keys_of_a_direction_take_little_memory() {
        // A call of two parties has four directions, each with RTP and RTCP. Together they take 30 KiB.
        let bytes = size_of::<Transform>();
        assert!(bytes <= 1280, "{bytes}");
    }
}
