//! Checks the fallback of calls: `fallback = { file = "…" }` in `[calls]`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use threadbare_rtp::tone::Tone;
use toml::{Spanned, Table, Value};

use super::checker::{Checker, range_text};
use super::fallback::{file, tone};
use super::raw::RawCallFallback;

/// The sound that a party of a call hears while the other party sends nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct CallFallback {
    /// The sound.
    pub sound: CallSound,
    /// Time without packets after which the sound begins, in ms.
    pub timeout_ms: u32,
}

/// The sound of a [`CallFallback`].
#[derive(Clone, Debug, PartialEq)]
pub enum CallSound {
    /// An audio file, which is repeated.
    File(PathBuf),
    /// A tone.
    Tone(Box<Tone>),
}

impl CallFallback {
    /// Default of [`timeout_ms`](Self::timeout_ms). A sender that uses comfort noise may send a packet only every few seconds.
    pub const TIMEOUT_MS_DEFAULT: u32 = 5000;

    /// Converts the settings to the form in the file.
    pub(super) fn to_toml(&self) -> Value {
        let (key, value) = match &self.sound {
            CallSound::File(path) => ("file", path.display().to_string()),
            CallSound::Tone(tone) => ("tone", tone.to_string()),
        };
        let timeout = ("timeout".to_owned(), Value::from(self.timeout_ms));
        let keys = [(key.to_owned(), Value::from(value)), timeout];
        keys.into_iter().collect::<Table>().into()
    }
}

/// Checks the key `fallback` of calls.
pub(super) fn check(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<RawCallFallback>>,
) -> Option<CallFallback> {
    let place = raw?.span();
    let RawCallFallback(keys) = raw?.get_ref();
    let find = |key: &str| keys.iter().find(|(name, _)| name == key);
    let value = |key: &str| find(key).map(|(_, value)| value);
    for (key, value) in keys {
        if !KEYS.contains(&key.as_str()) {
            let help = format!("the keys here are: {}", KEYS.join(", "));
            let message = format!("`{key}` is not a key of `fallback`");
            let places = [(value.span(), "its value")];
            checker.problems.add(message, &help, &places);
        }
    }
    let sound = match (value("file"), value("tone")) {
        (Some(raw), None) => match raw.get_ref().as_str() {
            Some(name) => CallSound::File(file(checker, &Spanned::new(raw.span(), name.into()))),
            None => {
                checker.refuse(Some(raw), "file", "the name of an audio file");
                return None;
            }
        },
        (None, Some(raw)) => CallSound::Tone(tone(checker, raw)?),
        (first, _) => {
            let message = match first {
                Some(_) => "`file` and `tone` in one fallback",
                None => "a fallback without a sound",
            };
            let help = "a fallback of calls has one of `file = \"x.wav\"`, `tone = 440`";
            let places = [(place, "this value")];
            checker.problems.add(message, help, &places);
            return None;
        }
    };
    let timeout_ms = value("timeout").map_or(CallFallback::TIMEOUT_MS_DEFAULT, |raw| {
        let number = raw.get_ref().as_integer();
        let number = number.filter(|number| TIMEOUT_MS.contains(number));
        if number.is_none() {
            let allowed = format!("a number from {}", range_text(&TIMEOUT_MS));
            checker.refuse(Some(raw), "timeout", &allowed);
        }
        number.unwrap_or_default() as u32
    });
    Some(CallFallback { sound, timeout_ms })
}

const KEYS: [&str; 3] = ["file", "tone", "timeout"];
/// Allowed time-outs. A shorter one would be reached in a usual gap between packets.
const TIMEOUT_MS: RangeInclusive<i64> = 200..=3_600_000;
