//! Stores the last log lines about each stream and call, so that the web page and the API show the same lines as the log. The
//! field `stream` or `call` of a log event names the stream or call.
//!
//! Media workers write log lines, too. Here, they wait only for a short lock; standard error also has a lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentLine {
    /// Time of the line, ms since 1970.
    pub unix_ms: u64,
    /// The level.
    pub level: Level,
    /// The message, and the other fields as `name=value`.
    pub text: String,
}

/// The subject of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A stream of the configuration.
    Stream,
    /// A call.
    Call,
}

/// The lines of all streams, and those of all calls. Clones share them. They are stored separately, so that the lines of many
/// short calls do not displace those of streams.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentLines(Arc<[Mutex<Lines>; 2]>);

#[derive(Debug, Default)]
struct Lines {
    /// All lines, in the order of their numbers.
    all: BTreeMap<u64, (Arc<str>, RecentLine)>,
    /// The numbers of each subject's lines, oldest first.
    of_subject: HashMap<Arc<str>, VecDeque<u64>>,
    next: u64,
}

/// Returns the recent lines about a stream or a call, newest first.
#[must_use]
pub fn last_lines(subject: Subject, name: &str) -> Vec<RecentLine> {
    of_process().last(subject, name)
}

/// Returns the lines of this process, which has a single log.
pub(super) fn of_process() -> &'static RecentLines {
    static RECENT: OnceLock<RecentLines> = OnceLock::new();
    RECENT.get_or_init(RecentLines::default)
}

impl RecentLines {
    fn of(&self, subject: Subject) -> MutexGuard<'_, Lines> {
        let lines = &self.0[subject as usize];
        lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self, subject: Subject, name: &str) -> Vec<RecentLine> {
        let lines = self.of(subject);
        let numbers = lines.of_subject.get(name).into_iter().flatten().rev();
        let found = numbers.filter_map(|number| lines.all.get(number));
        found.map(|(_, line)| line.clone()).collect()
    }

    fn add(&self, subject: Subject, name: &str, line: RecentLine) {
        self.of(subject).add(name, line);
    }
}

impl Lines {
    fn add(&mut self, name: &str, line: RecentLine) {
        let known = self.of_subject.get_key_value(name);
        let name = known.map_or_else(|| Arc::from(name), |(name, _)| name.clone());
        let number = self.next;
        self.next += 1;
        let numbers = self.of_subject.entry(name.clone()).or_default();
        numbers.push_back(number);
        let excess = (numbers.len() > LINES_PER_SUBJECT)
            .then(|| numbers.pop_front())
            .flatten();
        if let Some(oldest) = excess {
            self.all.remove(&oldest);
        }
        self.all.insert(number, (name, line));
        if self.all.len() > LINES_MAX {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        let Some((_, (name, _))) = self.all.pop_first() else {
            return;
        };
        if let Some(numbers) = self.of_subject.get_mut(&name) {
            // The oldest line of all is also the oldest of its subject.
            numbers.pop_front();
            if numbers.is_empty() {
                self.of_subject.remove(&name);
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for RecentLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let names = event.metadata().fields();
        let is_about = |(_, field): &(Subject, &str)| names.field(field).is_some();
        // An event about a stream or call has one of the two fields.
        let named = SUBJECTS
            .into_iter()
            .filter(is_about)
            .find_map(|(subject, field)| {
                let mut fields = Fields::of(field);
                event.record(&mut fields);
                Some((subject, fields.name.take()?, fields))
            });
        let Some((subject, name, fields)) = named else {
            return;
        };
        let mut text = fields.message;
        text.push_str(&fields.others);
        truncate(&mut text);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = RecentLine {
            unix_ms: since.map_or(0, |since| since.as_millis() as u64),
            level: *event.metadata().level(),
            text,
        };
        self.add(subject, &name, line);
    }
}

/// Collects the fields of an event, as text.
#[derive(Debug)]
struct Fields {
    /// The field with the subject's name.
    field: &'static str,
    name: Option<String>,
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            name if name == self.field => self.name = Some(value.to_owned()),
            "message" => self.message.push_str(value),
            name => self.add(name, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            name if name == self.field => self.name = Some(format!("{value:?}")),
            "message" => self.message.push_str(&format!("{value:?}")),
            name => self.add(name, value),
        }
    }
}

impl Fields {
    fn of(field: &'static str) -> Fields {
        Fields {
            field,
            name: None,
            message: String::new(),
            others: String::new(),
        }
    }

    fn add(&mut self, name: &str, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.others, " {name}={value:?}");
    }
}

fn truncate(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(LINE_CHARS) {
        text.truncate(end);
        text.push('…');
    }
}

/// The field that names the subject, for each kind of subject.
const SUBJECTS: [(Subject, &str); 2] = [(Subject::Stream, "stream"), (Subject::Call, "call")];
/// Maximum number of lines about a subject. They fill one or two screens, or cover an hour of a stream that fails at the
/// longest restart interval.
const LINES_PER_SUBJECT: usize = 50;
/// Maximum number of lines about all streams, and of lines about all calls. With the longest lines, this takes 20 MB; with
/// typical lines, 3 MB.
const LINES_MAX: usize = 10_000;
/// Maximum length of a line. Errors of the system, and of elements with their source positions, are shorter.
const LINE_CHARS: usize = 500;

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn texts(recent: &RecentLines, stream: &str) -> Vec<String> {
        texts_of(recent, Subject::Stream, stream)
    }

