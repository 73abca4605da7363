//! Keys in SDP: the attribute `a=crypto` (RFC 4568).
//!
//! ```text
//! a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:PS1uQCVeeCFCanVmcjkpPywjNWhcYD0mXXtxaVBR|2^20
//!          tag  suite                       key and salt, base64                     lifetime
//! ```

use std::fmt::Write;

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use thiserror::Error;
use zeroize::Zeroizing;

use super::{KeyError, MASTER_KEY_BYTES_MAX, MKI_BYTES_MAX, MasterKey, Mki, Suite};

/// One `a=crypto` attribute of an SDP.
///
/// Some rare options, which also weaken the protection, are unsupported: several keys, key derivation rates, forward error
/// correction, and packets without encryption or authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crypto {
    /// Number of the attribute within its media section; an answer repeats that of the accepted offer.
    pub tag: u32,
    /// The key for packets sent by the SDP's author, with its identifier (MKI) if it has one.
    pub key: MasterKey,
    /// Number of packets that the key may protect, as declared by the other side. `None`: as many as the suite allows. This crate
    /// does not enforce it.
    pub lifetime_packets: Option<u64>,
}

/// Why the value of an `a=crypto` attribute is refused. No error contains a part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CryptoError {
    /// A part is missing.
    #[error("the crypto attribute has no {missing}; expected TAG SUITE inline:KEY")]
    Incomplete {
        /// The first part that is missing.
        missing: &'static str,
    },
    /// The tag is not a number.
    #[error("crypto tag {value:?}, must be 1 to 9 digits")]
    Tag {
        /// The tag.
        value: String,
    },
    /// The suite is unknown.
    #[error("crypto suite {value:?}, must be one of {}", Names)]
    Suite {
        /// The suite.
        value: String,
    },
    /// The key's method is not `inline`.
    #[error("crypto key method {value:?}, must be \"inline\"")]
    Method {
        /// The method.
        value: String,
    },
    /// The key is not base64.
    #[error("crypto key is not base64 (RFC 4648, section 4)")]
    Base64,
    /// The key has the wrong length.
    #[error("crypto: {0}")]
    Key(#[from] KeyError),
    /// The key's lifetime is out of range.
    #[error("crypto lifetime {value:?}, must be 1 to 2^48 packets")]
    Lifetime {
        /// The lifetime.
        value: String,
    },
    /// The key's identifier is malformed or too long.
    #[error(
        "crypto key identifier (MKI) {value:?}, must be NUMBER:BYTES, with 1 to {MKI_BYTES_MAX} bytes that hold the number"
    )]
    Mki {
        /// Identifier and length.
        value: String,
    },
    /// The attribute has several keys.
    #[error("the crypto attribute has {count} keys; expected one")]
    Keys {
        /// Number of keys.
        count: usize,
    },
    /// A session parameter is not supported.
    #[error("crypto session parameter {value:?}, must be WSH=64 or more, or optional (\"-NAME\")")]
    SessionParameter {
        /// The parameter. For `FEC_KEY`, whose value is a key, this is only the name.
        value: String,
    },
}

impl Crypto {
    /// Parses the value of an `a=crypto` attribute, the text after `a=crypto:`.
    ///
    /// # Errors
    /// Fails if the value is not valid for the attribute (RFC 4568, section 9.1), or if it uses an unsupported option.
    pub fn parse(value: &str) -> Result<Crypto, CryptoError> {
        let mut words = value.split([' ', '\t']).filter(|word| !word.is_empty());
        let mut next = |missing| words.next().ok_or(CryptoError::Incomplete { missing });
        let (tag, suite, keys) = (next("tag")?, next("suite")?, next("key")?);
        let tag = number(tag, 9).ok_or_else(|| CryptoError::Tag {
            value: excerpt(tag),
        })?;
        let suite = Suite::from_name(suite).ok_or_else(|| CryptoError::Suite {
            value: excerpt(suite),
        })?;
        let (key, lifetime_packets) = parse_key(suite, keys)?;
        words.try_for_each(check_session_parameter)?;
        Ok(Crypto {
            // At most nine digits.
            tag: tag as u32,
            key,
            lifetime_packets,
        })
    }

