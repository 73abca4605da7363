//! A request: its command, and its keys read with their types.

use std::ops::RangeInclusive;

use crate::text::shown;

use super::flags::{self, FlagsError};
use super::value::{DecodeError, Dictionary, Value};

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub enum Command {
    Ping,
    Offer,
    Answer,
    Delete,
    Query,
    List,
    Statistics,
    StartRecording,
    StopRecording,
    PauseRecording,
    StartForwarding,
    StopForwarding,
    BlockDtmf,
    UnblockDtmf,
    BlockMedia,
    UnblockMedia,
    SilenceMedia,
    UnsilenceMedia,
    PlayMedia,
    StopMedia,
    PlayDtmf,
    Publish,
    SubscribeRequest,
    SubscribeAnswer,
    Unsubscribe,
}

impl Command {
    /// Each command with its name in requests.
    pub const NAMES: [(&'static str, Command); 25] = [
        ("ping", Command::Ping),
        ("offer", Command::Offer),
        ("answer", Command::Answer),
        ("delete", Command::Delete),
        ("query", Command::Query),
        ("list", Command::List),
        ("statistics", Command::Statistics),
        ("start recording", Command::StartRecording),
        ("stop recording", Command::StopRecording),
        ("pause recording", Command::PauseRecording),
        ("start forwarding", Command::StartForwarding),
        ("stop forwarding", Command::StopForwarding),
        ("block DTMF", Command::BlockDtmf),
        ("unblock DTMF", Command::UnblockDtmf),
        ("block media", Command::BlockMedia),
        ("unblock media", Command::UnblockMedia),
        ("silence media", Command::SilenceMedia),
        ("unsilence media", Command::UnsilenceMedia),
        ("play media", Command::PlayMedia),
        ("stop media", Command::StopMedia),
        ("play DTMF", Command::PlayDtmf),
        ("publish", Command::Publish),
        ("subscribe request", Command::SubscribeRequest),
        ("subscribe answer", Command::SubscribeAnswer),
        ("unsubscribe", Command::Unsubscribe),
    ];

    /// Returns the command's name in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Command::NAMES.iter().find(|(_, one)| *one == self);
        found.map_or("", |(name, _)| name)
    }

    fn of(name: &[u8]) -> Option<Command> {
        let is_it = |known: &str| {
            let same = |(&a, &b): (&u8, &u8)| a == b || (a == b'-' && b == b' ');
            name.len() == known.len() && name.iter().zip(known.as_bytes()).all(same)
        };
        let found = Command::NAMES.iter().find(|(known, _)| is_it(known));
        found.map(|(_, command)| *command)
    }
}

/// The reason why a request is refused. Its text becomes the `error-reason` of the reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The dictionary is not readable.
    #[error("the dictionary cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
    /// The request's `rtpp-flags` cannot be read.
    #[error(transparent)]
    Flags(#[from] FlagsError),
    /// The command is unknown.
    #[error(
        "Unrecognized command {0}: expected one of those in the documentation of the ng protocol, such as \"offer\""
    )]
    Command(String),
    /// A required key is missing.
    #[error("{key} is missing: expected {allowed}")]
    Missing {
        /// The key, with hyphens.
        key: &'static str,
        /// The allowed values, in words.
        allowed: String,
    },
    /// The value of a key is invalid.
    #[error("{key}: {value} is not allowed: expected {allowed}")]
    Value {
        /// The key, with hyphens.
        key: &'static str,
        /// The value, shortened.
        value: String,
        /// The allowed values, in words.
        allowed: String,
    },
}

impl Refusal {
    /// Creates the refusal of a `value` that is not allowed for `key`. `allowed` describes the allowed values.
    #[must_use]
    pub fn value(key: &'static str, value: &Value, allowed: impl Into<String>) -> Refusal {
        Refusal::Value {
            key,
            value: value.shown(),
            allowed: allowed.into(),
        }
    }
}

/// A request, with its keys in the form that [`flags::unfold`] produces. Keys that are never read are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    command: Command,
    keys: Dictionary,
}

