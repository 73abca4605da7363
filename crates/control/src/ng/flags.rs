//! Converts the different forms that clients write into one: a dictionary whose keys have hyphens, with lists where the protocol has lists.
//!
//! - `address family` and `address-family` are the same key. The same applies to flags.
//! - The flag `codec-strip-PCMU` becomes the entry `strip: [PCMU]` of the dictionary `codec`, and `SDES-off` the entry `off` of the list
//!   `SDES`. The other prefixes of the public documentation are converted in the same way.
//! - `rtpp-flags` contains words, which are flags, and `key=value`. A value may be a list or a dictionary in `[ ]`. Newer versions of
//!   Kamailio put the string of their script into this key without reading it.
//! - A string in place of a list counts as a list with one entry.

use crate::text::shown;

use super::value::{Budget, Bytes, DecodeError, Dictionary, Value};

/// The reason why `rtpp-flags` is not readable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagsError {
    /// A bracket without the matching one.
    #[error("rtpp-flags: the bracket {0} has no matching bracket")]
    Bracket(&'static str),
    /// `a=b` with an invalid key before the `=`.
    #[error("rtpp-flags: {0}: expected key=value")]
    Key(String),
    /// Words and `key=[...]` in one pair of brackets.
    #[error(
        "rtpp-flags: {0}=[...] is mixed with words: expected either words or key=value in one pair of brackets"
    )]
    Mixed(String),
    /// A value that is nested too deep, or too many values.
    #[error("rtpp-flags: {0}")]
    Bound(#[from] DecodeError),
}

/// Converts the dictionary of a message.
///
/// # Errors
/// Fails if `rtpp-flags` is malformed.
pub fn unfold(dictionary: Dictionary) -> Result<Dictionary, FlagsError> {
    let has = |name: &str| dictionary.get(name).is_some();
    let named: Vec<&str> = NAMES.iter().copied().filter(|name| has(name)).collect();
    let mut out = Dictionary::new();
    for (key, value) in dictionary {
        let key = plain_key(&key).map_or(key, Bytes::from);
        match &value {
            Value::Bytes(text) if is_flags_key(&key) => {
                for item in read(text)? {
                    match item {
                        Item::Word(word) => flag(&mut out, word),
                        // A key `rtpp-flags` inside `rtpp-flags` is refused.
                        Item::Pair(key, _) if is_flags_key(&hyphens(key)) => {
                            return Err(FlagsError::Key(shown(key)));
                        }
                        Item::Pair(key, value) => {
                            let value = value.into_value()?;
                            let key = plain_key(key).unwrap_or_else(|| key.to_vec());
                            let is_named = named.iter().any(|name| key == name.as_bytes());
                            if !is_named {
                                pair(&mut out, key.into(), value);
                            }
                        }
                        Item::Group(_) => return Err(FlagsError::Bracket("[")),
                    }
                }
            }
            _ => pair(&mut out, key, value),
        }
    }
    Ok(out)
}

/// The keys that identify the call of a request. If the message has them, the same keys in `rtpp-flags` are ignored. Such a proxy forwards
/// its script's string unread, and in that string, `via-branch=auto` only tells the proxy which branch to name.
const NAMES: &[&str] = &[
    "command",
    "call-id",
    "from-tag",
    "to-tag",
    "via-branch",
    "sdp",
];

fn is_flags_key(key: &[u8]) -> bool {
    matches!(key, b"rtpp-flags" | b"rtpp_flags")
}

/// Keys that have a second spelling: first that one, then the documented one.
const SPELLINGS: &[(&str, &str)] = &[
    ("RTCP-mux", "rtcp-mux"),
    ("SDP", "sdp"),
    ("SDP-attr", "sdp-attr"),
    ("SDP-media-remove", "sdp-media-remove"),
    ("SDP_media_remove", "sdp-media-remove"),
    ("sdes", "SDES"),
    ("sdp_media_remove", "sdp-media-remove"),
];

/// Returns the key with hyphens and in its documented spelling. `None`: the key already has this form.
fn plain_key(key: &[u8]) -> Option<Vec<u8>> {
    let with_hyphens = key.contains(&b' ').then(|| hyphens(key));
    let found = with_hyphens.as_deref().unwrap_or(key);
    let usual = SPELLINGS
        .iter()
        .find(|(other, _)| found == other.as_bytes());
    usual
        .map(|(_, usual)| usual.as_bytes().to_vec())
        .or(with_hyphens)
}

