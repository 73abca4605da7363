//! A shard: one thread of a context, with its handle for other threads and its residents.
//!
//! The types of a shard depend on each other. A command from another thread works on the shard's own state ([`Local`]). That
//! state holds the agents ([`Agent`]), which run with a view of it ([`Cx`]). So all these types are in this module. The modules
//! below implement them. Each of these modules uses this module and those before it in the table:
//!
//! | module | contents |
//! |---|---|
//! | `agents` | adding, running and removing agents; their descriptors and timers |
//! | `pass` | the steps of a pass: inbox, descriptors, timers, ready queue |
//! | `call` | a call that waits for its result |
//! | `handle` | an agent's handle for other threads |
//! | `spawn` | tasks |
//! | `run` | the thread's loop: work, sleep, end |
//!
//! Agents are taken out of their slot while they run, and no cell stays borrowed during a call into foreign code. An agent's
//! actions may come back here: a push downstream may remove the agent, register another, or spawn a task.

mod agents;
mod call;
mod handle;
mod pass;
mod run;
mod spawn;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake as StdWake, Waker};
use std::time::Duration;
use std::{fmt, io};

use async_task::Runnable;
use slab::Slab;

pub use self::handle::AgentHandle;
use crate::ahead::Footprint;
use crate::counters::{Counters, CountersSnapshot};
use crate::cpus::CpuSet;
use crate::park::Park;
use crate::queued::Queued;
use crate::sync::lock;
use crate::sys::{self, Epoll, EventFd, clock_now_ns};
use crate::token::{INTERRUPT, Token};
use crate::watch::{Blocked, Watch};
use crate::wheel::{Precision, TimerKey, Wheel};

/// A command for a shard's thread.
pub(crate) type Command = Box<dyn FnOnce(&Local) + Send>;

/// A task that is ready to run.
#[derive(Debug)]
pub(crate) enum Wake {
    Agent(Token),
    Task(Runnable),
}

/// Handle of one thread of a context. It is cheap to clone. It does not keep the thread alive; a [`crate::Context`] does.
#[derive(Clone)]
pub struct Shard(Arc<Shared>);

/// Scheduling of a shard's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scheduling {
    /// CPUs that the thread may use; if empty, all CPUs of the process.
    pub affinity: CpuSet,
    /// 1 to [`PRIORITY_MAX`]: real-time priority (SCHED_FIFO), before all ordinary threads of the machine. 0: an ordinary thread.
    pub priority: u8,
}

/// The highest real-time priority of Linux.
pub const PRIORITY_MAX: u8 = 99;

/// CPUs that the machine does not have, or does not allow the process to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "affinity {asked}: CPU {missing} does not exist, or the process may not use it; expected CPUs of {allowed}"
)]
pub struct MissingCpus {
    /// The requested CPUs.
    pub asked: CpuSet,
    /// The requested CPUs that are missing.
    pub missing: CpuSet,
    /// The CPUs to choose from.
    pub allowed: CpuSet,
}

/// Why a shard's thread was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Threads or descriptors have run out.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// The machine does not have the CPUs, or this process may not use them.
    #[error(transparent)]
    Affinity(Box<MissingCpus>),
    /// The priority is out of range.
    #[error("priority {0}: must be 0 (none) to {PRIORITY_MAX}")]
    PriorityRange(u8),
    /// The system refuses the priority.
    #[error(
        "priority {priority}: {error}; the process needs the capability CAP_SYS_NICE, or a limit of real-time priorities \
         (ulimit -r, systemd's LimitRTPRIO=) of at least {priority}"
    )]
    Priority {
        /// The requested priority.
        priority: u8,
        /// The system's answer.
        error: io::Error,
    },
}

/// The shard has shut down: its context has no users left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the context has shut down")]
pub struct ShardClosed;

