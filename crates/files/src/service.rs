//! The service thread: takes operations of files, passes them to a backend, and distributes the results.
//!
//! | data | threads |
//! |---|---|
//! | `FileShared::kept` | any thread, under its lock; no foreign code runs while it is held |
//! | `Shared::inbox` | any thread, under its lock; locked after a file's lock, never before |
//! | `ServiceThread` | only the service thread |
//!
//! A file is listed in the inbox when it needs a turn. In its turns, it starts an operation; when that operation ends, it gets
//! the next turn. Work that is due later has a timer, in steps of [`TIMER_STEP_NS`], so that a thousand files wake the thread
//! only ten times a second.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::backend::{Backend, Finished};
use crate::budget::Share;
use crate::core::{FileCore, Outputs};
use crate::failure::Failure;
use crate::job::Job;
use crate::lock;
use crate::op::Slot;
use crate::wake::Wake;

/// Value while the thread is awake. It then checks the inbox before it sleeps.
const AWAKE: u64 = 0;
/// Step of the timers, so that several timers fire together.
const TIMER_STEP_NS: u64 = 100_000_000;

/// State of the service that all threads use.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Wake,
    begun: Instant,
    /// Time at which the thread wakes up by itself, or [`AWAKE`]. The thread writes it before it locks the inbox for a last look.
    /// Other threads read it after they have added an item. So whichever comes first, no item is missed.
    wakes_at_ns: AtomicU64,
}

/// Keeps the service running. Its thread ends when no user is left and no operation is under way.
pub(crate) struct Service(pub(crate) Arc<Shared>);

impl Drop for Service {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[derive(Default)]
struct Inbox {
    ready: Vec<Arc<FileShared>>,
    timed: Vec<(u64, Arc<FileShared>)>,
    loose: Vec<(Job, Loose)>,
    cancelled: Vec<u64>,
    deferred: Vec<Deferred>,
    has_ended: bool,
}

/// Calls and drops of foreign objects. Only the service thread executes them, and without a lock, because a waker may need a lock
/// that a user holds.
struct Deferred {
    outputs: Outputs<Arc<Slot>>,
    watcher: Option<Waker>,
    admitted: Vec<Waker>,
}

impl Deferred {
    fn is_empty(&self) -> bool {
        self.outputs.replies.is_empty()
            && self.outputs.discarded.is_empty()
            && self.watcher.is_none()
            && self.admitted.is_empty()
    }

