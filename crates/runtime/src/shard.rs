//! A shard: one thread of a context, its loop, and its handle for other threads.

use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{any::Any, any::TypeId, cell::Cell, fmt, io, thread};

use async_task::Runnable;

use crate::counters::{Counters, CountersSnapshot};
use crate::local::{Local, Token};
use crate::park::{Park, Sleep};
use crate::sync::lock;
use crate::sys::{Event, EventFd, clock_now_ns};
use crate::task::enlisted;
use crate::watch::{Blocked, Watch};

/// A command for a shard's thread.
pub(crate) type Command = Box<dyn FnOnce(&Local) + Send>;

/// A task that is ready to run.
#[derive(Debug)]
pub(crate) enum Wake {
    Agent(Token),
    Task(Runnable),
}

/// A handle of one thread of a context. Cheap to clone; does not keep the thread alive (a [`crate::Context`] does).
#[derive(Clone)]
pub struct Shard(Arc<Shared>);

/// The shard has shut down: its context has no users left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the context has shut down")]
pub struct ShardClosed;

impl Shard {
    /// Starts a shard's thread. `wait`: zero for no throttling.
    pub(crate) fn start(
        id: u64,
        name: String,
        wait: Duration,
    ) -> io::Result<(Shard, thread::JoinHandle<()>)> {
        let shard = Shard(Arc::new(Shared {
            id,
            name: name.clone(),
            wait_ns: wait.as_nanos() as u64,
            park: Park::new(),
            interrupt: EventFd::new()?,
            counters: Counters::new(),
            watch: Watch::new(wait.as_nanos() as u64),
            started_ns: clock_now_ns(),
            spare: Mutex::new(Vec::new()),
            extensions: Mutex::new(Vec::new()),
        }));
        let of_thread = shard.clone();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || of_thread.run())?;
        Ok((shard, thread))
    }

    /// A number unique among the process's shards.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Name of its thread.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The context's wait, zero for no throttling.
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.0.wait_ns)
    }

    /// Whether the caller is on this shard's thread.
    #[inline]
    pub fn is_current(&self) -> bool {
        current_shard_id() == Some(self.0.id)
    }

    /// The shard's counters.
    pub fn counters_snapshot(&self) -> CountersSnapshot {
        self.0.counters.snapshot()
    }

    /// When its thread was started, ns of CLOCK_MONOTONIC.
    pub fn started_ns(&self) -> u64 {
        self.0.started_ns
    }

    /// The labels of the agents that live here.
    pub fn agents(&self) -> Vec<String> {
        self.0.watch.labels()
    }

    /// The running agent, and the start of its run, ns of CLOCK_MONOTONIC. Does not wait for the shard, which may be
    /// held up.
    pub fn running(&self) -> Option<(String, u64)> {
        self.0.watch.running()
    }

    /// The last holds longer than a slice, oldest first.
    pub fn blocked(&self) -> Vec<Blocked> {
        self.0.watch.log()
    }

    /// A longer run counts as a hold, ns: the length of a slice.
    pub fn blocked_limit_ns(&self) -> u64 {
        self.0.watch.limit_ns()
    }

    /// Notes a hold within the run of an agent; its time does not count again as the agent's. On the shard's thread
    /// only; times are of [`clock_now_ns`](crate::clock_now_ns).
    pub fn note_blocked(&self, blocked: Blocked) {
        debug_assert!(self.is_current(), "on another thread than the shard's");
        self.0.watch.note_inner(self, blocked);
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.0.watch
    }

    /// Runs `f` on the shard's thread: interrupts a sleep, throttled or not. From the shard's own thread,
    /// `f` runs in the next pass.
    pub fn command(&self, f: impl FnOnce(&Local) + Send + 'static) -> Result<(), ShardClosed> {
        let command: Command = Box::new(f);
        if self.is_current() {
            Local::with_current(|local| local.enqueue_command(command));
            return Ok(());
        }
        match self.0.park.send_control(command) {
            Ok(interrupt) => {
                if interrupt {
                    self.0.interrupt.notify();
                }
                Ok(())
            }
            Err(_refused) => Err(ShardClosed),
        }
    }

    /// Runs `f` on the shard's thread and waits for its result. On the shard's own thread it runs at once. A shard's
    /// thread that waits for another one continues to serve commands, so that two that call each other do not deadlock.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Local) -> R + Send + 'static,
    ) -> Result<R, ShardClosed> {
        if self.is_current() {
            return Local::with_current(f).ok_or(ShardClosed);
        }
        let slot = Arc::new(Reply {
            value: Mutex::new(ReplyState::Waiting),
            done: Condvar::new(),
        });
        let sender = ReplySender(slot.clone());
        self.command(move |local| sender.send(f(local)))?;
        slot.wait()
    }

    /// Runs a future on this shard. Dropping the task cancels it, and so does the end of the shard.
    pub fn spawn<F>(&self, future: F) -> async_task::Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let shard = self.clone();
        let (runnable, task) = async_task::spawn(enlisted(future), move |r| shard.schedule(r));
        runnable.schedule();
        task
    }

    /// One value of type `T` for each shard, created on first use.
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce(&Shard) -> T) -> Arc<T> {
        let mut extensions = self
            .0
            .extensions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = extensions.iter().find(|(id, _)| *id == TypeId::of::<T>());
        if let Some(found) = known.and_then(|(_, any)| any.clone().downcast::<T>().ok()) {
            return found;
        }
        let made = Arc::new(make(self));
        extensions.push((TypeId::of::<T>(), made.clone()));
        made
    }

    pub(crate) fn schedule(&self, task: Runnable) {
        self.wake(Wake::Task(task));
    }

    pub(crate) fn wake_agent(&self, token: Token) {
        self.wake(Wake::Agent(token));
    }

    fn wake(&self, wake: Wake) {
        if self.is_current() {
            Local::with_current(|local| local.enqueue(wake));
            return;
        }
        match self.0.park.send_data(wake) {
            Ok(true) => self.0.interrupt.notify(),
            Ok(false) => {}
            // The shard is gone, and with it every task that had begun. What is left has not run yet and is `Send`, or
            // it is an agent's wake-up: dropping it cancels the task.
            Err(wake) => drop(wake),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(crate) fn interrupt_fd(&self) -> i32 {
        self.0.interrupt.raw()
    }

    pub(crate) fn drain_interrupt(&self) {
        self.0.interrupt.drain();
    }

    pub(crate) fn tick_ns(&self) -> u64 {
        if self.0.wait_ns == 0 {
            UNTHROTTLED_TICK_NS
        } else {
            self.0.wait_ns
        }
    }

    pub(crate) fn take_inbox(&self) -> (Vec<Command>, Vec<Wake>) {
        let (mut control, mut data) = lock(&self.0.spare).pop().unwrap_or_default();
        self.0.park.take(&mut control, &mut data);
        (control, data)
    }

    /// Returns the emptied vectors of `take_inbox` for reuse.
    pub(crate) fn recycle_inbox(&self, control: Vec<Command>, data: Vec<Wake>) {
        lock(&self.0.spare).push((control, data));
    }

    pub(crate) fn take_control(&self) -> Vec<Command> {
        let mut control = Vec::new();
        self.0.park.take_control(&mut control);
        control
    }

    /// The end of the shard begins: returns the remaining commands; wake-ups still arrive.
    pub(crate) fn close_to_commands(&self) -> Vec<Command> {
        self.0.park.close_to_commands()
    }

    /// Calls `sleep` unless something has arrived; arrivals interrupt the poller.
    pub(crate) fn sleep_until_woken<R>(&self, sleep: impl FnOnce() -> R) {
        if self.0.park.prepare(Sleep::Idle) {
            sleep();
            self.0.park.awake();
        }
    }

    pub(crate) fn close_inbox(&self) -> (Vec<Command>, Vec<Wake>) {
        self.0.park.close()
    }

    fn run(self) {
        CURRENT_ID.set(self.0.id);
        let origin_ns = clock_now_ns();
        Local::enter(self.clone(), origin_ns, self.tick_ns(), |local| {
            let mut events = vec![MaybeUninit::uninit(); EVENTS];
            if self.0.wait_ns == 0 {
                Loop {
                    shard: &self,
                    local,
                    events: &mut events,
                }
                .run_unthrottled();
            } else {
                Loop {
                    shard: &self,
                    local,
                    events: &mut events,
                }
                .run_throttled(origin_ns);
            }
        });
        // The thread's creator may have failed before the inbox was served.
        drop(self.close_inbox());
        CURRENT_ID.set(NO_SHARD);
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard")
            .field("id", &self.0.id)
            .field("name", &self.0.name)
            .finish()
    }
}

/// The id of the current thread's shard.
#[inline]
pub fn current_shard_id() -> Option<u64> {
    let id = CURRENT_ID.get();
    (id != NO_SHARD).then_some(id)
}

thread_local! {
    static CURRENT_ID: Cell<u64> = const { Cell::new(NO_SHARD) };
}

const NO_SHARD: u64 = u64::MAX;

struct Shared {
    id: u64,
    name: String,
    wait_ns: u64,
    park: Park<Command, Wake>,
    interrupt: EventFd,
    counters: Counters,
    watch: Watch,
    started_ns: u64,
    /// Emptied inbox vectors, only ever used by the shard's thread (nested passes take two).
    spare: crate::sync::Mutex<Vec<(Vec<Command>, Vec<Wake>)>>,
    extensions: Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>,
}

/// Decides when the shard works and when it sleeps.
struct Loop<'a> {
    shard: &'a Shard,
    local: &'a Local,
    events: &'a mut [MaybeUninit<Event>],
}