/// Replaces spaces by hyphens. "Spaces in each string may be replaced by hyphens."
fn hyphens(name: &[u8]) -> Vec<u8> {
    let hyphen = |&byte: &u8| if byte == b' ' { b'-' } else { byte };
    name.iter().map(hyphen).collect()
}

/// Keys whose value is a list. A flag `KEY-VALUE` adds an entry to the list.
const LISTS: &[&str] = &[
    "OSRTP",
    "SDES",
    "T.38",
    "from-tags",
    "replace",
    "rtcp-mux",
    "sdp-media-remove",
    "supports",
];

/// The lists of the dictionary `codec`.
const CODEC_LISTS: &[&str] = &[
    "accept",
    "consume",
    "except",
    "mask",
    "offer",
    "set",
    "strip",
    "transcode",
];

/// Flags that stand for a key with a value.
const SYNONYMS: &[(&str, &str, &str)] = &[
    ("all", "all", "all"),
    ("generate-RTCP", "generate-RTCP", "on"),
    ("record-call", "record-call", "on"),
    ("RTP/AVP", "transport-protocol", "RTP/AVP"),
    ("RTP/AVPF", "transport-protocol", "RTP/AVPF"),
    ("RTP/SAVP", "transport-protocol", "RTP/SAVP"),
    ("RTP/SAVPF", "transport-protocol", "RTP/SAVPF"),
    ("UDP/TLS/RTP/SAVP", "transport-protocol", "UDP/TLS/RTP/SAVP"),
    (
        "UDP/TLS/RTP/SAVPF",
        "transport-protocol",
        "UDP/TLS/RTP/SAVPF",
    ),
    ("internal", "direction", "internal"),
    ("external", "direction", "external"),
    ("pad-crypto", "SDES", "pad"),
    ("always-transcode", "codec-accept", "all"),
];

/// Adds a flag, which is a word of `flags` or `rtpp-flags`.
fn flag(out: &mut Dictionary, word: &[u8]) {
    let name = hyphens(word);
    if let Some((_, key, value)) = SYNONYMS.iter().find(|(flag, ..)| name == flag.as_bytes()) {
        return pair(out, (*key).into(), (*value).into());
    }
    let behind = |prefix: &str| {
        let is_prefix =
            name.starts_with(prefix.as_bytes()) && name.get(prefix.len()) == Some(&b'-');
        let rest = word.get(prefix.len() + 1..).filter(|rest| !rest.is_empty());
        rest.filter(|_| is_prefix).map(Value::bytes)
    };
    if let Some(value) = behind("endpoint-learning") {
        return out.set("endpoint-learning", value);
    }
    let edit = behind("sdp-attr").or_else(|| behind("SDP-attr"));
    if let Some((level, command, value)) = edit.as_ref().and_then(attribute_edit) {
        return append(nested(out, "sdp-attr", &[level, command]), value);
    }
    // The documentation of Kamailio also writes `transcode-PCMA`.
    if let Some(value) = behind("transcode") {
        return append(codec_list(out, "transcode"), value);
    }
    for list in CODEC_LISTS {
        if let Some(value) = behind(&format!("codec-{list}")) {
            return append(codec_list(out, list), value);
        }
    }
    for key in LISTS {
        if let Some(value) = behind(key) {
            return append(out.entry(key, no_values), value);
        }
    }
    for (other, key) in SPELLINGS.iter().filter(|(_, key)| LISTS.contains(key)) {
        if let Some(value) = behind(other) {
            return append(out.entry(key, no_values), value);
        }
    }
    append(out.entry("flags", no_values), name.into());
}

/// Reads the flag of an edit: `COMMAND-LEVEL-ATTRIBUTE`, or `substitute-LEVEL-ATTRIBUTE>ATTRIBUTE`. "equals sign (`=`) can be escaped as
/// double dashes (`--`) and spaces can be escaped as double periods (`..`)".
fn attribute_edit(rest: &Value) -> Option<(&str, &str, Value)> {
    let mut parts = rest.as_text()?.splitn(3, '-');
    let (command, level, text) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = |text: &str| Value::text(&text.replace("--", "=").replace("..", " "));
    // The documentation has both spellings.
    if !matches!(command, "substitute" | "substitude") {
        return Some((level, command, plain(text)));
    }
    let (from, to) = text.split_once('>')?;
    // The value is a list of pairs, with this pair as its only entry.
    let pair = Value::List(vec![plain(from), plain(to)]);
    Some((level, "substitute", Value::List(vec![pair])))
}

