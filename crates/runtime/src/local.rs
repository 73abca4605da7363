//! A shard's own state: agents, ready queue, timers, reactor. Only its thread touches it.
//!
//! Agents are taken out of their slot while they run, and no cell stays borrowed during a call into foreign code: an
//! agent's actions may come back here (a push downstream that removes the agent, registers another, spawns a task).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use std::{fmt, io};

use async_task::Runnable;
use slab::Slab;

use crate::agent::{Agent, AgentHandle, Cx, Interest, Ready, WakeAgent};
use crate::ahead::{AHEAD, Place};
use crate::shard::{Command, Shard, Wake};
use crate::sys::{self, Epoll, Event, clock_now_ns};
use crate::task::enlisted;
use crate::watch::Blocked;
use crate::wheel::{Precision, TimerKey, Wheel};

/// The state of the current thread's shard. Reached through [`Local::with_current`], a command or an agent's [`Cx`].
pub struct Local {
    pub(crate) shard: Shard,
    slots: RefCell<Slab<Slot>>,
    /// Indexed by slot number.
    places: RefCell<Vec<Place>>,
    next_generation: Cell<u32>,
    ready: RefCell<VecDeque<Wake>>,
    commands: RefCell<VecDeque<Command>>,
    /// The tasks that have begun and not ended.
    tasks: RefCell<Slab<Waker>>,
    wheel: RefCell<Wheel<TimerTarget>>,
    fired: RefCell<Vec<TimerTarget>>,
    epoll: Epoll,
    now_ns: Cell<u64>,
    /// The start of the next agent's run: one clock call between two runs.
    mark_ns: Cell<u64>,
    slice: Cell<u64>,
    pub(crate) closing: Cell<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

impl Local {
    /// Makes the calling thread the shard's thread, while `body` runs.
    pub(crate) fn enter(shard: Shard, origin_ns: u64, tick_ns: u64, body: impl FnOnce(&Local)) {
        let epoll = match Epoll::new() {
            Ok(epoll) => epoll,
            Err(error) => {
                tracing::error!(%error, "no epoll instance for context thread");
                return;
            }
        };
        if let Err(error) = epoll.add(shard.interrupt_fd(), sys::READABLE, INTERRUPT) {
            tracing::error!(%error, "cannot watch the event descriptor");
            return;
        }
        let local = Rc::new(Local {
            shard,
            slots: RefCell::new(Slab::new()),
            places: RefCell::new(Vec::new()),
            next_generation: Cell::new(1),
            ready: RefCell::new(VecDeque::new()),
            commands: RefCell::new(VecDeque::new()),
            tasks: RefCell::new(Slab::new()),
            wheel: RefCell::new(Wheel::new(origin_ns, tick_ns)),
            fired: RefCell::new(Vec::new()),
            epoll,
            now_ns: Cell::new(clock_now_ns()),
            mark_ns: Cell::new(clock_now_ns()),
            slice: Cell::new(0),
            closing: Cell::new(false),
        });
        CURRENT.set(Some(local.clone()));
        body(&local);
        local.clear();
        CURRENT.set(None);
    }

    /// Calls `f` with the state of the current thread's shard; `None` on any other thread.
    pub fn with_current<R>(f: impl FnOnce(&Local) -> R) -> Option<R> {
        let local = CURRENT.with(|current| current.borrow().clone());
        local.as_deref().map(f)
    }

    /// The current thread's shard.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Nanoseconds of CLOCK_MONOTONIC, read once a pass.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// The number of the current slice: of the batch with throttling, else of the pass.
    pub fn slice(&self) -> u64 {
        self.slice.get()
    }

    pub(crate) fn begin_slice(&self) {
        self.slice.set(self.slice.get() + 1);
    }

    /// Adds an agent to this shard. It does not run until a wake-up.
    pub fn add_agent<A: Agent>(&self, agent: A) -> AgentHandle<A> {
        let label = agent.label();
        let generation = self.next_generation.get();
        self.next_generation.set((generation + 1) & GENERATION_MASK);
        let mut slots = self.slots.borrow_mut();
        let capacity = slots.capacity();
        let entry = slots.vacant_entry();
        let token = Token {
            index: entry.key() as u32,
            generation,
        };
        let wake = Arc::new(WakeAgent::new(self.shard.clone(), token));
        entry.insert(Slot {
            agent: Some(Box::new(agent)),
            generation,
            wake: wake.clone(),
            deferred: Vec::new(),
            fds: Vec::new(),
            timer: None,
            deadline: (0, Precision::About),
        });
        self.shard.counters().agents.set(slots.len() as u64);
        self.note_place(&slots, token, slots.capacity() != capacity);
        let watch = self.shard.watch();
        watch.set_label(token.index as usize, Some(label));
        AgentHandle::new(self.shard.clone(), token, wake)
    }

