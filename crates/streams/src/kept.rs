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
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use threadbare_base::lock;
use threadbare_config::StreamSpec;
use threadbare_control::saved::Format;
use threadbare_process::system::{boot_id, unix_at_zero_ns};
use threadbare_rtp::call::{DirectionState, LegId, SessionState, TimeState};
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::leg::{Outage, SKIPPED_PACKETS_MAX, SentState};
use threadbare_runtime::clock_now_ns;
use threadbare_watch::Directory;

/// The positions from which streams will continue, and the file.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    waiting: Arc<Mutex<Continuations>>,
    keeper: Option<Keeper>,
}

/// The positions of streams that do not run, by name.
type Continuations = HashMap<String, Continuation>;

/// A position with its time on the monotonic clock. The names never change.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
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
    streams: Continuations,
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
    /// Reads the file, and keeps the positions of the streams in it from now on. Positions of streams other than `streams` are forgotten.
    pub(crate) fn open(
        path: &Path,
        streams: &[StreamSpec],
        directory: Directory,
    ) -> Result<Kept, KeepError> {
        let refused = |error| KeepError {
            path: path.to_owned(),
            error,
        };
        let locked = lock_file(path).map_err(refused)?;
        let mut waiting = match std::fs::read(path) {
            Ok(bytes) => positions_in(&bytes, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Continuations::new(),
            Err(error) => return Err(refused(error)),
        };
        waiting.retain(|name, _| streams.iter().any(|spec| spec.name == *name));
        // This fails here, and not in the thread, if the folder does not allow writing.
        write(path, Saved::running(waiting.clone())).map_err(refused)?;
        let waiting = Arc::new(Mutex::new(waiting));
        let keeper = Keeper::start(path.to_owned(), directory, waiting.clone(), locked);
        Ok(Kept {
            waiting,
            keeper: Some(keeper.map_err(refused)?),
        })
    }

    /// Whether the positions outlive the process.
    pub(crate) fn has_file(&self) -> bool {
        self.keeper.is_some()
    }

    /// Keeps the position of a stream that has stopped.
    pub(crate) fn put(&self, stream: &str, state: &SessionState) {
        if let Some(position) = Position::of(state) {
            let continuation = Continuation {
                position,
                taken_ns: clock_now_ns(),
                may_have_sent: false,
            };
            lock(&self.waiting).insert(stream.to_owned(), continuation);
        }
    }

    /// Returns the position from which a stream continues. `None`: the stream gets a new SSRC, because its position is unknown, or because
    /// it would have to skip too many numbers.
    pub(crate) fn get(&self, stream: &str) -> Option<(SessionState, Outage)> {
        let continuation = *lock(&self.waiting).get(stream)?;
        let outage = continuation.outage(clock_now_ns());
        let position = continuation.position;
        let skipped = outage.skipped_packets(position.packet_ns);
        (skipped < SKIPPED_PACKETS_MAX).then(|| (position.state(), outage))
    }

    /// Forgets the position of a stream that has started.
    pub(crate) fn forget(&self, stream: &str) {
        lock(&self.waiting).remove(stream);
    }

    /// Writes the positions a last time. All streams have stopped.
    pub(crate) fn end(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end();
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
    fn new(streams: Continuations) -> Saved {
        Saved {
            boot: boot_id(),
            unix_at_zero_ns: unix_at_zero_ns(),
            streams,
        }
    }

    /// Returns the contents of the file while the process runs. A stream that waits now may send before the next write.
    fn running(mut streams: Continuations) -> Saved {
        for continuation in streams.values_mut() {
            continuation.may_have_sent = true;
        }
        Saved::new(streams)
    }

    /// Returns the positions with times of this boot's monotonic clock. After a restart of the machine, the positions of streams that may
    /// have sent more are useless.
    fn on_this_clock(self) -> Continuations {
        let is_same_clock = self.boot.is_some() && self.boot == boot_id();
        let (before_ns, after_ns) = (self.unix_at_zero_ns, unix_at_zero_ns());
        let mut streams = self.streams;
        if !is_same_clock {
            streams.retain(|_, one| !one.may_have_sent);
            for one in streams.values_mut() {
                let unix_ns = one.taken_ns.saturating_add(before_ns);
                one.taken_ns = unix_ns.saturating_sub(after_ns);
            }
        }
        streams
    }
}

/// Returns the positions in a file's bytes.
fn positions_in(bytes: &[u8], path: &Path) -> Continuations {
    match FORMAT.read::<Saved>(bytes) {
        Ok(saved) => saved.on_this_clock(),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read the positions of the streams, so the streams get new SSRCs");
            Continuations::new()
        }
    }
}

/// The thread that writes the file.
#[derive(Debug)]
struct Keeper {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Keeper {
    fn start(
        path: PathBuf,
        directory: Directory,
        waiting: Arc<Mutex<Continuations>>,
        locked: File,
    ) -> io::Result<Keeper> {
        let (end, ends) = channel();
        let thread = std::thread::Builder::new()
            .name("positions".to_owned())
            .spawn(move || {
                let _locked = locked;
                keep(&path, &directory, &waiting, &ends);
            })?;
        Ok(Keeper { end, thread })
    }

