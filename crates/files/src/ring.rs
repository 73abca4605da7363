//! Operations by io_uring: the service thread submits them to the kernel and takes the results. No operation needs a separate
//! thread. This is the only `unsafe` code of the crate.
//!
//! A [`Flight`] owns all memory that the kernel reads or writes. It is in `flights` from the operation's submission until its
//! completion is taken out of the ring. Its memory is on the heap, so the slab may move it. If a ring is dropped before that, it
//! leaks its flights.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use slab::Slab;

use crate::backend::{Backend, Finished};
use crate::job::{Access, Done, Fd, Job, Stat, Writing};
use crate::pool::{Pool, flags_of};
use crate::wake::Wake;

/// Number of entries in the submission queue. Further operations wait in a list.
const ENTRIES: u32 = 256;
/// Maximum number of kernel threads for operations that block: for regular files, and for all others.
const KERNEL_THREADS_MAX: [u32; 2] = [8, 8];
/// Key of the wake-up's completion. Keys of flights are far below.
const WAKE_KEY: u64 = u64::MAX;
/// Key of cancel requests. The results of these requests do not matter.
const CANCEL_KEY: u64 = u64::MAX - 1;
/// Position that means "no position" to the kernel.
const NO_POSITION: u64 = u64::MAX;
/// Maximum number of completions to wait for at once. If several are expected, waiting for all of them saves wake-ups of this
/// thread, each of which costs as much as a small write.
const TOGETHER_MAX: usize = 32;
/// Maximum duration of such a wait, after which other work is checked.
const GATHER: Duration = Duration::from_millis(1);
/// Pause after a submission for which the kernel has no memory.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// Operations without which the ring is not used.
const NEEDED: &[u8] = &[
    opcode::AsyncCancel::CODE,
    opcode::Close::CODE,
    opcode::Fsync::CODE,
    opcode::OpenAt::CODE,
    opcode::PollAdd::CODE,
    opcode::Read::CODE,
    opcode::RenameAt::CODE,
    opcode::Statx::CODE,
    opcode::UnlinkAt::CODE,
    opcode::Writev::CODE,
];

pub(crate) struct Ring {
    ring: IoUring,
    flights: Slab<Flight>,
    /// Entries that have no place in the submission queue yet.
    waiting: VecDeque<squeue::Entry>,
    completed: Vec<(u64, i32)>,
    /// Whether truncation is supported, since Linux 6.9.
    has_truncate: bool,
    is_watching: bool,
    /// Whether the last wait brought no completion. Then the next wait has no time limit, and the next completion wakes this
    /// thread.
    is_stalled: bool,
    wake: Wake,
    /// Executes operations that the kernel does not support in a ring.
    pool: Pool,
}

/// An operation under way, with all memory that the kernel uses for it.
struct Flight {
    token: u64,
    work: Work,
}

enum Work {
    Open {
        path: CString,
        access: Access,
        permissions: u32,
    },
    Stat {
        path: CString,
        file: Option<Fd>,
        answer: Box<libc::statx>,
    },
    Write {
        file: Fd,
        writing: Writing,
        /// Pointers into the pieces of `writing`.
        slices: Slices,
    },
    Read {
        file: Fd,
        at: Option<u64>,
        room: Vec<u8>,
        filled: usize,
    },
    Sync(Fd),
    Truncate(Fd, u64),
    /// A close. Once the kernel has closed the descriptor, it does not belong to this process any more.
    Close(OwnedFd),
    Rename(CString, CString),
    Remove(CString),
}

/// The kernel's description of some bytes.
struct Slices(Vec<libc::iovec>);

// SAFETY: the pointers lead into memory that the `Writing` next to them owns, which may be sent to other threads, and only the
// kernel follows them.
unsafe impl Send for Slices {}

/// The next step after a completion.
enum Outcome {
    Finished(io::Result<Done>),
    Again,
}

