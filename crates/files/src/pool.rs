//! Operations on a few threads that may block, for systems without io_uring.
//!
//! If jobs wait while a thread is stuck in an operation for [`STALL`], another thread replaces it, up to [`THREADS_MAX`]. So one
//! stalled disk does not delay the files of another one. An idle thread ends if as many others as usual are idle, too.

use std::collections::{HashMap, VecDeque};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::backend::{Backend, Finished};
use crate::job::{Access, Done, Job, Stat, Writing};
use crate::lock;
use crate::wake::Wake;

/// Usual number of threads, when none is stuck.
pub(crate) const THREADS: usize = 2;
/// Maximum number of threads, including the replacements of stuck ones.
const THREADS_MAX: usize = 16;
/// Duration after which an operation counts as stuck.
const STALL: Duration = Duration::from_millis(250);
/// Interval at which a wait on a pipe checks for cancellation.
const CANCEL_CHECK: Duration = Duration::from_millis(20);

pub(crate) struct Pool {
    shared: Arc<Shared>,
    cancels: HashMap<u64, Arc<AtomicBool>>,
    wake: Wake,
    /// Time since which jobs wait and none was taken, and the number of jobs taken before.
    waiting_since: Option<(Instant, u64)>,
}

struct Shared {
    state: Mutex<State>,
    has_job: Condvar,
    wake: Wake,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(u64, Job, Arc<AtomicBool>)>,
    done: Vec<Finished>,
    threads: usize,
    idle: usize,
    /// Number of jobs taken so far.
    taken: u64,
    has_ended: bool,
}

impl Pool {
    pub(crate) fn new(wake: Wake) -> Self {
        Pool {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                has_job: Condvar::new(),
                wake: wake.clone(),
            }),
            cancels: HashMap::new(),
            wake,
            waiting_since: None,
        }
    }

    /// Takes the finished operations.
    pub(crate) fn collect(&mut self, done: &mut Vec<Finished>) {
        let mut state = lock(&self.shared.state);
        for finished in state.done.drain(..) {
            self.cancels.remove(&finished.0);
            done.push(finished);
        }
    }

    /// Replaces stuck threads. Returns the time until the next call, if one is needed.
    pub(crate) fn relieve(&mut self) -> Option<Duration> {
        let mut state = lock(&self.shared.state);
        // An idle thread that has already been notified takes its job soon, so that job does not wait.
        let waits = state.jobs.len() > state.idle;
        if !waits || state.threads >= THREADS_MAX {
            self.waiting_since = None;
            return None;
        }
        let taken = state.taken;
        let since = self.waiting_since.filter(|(_, before)| *before == taken);
        let (begun, _) = *self
            .waiting_since
            .insert(since.unwrap_or((Instant::now(), taken)));
        let waited = begun.elapsed();
        if waited < STALL {
            return Some(STALL - waited);
        }
        self.waiting_since = None;
        state.threads += 1;
        drop(state);
        start(&self.shared);
        Some(STALL)
    }
}

impl Backend for Pool {
    fn begin(&mut self, token: u64, job: Job) {
        let cancel = Arc::<AtomicBool>::default();
        self.cancels.insert(token, cancel.clone());
        let mut state = lock(&self.shared.state);
        state.jobs.push_back((token, job, cancel));
        let is_new = state.idle < state.jobs.len() && state.threads < THREADS;
        if is_new {
            state.threads += 1;
        }
        drop(state);
        self.shared.has_job.notify_one();
        if is_new {
            start(&self.shared);
        }
    }

    fn cancel(&mut self, token: u64) {
        if let Some(cancel) = self.cancels.get(&token) {
            cancel.store(true, Relaxed);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Finished>) {
        let relief = self.relieve();
        let timeout = timeout.into_iter().chain(relief).min();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let _ = poll(
            &mut [PollFd::new(&self.wake, PollFlags::IN)],
            timeout.as_ref(),
        );
        self.wake.clear();
        self.collect(done);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).has_ended = true;
        self.shared.has_job.notify_all();
    }
}

fn start(shared: &Arc<Shared>) {
    let shared_of_thread = shared.clone();
    let thread = std::thread::Builder::new().name("ts:disk-writer".into());
    if let Err(error) = thread.spawn(move || work(&shared_of_thread)) {
        let mut state = lock(&shared.state);
        state.threads -= 1;
        // If other threads exist, they do the work. Without any, the jobs fail.
        if state.threads == 0 {
            let code = error.raw_os_error().unwrap_or(libc::EAGAIN);
            for (token, job, _) in std::mem::take(&mut state.jobs) {
                drop(job);
                state
                    .done
                    .push((token, Err(io::Error::from_raw_os_error(code))));
            }
            shared.wake.wake();
        }
    }
}

fn work(shared: &Shared) {
    let mut state = lock(&shared.state);
    loop {
        if let Some((token, job, cancel)) = state.jobs.pop_front() {
            state.taken += 1;
            drop(state);
            let result = perform(job, &cancel);
            state = lock(&shared.state);
            state.done.push((token, result));
            shared.wake.wake();
            continue;
        }
        if state.has_ended || state.idle >= THREADS {
            state.threads -= 1;
            return;
        }
        state.idle += 1;
        state = shared
            .has_job
            .wait(state)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        state.idle -= 1;
    }
}

