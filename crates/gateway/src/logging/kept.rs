//! The last lines of the log that belong to a stream or a call: those of events with its name in the field `stream` or `call`. Kept as the log has them, no
//! line more, for who looks at it in a browser.
//!
//! Threads that carry media log, too: what they wait for here is a short lock, where standard error has one of its own.

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
pub struct KeptLine {
    /// When it was written, ms since 1970.
    pub unix_ms: u64,
    /// How bad it is.
    pub level: Level,
    /// The message, and the other fields as `name=value`.
    pub text: String,
}

/// What lines are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A stream of the file.
    Stream,
    /// A call.
    Call,
}

/// The lines of all streams and calls. Clones are one. Calls come and go: their lines take no room from those of streams.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(Arc<[Mutex<Lines>; 2]>);

#[derive(Debug, Default)]
struct Lines {
    /// By numbers that grow.
    all: BTreeMap<u64, (Arc<str>, KeptLine)>,
    /// Numbers of each subject, oldest first.
    of_subject: HashMap<Arc<str>, VecDeque<u64>>,
    next: u64,
}

/// The lines that this process has kept of a stream or a call, newest first.
#[must_use]
pub fn last_lines(subject: Subject, name: &str) -> Vec<KeptLine> {
    of_process().last(subject, name)
}

/// Those of this process: its log is one, too.
pub(super) fn of_process() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(Kept::default)
}

impl Kept {
    fn of(&self, subject: Subject) -> MutexGuard<'_, Lines> {
        let lines = &self.0[subject as usize];
        lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self, subject: Subject, name: &str) -> Vec<KeptLine> {
        let lines = self.of(subject);
        let numbers = lines.of_subject.get(name).into_iter().flatten().rev();
        let found = numbers.filter_map(|number| lines.all.get(number));
        found.map(|(_, line)| line.clone()).collect()
    }

    fn add(&self, subject: Subject, name: &str, line: KeptLine) {
        self.of(subject).add(name, line);
    }
}

impl Lines {
    fn add(&mut self, name: &str, line: KeptLine) {
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
            // The oldest of all is the oldest of its subject.
            numbers.pop_front();
            if numbers.is_empty() {
                self.of_subject.remove(&name);
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Kept {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let names = event.metadata().fields();
        let is_about = |(_, field): &(Subject, &str)| names.field(field).is_some();
        // What may be about either has one of the two.
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
        let line = KeptLine {
            unix_ms: since.map_or(0, |since| since.as_millis() as u64),
            level: *event.metadata().level(),
            text,
        };
        self.add(subject, &name, line);
    }
}

/// An event's fields, as texts.
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
        // Writing to a text does not fail.
        let _ = write!(self.others, " {name}={value:?}");
    }
}

fn truncate(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(LINE_CHARS) {
        text.truncate(end);
        text.push('…');
    }
}

/// The fields that name them.
const SUBJECTS: [(Subject, &str); 2] = [(Subject::Stream, "stream"), (Subject::Call, "call")];
/// A screen or two, and an hour of a stream that fails at the longest interval between restarts.
const LINES_PER_SUBJECT: usize = 50;
/// Of all streams, and of all calls: with the longest lines 20 MB, with usual ones 3.
const LINES_MAX: usize = 10_000;
/// An error of an operating system or of an element with its place in the source has less.
const LINE_CHARS: usize = 500;

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn texts(kept: &Kept, stream: &str) -> Vec<String> {
        texts_of(kept, Subject::Stream, stream)
    }

    fn texts_of(kept: &Kept, subject: Subject, name: &str) -> Vec<String> {
        let lines = kept.last(subject, name).into_iter();
        lines.map(|line| line.text).collect()
    }

    #[test]
    fn lines_of_subjects_are_kept_and_others_are_not() {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::registry().with(kept.clone());
        tracing::subscriber::with_default(subscriber, || {
            let (stream, port) = ("news", 5000);
            tracing::warn!(stream, port, reason = "a \"wall\"", "it {}", "failed");
            tracing::info!(stream = %"news", suppressed = None::<u64>, "it is back");
            tracing::info!(call = "news", "of a call");
            let (call, stream) = (Some("either"), None::<&str>);
            tracing::info!(call, stream, "of one or the other");
            tracing::info!(port, "of nobody");
            tracing::error!(stream = "sports", "{}", "ä".repeat(2000));
        });
        assert_eq!(
            texts(&kept, "news"),
            [
                "it is back",
                "it failed port=5000 reason=\"a \\\"wall\\\"\""
            ]
        );
        let levels: Vec<Level> = kept
            .last(Subject::Stream, "news")
            .iter()
            .map(|line| line.level)
            .collect();
        assert_eq!(levels, [Level::INFO, Level::WARN]);
        assert_eq!(
            texts(&kept, "sports"),
            [format!("{}…", "ä".repeat(LINE_CHARS))]
        );
        assert_eq!(texts(&kept, "nobody"), [""; 0]);
        assert_eq!(texts_of(&kept, Subject::Call, "news"), ["of a call"]);
        let of_either = texts_of(&kept, Subject::Call, "either");
        assert_eq!(of_either, ["of one or the other"]);
        assert_eq!(kept.of(Subject::Call).all.len(), 2);
    }

    #[test]
    fn the_oldest_lines_make_room() {
        let kept = Kept::default();
        let line = |text: String| KeptLine {
            unix_ms: 0,
            level: Level::INFO,
            text,
        };
        kept.add(Subject::Stream, "first", line("0".to_owned()));
        for n in 0..3 * LINES_PER_SUBJECT {
            kept.add(Subject::Stream, "chatty", line(n.to_string()));
        }
        let last = (2 * LINES_PER_SUBJECT..3 * LINES_PER_SUBJECT).rev();
        let last: Vec<String> = last.map(|n| n.to_string()).collect();
        assert_eq!(texts(&kept, "chatty"), last);
        assert_eq!(texts(&kept, "first"), ["0"]);
        // More streams than there is room for: what is oldest goes, and nothing of it stays.
        for n in 0..LINES_MAX {
            kept.add(Subject::Stream, &format!("stream {n}"), line(String::new()));
        }
        for gone in ["first", "chatty"] {
            assert_eq!(texts(&kept, gone), [""; 0]);
        }
        let lines = kept.of(Subject::Stream);
        assert_eq!(
            (lines.all.len(), lines.of_subject.len()),
            (LINES_MAX, LINES_MAX)
        );
    }
}
