//! A file that is being written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use threadbare_base::{NS_PER_MS, NS_PER_S};

use threadbare_files::{Access, Budget, Data, Disk, Ending, Failure, File, Options};

use super::container::Container;
use super::destination::{Keeping, keep};
use super::index::{Entry, RecordingState};
use super::loudness::FileMeter;
use super::rooms::Rooms;
use threadbare_config::RecordSpec;

/// A growing file. Its functions do not block.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) root: Arc<Path>,
    pub(super) entry: Entry,
    file: File,
    container: Container,
    meter: Option<FileMeter>,
    head_bytes: u64,
    /// Encoded bytes that the file service has not accepted yet.
    waiting: Vec<u8>,
    rooms: Rooms,
    /// Number of bytes after the header that the file service has accepted.
    taken: u64,
    /// Size in the header. It is larger than the file, so that a file that was cut off can still be read to its end.
    said: u64,
    /// Time on the monotonic clock at which the file must end, in ns.
    pub(super) end_ns: u64,
    bytes_max: Option<u64>,
    /// Time of the last packet, in ms since 1970.
    last_unix_ms: u64,
}

impl Part {
    /// Starts a file.
    pub(super) fn begin(
        (disk, budget, rooms): (&Disk, &Budget, &Rooms),
        root: Arc<Path>,
        entry: Entry,
        end_ns: u64,
        spec: &RecordSpec,
    ) -> Part {
        let mut options = Options::new(Access::Write);
        options.with_parents = true;
        options.permissions = spec.permissions.bits();
        // Data are written at once, because the recorder has already collected the audio of a turn.
        options.linger = Duration::ZERO;
        options.budget = Some(budget.clone());
        let file = disk.open(root.join(entry.part_path()), options);
        let container = Container::new(entry.format, entry.sound(), entry.tracks, entry.notes());
        let head = container.head(false);
        let is_audio = entry.rate_hz > 0;
        Part {
            root,
            meter: is_audio.then(|| FileMeter::new(entry.sound())),
            entry,
            file,
            head_bytes: head.len() as u64,
            container,
            waiting: head,
            rooms: rooms.clone(),
            taken: 0,
            said: 0,
            end_ns,
            bytes_max: spec.rotate.bytes_max,
            last_unix_ms: 0,
        }
    }

    /// Returns the path of the file while it grows.
    pub(super) fn path(&self) -> PathBuf {
        self.root.join(self.entry.part_path())
    }

