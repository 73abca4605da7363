//! The handle to the recorder's thread.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use threadbare_base::lock;

use rustix::fs::FlockOperation;
use threadbare_files::{Disk, Mode};
use threadbare_runtime::clock_now_ns;
use tokio::sync::{broadcast, oneshot};

use super::index::{Asked, Entry};
use super::orders::{
    Change, Counters, Deleted, FileEvent, NewRecording, Observer, Order, PacketRecorder,
    RecordingId, SharedState, Source,
};
use super::outbox::Outbox;
use super::place::Place;
use super::repair;
use super::writer::Writer;
use threadbare_config::Template;

/// Handle to the recorder. Its clones use the same recorder. The recorder's thread starts when the first folder is opened.
/// [`Recorder::end`], or the drop of the last clone, ends all files and then the thread.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    orders: Sender<Order>,
    thread: Mutex<Thread>,
    next: AtomicU64,
    shared: Arc<SharedState>,
}

#[derive(Debug)]
enum Thread {
    /// The thread has not started. The value is the receiver of its orders.
    Waits(Receiver<Order>),
    Runs(JoinHandle<()>),
    Over,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of current recordings.
    pub running: u64,
    /// Number of bytes passed to the disk.
    pub bytes: u64,
    /// Number of complete files.
    pub complete: u64,
    /// Number of files that were cut off or could not be created.
    pub failed: u64,
    /// Duration of the audio that was lost because the disk was too slow, in ms.
    pub missed_ms: u64,
    /// Number of packets that were lost because the disk was too slow.
    pub missed_packets: u64,
}

/// The reason why a folder cannot be used for recordings.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// Another process uses the folder.
    #[error("cannot record to {}: another process records there; give each process its own folder", .0.display())]
    Taken(PathBuf),
    /// The folder or a file cannot be created, read or written.
    #[error("cannot record to {}: {error}; expected a folder to which this program may write", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The store refuses recordings.
    #[error("cannot record to {0}: {1}")]
    Store(String, threadbare_s3::Error),
    /// The file service does not start.
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
            shared: Arc::new(SharedState {
                index: Mutex::default(),
                locks: Mutex::default(),
                counters: Counters::default(),
                events: broadcast::Sender::new(EVENTS_MAX),
                observer: Mutex::default(),
                outboxes: Mutex::default(),
            }),
        }))
    }
}

