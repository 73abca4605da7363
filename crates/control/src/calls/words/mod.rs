//! The table of all keys, flags and values in the public documentation of the ng protocol, and how each is handled here. `docs/ng.md`
//! contains the same table.
//!
//! An unsupported word is refused or causes a warning if it would change the media. A word that is not in the table is logged once.

mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::ng::{Dictionary, Refusal, Request, Value};
use crate::text::shown;

pub use table::WORDS;

/// Where a word is in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A key of the dictionary.
    Key,
    /// A flag in the list `flags`, or in `rtpp-flags`.
    Flag,
    /// The value of this key, or a value in its list.
    Value(&'static str),
    /// A key of the dictionary `codec`, or a flag with the prefix `codec-`.
    Codec,
}

/// How a word is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The word has its documented effect, apart from the exception in the remark.
    Done,
    /// The word has no effect, and the media are the same without it.
    Ignored,
    /// The word has no effect, and the remark is a warning in the reply.
    Warned,
    /// The request fails.
    Refused,
}

impl Fate {
    /// Returns the name that the documentation uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fate::Done => "done",
            Fate::Ignored => "ignored",
            Fate::Warned => "warned",
            Fate::Refused => "refused",
        }
    }
}

/// A word of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Where the word is in a request.
    pub place: Place,
    /// The word, with hyphens for spaces. A `*` at the end stands for any text.
    pub name: &'static str,
    /// How the word is handled.
    pub fate: Fate,
    /// A remark: a sentence, or part of one.
    pub remark: &'static str,
}

impl Word {
    fn is(&self, place: Place, name: &str) -> bool {
        let same = match self.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => self.name == name,
        };
        self.place == place && same
    }
}

/// An index of the table by names. A request contains only a few of the hundreds of words.
struct Index {
    whole: HashMap<(Place, &'static str), &'static Word>,
    /// Words that end in `*`.
    beginnings: Vec<&'static Word>,
    /// The values of the keys that allow only certain values.
    values: HashMap<&'static str, Vec<&'static Word>>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut index = Index {
        whole: HashMap::new(),
        beginnings: Vec::new(),
        values: HashMap::new(),
    };
    for word in WORDS {
        if word.name.ends_with('*') {
            index.beginnings.push(word)
        } else {
            index.whole.insert((word.place, word.name), word);
        }
        if let Place::Value(key) = word.place {
            index.values.entry(key).or_default().push(word);
        }
    }
    index
});

fn find(place: Place, name: &str) -> Option<&'static Word> {
    let whole = INDEX.whole.get(&(place, name)).copied();
    whole.or_else(|| {
        let mut beginnings = INDEX.beginnings.iter().copied();
        beginnings.find(|word| word.is(place, name))
    })
}

/// A key, flag or value that is not in the table. The text is shortened, and states where the word was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unknown(pub String);

/// Warnings about words that are not supported, in the order of the request.
#[derive(Debug, Default)]
pub(super) struct WordWarnings {
    texts: Vec<String>,
}