impl Shard {
    /// Returns a number that is unique among the process's shards.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the name of the shard's thread.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the context's wait; zero means no throttling.
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.0.wait_ns)
    }

    /// Whether the caller is on this shard's thread.
    #[inline]
    pub fn is_current(&self) -> bool {
        current_shard_id() == Some(self.0.id)
    }

    /// Returns the shard's counters.
    pub fn counters_snapshot(&self) -> CountersSnapshot {
        self.0.counters.snapshot()
    }

    /// Returns the recent lateness of slices ([`Lateness::recent_ns`](crate::Lateness)) in ns. This costs less than a snapshot of
    /// all counters.
    pub fn lateness_recent_ns(&self) -> u64 {
        self.0.counters.lateness_recent_ns()
    }

    /// Returns the start of the shard's thread, in ns of CLOCK_MONOTONIC.
    pub fn started_ns(&self) -> u64 {
        self.0.started_ns
    }

    /// Returns a handle that reports later whether the thread has ended.
    pub fn end(&self) -> ShardEnd {
        self.0.end.clone()
    }

    /// Returns the labels of the agents on this shard.
    pub fn agents(&self) -> Vec<String> {
        self.0.watch.labels()
    }

    /// Returns the label of the running agent, and the start of its run in ns of CLOCK_MONOTONIC. It does not wait for the shard,
    /// which may be blocked.
    pub fn running(&self) -> Option<(String, u64)> {
        self.0.watch.running()
    }

    /// Returns the last blockages that were longer than a slice, oldest first.
    pub fn blocked(&self) -> Vec<Blocked> {
        self.0.watch.log()
    }

    /// Returns the minimum duration of a blockage in ns: the length of a slice.
    pub fn blocked_limit_ns(&self) -> u64 {
        self.0.watch.limit_ns()
    }

    /// Logs a blockage within the run of an agent. The time of the blockage is not counted a second time as a blockage by the
    /// agent. Call this only on the shard's thread. Times are those of [`clock_now_ns`](crate::clock_now_ns).
    pub fn note_blocked(&self, blocked: Blocked) {
        debug_assert!(self.is_current(), "on another thread than the shard's");
        self.0.watch.discount(blocked.for_ns);
        self.note(blocked);
    }

    #[cold]
    fn note(&self, blocked: Blocked) {
        tracing::warn!(
            context_thread = self.name(),
            by = blocked.by,
            ms = blocked.for_ns / 1_000_000,
            "an agent blocked a context"
        );
        if let Some(hook) = HOOK.get() {
            hook(self, &blocked);
        }
        self.0.watch.note(blocked);
    }

    /// Runs `f` on the shard's thread, and interrupts the thread's sleep, even if the shard is throttled. If the caller is on the
    /// shard's own thread, `f` runs in the next pass.
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

    /// Returns the shard's only value of type `T`. The first call creates it.
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

    fn schedule(&self, task: Runnable) {
        self.wake(Wake::Task(task));
    }

    fn wake_agent(&self, token: Token) {
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
            // The shard has ended, and so has every task that had begun. So this is an agent's wake-up, or a task that never ran
            // and is `Send`. Dropping it cancels the task.
            Err(wake) => drop(wake),
        }
    }

    fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(crate) fn tick_ns(&self) -> u64 {
        if self.0.wait_ns == 0 {
            UNTHROTTLED_TICK_NS
        } else {
            self.0.wait_ns
        }
    }

    /// Runs a future on this shard. Dropping the task cancels it, and so does the end of the shard.
    ///
    /// This is for a task that must not outlive its owner. In contrast, a task of [`Context::spawn`](crate::Context::spawn)
    /// outlives its handle, and reports its panic.
    pub fn spawn<F>(&self, future: F) -> async_task::Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let shard = self.clone();
        let (runnable, task) =
            async_task::spawn(spawn::enlisted(future), move |r| shard.schedule(r));
        runnable.schedule();
        task
    }

    /// Runs `f` on the shard's thread and waits for its result. On the shard's own thread, `f` runs at once. While a shard's
    /// thread waits for another shard, it runs its own commands, so that two shards that call each other do not deadlock.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Local) -> R + Send + 'static,
    ) -> Result<R, ShardClosed> {
        if self.is_current() {
            return Local::with_current(f).ok_or(ShardClosed);
        }
        let (sender, reply) = call::reply();
        self.command(move |local| sender.send(f(local)))?;
        reply.wait()
    }

    pub(super) fn take_inbox(&self) -> (Vec<Command>, Vec<Wake>) {
        let (mut control, mut data) = lock(&self.0.spare).pop().unwrap_or_default();
        self.0.park.take(&mut control, &mut data);
        (control, data)
    }

    /// Returns the emptied vectors of `take_inbox` for reuse.
    fn recycle_inbox(&self, control: Vec<Command>, data: Vec<Wake>) {
        lock(&self.0.spare).push((control, data));
    }

    pub(super) fn take_control(&self) -> Vec<Command> {
        let mut control = Vec::new();
        self.0.park.take_control(&mut control);
        control
    }

    pub(super) fn drain_interrupt(&self) {
        self.0.interrupt.drain();
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

/// Calls `hook` on the shard's thread after a blockage. Only the first hook of a process is called.
pub fn on_blocked(hook: fn(&Shard, &Blocked)) {
    let _ = HOOK.set(hook);
}

static HOOK: OnceLock<fn(&Shard, &Blocked)> = OnceLock::new();

/// Returns the ID of the current thread's shard.
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
    /// Emptied inbox vectors, used only by the shard's thread (nested passes take two).
    spare: crate::sync::Mutex<Vec<(Vec<Command>, Vec<Wake>)>>,
    extensions: Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>,
    end: ShardEnd,
}