impl Recorder {
    /// Opens a folder for recordings, or creates it. Repairs files that the previous process left in it. This call may block.
    ///
    /// # Errors
    /// Fails if the folder cannot be used, or if the system cannot start a thread.
    pub fn open_root(&self, root: &Path) -> Result<(), RootError> {
        let shared = &self.0.shared;
        if lock(&shared.locks).iter().any(|(known, _)| known == root) {
            return Ok(());
        }
        let failed = |error| RootError::Io {
            path: root.to_owned(),
            error,
        };
        repair::make_root(root).map_err(failed)?;
        let folder = std::fs::File::open(root).map_err(failed)?;
        rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RootError::Taken(root.to_owned()))?;
        let (entries, repaired) = repair::open(root).map_err(failed)?;
        self.start_thread(&failed)?;
        let root: Arc<Path> = root.into();
        {
            let mut index = lock(&shared.index);
            for entry in entries.into_values() {
                index.put(&root, entry);
            }
        }
        lock(&shared.locks).push((root.to_path_buf(), folder.into()));
        self.order(Order::Root(root.clone()));
        for entry in repaired {
            shared.publish(&root, entry);
        }
        Ok(())
    }

    /// Opens the folder of a template. If its files are uploaded to a store, this call checks the store.
    ///
    /// # Errors
    /// Fails as [`open_root`](Self::open_root) does, and if the store refuses recordings.
    pub fn open(&self, to: &Template) -> Result<(), RootError> {
        let shared = &self.0.shared;
        let root: Arc<Path> = to.root().into();
        let is_known = lock(&shared.outboxes).contains_key(&root);
        let Some(bucket) = to.bucket().filter(|_| !is_known) else {
            return self.open_root(to.root());
        };
        let failed = |error| RootError::Io {
            path: root.to_path_buf(),
            error,
        };
        repair::make_root(&root).map_err(failed)?;
        let orders = self.0.orders.clone();
        // This fails if the recorder has ended. The next process notices that the file is no longer on the disk.
        let stored = move |root, path| drop(orders.send(Order::Stored(root, path)));
        let outbox = Outbox::open(&root, bucket, Box::new(stored));
        let outbox = outbox.map_err(|error| RootError::Store(to.to_string(), error))?;
        lock(&shared.outboxes).insert(root.clone(), outbox);
        self.open_root(&root)?;
        self.send_left(&root);
        Ok(())
    }

    /// Uploads files that the previous process did not upload, and handles files that the store has received since then.
    fn send_left(&self, root: &Arc<Path>) {
        let shared = &self.0.shared;
        let left: Vec<Entry> = lock(&shared.index).whole(root);
        for entry in left {
            if root.join(&entry.path).is_file() {
                if let Some(outbox) = lock(&shared.outboxes).get(root) {
                    outbox.send(root, &entry);
                }
            } else {
                self.order(Order::Stored(root.clone(), entry.path))
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
        let (shared, own) = (self.0.shared.clone(), self.0.orders.clone());
        let started = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || Writer::new(disk, shared, own).run(&orders));
        *thread = Thread::Runs(started.map_err(failed)?);
        Ok(())
    }

    /// Starts a recording. Its folder must be open. If it records packets, the caller must pass them to the returned packet recorder.
    #[must_use]
    pub fn start(&self, new: NewRecording) -> (RecordingId, Option<PacketRecorder>) {
        let id = RecordingId(self.0.next.fetch_add(1, Relaxed));
        let packet_recorder = match &new.source {
            Source::Audio { .. } => None,
            Source::Packets { end, .. } => Some(end.packet_recorder(id, self.0.orders.clone())),
        };
        self.order(Order::Start(id, Box::new(new), clock_now_ns()));
        (id, packet_recorder)
    }

    /// Pauses a recording.
    pub fn pause(&self, id: RecordingId) {
        self.order(Order::Pause(id, clock_now_ns()));
    }

    /// Resumes a recording.
    pub fn resume(&self, id: RecordingId) {
        self.order(Order::Resume(id, clock_now_ns()));
    }

    /// Ends a recording. With `discard`, deletes its files.
    pub fn stop(&self, id: RecordingId, discard: bool) {
        let now_ns = clock_now_ns();
        self.order(Order::Stop {
            id,
            discard,
            now_ns,
        });
    }

    /// Pauses, stops or resumes the recording of a stream. The answer says whether the recording exists.
    pub fn change(&self, stream: &str, change: Change) -> oneshot::Receiver<bool> {
        let (tell, told) = oneshot::channel();
        let order = Order::Change(stream.to_owned(), change, clock_now_ns(), tell);
        if self.is_running() {
            self.order(order);
        }
        told
    }

    /// Deletes a complete file, on the disk or in the store.
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

    /// Returns files in the order of their start times, and whether there are more files.
    #[must_use]
    pub fn list(&self, asked: &Asked) -> (Vec<Entry>, bool) {
        lock(&self.0.shared.index).list(asked)
    }

    /// Returns a file and its location.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<(Entry, Place)> {
        let (root, entry) = lock(&self.0.shared.index).find(id)?.clone();
        let path = match entry.state {
            super::RecordingState::Running => entry.part_path(),
            _ => entry.path.clone(),
        };
        let outboxes = lock(&self.0.shared.outboxes);
        let objects = outboxes.get(&root).map(|outbox| outbox.objects(&entry));
        let place = Place {
            path: root.join(path),
            is_stored: entry.uri.is_some(),
            object: objects.map(|[object, _]| object),
        };
        Some((entry, place))
    }

    /// Subscribes to the events of files that start or reach their last state.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<FileEvent> {
        self.0.shared.events.subscribe()
    }

    /// Sets a function that is called for each of these events. The function runs on the recorder's thread, and must not block.
    pub fn set_observer(&self, observer: impl Fn(&Entry) + Send + 'static) {
        *lock(&self.0.shared.observer) = Some(Observer(Box::new(observer)));
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let counters = &self.0.shared.counters;
        Counted {
            running: counters.running.load(Relaxed),
            bytes: counters.bytes.load(Relaxed),
            complete: counters.complete.load(Relaxed),
            failed: counters.failed.load(Relaxed),
            missed_ms: counters.missed_ms.load(Relaxed),
            missed_packets: counters.missed_packets.load(Relaxed),
        }
    }

    /// Ends all recordings and waits for their files. If the disk is stuck, the wait ends after some seconds.
    pub fn end(&self) {
        self.0.end();
    }

    fn order(&self, order: Order) {
        // This fails if the recorder has ended. In that case the order has no effect.
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

/// Maximum number of events that wait for a reader. They are enough if all recordings of a full node end at once. A reader that falls
/// behind by more events must read the list again.
const EVENTS_MAX: usize = 4096;