impl WordWarnings {
    fn note(&mut self, word: &Word) {
        let text = match word.place {
            Place::Value(key) => format!("{key} {}: {}", word.name, word.remark),
            Place::Key | Place::Flag | Place::Codec => format!("{}: {}", word.name, word.remark),
        };
        if word.fate == Fate::Warned && !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    /// Adds these warnings to the key `warning` of a reply.
    pub(super) fn tell(self, keys: &mut Dictionary) {
        if self.texts.is_empty() {
            return;
        }
        let before = keys.get("warning").and_then(Value::as_text);
        let all: Vec<String> = before
            .map(str::to_owned)
            .into_iter()
            .chain(self.texts)
            .collect();
        keys.set("warning", all.join("; "));
    }
}

/// Checks all words of a request. Passes words that are not in the table to `unknown`, and returns the warnings.
///
/// # Errors
/// Fails if a word is refused, or is not a valid value of its key.
pub(super) fn check(
    request: &Request,
    unknown: &mut dyn FnMut(Unknown),
) -> Result<WordWarnings, Refusal> {
    let mut warnings = WordWarnings::default();
    for (key, value) in request.keys().iter() {
        let name = std::str::from_utf8(key).unwrap_or_default();
        let Some(word) = find(Place::Key, name) else {
            unknown(Unknown(format!("key {}", shown(key))));
            continue;
        };
        if word.fate == Fate::Refused {
            return Err(refused(word.name, value, word));
        }
        warnings.note(word);
        match word.name {
            "flags" => check_flags(value, unknown, &mut warnings)?,
            "codec" => check_codec(value, unknown)?,
            key => check_values(key, value, &mut warnings)?,
        }
    }
    Ok(warnings)
}

fn refused(key: &'static str, value: &Value, word: &Word) -> Refusal {
    let allowed = match word.remark {
        "" => "a request without this word, which is not supported".to_owned(),
        remark => format!("a request without this word, because {remark}"),
    };
    Refusal::value(key, value, allowed)
}

fn each(value: &Value) -> &[Value] {
    match value {
        Value::List(values) => values,
        one => std::slice::from_ref(one),
    }
}

fn check_flags(
    flags: &Value,
    unknown: &mut dyn FnMut(Unknown),
    warnings: &mut WordWarnings,
) -> Result<(), Refusal> {
    for flag in each(flags) {
        let name = flag.as_text().unwrap_or_default();
        match find(Place::Flag, name) {
            Some(word) if word.fate == Fate::Refused => return Err(refused("flags", flag, word)),
            Some(word) => warnings.note(word),
            None => unknown(Unknown(format!("flag {}", flag.shown()))),
        }
    }
    Ok(())
}

fn check_codec(codec: &Value, unknown: &mut dyn FnMut(Unknown)) -> Result<(), Refusal> {
    let Value::Dictionary(lists) = codec else {
        return Err(Refusal::value("codec", codec, "a dictionary"));
    };
    for (list, value) in lists.iter() {
        let name = std::str::from_utf8(list).unwrap_or_default();
        match find(Place::Codec, name) {
            Some(word) if word.fate == Fate::Refused => return Err(refused("codec", value, word)),
            Some(_) => {}
            None => unknown(Unknown(format!("codec list {}", shown(list)))),
        }
    }
    Ok(())
}

/// Checks the values of a key that allows only certain values.
fn check_values(
    key: &'static str,
    value: &Value,
    warnings: &mut WordWarnings,
) -> Result<(), Refusal> {
    let Some(all) = INDEX.values.get(key) else {
        return Ok(());
    };
    for one in each(value) {
        let name = match one {
            Value::Integer(number) => number.to_string(),
            other => other.as_text().unwrap_or_default().replace(' ', "-"),
        };
        let found = find(Place::Value(key), &name);
        if found.is_none_or(|word| word.fate == Fate::Refused) {
            let allowed = all.iter().filter(|word| word.fate != Fate::Refused);
            let allowed: Vec<&str> = allowed.map(|word| word.name).collect();
            let remark = found.map_or("", |word| word.remark);
            let separator = if remark.is_empty() { "" } else { ": " };
            let allowed = format!("one of {}{separator}{remark}", allowed.join(", "));
            return Err(Refusal::value(key, one, allowed));
        }
        if let Some(word) = found {
            warnings.note(word);
        }
    }
    Ok(())
}

/// Returns the table in Markdown, as in `docs/ng.md`, with a section for each place in a request.
#[must_use]
pub fn documentation() -> String {
    let mut out = String::new();
    let mut places: Vec<Place> = Vec::new();
    for word in WORDS {
        if !places.contains(&word.place) {
            places.push(word.place);
        }
    }
    for place in places {
        let title = match place {
            Place::Key => "Keys".to_owned(),
            Place::Flag => "Flags".to_owned(),
            Place::Codec => "Lists of `codec`".to_owned(),
            Place::Value(key) => format!("Values of `{key}`"),
        };
        out += &format!("### {title}\n\n| word | fate | remark |\n|---|---|---|\n");
        for word in WORDS.iter().filter(|word| word.place == place) {
            let Word { name, remark, .. } = word;
            out += &format!("| `{name}` | {} | {remark} |\n", word.fate.name());
        }
        out += "\n";
    }
    out
}

/// Returns the words that are refused or cause a warning, in Markdown, as in `docs/missing.md`. There is a row for each reason.
#[must_use]
pub fn missing_documentation() -> String {
    let mut rows: Vec<(&str, Fate, Vec<String>)> = Vec::new();
    for word in WORDS {
        if !matches!(word.fate, Fate::Refused | Fate::Warned) {
            continue;
        }
        let name = match word.place {
            Place::Value(key) => format!("`{key}={}`", word.name),
            Place::Key | Place::Flag | Place::Codec => format!("`{}`", word.name),
        };
        let same =
            |row: &&mut (&str, Fate, Vec<String>)| (row.0, row.1) == (word.remark, word.fate);
        match rows.iter_mut().find(same) {
            Some((_, _, names)) if names.contains(&name) => {}
            Some((_, _, names)) => names.push(name),
            None => rows.push((word.remark, word.fate, vec![name])),
        }
    }
    let mut out = "| words | reason | fate |\n|---|---|---|\n".to_owned();
    for (remark, fate, names) in rows {
        out += &format!("| {} | {remark} | {} |\n", names.join(", "), fate.name());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unique_and_refusals_have_reasons() {
        for (at, word) in WORDS.iter().enumerate() {
            let again = WORDS[at + 1..]
                .iter()
                .any(|other| (other.place, other.name) == (word.place, word.name));
            assert!(!again, "{word:?} stands twice");
            let needs_reason = matches!(word.fate, Fate::Refused | Fate::Warned);
            assert!(
                !needs_reason || !word.remark.is_empty(),
                "{word:?} has no reason"
            );
            assert!(
                !word.remark.contains('|') && !word.name.contains(' '),
                "{word:?}"
            );
        }
    }

    #[test]
    fn index_equals_a_search_of_the_table() {
        let names = WORDS.iter().map(|word| word.name.to_owned());
        let longer = WORDS.iter().map(|word| word.name.replace('*', "x"));
        let names: Vec<String> = names.chain(longer).chain([String::new()]).collect();
        let places = WORDS.iter().map(|word| word.place);
        for place in places.collect::<std::collections::HashSet<_>>() {
            for name in &names {
                let plain = WORDS.iter().find(|word| word.is(place, name));
                assert_eq!(find(place, name), plain, "{place:?} {name}");
            }
        }
    }
}