/// Reports whether a shard's thread has ended. It does not keep the shard's memory allocated.
#[derive(Debug, Clone, Default)]
pub struct ShardEnd(Arc<AtomicBool>);

impl ShardEnd {
    /// Returns `true` if nothing runs on the shard's thread any more. Everything that the thread has written is then visible.
    pub fn has_come(&self) -> bool {
        self.0.load(Acquire)
    }

    fn come(&self) {
        self.0.store(true, Release);
    }
}

/// State of the current thread's shard. Access it through [`Local::with_current`], a command or an agent's [`Cx`].
pub struct Local {
    shard: Shard,
    slots: RefCell<Slab<Slot>>,
    /// The addresses of the agents' memory, by slot number.
    footprints: RefCell<Vec<Footprint>>,
    next_generation: Cell<u32>,
    ready: RefCell<VecDeque<Wake>>,
    commands: RefCell<VecDeque<Command>>,
    /// Tasks that have begun and have not ended.
    tasks: RefCell<Slab<Waker>>,
    wheel: RefCell<Wheel<TimerTarget>>,
    fired: RefCell<Vec<TimerTarget>>,
    epoll: Epoll,
    /// Events of descriptors that are assumed ready in each slice.
    assumed: RefCell<Vec<u64>>,
    now_ns: Cell<u64>,
    /// Start of the next agent's run. It is the end of the previous run, so that one clock call serves both.
    mark_ns: Cell<u64>,
    /// The coarse clock after the last run of an agent.
    coarse_ns: Cell<u64>,
    slice: Cell<u64>,
    /// Whether a descriptor may be ready that this slice has not handled.
    must_poll: Cell<bool>,
    /// Whether the running agent expects no more in this slice.
    is_drained: Cell<bool>,
    closing: Cell<bool>,
}

impl Local {
    /// Calls `f` with the state of the current thread's shard; returns `None` on any other thread.
    pub fn with_current<R>(f: impl FnOnce(&Local) -> R) -> Option<R> {
        let local = CURRENT.with(|current| current.borrow().clone());
        local.as_deref().map(f)
    }