impl Ring {
    /// Creates a ring. Fails if the kernel does not provide one, or lacks a needed operation.
    pub(crate) fn new(wake: Wake) -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let has_all = NEEDED.iter().all(|code| probe.is_supported(*code));
        if !has_all || !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Linux 5.15 and later can limit these threads. Older kernels have their own limits.
        let mut threads = KERNEL_THREADS_MAX;
        let _ = ring.submitter().register_iowq_max_workers(&mut threads);
        Ok(Ring {
            ring,
            flights: Slab::new(),
            waiting: VecDeque::new(),
            completed: Vec::new(),
            has_truncate: probe.is_supported(opcode::Ftruncate::CODE),
            is_watching: false,
            is_stalled: false,
            pool: Pool::new(wake.clone()),
            wake,
        })
    }

    /// Whether the ring can execute the job.
    fn takes(&self, job: &Job) -> bool {
        match job {
            Job::Truncate { .. } => self.has_truncate,
            Job::Rename { durable, .. } => !durable,
            Job::Open { with_parents, .. } => !with_parents,
            _ => true,
        }
    }

    fn enqueue(&mut self, key: usize) {
        let entry = self.flights[key].work.entry().user_data(key as u64);
        self.waiting.push_back(entry);
    }

    /// Moves entries into the submission queue.
    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.waiting.front() {
            // SAFETY: a flight's entry points into memory of that flight, which is in `flights` until its completion has been
            // taken out; the other entries use the descriptor of `wake`, which lives as long as the ring, or nothing.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Submits everything to the kernel and waits for one completion, or for several.
    fn submit(&mut self, timeout: Option<Duration>) {
        let (together, gather) = match (self.waits_briefly(), self.flights.len()) {
            (true, 2..) => (TOGETHER_MAX, Some(GATHER)),
            // There is only one operation, so its completion ends the wait.
            (true, _) => (1, Some(GATHER)),
            (false, _) => (1, None),
        };
        let timeout = timeout.into_iter().chain(gather).min();
        loop {
            self.fill();
            let wanted = if self.waiting.is_empty() { together } else { 0 };
            let time = timeout.map(|timeout| {
                types::Timespec::new()
                    .sec(timeout.as_secs())
                    .nsec(timeout.subsec_nanos())
            });
            let mut arguments = types::SubmitArgs::new();
            if let Some(time) = &time {
                arguments = arguments.timespec(time);
            }
            let submitted = self.ring.submitter().submit_with_args(wanted, &arguments);
            let code = submitted.err().and_then(|error| error.raw_os_error());
            match code {
                None if wanted == 0 => {}
                // Completions must be taken out before more can be submitted (EBUSY).
                None | Some(libc::ETIME | libc::EINTR | libc::EBUSY) => return,
                Some(_) => {
                    std::thread::sleep(REFUSED_PAUSE);
                    return;
                }
            }
        }
    }

    fn handle_completed(&mut self, done: &mut Vec<Finished>) {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend((self.ring.completion()).map(|entry| (entry.user_data(), entry.result())));
        self.is_stalled = completed.is_empty();
        for (key, result) in completed.drain(..) {
            match key {
                WAKE_KEY => {
                    self.is_watching = false;
                    self.wake.clear();
                }
                CANCEL_KEY => {}
                key => self.conclude(key as usize, result, done),
            }
        }
        self.completed = completed;
    }

    fn conclude(&mut self, key: usize, result: i32, done: &mut Vec<Finished>) {
        let Some(flight) = self.flights.try_remove(key) else {
            return;
        };
        let token = flight.token;
        let (outcome, work) = flight.work.conclude(result);
        match (outcome, work) {
            (Outcome::Again, Some(work)) => {
                let key = self.flights.insert(Flight { token, work });
                self.enqueue(key);
            }
            (Outcome::Again, None) => {}
            (Outcome::Finished(result), _) => done.push((token, result)),
        }
    }
}