    /// Returns the value as [`Crypto::parse`] reads it. It contains the key.
    #[must_use]
    pub fn to_value(&self) -> Zeroizing<String> {
        let mut key = Zeroizing::new([0; KEY_TEXT_BYTES_MAX]);
        let bytes = BASE64
            .encode_slice(self.key.expose_secret(), key.as_mut())
            .expect("room for the longest key");
        let key = str::from_utf8(&key[..bytes]).expect("base64 is ASCII");
        // Allocate the full capacity at the start, because a string that grows leaves copies of the key behind.
        let mut value = Zeroizing::new(String::with_capacity(VALUE_BYTES_MAX));
        let mut written = write!(value, "{} {} inline:{key}", self.tag, self.key.suite());
        if let Some(packets) = self.lifetime_packets {
            written = written.and_then(|()| {
                if packets.is_power_of_two() {
                    write!(value, "|2^{}", packets.ilog2())
                } else {
                    write!(value, "|{packets}")
                }
            });
        }
        let mki = self.key.mki();
        if !mki.is_empty() {
            let length = mki.len();
            written = written.and_then(|()| write!(value, "|{}:{length}", mki.number()));
        }
        written.expect("a string takes everything");
        value
    }
}

/// RFC 4568, section 6.1: "inline:" key, then an optional lifetime and an optional key identifier, each after a bar.
fn parse_key(suite: Suite, keys: &str) -> Result<(MasterKey, Option<u64>), CryptoError> {
    let count = keys.split(';').count();
    if count > 1 {
        return Err(CryptoError::Keys { count });
    }
    let (method, info) = keys.split_once(':').unwrap_or((keys, ""));
    if !method.eq_ignore_ascii_case("inline") {
        return Err(CryptoError::Method {
            value: excerpt(method),
        });
    }
    let mut parts = info.split('|');
    let key = decode_key(suite, parts.next().unwrap_or_default())?;
    let (mut lifetime, mut mki) = (None, None);
    for (at, part) in parts.enumerate() {
        let value = || excerpt(part);
        match part.split_once(':') {
            // A key identifier is allowed only once, as the last part.
            Some((number, length)) if mki.is_none() => {
                let parsed = parse_mki(number, length);
                mki = Some(parsed.ok_or_else(|| CryptoError::Mki { value: value() })?);
            }
            Some(_) => return Err(CryptoError::Mki { value: value() }),
            None if at == 0 => lifetime = Some(parse_lifetime(part)?),
            None => return Err(CryptoError::Lifetime { value: value() }),
        }
    }
    Ok((key.with_mki(mki.unwrap_or_default()), lifetime))
}

/// RFC 4568, section 6.1: a decimal number, and the number of bytes that it has in packets.
fn parse_mki(value: &str, length: &str) -> Option<Mki> {
    let is_decimal = value.bytes().all(|byte| byte.is_ascii_digit());
    let value = value.parse().ok().filter(|_| is_decimal)?;
    let length = number(length, 3).filter(|length| *length > 0)?;
    Mki::of_number(value, usize::try_from(length).ok()?)
}

fn decode_key(suite: Suite, text: &str) -> Result<MasterKey, CryptoError> {
    // The buffer is large enough for a key that is too long, so that the error contains the key's length.
    let mut bytes = Zeroizing::new([0; 2 * MASTER_KEY_BYTES_MAX]);
    match BASE64.decode_slice(text, bytes.as_mut()) {
        Ok(length) => Ok(MasterKey::new(suite, &bytes[..length])?),
        Err(base64::DecodeSliceError::DecodeError(_)) => Err(CryptoError::Base64),
        Err(base64::DecodeSliceError::OutputSliceTooSmall) => {
            let actual = text.len() / 4 * 3;
            Err(KeyError { suite, actual }.into())
        }
    }
}

