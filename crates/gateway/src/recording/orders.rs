//! What is asked of the recorder's thread, and what it tells: shared by both.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use threadbare_relay::Listening;
use threadbare_rtp::call::Side;
use tokio::sync::{broadcast, oneshot};

use super::index::{Entry, Index, RecordingState, Subject};
use super::outbox::Outbox;
use super::sound::Coding;
use crate::config::RecordSpec;

/// A recording; numbers are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordingId(pub(super) u64);

/// A new recording.
#[derive(Debug)]
pub struct NewRecording {
    /// What is recorded.
    pub of: Subject,
    /// How.
    pub spec: Arc<RecordSpec>,
    /// Where it comes from.
    pub source: Source,
    /// This party alone; `None`: all.
    pub side: Option<Side>,
    /// Kept beside the first file.
    pub metadata: Option<String>,
    /// It goes on in another file when the disk has failed.
    pub is_lasting: bool,
}

/// Where audio or packets come from.
#[derive(Debug)]
pub enum Source {
    /// Audio, with this rate.
    Audio {
        /// The ring that it comes by.
        listening: Listening,
        /// Frames in a second, of the file.
        rate_hz: u32,
        /// Parties.
        sides: u8,
        /// Of each party, in the file.
        channels: u8,
        /// Where codes of G.711 are written.
        law: Coding,
    },
    /// Packets to these ports, of each side, from an [`Ear`].
    Packets {
        /// The port of each side.
        local: [SocketAddr; 2],
        /// The end of the queue.
        end: WayEnd,
    },
}

/// What becomes of the recording of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It goes on, in the file that it paused in, or in another one if it was stopped.
    Resume,
    /// What follows is left out.
    Pause,
    /// The same, and the file ends.
    Stop,
}

/// What became of a file that was to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// There is none.
    Unknown,
    /// It is being written.
    Grows,
    /// It is on its way to the store.
    OnItsWay,
    /// The store does not delete it: why.
    Refused(threadbare_s3::Error),
}

/// What the thread tells.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) index: Mutex<Index>,
    /// Held against other processes.
    pub(super) locks: Mutex<Vec<(PathBuf, OwnedFd)>>,
    pub(super) counters: Counters,
    pub(super) told: broadcast::Sender<Told>,
    pub(super) teller: Mutex<Option<Teller>>,
    /// Of folders whose files go to a store.
    pub(super) outboxes: Mutex<HashMap<Arc<Path>, Outbox>>,
}

pub(super) struct Teller(pub(super) Box<dyn Fn(&Entry) + Send>);

impl std::fmt::Debug for Teller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Teller")
    }
}

/// A file has begun, or has its last state.
pub type Told = Arc<Entry>;

/// Since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) running: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) complete: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) missed_ms: AtomicU64,
    pub(super) missed_packets: AtomicU64,
}

#[derive(Debug)]
pub(super) enum Order {
    Root(Arc<Path>),
    Start(RecordingId, Box<NewRecording>, u64),
    Packet(RecordingId, u64, Side, SocketAddr, Box<[u8]>),
    Pause(RecordingId, u64),
    Resume(RecordingId, u64),
    Stop {
        id: RecordingId,
        discard: bool,
        now_ns: u64,
    },
    /// Of a stream of this name. Whether there is one.
    Change(String, Change, u64, oneshot::Sender<bool>),
    /// A file.
    Delete(String, oneshot::Sender<Deleted>),
    /// The store has a file of this folder.
    Stored(Arc<Path>, PathBuf),
    /// A job may go on.
    Woken,
    /// Of the thread: calls that are not removed yet may still hold the way to it.
    End,
}

/// Between a media thread and the writer.
#[derive(Debug, Default)]
struct Way {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    is_over: AtomicBool,
}

/// The writer's end of it. Dropped, nothing more comes.
#[derive(Debug, Default)]
pub struct WayEnd(Arc<Way>);

impl WayEnd {
    /// A packet was taken from the queue.
    pub(super) fn note_taken(&self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }

    /// Packets that were left out.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }
}

impl WayEnd {
    /// The other end, for a recording.
    pub(super) fn ear(&self, id: RecordingId, orders: Sender<Order>) -> Ear {
        let way = self.0.clone();
        Ear { id, way, orders }
    }
}

impl Drop for WayEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

/// Takes the packets of one call, on its media thread.
#[derive(Debug, Clone)]
pub struct Ear {
    id: RecordingId,
    way: Arc<Way>,
    orders: Sender<Order>,
}

impl Ear {
    /// A packet that a side has sent. Does not block.
    pub fn hear_packet(&self, at_ns: u64, side: Side, from: SocketAddr, packet: &[u8]) {
        if self.way.is_over.load(Relaxed) {
            return;
        }
        if self.way.waiting.load(Relaxed) >= WAITING_MAX {
            self.way.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.way.waiting.fetch_add(1, Relaxed);
        let order = Order::Packet(self.id, at_ns, side, from, packet.into());
        // Without a writer the process ends.
        let _ = self.orders.send(order);
    }
}

impl Board {
    /// Something new of a file.
    pub(super) fn tell(&self, root: &Arc<Path>, entry: Entry) {
        if entry.state != RecordingState::Running
            && entry.uri.is_none()
            && let Some(outbox) = lock(&self.outboxes).get(root)
        {
            outbox.send(root, &entry);
        }
        lock(&self.index).put(root, entry.clone());
        if let Some(Teller(tell)) = &*lock(&self.teller) {
            tell(&entry);
        }
        // Fails if nobody listens.
        let _ = self.told.send(Arc::new(entry));
    }
}

/// Locks, also after a panic in another thread: each section leaves a whole state.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Four seconds of both sides in packets of 20 ms: longer than a disk pauses.
const WAITING_MAX: usize = 400;