impl Backend for Ring {
    fn begin(&mut self, token: u64, job: Job) {
        if !self.takes(&job) {
            return self.pool.begin(token, job);
        }
        match Work::of(job) {
            Ok(work) => {
                let key = self.flights.insert(Flight { token, work });
                self.enqueue(key);
            }
            // If the pool fails, its error message explains the failure.
            Err(job) => self.pool.begin(token, job),
        }
    }

    fn cancel(&mut self, token: u64) {
        let flight = self
            .flights
            .iter()
            .find(|(_, flight)| flight.token == token);
        match flight {
            Some((key, _)) => {
                let entry = opcode::AsyncCancel::new(key as u64).build();
                self.waiting.push_back(entry.user_data(CANCEL_KEY));
            }
            None => self.pool.cancel(token),
        }
    }

    fn waits_briefly(&self) -> bool {
        !self.is_stalled && !self.flights.is_empty()
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Finished>) {
        if !self.is_watching {
            self.is_watching = true;
            let poll = opcode::PollAdd::new(types::Fd(self.wake.raw()), libc::POLLIN as u32);
            self.waiting.push_back(poll.build().user_data(WAKE_KEY));
        }
        let relief = self.pool.relieve();
        self.submit(timeout.into_iter().chain(relief).min());
        self.handle_completed(done);
        self.pool.collect(done);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            // The kernel may still use the memory of the flights.
            std::mem::forget(std::mem::take(&mut self.flights));
        }
    }
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

fn fd(file: &Fd) -> types::Fd {
    types::Fd(file.as_raw_fd())
}

impl Work {
    /// Converts a job. Returns it as an error if the ring does not support it.
    fn of(job: Job) -> Result<Work, Job> {
        Ok(match job {
            Job::Open {
                ref path,
                access,
                permissions,
                ..
            } => match c_path(path) {
                Some(path) => Work::Open {
                    path,
                    access,
                    permissions,
                },
                None => return Err(job),
            },
            Job::Stat { ref path } => match c_path(path) {
                Some(path) => Work::stat(path, None),
                None => return Err(job),
            },
            Job::Remove { ref path } => match c_path(path) {
                Some(path) => Work::Remove(path),
                None => return Err(job),
            },
            Job::Rename {
                ref from, ref to, ..
            } => match (c_path(from), c_path(to)) {
                (Some(from), Some(to)) => Work::Rename(from, to),
                _ => return Err(job),
            },
            Job::Inspect { file } => Work::stat(CString::default(), Some(file)),
            Job::Write { file, writing } => Work::Write {
                file,
                writing,
                slices: Slices(Vec::new()),
            },
            Job::Read { file, at, bytes } => Work::Read {
                file,
                at,
                room: vec![0; bytes],
                filled: 0,
            },
            Job::Sync { file } => Work::Sync(file),
            Job::Truncate { file, bytes } => Work::Truncate(file, bytes),
            Job::Close { file } => Work::Close(file),
        })
    }

    fn stat(path: CString, file: Option<Fd>) -> Work {
        Work::Stat {
            path,
            file,
            // SAFETY: a plain C structure of numbers, for which all zeros are valid.
            answer: Box::new(unsafe { std::mem::zeroed() }),
        }
    }