impl Request {
    /// Reads the dictionary of a message.
    ///
    /// # Errors
    /// Fails if the `command` is missing or unknown, or if `rtpp-flags` is unreadable.
    pub fn new(dictionary: Dictionary) -> Result<Request, Refusal> {
        let command = match dictionary.get("command") {
            None => {
                let allowed = "the name of a command, such as \"offer\"".to_owned();
                let key = "command";
                return Err(Refusal::Missing { key, allowed });
            }
            Some(Value::Bytes(name)) => {
                Command::of(name).ok_or_else(|| Refusal::Command(shown(name)))?
            }
            Some(other) => return Err(Refusal::Command(other.shown())),
        };
        let keys = flags::unfold(dictionary)?;
        Ok(Request { command, keys })
    }

    /// Returns the command.
    #[must_use]
    pub fn command(&self) -> Command {
        self.command
    }

    /// Returns all keys and values.
    #[must_use]
    pub fn keys(&self) -> &Dictionary {
        &self.keys
    }

    /// Returns the bytes of `key`, which need not be UTF-8 because an SDP need not be.
    ///
    /// # Errors
    /// Fails if the value is not a string.
    pub fn bytes(&self, key: &'static str) -> Result<Option<&[u8]>, Refusal> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(other) => Err(Refusal::value(key, other, "a string")),
        }
    }

    /// Returns the bytes of `key`, which must not be missing or empty.
    ///
    /// # Errors
    /// Fails if the value is missing, empty, or not a string.
    pub fn required(&self, key: &'static str) -> Result<&[u8], Refusal> {
        let bytes = self.bytes(key)?.filter(|bytes| !bytes.is_empty());
        bytes.ok_or_else(|| Refusal::Missing {
            key,
            allowed: "a string that is not empty".to_owned(),
        })
    }

    /// Returns the text of `key`.
    ///
    /// # Errors
    /// Fails if the value is not a string of UTF-8.
    pub fn text(&self, key: &'static str) -> Result<Option<&str>, Refusal> {
        self.keys.get(key).map_or(Ok(None), |value| {
            let text = value.as_text();
            text.map(Some)
                .ok_or_else(|| Refusal::value(key, value, "a string of UTF-8"))
        })
    }

    /// Returns the number that is the value of `key`. It may also be written as text.
    ///
    /// # Errors
    /// Fails if the value is not a whole number, or is outside `allowed`.
    pub fn integer(
        &self,
        key: &'static str,
        allowed: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.keys.get(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::Integer(number) => Some(*number),
            other => other.as_text().and_then(|text| text.parse().ok()),
        };
        let number = number.filter(|number| allowed.contains(number));
        let words = || {
            format!(
                "a whole number from {} to {}",
                allowed.start(),
                allowed.end()
            )
        };
        number
            .map(Some)
            .ok_or_else(|| Refusal::value(key, value, words()))
    }

    /// Returns the meaning that `allowed` gives to the text of `key`.
    ///
    /// # Errors
    /// Fails if the value is not in `allowed`.
    pub fn one_of<T: Copy>(
        &self,
        key: &'static str,
        allowed: &[(&str, T)],
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.keys.get(key) else {
            return Ok(None);
        };
        let text = value.as_text();
        let found = allowed.iter().find(|(name, _)| Some(*name) == text);
        let words = || {
            let names: Vec<_> = allowed
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect();
            format!("one of {}", names.join(", "))
        };
        found
            .map(|(_, meaning)| Some(*meaning))
            .ok_or_else(|| Refusal::value(key, value, words()))
    }

    /// Returns the texts of the list `key`. The result is empty if the key is missing.
    ///
    /// # Errors
    /// Fails if the value is not a list of strings.
    pub fn texts(&self, key: &'static str) -> Result<Vec<&str>, Refusal> {
        self.keys
            .get(key)
            .map_or(Ok(Vec::new()), |value| texts(key, value))
    }

    /// Returns the texts of `list` in the dictionary `codec`. The result is empty if the list is missing.
    ///
    /// # Errors
    /// Fails if `codec` is not a dictionary, or the value is not a list of strings.
    pub fn codecs(&self, list: &'static str) -> Result<Vec<&str>, Refusal> {
        match self.keys.get("codec") {
            None => Ok(Vec::new()),
            Some(Value::Dictionary(lists)) => lists
                .get(list)
                .map_or(Ok(Vec::new()), |value| texts(list, value)),
            Some(other) => Err(Refusal::value("codec", other, "a dictionary")),
        }
    }

    /// Whether the flags include `flag`, which is written with hyphens.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        let is_it =
            |value: &Value| matches!(value, Value::Bytes(bytes) if **bytes == *flag.as_bytes());
        matches!(self.keys.get("flags"), Some(Value::List(flags)) if flags.iter().any(is_it))
    }
}