impl Loop<'_> {
    /// Without throttling: sleeps in the poller until something is ready.
    fn run_unthrottled(self) {
        let park = &self.shard.0.park;
        let mut awake_since = clock_now_ns();
        loop {
            self.local.begin_slice();
            self.local.take_inbox();
            if self.local.closing.get() {
                return;
            }
            let idle = !self.local.has_ready() && park.prepare(Sleep::Idle);
            let timeout = if idle {
                self.until_timer()
            } else {
                Some(Duration::ZERO)
            };
            if idle {
                self.counters().busy_ns.add(clock_now_ns() - awake_since);
            }
            self.local.poll_io(self.events, timeout, || {
                let now = self.local.read_clock();
                if idle {
                    park.awake();
                    self.shard.counters().wakeups.add(1);
                    awake_since = now;
                }
            });
            self.local.run_timers(self.local.now_ns());
            self.local.run_ready();
        }
    }

    /// With throttling: one batch at each edge of a grid that never drifts.
    fn run_throttled(mut self, origin_ns: u64) {
        let wait_ns = self.shard.0.wait_ns;
        let mut edge = origin_ns;
        loop {
            let begin = clock_now_ns();
            self.local.begin_slice();
            self.counters().slice_late_by(begin.saturating_sub(edge));
            let worked = self.slice(edge + wait_ns);
            if self.local.closing.get() {
                return;
            }
            let now = clock_now_ns();
            self.counters().busy_ns.add(now - begin);
            let since = now - origin_ns;
            if now >= edge + wait_ns {
                // Late: the next slice begins now, on the grid.
                edge = origin_ns + since / wait_ns * wait_ns;
            } else if worked || self.local.has_ready() {
                edge += wait_ns;
                self.sleep_until(edge);
            } else {
                edge = self.sleep_while_idle(origin_ns);
            }
            if self.local.closing.get() {
                return;
            }
        }
    }

    /// Handles all pending events, at most until `end_ns`. `true`: there were some.
    fn slice(&mut self, end_ns: u64) -> bool {
        let mut worked = false;
        loop {
            let now = self.local.read_clock();
            self.local.take_inbox();
            let timers = self.local.run_timers(now);
            let events = self.local.poll_io(self.events, Some(Duration::ZERO), || ());
            let ready = self.local.run_ready();
            if timers + events + ready == 0 || self.local.closing.get() {
                return worked;
            }
            worked = true;
            if clock_now_ns() >= end_ns {
                return true;
            }
        }
    }

    /// The sleep between two slices: only commands interrupt it, and it continues after them.
    fn sleep_until(&mut self, edge_ns: u64) {
        let park = &self.shard.0.park;
        loop {
            self.local.take_control();
            let now = clock_now_ns();
            if now >= edge_ns || self.local.closing.get() {
                return;
            }
            if !self.local.has_commands() && park.prepare(Sleep::Throttled) {
                let interrupt = &self.shard.0.interrupt;
                if interrupt.sleep(Duration::from_nanos(edge_ns - now)) {
                    // Also a late write for an earlier sleep: it would end this one at once, again and again.
                    interrupt.drain();
                }
                park.awake();
                self.counters().wakeups.add(1);
            }
        }
    }

    /// The sleep after a slice without work: until any event. Returns the next edge.
    fn sleep_while_idle(&mut self, origin_ns: u64) -> u64 {
        let (park, wait_ns) = (&self.shard.0.park, self.shard.0.wait_ns);
        loop {
            self.local.take_control();
            if self.local.closing.get() {
                return clock_now_ns();
            }
            let mut happened = true;
            if !self.local.has_ready() && park.prepare(Sleep::Idle) {
                let ready = self.local.await_io(self.until_timer());
                let notified = park.awake();
                self.counters().wakeups.add(1);
                happened = ready || notified;
            }
            let since = clock_now_ns() - origin_ns;
            if self
                .local
                .next_timer_ns()
                .is_some_and(|at| at <= origin_ns + since)
            {
                // Timers are due at edges: this is one.
                return origin_ns + since / wait_ns * wait_ns;
            }
            if happened && !self.only_control() {
                let edge = origin_ns + since.div_ceil(wait_ns) * wait_ns;
                self.sleep_until(edge);
                return edge;
            }
        }
    }

    /// After an interrupt: runs the commands, and returns whether there was nothing else.
    fn only_control(&self) -> bool {
        self.local.take_inbox();
        !self.local.has_ready() && !self.local.await_io(Some(Duration::ZERO))
    }

    fn until_timer(&self) -> Option<Duration> {
        let at = self.local.next_timer_ns()?;
        Some(Duration::from_nanos(at.saturating_sub(clock_now_ns())))
    }

    fn counters(&self) -> &Counters {
        self.shard.counters()
    }
}

