//! The mistakes in a configuration file, each with its line.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource};

/// A refused configuration with its mistakes, at most [`PROBLEMS_MAX`] of them.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("the configuration {path} is not usable")]
pub struct ConfigError {
    /// Name of the file as the user gave it.
    pub path: String,
    /// The mistakes. There is at least one.
    #[related]
    pub problems: Vec<Problem>,
}

/// One mistake with its place.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub struct Problem {
    /// Message that names the key and the value.
    pub message: String,
    /// The allowed values, or what to do about the mistake.
    #[help]
    pub help: Option<String>,
    #[source_code]
    source_code: NamedSource<Arc<str>>,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
}

impl Problem {
    /// Returns the lines to which the problem points, counted from 1.
    pub fn lines(&self) -> Vec<usize> {
        let text = self.source_code.inner();
        let line = |offset: usize| {
            1 + text
                .bytes()
                .take(offset)
                .filter(|byte| *byte == b'\n')
                .count()
        };
        self.labels
            .iter()
            .map(|label| line(label.offset()))
            .collect()
    }
}

/// Collects problems while a file is checked.
pub(super) struct Problems {
    path: String,
    text: Arc<str>,
    found: Vec<Problem>,
    /// Places of unreadable values that were already reported. No further problems are reported for these places.
    silenced: HashSet<Range<usize>>,
    /// Places of lines that are not TOML.
    broken: Vec<Range<usize>>,
}

impl Problems {
    pub(super) fn new(path: &str, text: &str) -> Self {
        Problems {
            path: path.to_owned(),
            text: text.into(),
            found: Vec::new(),
            silenced: HashSet::new(),
            broken: Vec::new(),
        }
    }

    /// Adds a problem about text that is not TOML. The rest of its line is skipped.
    pub(super) fn add_syntax(&mut self, message: &str, place: Range<usize>) {
        self.add(message, "", &[(place.clone(), "here")]);
        self.broken.push(self.lines_of(&place));
    }

    /// Whether a part of the file is not TOML. A key that seems to be missing may be in that part.
    pub(super) fn has_syntax(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Adds a problem about a missing required key. `place` is the header of the key's table.
    pub(super) fn add_missing(
        &mut self,
        message: impl Into<String>,
        help: &str,
        place: Range<usize>,
    ) {
        if !self.has_syntax() {
            self.push(message.into(), help, &[(place, "in this table")]);
        }
    }

    /// Suppresses further problems that first point to `place`.
    pub(super) fn silence(&mut self, place: Range<usize>) {
        self.silenced.insert(place);
    }

    /// Returns a value as written. A long value is shortened.
    pub(super) fn excerpt(&self, place: Range<usize>) -> String {
        let text = self.text.get(place).unwrap_or_default();
        let mut excerpt: String = text.chars().take(EXCERPT_CHARACTERS_MAX).collect();
        if excerpt.len() < text.len() {
            excerpt.push('\u{2026}');
        }
        excerpt.replace('\n', " ")
    }

    fn lines_of(&self, place: &Range<usize>) -> Range<usize> {
        let text = self.text.as_bytes();
        let newline = |byte: &u8| *byte == b'\n';
        let (start, end) = (place.start.min(text.len()), place.end.min(text.len()));
        let first = text[..start].iter().rposition(newline).map_or(0, |n| n + 1);
        let last = text[end..].iter().position(newline).map(|n| end + n);
        first..last.unwrap_or(text.len())
    }

    fn is_broken(&self, place: &Range<usize>) -> bool {
        let touches = |line: &Range<usize>| line.start <= place.start && place.start <= line.end;
        self.broken.iter().any(touches)
    }

    pub(super) fn add(
        &mut self,
        message: impl Into<String>,
        help: &str,
        places: &[(Range<usize>, &str)],
    ) {
        let is_said = |(place, _): &(Range<usize>, &str)| {
            self.silenced.contains(place) || self.is_broken(place)
        };
        if !places.first().is_some_and(is_said) {
            self.push(message.into(), help, places);
        }
    }

    fn push(&mut self, message: String, help: &str, places: &[(Range<usize>, &str)]) {
        // A bad value of [defaults] is found again for each stream that uses it, but it is added only once.
        if self.found.len() >= PROBLEMS_MAX
            || self.found.iter().any(|known| {
                known.message == message
                    && known.labels.first().map(LabeledSpan::offset)
                        == places.first().map(|(place, _)| place.start)
            })
        {
            return;
        }
        let labels = places
            .iter()
            .map(|(span, label)| {
                LabeledSpan::new_with_span(Some((*label).to_owned()), span.clone())
            })
            .collect();
        self.found.push(Problem {
            message,
            help: (!help.is_empty()).then(|| help.to_owned()),
            source_code: NamedSource::new(&self.path, Arc::clone(&self.text)).with_language("TOML"),
            labels,
        });
    }

    /// Whether no problem was found so far.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn into_result<T>(self, value: T) -> Result<T, ConfigError> {
        if self.found.is_empty() {
            Ok(value)
        } else {
            Err(ConfigError {
                path: self.path,
                problems: self.found,
            })
        }
    }
}

/// Maximum number of reported problems. More problems than fit on a screen would not help.
const PROBLEMS_MAX: usize = 16;
/// Maximum number of characters of a value in a message. The whole line of the file is shown below the message.
const EXCERPT_CHARACTERS_MAX: usize = 40;