fn texts<'a>(key: &'static str, value: &'a Value) -> Result<Vec<&'a str>, Refusal> {
    let wrong = |value: &Value| Refusal::value(key, value, "a list of strings");
    match value {
        Value::List(values) => {
            let text = |value: &'a Value| value.as_text().ok_or_else(|| wrong(value));
            values.iter().map(text).collect()
        }
        one => Ok(vec![one.as_text().ok_or_else(|| wrong(one))?]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    fn request(text: &str) -> Result<Request, Refusal> {
        Request::new(json::decode(text.as_bytes()).expect(text))
    }

    #[test]
    fn every_command_has_one_name() {
        for (name, command) in Command::NAMES {
            assert_eq!(command.name(), name);
            for written in [name.to_owned(), name.replace(' ', "-")] {
                let text = format!("{{\"command\":\"{written}\"}}");
                assert_eq!(request(&text).map(|one| one.command()), Ok(command));
            }
        }
    }

    #[test]
    fn refusals_state_the_key_the_value_and_the_allowed_values() {
        let refused = |text: &str| request(text).expect_err(text).to_string();
        assert!(refused(r#"{"call-id":"x"}"#).starts_with("command is missing: expected"));
        let unknown = refused(r#"{"command":"dance"}"#);
        assert!(
            unknown.starts_with("Unrecognized command \"dance\": expected"),
            "{unknown}"
        );
        assert!(refused(r#"{"command":["offer"]}"#).contains("a list"));

        let text = r#"{"command":"offer","TOS":"256","DTLS":"sometimes","flags":[1],"codec":7,"call-id":"","sdp":[]}"#;
        let one = request(text).expect(text);
        for (error, words) in [
            (
                one.integer("TOS", 0..=255).map(drop),
                ["TOS", "\"256\"", "from 0 to 255"],
            ),
            (
                one.one_of("DTLS", &[("off", 0), ("passive", 1)]).map(drop),
                ["DTLS", "\"sometimes\"", "\"off\", \"passive\""],
            ),
            (
                one.texts("flags").map(drop),
                ["flags", "1", "a list of strings"],
            ),
            (
                one.codecs("strip").map(drop),
                ["codec", "7", "a dictionary"],
            ),
            (
                one.required("call-id").map(drop),
                ["call-id", "missing", "not empty"],
            ),
            (one.bytes("sdp").map(drop), ["sdp", "a list", "a string"]),
            (
                one.required("from-tag").map(drop),
                ["from-tag", "missing", "a string"],
            ),
        ] {
            let said = error.expect_err(words[0]).to_string();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }

    #[test]
    fn values_are_converted_to_the_expected_type() {
        let text = r#"{"command":"offer","TOS":"184","ptime":20,"ICE":"remove","flags":["trust address"],"codec":{"mask":["PCMU"]}}"#;
        let one = request(text).expect(text);
        assert_eq!(one.integer("TOS", 0..=255), Ok(Some(184)));
        assert_eq!(one.integer("ptime", 1..=200), Ok(Some(20)));
        assert_eq!(one.integer("delete-delay", 0..=1), Ok(None));
        assert_eq!(one.one_of("ICE", &[("remove", 'r')]), Ok(Some('r')));
        assert!(one.has_flag("trust-address") && !one.has_flag("asymmetric"));
        assert_eq!(one.codecs("mask"), Ok(vec!["PCMU"]));
        assert_eq!(one.codecs("strip"), Ok(vec![]));
        assert_eq!(one.texts("SDES"), Ok(vec![]));
    }
}