    /// A new agent has this slot; `moved`: all slots have moved in memory.
    fn note_place(&self, slots: &Slab<Slot>, token: Token, moved: bool) {
        let mut places = self.places.borrow_mut();
        let index = token.index as usize;
        if let Some(slot) = slots.get(index)
            && let Some(agent) = slot.agent.as_deref()
        {
            let length = places.len().max(index + 1);
            places.resize(length, Place::default());
            places[index] = Place::new(slot, agent, &*slot.wake);
        }
        if moved {
            for (index, slot) in slots {
                places[index].move_slot(slot);
            }
        }
    }

    /// Runs a future on this shard alone; it need not be `Send`. Dropping the task cancels it.
    pub fn spawn_local<F>(&self, future: F) -> async_task::Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let shard = self.shard.clone();
        let (runnable, task) =
            async_task::spawn_local(enlisted(future), move |r| shard.schedule(r));
        runnable.schedule();
        task
    }

    pub(crate) fn enlist_task(&self, waker: Waker) -> usize {
        self.tasks.borrow_mut().insert(waker)
    }

    pub(crate) fn discharge_task(&self, key: usize) -> Option<Waker> {
        self.tasks.borrow_mut().try_remove(key)
    }

    pub(crate) fn remove_agent(&self, token: Token) {
        let slot = {
            let mut slots = self.slots.borrow_mut();
            match slots.get(token.index as usize) {
                Some(slot) if slot.generation == token.generation => {
                    slots.remove(token.index as usize)
                }
                _ => return,
            }
        };
        self.shard.watch().set_label(token.index as usize, None);
        for fd in &slot.fds {
            self.delete_fd(*fd);
        }
        if let Some(key) = slot.timer {
            self.wheel.borrow_mut().cancel(key);
        }
        self.shard
            .counters()
            .agents
            .set(self.slots.borrow().len() as u64);
        drop_caught(slot);
    }