/// RFC 4568, section 6.1: a number of packets, or a power of two as "2^" and the exponent.
fn parse_lifetime(text: &str) -> Result<u64, CryptoError> {
    let packets = match text.strip_prefix("2^") {
        Some(exponent) => {
            number(exponent, 2).and_then(|exponent| 1_u64.checked_shl(exponent as u32))
        }
        None => number(text, 15),
    };
    packets
        .filter(|packets| (1..=LIFETIME_PACKETS_MAX).contains(packets))
        .ok_or_else(|| CryptoError::Lifetime {
            value: excerpt(text),
        })
}

/// RFC 4568, section 6.3. WSH is a hint about the width of the peer's replay window. A minus before an extension allows others to
/// ignore it.
fn check_session_parameter(parameter: &str) -> Result<(), CryptoError> {
    let (name, value) = match parameter.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (parameter, None),
    };
    let window = value.filter(|_| name.eq_ignore_ascii_case("WSH"));
    let is_harmless = parameter.starts_with('-')
        || window
            .and_then(|packets| number(packets, 9))
            .is_some_and(|packets| packets >= 64);
    if is_harmless {
        return Ok(());
    }
    let has_key = name.eq_ignore_ascii_case("FEC_KEY");
    let value = excerpt(if has_key { name } else { parameter });
    Err(CryptoError::SessionParameter { value })
}

/// Parses a number of at most this many digits (up to 19), and nothing else.
fn number(text: &str, digits_max: usize) -> Option<u64> {
    let digits =
        (1..=digits_max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Returns a word of the input, for an error. A long word may be a key in the wrong place, so it is not shown.
fn excerpt(word: &str) -> String {
    match word.chars().count() {
        count if count > WORD_CHARS_MAX => format!("{count} characters"),
        _ => word.to_owned(),
    }
}

/// Displays the names of all suites as a list.
struct Names;

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&Suite::ALL.map(Suite::name).join(", "))
    }
}

/// Padding is written. When reading, it is optional: RFC 4568, section 6.1, requires receivers to discard it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Number of characters of the longest key: four for every three bytes, rounded up.
const KEY_TEXT_BYTES_MAX: usize = MASTER_KEY_BYTES_MAX.div_ceil(3) * 4;

/// Maximum length of a written value: 10 digits of the tag, 23 characters of the suite, the key, the lifetime, an identifier of
/// 39 digits with its length, and separators.
const VALUE_BYTES_MAX: usize = 10 + 23 + KEY_TEXT_BYTES_MAX + 20 + 39 + 3 + 18;

/// RFC 4568, section 6.1: the maximum lifetime is as many packets as SRTP allows (RFC 3711, section 9.2).
const LIFETIME_PACKETS_MAX: u64 = 1 << 48;