/// Receives the result of a call.
struct Reply<R> {
    value: Mutex<ReplyState<R>>,
    done: Condvar,
}

enum ReplyState<R> {
    Waiting,
    Done(R),
    /// The command was dropped or panicked.
    Lost,
}

impl<R> Reply<R> {
    fn wait(&self) -> Result<R, ShardClosed> {
        let on_shard = current_shard_id().is_some();
        let mut state = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *state, ReplyState::Waiting) {
                ReplyState::Done(value) => return Ok(value),
                ReplyState::Lost => return Err(ShardClosed),
                ReplyState::Waiting => {}
            }
            if !on_shard {
                state = self
                    .done
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self
                .done
                .wait_timeout(state, CROSS_CALL_SERVE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if matches!(*state, ReplyState::Waiting) {
                drop(state);
                Local::with_current(Local::take_control);
                state = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

struct ReplySender<R>(Arc<Reply<R>>);

impl<R> ReplySender<R> {
    fn send(self, value: R) {
        self.set(ReplyState::Done(value));
    }

    fn set(&self, to: ReplyState<R>) {
        let mut state = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, ReplyState::Done(_)) {
            *state = to;
            self.0.done.notify_all();
        }
    }
}

impl<R> Drop for ReplySender<R> {
    fn drop(&mut self) {
        self.set(ReplyState::Lost);
    }
}

/// Events fetched by one epoll_wait: enough for one thread's streams (3000 and more).
const EVENTS: usize = 4096;
/// Timer granularity of a context without a wait.
const UNTHROTTLED_TICK_NS: u64 = 1_000_000;
/// How often a shard that waits for another one checks its own commands.
const CROSS_CALL_SERVE: Duration = Duration::from_millis(5);