    /// Returns the number of frames that still fit.
    pub(super) fn room_frames(&self) -> usize {
        let room = self.container.room_frames(self.bytes_max);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Returns the number of frames from this time on that still fit before the file is full or must end.
    pub(super) fn frames_from(&self, first_ns: u64) -> usize {
        let left_ns = u128::from(self.end_ns.saturating_sub(first_ns));
        let until_end = (left_ns * u128::from(self.entry.rate_hz)).div_ceil(u128::from(NS_PER_S));
        let until_end = usize::try_from(until_end).unwrap_or(usize::MAX);
        self.room_frames().min(until_end)
    }

    /// Whether the file has reached its maximum size.
    pub(super) fn is_full(&self) -> bool {
        self.room_frames() == 0
    }

    /// Adds whole frames in the coding of the file.
    pub(super) fn add(&mut self, frames: &[u8]) {
        self.measure(frames);
        if self.waiting.capacity() == 0 {
            self.waiting = self.rooms.take();
        }
        self.container.add(frames, &mut self.waiting);
    }

    /// Adds all frames of a buffer. This function may replace the buffer by another one.
    pub(super) fn add_all(&mut self, frames: &mut Vec<u8>) {
        let is_as_it_is = self.waiting.is_empty() && self.container.add_as_it_is(frames);
        if !is_as_it_is {
            return self.add(frames);
        }
        self.measure(frames);
        std::mem::swap(&mut self.waiting, frames);
    }

    fn measure(&mut self, frames: &[u8]) {
        if let Some(meter) = &mut self.meter {
            meter.add(frames);
        }
    }

    /// Adds a packet. If too many bytes are already waiting, drops the packet.
    pub(super) fn add_packet(
        &mut self,
        unix_ns: u64,
        addresses: [std::net::SocketAddr; 2],
        payload: &[u8],
    ) -> bool {
        let has_room = self.waiting.len() < PACKET_BYTES_WAITING_MAX;
        if has_room {
            self.last_unix_ms = unix_ns / NS_PER_MS;
            self.container
                .add_packet(unix_ns, addresses, payload, &mut self.waiting);
        }
        has_room
    }

    /// Whether the disk is late, so that audio must wait in its ring.
    pub(super) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Passes waiting bytes to the file service, as many as it accepts. Returns their number.
    ///
    /// # Errors
    /// Fails if the file has failed before.
    pub(super) fn flush(&mut self) -> Result<u64, Failure> {
        if let Some(failure) = self.file.failure() {
            return Err(failure);
        }
        // No waker is needed, because the next turn tries to write again.
        let cx = &mut Context::from_waker(Waker::noop());
        let bytes = self.waiting.len();
        if bytes > 0 {
            let (waiting, rooms) = (&mut self.waiting, &self.rooms);
            let data = || rooms.lend(std::mem::take(waiting));
            match self.file.poll_write(cx, bytes, false, data) {
                Poll::Ready(written) => written?,
                Poll::Pending => return Ok(0),
            }
            self.taken = self.container.bytes();
        }
        if self.container.has_size_in_head() && self.taken > self.said {
            let ahead = self.container.bytes_in(AHEAD_S);
            let head = self.container.head_ahead(ahead);
            self.file.seek(0);
            let length = head.len();
            let data = || Data::Owned(Box::new(head));
            let written = self.file.poll_write(cx, length, false, data);
            self.file.seek(self.head_bytes + self.taken);
            // If the audio is not accepted, the next turn tries to write it again.
            if let Poll::Ready(written) = written {
                written?;
                self.said = self.taken + ahead;
            }
        }
        Ok(bytes as u64)
    }

    /// Ends the file. Returns its entry, and the operation that finishes it.
    pub(super) fn finish(mut self, disk: &Disk) -> (Entry, Keeping) {
        let mut entry = self.settled(RecordingState::Complete);
        entry.loudness = self.meter.as_ref().and_then(FileMeter::read);
        self.container.notes.loudness = entry.loudness;
        let part = self.path();
        let (wanted, other) = (
            self.root.join(&entry.path),
            self.root.join(entry.other_path()),
        );
        let head = self.container.head(true);
        let end = self.container.end();
        entry.bytes = self.head_bytes + self.container.bytes() + end.len() as u64;
        let disk = disk.clone();
        let (file, mut rest) = (self.file, self.waiting);
        rest.extend(end);
        let keeping = async move {
            if !rest.is_empty() {
                file.write(Data::Owned(Box::new(rest))).await?;
            }
            file.seek(0);
            file.write(Data::Owned(Box::new(head))).await?;
            file.close(Ending::default()).await?;
            keep(&disk, part, wanted, other).await
        };
        (entry, Box::pin(keeping))
    }

    /// Ends a file that has failed. The part that was written gets the final name. Returns the file's entry, and the operation that
    /// finishes it.
    pub(super) fn cut(self, disk: &Disk) -> (Entry, Keeping) {
        let mut entry = self.settled(RecordingState::Cut);
        entry.bytes = self.head_bytes + self.taken;
        let (wanted, other) = (
            self.root.join(&entry.path),
            self.root.join(entry.other_path()),
        );
        let (disk, part) = (disk.clone(), self.path());
        let keeping = async move { keep(&disk, part, wanted, other).await };
        (entry, Box::pin(keeping))
    }

    /// Ends and removes the file. Returns the operation that does this.
    pub(super) fn discard(self, disk: &Disk) -> Keeping {
        let (disk, part, file) = (disk.clone(), self.path(), self.file);
        Box::pin(async move {
            // The result does not matter, because the file is removed.
            let _ = file.close(Ending::default()).await;
            disk.remove(&part).await?;
            Ok(part)
        })
    }

    fn settled(&self, state: RecordingState) -> Entry {
        let began = self.entry.started_unix_ms;
        Entry {
            state,
            duration_ms: match self.entry.rate_hz {
                0 => self.last_unix_ms.saturating_sub(began),
                _ => self.container.duration_ms(),
            },
            ..self.entry.clone()
        }
    }
}

/// Interval at which the header is rewritten. Its size is the one that the file will have at the next rewriting.
const AHEAD_S: u64 = 10;
/// Maximum number of bytes of one file's packets that wait for the disk.
const PACKET_BYTES_WAITING_MAX: usize = 1 << 20;
