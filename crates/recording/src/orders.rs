//! Orders to the recorder's thread, and its published state.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use threadbare_base::lock;

use threadbare_relay::Listening;
use threadbare_rtp::call::Side;
use tokio::sync::{broadcast, oneshot};

use super::index::{Entry, Index, RecordingState, Subject};
use super::outbox::Outbox;
use super::sound::Coding;
use threadbare_config::RecordSpec;

/// A recording; numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordingId(pub(super) u64);

/// A new recording.
#[derive(Debug)]
pub struct NewRecording {
    /// The stream or call.
    pub of: Subject,
    /// Its settings.
    pub spec: Arc<RecordSpec>,
    /// Its source of audio or packets.
    pub source: Source,
    /// Only this party; `None`: all.
    pub side: Option<Side>,
    /// Metadata stored with the first file.
    pub metadata: Option<String>,
    /// Whether it continues in another file after a disk failure.
    pub is_lasting: bool,
}

/// A source of audio or packets.
#[derive(Debug)]
pub enum Source {
    /// Audio of this rate.
    Audio {
        /// The ring with the audio.
        listening: Listening,
        /// Frames per second in the file.
        rate_hz: u32,
        /// Number of parties.
        sides: u8,
        /// Channels of each party in the file.
        channels: u8,
        /// The law, if G.711 codes are written.
        law: Coding,
    },
    /// Packets to these ports of each side, from a [`PacketRecorder`].
    Packets {
        /// The port of each side.
        local: [SocketAddr; 2],
        /// The end of the queue.
        end: WayEnd,
    },
}

/// A change of a stream's recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Resume in the paused file, or in another one after a stop.
    Resume,
    /// Pause: leave the following audio out.
    Pause,
    /// Pause, and end the file.
    Stop,
}

/// The result of a requested deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The recording was deleted.
    Gone,
    /// The recording does not exist.
    Unknown,
    /// The file is being written.
    Grows,
    /// The file is being sent to the store.
    OnItsWay,
    /// The store refuses to delete it, for this reason.
    Refused(threadbare_s3::Error),
}

/// State that the thread publishes.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) index: Mutex<Index>,
    /// Locks against other processes.
    pub(super) locks: Mutex<Vec<(PathBuf, OwnedFd)>>,
    pub(super) counters: Counters,
    pub(super) events: broadcast::Sender<FileEvent>,
    pub(super) observer: Mutex<Option<Observer>>,
    /// Uploads of folders whose files go to a store.
    pub(super) outboxes: Mutex<HashMap<Arc<Path>, Outbox>>,
}

pub(super) struct Observer(pub(super) Box<dyn Fn(&Entry) + Send>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// A file that has started, or reached its last state.
pub type FileEvent = Arc<Entry>;

/// Totals since the start.
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
    /// Changes the recording of a stream; returns whether it exists.
    Change(String, Change, u64, oneshot::Sender<bool>),
    /// Deletes a file.
    Delete(String, oneshot::Sender<Deleted>),
    /// The store has a file of this folder.
    Stored(Arc<Path>, PathBuf),
    /// An operation can continue.
    Woken,
    /// Ends the thread: ending calls may still hold its channel.
    End,
}

/// The queue between a media thread and the writer.
#[derive(Debug, Default)]
struct Way {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    is_over: AtomicBool,
}

/// The writer's end of the queue. After it is dropped, no more packets come.
#[derive(Debug, Default)]
pub struct WayEnd(Arc<Way>);

impl WayEnd {
    /// Records that a packet was taken from the queue.
    pub(super) fn note_taken(&self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }

    /// Number of dropped packets.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }
}

impl WayEnd {
    /// The other end, for a recording.
    pub(super) fn packet_recorder(&self, id: RecordingId, orders: Sender<Order>) -> PacketRecorder {
        let way = self.0.clone();
        PacketRecorder { id, way, orders }
    }
}

impl Drop for WayEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

/// Receives the packets of one call, on its media thread.
#[derive(Debug, Clone)]
pub struct PacketRecorder {
    id: RecordingId,
    way: Arc<Way>,
    orders: Sender<Order>,
}

impl PacketRecorder {
    /// Handles a packet that a side has sent. Does not block.
    pub fn record_packet(&self, at_ns: u64, side: Side, from: SocketAddr, packet: &[u8]) {
        if self.way.is_over.load(Relaxed) {
            return;
        }
        if self.way.waiting.load(Relaxed) >= WAITING_MAX {
            self.way.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.way.waiting.fetch_add(1, Relaxed);
        let order = Order::Packet(self.id, at_ns, side, from, packet.into());
        // Without a writer, the process is ending.
        let _ = self.orders.send(order);
    }
}

impl SharedState {
    /// Publishes a change of a file.
    pub(super) fn publish(&self, root: &Arc<Path>, entry: Entry) {
        if entry.state != RecordingState::Running
            && entry.uri.is_none()
            && let Some(outbox) = lock(&self.outboxes).get(root)
        {
            outbox.send(root, &entry);
        }
        lock(&self.index).put(root, entry.clone());
        if let Some(Observer(tell)) = &*lock(&self.observer) {
            tell(&entry);
        }
        // Fails without listeners.
        let _ = self.events.send(Arc::new(entry));
    }
}

/// Four seconds of both sides in packets of 20 ms: longer than a disk pauses.
const WAITING_MAX: usize = 400;
