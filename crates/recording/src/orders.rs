//! Orders to the recorder's thread, and the state that it publishes.

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

/// Identifies a recording. Ids are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordingId(pub(super) u64);

/// A new recording.
#[derive(Debug)]
pub struct NewRecording {
    /// The stream or call to be recorded.
    pub of: Subject,
    /// The settings of the recording.
    pub spec: Arc<RecordSpec>,
    /// The source of audio or packets.
    pub source: Source,
    /// The only party that is recorded. `None`: all parties are recorded.
    pub side: Option<Side>,
    /// Metadata that are stored with the first file.
    pub metadata: Option<String>,
    /// Whether the recording continues in another file after a disk failure.
    pub is_lasting: bool,
}

/// A source of audio or packets.
#[derive(Debug)]
pub enum Source {
    /// Audio from a ring.
    Audio {
        /// The ring with the audio.
        listening: Listening,
        /// Frames per second in the file.
        rate_hz: u32,
        /// Number of parties.
        sides: u8,
        /// Channels of each party in the file.
        channels: u8,
        /// The law in which G.711 codes are written, if the format contains such codes.
        law: Coding,
    },
    /// Packets from a [`PacketRecorder`].
    Packets {
        /// The address at which the packets of each side were received.
        local: [SocketAddr; 2],
        /// The recorder's end of the queue.
        end: WayEnd,
    },
}

/// A change of a stream's recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Resumes the recording, in the paused file or, after a stop, in another one.
    Resume,
    /// Pauses the recording. The following audio is left out.
    Pause,
    /// Pauses the recording and ends the file.
    Stop,
}

/// The result of a requested deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The recording was deleted.
    Gone,
    /// The recording does not exist.
    Unknown,
    /// The file is still being written.
    Grows,
    /// The file is still being sent to the store.
    OnItsWay,
    /// The store refuses to delete the file, for this reason.
    Refused(threadbare_s3::Error),
}

/// State that the recorder's thread publishes.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) index: Mutex<Index>,
    /// Locks on the folders, which exclude other processes.
    pub(super) locks: Mutex<Vec<(PathBuf, OwnedFd)>>,
    pub(super) counters: Counters,
    pub(super) events: broadcast::Sender<FileEvent>,
    pub(super) observer: Mutex<Option<Observer>>,
    /// Uploads from the folders whose files go to a store.
    pub(super) outboxes: Mutex<HashMap<Arc<Path>, Outbox>>,
}

pub(super) struct Observer(pub(super) Box<dyn Fn(&Entry) + Send>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// A file that has started, or that has reached its last state.
pub type FileEvent = Arc<Entry>;

/// Totals since the start of the recorder.
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
    /// Changes the recording of a stream. The answer says whether the recording exists.
    Change(String, Change, u64, oneshot::Sender<bool>),
    /// Deletes a file.
    Delete(String, oneshot::Sender<Deleted>),
    /// A file in this folder was uploaded to the store.
    Stored(Arc<Path>, PathBuf),
    /// A pending operation can continue.
    Woken,
    /// Ends the thread. The end of the channel would not do, because calls that are ending may still have a sender of it.
    End,
}

/// The state of the queue between a media thread and the recorder.
#[derive(Debug, Default)]
struct Way {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    is_over: AtomicBool,
}

/// The recorder's end of the queue. After it is dropped, packets are no longer queued.
#[derive(Debug, Default)]
pub struct WayEnd(Arc<Way>);

impl WayEnd {
    /// Records that a packet was taken from the queue.
    pub(super) fn note_taken(&self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }

    /// Returns the number of dropped packets.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }
}

impl WayEnd {
    /// Returns the media thread's end of the queue.
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

/// Queues the packets of one call. It runs on the media thread.
#[derive(Debug, Clone)]
pub struct PacketRecorder {
    id: RecordingId,
    way: Arc<Way>,
    orders: Sender<Order>,
}

impl PacketRecorder {
    /// Handles a packet that a side has sent. This function does not block.
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
        // This fails only if the process is ending.
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
        // This fails if there are no listeners.
        let _ = self.events.send(Arc::new(entry));
    }
}

/// Maximum number of queued packets. They are four seconds of both sides in packets of 20 ms, which is longer than the pauses of a disk.
const WAITING_MAX: usize = 400;
