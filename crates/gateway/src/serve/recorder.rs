//! Recordings of calls, written by one thread that may block: WAV files of 16 bits with two channels, side A on the left; or pcap files of both sides' packets.
//!
//! For the first it listens to the call, as anybody may; for the others, the media threads hand over packets. They never wait, and leave out what the disk is
//! too slow for. Both channels have the time of their arrival: where a side is silent, so is its channel.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use threadbare_relay::Listening;
use threadbare_rtp::call::Side;
use threadbare_runtime::clock_now_ns;

use super::pcap::Pcap;
use super::wav::{Wav, WriteError};
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
#[derive(Debug)]
pub(super) enum Content {
    /// Audio, with this rate.
    Audio { rate_hz: u32, listening: Listening },
    /// Packets to these ports, of each side, from an [`Ear`].
    Packets { local: [SocketAddr; 2], end: WayEnd },
}

#[derive(Debug)]
enum Order {
    Start(Box<NewRecording>, u64),
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
struct Way {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    is_over: AtomicBool,
}

/// The writer's end of it. Dropped, nothing more comes.
#[derive(Debug, Default)]
pub(super) struct WayEnd(Arc<Way>);

impl Drop for WayEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Takes the packets of one call, on its media thread.
#[derive(Debug, Clone)]
pub(super) struct Ear {
    id: RecordingId,
    way: Arc<Way>,
    orders: Sender<(RecordingId, Order)>,
}

impl Ear {
    /// A packet that a side has sent. Does not block.
    pub(super) fn hear_packet(&self, at_ns: u64, side: Side, from: SocketAddr, packet: &[u8]) {
        if self.way.is_over.load(Ordering::Relaxed) {
            return;
        }
        if self.way.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            self.way.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.way.waiting.fetch_add(1, Ordering::Relaxed);
        let order = Order::Packet(at_ns, side, from, packet.into());
        // Without a writer the process ends.
        let _ = self.orders.send((self.id, order));
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

    /// Begins a recording. One of packets gets them by the ear.
    pub(super) fn start(&mut self, new: NewRecording) -> (RecordingId, Option<Ear>) {
        let id = RecordingId(self.next);
        self.next += 1;
        let ear = match &new.content {
            Content::Audio { .. } => None,
            Content::Packets { end, .. } => Some(Ear {
                id,
                way: end.0.clone(),
                orders: self.orders.clone(),
            }),
        };
        self.order(id, Order::Start(Box::new(new), clock_now_ns()));
        (id, ear)
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
    path: PathBuf,
    call: String,
}

/// A file that grows.
#[derive(Debug)]
enum Tape {
    Audio(Box<Wav>),
    Packets {
        pcap: Pcap,
        local: [SocketAddr; 2],
        end: WayEnd,
        unix_at_zero_ns: u64,
    },
}

impl Tape {
    fn new(path: &Path, content: Content, now_ns: u64) -> Result<Tape, WriteError> {
        Ok(match content {
            Content::Audio { rate_hz, listening } => {
                Tape::Audio(Box::new(Wav::new(path, rate_hz, listening, now_ns)?))
            }
            Content::Packets { local, end } => Tape::Packets {
                pcap: Pcap::new(path)?,
                local,
                end,
                unix_at_zero_ns: unix_at_zero_ns(),
            },
        })
    }

    fn add_packet(&mut self, at_ns: u64, side: Side, from: SocketAddr, packet: &[u8]) {
        if let Tape::Packets {
            pcap,
            local,
            end,
            unix_at_zero_ns,
        } = self
        {
            end.0.waiting.fetch_sub(1, Ordering::Relaxed);
            let unix_ns = unix_at_zero_ns.saturating_add(at_ns);
            pcap.add(unix_ns, from, local[side as usize], packet);
        }
    }

    /// What the disk was too slow for, and its unit.
    fn missed(&self) -> (u64, &'static str) {
        match self {
            Tape::Audio(wav) => (wav.missed_ns() / NS_PER_MS, "ms"),
            Tape::Packets { end, .. } => (end.0.dropped.load(Ordering::Relaxed), "packets"),
        }
    }

    fn pause(&mut self, now_ns: u64) -> Result<(), WriteError> {
        match self {
            Tape::Audio(wav) => wav.pause(now_ns),
            Tape::Packets { pcap, .. } => {
                pcap.set_paused(true);
                Ok(())
            }
        }
    }

    fn resume(&mut self, now_ns: u64) {
        match self {
            Tape::Audio(wav) => wav.resume(now_ns),
            Tape::Packets { pcap, .. } => pcap.set_paused(false),
        }
    }

    fn write(&mut self, now_ns: u64) -> Result<(), WriteError> {
        match self {
            Tape::Audio(wav) => wav.write(now_ns),
            Tape::Packets { pcap, .. } => Ok(pcap.write()?),
        }
    }

    fn finish(&mut self, now_ns: u64) -> Result<(), WriteError> {
        match self {
            Tape::Audio(wav) => wav.pause(now_ns),
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
            Order::Start(new, now_ns) => self.start(id, *new, now_ns),
            Order::Stop { discard, now_ns } => self.stop(id, discard, now_ns),
            Order::Packet(at_ns, side, from, packet) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.tape.add_packet(at_ns, side, from, &packet);
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

    fn start(&mut self, id: RecordingId, new: NewRecording, now_ns: u64) {
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
                self.running.insert(id, Running { tape, path, call });
            }
            Err(error) => {
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
        let Running { tape, path, call } = running;
        let (dropped, unit) = tape.missed();
        if dropped > 0 {
            tracing::warn!(
                call,
                dropped,
                unit,
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

/// Four seconds of both sides in packets of 20 ms: longer than a disk pauses.
const WAITING_MAX: usize = 400;
const NS_PER_MS: u64 = 1_000_000;
/// Files are no further behind than this and [`wav::DELAY_NS`](super::wav). Of audio, 4 s wait meanwhile: see [`media`](super::media).
const TICK_NS: u64 = 500_000_000;
