//! Writes buffers to a file, and handles a full budget.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use threadbare_files::{Counts, Data, Ending, Failure, File, Op};
use threadbare_runtime::{Precision, block_on, clock_now_ns, current_shard_id, sleep_until};

use super::settings::{DiskSettings, SlowPolicy};

/// Maximum size of buffers that are copied, bytes. The memory of a copied buffer returns to its pool.
const COPY_BYTES_MAX: usize = 1024;

/// Counters of an element's data over all of its files.
#[derive(Debug, Default)]
pub(super) struct Totals {
    written: AtomicU64,
    dropped: AtomicU64,
    lost: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    /// Buffers dropped by the slow policy.
    pub(super) dropped_buffers: AtomicU64,
    /// Number of times that the source had to wait.
    pub(super) held_up: AtomicU64,
}

impl Totals {
    /// Adds the counts of a file that has ended.
    pub(super) fn add(&self, counts: Counts) {
        for (total, count) in [
            (&self.written, counts.written),
            (&self.dropped, counts.dropped),
            (&self.lost, counts.lost),
            (&self.writes, counts.writes),
            (&self.syncs, counts.syncs),
        ] {
            total.fetch_add(count, Relaxed);
        }
    }

    /// Returns the statistics. `now` are the counts of files that have not ended.
    pub(super) fn structure(
        &self,
        name: &str,
        now: Counts,
        rendered: u64,
    ) -> gst::structure::Builder {
        let sum = |total: &AtomicU64, now: u64| total.load(Relaxed) + now;
        gst::Structure::builder(name)
            .field("rendered", rendered)
            .field("dropped", self.dropped_buffers.load(Relaxed))
            .field("held-up", self.held_up.load(Relaxed))
            .field("bytes-written", sum(&self.written, now.written))
            .field("bytes-held", now.held)
            .field("bytes-dropped", sum(&self.dropped, now.dropped))
            .field("bytes-lost", sum(&self.lost, now.lost))
            .field("writes", sum(&self.writes, now.writes))
            .field("syncs", sum(&self.syncs, now.syncs))
    }
}

/// An open file.
pub(super) struct Target {
    pub(super) file: File,
    /// Position of the next byte, relative to the position at which this element started.
    pub(super) position: u64,
    slow: SlowPolicy,
    buffer_bytes_max: u64,
}

/// Result of [`Target::write`].
pub(super) enum Stored {
    Yes,
    /// The buffer was not stored. The waker is woken when there may be room.
    Full,
    Failed(gst::ErrorMessage),
}

impl Target {
    pub(super) fn new(file: File, settings: &DiskSettings, waker: &Waker) -> Self {
        file.watch(waker.clone());
        Target {
            file,
            position: 0,
            slow: settings.slow,
            buffer_bytes_max: settings.buffer_bytes_max(),
        }
    }

    /// Passes the buffer to the disk service, if the budget and the slow policy allow it.
    pub(super) fn write(&mut self, buffer: &gst::Buffer, waker: &Waker, totals: &Totals) -> Stored {
        let is_kept = buffer.flags().contains(gst::BufferFlags::HEADER);
        let bytes = buffer.size();
        loop {
            match self.try_write(buffer, waker, is_kept) {
                Poll::Ready(Ok(())) => {
                    self.position += bytes as u64;
                    return Stored::Yes;
                }
                Poll::Ready(Err(error)) => return Stored::Failed(error),
                Poll::Pending => {}
            }
            match self.slow {
                SlowPolicy::HoldUp => return Stored::Full,
                SlowPolicy::Fail => return Stored::Failed(self.too_slow()),
                SlowPolicy::DropOldest => {
                    totals.dropped_buffers.fetch_add(1, Relaxed);
                    if self.file.drop_oldest().is_none() {
                        // All queued data is being written, or is a header. So this buffer is the oldest data that can be
                        // dropped.
                        totals.dropped.fetch_add(bytes as u64, Relaxed);
                        return Stored::Yes;
                    }
                }
            }
        }
    }

