//! Keeps the positions of the streams' outputs, so that a listener hears the same RTP stream after a restart of the stream or of the
//! process: the same SSRC, and numbers and timestamps that follow.
//!
//! With a file, a thread writes the positions once a second, and the process writes them when it stops. The file is not synced, because no
//! stream survives a power cut.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use threadbare_control::saved::Format;
use threadbare_process::system::{boot_id, unix_at_zero_ns};
use threadbare_rtp::call::{DirectionState, LegId, SessionState, TimeState};
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::leg::{Outage, SKIPPED_PACKETS_MAX, SentState};
use threadbare_runtime::clock_now_ns;
use threadbare_watch::Directory;

/// The positions from which streams will continue, by name, and the file.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    positions: HashMap<String, Continuation>,
    keeper: Option<Keeper>,
}

/// A position, and how long the stream has paused.
#[derive(Debug, Clone, Copy)]
struct Continuation {
    position: Position,
    taken_ns: u64,
    /// Whether the stream may have sent packets after the position was taken.
    may_have_sent: bool,
}

/// The position of an output, in the file. The names never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    ssrc: u32,
    next_seq: u16,
    packets_sent: u64,
    octets_sent: u64,
    /// The end of the sent audio, as an RTP timestamp.
    end: u32,
    end_in_ns: i64,
    clock_rate_hz: u32,
    packet_ns: u64,
}

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    /// Identifies the boot of the machine, with which the monotonic clock starts.
    boot: Option<u128>,
    unix_at_zero_ns: u64,
    /// Whether the process has stopped in order, and has sent nothing after these positions.
    has_stopped: bool,
    /// The streams, with the times of their positions.
    streams: HashMap<String, (u64, Position)>,
}

/// Versions of the file. The documentation of [`threadbare_control::saved`] says which changes need a new version.
const FORMAT: Format = Format {
    version: 1,
    positional: None,
};

/// The reason why a file of positions cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`state` of [restart]: cannot use {}: {error}", .path.display())]
pub struct KeepError {
    path: PathBuf,
    error: io::Error,
}

impl Kept {
    /// Reads the file, and keeps the positions of the streams in it from now on.
    pub(crate) fn open(path: &Path, directory: Directory) -> Result<Kept, KeepError> {
        let refused = |error| KeepError {
            path: path.to_owned(),
            error,
        };
        let lock = lock(path).map_err(refused)?;
        let saved = match std::fs::read(path) {
            Ok(bytes) => FORMAT
                .read::<Saved>(&bytes)
                .map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Saved::empty()),
            Err(error) => return Err(refused(error)),
        };
        let saved = saved.unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, error, "cannot read the positions of the streams, so the streams get new SSRCs");
            Saved::empty()
        });
        // Fails here, and not in the thread, if the folder does not allow writing.
        write(path, &Saved::empty_but(&saved)).map_err(refused)?;
        let keeper = Keeper::start(path.to_owned(), directory, lock).map_err(refused)?;
        Ok(Kept {
            positions: saved.positions(clock_now_ns()),
            keeper: Some(keeper),
        })
    }

    /// Whether the positions outlive the process.
    pub(crate) fn has_file(&self) -> bool {
        self.keeper.is_some()
    }

    /// Keeps the position of a stream that has stopped.
    pub(crate) fn put(&mut self, stream: &str, state: &SessionState) {
        if let Some(position) = Position::of(state) {
            let continuation = Continuation {
                position,
                taken_ns: clock_now_ns(),
                may_have_sent: false,
            };
            self.positions.insert(stream.to_owned(), continuation);
        }
    }

    /// Removes and returns the position from which a stream continues. `None`: it starts anew, because its position is unknown, or because
    /// it would have to skip too many numbers.
    pub(crate) fn take(&mut self, stream: &str) -> Option<(SessionState, Outage)> {
        let continuation = self.positions.remove(stream)?;
        let outage = continuation.outage(clock_now_ns());
        let position = continuation.position;
        let skipped = outage.skipped_packets(position.packet_ns);
        (skipped < SKIPPED_PACKETS_MAX).then(|| (position.state(), outage))
    }

    /// Writes the positions of the streams that have stopped, which are all.
    pub(crate) fn end(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            let streams = self.positions.drain();
            let streams = streams.map(|(name, one)| (name, (one.taken_ns, one.position)));
            keeper.end(streams.collect());
        }
    }
}

impl Continuation {
    fn outage(&self, now_ns: u64) -> Outage {
        let elapsed_ns = now_ns.saturating_sub(self.taken_ns);
        Outage {
            elapsed_ns,
            unsaved_ns: if self.may_have_sent { elapsed_ns } else { 0 },
        }
    }
}