    /// Returns the current thread's shard.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Returns the time of CLOCK_MONOTONIC in ns, which is read once per pass.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Returns the number of the current slice. In a throttled context, a slice is a batch; otherwise it is a pass.
    pub fn slice(&self) -> u64 {
        self.slice.get()
    }

    pub(crate) fn add_sleeper(
        &self,
        deadline_ns: u64,
        precision: Precision,
        waker: Waker,
    ) -> TimerKey {
        self.wheel
            .borrow_mut()
            .insert(deadline_ns, precision, TimerTarget::Waker(waker))
    }

    pub(crate) fn cancel_sleeper(&self, key: TimerKey) {
        // Drop the waker after the borrow ends. The waker may be the last owner of a task, and the task may own other sleeps,
        // which borrow the wheel when they are dropped.
        let cancelled = self.wheel.borrow_mut().cancel(key);
        drop(cancelled);
    }

    pub(crate) fn enqueue(&self, wake: Wake) {
        self.ready.borrow_mut().push_back(wake);
    }

    pub(crate) fn enqueue_command(&self, command: Command) {
        self.commands.borrow_mut().push_back(command);
    }

    /// Ends the shard after the current pass.
    pub(crate) fn close(&self) {
        self.closing.set(true);
    }

    /// Runs a future on this shard; it need not be `Send`. Dropping the task cancels it, unlike with
    /// [`Context::spawn_local`](crate::Context::spawn_local).
    pub fn spawn_local<F>(&self, future: F) -> async_task::Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let shard = self.shard.clone();
        let (runnable, task) =
            async_task::spawn_local(spawn::enlisted(future), move |r| shard.schedule(r));
        runnable.schedule();
        task
    }

    /// Makes the calling thread the shard's thread while `body` runs.
    fn enter(shard: Shard, origin_ns: u64, tick_ns: u64, body: impl FnOnce(&Local)) {
        let epoll = match Epoll::new() {
            Ok(epoll) => epoll,
            Err(error) => {
                tracing::error!(%error, "cannot create an epoll instance for a context thread");
                return;
            }
        };
        if let Err(error) = epoll.add(shard.0.interrupt.raw(), sys::READABLE, INTERRUPT) {
            tracing::error!(%error, "cannot watch the event descriptor");
            return;
        }
        let local = Rc::new(Local {
            shard,
            slots: RefCell::new(Slab::new()),
            footprints: RefCell::new(Vec::new()),
            next_generation: Cell::new(1),
            ready: RefCell::new(VecDeque::new()),
            commands: RefCell::new(VecDeque::new()),
            tasks: RefCell::new(Slab::new()),
            wheel: RefCell::new(Wheel::new(origin_ns, tick_ns)),
            fired: RefCell::new(Vec::new()),
            epoll,
            assumed: RefCell::new(Vec::new()),
            now_ns: Cell::new(clock_now_ns()),
            mark_ns: Cell::new(clock_now_ns()),
            coarse_ns: Cell::new(sys::clock_coarse_ns()),
            slice: Cell::new(0),
            must_poll: Cell::new(true),
            is_drained: Cell::new(false),
            closing: Cell::new(false),
        });
        CURRENT.set(Some(local.clone()));
        body(&local);
        local.clear();
        CURRENT.set(None);
    }

    /// Ends the shard: drops all remaining agents and tasks here, on the shard's own thread.
    ///
    /// A task that is not `Send` must not be dropped on another thread, because async-task then aborts the process. A thread that
    /// wakes a task holds the task until it has put it into the inbox. So the inbox accepts wake-ups until no task is left. This
    /// takes only moments: every task has been woken, so each task is either here or held by a waking thread. Tasks that arrive
    /// after that have never run. They are `Send` and belong to the thread that spawned them, which may drop them.
    fn clear(&self) {
        let commands = self.shard.close_to_commands();
        commands.into_iter().for_each(drop_caught);
        self.commands.take().into_iter().for_each(drop_caught);
        let wakers = |tasks: &Slab<Waker>| -> Vec<Waker> {
            tasks.iter().map(|(_, waker)| waker.clone()).collect()
        };
        let tasks = wakers(&self.tasks.borrow());
        tasks.into_iter().for_each(Waker::wake);
        loop {
            self.remove_agents();
            let (_, mut data) = self.shard.take_inbox();
            data.extend(self.ready.take());
            if !data.is_empty() {
                data.into_iter().for_each(drop_caught);
            } else if self.tasks.borrow().is_empty() {
                break;
            } else {
                self.shard.sleep_until_woken(|| self.await_io(None));
            }
        }
        let (_, data) = self.shard.close_inbox();
        data.into_iter().for_each(drop_caught);
        // The drops above may have added agents.
        self.remove_agents();
        loop {
            let Some(wake) = self.ready.borrow_mut().pop_front() else {
                return;
            };
            drop_caught(wake);
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

/// The layout is fixed, so that the two fields that an event uses come first.
#[repr(C)]
struct Slot {
    /// `None` while the agent runs.
    agent: Option<Box<dyn Agent>>,
    /// Commands for the agent that arrived while it was in a call to another shard.
    deferred: Vec<Command>,
    generation: u32,
    wake: Arc<WakeAgent>,
    descriptors: Vec<Descriptor>,
    timer: Option<TimerKey>,
    /// Deadline of the timer, if any.
    deadline: (u64, Precision),
}

/// A descriptor that an agent has registered.
#[derive(Debug, Clone, Copy)]
struct Descriptor {
    fd: i32,
    key: u8,
    interest: Interest,
    /// Whether the agent runs for the descriptor in each slice, without watching it: see [`Cx::assume_ready`].
    is_assumed: bool,
}

enum TimerTarget {
    Agent(Token),
    Waker(Waker),
}

impl fmt::Debug for TimerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimerTarget")
    }
}