    /// Runs `f` with the agent, unless it is gone or out.
    pub(crate) fn with_agent(&self, token: Token, f: impl FnOnce(&mut dyn Agent, &mut Cx<'_>)) {
        let Some(mut agent) = self.take_out(token) else {
            return;
        };
        let mut cx = Cx { local: self, token };
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut *agent, &mut cx)));
        match result {
            Ok(()) => self.put_back(token, agent),
            Err(_) => {
                tracing::error!(
                    shard = self.shard.name(),
                    "an agent panicked and is removed"
                );
                self.remove_agent(token);
                drop_caught(agent);
            }
        }
    }

    fn take_out(&self, token: Token) -> Option<Box<dyn Agent>> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(token.index as usize)?;
        if slot.generation != token.generation {
            return None;
        }
        slot.agent.take()
    }

    /// Returns the agent to its slot; drops it if it was removed meanwhile.
    fn put_back(&self, token: Token, agent: Box<dyn Agent>) {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(token.index as usize) {
            Some(slot) if slot.generation == token.generation => {
                slot.agent = Some(agent);
                if !slot.deferred.is_empty() {
                    let mut commands = self.commands.borrow_mut();
                    // In front: later ones for this agent may be queued already.
                    for command in slot.deferred.drain(..).rev() {
                        commands.push_front(command);
                    }
                }
            }
            _ => {
                drop(slots);
                drop_caught(agent);
            }
        }
    }

    /// Runs a command for an agent, or postpones it while the agent is out. Dropped if the agent is gone.
    pub(crate) fn with_agent_later(
        &self,
        token: Token,
        f: impl FnOnce(&mut dyn Agent, &mut Cx<'_>) + Send + 'static,
    ) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(token.index as usize)
            && slot.generation == token.generation
            && slot.agent.is_none()
        {
            slot.deferred
                .push(Box::new(move |local| local.with_agent_later(token, f)));
            return;
        }
        self.with_agent(token, f);
    }

    fn run_agent(&self, token: Token, ready: Ready) {
        let watch = self.shard.watch();
        let begin_ns = self.mark_ns.get();
        watch.begin(token.index, begin_ns);
        self.with_agent(token, |agent, cx| agent.run(cx, ready));
        watch.end();
        let end_ns = clock_now_ns();
        self.mark_ns.set(end_ns);
        let for_ns = end_ns.saturating_sub(begin_ns);
        if watch.is_too_long(for_ns) {
            self.note_blocked(token, begin_ns, watch.unnoted_ns(for_ns));
        }
    }

    #[cold]
    fn note_blocked(&self, token: Token, at_ns: u64, for_ns: u64) {
        let watch = self.shard.watch();
        if !watch.is_too_long(for_ns) {
            return;
        }
        let by = watch.label(token.index as usize).unwrap_or_default();
        watch.note(&self.shard, Blocked { by, at_ns, for_ns });
    }

    /// Time up to here does not count as the next agent's.
    fn mark(&self) {
        self.mark_ns.set(clock_now_ns());
    }

    pub(crate) fn waker_of(&self, token: Token) -> Waker {
        match self.slots.borrow().get(token.index as usize) {
            Some(slot) if slot.generation == token.generation => slot.wake.clone().into(),
            _ => Waker::noop().clone(),
        }
    }

    pub(crate) fn wake_agent(&self, token: Token) {
        let wake = match self.slots.borrow().get(token.index as usize) {
            Some(slot) if slot.generation == token.generation => slot.wake.clone(),
            _ => return,
        };
        wake.notify();
    }

    pub(crate) fn register(
        &self,
        token: Token,
        fd: i32,
        key: u8,
        interest: Interest,
    ) -> io::Result<()> {
        let events = match interest {
            Interest::Read => sys::READABLE,
            Interest::Write => sys::WRITABLE,
        };
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(token.index as usize) {
            Some(slot) if slot.generation == token.generation => {
                self.epoll.add(fd, events, token.to_event(key))?;
                slot.fds.push(fd);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn deregister(&self, token: Token, fd: i32) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(token.index as usize)
            && slot.generation == token.generation
            && let Some(i) = slot.fds.iter().position(|known| *known == fd)
        {
            slot.fds.swap_remove(i);
            self.delete_fd(fd);
        }
    }

    fn delete_fd(&self, fd: i32) {
        if let Err(error) = self.epoll.delete(fd) {
            tracing::warn!(fd, %error, "descriptor was closed before it was unregistered");
        }
    }

    pub(crate) fn set_timer(&self, token: Token, deadline_ns: u64, precision: Precision) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(token.index as usize) else {
            return;
        };
        if slot.generation != token.generation {
            return;
        }
        let pending_until = slot.timer.map(|_| slot.deadline.0);
        slot.deadline = (deadline_ns, precision);
        match pending_until {
            // Moved later: the entry stays and is checked again when it fires.
            Some(pending) if pending <= deadline_ns => {}
            _ => {
                let mut wheel = self.wheel.borrow_mut();
                if let Some(key) = slot.timer.take() {
                    wheel.cancel(key);
                }
                slot.timer = Some(wheel.insert(deadline_ns, precision, TimerTarget::Agent(token)));
            }
        }
    }

    pub(crate) fn clear_timer(&self, token: Token) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(token.index as usize)
            && slot.generation == token.generation
            && let Some(key) = slot.timer.take()
        {
            self.wheel.borrow_mut().cancel(key);
        }
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
        // Dropped after the borrow: a waker may be the last hold on a task with sleeps of its own.
        let cancelled = self.wheel.borrow_mut().cancel(key);
        drop(cancelled);
    }

    pub(crate) fn count_packets(&self, packets: u64) {
        self.shard.counters().packets.add(packets);
    }

    pub(crate) fn enqueue(&self, wake: Wake) {
        self.ready.borrow_mut().push_back(wake);
    }

    pub(crate) fn enqueue_command(&self, command: Command) {
        self.commands.borrow_mut().push_back(command);
    }

    // The following steps make up the shard's loop; `shard.rs` calls them.

    pub(crate) fn read_clock(&self) -> u64 {
        let now = clock_now_ns();
        self.now_ns.set(now);
        self.mark_ns.set(now);
        now
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || self.has_commands()
    }

    /// Whether commands added further commands.
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.borrow().is_empty()
    }

    pub(crate) fn next_timer_ns(&self) -> Option<u64> {
        self.wheel.borrow().next_deadline_ns()
    }

    /// Takes other threads' items and runs the commands.
    pub(crate) fn take_inbox(&self) {
        let (mut control, mut data) = self.shard.take_inbox();
        self.ready.borrow_mut().extend(data.drain(..));
        self.commands.borrow_mut().extend(control.drain(..));
        self.shard.recycle_inbox(control, data);
        self.run_commands();
    }

    /// Takes the commands only.
    pub(crate) fn take_control(&self) {
        self.commands.borrow_mut().extend(self.shard.take_control());
        self.run_commands();
    }

    /// One queue for all commands, also for those fetched in the middle of a command that waits for another shard: so
    /// they stay in order.
    fn run_commands(&self) {
        // Bounded: newly added commands wait for the next pass.
        let count = self.commands.borrow().len();
        if count == 0 {
            return;
        }
        // The last pass of a context that slept may be long ago.
        self.read_clock();
        for _ in 0..count {
            let Some(command) = self.commands.borrow_mut().pop_front() else {
                return;
            };
            self.run_command(command);
        }
    }

    fn run_command(&self, command: Command) {
        if catch_unwind(AssertUnwindSafe(|| command(self))).is_err() {
            tracing::error!(shard = self.shard.name(), "a command panicked");
        }
    }

    /// Waits for descriptors, then calls `awake`, then runs the agents of the ready ones. Returns the number of events.
    pub(crate) fn poll_io(
        &self,
        events: &mut [MaybeUninit<Event>],
        timeout: Option<Duration>,
        awake: impl FnOnce(),
    ) -> usize {
        let events = self.epoll.wait(events, timeout).unwrap_or_else(|error| {
            tracing::error!(%error, "epoll");
            &[]
        });
        awake();
        // A command from before a packet runs before the packet is read: after a pause, nothing more arrives.
        self.take_control();
        if !events.is_empty() {
            self.mark();
        }
        let mut count = 0;
        for (i, event) in events.iter().enumerate() {
            let rest = &events[i..];
            self.look_ahead(WakenBy::Descriptor, |ahead| {
                Some(Token::from_event(rest.get(ahead)?.u64).0)
            });
            let data = event.u64;
            if data == INTERRUPT {
                self.shard.drain_interrupt();
                continue;
            }
            let (token, key) = Token::from_event(data);
            self.run_agent(token, Ready::Io(key));
            count += 1;
        }
        count
    }

    /// Prefetches the memory of the next agents while this one runs: first the slot, then the agent, then the addresses
    /// that the agent names.
    #[inline]
    fn look_ahead(&self, by: WakenBy, token: impl Fn(usize) -> Option<Token>) {
        {
            let places = self.places.borrow();
            let place = |ahead: usize| places.get(token(ahead)?.index as usize);
            if let Some(place) = place(3 * AHEAD) {
                place.prefetch_slot();
            }
            if let Some(place) = place(2 * AHEAD) {
                place.prefetch_agent();
                if by == WakenBy::Waker {
                    place.prefetch_wake();
                }
            }
        }
        let slots = self.slots.borrow();
        let slot = |ahead: usize| slots.get(token(ahead)?.index as usize);
        if let Some(agent) = slot(AHEAD).and_then(|slot| slot.agent.as_deref()) {
            agent.prefetch();
        }
    }

    /// Sleeps until a descriptor is ready, an interrupt or the time-out; runs nothing.
    /// `true`: an agent's descriptor is ready.
    pub(crate) fn await_io(&self, timeout: Option<Duration>) -> bool {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let events = self.epoll.wait(&mut events, timeout).unwrap_or(&[]);
        let mut ready = false;
        for event in events {
            match event.u64 {
                INTERRUPT => self.shard.drain_interrupt(),
                _ => ready = true,
            }
        }
        ready
    }

    /// Fires the timers that are due. Returns how many.
    pub(crate) fn run_timers(&self, now_ns: u64) -> usize {
        let mut fired = self.fired.take();
        self.wheel
            .borrow_mut()
            .advance(now_ns, |target| fired.push(target));
        let count = fired.len();
        for target in fired.drain(..) {
            match target {
                TimerTarget::Waker(waker) => waker.wake(),
                TimerTarget::Agent(token) => self.agent_timer(token, now_ns),
            }
        }
        self.fired.replace(fired);
        count
    }

    fn agent_timer(&self, token: Token, now_ns: u64) {
        {
            let mut slots = self.slots.borrow_mut();
            let Some(slot) = slots.get_mut(token.index as usize) else {
                return;
            };
            if slot.generation != token.generation {
                return;
            }
            slot.timer = None;
            let (deadline_ns, precision) = slot.deadline;
            let mut wheel = self.wheel.borrow_mut();
            // It was moved later while it waited. (About may fire half a tick early.)
            let early_ns = if precision == Precision::About {
                self.shard.tick_ns() / 2
            } else {
                0
            };
            if deadline_ns > now_ns + early_ns {
                slot.timer = Some(wheel.insert(deadline_ns, precision, TimerTarget::Agent(token)));
                return;
            }
        }
        self.run_agent(token, Ready::Timer);
    }

    /// Runs the agents that were ready at the call; those they wake wait for the next pass.
    pub(crate) fn run_ready(&self) -> usize {
        let count = self.ready.borrow().len();
        self.shard.counters().ready_max.raise_to(count as u64);
        for _ in 0..count {
            {
                let ready = self.ready.borrow();
                self.look_ahead(WakenBy::Waker, |ahead| match ready.get(ahead)? {
                    Wake::Agent(token) => Some(*token),
                    Wake::Task(_) => None,
                });
            }
            let Some(wake) = self.ready.borrow_mut().pop_front() else {
                break;
            };
            match wake {
                Wake::Agent(token) => {
                    if let Some(slot) = self.slots.borrow().get(token.index as usize)
                        && slot.generation == token.generation
                    {
                        slot.wake.dequeue();
                    }
                    self.run_agent(token, Ready::Woken);
                }
                Wake::Task(task) => {
                    run_task(task);
                    self.mark();
                }
            }
        }
        count
    }

    /// The shard ends: drops all remaining residents here, on its own thread.
    ///
    /// A task that need not be `Send` must not be dropped elsewhere (async-task aborts the process), and a thread that
    /// wakes a task holds the task until the inbox has taken it. So the inbox takes wake-ups until no task is left. That is
    /// a matter of moments: every task has been woken, so each is here or in the hands of such a thread. Those that come
    /// later have never run. They are the spawner's own and `Send`, and it may drop them.
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
        // What their drops have added.
        self.remove_agents();
        loop {
            let Some(wake) = self.ready.borrow_mut().pop_front() else {
                return;
            };
            drop_caught(wake);
        }
    }

    fn remove_agents(&self) {
        loop {
            let tokens: Vec<Token> = self
                .slots
                .borrow()
                .iter()
                .map(|(index, slot)| Token {
                    index: index as u32,
                    generation: slot.generation,
                })
                .collect();
            if tokens.is_empty() {
                break;
            }
            tokens
                .into_iter()
                .for_each(|token| self.remove_agent(token));
        }
    }
}

