//! The steps of a pass: items from other threads, descriptors, timers, ready agents and tasks.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use async_task::Runnable;

use super::{Command, Local, Ready, TimerTarget, Wake};
use crate::ahead::AHEAD;
use crate::sys::{Event, clock_now_ns};
use crate::token::{INTERRUPT, Token};

impl Local {
    // The following steps make up the shard's loop; `run.rs` calls them.

    pub(super) fn read_clock(&self) -> u64 {
        let now = clock_now_ns();
        self.now_ns.set(now);
        self.mark_ns.set(now);
        now
    }

    pub(super) fn begin_slice(&self) {
        self.slice.set(self.slice.get() + 1);
        self.must_poll.set(true);
    }

    /// Whether descriptors may be ready that this slice has not handled.
    pub(super) fn must_poll(&self) -> bool {
        self.must_poll.get()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || self.has_commands()
    }

    /// Whether commands have added further commands.
    pub(super) fn has_commands(&self) -> bool {
        !self.commands.borrow().is_empty()
    }

    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        self.wheel.borrow().next_deadline_ns()
    }

    /// Takes the items that other threads have sent, and runs the commands among them.
    pub(super) fn take_inbox(&self) {
        let (mut control, mut data) = self.shard.take_inbox();
        self.ready.borrow_mut().extend(data.drain(..));
        self.commands.borrow_mut().extend(control.drain(..));
        self.shard.recycle_inbox(control, data);
        self.run_commands();
    }

    /// Takes only the commands, and runs them.
    pub(super) fn take_control(&self) {
        self.commands.borrow_mut().extend(self.shard.take_control());
        self.run_commands();
    }

    /// Runs the commands from one queue. While a command waits for another shard, further commands may be fetched. They are added
    /// to the same queue, so that all commands stay in order.
    fn run_commands(&self) {
        // Bounded: newly added commands wait for the next pass.
        let count = self.commands.borrow().len();
        if count == 0 {
            return;
        }
        // If the context was asleep, its last pass may be long ago.
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

    /// Whether descriptors are assumed ready in the next slice.
    pub(super) fn assumes_ready(&self) -> bool {
        !self.assumed.borrow().is_empty()
    }

    /// Runs the agents of descriptors that are assumed ready. Call it once per slice. Returns the number of runs.
    pub(super) fn run_assumed(&self) -> usize {
        let count = self.assumed.borrow().len();
        let mut next = 0;
        for _ in 0..count {
            let Some(event) = self.assumed.borrow().get(next).copied() else {
                break;
            };
            {
                let assumed = self.assumed.borrow();
                self.look_ahead(WakenBy::Descriptor, |ahead| {
                    Some(Token::from_event(*assumed.get(next + ahead)?).0)
                });
            }
            let (token, key) = Token::from_event(event);
            self.run_agent(token, Ready::Io(key));
            // If this agent's descriptor is watched again, another event has taken its place in the list.
            if self.assumed.borrow().get(next) == Some(&event) {
                next += 1;
            }
        }
        count
    }

    /// Waits for descriptors, then calls `awake`, then runs the agents of the ready ones. Returns the number of events.
    pub(super) fn poll_io(
        &self,
        events: &mut [MaybeUninit<Event>],
        timeout: Option<Duration>,
        awake: impl FnOnce(),
    ) -> usize {
        let room = events.len();
        let events = self.epoll.wait(events, timeout).unwrap_or_else(|error| {
            tracing::error!(%error, "epoll_wait failed");
            &[]
        });
        // If the array is full, there may be more events.
        self.must_poll.set(events.len() == room);
        awake();
        // A command that was sent before a packet arrived must run before the packet is read. So, for example, no packet is forwarded after a command to pause.
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
            self.is_drained.set(false);
            self.run_agent(token, Ready::Io(key));
            if !self.is_drained.get() {
                self.must_poll.set(true);
            }
            count += 1;
        }
        count
    }

    /// Prefetches the memory of the next agents while this one runs: first the slot, then the agent, then the addresses that the
    /// agent itself returns.
    #[inline]
    fn look_ahead(&self, by: WakenBy, token: impl Fn(usize) -> Option<Token>) {
        {
            let footprints = self.footprints.borrow();
            let footprint = |ahead: usize| footprints.get(token(ahead)?.index as usize);
            if let Some(footprint) = footprint(3 * AHEAD) {
                footprint.prefetch_slot();
            }
            if let Some(footprint) = footprint(2 * AHEAD) {
                footprint.prefetch_agent();
                if by == WakenBy::Waker {
                    footprint.prefetch_wake();
                }
            }
        }
        let slots = self.slots.borrow();
        let slot = |ahead: usize| slots.get(token(ahead)?.index as usize);
        if let Some(agent) = slot(AHEAD).and_then(|slot| slot.agent.as_deref()) {
            agent.prefetch();
        }
    }

    /// Sleeps until a descriptor is ready, an interrupt arrives or the time is out. Runs no agent. Returns `true` if an agent's
    /// descriptor is ready.
    pub(super) fn await_io(&self, timeout: Option<Duration>) -> bool {
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

    /// Fires the timers that are due. Returns their number.
    pub(super) fn run_timers(&self, now_ns: u64) -> usize {
        let mut fired = self.fired.take();
        self.wheel
            .borrow_mut()
            .advance(now_ns, |target| fired.push(target));
        let count = fired.len();
        let mut rest = fired.drain(..);
        while let Some(target) = rest.next() {
            if let Some(TimerTarget::Agent(token)) = rest.as_slice().get(3 * AHEAD)
                && let Some(footprint) = self.footprints.borrow().get(token.index as usize)
            {
                footprint.prefetch_slot();
            }
            match target {
                TimerTarget::Waker(waker) => waker.wake(),
                TimerTarget::Agent(token) => self.agent_timer(token, now_ns),
            }
        }
        drop(rest);
        self.fired.replace(fired);
        count
    }

    /// Runs the agents that were ready at the start of the call. Agents that are woken during the call wait for the next pass.
    pub(super) fn run_ready(&self) -> usize {
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
}

fn run_task(task: Runnable) {
    // With async-task's `propagate_panic` off, a panic of the future comes out of `run`.
    if catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
        tracing::error!("a task panicked");
    }
}

/// Reasons for the next agents' runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakenBy {
    Descriptor,
    Waker,
}