/// A resident of a shard. Only the shard's thread calls and drops it, so it needs no locks.
pub trait Agent: Any + Send {
    /// Handles a ready event. It must not block, because everything else on the shard waits. Limit the work of one call and
    /// request another with [`Cx::wake_self`].
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready);

    /// Called shortly before the agent runs. It should [`crate::prefetch`] memory that the run will use, apart from the agent
    /// itself. When a thread runs thousands of agents in turn, it would otherwise spend most of its time waiting for memory.
    #[inline]
    fn prefetch(&self) {}

    /// Returns a name for observers, such as the name of an element. It is read once, when the agent is added to its shard.
    fn label(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

/// Reason for an agent's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// The descriptor registered with this key is readable, writable, or has a pending error.
    Io(u8),
    /// The agent's waker was woken.
    Woken,
    /// The agent's timer is due.
    Timer,
}

/// Events to wait for on a descriptor; errors are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Data to read.
    Read,
    /// Room to write.
    Write,
}

/// Operations for a running agent.
#[derive(Debug)]
pub struct Cx<'a> {
    local: &'a Local,
    token: Token,
}

/// The wake-up of one agent, queued at most once.
#[derive(Debug)]
struct WakeAgent {
    shard: Shard,
    token: Token,
    queued: Queued,
}

impl WakeAgent {
    fn new(shard: Shard, token: Token) -> Self {
        WakeAgent {
            shard,
            token,
            queued: Queued::new(),
        }
    }

    fn notify(&self) {
        if self.queued.enqueue() {
            self.shard.wake_agent(self.token);
        }
    }

    /// Dequeues the wake-up before the shard runs the agent.
    fn dequeue(&self) {
        self.queued.dequeue();
    }
}

impl StdWake for WakeAgent {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

/// Drops a foreign value. If its drop panics, the shard continues.
fn drop_caught<T>(value: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a panic occurred while a context thread dropped a value");
    }
}

/// Timer granularity of a context without a wait.
const UNTHROTTLED_TICK_NS: u64 = 1_000_000;