/// Drops foreign values; their panic must not stop the shard.
fn drop_caught<T>(value: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("panic while a context thread dropped a value");
    }
}

fn run_task(task: Runnable) {
    // Tasks pass their panics to the task that awaits them (async-task `propagate_panic` is off, so the
    // panic arrives here, once).
    if catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
        tracing::error!("a task panicked");
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

/// Laid out by hand: an event touches the first two fields only.
#[repr(C)]
struct Slot {
    /// Out while it runs.
    agent: Option<Box<dyn Agent>>,
    /// Commands for it that arrived while it was out, in a call to another shard.
    deferred: Vec<Command>,
    generation: u32,
    wake: Arc<WakeAgent>,
    fds: Vec<i32>,
    timer: Option<TimerKey>,
    /// Of the timer, if there is one.
    deadline: (u64, Precision),
}

/// Reasons for the next agents' runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakenBy {
    Descriptor,
    Waker,
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

/// Names an agent on its shard. The generation tells it from earlier users of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    index: u32,
    generation: u32,
}

impl Token {
    fn to_event(self, key: u8) -> u64 {
        u64::from(key) << 56 | u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn from_event(data: u64) -> (Self, u8) {
        let generation = (data >> 32) as u32 & GENERATION_MASK;
        (
            Token {
                index: data as u32,
                generation,
            },
            (data >> 56) as u8,
        )
    }
}

/// 24 bits, so that a token and a key fit the 64 bits of an epoll event.
const GENERATION_MASK: u32 = (1 << 24) - 1;
/// The event of the interrupt descriptor; no agent has this token (its generation would be -1).
const INTERRUPT: u64 = u64::MAX;
