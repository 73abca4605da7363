//! SRTP keys of streams: where they are, and how they are read. The configuration itself never contains a key.

use std::fmt;
use std::path::PathBuf;

use threadbare_rtp::srtp::{Crypto, MasterKey, Suite};
use toml::Spanned;

use super::checker::Checker;
use super::raw::{RawFallback, RawStream};
use super::{Destination, StreamSpec};

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

/// Checks the keys of a stream.
pub(super) fn check(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    destination: Option<&Destination>,
) -> SrtpSpec {
    let input_keys = [&raw.srtp_in_key_file, &raw.srtp_in_key_env];
    let output_keys = [&raw.srtp_out_key_file, &raw.srtp_out_key_env];
    let input = source(checker, INPUT, input_keys);
    let output = source(checker, OUTPUT, output_keys);
    let (in_key, out_key) = (setting(INPUT, input_keys), setting(OUTPUT, output_keys));
    if let Some((name, key)) = out_key {
        if destination == Some(&Destination::Nobody) && !raw.is_partial {
            let help = "the stream sends nothing: add a `destination`, or remove the key";
            checker.conflict(Some(key), name, "a stream without `destination`", help);
        }
        if raw.count.is_some() {
            let help = "two streams with one key may encrypt with the same key stream: list these streams, each with its own key";
            checker.conflict(Some(key), name, "`count`", help);
        }
        let help = "after a restart, the same SSRC would encrypt with the same key stream again: remove `ssrc`";
        checker.conflict(raw.ssrc.as_ref(), "ssrc", &format!("`{name}`"), help);
    }
    let only = match (in_key, out_key) {
        (Some(_), Some(_)) => None,
        (one, other) => one.or(other),
    };
    if let Some((name, key)) = only.filter(|_| !raw.is_partial)
        && destination == Some(&Destination::Latched)
    {
        let help = "one address sends and receives, so SRTP needs both keys: one for the input and one for the output";
        checker.conflict(
            Some(key),
            name,
            "`destination = \"latched\"` and no other key",
            help,
        );
    }
    SrtpSpec { input, output }
}

/// Returns the key of a fallback. If it has no key of its own, it is that of the stream's sender.
pub(super) fn of_fallback(
    checker: &mut Checker<'_>,
    raw: &RawFallback,
    stream: &SrtpSpec,
) -> Option<KeySource> {
    let own = source(
        checker,
        INPUT,
        [&raw.srtp_in_key_file, &raw.srtp_in_key_env],
    );
    own.or_else(|| stream.input.clone())
}

/// Returns the place of a key, and checks it.
fn source(
    checker: &mut Checker<'_>,
    names: [&'static str; 2],
    raw: [&Option<Spanned<String>>; 2],
) -> Option<KeySource> {
    let (name, key) = setting(names, raw)?;
    let source = if name == names[0] {
        let help = "a key comes from a file or from an environment variable: remove one of the two";
        checker.conflict(raw[1].as_ref(), names[1], &format!("`{name}`"), help);
        KeySource::File(key.get_ref().into())
    } else {
        KeySource::Env(key.get_ref().clone())
    };
    if let Some(machine) = checker.machine
        && let Err(reason) = machine.read_key(&source)
    {
        checker.refuse(Some(key), name, &format!("{ALLOWED}; {reason}"));
    }
    Some(source)
}

/// Returns the setting of a key, with its name. If a file is set, it is the file, else the variable.
fn setting<'a>(
    [file_name, env_name]: [&'static str; 2],
    [file, env]: [&'a Option<Spanned<String>>; 2],
) -> Option<(&'static str, &'a Spanned<String>)> {
    let file = file.as_ref().map(|file| (file_name, file));
    file.or(env.as_ref().map(|env| (env_name, env)))
}

impl StreamSpec {
    /// Returns the settings of the keys for the file, with their names.
    pub(super) fn srtp_keys(&self) -> impl Iterator<Item = (&'static str, String)> {
        let keys = [(&self.srtp.input, INPUT), (&self.srtp.output, OUTPUT)];
        keys.into_iter()
            .filter_map(|(source, names)| source.as_ref().map(|source| source.named(names)))
    }
}

impl KeySource {
    fn named(&self, [file, env]: [&'static str; 2]) -> (&'static str, String) {
        match self {
            KeySource::File(path) => (file, path.display().to_string()),
            KeySource::Env(name) => (env, name.clone()),
        }
    }

    /// Returns the setting of a sender's key, with its name.
    pub(super) fn setting(&self) -> (&'static str, String) {
        self.named(INPUT)
    }
}

const INPUT: [&str; 2] = ["srtp-in-key-file", "srtp-in-key-env"];
const OUTPUT: [&str; 2] = ["srtp-out-key-file", "srtp-out-key-env"];
const ALLOWED: &str =
    "a file or variable with [SUITE] BASE64, such as the output of `openssl rand -base64 30`";

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
