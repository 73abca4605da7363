//! The list of recordings, in memory and in the journal of each folder. This module produces and parses the journals' lines, and uses no
//! file or clock.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::loudness::FileLoudness;
use super::sound::{Coding, Sound};
use super::wav::Notes;
use threadbare_config::RecordingFormat;

/// The subject of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A stream, by its name.
    Stream(Arc<str>),
    /// A call, by its Call-ID.
    Call(Arc<str>),
}

/// The state of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordingState {
    /// The file is being written.
    Running,
    /// The file is complete.
    Complete,
    /// A disk error has cut off the file.
    Cut,
    /// The process ended before the file was complete, and the next process has repaired the file.
    Recovered,
}

impl RecordingState {
    /// Returns the name of the state in replies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RecordingState::Running => "running",
            RecordingState::Complete => "complete",
            RecordingState::Cut => "cut",
            RecordingState::Recovered => "recovered",
        }
    }
}

/// A file of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Unique id. Files that started later have greater ids.
    pub id: String,
    /// The stream or call that is recorded.
    pub of: Subject,
    /// Path of the file below its folder.
    pub path: PathBuf,
    /// Format of the file.
    pub format: RecordingFormat,
    pub(super) coding: Coding,
    /// Frames per second. It is 0 for packets.
    pub rate_hz: u32,
    /// Channels of a frame.
    pub channels: u8,
    pub(super) tracks: u8,
    /// Start time in ms since 1970.
    pub started_unix_ms: u64,
    /// State of the file.
    pub state: RecordingState,
    /// Duration of the audio.
    pub duration_ms: u64,
    /// Size of the file.
    pub bytes: u64,
    /// Duration of the silence that replaces audio lost because the disk was too slow, in ms.
    pub missed_ms: u64,
    /// Loudness of the audio. `None`: it was not measured, or the audio is too quiet.
    pub loudness: Option<FileLoudness>,
    /// The reason for which the file was cut off.
    pub error: Option<String>,
    /// Location in the object store. `None`: the file is on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

impl Entry {
    /// Returns the name of the stream, or the Call-ID.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.of {
            Subject::Stream(name) | Subject::Call(name) => name,
        }
    }

    /// Returns the content type of the file.
    #[must_use]
    pub fn content_type(&self) -> &'static str {
        match self.path.extension().and_then(|ending| ending.to_str()) {
            Some("wav") => "audio/wav",
            Some("mka") => "audio/x-matroska",
            _ => "application/vnd.tcpdump.pcap",
        }
    }

    pub(super) fn sound(&self) -> Sound {
        Sound {
            coding: self.coding,
            channels: self.channels.max(1),
            rate_hz: self.rate_hz.max(1),
        }
    }

    pub(super) fn notes(&self) -> Notes {
        let ms = i64::try_from(self.started_unix_ms).unwrap_or(0);
        let began = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
        Notes {
            title: self.name().to_owned(),
            began: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            time_reference: self.started_unix_ms % MS_PER_DAY * u64::from(self.rate_hz) / 1000,
            loudness: self.loudness,
        }
    }

    /// Returns the path below the folder that the file has while it grows.
    pub(super) fn part_path(&self) -> PathBuf {
        let ending = self.format.ending();
        let id = &self.id;
        self.with_stem(|stem| format!("{stem}.{id}.part.{ending}"))
    }

    /// Returns the path below the folder that the complete file gets if another file has the wanted name.
    pub(super) fn other_path(&self) -> PathBuf {
        let ending = self.format.ending();
        let id = &self.id;
        self.with_stem(|stem| format!("{stem}-{id}.{ending}"))
    }

    fn with_stem(&self, name: impl FnOnce(&str) -> String) -> PathBuf {
        let stem = self.path.file_stem().and_then(|stem| stem.to_str());
        self.path.with_file_name(name(stem.unwrap_or_default()))
    }

    /// Whether the path stays below the folder. This must be checked because the journal is not trusted.
    fn is_inside(&self) -> bool {
        let is_name = |part| matches!(part, Component::Normal(_));
        self.path.components().count() > 0 && self.path.components().all(is_name)
    }
}

