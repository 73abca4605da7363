//! Records of calls that have ended: a line of JSON each, written by a thread of its own, as a disk may be slow.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use serde::Serialize;
use threadbare_control::calls::CallRecord;

use super::endings::EndedCall;
use super::shown::{StreamSide, Wall, sides};
use crate::limit::{LineLimit, Verdict};

/// The thread, from outside. Dropped, it writes what waits.
#[derive(Debug)]
pub(super) struct Records {
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    full: LineLimit,
}

#[derive(Debug)]
enum Message {
    Ended(Box<EndedCall>, Wall),
    /// The file was moved away.
    Reopen,
}

/// A line.
#[derive(Debug, Serialize)]
struct Line {
    /// Its Call-ID, as far as it is UTF-8.
    id: String,
    created_unix_ms: u64,
    /// Absent: nobody has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_unix_ms: Option<u64>,
    ended_unix_ms: u64,
    /// From the first offer on.
    duration_ms: u64,
    end_reason: &'static str,
    streams: Vec<LineStream>,
}

#[derive(Debug, Serialize)]
struct LineStream {
    /// Such as `audio`.
    media: String,
    sides: Vec<StreamSide>,
}

impl Records {
    /// Opens the file, or makes it: lines are added at its end.
    ///
    /// # Errors
    /// The file cannot be opened, or threads run out.
    pub(super) fn open(path: &Path) -> io::Result<Records> {
        let book = Book {
            file: open(path)?,
            path: path.to_owned(),
            is_torn: false,
            failed: LineLimit::new(LINES_PER_SECOND),
        };
        let (queue, told) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("records".to_owned());
        Ok(Records {
            queue: Some(queue),
            thread: Some(thread.spawn(move || write_all(book, &told))?),
            full: LineLimit::new(LINES_PER_SECOND),
        })
    }

    /// A call has ended. Does not wait: what a disk cannot take in time is lost, and the log says so.
    pub(super) fn put(&mut self, ended: EndedCall, wall: Wall) {
        self.tell(Message::Ended(Box::new(ended), wall));
    }

    /// Writes to a new file of the same name from now on.
    pub(super) fn reopen(&mut self) {
        self.tell(Message::Reopen);
    }

    fn tell(&mut self, message: Message) {
        let sent = self.queue.as_ref().map(|queue| queue.try_send(message));
        if let Some(Err(TrySendError::Full(_))) = sent
            && let Verdict::Write { .. } = self.full.check(Instant::now())
        {
            tracing::error!("records of calls are lost: the disk is too slow");
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of records has panicked");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Who called whom is nobody else's business.
    options.append(true).create(true).mode(0o640);
    options.open(path)
}

/// The file.
#[derive(Debug)]
struct Book {
    file: File,
    path: PathBuf,
    /// The last line is not whole.
    is_torn: bool,
    failed: LineLimit,
}

fn write_all(mut book: Book, told: &Receiver<Message>) {
    while let Ok(message) = told.recv() {
        match message {
            Message::Ended(ended, wall) => book.write(&line(*ended, wall)),
            Message::Reopen => match open(&book.path) {
                Ok(file) => {
                    book.file = file;
                    book.is_torn = false;
                }
                Err(error) => {
                    let file = book.path.display();
                    tracing::error!(%file, %error, "records of calls go on in the file that was moved away");
                }
            },
        }
    }
}

impl Book {
    fn write(&mut self, line: &[u8]) {
        let line = match self.is_torn {
            true => [b"\n", line].concat(),
            false => line.to_vec(),
        };
        let written = self.file.write_all(&line);
        self.is_torn = written.is_err();
        if let Err(error) = written
            && let Verdict::Write { .. } = self.failed.check(Instant::now())
        {
            let file = self.path.display();
            tracing::error!(%file, %error, "the record of a call is lost");
        }
    }
}

fn line(ended: EndedCall, wall: Wall) -> Vec<u8> {
    let EndedCall { record, streams } = ended;
    let mut readings: BTreeMap<_, _> = streams
        .into_iter()
        .map(|(stream, ended)| (stream, ended.reading))
        .collect();
    let CallRecord {
        call,
        created_ns,
        answered_ns,
        ended_ns,
        reason,
        streams,
    } = *record;
    let streams = streams.into_iter().map(|one| LineStream {
        sides: sides(wall, one.sides, readings.remove(&one.stream).as_ref()),
        media: one.media,
    });
    let line = Line {
        id: call.to_string(),
        created_unix_ms: wall.unix_ms(created_ns),
        answered_unix_ms: answered_ns.map(|at_ns| wall.unix_ms(at_ns)),
        ended_unix_ms: wall.unix_ms(ended_ns),
        duration_ms: ended_ns.saturating_sub(created_ns) / 1_000_000,
        end_reason: reason.name(),
        streams: streams.collect(),
    };
    // Of plain numbers and texts: it does not fail.
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Seconds of a disk that stands still, at a thousand calls a second; some 10 MiB.
const WAITING_MAX: usize = 4096;
const LINES_PER_SECOND: u32 = 1;
