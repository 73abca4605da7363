//! State of one file: its queue and its next operation. It has no lock, descriptor operation or clock; times are nanoseconds.
//!
//! ```text
//!   New --opened--> Opened --inspected--> Ready --Close--> Closed (a rename may follow)
//!     `--------- an operation fails, or is given up -----------> Failed: the queue is dropped, the descriptor closed
//! ```
//!
//! Entries are executed in order, one operation at a time, so a file has the same contents with any backend. Small writes are
//! combined. They are executed when they fill a block, when the first of them has waited for the linger time, or when another
//! entry follows them. The position of a write is determined when its operation begins, so that a dropped write leaves no hole.
//!
//! The drain contract: after each call that may change something, take replies, and memory to be dropped, from
//! [`FileCore::take_outputs`]. Then call [`FileCore::poll_job`] for the next operation until it returns `None`.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::data::{Data, Piece};
use crate::failure::Failure;
use crate::job::{Access, Done, Fd, Job, Stat, Writing};

/// Size of the blocks of small writes. When the budget is exhausted, whole blocks are dropped.
const SMALL_BLOCK_BYTES: usize = 4 << 10;
/// Initial capacity of the first block: one or two packets of a slow stream.
const SMALL_BLOCK_BYTES_MIN: usize = 512;
/// Maximum number of pieces of one write operation. The system allows 1024 (IOV_MAX).
const PIECES_MAX: usize = 128;

/// Settings of a file.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) path: Arc<Path>,
    pub(crate) access: Access,
    pub(crate) with_parents: bool,
    pub(crate) permissions: u32,
    /// Size at which combined writes are executed. It is also their approximate size.
    pub(crate) block_bytes: usize,
    /// Maximum time for which a write waits to be combined.
    pub(crate) linger_ns: u64,
    /// Maximum time until written data is synced.
    pub(crate) sync_every_ns: Option<u64>,
}

/// An operation, in order with the writes.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Completes when the file is open.
    Opened,
    Read {
        at: u64,
        bytes: usize,
    },
    Sync,
    /// Empties the file, back to the position where its writer began.
    Restart,
    Close,
    Rename {
        to: Arc<Path>,
        durable: bool,
    },
}

enum Entry<T> {
    Write {
        piece: Piece,
        bytes: usize,
        /// Whether the entry must not be dropped to make room.
        is_kept: bool,
    },
    Seek(u64),
    Do(Step, T),
}

/// The operation that is being executed.
enum Current<T> {
    Open,
    Inspect,
    Write(usize),
    /// A sync that was due by time, so no caller waits for it.
    Sync,
    Close,
    Do(Step, T),
}

enum Stage {
    New,
    Opened,
    Ready,
    Closed,
    Failed(Failure),
}

/// Results to be handled without a lock.
pub(crate) struct Outputs<T> {
    pub(crate) replies: Vec<(T, Result<Done, Failure>)>,
    /// Memory to be dropped without a lock, because that may call its owner.
    pub(crate) discarded: Vec<Piece>,
    /// Number of bytes to return to the budget.
    pub(crate) released: usize,
    pub(crate) has_failed: bool,
}

impl<T> Default for Outputs<T> {
    fn default() -> Self {
        Outputs {
            replies: Vec::new(),
            discarded: Vec::new(),
            released: 0,
            has_failed: false,
        }
    }
}

/// Counters of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Bytes written.
    pub written: u64,
    /// Bytes that wait or are being written.
    pub held: u64,
    /// Bytes dropped to make room, or by a flush.
    pub dropped: u64,
    /// Bytes lost by a failure.
    pub lost: u64,
    /// Number of write operations.
    pub writes: u64,
    /// Number of syncs.
    pub syncs: u64,
}

pub(crate) struct FileCore<T> {
    plan: Plan,
    stage: Stage,
    fd: Option<Fd>,
    stat: Stat,
    current: Option<Current<T>>,
    /// Remaining part of a short write, and its bytes in the budget.
    rest: Option<(Writing, usize)>,
    queue: VecDeque<Entry<T>>,
    /// Number of queued entries that are not writes. Earlier writes must be executed before them.
    orders: usize,
    queued_bytes: usize,
    /// Arrival of the first queued write.
    first_ns: Option<u64>,
    /// Whether a caller waits for room.
    is_hurried: bool,
    begin: u64,
    cursor: u64,
    /// Time of the first write since the last sync.
    dirty_ns: Option<u64>,
    /// Whether the end of the file is queued or done.
    has_end: bool,
    outputs: Outputs<T>,
    counts: Counts,
}