    fn end(self) {
        // Both fail only if the thread has panicked, which it has reported.
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

fn keep(path: &Path, directory: &Directory, waiting: &Mutex<Continuations>, ends: &Receiver<()>) {
    let mut has_failed = false;
    loop {
        let end = ends.recv_timeout(PERIOD);
        let waiting = lock(waiting).clone();
        let saved = match end {
            Ok(()) => Saved::new(waiting),
            Err(RecvTimeoutError::Timeout) => {
                let published = published(directory);
                Saved::running(waiting.into_iter().chain(published).collect())
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let written = write(path, saved);
        if let Err(error) = &written
            && !has_failed
        {
            let path = path.display();
            tracing::error!(%path, %error, "cannot write the positions of the streams");
        }
        has_failed = written.is_err();
        if end.is_ok() {
            return;
        }
    }
}

/// Returns the positions that the streams have published last.
fn published(directory: &Directory) -> Continuations {
    let listed = directory.list();
    let streams = listed.streams.into_iter().filter_map(|(_, watched)| {
        let (taken_ns, state) = watched.snapshot.state()?;
        let continuation = Continuation {
            position: Position::of(&state)?,
            taken_ns,
            may_have_sent: true,
        };
        Some((watched.name.to_string(), continuation))
    });
    streams.collect()
}

/// Replaces the file, so that it is always whole.
fn write(path: &Path, saved: Saved) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(&FORMAT.write(&saved))?;
    drop(file);
    std::fs::rename(&new, path)
}

/// Locks the file for this process.
fn lock_file(path: &Path) -> io::Result<File> {
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

#[cfg(test)]
mod tests {
    use threadbare_config::Config;

    use super::*;

    fn streams(names: &[&str]) -> Vec<StreamSpec> {
        let stream = |(at, name): (usize, &&str)| {
            let port = 5004 + 2 * at;
            format!(
                "[[stream]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\ncodec = \"PCMU\"\n"
            )
        };
        let text: String = names.iter().enumerate().map(stream).collect();
        let config = Config::from_toml("gateway.toml", &text);
        config.expect("valid").streams
    }

    fn position(ssrc: u32) -> Position {
        Position {
            ssrc,
            next_seq: 65_535,
            packets_sent: 9,
            octets_sent: 1440,
            end: u32::MAX,
            end_in_ns: -5,
            clock_rate_hz: 8000,
            packet_ns: 20_000_000,
        }
    }

    fn outage(kept: &Kept, stream: &str) -> Option<Outage> {
        kept.get(stream).map(|(_, outage)| outage)
    }

    /// Otherwise, the third process would use numbers that the first one may have used.
    #[test]
    fn stream_that_has_not_started_keeps_the_uncertainty_of_its_position() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("streams.state");
        let specs = streams(&["crashed", "stopped", "removed"]);
        let open = |specs| Kept::open(&path, specs, Directory::default()).expect("it opens");
        // The first process dies while it sends a stream.
        let crashed = Continuation {
            position: position(1),
            taken_ns: clock_now_ns(),
            may_have_sent: true,
        };
        let of_crash = ["crashed", "removed"].map(|name| (name.to_owned(), crashed));
        write(&path, Saved::new(of_crash.into())).expect("it is written");
        // The second one stops in order before it has started that stream. A stream that it has stopped has sent nothing since then.
        let mut second = open(&specs);
        second.put("stopped", &position(2).state());
        second.end();
        drop(second);
        let third = open(&specs[..2]);
        let unsaved_ns = |stream| outage(&third, stream).map(|outage| outage.unsaved_ns);
        assert!(unsaved_ns("crashed").is_some_and(|ns| ns > 0));
        assert_eq!(unsaved_ns("stopped"), Some(0));
        assert_eq!(
            unsaved_ns("removed"),
            None,
            "the file no longer has this stream"
        );
        third.forget("crashed");
        assert_eq!(unsaved_ns("crashed"), None);
    }

    #[test]
    fn file_has_one_owner_and_may_be_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("streams.state");
        std::fs::write(&path, b"no positions").expect("it is written");
        let specs = streams(&["a"]);
        let first = Kept::open(&path, &specs, Directory::default()).expect("it opens");
        assert!(first.has_file() && first.get("a").is_none());
        let error = Kept::open(&path, &specs, Directory::default()).expect_err("a second owner");
        assert!(
            error.to_string().contains("another process uses the file"),
            "{error}"
        );
    }

    /// After a restart of the machine, the monotonic clock starts again.
    #[test]
    fn another_boot_keeps_only_positions_of_an_orderly_stop() {
        let now_ns = clock_now_ns();
        let continuation = |may_have_sent| Continuation {
            position: position(1),
            taken_ns: now_ns,
            may_have_sent,
        };
        let both = [("sure", false), ("unsure", true)];
        let both = both.map(|(name, unsure)| (name.to_owned(), continuation(unsure)));
        let saved = Saved {
            boot: None,
            // The earlier boot was an hour before.
            unix_at_zero_ns: unix_at_zero_ns() - 3_600_000_000_000,
            ..Saved::new(both.into())
        };
        let streams = saved.on_this_clock();
        assert_eq!(streams.keys().collect::<Vec<_>>(), ["sure"]);
        let taken_ns = streams["sure"].taken_ns;
        // The offset between the clocks is read twice.
        assert!(taken_ns.abs_diff(now_ns.saturating_sub(3_600_000_000_000)) < 1_000_000_000);
    }
}
