//! SRTP keys of streams: where they are, and how they are read. The configuration never contains a key.

use std::fmt;
use std::path::PathBuf;

use threadbare_rtp::srtp::{Crypto, MasterKey, Suite};

/// Where an SRTP key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Env(String),
}

/// The SRTP keys of a stream. `None`: packets are plain RTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SrtpSpec {
    /// The key of the packets from the stream's sender.
    pub input: Option<KeySource>,
    /// The key of the packets that the stream sends.
    pub output: Option<KeySource>,
}

impl KeySource {
    /// Reads the key, which is written as `[SUITE] [inline:]BASE64`. The base64 text contains the master key and the salt, as in an
    /// `a=crypto` attribute of SDP (RFC 4568, section 9.2). Without a suite, the suite is AES_CM_128_HMAC_SHA1_80.
    ///
    /// # Errors
    /// Fails if the key is absent or malformed. The error contains no part of the key.
    pub fn read(&self) -> Result<MasterKey, String> {
        let text = match self {
            KeySource::File(path) => {
                std::fs::read_to_string(path).map_err(|error| error.to_string())
            }
            KeySource::Env(name) => std::env::var(name).map_err(|error| error.to_string()),
        };
        text.and_then(|text| parse(&text))
            .map_err(|reason| format!("cannot read the SRTP key from {self}: {reason}"))
    }
}

fn parse(text: &str) -> Result<MasterKey, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (suite, key) = match words[..] {
        [key] => (Suite::AesCm128HmacSha1_80.name(), key),
        [suite, key] => (suite, key),
        _ => {
            return Err(format!(
                "expected [SUITE] BASE64, found {} words",
                words.len()
            ));
        }
    };
    let key = key.strip_prefix("inline:").unwrap_or(key);
    let crypto = Crypto::parse(&format!("1 {suite} inline:{key}"));
    crypto
        .map(|crypto| crypto.key)
        .map_err(|error| error.to_string())
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => write!(f, "the file {}", path.display()),
            KeySource::Env(name) => write!(f, "the environment variable {name}"),
        }
    }
}

impl KeySource {
    /// Returns the setting of the key: its name and value. `file` and `env` are the names for a file and for a variable.
    fn named(&self, [file, env]: [&'static str; 2]) -> (&'static str, String) {
        match self {
            KeySource::File(path) => (file, path.display().to_string()),
            KeySource::Env(name) => (env, name.clone()),
        }
    }

    /// Returns the setting of a sender's key.
    pub(super) fn setting(&self) -> (&'static str, String) {
        self.named(INPUT)
    }
}

impl SrtpSpec {
    /// Returns the keys for the file, with their names.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&'static str, String)> {
        let keys = [(&self.input, INPUT), (&self.output, OUTPUT)];
        keys.into_iter()
            .filter_map(|(source, names)| source.as_ref().map(|source| source.named(names)))
    }
}

/// Names of the settings of a sender's key.
pub(super) const INPUT: [&str; 2] = ["srtp-in-key-file", "srtp-in-key-env"];
/// Names of the settings of the key of sent packets.
pub(super) const OUTPUT: [&str; 2] = ["srtp-out-key-file", "srtp-out-key-env"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of an `a=crypto` line in RFC 4568, section 6.1. Its form is that of section 9.2.
    const KEY: &str = "d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj";

    #[test]
    fn keys_are_read_as_sdp_writes_them() {
        for (text, suite, bytes) in [
            (KEY.to_owned(), Suite::AesCm128HmacSha1_80, 30),
            (format!("inline:{KEY}\n"), Suite::AesCm128HmacSha1_80, 30),
            (
                format!("AES_CM_128_HMAC_SHA1_32 inline:{KEY}|2^20|1:4\n"),
                Suite::AesCm128HmacSha1_32,
                30,
            ),
            (
                format!("  AEAD_AES_256_GCM {}\n", "A".repeat(58) + "A="),
                Suite::AeadAes256Gcm,
                44,
            ),
        ] {
            let key = parse(&text).expect(&text);
            assert_eq!(
                (key.suite(), key.expose_secret().len()),
                (suite, bytes),
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_keys_are_refused_without_showing_them() {
        for (text, says) in [
            (String::new(), "found 0 words"),
            (
                format!("1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}"),
                "found 3 words",
            ),
            (KEY[..36].to_owned(), "crypto:"),
            (
                format!("AES_CM_128 {KEY}"),
                "must be one of AES_CM_128_HMAC_SHA1_80",
            ),
            (format!("{}%", &KEY[..39]), "not base64"),
        ] {
            let said = parse(&text).expect_err("malformed");
            assert!(said.contains(says), "{said}");
            assert!(!said.contains(&KEY[..8]), "{said}");
        }
        let missing = KeySource::File("/does/not/exist".into());
        let said = missing.read().expect_err("no such file");
        assert!(
            said.contains("from the file /does/not/exist: No such file"),
            "{said}"
        );
        let unset = KeySource::Env("THREADBARE_NO_SUCH_KEY".to_owned());
        let said = unset.read().expect_err("no such variable");
        assert!(
            said.contains("environment variable THREADBARE_NO_SUCH_KEY"),
            "{said}"
        );
    }
}