impl<T> FileCore<T> {
    pub(crate) fn new(plan: Plan) -> Self {
        FileCore {
            plan,
            stage: Stage::New,
            fd: None,
            stat: Stat {
                bytes: 0,
                is_regular: true,
            },
            current: None,
            rest: None,
            queue: VecDeque::new(),
            orders: 0,
            queued_bytes: 0,
            first_ns: None,
            is_hurried: false,
            begin: 0,
            cursor: 0,
            dirty_ns: None,
            has_end: false,
            outputs: Outputs::default(),
            counts: Counts::default(),
        }
    }

    pub(crate) fn failure(&self) -> Option<&Failure> {
        match &self.stage {
            Stage::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether nothing more can be written.
    pub(crate) fn has_end(&self) -> bool {
        self.has_end
    }

    /// Returns the attributes of the file, known after it has been opened.
    pub(crate) fn stat(&self) -> Option<Stat> {
        matches!(self.stage, Stage::Ready | Stage::Closed).then_some(self.stat)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.plan.path
    }

    pub(crate) fn take_outputs(&mut self) -> Outputs<T> {
        std::mem::take(&mut self.outputs)
    }

    /// Queues a write. The file must not have failed, and the budget must have admitted the bytes.
    pub(crate) fn handle_write(&mut self, data: Data<'_>, is_kept: bool, now_ns: u64) {
        let bytes = data.len();
        self.queued_bytes += bytes;
        self.counts.held += bytes as u64;
        self.first_ns.get_or_insert(now_ns);
        let piece = match data {
            Data::Owned(owned) => Piece::Owned(owned),
            Data::Copy(small) => {
                if let Some(Entry::Write {
                    piece: Piece::Block(block),
                    bytes: gathered,
                    is_kept: is_block_kept,
                }) = self.queue.back_mut()
                    && *is_block_kept == is_kept
                    && block.len() + small.len() <= SMALL_BLOCK_BYTES
                {
                    block.extend_from_slice(small);
                    *gathered += bytes;
                    return;
                }
                let mut block = Vec::with_capacity(small.len().max(SMALL_BLOCK_BYTES_MIN));
                block.extend_from_slice(small);
                Piece::Block(block)
            }
        };
        self.queue.push_back(Entry::Write {
            piece,
            bytes,
            is_kept,
        });
    }

    /// Moves later writes to this position, counted from where the writer began.
    pub(crate) fn handle_seek(&mut self, position: u64) {
        self.orders += 1;
        self.queue.push_back(Entry::Seek(position));
    }

    pub(crate) fn handle_step(&mut self, step: Step, ticket: T) {
        self.has_end |= matches!(step, Step::Close);
        if let Stage::Failed(failure) = &self.stage {
            self.outputs.replies.push((ticket, Err(failure.clone())));
            return;
        }
        self.orders += 1;
        self.queue.push_back(Entry::Do(step, ticket));
    }

    /// Makes queued writes be executed at once.
    pub(crate) fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Drops the oldest queued write that may be dropped. Returns its number of bytes.
    pub(crate) fn drop_oldest(&mut self) -> Option<usize> {
        let may_go = |entry: &Entry<T>| matches!(entry, Entry::Write { is_kept: false, .. });
        let place = self.queue.iter().position(may_go)?;
        let Some(Entry::Write { piece, bytes, .. }) = self.queue.remove(place) else {
            return None;
        };
        self.forget(piece, bytes);
        self.counts.dropped += bytes as u64;
        if let Some(first_ns) = self.first_ns {
            self.settle_gathering(first_ns);
        }
        Some(bytes)
    }

    /// Drops all queued writes and seeks, for a flush.
    pub(crate) fn drop_queued(&mut self) {
        for entry in std::mem::take(&mut self.queue) {
            match entry {
                Entry::Write { piece, bytes, .. } => {
                    self.forget(piece, bytes);
                    self.counts.dropped += bytes as u64;
                }
                Entry::Seek(_) => self.orders -= 1,
                Entry::Do(..) => self.queue.push_back(entry),
            }
        }
        self.settle_gathering(0);
    }

    /// Ends all writing. The caller must cancel the operation that is being executed.
    pub(crate) fn give_up(&mut self) {
        if !matches!(self.stage, Stage::Failed(_) | Stage::Closed) {
            self.fail("finish", &io::Error::from_raw_os_error(libc::ECANCELED));
        }
    }

    /// Whether [`FileCore::poll_job`] would return an operation.
    pub(crate) fn wants_turn(&self, now_ns: u64) -> bool {
        if self.current.is_some() {
            return false;
        }
        match self.stage {
            Stage::New | Stage::Opened => true,
            Stage::Failed(_) => self.fd.is_some(),
            Stage::Closed => !self.queue.is_empty(),
            Stage::Ready => {
                self.rest.is_some()
                    || self.is_sync_due(now_ns)
                    || match self.queue.front() {
                        None => false,
                        Some(Entry::Write { .. }) => self.is_write_due(now_ns),
                        Some(_) => true,
                    }
            }
        }
    }

    /// Returns the time at which the file needs a turn, even without input.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        if self.current.is_some() || !matches!(self.stage, Stage::Ready) {
            return None;
        }
        let linger = self
            .first_ns
            .map(|ns| ns.saturating_add(self.plan.linger_ns));
        linger.into_iter().chain(self.sync_at_ns()).min()
    }

