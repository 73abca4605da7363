//! The crypto suites: names and lengths.

use std::fmt;

/// A crypto suite: cipher, authentication and the lengths of keys and tags, under the name in SDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES_CM_128_HMAC_SHA1_80 (RFC 4568, section 6.2.1).
    AesCm128HmacSha1_80,
    /// AES_CM_128_HMAC_SHA1_32 (RFC 4568, section 6.2.2).
    AesCm128HmacSha1_32,
    /// AES_256_CM_HMAC_SHA1_80 (RFC 6188, section 4).
    AesCm256HmacSha1_80,
    /// AEAD_AES_128_GCM (RFC 7714, section 14.1).
    AeadAes128Gcm,
    /// AEAD_AES_256_GCM (RFC 7714, section 14.1).
    AeadAes256Gcm,
}

impl Suite {
    /// All suites.
    pub const ALL: [Suite; 5] = [
        Suite::AesCm128HmacSha1_80,
        Suite::AesCm128HmacSha1_32,
        Suite::AesCm256HmacSha1_80,
        Suite::AeadAes128Gcm,
        Suite::AeadAes256Gcm,
    ];

    /// Returns the name in SDP.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Suite::AesCm128HmacSha1_80 => "AES_CM_128_HMAC_SHA1_80",
            Suite::AesCm128HmacSha1_32 => "AES_CM_128_HMAC_SHA1_32",
            Suite::AesCm256HmacSha1_80 => "AES_256_CM_HMAC_SHA1_80",
            Suite::AeadAes128Gcm => "AEAD_AES_128_GCM",
            Suite::AeadAes256Gcm => "AEAD_AES_256_GCM",
        }
    }

    /// Returns the suite of this name, ignoring case, as ABNF literals do (RFC 5234, section 2.3).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Suite> {
        Suite::ALL
            .into_iter()
            .find(|suite| suite.name().eq_ignore_ascii_case(name))
    }

    /// Returns the length of the master key and of the cipher's key, in bytes.
    #[must_use]
    pub fn key_bytes(self) -> usize {
        match self {
            Suite::AesCm128HmacSha1_80 | Suite::AesCm128HmacSha1_32 | Suite::AeadAes128Gcm => 16,
            Suite::AesCm256HmacSha1_80 | Suite::AeadAes256Gcm => 32,
        }
    }

    /// Returns the length of the master salt and of the session salt, in bytes.
    #[must_use]
    pub fn salt_bytes(self) -> usize {
        if self.is_aead() { 12 } else { 14 }
    }

    /// Returns the length of the authentication tag of an SRTP packet, in bytes.
    #[must_use]
    pub fn rtp_tag_bytes(self) -> usize {
        match self {
            Suite::AesCm128HmacSha1_80 | Suite::AesCm256HmacSha1_80 => 10,
            Suite::AesCm128HmacSha1_32 => 4,
            Suite::AeadAes128Gcm | Suite::AeadAes256Gcm => 16,
        }
    }

    /// Returns the length of the authentication tag of an SRTCP packet, in bytes. It is 80 bits for AES_CM_128_HMAC_SHA1_32, too
    /// (RFC 4568, section 6.2.2).
    #[must_use]
    pub fn rtcp_tag_bytes(self) -> usize {
        if self.is_aead() { 16 } else { 10 }
    }

    /// Whether the cipher authenticates what it encrypts, without an HMAC.
    #[must_use]
    pub fn is_aead(self) -> bool {
        matches!(self, Suite::AeadAes128Gcm | Suite::AeadAes256Gcm)
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