/// Returns a file as JSON for programs. `path` is relative to the folder of the file.
#[must_use]
pub fn recording_message(entry: &Entry) -> serde_json::Value {
    let (stream, call) = match &entry.of {
        Subject::Stream(name) => (Some(&**name), None),
        Subject::Call(name) => (None, Some(&**name)),
    };
    serde_json::json!({
        "recording": entry.id,
        "state": entry.state.name(),
        "stream": stream,
        "call": call,
        "path": entry.path.display().to_string(),
        "format": entry.format.name(),
        "started_unix_ms": entry.started_unix_ms,
        "duration_ms": entry.duration_ms,
        "bytes": entry.bytes,
        "missed_ms": entry.missed_ms,
        "integrated_lufs": entry.loudness.map(|one| one.integrated_lufs),
        "range_lu": entry.loudness.map(|one| one.range_lu),
        "true_peak_dbtp": entry.loudness.map(|one| one.true_peak_dbtp),
        "error": entry.error,
        "uri": entry.uri,
    })
}

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Line {
    Begun(Entry),
    Ended(Entry),
    Gone(String),
}

impl Line {
    /// Encodes the line, including the end of the line.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // This cannot fail, because each value can be written as JSON.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Parses the lines of a journal. Returns the entries by id, and the number of invalid lines.
pub(super) fn read_lines(lines: impl Iterator<Item = String>) -> (BTreeMap<String, Entry>, usize) {
    let (mut entries, mut odd) = (BTreeMap::new(), 0);
    for line in lines {
        match serde_json::from_str(&line) {
            Ok(Line::Begun(entry) | Line::Ended(entry)) if entry.is_inside() => {
                entries.insert(entry.id.clone(), entry);
                if entries.len() > ENTRIES_MAX {
                    entries.pop_first();
                }
            }
            Ok(Line::Gone(id)) => drop(entries.remove(&id)),
            _ => odd += 1,
        }
    }
    (entries, odd)
}

/// A query for recordings.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Only recordings of this stream.
    pub stream: Option<String>,
    /// Only recordings of this call.
    pub call: Option<String>,
    /// Only recordings in this state.
    pub state: Option<String>,
    /// Only recordings with ids after this one.
    pub after: Option<String>,
    /// Maximum number of recordings.
    pub limit: usize,
}

/// All files of all folders.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: BTreeMap<String, (Arc<Path>, Entry)>,
}

impl Index {
    /// Adds or updates a file. If there are too many files, forgets the oldest one.
    pub(super) fn put(&mut self, root: &Arc<Path>, entry: Entry) {
        self.entries.insert(entry.id.clone(), (root.clone(), entry));
        if self.entries.len() > ENTRIES_MAX {
            self.entries.pop_first();
        }
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.entries.remove(id);
    }

    /// Returns a file and its folder.
    pub(super) fn find(&self, id: &str) -> Option<&(Arc<Path>, Entry)> {
        self.entries.get(id)
    }

    /// Encodes a journal with all files of a folder.
    pub(super) fn to_journal(&self, root: &Path) -> Vec<u8> {
        let own = self.entries.values().filter(|(known, _)| **known == *root);
        own.flat_map(|(_, entry)| Line::Begun(entry.clone()).to_bytes())
            .collect()
    }

    /// Returns the complete files of a folder that are not in a store.
    pub(super) fn whole(&self, root: &Path) -> Vec<Entry> {
        let is_left = |(of, entry): &&(Arc<Path>, Entry)| {
            let is_whole = entry.state != RecordingState::Running;
            &**of == root && is_whole && entry.uri.is_none()
        };
        let left = self.entries.values().filter(is_left);
        left.map(|(_, entry)| entry.clone()).collect()
    }

    /// Returns the file with this path.
    pub(super) fn find_path(&self, root: &Path, path: &Path) -> Option<Entry> {
        let is_it = |(of, entry): &&(Arc<Path>, Entry)| &**of == root && entry.path == path;
        // The search starts at the end, because the recording is usually one of the last.
        let found = self.entries.values().rev().find(is_it);
        found.map(|(_, entry)| entry.clone())
    }

    /// Returns entries in the order of their ids, and whether there are more.
    pub(super) fn list(&self, asked: &Asked) -> (Vec<Entry>, bool) {
        let is_asked = |entry: &&Entry| {
            let (stream, call) = match &entry.of {
                Subject::Stream(name) => (Some(&**name), None),
                Subject::Call(name) => (None, Some(&**name)),
            };
            let fits = |wanted: &Option<String>, own: Option<&str>| {
                wanted.as_deref().is_none_or(|wanted| own == Some(wanted))
            };
            fits(&asked.stream, stream)
                && fits(&asked.call, call)
                && fits(&asked.state, Some(entry.state.name()))
        };
        let after = asked.after.as_deref().unwrap_or_default();
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let entries = self.entries.range::<str, _>(behind).map(|(_, one)| &one.1);
        let mut found: Vec<Entry> = entries
            .filter(is_asked)
            .take(asked.limit + 1)
            .cloned()
            .collect();
        let has_more = found.len() > asked.limit;
        found.truncate(asked.limit);
        (found, has_more)
    }
}