    /// Returns the next operation. Pass its result to [`FileCore::handle_done`] before the next one.
    pub(crate) fn poll_job(&mut self, now_ns: u64) -> Option<Job> {
        if self.current.is_some() {
            return None;
        }
        match self.stage {
            Stage::New => {
                self.current = Some(Current::Open);
                Some(Job::Open {
                    path: self.plan.path.clone(),
                    access: self.plan.access,
                    with_parents: self.plan.with_parents,
                    permissions: self.plan.permissions,
                })
            }
            Stage::Opened => {
                self.current = Some(Current::Inspect);
                let file = self.fd.clone()?;
                Some(Job::Inspect { file })
            }
            Stage::Failed(_) => self.begin_close(Current::Close),
            Stage::Ready | Stage::Closed => self.poll_queue(now_ns),
        }
    }

    fn poll_queue(&mut self, now_ns: u64) -> Option<Job> {
        if let Some((writing, bytes)) = self.rest.take() {
            return self.begin_write(writing, bytes);
        }
        if self.is_sync_due(now_ns) {
            let file = self.fd.clone()?;
            self.current = Some(Current::Sync);
            return Some(Job::Sync { file });
        }
        loop {
            match self.queue.front()? {
                Entry::Write { .. } => {
                    if !self.is_write_due(now_ns) {
                        return None;
                    }
                    let (writing, bytes) = self.gather(now_ns);
                    return self.begin_write(writing, bytes);
                }
                &Entry::Seek(position) => {
                    self.pop_order();
                    let position = self.begin.saturating_add(position);
                    if !self.stat.is_regular && position != self.cursor {
                        self.fail("seek", &io::Error::from_raw_os_error(libc::ESPIPE));
                        return self.begin_close(Current::Close);
                    }
                    self.cursor = position;
                }
                Entry::Do(..) => {
                    if let Some(job) = self.begin_step() {
                        return Some(job);
                    }
                }
            }
        }
    }

    fn pop_order(&mut self) -> Option<Entry<T>> {
        self.orders -= 1;
        self.queue.pop_front()
    }

