//! An open file, for its user.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::budget::{Budget, Share, Taken};
use crate::core::{Counts, FileCore, Plan, Step};
use crate::data::Data;
use crate::failure::Failure;
use crate::job::{Access, Done, Stat};
use crate::op::Op;
use crate::service::{FileShared, Service};

/// Options for opening and writing a file.
#[derive(Debug, Clone)]
pub struct Options {
    /// Access mode, for reading or writing.
    pub access: Access,
    /// Whether missing directories are created.
    pub with_parents: bool,
    /// Permissions of a new file, before the umask. Each class of users that may read the file may also enter its new directory.
    pub permissions: u32,
    /// Size in bytes at which combined small writes are executed. It is also their approximate size.
    pub block_bytes: usize,
    /// Maximum time for which a write waits to be combined. A crash of the process may lose this much data.
    pub linger: Duration,
    /// Maximum time until written data is on the disk, as far as the system can tell.
    pub sync_every: Option<Duration>,
    /// Budget of waiting writes. With `None`, only the user limits them.
    pub budget: Option<Budget>,
}

impl Options {
    /// Returns options for this access, with the defaults: blocks of 64 KiB, a linger of half a second, no sync and no budget.
    pub fn new(access: Access) -> Self {
        Options {
            access,
            with_parents: false,
            permissions: 0o666,
            block_bytes: 64 << 10,
            linger: Duration::from_millis(500),
            sync_every: None,
            budget: None,
        }
    }
}

/// Steps at the end of a file.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// Whether everything is synced to the disk before the end.
    pub sync: bool,
    /// Name that the file gets when it is complete. A file of that name is replaced.
    pub rename_to: Option<PathBuf>,
}

/// An open file. Operations take effect in the order of their calls, one at a time. No function blocks.
///
/// If it is dropped, it writes its queued data and closes.
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
            permissions: options.permissions,
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

    /// Returns the path, or the new one after a rename.
    pub fn path(&self) -> PathBuf {
        self.shared.lock().core.path().to_path_buf()
    }

    /// Returns the failure after which the file cannot be used any more.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().core.failure().cloned()
    }

    /// Returns the counters of the file.
    pub fn counts(&self) -> Counts {
        self.shared.lock().core.counts()
    }

    /// Returns the attributes at the time of opening; `None` before.
    pub fn stat(&self) -> Option<Stat> {
        self.shared.lock().core.stat()
    }

    /// Wakes `waker` when the file fails.
    pub fn watch(&self, waker: Waker) {
        self.shared.watch(waker);
    }

    /// Sets the budget of all later writes, if the options had none. Call it before the first write.
    pub fn set_budget(&self, budget: Budget) {
        let _ = self.shared.share.get_or_init(|| Share::new(budget));
    }

    /// Completes when the file is open, and all data that was written before this call has been executed.
    pub fn opened(&self) -> Op<Stat> {
        self.step(Step::Opened, |done| match done {
            Done::Stat(stat) => stat,
            _ => Stat {
                bytes: 0,
                is_regular: false,
            },
        })
    }

    /// Appends `bytes` bytes, which `data` supplies, if the budget admits them. Otherwise the task is woken when that may have
    /// changed. `Ready` means that the service has the data, but not that the data is on the disk. If the write fails, a later
    /// call returns the error.
    ///
    /// With `is_kept`, [`File::drop_oldest`] does not drop these bytes. This is for headers, for example.
    ///
    /// # Errors
    /// Fails if the file has failed, now or earlier.
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
        let mut state = self.shared.lock();
        if let Some(failure) = state.core.failure() {
            return Poll::Ready(Err(failure.clone()));
        }
        if state.core.has_end() {
            let error = io::Error::from_raw_os_error(libc::EBADF);
            return Poll::Ready(Err(Failure::new(state.core.path(), "write", &error)));
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
                state.core.handle_write(data, is_kept, self.shared.now_ns());
                if is_pressed {
                    state.core.hurry();
                }
                true
            }
            Taken::No => {
                state.core.hurry();
                false
            }
        };
        self.shared.settle(state);
        if is_taken {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Acts as [`File::poll_write`], as a future.
    ///
    /// # Errors
    /// Fails if the file has failed.
    pub async fn write(&self, data: Data<'_>) -> Result<(), Failure> {
        let mut data = Some(data);
        std::future::poll_fn(|cx| {
            let bytes = data.as_ref().map_or(0, Data::len);
            self.poll_write(cx, bytes, false, || data.take().unwrap_or(Data::Copy(&[])))
        })
        .await
    }

    /// Drops the oldest bytes that wait to be written: a block of small writes, or one large write. Returns their number, or
    /// `None` if no bytes may be dropped. Later bytes take their place in the file.
    pub fn drop_oldest(&self) -> Option<usize> {
        let mut state = self.shared.lock();
        let bytes = state.core.drop_oldest();
        self.shared.settle(state);
        bytes
    }

    /// Moves later writes to this position, in bytes from the position where this writer began.
    pub fn seek(&self, position: u64) {
        let mut state = self.shared.lock();
        state.core.handle_seek(position);
        self.shared.settle(state);
    }

    /// Completes when all data written so far is on the disk.
    pub fn sync(&self) -> Op<()> {
        self.step(Step::Sync, |_| ())
    }

    /// Drops all waiting writes, and removes everything that this writer has written from the file. Later writes begin at the
    /// position where this writer began.
    pub fn restart(&self) -> Op<()> {
        let (op, slot) = Op::new(|_| ());
        let mut state = self.shared.lock();
        state.core.drop_queued();
        state.core.handle_step(Step::Restart, slot);
        self.shared.settle(state);
        op
    }

    /// Reads `bytes` bytes from position `at` on. Returns fewer at the end of the file. A file without positions returns the
    /// bytes that it has now.
    pub fn read(&self, at: u64, bytes: usize) -> Op<Vec<u8>> {
        self.step(Step::Read { at, bytes }, |done| match done {
            Done::Read(bytes) => bytes,
            _ => Vec::new(),
        })
    }

    /// Writes all data, and closes the file. This is the last operation: nothing can be written after it.
    pub fn close(&self, ending: Ending) -> Op<()> {
        self.end(ending, Some(Step::Close))
    }

    /// Writes all data, and ends the file as [`File::close`] does, but does not close it. More data may be written afterwards.
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
        // The result of the last step counts for all steps.
        let last = steps.pop().unwrap_or(Step::Opened);
        let mut state = self.shared.lock();
        for step in steps {
            state.core.handle_step(step, Arc::default());
        }
        state.core.handle_step(last, slot);
        self.shared.settle(state);
        op
    }

    /// Drops all waiting writes, and closes the file after the operation that is being executed. An operation on a pipe is
    /// cancelled.
    pub fn give_up(&self) {
        let mut state = self.shared.lock();
        state.core.give_up();
        self.shared.cancel(&state);
        self.shared.settle(state);
    }

    fn step<T>(&self, step: Step, convert: fn(Done) -> T) -> Op<T> {
        let (op, slot) = Op::new(convert);
        let mut state = self.shared.lock();
        state.core.handle_step(step, slot);
        self.shared.settle(state);
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
