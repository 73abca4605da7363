//! Recordings of calls, written by one thread that may block: WAV files of 16 bits with two channels, side A on the left; or pcap files of both sides' packets.
//!
//! The media threads hand over what they hear, never wait, and leave out what the disk is too slow for. Both channels have the time of their arrival:
//! where a side is silent, so is its channel.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use threadbare_rtp::call::Side;
use threadbare_rtp::codec::Format;
use threadbare_runtime::clock_now_ns;

use super::pcap::Pcap;
use super::tracks::{Tracks, WriteError};
use crate::system::unix_at_zero_ns;

/// A recording; numbers are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RecordingId(u64);

/// The thread, from outside. Dropped, it ends all recordings and waits for their files.
#[derive(Debug)]
pub(super) struct Recorder {
    orders: Sender<(RecordingId, Order)>,
    thread: Option<std::thread::JoinHandle<()>>,
    next: u64,
}

/// A new recording.
#[derive(Debug)]
pub(super) struct NewRecording {
    pub(super) path: PathBuf,
    pub(super) content: Content,
    /// Beside it.
    pub(super) metadata: Option<String>,
    /// For the log.
    pub(super) call: String,
}

/// What is recorded.
#[derive(Debug, Clone, Copy)]
pub(super) enum Content {
    /// Audio, with this rate.
    Audio { rate_hz: u32 },
    /// Packets to these ports, of each side.
    Packets { local: [SocketAddr; 2] },
}

#[derive(Debug)]
enum Order {
    Start(Box<NewRecording>, Arc<Mouth>, u64),
    Audio(u64, Side, Format, Box<[f32]>),
    Packet(u64, Side, SocketAddr, Box<[u8]>),
    Pause(u64),
    Resume(u64),
    Stop {
        discard: bool,
        now_ns: u64,
    },
    /// Of the thread: calls that are not removed yet may still hold the way to it.
    End,
}

/// Between a media thread and the writer.
#[derive(Debug, Default)]
struct Mouth {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    has_failed: AtomicBool,
}

/// Takes the audio or the packets of one call, on its media thread.
#[derive(Debug, Clone)]
pub(super) struct Ear {
    id: RecordingId,
    mouth: Arc<Mouth>,
    orders: Sender<(RecordingId, Order)>,
}

impl Ear {
    /// What a side said until now. Does not block.
    pub(super) fn hear(&self, now_ns: u64, side: Side, format: Format, pcm: &[f32]) {
        self.put(|| Order::Audio(now_ns, side, format, pcm.into()));
    }

    /// A packet that a side has sent. Does not block.
    pub(super) fn hear_packet(&self, at_ns: u64, side: Side, from: SocketAddr, packet: &[u8]) {
        self.put(|| Order::Packet(at_ns, side, from, packet.into()));
    }

    fn put(&self, order: impl FnOnce() -> Order) {
        if self.mouth.has_failed.load(Ordering::Relaxed) {
            return;
        }
        if self.mouth.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            self.mouth.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.mouth.waiting.fetch_add(1, Ordering::Relaxed);
        // Without a writer the process ends.
        let _ = self.orders.send((self.id, order()));
    }
}

