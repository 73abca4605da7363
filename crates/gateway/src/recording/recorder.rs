//! The thread that records, from outside.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::FlockOperation;
use threadbare_files::{Disk, Mode};
use threadbare_runtime::clock_now_ns;
use tokio::sync::{broadcast, oneshot};

use super::index::{Asked, Entry};
use super::orders::{
    Board, Change, Counters, Deleted, Ear, NewRecording, Order, RecordingId, Source, Teller, Told,
    lock,
};
use super::outbox::Outbox;
use super::place::Place;
use super::repair;
use super::writer::Writer;
use crate::config::Template;

/// Writes recordings. Clones are one; its thread begins with the first folder, and ends, with all files, with [`Recorder::end`] or the last clone.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    orders: Sender<Order>,
    thread: Mutex<Thread>,
    next: AtomicU64,
    board: Arc<Board>,
}

#[derive(Debug)]
enum Thread {
    /// With what it will take.
    Waits(Receiver<Order>),
    Runs(JoinHandle<()>),
    Over,
}

/// What was recorded since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Recordings at the moment.
    pub running: u64,
    /// Bytes given to the disk.
    pub bytes: u64,
    /// Files that are whole.
    pub complete: u64,
    /// Files that were cut off, or could not be made.
    pub failed: u64,
    /// Audio that the disk was too slow for, ms.
    pub missed_ms: u64,
    /// Packets that the disk was too slow for.
    pub missed_packets: u64,
}

/// Why a folder is not used for recordings.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// Another process uses it.
    #[error("recordings in {}: another process records there; give each a folder of its own", .0.display())]
    Taken(PathBuf),
    /// It cannot be made, read or written.
    #[error("recordings in {}: {error}; allowed is a folder that this program may write to", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The store refuses recordings.
    #[error("recordings to {0}: {1}")]
    Store(String, threadbare_s3::Error),
    /// There is no service that writes files.
    #[error(transparent)]
    Disk(#[from] threadbare_files::StartError),
}

impl Default for Recorder {
    fn default() -> Recorder {
        let (orders, taken) = channel();
        Recorder(Arc::new(Inner {
            orders,
            thread: Mutex::new(Thread::Waits(taken)),
            next: AtomicU64::new(0),
            board: Arc::new(Board {
                index: Mutex::default(),
                locks: Mutex::default(),
                counters: Counters::default(),
                told: broadcast::Sender::new(TOLD_MAX),
                teller: Mutex::default(),
                outboxes: Mutex::default(),
            }),
        }))
    }
}

