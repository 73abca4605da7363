//! Keys of SRTP in a description (RFC 4568).

use std::fmt;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::document::{SdpError, Section};

/// `a=crypto:TAG SUITE KEYS [PARAMETERS]` (RFC 4568, section 9.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crypto {
    /// Differs among the lines of a medium; an answer repeats that of the line that it accepts.
    pub tag: u32,
    /// Such as `AES_CM_128_HMAC_SHA1_80`.
    pub suite: String,
    /// At least one.
    pub keys: Vec<CryptoKey>,
    /// Such as `UNENCRYPTED_SRTCP`.
    pub parameters: Vec<String>,
}

/// `inline:KEY[|LIFETIME][|MKI:LENGTH]` (RFC 4568, section 6.1).
#[derive(Clone, PartialEq, Eq)]
pub struct CryptoKey {
    /// Master key and salt, one behind the other. Their lengths depend on the suite.
    pub key_and_salt: Vec<u8>,
    /// Packets, as a power of 2 or a number, as it is written.
    pub lifetime: Option<String>,
    /// The master key identifier and its length in packets, bytes.
    pub mki: Option<(u128, u8)>,
}

impl fmt::Debug for CryptoKey {
    /// Keys stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.key_and_salt.len();
        write!(f, "CryptoKey({bytes} bytes)")
    }
}

/// Of a medium. There are some 20 suites.
pub const CRYPTOS_MAX: usize = 64;

/// Clients pad or do not: RFC 4568, section 6.1 leaves the padding to RFC 3548.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Crypto {
    /// The attribute's value. The key is padded only if `pad` says so.
    #[must_use]
    pub fn to_value(&self, pad: bool) -> String {
        let key = |key: &CryptoKey| {
            let mut text = format!("inline:{}", BASE64.encode(&key.key_and_salt));
            if !pad {
                text.truncate(text.trim_end_matches('=').len());
            }
            text.extend(key.lifetime.iter().map(|lifetime| format!("|{lifetime}")));
            text.extend(key.mki.iter().map(|(mki, len)| format!("|{mki}:{len}")));
            text
        };
        let keys: Vec<String> = self.keys.iter().map(key).collect();
        let mut fields = vec![self.tag.to_string(), self.suite.clone(), keys.join(";")];
        fields.extend(self.parameters.iter().cloned());
        fields.join(" ")
    }

    fn parse(value: &str) -> Option<Crypto> {
        let mut fields = value.split_whitespace();
        // "tag = 1*9DIGIT".
        let tag = fields.next().filter(|tag| tag.len() <= 9)?.parse().ok()?;
        let suite = fields.next()?.to_owned();
        let keys = fields.next()?.split(';').map(key);
        Some(Crypto {
            tag,
            suite,
            keys: keys.collect::<Option<_>>()?,
            parameters: fields.map(str::to_owned).collect(),
        })
    }
}

fn key(text: &str) -> Option<CryptoKey> {
    let (method, rest) = text.split_at_checked("inline:".len())?;
    let mut parts = rest.split('|');
    let key_and_salt = BASE64.decode(parts.next()?).ok()?;
    let mut key = CryptoKey {
        key_and_salt,
        lifetime: None,
        mki: None,
    };
    for part in parts {
        match part.split_once(':') {
            // "mki-length = 1*3DIGIT", at most 128 (section 9.2).
            Some((mki, len)) if key.mki.is_none() => {
                let len = len.parse().ok().filter(|len| (1..=128).contains(len))?;
                key.mki = Some((mki.parse().ok()?, len));
            }
            None if key.lifetime.is_none() && key.mki.is_none() => {
                key.lifetime = Some(part.to_owned())
            }
            _ => return None,
        }
    }
    (method.eq_ignore_ascii_case("inline:") && !key.key_and_salt.is_empty()).then_some(key)
}

impl Section {
    /// The lines `a=crypto` in order, which is that of preference.
    ///
    /// # Errors
    /// A line is malformed, or there are too many. The message has no key in it.
    pub fn cryptos(&self) -> Result<Vec<Crypto>, SdpError> {
        let values = self.attributes().filter(|(name, _)| *name == "crypto");
        let one = |(_, value): (&str, &str)| {
            let expected = "a=crypto:TAG SUITE inline:KEY, the key in base64";
            Crypto::parse(value).ok_or_else(|| SdpError::line(b"a=crypto:...", expected))
        };
        let all: Vec<Crypto> = values
            .take(CRYPTOS_MAX + 1)
            .map(one)
            .collect::<Result<_, _>>()?;
        match all.len() {
            ..=CRYPTOS_MAX => Ok(all),
            found => Err(SdpError::TooLarge {
                what: "a=crypto lines",
                found,
                allowed: CRYPTOS_MAX,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sdp;
    use super::*;

    fn cryptos(value: &str) -> Result<Vec<Crypto>, SdpError> {
        let text = format!("v=0\nm=audio 49170 RTP/SAVP 0\na=crypto:{value}\n");
        Sdp::parse(text.as_bytes()).expect(value).media[0].cryptos()
    }

    #[test]
    fn the_examples_of_the_rfc_are_read_and_written() {
        // Of RFC 4568: lifetime and MKI, several keys, session parameters.
        for value in [
            "1 AES_CM_128_HMAC_SHA1_80 inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz|2^20|1:4 FEC_ORDER=FEC_SRTP",
            "1 AES_CM_128_HMAC_SHA1_80 inline:d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj|2^20|1:32",
            "2 F8_128_HMAC_SHA1_80 inline:MTIzNDU2Nzg5QUJDREUwMTIzNDU2Nzg5QUJjZGVm|2^20|1:4;inline:QUJjZGVmMTIzNDU2Nzg5QUJDREUwMTIzNDU2Nzg5|2^20|2:4 FEC_ORDER=FEC_SRTP",
        ] {
            let found = cryptos(value).expect(value);
            assert_eq!(found[0].to_value(true), value);
            // "the 30 bytes of key and salt" of both suites (section 6.2).
            assert!(found[0].keys.iter().all(|key| key.key_and_salt.len() == 30));
        }
        let found = cryptos(
            "1 AES_CM_128_HMAC_SHA1_80 inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz|2^20|1:4",
        );
        let found = found.expect("a key");
        assert_eq!(
            found[0].keys[0].key_and_salt,
            b"YS___semctl () {\t220;}\n}\nunles"
        );
        assert_eq!(found[0].keys[0].mki, Some((1, 4)));
        assert!(!format!("{found:?}").contains("semctl"));
    }

    #[test]
    fn padding_is_taken_and_given_as_told() {
        for value in ["1 X inline:QQ==", "1 X inline:QQ"] {
            let found = cryptos(value).expect(value);
            assert_eq!(found[0].to_value(true), "1 X inline:QQ==");
            assert_eq!(found[0].to_value(false), "1 X inline:QQ");
        }
    }

    #[test]
    fn malformed_keys_are_refused_without_being_shown() {
        for value in [
            "",
            "1",
            "1 X",
            "x X inline:QQ",
            "1234567890 X inline:QQ",
            "1 X outline:QQ",
            "1 X inline:",
            "1 X inline:$$",
            "1 X inline:QQ|1:0",
            "1 X inline:QQ|1:200",
            "1 X inline:QQ|2^20|2^20",
            "1 X inline:QQ|1:4|1:4",
            "1 X inline:QQ;",
            "1 X é",
        ] {
            let error = cryptos(value).expect_err(value).to_string();
            assert!(
                !error.contains("QQ") && error.contains("expected"),
                "{error}"
            );
        }
    }
}