/// Maximum length of a word in an error. It is longer than any registered name, and shorter than any key.
const WORD_CHARS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first example of RFC 4568, without its key identifier ("|1:4").
    const EXAMPLE: &str =
        "1 AES_CM_128_HMAC_SHA1_80 inline:PS1uQCVeeCFCanVmcjkpPywjNWhcYD0mXXtxaVBR|2^20";

    #[test]
    fn key_identifiers_are_read_and_written() {
        // RFC 4568, section 6.1: "inline:" key, "|2^20", "|1:4".
        let whole = format!("{EXAMPLE}|1:4");
        let crypto = Crypto::parse(&whole).unwrap();
        assert_eq!(crypto.key.mki().to_vec(), [0, 0, 0, 1]);
        assert_eq!(crypto.lifetime_packets, Some(1 << 20));
        assert_eq!(*crypto.to_value(), whole);
        // A long identifier, as some phones write it.
        let long = format!("{EXAMPLE}|1:32");
        let crypto = Crypto::parse(&long).unwrap();
        assert_eq!(crypto.key.mki().to_vec(), [&[0; 31][..], &[1]].concat());
        assert_eq!(*crypto.to_value(), long);
        // Without a lifetime.
        let short = whole.replace("|2^20", "");
        let crypto = Crypto::parse(&short).unwrap();
        assert_eq!(crypto.key.mki().to_vec(), [0, 0, 0, 1]);
        assert_eq!(crypto.lifetime_packets, None);
        assert_eq!(*crypto.to_value(), short);
        for mki in [
            "1:0", "1:129", "256:1", "x:1", "1:x", "-1:1", ":1", "1:", "1:4|1:4",
        ] {
            let error = refused(&format!("{EXAMPLE}|{mki}"));
            assert!(error.contains("MKI"), "{mki}: {error}");
        }
    }

    fn refused(value: &str) -> String {
        Crypto::parse(value).unwrap_err().to_string()
    }

    #[test]
    fn the_example_of_the_rfc_is_parsed_and_written_unchanged() {
        let crypto = Crypto::parse(EXAMPLE).unwrap();
        assert_eq!(crypto.tag, 1);
        // By base64(1).
        let key = b"=-n@%^x!Bjufr9)?,#5h\\`=&]{qiPQ";
        assert_eq!(
            crypto.key,
            MasterKey::new(Suite::AesCm128HmacSha1_80, key).unwrap()
        );
        assert_eq!(crypto.lifetime_packets, Some(1 << 20));
        assert_eq!(*crypto.to_value(), EXAMPLE);
        assert!(!format!("{crypto:?}").contains("PS1u"));
    }

    #[test]
    fn padding_case_space_and_hints_make_no_difference() {
        let plain = Crypto::parse("2 AEAD_AES_256_GCM inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
        assert_eq!(plain.lifetime_packets, None);
        for same in [
            "2 AEAD_AES_256_GCM inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "02\taead_aes_256_gcm  INLINE:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= WSH=64 -x=1 ",
        ] {
            assert_eq!(Crypto::parse(same).as_ref(), Ok(&plain), "{same}");
        }
    }

    #[test]
    fn each_unsupported_parameter_is_refused_by_name() {
        let with = |rest: &str| refused(&format!("{EXAMPLE}{rest}"));
        let allowed = "must be WSH=64 or more, or optional (\"-NAME\")";
        for parameter in [
            "UNENCRYPTED_SRTP",
            "UNENCRYPTED_SRTCP",
            "UNAUTHENTICATED_SRTP",
            "KDR=4",
            "FEC_ORDER=FEC_SRTP",
            "WSH=63",
            "WSH",
            "new",
        ] {
            let expected = format!("crypto session parameter {parameter:?}, {allowed}");
            assert_eq!(with(&format!(" WSH=100 {parameter}")), expected);
        }
        assert_eq!(
            with(" FEC_KEY=inline:c2VjcmV0"),
            format!("crypto session parameter \"FEC_KEY\", {allowed}")
        );
        assert_eq!(
            with(";inline:AAAA|2^20|2:4"),
            "the crypto attribute has 2 keys; expected one"
        );
    }

    #[test]
    fn malformed_line_is_refused_without_printing_the_key() {
        let key = "PS1uQCVeeCFCanVmcjkpPywjNWhcYD0mXXtxaVBR";
        for (value, expected) in [
            (
                "",
                "the crypto attribute has no tag; expected TAG SUITE inline:KEY".to_owned(),
            ),
            (
                "1 ",
                "the crypto attribute has no suite; expected TAG SUITE inline:KEY".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80",
                "the crypto attribute has no key; expected TAG SUITE inline:KEY".to_owned(),
            ),
            (
                "x AES_CM_128_HMAC_SHA1_80 inline:K",
                "crypto tag \"x\", must be 1 to 9 digits".to_owned(),
            ),
            (
                "+1 AES_CM_128_HMAC_SHA1_80 inline:K",
                "crypto tag \"+1\", must be 1 to 9 digits".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 outline:K",
                "crypto key method \"outline\", must be \"inline\"".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 K",
                "crypto key method \"40 characters\", must be \"inline\"".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 inline:K!",
                "crypto key is not base64 (RFC 4648, section 4)".to_owned(),
            ),
            (
                "1 F8_128_HMAC_SHA1_80 inline:K",
                format!("crypto suite \"F8_128_HMAC_SHA1_80\", must be one of {Names}"),
            ),
            (
                "1 AEAD_AES_128_GCM inline:K",
                "crypto: key and salt have 30 bytes, but AEAD_AES_128_GCM needs 28".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 inline:K|0",
                "crypto lifetime \"0\", must be 1 to 2^48 packets".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 inline:K|2^49",
                "crypto lifetime \"2^49\", must be 1 to 2^48 packets".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 inline:K|2^64",
                "crypto lifetime \"2^64\", must be 1 to 2^48 packets".to_owned(),
            ),
            (
                "1 AES_CM_128_HMAC_SHA1_80 inline:K|5|6",
                "crypto lifetime \"6\", must be 1 to 2^48 packets".to_owned(),
            ),
        ] {
            assert_eq!(refused(&value.replace('K', key)), expected, "{value}");
        }
        let long = format!("1 AEAD_AES_128_GCM inline:{}", "A".repeat(4000));
        assert_eq!(
            refused(&long),
            "crypto: key and salt have 3000 bytes, but AEAD_AES_128_GCM needs 28"
        );
        for value in [
            "K",
            "K 1",
            "1 K",
            "1 inline:K",
            "inline:K",
            "1 AEAD_AES_128_GCM K:K",
            "1 AEAD_AES_128_GCM inline:|K",
        ] {
            let error = Crypto::parse(&value.replace('K', key)).unwrap_err();
            for text in [error.to_string(), format!("{error:?}")] {
                assert!(!text.contains(&key[..4]), "{value}: {text}");
            }
        }
        for value in ["|K", "|K:4", "|2^20|K", " K", " inline:K"] {
            let error = refused(
                &format!("{EXAMPLE}{value}")
                    .replace("|2^20", "")
                    .replace('K', key),
            );
            assert!(!error.contains(&key[..4]), "{value}: {error}");
        }
    }

    proptest! {
        #[test]
        fn written_lines_round_trip(
            tag in 0..1_000_000_000_u32,
            suite in prop::sample::select(&Suite::ALL[..]),
            random in any::<[u8; 32]>(),
            mki in prop::collection::vec(any::<u8>(), 0..=16),
            zeros in 0..=MKI_BYTES_MAX - 16,
            lifetime_packets in prop::option::of(prop_oneof![1..=LIFETIME_PACKETS_MAX, (0..=48_u32).prop_map(|n| 1 << n)]),
        ) {
            let random = std::array::from_fn(|at| random[at % 32].wrapping_mul(at as u8 | 1));
            let key = MasterKey::from_random(suite, &random).with_mki(Mki::new(&[vec![0; zeros], mki].concat()).unwrap());
            let crypto = Crypto { tag, key, lifetime_packets };
            let value = crypto.to_value();
            prop_assert!(value.len() <= VALUE_BYTES_MAX && value.capacity() == VALUE_BYTES_MAX);
            prop_assert_eq!(Crypto::parse(&value), Ok(crypto));
        }

        #[test]
        fn no_text_causes_a_panic(value in "(1 (AES_CM_128_HMAC_SHA1_80|AEAD_AES_128_GCM) )?(inline:)?\\PC{0,80}") {
            let _ = Crypto::parse(&value);
        }
    }
}