    /// Begins an entry. Returns `None` if the entry was done at once.
    fn begin_step(&mut self) -> Option<Job> {
        let Some(Entry::Do(step, ticket)) = self.pop_order() else {
            return None;
        };
        let job = match (&step, self.fd.clone()) {
            (Step::Rename { to, durable }, _) => Job::Rename {
                from: self.plan.path.clone(),
                to: to.clone(),
                durable: *durable,
            },
            (Step::Opened, Some(_)) => {
                self.outputs
                    .replies
                    .push((ticket, Ok(Done::Stat(self.stat))));
                return None;
            }
            (Step::Close, Some(file)) => {
                drop(file);
                return self.begin_close(Current::Do(step, ticket));
            }
            (Step::Read { at, bytes }, Some(file)) => Job::Read {
                file,
                at: self.stat.is_regular.then_some(*at),
                bytes: *bytes,
            },
            (Step::Sync, Some(file)) => Job::Sync { file },
            (Step::Restart, Some(file)) if self.stat.is_regular => Job::Truncate {
                file,
                bytes: self.begin,
            },
            // Data that was written into a pipe cannot be taken back.
            (Step::Restart, Some(_)) => {
                self.outputs.replies.push((ticket, Ok(Done::Nothing)));
                return None;
            }
            (_, None) => {
                let error = io::Error::from_raw_os_error(libc::EBADF);
                let failure =
                    Failure::new(&self.plan.path, "use the file after it was closed", &error);
                self.outputs.replies.push((ticket, Err(failure)));
                return None;
            }
        };
        self.current = Some(Current::Do(step, ticket));
        Some(job)
    }

    fn begin_close(&mut self, current: Current<T>) -> Option<Job> {
        // No operation is under way, so this is the only reference.
        let file = Arc::into_inner(self.fd.take()?)?;
        self.current = Some(current);
        Some(Job::Close { file })
    }

    fn begin_write(&mut self, writing: Writing, bytes: usize) -> Option<Job> {
        let file = self.fd.clone()?;
        self.current = Some(Current::Write(bytes));
        Some(Job::Write { file, writing })
    }

    /// Takes the writes at the front as one operation. Together they have at most a block, or they are one larger piece. So the
    /// remaining writes can still be dropped if the disk stalls.
    fn gather(&mut self, now_ns: u64) -> (Writing, usize) {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while pieces.len() < PIECES_MAX
            && let Some(Entry::Write { bytes: next, .. }) = self.queue.front()
            && (pieces.is_empty() || bytes + next <= self.plan.block_bytes)
        {
            let Some(Entry::Write {
                piece, bytes: own, ..
            }) = self.queue.pop_front()
            else {
                break;
            };
            bytes += own;
            pieces.push(piece);
        }
        self.queued_bytes -= bytes;
        // The remaining writes are due, too.
        self.is_hurried = true;
        self.settle_gathering(now_ns);
        let at = self.stat.is_regular.then_some(self.cursor);
        let writing = Writing {
            pieces,
            at,
            skip: 0,
        };
        (writing, bytes)
    }

    /// Notes that writes have left the queue. The waiting time of the remaining ones starts at `now_ns`.
    fn settle_gathering(&mut self, now_ns: u64) {
        let is_left = self
            .queue
            .iter()
            .any(|entry| matches!(entry, Entry::Write { .. }));
        self.first_ns = is_left.then_some(now_ns);
        self.is_hurried &= is_left;
    }

    fn is_write_due(&self, now_ns: u64) -> bool {
        self.is_hurried
            || self.orders > 0
            || self.queued_bytes >= self.plan.block_bytes
            || self
                .first_ns
                .is_some_and(|ns| ns.saturating_add(self.plan.linger_ns) <= now_ns)
    }

    fn sync_at_ns(&self) -> Option<u64> {
        Some(self.dirty_ns?.saturating_add(self.plan.sync_every_ns?))
    }

    fn is_sync_due(&self, now_ns: u64) -> bool {
        self.fd.is_some() && self.sync_at_ns().is_some_and(|ns| ns <= now_ns)
    }

    /// Handles the result of an operation.
    pub(crate) fn handle_done(&mut self, now_ns: u64, result: io::Result<Done>) {
        let Some(current) = self.current.take() else {
            return;
        };
        match current {
            Current::Open => match result {
                Ok(Done::Opened(fd)) => {
                    self.fd = Some(Arc::new(fd));
                    if matches!(self.stage, Stage::New) {
                        self.stage = Stage::Opened;
                    }
                }
                other => self.fail_with("open", other),
            },
            Current::Inspect => match result {
                Ok(Done::Stat(stat)) if matches!(self.stage, Stage::Opened) => {
                    self.stat = stat;
                    if self.plan.access == Access::Append && stat.is_regular {
                        self.begin = stat.bytes;
                    }
                    self.cursor = self.begin;
                    self.stage = Stage::Ready;
                }
                other => self.fail_with("inspect", other),
            },
            Current::Write(bytes) => self.handle_written(now_ns, bytes, result),
            Current::Sync => match result {
                Ok(_) => self.count_sync(),
                Err(error) => self.fail("sync", &error),
            },
            Current::Close => {}
            Current::Do(step, ticket) => self.handle_step_done(step, ticket, result),
        }
    }

