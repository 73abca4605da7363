//! An open file, for its user.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::budget::{Budget, Share, Taken};
use crate::core::{Counts, FileCore, Plan, Step};
use crate::data::Data;
use crate::desk::{FileShared, Service};
use crate::failure::Failure;
use crate::job::{Access, Done, Stat};
use crate::op::Op;

/// How a file is opened and written.
#[derive(Debug, Clone)]
pub struct Options {
    /// For reading or writing.
    pub access: Access,
    /// Missing directories are created.
    pub with_parents: bool,
    /// Small writes are gathered until there is this much, and written about as much at a time, bytes.
    pub block_bytes: usize,
    /// No write waits longer than this to be gathered: what a crash of the process may cost.
    pub linger: Duration,
    /// What was written is on the disk after this time, as far as the system can tell.
    pub sync_every: Option<Duration>,
    /// Of the writes that wait; `None`: no bound but the user's.
    pub budget: Option<Budget>,
}

impl Options {
    /// For this access, with the defaults: blocks of 64 KiB, a linger of half a second, no sync and no budget.
    pub fn new(access: Access) -> Self {
        Options {
            access,
            with_parents: false,
            block_bytes: 64 << 10,
            linger: Duration::from_millis(500),
            sync_every: None,
            budget: None,
        }
    }
}

/// How a file ends.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// Everything is on the disk before the end.
    pub sync: bool,
    /// The file gets this name when all of it is there, in place of a file that has it.
    pub rename_to: Option<PathBuf>,
}