impl Position {
    /// Returns the position of a stream's output. `None`: the stream has sent nothing that it numbers itself.
    fn of(state: &SessionState) -> Option<Position> {
        let (sent, direction) = state.output()?;
        let time = direction.time?;
        Some(Position {
            ssrc: sent.ssrc.0,
            next_seq: sent.next_seq.0,
            packets_sent: sent.packets_sent,
            octets_sent: sent.octets_sent,
            end: time.end.0,
            end_in_ns: time.end_in_ns,
            clock_rate_hz: time.clock_rate_hz,
            packet_ns: direction.packet_ns,
        })
    }

    fn state(self) -> SessionState {
        let sent = SentState {
            ssrc: Ssrc(self.ssrc),
            next_seq: SeqNum(self.next_seq),
            packets_sent: self.packets_sent,
            octets_sent: self.octets_sent,
        };
        let direction = DirectionState {
            to: LegId::A,
            time: Some(TimeState {
                end: RtpTime(self.end),
                end_in_ns: self.end_in_ns,
                clock_rate_hz: self.clock_rate_hz,
            }),
            packet_ns: self.packet_ns,
            passed: None,
        };
        SessionState::of_output(sent, direction)
    }
}

impl Saved {
    fn new(has_stopped: bool, streams: HashMap<String, (u64, Position)>) -> Saved {
        Saved {
            boot: boot_id(),
            unix_at_zero_ns: unix_at_zero_ns(),
            has_stopped,
            streams,
        }
    }

    fn empty() -> Saved {
        Saved::new(true, HashMap::new())
    }

    /// Returns the same streams as of a process that runs.
    fn empty_but(saved: &Saved) -> Saved {
        Saved {
            has_stopped: false,
            streams: saved.streams.clone(),
            ..*saved
        }
    }

    /// Returns the positions with times of this boot's monotonic clock. After a restart of the machine, only positions of a process that has
    /// stopped in order are known.
    fn positions(self, now_ns: u64) -> HashMap<String, Continuation> {
        let is_same_clock = self.boot.is_some() && self.boot == boot_id();
        let (before_ns, after_ns) = (self.unix_at_zero_ns, unix_at_zero_ns());
        let on_this_clock = |taken_ns: u64| {
            let unix_ns = taken_ns.saturating_add(before_ns);
            unix_ns.saturating_sub(after_ns).min(now_ns)
        };
        if !is_same_clock && !self.has_stopped {
            return HashMap::new();
        }
        let may_have_sent = !self.has_stopped;
        let streams = self.streams.into_iter();
        let continued = streams.map(|(name, (taken_ns, position))| {
            let taken_ns = if is_same_clock {
                taken_ns
            } else {
                on_this_clock(taken_ns)
            };
            let continuation = Continuation {
                position,
                taken_ns,
                may_have_sent,
            };
            (name, continuation)
        });
        continued.collect()
    }
}

/// The thread that writes the file.
#[derive(Debug)]
struct Keeper {
    last: Sender<HashMap<String, (u64, Position)>>,
    thread: JoinHandle<()>,
}

impl Keeper {
    fn start(path: PathBuf, directory: Directory, lock: File) -> io::Result<Keeper> {
        let (last, ends) = channel();
        let thread = std::thread::Builder::new()
            .name("positions".to_owned())
            .spawn(move || {
                let _lock = lock;
                keep(&path, &directory, &ends);
            })?;
        Ok(Keeper { last, thread })
    }

    fn end(self, streams: HashMap<String, (u64, Position)>) {
        // Both fail only if the thread has panicked, which it has reported.
        let _ = self.last.send(streams);
        let _ = self.thread.join();
    }
}

fn keep(path: &Path, directory: &Directory, ends: &Receiver<HashMap<String, (u64, Position)>>) {
    let mut is_told = false;
    loop {
        let (saved, is_last) = match ends.recv_timeout(PERIOD) {
            Ok(streams) => (Saved::new(true, streams), true),
            Err(RecvTimeoutError::Timeout) => (Saved::new(false, published(directory)), false),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let written = write(path, &saved);
        if let Err(error) = &written
            && !is_told
        {
            let path = path.display();
            tracing::error!(%path, %error, "cannot write the positions of the streams");
        }
        is_told = written.is_err();
        if is_last {
            return;
        }
    }
}

/// Returns the positions that the streams have published last.
fn published(directory: &Directory) -> HashMap<String, (u64, Position)> {
    let listed = directory.list();
    let streams = listed.streams.into_iter().filter_map(|(_, watched)| {
        let (taken_ns, state) = watched.snapshot.state()?;
        Some((watched.name.to_string(), (taken_ns, Position::of(&state)?)))
    });
    streams.collect()
}

/// Replaces the file, so that it is always whole.
fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(&FORMAT.write(saved))?;
    drop(file);
    std::fs::rename(&new, path)
}

/// Locks the file for this process.
fn lock(path: &Path) -> io::Result<File> {
    let lock = File::create(with_suffix(path, ".lock"))?;
    if lock.try_lock().is_err() {
        let reason = "another process uses the file";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
    }
    Ok(lock)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Interval at which the file is written.
const PERIOD: Duration = Duration::from_secs(1);