impl Recorder {
    /// Starts the thread.
    ///
    /// # Errors
    /// Threads run out.
    pub(super) fn new() -> std::io::Result<Recorder> {
        let (orders, taken) = channel();
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || Writer::default().run(&taken))?;
        Ok(Recorder {
            orders,
            thread: Some(thread),
            next: 0,
        })
    }

    /// Begins a recording.
    pub(super) fn start(&mut self, new: NewRecording) -> (RecordingId, Ear) {
        let id = RecordingId(self.next);
        self.next += 1;
        let mouth = Arc::new(Mouth::default());
        let start = Order::Start(Box::new(new), mouth.clone(), clock_now_ns());
        self.order(id, start);
        let orders = self.orders.clone();
        (id, Ear { id, mouth, orders })
    }

    /// Leaves out what follows.
    pub(super) fn pause(&self, id: RecordingId) {
        self.order(id, Order::Pause(clock_now_ns()));
    }

    /// Goes on behind a pause.
    pub(super) fn resume(&self, id: RecordingId) {
        self.order(id, Order::Resume(clock_now_ns()));
    }

    /// Ends a recording. `discard`: its files are deleted.
    pub(super) fn stop(&self, id: RecordingId, discard: bool) {
        let now_ns = clock_now_ns();
        self.order(id, Order::Stop { discard, now_ns });
    }

    fn order(&self, id: RecordingId, order: Order) {
        // The thread ends behind this.
        let _ = self.orders.send((id, order));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.order(RecordingId(self.next), Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own.
#[derive(Debug, Default)]
struct Writer {
    running: HashMap<RecordingId, Running>,
}

#[derive(Debug)]
struct Running {
    tape: Tape,
    mouth: Arc<Mouth>,
    path: PathBuf,
    call: String,
}

/// A file that grows.
#[derive(Debug)]
enum Tape {
    Audio(Box<Tracks>),
    Packets {
        pcap: Pcap,
        local: [SocketAddr; 2],
        unix_at_zero_ns: u64,
    },
}

impl Tape {
    fn new(path: &Path, content: Content, now_ns: u64) -> Result<Tape, WriteError> {
        Ok(match content {
            Content::Audio { rate_hz } => {
                Tape::Audio(Box::new(Tracks::new(path, rate_hz, now_ns)?))
            }
            Content::Packets { local } => Tape::Packets {
                pcap: Pcap::new(path)?,
                local,
                unix_at_zero_ns: unix_at_zero_ns(),
            },
        })
    }

    fn add(&mut self, order: Order) {
        match (self, order) {
            (Tape::Audio(tracks), Order::Audio(now_ns, side, format, pcm)) => {
                tracks.add(now_ns, side, format, &pcm);
            }
            (
                Tape::Packets {
                    pcap,
                    local,
                    unix_at_zero_ns,
                },
                Order::Packet(at_ns, side, from, packet),
            ) => {
                let unix_ns = unix_at_zero_ns.saturating_add(at_ns);
                pcap.add(unix_ns, from, local[side as usize], &packet);
            }
            _ => {}
        }
    }

    fn pause(&mut self, now_ns: u64) -> Result<(), WriteError> {
        match self {
            Tape::Audio(tracks) => tracks.pause(now_ns),
            Tape::Packets { pcap, .. } => {
                pcap.set_paused(true);
                Ok(())
            }
        }
    }

    fn resume(&mut self, now_ns: u64) {
        match self {
            Tape::Audio(tracks) => tracks.resume(now_ns),
            Tape::Packets { pcap, .. } => pcap.set_paused(false),
        }
    }

    fn write(&mut self, now_ns: u64) -> Result<(), WriteError> {
        match self {
            Tape::Audio(tracks) => tracks.write(now_ns),
            Tape::Packets { pcap, .. } => Ok(pcap.write()?),
        }
    }

    fn finish(&mut self, now_ns: u64) -> Result<(), WriteError> {
        match self {
            Tape::Audio(tracks) => tracks.finish(now_ns),
            Tape::Packets { pcap, .. } => Ok(pcap.write()?),
        }
    }
}

impl Writer {
    fn run(mut self, orders: &Receiver<(RecordingId, Order)>) {
        let mut due_ns = clock_now_ns() + TICK_NS;
        loop {
            let wait = due_ns.saturating_sub(clock_now_ns());
            // Nothing is to be done while nothing is recorded.
            let order = match self.running.is_empty() {
                true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => orders.recv_timeout(Duration::from_nanos(wait)),
            };
            match order {
                Ok((_, Order::End)) => break,
                Ok((id, order)) => self.handle(id, order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now_ns = clock_now_ns();
            if now_ns >= due_ns {
                self.write_all(now_ns);
                due_ns = clock_now_ns() + TICK_NS;
            }
        }
        let ids: Vec<RecordingId> = self.running.keys().copied().collect();
        let now_ns = clock_now_ns();
        for id in ids {
            self.stop(id, false, now_ns);
        }
    }

    fn handle(&mut self, id: RecordingId, order: Order) {
        match order {
            Order::Start(new, mouth, now_ns) => self.start(id, *new, mouth, now_ns),
            Order::Stop { discard, now_ns } => self.stop(id, discard, now_ns),
            order @ (Order::Audio(..) | Order::Packet(..)) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.mouth.waiting.fetch_sub(1, Ordering::Relaxed);
                    running.tape.add(order);
                }
            }
            Order::End => {}
            Order::Pause(now_ns) => self.change(id, |tape| tape.pause(now_ns)),
            Order::Resume(now_ns) => self.change(id, |tape| {
                tape.resume(now_ns);
                Ok(())
            }),
        }
    }

    fn start(&mut self, id: RecordingId, new: NewRecording, mouth: Arc<Mouth>, now_ns: u64) {
        let NewRecording {
            path,
            content,
            metadata,
            call,
        } = new;
        let tape = Tape::new(&path, content, now_ns).and_then(|tape| {
            if let Some(text) = metadata {
                std::fs::write(beside(&path), text)?;
            }
            Ok(tape)
        });
        match tape {
            Ok(tape) => {
                tracing::info!(call, path = %path.display(), "recording");
                let running = Running {
                    tape,
                    mouth,
                    path,
                    call,
                };
                self.running.insert(id, running);
            }
            Err(error) => {
                mouth.has_failed.store(true, Ordering::Relaxed);
                tracing::error!(call, path = %path.display(), %error, "the call is not recorded");
            }
        }
    }

    /// Does something that may fail; then the recording ends.
    fn change(
        &mut self,
        id: RecordingId,
        change: impl FnOnce(&mut Tape) -> Result<(), WriteError>,
    ) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        if let Err(error) = change(&mut running.tape) {
            self.fail(id, &error);
        }
    }

    /// The call goes on without its recording.
    fn fail(&mut self, id: RecordingId, error: &WriteError) {
        if let Some(running) = self.running.remove(&id) {
            running.mouth.has_failed.store(true, Ordering::Relaxed);
            let (call, path) = (&running.call, running.path.display());
            tracing::error!(call, %path, %error, "the recording has ended");
        }
    }

    fn write_all(&mut self, now_ns: u64) {
        let ids: Vec<RecordingId> = self.running.keys().copied().collect();
        for id in ids {
            self.change(id, |tape| tape.write(now_ns));
        }
    }

    fn stop(&mut self, id: RecordingId, discard: bool, now_ns: u64) {
        self.change(id, |tape| tape.finish(now_ns));
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        let Running {
            mouth, path, call, ..
        } = running;
        let dropped = mouth.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(
                call,
                dropped,
                "the disk was too slow: the recording has gaps"
            );
        }
        if discard {
            for path in [path.clone(), beside(&path)] {
                // The metadata may not be there.
                let _ = std::fs::remove_file(path);
            }
        }
        tracing::info!(call, path = %path.display(), discard, "the recording has ended");
    }
}

/// Where the metadata are kept.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("txt")
}

/// Four seconds of both sides in packets of 20 ms: longer than a disk pauses, and 3 MiB of 48 kHz.
const WAITING_MAX: usize = 400;
/// Files are no further behind than this and [`tracks::DELAY_NS`](super::tracks).
const TICK_NS: u64 = 500_000_000;