    fn handle_written(&mut self, now_ns: u64, bytes: usize, result: io::Result<Done>) {
        match result {
            Ok(Done::Wrote(mut writing, written)) => {
                self.counts.writes += 1;
                self.counts.written += written as u64;
                self.cursor += written as u64;
                self.dirty_ns.get_or_insert(now_ns);
                let left = writing.left().saturating_sub(written);
                if left > 0 && written > 0 && self.failure().is_none() {
                    writing.skip += written;
                    writing.at = writing.at.map(|at| at + written as u64);
                    self.rest = Some((writing, bytes));
                    return;
                }
                self.outputs.discarded.append(&mut writing.pieces);
                if left > 0 {
                    self.counts.lost += left as u64;
                    // The system has written nothing, and has given no reason.
                    self.fail("write", &io::Error::from_raw_os_error(libc::EIO));
                }
            }
            other => {
                self.counts.lost += bytes as u64;
                self.fail_with("write", other);
            }
        }
        self.release(bytes);
    }

    fn handle_step_done(&mut self, step: Step, ticket: T, result: io::Result<Done>) {
        let operation = match step {
            Step::Opened => "open",
            Step::Read { .. } => "read",
            Step::Sync => "sync",
            Step::Restart => "truncate",
            Step::Close => "close",
            Step::Rename { .. } => "rename",
        };
        let reply = match result {
            Ok(done) => {
                match &step {
                    Step::Sync => self.count_sync(),
                    Step::Restart => self.cursor = self.begin,
                    Step::Close if self.failure().is_none() => self.stage = Stage::Closed,
                    Step::Rename { to, .. } => self.plan.path = to.clone(),
                    _ => {}
                }
                Ok(done)
            }
            Err(error) => {
                let failure = Failure::new(&self.plan.path, operation, &error);
                self.fail(operation, &error);
                Err(failure)
            }
        };
        self.outputs.replies.push((ticket, reply));
    }

    fn count_sync(&mut self) {
        self.dirty_ns = None;
        self.counts.syncs += 1;
    }

    fn release(&mut self, bytes: usize) {
        self.counts.held -= bytes as u64;
        self.outputs.released += bytes;
    }

    /// Removes a queued write without writing it.
    fn forget(&mut self, piece: Piece, bytes: usize) {
        self.queued_bytes -= bytes;
        self.release(bytes);
        self.outputs.discarded.push(piece);
    }

    fn fail_with(&mut self, operation: &'static str, result: io::Result<Done>) {
        let unexpected = || io::Error::from_raw_os_error(libc::EIO);
        let error = result.err().unwrap_or_else(unexpected);
        self.fail(operation, &error);
    }

    /// Records the first failure.
    fn fail(&mut self, operation: &'static str, error: &io::Error) {
        if matches!(self.stage, Stage::Failed(_)) {
            return;
        }
        let failure = Failure::new(&self.plan.path, operation, error);
        if let Some((writing, bytes)) = self.rest.take() {
            self.counts.lost += writing.left() as u64;
            self.outputs.discarded.extend(writing.pieces);
            self.release(bytes);
        }
        for entry in std::mem::take(&mut self.queue) {
            match entry {
                Entry::Write { piece, bytes, .. } => {
                    self.forget(piece, bytes);
                    self.counts.lost += bytes as u64;
                }
                Entry::Seek(_) => {}
                Entry::Do(_, ticket) => {
                    self.outputs.replies.push((ticket, Err(failure.clone())));
                }
            }
        }
        self.orders = 0;
        self.first_ns = None;
        self.outputs.has_failed = true;
        self.stage = Stage::Failed(failure);
    }
}

#[cfg(test)]
mod tests;