impl Recorder {
    /// Uses a folder, which is made if need be: what a process before has left there is repaired. May block.
    ///
    /// # Errors
    /// The folder cannot be used, or threads run out.
    pub fn open_root(&self, root: &Path) -> Result<(), RootError> {
        let board = &self.0.board;
        if lock(&board.locks).iter().any(|(known, _)| known == root) {
            return Ok(());
        }
        let failed = |error| RootError::Io {
            path: root.to_owned(),
            error,
        };
        std::fs::create_dir_all(root).map_err(failed)?;
        let folder = std::fs::File::open(root).map_err(failed)?;
        rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RootError::Taken(root.to_owned()))?;
        let (entries, repaired) = repair::open(root).map_err(failed)?;
        self.start_thread(&failed)?;
        let root: Arc<Path> = root.into();
        {
            let mut index = lock(&board.index);
            for entry in entries.into_values() {
                index.put(&root, entry);
            }
        }
        lock(&board.locks).push((root.to_path_buf(), folder.into()));
        self.order(Order::Root(root.clone()));
        for entry in repaired {
            board.tell(&root, entry);
        }
        Ok(())
    }

    /// The same for the folder of a template; its files go to a store, if that is where they are to be. Asks the store.
    ///
    /// # Errors
    /// As above; or the store refuses recordings.
    pub fn open(&self, to: &Template) -> Result<(), RootError> {
        let board = &self.0.board;
        let root: Arc<Path> = to.root().into();
        let is_known = lock(&board.outboxes).contains_key(&root);
        let Some(bucket) = to.bucket().filter(|_| !is_known) else {
            return self.open_root(to.root());
        };
        let failed = |error| RootError::Io {
            path: root.to_path_buf(),
            error,
        };
        std::fs::create_dir_all(&root).map_err(failed)?;
        let orders = self.0.orders.clone();
        // When the recorder has ended, the next one sees that the file is gone.
        let stored = move |root, path| drop(orders.send(Order::Stored(root, path)));
        let outbox = Outbox::open(&root, bucket, Box::new(stored));
        let outbox = outbox.map_err(|error| RootError::Store(to.to_string(), error))?;
        lock(&board.outboxes).insert(root.clone(), outbox);
        self.open_root(&root)?;
        self.send_left(&root);
        Ok(())
    }

    /// What a process before has neither sent nor noted; and what the store has had since.
    fn send_left(&self, root: &Arc<Path>) {
        let board = &self.0.board;
        let left: Vec<Entry> = lock(&board.index).whole(root);
        for entry in left {
            match root.join(&entry.path).is_file() {
                true => {
                    if let Some(outbox) = lock(&board.outboxes).get(root) {
                        outbox.send(root, &entry);
                    }
                }
                false => self.order(Order::Stored(root.clone(), entry.path)),
            }
        }
    }

    fn start_thread(&self, failed: &dyn Fn(std::io::Error) -> RootError) -> Result<(), RootError> {
        let mut thread = lock(&self.0.thread);
        let disk = match *thread {
            Thread::Waits(_) => Disk::shared(Mode::Auto)?,
            Thread::Runs(_) | Thread::Over => return Ok(()),
        };
        let Thread::Waits(orders) = std::mem::replace(&mut *thread, Thread::Over) else {
            return Ok(());
        };
        let (board, own) = (self.0.board.clone(), self.0.orders.clone());
        let started = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || Writer::new(disk, board, own).run(&orders));
        *thread = Thread::Runs(started.map_err(failed)?);
        Ok(())
    }

    /// Begins a recording. One of packets gets them by the ear. Its folder is open.
    #[must_use]
    pub fn start(&self, new: NewRecording) -> (RecordingId, Option<Ear>) {
        let id = RecordingId(self.0.next.fetch_add(1, Relaxed));
        let ear = match &new.source {
            Source::Audio { .. } => None,
            Source::Packets { end, .. } => Some(end.ear(id, self.0.orders.clone())),
        };
        self.order(Order::Start(id, Box::new(new), clock_now_ns()));
        (id, ear)
    }

    /// Leaves out what follows.
    pub fn pause(&self, id: RecordingId) {
        self.order(Order::Pause(id, clock_now_ns()));
    }

    /// Goes on behind a pause.
    pub fn resume(&self, id: RecordingId) {
        self.order(Order::Resume(id, clock_now_ns()));
    }

    /// Ends a recording. `discard`: its files are deleted.
    pub fn stop(&self, id: RecordingId, discard: bool) {
        let now_ns = clock_now_ns();
        self.order(Order::Stop {
            id,
            discard,
            now_ns,
        });
    }

    /// Pauses, stops or resumes the recording of a stream. Whether there is one.
    pub fn change(&self, stream: &str, change: Change) -> oneshot::Receiver<bool> {
        let (tell, told) = oneshot::channel();
        let order = Order::Change(stream.to_owned(), change, clock_now_ns(), tell);
        if self.is_running() {
            self.order(order);
        }
        told
    }

    /// Deletes a file that is not written any more, where it is.
    pub fn delete(&self, id: &str) -> oneshot::Receiver<Deleted> {
        let (tell, told) = oneshot::channel();
        if self.is_running() {
            self.order(Order::Delete(id.to_owned(), tell));
        }
        told
    }

    fn is_running(&self) -> bool {
        matches!(*lock(&self.0.thread), Thread::Runs(_))
    }

    /// Files in the order in which they began, and whether there are more.
    #[must_use]
    pub fn list(&self, asked: &Asked) -> (Vec<Entry>, bool) {
        lock(&self.0.board.index).list(asked)
    }

    /// A file, and where it is now.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<(Entry, Place)> {
        let (root, entry) = lock(&self.0.board.index).find(id)?.clone();
        let path = match entry.state {
            super::RecordingState::Running => entry.part_path(),
            _ => entry.path.clone(),
        };
        let outboxes = lock(&self.0.board.outboxes);
        let objects = outboxes.get(&root).map(|outbox| outbox.objects(&entry));
        let place = Place {
            path: root.join(path),
            is_stored: entry.uri.is_some(),
            object: objects.map(|[object, _]| object),
        };
        Some((entry, place))
    }

    /// Files that begin, and that have their last state, from now on.
    #[must_use]
    pub fn told(&self) -> broadcast::Receiver<Told> {
        self.0.board.told.subscribe()
    }

    /// Who is told of files as well, on the recorder's thread: it must not block.
    pub fn set_teller(&self, teller: impl Fn(&Entry) + Send + 'static) {
        *lock(&self.0.board.teller) = Some(Teller(Box::new(teller)));
    }

    /// Since the start.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let counters = &self.0.board.counters;
        Counted {
            running: counters.running.load(Relaxed),
            bytes: counters.bytes.load(Relaxed),
            complete: counters.complete.load(Relaxed),
            failed: counters.failed.load(Relaxed),
            missed_ms: counters.missed_ms.load(Relaxed),
            missed_packets: counters.missed_packets.load(Relaxed),
        }
    }

    /// Ends all recordings, and waits for their files, if the disk is not stuck.
    pub fn end(&self) {
        self.0.end();
    }

    fn order(&self, order: Order) {
        // The thread ends behind this.
        let _ = self.0.orders.send(order);
    }
}

impl Inner {
    fn end(&self) {
        let thread = std::mem::replace(&mut *lock(&self.thread), Thread::Over);
        if let Thread::Runs(thread) = thread {
            let _ = self.orders.send(Order::End);
            if thread.join().is_err() {
                tracing::error!("the thread 'recorder' has panicked");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

/// A reader that falls behind by more has to look at the list anew: the ends of all recordings of a full node at once.
const TOLD_MAX: usize = 4096;
