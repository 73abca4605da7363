//! SRTP keys of streams: where they are, and how they are read. The configuration itself never contains a key.

use toml::Spanned;

use super::Destination;
use super::checker::Checker;
use super::raw::{RawFallback, RawStream};
use super::srtp_key::{INPUT, KeySource, OUTPUT, SrtpSpec};

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

/// Returns the key of a fallback: the key in its table, or else the key of the stream's sender.
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

const ALLOWED: &str =
    "a file or variable with [SUITE] BASE64, such as the output of `openssl rand -base64 30`";