/// An open file. Operations take effect in the order in which they were asked for, and one at a time; nothing here waits.
///
/// Dropped, it writes what it has and closes.
pub struct File {
    shared: Arc<FileShared>,
    _service: Arc<Service>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path()).finish()
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl File {
    pub(crate) fn new(service: &Arc<Service>, path: &Path, options: Options) -> Self {
        let core = FileCore::new(Plan {
            path: path.into(),
            access: options.access,
            with_parents: options.with_parents,
            block_bytes: options.block_bytes,
            linger_ns: ns(options.linger),
            sync_every_ns: options.sync_every.map(ns),
        });
        let shared = FileShared::new(service.0.clone(), core);
        if let Some(budget) = options.budget {
            let _ = shared.share.set(Share::new(budget));
        }
        shared.settle(shared.lock());
        File {
            shared,
            _service: service.clone(),
        }
    }

    /// The path, or the one that it was renamed to.
    pub fn path(&self) -> PathBuf {
        self.shared.lock().core.path().to_path_buf()
    }

    /// Why nothing more can be done with it.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().core.failure().cloned()
    }

    /// Its counters.
    pub fn counts(&self) -> Counts {
        self.shared.lock().core.counts()
    }

    /// What was known when it was opened; `None` before.
    pub fn stat(&self) -> Option<Stat> {
        self.shared.lock().core.stat()
    }

    /// `waker` is woken when the file fails.
    pub fn watch(&self, waker: Waker) {
        self.shared.watch(waker);
    }

    /// The budget of all later writes, if the options had none. Before the first write.
    pub fn set_budget(&self, budget: Budget) {
        let _ = self.shared.share.get_or_init(|| Share::new(budget));
    }

    /// Completes when it is open, and all that was written before this call has been written.
    pub fn opened(&self) -> Op<Stat> {
        self.step(Step::Opened, |done| match done {
            Done::Stat(stat) => stat,
            _ => Stat {
                bytes: 0,
                is_regular: false,
            },
        })
    }

    /// Adds `bytes` bytes behind the last ones, as `data` gives them, if the budget admits them; else it is ready when that may have
    /// changed. Ready means that the service has the data, not that it is written: an error comes with a later call.
    ///
    /// `is_kept`: [`File::drop_oldest`] leaves them, as a header.
    ///
    /// # Errors
    /// The file has failed, now or earlier.
    pub fn poll_write<'a>(
        &self,
        cx: &mut Context<'_>,
        bytes: usize,
        is_kept: bool,
        data: impl FnOnce() -> Data<'a>,
    ) -> Poll<Result<(), Failure>> {
        self.try_write(Some(cx.waker()), bytes, is_kept, data)
    }

    fn try_write<'a>(
        &self,
        waker: Option<&Waker>,
        bytes: usize,
        is_kept: bool,
        data: impl FnOnce() -> Data<'a>,
    ) -> Poll<Result<(), Failure>> {
        let mut kept = self.shared.lock();
        if let Some(failure) = kept.core.failure() {
            return Poll::Ready(Err(failure.clone()));
        }
        if kept.core.has_end() {
            let error = io::Error::from_raw_os_error(libc::EBADF);
            return Poll::Ready(Err(Failure::new(kept.core.path(), "write", &error)));
        }
        if bytes == 0 {
            return Poll::Ready(Ok(()));
        }
        let taken = match self.shared.share.get() {
            Some(share) => share.take(bytes, waker),
            None => Taken::Yes { is_pressed: false },
        };
        let is_taken = match taken {
            Taken::Yes { is_pressed } => {
                let data = data();
                debug_assert_eq!(data.len(), bytes);
                kept.core.handle_write(data, is_kept, self.shared.now_ns());
                if is_pressed {
                    kept.core.hurry();
                }
                true
            }
            Taken::No => {
                kept.core.hurry();
                false
            }
        };
        self.shared.settle(kept);
        match is_taken {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// As [`File::poll_write`], as a future.
    ///
    /// # Errors
    /// The file has failed.
    pub async fn write(&self, data: Data<'_>) -> Result<(), Failure> {
        let mut data = Some(data);
        std::future::poll_fn(|cx| {
            let bytes = data.as_ref().map_or(0, Data::len);
            self.poll_write(cx, bytes, false, || data.take().unwrap_or(Data::Copy(&[])))
        })
        .await
    }

    /// Drops the oldest bytes that wait to be written: a block of small writes, or one large write. Their number; `None`: there are
    /// none that may be dropped. What comes later takes their place in the file.
    pub fn drop_oldest(&self) -> Option<usize> {
        let mut kept = self.shared.lock();
        let bytes = kept.core.drop_oldest();
        self.shared.settle(kept);
        bytes
    }

    /// Later writes go to this position, bytes from where this writer began.
    pub fn seek(&self, position: u64) {
        let mut kept = self.shared.lock();
        kept.core.handle_seek(position);
        self.shared.settle(kept);
    }

    /// Everything written so far is on the disk.
    pub fn sync(&self) -> Op<()> {
        self.step(Step::Sync, |_| ())
    }

    /// Drops what waits to be written, and empties the file as far as this writer has filled it. Later writes begin there.
    pub fn restart(&self) -> Op<()> {
        let (op, slot) = Op::new(|_| ());
        let mut kept = self.shared.lock();
        kept.core.drop_queued();
        kept.core.handle_step(Step::Restart, slot);
        self.shared.settle(kept);
        op
    }

    /// `bytes` bytes from the position on; fewer at the end of the file. A file without positions gives what it has.
    pub fn read(&self, at: u64, bytes: usize) -> Op<Vec<u8>> {
        self.step(Step::Read { at, bytes }, |done| match done {
            Done::Read(bytes) => bytes,
            _ => Vec::new(),
        })
    }

    /// Writes everything, and closes. The operation is the last one: nothing can be written any more.
    pub fn close(&self, ending: Ending) -> Op<()> {
        self.end(ending, Some(Step::Close))
    }

    /// Writes everything, and ends the file as [`File::close`] does, but for closing it: more may be written.
    pub fn finish(&self, ending: Ending) -> Op<()> {
        self.end(ending, None)
    }

    fn end(&self, ending: Ending, close: Option<Step>) -> Op<()> {
        let (op, slot) = Op::new(|_| ());
        let sync = ending.sync.then_some(Step::Sync);
        let rename = ending.rename_to.map(|to| Step::Rename {
            to: to.into(),
            durable: ending.sync,
        });
        let mut steps: Vec<Step> = [sync, close, rename].into_iter().flatten().collect();
        // The last one tells that all are done.
        let last = steps.pop().unwrap_or(Step::Opened);
        let mut kept = self.shared.lock();
        for step in steps {
            kept.core.handle_step(step, Arc::default());
        }
        kept.core.handle_step(last, slot);
        self.shared.settle(kept);
        op
    }

    /// Drops what waits to be written, and closes as soon as the operation under way has ended; an operation on a pipe is
    /// cancelled.
    pub fn give_up(&self) {
        let mut kept = self.shared.lock();
        kept.core.give_up();
        self.shared.cancel(&kept);
        self.shared.settle(kept);
    }

    fn step<T>(&self, step: Step, convert: fn(Done) -> T) -> Op<T> {
        let (op, slot) = Op::new(convert);
        let mut kept = self.shared.lock();
        kept.core.handle_step(step, slot);
        self.shared.settle(kept);
        op
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let has_end = self.shared.lock().core.has_end();
        if !has_end {
            drop(self.close(Ending::default()));
        }
    }
}