/// Executes the job on this thread.
fn perform(job: Job, cancel: &AtomicBool) -> io::Result<Done> {
    match job {
        Job::Open {
            path,
            access,
            with_parents,
            permissions,
        } => {
            if with_parents && let Some(parent) = path.parent() {
                // Each class of users that may read the file may also enter its directory.
                let mode = permissions | (permissions & 0o444) >> 2;
                DirBuilder::new()
                    .recursive(true)
                    .mode(mode)
                    .create(parent)?;
            }
            open(&path, access, permissions, cancel).map(Done::Opened)
        }
        Job::Inspect { file } => Ok(Done::Stat(stat(&rustix::fs::fstat(&*file)?))),
        Job::Write { file, writing } => write(&file, writing, cancel),
        Job::Read { file, at, bytes } => read(&file, at, bytes, cancel),
        Job::Sync { file } => {
            retried(|| rustix::fs::fdatasync(&*file))?;
            Ok(Done::Nothing)
        }
        Job::Truncate { file, bytes } => {
            retried(|| rustix::fs::ftruncate(&*file, bytes))?;
            Ok(Done::Nothing)
        }
        Job::Close { file } => {
            drop(file);
            Ok(Done::Nothing)
        }
        Job::Rename { from, to, durable } => {
            std::fs::rename(from, &to)?;
            if durable && let Some(folder) = to.parent() {
                let folder = if folder.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    folder
                };
                std::fs::File::open(folder)?.sync_all()?;
            }
            Ok(Done::Nothing)
        }
        Job::Remove { path } => std::fs::remove_file(path).map(|()| Done::Nothing),
        Job::Stat { path } => Ok(Done::Stat(stat(&rustix::fs::stat(&*path)?))),
    }
}

fn retried<R>(mut call: impl FnMut() -> rustix::io::Result<R>) -> rustix::io::Result<R> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Returns the flags of open(2) for this access.
pub(crate) fn flags_of(access: Access) -> OFlags {
    OFlags::CLOEXEC
        | match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
            Access::Append => OFlags::WRONLY | OFlags::CREATE,
        }
}

fn open(path: &Path, access: Access, permissions: u32, cancel: &AtomicBool) -> io::Result<OwnedFd> {
    // This has no effect on regular files. On pipes, it prevents a wait that could not be cancelled.
    let flags = flags_of(access) | OFlags::NONBLOCK;
    loop {
        match retried(|| rustix::fs::open(path, flags, Mode::from_raw_mode(permissions))) {
            // The pipe has no reader yet.
            Err(Errno::NXIO) if !cancel.load(Relaxed) => std::thread::sleep(CANCEL_CHECK),
            Err(Errno::NXIO) => return Err(Errno::CANCELED.into()),
            other => return Ok(other?),
        }
    }
}

fn write(file: &OwnedFd, writing: Writing, cancel: &AtomicBool) -> io::Result<Done> {
    loop {
        let written = {
            let slices = writing.slices();
            match writing.at {
                Some(at) => retried(|| rustix::io::pwritev(file, &slices, at)),
                None => retried(|| rustix::io::writev(file, &slices)),
            }
        };
        match written {
            Err(Errno::AGAIN) => await_pipe(file, PollFlags::OUT, cancel)?,
            written => return Ok(Done::Wrote(writing, written?)),
        }
    }
}

/// Waits until a pipe, socket or terminal has room or data, or its other end has closed.
fn await_pipe(file: &OwnedFd, wanted: PollFlags, cancel: &AtomicBool) -> io::Result<()> {
    let check = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(CANCEL_CHECK.subsec_nanos()),
    };
    while !cancel.load(Relaxed) {
        let mut polled = [PollFd::from_borrowed_fd(file.as_fd(), wanted)];
        match poll(&mut polled, Some(&check)) {
            Ok(0) | Err(Errno::INTR) => {}
            other => return Ok(other.map(|_| ())?),
        }
    }
    Err(Errno::CANCELED.into())
}

fn read(file: &OwnedFd, at: Option<u64>, bytes: usize, cancel: &AtomicBool) -> io::Result<Done> {
    let mut room = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        if at.is_none() {
            await_pipe(file, PollFlags::IN, cancel)?;
        }
        let rest = &mut room[filled..];
        let n = match at {
            Some(at) => retried(|| rustix::io::pread(file, &mut *rest, at + filled as u64))?,
            None => retried(|| rustix::io::read(file, &mut *rest))?,
        };
        filled += n;
        // A pipe returns the bytes that it has.
        if n == 0 || at.is_none() {
            break;
        }
    }
    room.truncate(filled);
    Ok(Done::Read(room))
}

fn stat(stat: &rustix::fs::Stat) -> Stat {
    Stat {
        bytes: stat.st_size.try_into().unwrap_or(0),
        is_regular: rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file(),
    }
}