    /// Returns the kernel's description, with pointers into `self`, whose heap memory does not move.
    fn entry(&mut self) -> squeue::Entry {
        let here = types::Fd(libc::AT_FDCWD);
        match self {
            Work::Open {
                path,
                access,
                permissions,
            } => {
                let flags = flags_of(*access).bits().cast_signed();
                let open = opcode::OpenAt::new(here, path.as_ptr());
                open.flags(flags).mode(*permissions).build()
            }
            Work::Stat { path, file, answer } => {
                let answer = (&raw mut **answer).cast();
                let file_or_here = file.as_ref().map_or(here, fd);
                let stat = opcode::Statx::new(file_or_here, path.as_ptr(), answer);
                let flags = if file.is_some() {
                    libc::AT_EMPTY_PATH
                } else {
                    0
                };
                stat.flags(flags).mask(libc::STATX_BASIC_STATS).build()
            }
            Work::Write {
                file,
                writing,
                slices,
            } => {
                // The kernel only reads them, although their type allows writing.
                let pieces = writing.slices();
                slices.0 = (pieces.iter())
                    .map(|piece| libc::iovec {
                        iov_base: piece.as_ptr().cast_mut().cast(),
                        iov_len: piece.len(),
                    })
                    .collect();
                let count = slices.0.len() as u32;
                let write = opcode::Writev::new(fd(file), slices.0.as_ptr(), count);
                write.offset(writing.at.unwrap_or(NO_POSITION)).build()
            }
            Work::Read {
                file,
                at,
                room,
                filled,
            } => {
                let rest = &mut room[*filled..];
                let bytes = u32::try_from(rest.len()).unwrap_or(u32::MAX);
                let read = opcode::Read::new(fd(file), rest.as_mut_ptr(), bytes);
                let offset = at.map_or(NO_POSITION, |at| at + *filled as u64);
                read.offset(offset).build()
            }
            Work::Sync(file) => {
                let sync = opcode::Fsync::new(fd(file));
                sync.flags(types::FsyncFlags::DATASYNC).build()
            }
            Work::Truncate(file, bytes) => opcode::Ftruncate::new(fd(file), *bytes).build(),
            Work::Close(file) => opcode::Close::new(types::Fd(file.as_raw_fd())).build(),
            Work::Rename(from, to) => {
                opcode::RenameAt::new(here, from.as_ptr(), here, to.as_ptr()).build()
            }
            Work::Remove(path) => opcode::UnlinkAt::new(here, path.as_ptr()).build(),
        }
    }

    /// Handles the completion, after which the kernel does not use its memory any more.
    fn conclude(mut self, result: i32) -> (Outcome, Option<Work>) {
        if let Work::Close(file) = self {
            return (Outcome::Finished(closed(file, result)), None);
        }
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return (Outcome::Again, Some(self));
        }
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            return (Outcome::Finished(Err(error)), None);
        }
        let count = usize::try_from(result).unwrap_or(0);
        if let Work::Read {
            at: Some(_),
            room,
            filled,
            ..
        } = &mut self
        {
            *filled += count;
            if count > 0 && *filled < room.len() {
                return (Outcome::Again, Some(self));
            }
        }
        (Outcome::Finished(Ok(self.done(count, result))), None)
    }

    fn done(self, count: usize, result: i32) -> Done {
        match self {
            // SAFETY: the kernel has just opened this descriptor for this process, and no other code knows it.
            Work::Open { .. } => Done::Opened(unsafe { OwnedFd::from_raw_fd(result) }),
            Work::Stat { answer, .. } => Done::Stat(Stat {
                bytes: answer.stx_size,
                is_regular: u32::from(answer.stx_mode) & libc::S_IFMT == libc::S_IFREG,
            }),
            Work::Write { writing, .. } => Done::Wrote(writing, count),
            Work::Read {
                at,
                mut room,
                filled,
                ..
            } => {
                room.truncate(if at.is_some() { filled } else { count });
                Done::Read(room)
            }
            Work::Sync(_)
            | Work::Truncate(..)
            | Work::Close(_)
            | Work::Rename(..)
            | Work::Remove(_) => Done::Nothing,
        }
    }
}

/// Returns the result of a close. According to close(2), the descriptor is closed in any case, unless the request was not begun.
fn closed(file: OwnedFd, result: i32) -> io::Result<Done> {
    if -result == libc::ECANCELED {
        drop(file);
        return Ok(Done::Nothing);
    }
    let _ = file.into_raw_fd();
    match result {
        0.. => Ok(Done::Nothing),
        code if -code == libc::EINTR => Ok(Done::Nothing),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

const _: () = assert!(
    size_of::<usize>() == 8,
    "keys of flights are far below those of others"
);
