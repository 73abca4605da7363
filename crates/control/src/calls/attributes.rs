//! `sdp-attr`: a request adds, removes or replaces attributes of the outgoing description. "It's just a text manipulation."

use crate::ng::{Dictionary, Refusal, Request, Value};
use crate::sdp::{Sdp, Section};

/// The edits of a request, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Edits(Vec<LevelEdit>);

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct LevelEdit {
    level: Level,
    edit: Edit,
}

/// Limit of edits per request. Scripts use about five.
const EDITS_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Level {
    Session,
    /// All media of this kind.
    Media(#[serde(with = "crate::mirror")] crate::mirror::Word),
}

/// An edit of attributes, written without `a=`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Edit {
    Add(String),
    Remove(String),
    Substitute { pattern: String, text: String },
}

const LEVELS: &[(&str, Level)] = &[
    ("none", Level::Session),
    ("global", Level::Session),
    ("audio", Level::Media("audio")),
    ("video", Level::Media("video")),
];

impl Edits {
    /// Reads the edits of a request.
    ///
    /// # Errors
    /// Fails if the value is not a dictionary of levels, commands and values.
    pub(super) fn of(request: &Request) -> Result<Edits, Refusal> {
        let mut edits = Edits::default();
        let levels = match request.keys().get(KEY) {
            None => return Ok(edits),
            Some(value) => dictionary(value)?,
        };
        for (name, commands) in levels.iter() {
            let found = LEVELS.iter().find(|(level, _)| level.as_bytes() == name);
            let (_, level) = found.ok_or_else(|| refused(&Value::bytes(name)))?;
            for (name, values) in dictionary(commands)?.iter() {
                edits.read(*level, name, values)?;
            }
        }
        match edits.0.len() {
            ..=EDITS_MAX => Ok(edits),
            _ => {
                let value = Value::Integer(edits.0.len() as i64);
                Err(Refusal::value(
                    KEY,
                    &value,
                    format!("up to {EDITS_MAX} edits"),
                ))
            }
        }
    }

    fn read(&mut self, level: Level, command: &[u8], values: &Value) -> Result<(), Refusal> {
        let values = match values {
            Value::List(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        let text = |value: &Value| {
            value
                .as_text()
                .map(str::to_owned)
                .ok_or_else(|| refused(value))
        };
        match command {
            b"add" | b"remove" => {
                for value in values {
                    let text = text(value)?;
                    let edit = match command {
                        b"add" => Edit::Add(text),
                        _ => Edit::Remove(text),
                    };
                    self.0.push(LevelEdit { level, edit });
                }
                Ok(())
            }
            b"substitute" => {
                // The value is one pair, or a list of pairs. "only first two values will be taken".
                let pairs = match values {
                    [Value::List(_), ..] => values,
                    _ => &[Value::List(values.to_vec())],
                };
                for pair in pairs {
                    let Value::List(pair) = pair else {
                        return Err(refused(pair));
                    };
                    if let [from, to, ..] = pair.as_slice() {
                        let (pattern, text) = (text(from)?, text(to)?);
                        let edit = Edit::Substitute { pattern, text };
                        self.0.push(LevelEdit { level, edit });
                    }
                }
                Ok(())
            }
            other => Err(refused(&Value::bytes(other))),
        }
    }

    /// Edits a finished description.
    pub(super) fn apply(&self, sdp: &mut Sdp) {
        for LevelEdit { level, edit } in &self.0 {
            match level {
                Level::Session => edit.apply(&mut sdp.session),
                Level::Media(kind) => {
                    for media in &mut sdp.media {
                        if media.media_line().is_ok_and(|line| line.kind == *kind) {
                            edit.apply(media);
                        }
                    }
                }
            }
        }
    }
}

const KEY: &str = "sdp-attr";

fn dictionary(value: &Value) -> Result<&Dictionary, Refusal> {
    match value {
        Value::Dictionary(dictionary) => Ok(dictionary),
        other => Err(refused(other)),
    }
}

fn refused(value: &Value) -> Refusal {
    let allowed = "a dictionary with the keys none, global, audio or video; each value is a dictionary with the keys add, remove or \
    substitute, which list attributes without a=";
    Refusal::value(KEY, value, allowed)
}

impl Edit {
    fn apply(&self, section: &mut Section) {
        match self {
            // "If the attribute with such value already exists [...] nothing extra is being added."
            Edit::Add(text) => {
                let (name, value) = text.split_once(':').unwrap_or((text, ""));
                let is_there = section.attributes().any(|one| one == (name, value));
                if !is_there {
                    section.add_attribute(name, value);
                }
            }
            Edit::Remove(pattern) => {
                section.remove_attributes(|name, value| is_meant(&joined(name, value), pattern));
            }
            Edit::Substitute { pattern, text } => section.edit_lines(|line| {
                if line.text_of(b'a').is_some_and(|own| is_meant(own, pattern)) {
                    line.set_text(&format!("a={text}"));
                }
            }),
        }
    }
}

fn joined(name: &str, value: &str) -> String {
    match value {
        "" => name.to_owned(),
        value => format!("{name}:{value}"),
    }
}

/// Whether a request's pattern matches an attribute. "the attribute `a=foo:bar baz quuz` would match any of `foo`, `foo:bar`, or `foo:bar
/// baz quuz`". An older page uses `ssrc:` for all attributes of that name.
fn is_meant(attribute: &str, pattern: &str) -> bool {
    let Some(rest) = attribute.strip_prefix(pattern) else {
        return false;
    };
    let is_name = !pattern.contains(':') && rest.starts_with(':');
    let is_tag = pattern.contains(':') && rest.starts_with(' ');
    rest.is_empty() || pattern.ends_with(':') || is_name || is_tag
}