/// Maximum number of entries. An entry has about 500 bytes.
const ENTRIES_MAX: usize = 100_000;
const MS_PER_DAY: u64 = 86_400_000;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn entry(id: &str, path: &str) -> Entry {
        Entry {
            id: id.to_owned(),
            of: Subject::Call("a b".into()),
            path: path.into(),
            format: RecordingFormat::Wav,
            coding: Coding::Linear,
            rate_hz: 8000,
            channels: 2,
            tracks: 2,
            started_unix_ms: 1_795_642_560_000,
            state: RecordingState::Running,
            duration_ms: 0,
            bytes: 0,
            missed_ms: 0,
            loudness: None,
            error: None,
            uri: None,
        }
    }

    #[test]
    fn journal_lists_recordings_despite_damage() {
        let text = |line: Line| String::from_utf8(line.to_bytes()).expect("JSON");
        let ended = Entry {
            state: RecordingState::Complete,
            loudness: Some(FileLoudness {
                integrated_lufs: -23.0,
                range_lu: 1.0,
                true_peak_dbtp: -3.5,
            }),
            ..entry("1", "x/a.wav")
        };
        let lines = [
            text(Line::Begun(entry("1", "x/a.wav"))),
            text(Line::Begun(entry("2", "b.wav"))),
            text(Line::Begun(entry("3", "c.wav"))),
            text(Line::Ended(ended.clone())),
            text(Line::Gone("2".to_owned())),
            text(Line::Begun(entry("4", "../c.wav"))),
            text(Line::Begun(entry("5", "/etc/passwd"))),
            text(Line::Begun(entry("6", ""))),
            "{\"begun\": ".to_owned(),
        ];
        let (entries, odd) = read_lines(lines.into_iter());
        let ids: Vec<&str> = entries.keys().map(String::as_str).collect();
        assert_eq!(ids, ["1", "3"]);
        assert_eq!(odd, 4);
        assert_eq!(entries["1"], ended);
        assert_eq!(entries["3"].state, RecordingState::Running);
        assert_eq!(ended.part_path(), Path::new("x/a.1.part.wav"));
        assert_eq!(ended.other_path(), Path::new("x/a-1.wav"));
        assert_eq!(ended.notes().began, "2026-11-25T21:36:00Z");
    }

    #[test]
    fn journal_is_rewritten_with_the_existing_recordings() {
        let roots: [Arc<Path>; 2] = [Path::new("/r").into(), Path::new("/s").into()];
        let mut index = Index::default();
        for (n, root) in roots.iter().cycle().take(6).enumerate() {
            index.put(root, entry(&n.to_string(), "a.wav"));
        }
        index.remove("2");
        let journal = String::from_utf8(index.to_journal(&roots[0])).expect("JSON");
        let (entries, odd) = read_lines(journal.lines().map(str::to_owned));
        let ids: Vec<&str> = entries.keys().map(String::as_str).collect();
        assert_eq!((&ids[..], odd), (&["0", "4"][..], 0));
    }

    #[test]
    fn recordings_are_listed_page_by_page() {
        let mut index = Index::default();
        let root: Arc<Path> = Path::new("/r").into();
        for n in 0..5 {
            let mut one = entry(&n.to_string(), "a.wav");
            if n == 3 {
                one.of = Subject::Stream("s".into());
            }
            index.put(&root, one);
        }
        let ids = |asked: Asked| {
            let (found, has_more) = index.list(&asked);
            let ids: String = found.iter().map(|one| one.id.as_str()).collect();
            (ids, has_more)
        };
        let all = Asked {
            limit: 9,
            ..Asked::default()
        };
        assert_eq!(ids(all.clone()), ("01234".to_owned(), false));
        let some = Asked {
            limit: 2,
            after: Some("1".to_owned()),
            call: Some("a b".to_owned()),
            ..all.clone()
        };
        assert_eq!(ids(some.clone()), ("24".to_owned(), false));
        assert_eq!(ids(Asked { limit: 1, ..some }), ("2".to_owned(), true));
        let of_stream = Asked {
            stream: Some("s".to_owned()),
            ..all.clone()
        };
        assert_eq!(ids(of_stream), ("3".to_owned(), false));
        let whole = Asked {
            state: Some("complete".to_owned()),
            ..all
        };
        assert_eq!(ids(whole), (String::new(), false));
    }
}