    /// Executes the calls and drops, and catches panics of foreign code.
    fn carry_out(self) {
        for piece in self.outputs.discarded {
            guarded(|| drop(piece));
        }
        for waker in self.admitted.into_iter().chain(self.watcher) {
            guarded(|| waker.wake());
        }
        for (slot, reply) in self.outputs.replies {
            guarded(|| slot.complete(reply));
        }
    }
}

fn guarded(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// An operation without an open file. The path is for the failure.
pub(crate) struct Loose {
    pub(crate) slot: Arc<Slot>,
    pub(crate) operation: &'static str,
    pub(crate) path: Arc<std::path::Path>,
}

/// State of a file that all threads use.
pub(crate) struct FileShared {
    state: Mutex<FileState>,
    /// The file's share of the budget, set before the first write.
    pub(crate) share: OnceLock<Share>,
    shared: Arc<Shared>,
}

pub(crate) struct FileState {
    pub(crate) core: FileCore<Arc<Slot>>,
    /// Whether the file is in the inbox.
    is_listed: bool,
    /// Time of the file's earliest timer.
    timer_ns: Option<u64>,
    /// Number of the operation under way.
    token: Option<u64>,
    /// Woken when the file fails.
    watcher: Option<Waker>,
}

impl Shared {
    pub(crate) fn new(wake: Wake) -> Self {
        Shared {
            inbox: Mutex::default(),
            wake,
            begun: Instant::now(),
            wakes_at_ns: AtomicU64::new(AWAKE),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn begin_loose(&self, job: Job, loose: Loose) {
        lock(&self.inbox).loose.push((job, loose));
        self.wake.wake();
    }

    fn end(&self) {
        lock(&self.inbox).has_ended = true;
        self.wake.wake();
    }
}

impl FileShared {
    pub(crate) fn new(shared: Arc<Shared>, core: FileCore<Arc<Slot>>) -> Arc<Self> {
        Arc::new(FileShared {
            state: Mutex::new(FileState {
                core,
                is_listed: false,
                timer_ns: None,
                token: None,
                watcher: None,
            }),
            share: OnceLock::new(),
            shared,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FileState> {
        lock(&self.state)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Woken when the file fails.
    pub(crate) fn watch(&self, waker: Waker) {
        let replaced = self.lock().watcher.replace(waker);
        drop(replaced);
    }

    /// Ends a change by a user: notifies the service if necessary.
    pub(crate) fn settle(self: &Arc<Self>, state: MutexGuard<'_, FileState>) {
        let (deferred, must_wake) = self.conclude(state);
        let must_wake = if deferred.is_empty() {
            must_wake
        } else {
            lock(&self.shared.inbox).deferred.push(deferred);
            true
        };
        if must_wake {
            self.shared.wake.wake();
        }
    }

    /// Returns the work to be done without the lock, and whether the service thread must be woken.
    fn conclude(self: &Arc<Self>, mut state: MutexGuard<'_, FileState>) -> (Deferred, bool) {
        let mut must_wake = false;
        if !state.is_listed && state.core.wants_turn(self.now_ns()) {
            state.is_listed = true;
            let mut inbox = lock(&self.shared.inbox);
            let is_first = inbox.ready.is_empty();
            inbox.ready.push(self.clone());
            drop(inbox);
            must_wake = is_first && self.shared.wakes_at_ns.load(Relaxed) != AWAKE;
        } else if let Some(ns) = state.later_timer() {
            lock(&self.shared.inbox).timed.push((ns, self.clone()));
            must_wake = ns < self.shared.wakes_at_ns.load(Relaxed);
        }
        let outputs = state.core.take_outputs();
        let watcher = outputs.has_failed.then(|| state.watcher.clone()).flatten();
        drop(state);
        let admitted = match self.share.get() {
            Some(share) if outputs.released > 0 => share.release(outputs.released),
            _ => Vec::new(),
        };
        let deferred = Deferred {
            outputs,
            watcher,
            admitted,
        };
        (deferred, must_wake)
    }

    /// Allows the running operation to end before it is complete.
    pub(crate) fn cancel(&self, state: &FileState) {
        if let Some(token) = state.token {
            lock(&self.shared.inbox).cancelled.push(token);
            self.shared.wake.wake();
        }
    }
}

impl FileState {
    /// Returns the time of a timer, if the file needs one that is not set yet.
    fn later_timer(&mut self) -> Option<u64> {
        let ns = self.core.next_timeout()?;
        let ns = ns.div_ceil(TIMER_STEP_NS).saturating_mul(TIMER_STEP_NS);
        if self.timer_ns.is_some_and(|set_ns| set_ns <= ns) {
            return None;
        }
        self.timer_ns = Some(ns);
        Some(ns)
    }
}

/// Owner of an operation.
enum Owner {
    File(Arc<FileShared>),
    Loose(Loose),
}

/// State of the service thread.
pub(crate) struct ServiceThread {
    shared: Arc<Shared>,
    backend: Box<dyn Backend>,
    owners: Slab<Owner>,
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    /// The files of the timers, by the timer's number. A file that has ended is skipped.
    timed: HashMap<u64, Weak<FileShared>>,
    timers_set: u64,
}

impl ServiceThread {
    pub(crate) fn new(shared: Arc<Shared>, backend: Box<dyn Backend>) -> Self {
        ServiceThread {
            shared,
            backend,
            owners: Slab::new(),
            timers: BinaryHeap::new(),
            timed: HashMap::new(),
            timers_set: 0,
        }
    }

    /// Runs until the service is dropped and no operation is under way.
    pub(crate) fn run(mut self) {
        let mut done = Vec::new();
        loop {
            let has_ended = self.take_inbox();
            self.take_timers();
            // All files are closed by now: each file counts as a user until its last operation runs.
            if has_ended && self.owners.is_empty() && !self.has_post() {
                return;
            }
            let next_ns = self.timers.peek().map(|Reverse((ns, _))| *ns);
            let now_ns = self.shared.now_ns();
            // If the thread soon looks at the inbox anyway, it need not be woken.
            if !self.backend.waits_briefly() {
                (self.shared.wakes_at_ns).store(next_ns.unwrap_or(u64::MAX), Relaxed);
            }
            let timeout = next_ns.map(|ns| Duration::from_nanos(ns.saturating_sub(now_ns)));
            // Items that were added before the time was published did not wake this thread.
            let timeout = if self.has_post() {
                Some(Duration::ZERO)
            } else {
                timeout
            };
            self.backend.wait(timeout, &mut done);
            self.shared.wakes_at_ns.store(AWAKE, Relaxed);
            for finished in done.drain(..) {
                self.handle_finished(finished);
            }
        }
    }

    fn has_post(&self) -> bool {
        let inbox = lock(&self.shared.inbox);
        let is_empty = inbox.ready.is_empty() && inbox.timed.is_empty() && inbox.loose.is_empty();
        !(is_empty && inbox.cancelled.is_empty() && inbox.deferred.is_empty())
    }

    fn take_inbox(&mut self) -> bool {
        let post = {
            let mut inbox = lock(&self.shared.inbox);
            let has_ended = inbox.has_ended;
            std::mem::replace(
                &mut *inbox,
                Inbox {
                    has_ended,
                    ..Inbox::default()
                },
            )
        };
        for file in post.ready {
            file.lock().is_listed = false;
            self.turn(file);
        }
        for (ns, file) in post.timed {
            self.set_timer(ns, file);
        }
        for (job, loose) in post.loose {
            let token = self.owners.insert(Owner::Loose(loose));
            self.backend.begin(token as u64, job);
        }
        for token in post.cancelled {
            self.backend.cancel(token);
        }
        post.deferred.into_iter().for_each(Deferred::carry_out);
        post.has_ended
    }

    fn set_timer(&mut self, ns: u64, file: Arc<FileShared>) {
        self.timers_set += 1;
        self.timers.push(Reverse((ns, self.timers_set)));
        self.timed.insert(self.timers_set, Arc::downgrade(&file));
    }

    fn take_timers(&mut self) {
        let now_ns = self.shared.now_ns();
        while let Some(&Reverse((ns, number))) = self.timers.peek()
            && ns <= now_ns
        {
            self.timers.pop();
            if let Some(file) = self.timed.remove(&number).and_then(|it| it.upgrade()) {
                let mut state = file.lock();
                if state.timer_ns == Some(ns) {
                    state.timer_ns = None;
                }
                drop(state);
                self.turn(file);
            }
        }
    }

    /// Begins the file's next operations.
    fn turn(&mut self, file: Arc<FileShared>) {
        let mut state = file.lock();
        if let Some(job) = state.core.poll_job(file.now_ns()) {
            let token = self.owners.insert(Owner::File(file.clone())) as u64;
            state.token = Some(token);
            self.backend.begin(token, job);
        }
        file.conclude(state).0.carry_out();
    }

    fn handle_finished(&mut self, (token, result): Finished) {
        let Some(owner) = self.owners.try_remove(token as usize) else {
            return;
        };
        match owner {
            Owner::Loose(loose) => {
                let failed = |error| Failure::new(&loose.path, loose.operation, &error);
                let result = result.map_err(failed);
                guarded(|| loose.slot.complete(result));
            }
            Owner::File(file) => {
                let mut state = file.lock();
                state.token = None;
                state.core.handle_done(file.now_ns(), result);
                drop(state);
                self.turn(file);
            }
        }
    }
}