    fn try_write(
        &self,
        buffer: &gst::Buffer,
        waker: &Waker,
        is_kept: bool,
    ) -> Poll<Result<(), gst::ErrorMessage>> {
        let cx = &mut Context::from_waker(waker);
        let bytes = buffer.size();
        let written = if bytes <= COPY_BYTES_MAX {
            let Ok(map) = buffer.map_readable() else {
                return Poll::Ready(Err(self.unreadable()));
            };
            (self.file).poll_write(cx, bytes, is_kept, || Data::Copy(&map))
        } else {
            let Ok(map) = buffer.clone().into_mapped_buffer_readable() else {
                return Poll::Ready(Err(self.unreadable()));
            };
            let data = || Data::Owned(Box::new(map));
            self.file.poll_write(cx, bytes, is_kept, data)
        };
        written.map_err(|failure| error_of(&failure))
    }

    /// Handles a BYTES segment. With it, a muxer rewrites its header, or starts at another position.
    pub(super) fn seek(&mut self, position: u64) {
        if position != self.position {
            self.file.seek(position);
            self.position = position;
        }
    }

    /// Drops everything so far.
    pub(super) fn restart(&mut self) {
        if self.position > 0 {
            drop(self.file.restart());
        }
        self.position = 0;
    }

    /// Whether the file may be seekable, because it is not known to be a pipe.
    pub(super) fn is_seekable(&self) -> bool {
        self.file.stat().is_none_or(|stat| stat.is_regular)
    }

    fn too_slow(&self) -> gst::ErrorMessage {
        let held = self.file.counts().held;
        gst::error_msg!(
            gst::ResourceError::Write,
            [
                "{}: the disk is too slow (slow-policy=fail): {held} bytes of this file wait for the disk; the limit is \
                buffer-max-bytes={} for all files of the context",
                self.file.path().display(),
                self.buffer_bytes_max
            ]
        )
    }

    fn unreadable(&self) -> gst::ErrorMessage {
        gst::error_msg!(
            gst::ResourceError::Write,
            ["{}: a buffer cannot be read", self.file.path().display()]
        )
    }

    /// Closes the file, and waits for the end for a limited time. A pipe that no process reads is abandoned.
    pub(super) fn close(self, ending: Ending) -> (Counts, Option<gst::ErrorMessage>) {
        let is_seekable = self.is_seekable();
        let has_failed = self.file.failure().is_some();
        let op = self.file.close(ending);
        let patience = if is_seekable {
            CLOSE_WAIT
        } else {
            CLOSE_WAIT_PIPE
        };
        let closed = match current_shard_id() {
            // A context's thread must not wait.
            Some(_) => None,
            None => await_for(op, patience),
        };
        if closed.is_none() && !is_seekable {
            self.file.give_up();
        }
        let counts = self.file.counts();
        // An earlier failure has already been reported.
        let failure = closed.and_then(Result::err).filter(|_| !has_failed);
        (counts, failure.map(|failure| error_of(&failure)))
    }
}

/// Maximum time for writing the end of a file when the element stops. Data that takes longer is written afterwards.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// Maximum time for a pipe. A reader that has read nothing by then will not read later either.
const CLOSE_WAIT_PIPE: Duration = Duration::from_secs(1);

/// Waits for an operation on an ordinary thread. Returns `None` if it takes longer than `patience`.
pub(super) fn await_for<T>(mut op: Op<T>, patience: Duration) -> Option<Result<T, Failure>> {
    let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    let deadline_ns = clock_now_ns().saturating_add(patience_ns);
    let mut sleep = Box::pin(sleep_until(deadline_ns, Precision::NotBefore));
    block_on(std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = Pin::new(&mut op).poll(cx) {
            return Poll::Ready(Some(result));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    }))
}

/// Returns the error message for the application.
pub(super) fn error_of(failure: &Failure) -> gst::ErrorMessage {
    let kind = match (failure.operation(), failure.errno()) {
        (_, libc::ENOSPC | libc::EDQUOT) => gst::ResourceError::NoSpaceLeft,
        ("open", libc::ENOENT) => gst::ResourceError::NotFound,
        ("open", libc::EACCES | libc::EPERM) => gst::ResourceError::NotAuthorized,
        ("open" | "inspect", _) => gst::ResourceError::OpenWrite,
        ("seek", _) => gst::ResourceError::Seek,
        ("sync", _) => gst::ResourceError::Sync,
        ("close" | "finish" | "rename", _) => gst::ResourceError::Close,
        _ => gst::ResourceError::Write,
    };
    gst::error_msg!(kind, ["{failure}"])
}
