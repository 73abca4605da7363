//! What is wrong with a configuration file, said with the line it is in.

use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource};

/// A configuration that is refused: everything found wrong with it, up to [`PROBLEMS_MAX`].
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("the configuration {path} is not usable")]
pub struct ConfigError {
    /// The file's name as the user gave it.
    pub path: String,
    /// At least one.
    #[related]
    pub problems: Vec<Problem>,
}

/// One thing that is wrong, with its place.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub struct Problem {
    /// Names the key and the value.
    pub message: String,
    /// Says what is allowed, or what to do.
    #[help]
    pub help: Option<String>,
    #[source_code]
    source_code: NamedSource<Arc<str>>,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
}

impl Problem {
    /// The lines (counted from 1) the problem points at.
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
}

impl Problems {
    pub(super) fn new(path: &str, text: &str) -> Self {
        Problems {
            path: path.to_owned(),
            text: text.into(),
            found: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        message: impl Into<String>,
        help: &str,
        places: &[(Range<usize>, &str)],
    ) {
        let message = message.into();
        // A bad value in [defaults] is met again by every stream that uses it.
        if self.found.len() >= PROBLEMS_MAX
            || self.found.iter().any(|known| known.message == message)
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

    pub(super) fn into_result<T>(self, value: T) -> Result<T, ConfigError> {
        match self.found.is_empty() {
            true => Ok(value),
            false => Err(ConfigError {
                path: self.path,
                problems: self.found,
            }),
        }
    }
}

/// More than a screen of errors helps nobody.
const PROBLEMS_MAX: usize = 16;
