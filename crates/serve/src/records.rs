//! CDRs: one line of JSON for each ended call. A separate thread writes them, because a disk may be slow.

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
use super::views::{StreamSide, Wall, sides};
use threadbare_process::limit::{LineLimit, Verdict};

/// A handle to the thread. Dropping it writes the queued CDRs.
#[derive(Debug)]
pub(super) struct Records {
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    full: LineLimit,
}

#[derive(Debug)]
enum Message {
    Ended(Box<EndedCall>, Wall),
    /// The file was moved away, and must be opened again.
    Reopen,
}

/// A line of the file.
#[derive(Debug, Serialize)]
struct Line {
    /// Call-ID. Bytes that are not UTF-8 are replaced.
    id: String,
    created_unix_ms: u64,
    /// Absent: the call was not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_unix_ms: Option<u64>,
    ended_unix_ms: u64,
    /// Time from the first offer.
    duration_ms: u64,
    end_reason: &'static str,
    streams: Vec<LineStream>,
}

#[derive(Debug, Serialize)]
struct LineStream {
    /// The kind of media, for example `audio`.
    media: String,
    sides: Vec<StreamSide>,
}

impl Records {
    /// Opens the file, or creates it. Lines are appended.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or threads run out.
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

    /// Queues the CDR of an ended call without waiting. If the queue is full because the disk is too slow, the CDR is lost, and
    /// an error is logged.
    pub(super) fn put(&mut self, ended: EndedCall, wall: Wall) {
        self.tell(Message::Ended(Box::new(ended), wall));
    }

    /// Opens the file again under the same name.
    pub(super) fn reopen(&mut self) {
        self.tell(Message::Reopen);
    }

    fn tell(&mut self, message: Message) {
        let sent = self.queue.as_ref().map(|queue| queue.try_send(message));
        if let Some(Err(TrySendError::Full(_))) = sent
            && let Verdict::Write { .. } = self.full.check(Instant::now())
        {
            tracing::error!("CDRs are lost, because the disk is too slow");
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread 'records' has panicked");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Only the owner and the group may read who called whom.
    options.append(true).create(true).mode(0o640);
    options.open(path)
}

/// The CDR file.
#[derive(Debug)]
struct Book {
    file: File,
    path: PathBuf,
    /// Whether the last line is incomplete.
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
                    tracing::error!(%file, %error, "cannot open the CDR file again, so CDRs still go to the renamed file");
                }
            },
        }
    }
}

impl Book {
    fn write(&mut self, line: &[u8]) {
        let line = if self.is_torn {
            [b"\n", line].concat()
        } else {
            line.to_vec()
        };
        let written = self.file.write_all(&line);
        self.is_torn = written.is_err();
        if let Err(error) = written
            && let Verdict::Write { .. } = self.failed.check(Instant::now())
        {
            let file = self.path.display();
            tracing::error!(%file, %error, "cannot write a CDR, which is lost");
        }
    }
}

fn line(ended: EndedCall, wall: Wall) -> Vec<u8> {
    let EndedCall { record, streams } = ended;
    let mut measurements: BTreeMap<_, _> = streams
        .into_iter()
        .map(|(stream, ended)| (stream, ended.measured))
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
        sides: sides(wall, one.sides, measurements.remove(&one.stream).as_ref()),
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
    // Serialising plain numbers and texts cannot fail.
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Maximum number of queued CDRs. It covers some seconds of a blocked disk at a thousand calls a second, and takes some 10 MiB.
const WAITING_MAX: usize = 4096;
const LINES_PER_SECOND: u32 = 1;