    fn texts_of(recent: &RecentLines, subject: Subject, name: &str) -> Vec<String> {
        let lines = recent.last(subject, name).into_iter();
        lines.map(|line| line.text).collect()
    }

    #[test]
    fn only_lines_about_streams_and_calls_are_stored() {
        let recent = RecentLines::default();
        let subscriber = tracing_subscriber::registry().with(recent.clone());
        tracing::subscriber::with_default(subscriber, || {
            let (stream, port) = ("news", 5000);
            tracing::warn!(stream, port, reason = "a \"wall\"", "it {}", "failed");
            tracing::info!(stream = %"news", suppressed = None::<u64>, "it is back");
            tracing::info!(call = "news", "of a call");
            let (call, stream) = (Some("either"), None::<&str>);
            tracing::info!(call, stream, "of a call, not of a stream");
            tracing::info!(port, "of nobody");
            tracing::error!(stream = "sports", "{}", "ä".repeat(2000));
        });
        assert_eq!(
            texts(&recent, "news"),
            [
                "it is back",
                "it failed port=5000 reason=\"a \\\"wall\\\"\""
            ]
        );
        let levels: Vec<Level> = recent
            .last(Subject::Stream, "news")
            .iter()
            .map(|line| line.level)
            .collect();
        assert_eq!(levels, [Level::INFO, Level::WARN]);
        assert_eq!(
            texts(&recent, "sports"),
            [format!("{}…", "ä".repeat(LINE_CHARS))]
        );
        assert_eq!(texts(&recent, "nobody"), [""; 0]);
        assert_eq!(texts_of(&recent, Subject::Call, "news"), ["of a call"]);
        let of_either = texts_of(&recent, Subject::Call, "either");
        assert_eq!(of_either, ["of a call, not of a stream"]);
        assert_eq!(recent.of(Subject::Call).all.len(), 2);
    }

    #[test]
    fn new_lines_replace_the_oldest_lines() {
        let recent = RecentLines::default();
        let line = |text: String| RecentLine {
            unix_ms: 0,
            level: Level::INFO,
            text,
        };
        recent.add(Subject::Stream, "first", line("0".to_owned()));
        for n in 0..3 * LINES_PER_SUBJECT {
            recent.add(Subject::Stream, "chatty", line(n.to_string()));
        }
        let last = (2 * LINES_PER_SUBJECT..3 * LINES_PER_SUBJECT).rev();
        let last: Vec<String> = last.map(|n| n.to_string()).collect();
        assert_eq!(texts(&recent, "chatty"), last);
        assert_eq!(texts(&recent, "first"), ["0"]);
        // With more streams than the limit, the oldest lines are removed.
        for n in 0..LINES_MAX {
            recent.add(Subject::Stream, &format!("stream {n}"), line(String::new()));
        }
        for gone in ["first", "chatty"] {
            assert_eq!(texts(&recent, gone), [""; 0]);
        }
        let lines = recent.of(Subject::Stream);
        assert_eq!(
            (lines.all.len(), lines.of_subject.len()),
            (LINES_MAX, LINES_MAX)
        );
    }
}