/// Adds the edits of a level to those that are there already.
fn edit_attributes(out: &mut Dictionary, level: &[u8], commands: Value) {
    let level = String::from_utf8_lossy(level).into_owned();
    let Value::Dictionary(commands) = commands else {
        // The value is not a dictionary. It is kept, and the reader of edits refuses it.
        return append(nested(out, "sdp-attr", &[&level]), commands);
    };
    for (command, value) in commands {
        let command = String::from_utf8_lossy(&command).into_owned();
        let value = match value {
            Value::List(pair)
                if command == "substitute" && !matches!(pair[..], [Value::List(_), ..]) =>
            {
                Value::List(vec![Value::List(pair)])
            }
            value => value,
        };
        append(nested(out, "sdp-attr", &[&level, &command]), value);
    }
}

/// Returns the list at the end of a path of dictionaries. Missing parts of the path are added.
fn nested<'a>(out: &'a mut Dictionary, key: &str, path: &[&str]) -> &'a mut Value {
    let Some((next, rest)) = path.split_first() else {
        return out.entry(key, no_values);
    };
    let inner = out.entry(key, || Value::Dictionary(Dictionary::new()));
    if !matches!(inner, Value::Dictionary(_)) {
        *inner = Value::Dictionary(Dictionary::new());
    }
    match inner {
        Value::Dictionary(inner) => nested(inner, next, rest),
        other => other,
    }
}

/// Adds a key of a message or of `rtpp-flags`. `key` is written with hyphens.
fn pair(out: &mut Dictionary, key: Bytes, value: Value) {
    let name = std::str::from_utf8(&key).unwrap_or_default();
    if let Some(list) = name
        .strip_prefix("codec-")
        .filter(|one| CODEC_LISTS.contains(one))
    {
        return append(codec_list(out, list), value);
    }
    match (name, value) {
        ("flags", value) => {
            for one in as_list(value) {
                match one {
                    Value::Bytes(word) => flag(out, &word),
                    // The value is not a flag. It is kept, and the reader of flags refuses it.
                    other => append(out.entry("flags", no_values), Value::List(vec![other])),
                }
            }
        }
        ("codec", Value::Dictionary(lists)) => {
            for (list, value) in lists {
                let list = String::from_utf8_lossy(&list).into_owned();
                append(codec_list(out, &list), value);
            }
        }
        ("transcode", value) => append(codec_list(out, "transcode"), value),
        // The flags may contain edits too.
        ("sdp-attr", Value::Dictionary(levels)) if out.get(name).is_some() => {
            for (level, commands) in levels {
                edit_attributes(out, &level, commands);
            }
        }
        // The two interfaces may come as two values, or as one list.
        ("direction", value @ Value::Bytes(_)) => append(out.entry("direction", no_values), value),
        // The address family is missing, but follows from the address.
        ("received-from", Value::Bytes(address)) => {
            let family = if address.contains(&b':') {
                "IP6"
            } else {
                "IP4"
            };
            let both = vec![Value::text(family), Value::Bytes(address)];
            out.set("received-from", Value::List(both));
        }
        ("codec" | "direction" | "received-from", value) => out.set(name, value),
        (name, value) if LISTS.contains(&name) => append(out.entry(name, no_values), value),
        (_, value) => out.push(key, value),
    }
}

fn no_values() -> Value {
    Value::List(Vec::new())
}

fn as_list(value: Value) -> Vec<Value> {
    match value {
        Value::List(values) => values,
        one => vec![one],
    }
}

fn append(list: &mut Value, value: Value) {
    match list {
        Value::List(values) => values.extend(as_list(value)),
        // One of the values is not a list, although the key needs one. The later value counts.
        other => *other = Value::List(as_list(value)),
    }
}

fn codec_list<'a>(out: &'a mut Dictionary, list: &str) -> &'a mut Value {
    nested(out, "codec", &[list])
}

/// A part of `rtpp-flags`.
enum Item<'a> {
    Word(&'a [u8]),
    Pair(&'a [u8], Box<Item<'a>>),
    Group(Vec<Item<'a>>),
}

impl Item<'_> {
    fn into_value(self) -> Result<Value, FlagsError> {
        match self {
            Item::Word(word) => Ok(Value::bytes(word)),
            Item::Pair(key, value) => {
                let mut one = Dictionary::new();
                one.push(key.to_vec(), value.into_value()?);
                Ok(Value::Dictionary(one))
            }
            Item::Group(items) => group(items),
        }
    }
}

