//! The service thread: takes what files want done, gives it to a backend, hands out the results.
//!
//! | what | who |
//! |---|---|
//! | `FileShared::kept` | any thread, under its lock; nothing foreign is called or dropped under it |
//! | `Shared::inbox` | any thread, under its lock; after a file's, never before |
//! | `Desk` | the service thread alone |
//!
//! A file is listed in the inbox when it wants a turn, and takes its turns until it has an operation under way; the end of that is
//! its next turn. What is to be done later has a timer, in steps of [`TIMER_STEP_NS`], so that a thousand files wake the thread ten
//! times a second.

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

/// The thread looks at the inbox before it sleeps.
const AWAKE: u64 = 0;
/// Timers go off together.
const TIMER_STEP_NS: u64 = 100_000_000;

/// The service, for all threads.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Wake,
    begun: Instant,
    /// When the thread wakes up by itself, or [`AWAKE`]. Written before the thread locks the inbox for a last look, and read after
    /// something was put there: whichever comes first, nothing is overslept.
    wakes_at_ns: AtomicU64,
}

/// Keeps the service running: the thread ends when the last user has gone and nothing is under way.
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

/// What calls or drops things of others: only the service thread does that, which holds no lock then. A user may hold one of its own that
/// a waker asks for.
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

    /// A panic in what belongs to others ends there.
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

/// An operation of no open file, with its path for the failure.
pub(crate) struct Loose {
    pub(crate) slot: Arc<Slot>,
    pub(crate) operation: &'static str,
    pub(crate) path: Arc<std::path::Path>,
}

/// A file, for all threads.
pub(crate) struct FileShared {
    kept: Mutex<Kept>,
    /// Set before the first write.
    pub(crate) share: OnceLock<Share>,
    shared: Arc<Shared>,
}

pub(crate) struct Kept {
    pub(crate) core: FileCore<Arc<Slot>>,
    /// In the inbox.
    is_listed: bool,
    /// Of its earliest timer.
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
            kept: Mutex::new(Kept {
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Woken when the file fails.
    pub(crate) fn watch(&self, waker: Waker) {
        let replaced = self.lock().watcher.replace(waker);
        drop(replaced);
    }

    /// After a change by a user: has the service look at the file if need be.
    pub(crate) fn settle(self: &Arc<Self>, kept: MutexGuard<'_, Kept>) {
        let (deferred, must_wake) = self.conclude(kept);
        let must_wake = match deferred.is_empty() {
            true => must_wake,
            false => {
                lock(&self.shared.inbox).deferred.push(deferred);
                true
            }
        };
        if must_wake {
            self.shared.wake.wake();
        }
    }

    /// What is to be done without the lock, and whether the service thread has to be woken.
    fn conclude(self: &Arc<Self>, mut kept: MutexGuard<'_, Kept>) -> (Deferred, bool) {
        let mut must_wake = false;
        if !kept.is_listed && kept.core.wants_turn(self.now_ns()) {
            kept.is_listed = true;
            let mut inbox = lock(&self.shared.inbox);
            let is_first = inbox.ready.is_empty();
            inbox.ready.push(self.clone());
            drop(inbox);
            must_wake = is_first && self.shared.wakes_at_ns.load(Relaxed) != AWAKE;
        } else if let Some(ns) = kept.later_timer() {
            lock(&self.shared.inbox).timed.push((ns, self.clone()));
            must_wake = ns < self.shared.wakes_at_ns.load(Relaxed);
        }
        let outputs = kept.core.take_outputs();
        let watcher = outputs.has_failed.then(|| kept.watcher.clone()).flatten();
        drop(kept);
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

    /// The operation under way need not be completed.
    pub(crate) fn cancel(&self, kept: &Kept) {
        if let Some(token) = kept.token {
            lock(&self.shared.inbox).cancelled.push(token);
            self.shared.wake.wake();
        }
    }
}

impl Kept {
    /// A timer that is not set yet.
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

/// Whose operation it is.
enum Owner {
    File(Arc<FileShared>),
    Loose(Loose),
}

/// The thread's own.
pub(crate) struct Desk {
    shared: Arc<Shared>,
    backend: Box<dyn Backend>,
    owners: Slab<Owner>,
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    /// The files of the timers, by the timer's number. A file that has ended has nothing to do then.
    timed: HashMap<u64, Weak<FileShared>>,
    timers_set: u64,
}

impl Desk {
    pub(crate) fn new(shared: Arc<Shared>, backend: Box<dyn Backend>) -> Self {
        Desk {
            shared,
            backend,
            owners: Slab::new(),
            timers: BinaryHeap::new(),
            timed: HashMap::new(),
            timers_set: 0,
        }
    }

    /// Until the service is dropped and nothing is under way.
    pub(crate) fn run(mut self) {
        let mut done = Vec::new();
        loop {
            let has_ended = self.take_inbox();
            self.take_timers();
            // All files are closed: each is a user until its end is under way.
            if has_ended && self.owners.is_empty() && !self.has_post() {
                return;
            }
            let next_ns = self.timers.peek().map(|Reverse((ns, _))| *ns);
            let now_ns = self.shared.now_ns();
            // Nobody has to ring for what is looked for in a moment anyway.
            if !self.backend.waits_briefly() {
                (self.shared.wakes_at_ns).store(next_ns.unwrap_or(u64::MAX), Relaxed);
            }
            let timeout = next_ns.map(|ns| Duration::from_nanos(ns.saturating_sub(now_ns)));
            // Nobody rings for what came before the time was told.
            let timeout = match self.has_post() {
                true => Some(Duration::ZERO),
                false => timeout,
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
                let mut kept = file.lock();
                if kept.timer_ns == Some(ns) {
                    kept.timer_ns = None;
                }
                drop(kept);
                self.turn(file);
            }
        }
    }

    /// Begins what the file has to do next.
    fn turn(&mut self, file: Arc<FileShared>) {
        let mut kept = file.lock();
        if let Some(job) = kept.core.poll_job(file.now_ns()) {
            let token = self.owners.insert(Owner::File(file.clone())) as u64;
            kept.token = Some(token);
            self.backend.begin(token, job);
        }
        file.conclude(kept).0.carry_out();
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
                let mut kept = file.lock();
                kept.token = None;
                kept.core.handle_done(file.now_ns(), result);
                drop(kept);
                self.turn(file);
            }
        }
    }
}