/// Converts the items of a group to a dictionary if all of them are `key=value`, or else to a list. In a list, `key=value` is a word:
/// `[PCMA iLBC/8000/1///mode=30]`.
fn group(items: Vec<Item<'_>>) -> Result<Value, FlagsError> {
    let is_pair = |item: &Item<'_>| matches!(item, Item::Pair(..));
    if !items.is_empty() && items.iter().all(is_pair) {
        let mut dictionary = Dictionary::new();
        for item in items {
            if let Item::Pair(key, value) = item {
                dictionary.push(key.to_vec(), value.into_value()?);
            }
        }
        return Ok(Value::Dictionary(dictionary));
    }
    let value = |item| match item {
        Item::Pair(key, value) => match *value {
            Item::Word(word) => Ok([key, b"=", word].concat().into()),
            _ => Err(FlagsError::Mixed(shown(key))),
        },
        other => other.into_value(),
    };
    let values = items.into_iter().map(value);
    values.collect::<Result<_, _>>().map(Value::List)
}

fn read(text: &[u8]) -> Result<Vec<Item<'_>>, FlagsError> {
    let mut reader = Reader {
        text,
        at: 0,
        budget: Budget::new(),
    };
    let items = reader.items(1)?;
    match reader.peek() {
        None => Ok(items),
        Some(_) => Err(FlagsError::Bracket("]")),
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    budget: Budget,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Reads items up to the end of the text or of the group in brackets.
    fn items(&mut self, depth: usize) -> Result<Vec<Item<'a>>, FlagsError> {
        let mut items = Vec::new();
        loop {
            while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
                self.at += 1;
            }
            if matches!(self.peek(), None | Some(b']')) {
                return Ok(items);
            }
            items.push(self.item(depth)?);
        }
    }

    fn item(&mut self, depth: usize) -> Result<Item<'a>, FlagsError> {
        self.budget.take(depth)?;
        if self.peek() == Some(b'[') {
            return self.group(depth);
        }
        let word = self.word(b"=[]");
        if self.peek() != Some(b'=') {
            // `a[b]` is an error, and not a word followed by a list.
            return match self.peek() {
                Some(b'[') => Err(FlagsError::Key(shown(word))),
                _ => Ok(Item::Word(word)),
            };
        }
        if word.is_empty() {
            return Err(FlagsError::Key(shown(b"=")));
        }
        self.at += 1;
        let value = match self.peek() {
            Some(b'[') => self.group(depth)?,
            // A value may be an IPv6 address in brackets. Elsewhere in a word, brackets are an error.
            _ => Item::Word(self.word(b"[]")),
        };
        Ok(Item::Pair(word, Box::new(value)))
    }

    fn group(&mut self, depth: usize) -> Result<Item<'a>, FlagsError> {
        self.at += 1;
        self.budget.take(depth + 1)?;
        let items = self.items(depth + 1)?;
        if self.peek() != Some(b']') {
            return Err(FlagsError::Bracket("["));
        }
        self.at += 1;
        Ok(Item::Group(items))
    }

    fn word(&mut self, ends: &[u8]) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || ends.contains(byte);
        let len = rest.iter().position(is_end).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::DEPTH_MAX;
    use super::super::{bencode, json};
    use super::*;

    /// Returns the converted form of a JSON object, as JSON.
    fn unfolded(text: &str) -> Result<String, FlagsError> {
        let dictionary = json::decode(text.as_bytes()).expect(text);
        let mut out = Vec::new();
        json::encode(&unfold(dictionary)?, &mut out);
        Ok(String::from_utf8(out).expect("JSON is UTF-8"))
    }

    #[test]
    fn keys_and_flags_are_normalised_to_one_form() {
        // The examples show "Spaces in each string may be replaced by hyphens", and the prefixes and synonyms of the public documentation.
        for (text, form) in [
            (
                r#"{"address family":"IP6","flags":["trust address","trust-address"]}"#,
                r#"{"address-family":"IP6","flags":["trust-address","trust-address"]}"#,
            ),
            (
                r#"{"flags":["codec-set-opus/48000/1/16000","codec-set-opus/48000/2/32000"]}"#,
                r#"{"codec":{"set":["opus/48000/1/16000","opus/48000/2/32000"]}}"#,
            ),
            (
                r#"{"codec":{"strip":["all"]},"flags":["codec-strip-PCMU","transcode-PCMA"]}"#,
                r#"{"codec":{"strip":["all","PCMU"],"transcode":["PCMA"]}}"#,
            ),
            (
                r#"{"flags":["SDES-off","SDES-no-AES_CM_128_HMAC_SHA1_80","pad crypto"]}"#,
                r#"{"SDES":["off","no-AES_CM_128_HMAC_SHA1_80","pad"]}"#,
            ),
            (
                r#"{"flags":["always transcode","generate RTCP","endpoint learning off"]}"#,
                r#"{"codec":{"accept":["all"]},"generate-RTCP":"on","endpoint-learning":"off"}"#,
            ),
            (
                r#"{"flags":"asymmetric","replace":"origin","rtcp-mux":["offer"]}"#,
                r#"{"flags":["asymmetric"],"replace":["origin"],"rtcp-mux":["offer"]}"#,
            ),
            // A prefix without a value is kept as an unknown flag.
            (
                r#"{"flags":["codec-strip-","SDES-"]}"#,
                r#"{"flags":["codec-strip-","SDES-"]}"#,
            ),
            // Strings such as a Call-ID or an SDP are values. They are not split into flags.
            (
                r#"{"call-id":"a b","sdp":"v=0 x"}"#,
                r#"{"call-id":"a b","sdp":"v=0 x"}"#,
            ),
        ] {
            assert_eq!(unfolded(text).as_deref(), Ok(form), "{text}");
        }
    }

    #[test]
    fn strings_of_flags_become_keys() {
        // The first two strings are from the public documentation, "rtpp flags".
        for (flags, form) in [
            (
                "replace-origin via-branch=auto-next strict-source label=callee OSRTP-accept transport-protocol=RTP/AVP \
                 address-family=IP4",
                r#"{"replace":["origin"],"via-branch":"auto-next","flags":["strict-source"],"label":"callee","OSRTP":["accept"],"transport-protocol":"RTP/AVP","address-family":"IP4"}"#,
            ),
            (
                "via-branch=auto-next OSRTP=[accept] codec=[transcode=[PCMA PCMU] accept=[AMR-WB AMR] strip=[EVS]]",
                r#"{"via-branch":"auto-next","OSRTP":["accept"],"codec":{"transcode":["PCMA","PCMU"],"accept":["AMR-WB","AMR"],"strip":["EVS"]}}"#,
            ),
            (
                "direction=priv direction=pub received-from=2001:db8::1 RTP/SAVP",
                r#"{"direction":["priv","pub"],"received-from":["IP6","2001:db8::1"],"transport-protocol":"RTP/SAVP"}"#,
            ),
            (
                "codec-transcode=[PCMA iLBC/8000/1///mode=30] codec-mask=all",
                r#"{"codec":{"transcode":["PCMA","iLBC/8000/1///mode=30"],"mask":["all"]}}"#,
            ),
            (
                "sdp-attr=[none=[substitute=[[a b] [c d]]]] empty= list=[]",
                r#"{"sdp-attr":{"none":{"substitute":[["a","b"],["c","d"]]}},"empty":"","list":[]}"#,
            ),
            ("", "{}"),
        ] {
            for key in ["rtpp-flags", "rtpp flags", "rtpp_flags"] {
                let text = format!("{{\"{key}\":\"{flags}\"}}");
                assert_eq!(unfolded(&text).as_deref(), Ok(form), "{text}");
            }
        }
    }

    #[test]
    fn malformed_strings_of_flags_are_refused() {
        for flags in [
            "a=[b",
            "a]",
            "[a]",
            "=a",
            "a[b]",
            "a=[b c=[d]]",
            "]",
            "a=[",
            "a=b[c]",
            "rtpp-flags=x",
        ] {
            let text = format!("{{\"rtpp-flags\":\"{flags}\"}}");
            assert!(unfolded(&text).is_err(), "{flags}");
        }
        let nested = |depth: usize| format!("a={}{}", "[".repeat(depth), "]".repeat(depth));
        let text = |depth| format!("{{\"rtpp-flags\":\"{}\"}}", nested(depth));
        assert!(unfolded(&text(DEPTH_MAX / 2)).is_ok());
        assert!(unfolded(&text(DEPTH_MAX + 1)).is_err());
        let words = "a ".repeat(5000);
        assert!(unfolded(&format!("{{\"rtpp-flags\":\"{words}\"}}")).is_err());
    }

    #[test]
    fn names_that_are_not_utf8_are_accepted() {
        let dictionary = bencode::decode(b"d2:\xff\xfe1:a5:flagsl2:\xff i1eee").expect("bencode");
        let form = unfold(dictionary).expect("no string of flags");
        assert_eq!(form.len(), 2);
    }
}
