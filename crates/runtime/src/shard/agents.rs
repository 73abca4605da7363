//! Agents of a shard: adding, running and removing them; their descriptors and timers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::{
    Agent, AgentHandle, Cx, Descriptor, Interest, Local, Ready, Slot, TimerTarget, WakeAgent,
    drop_caught,
};
use crate::ahead::Footprint;
use crate::sys::{self, clock_now_ns};
use crate::token::{GENERATION_MASK, Token};
use crate::watch::Blocked;
use crate::wheel::Precision;

impl Cx<'_> {
    /// Returns the time of CLOCK_MONOTONIC in ns, which is read once per pass.
    pub fn now_ns(&self) -> u64 {
        self.local.now_ns()
    }

    /// Returns the shard's own state.
    pub fn local(&self) -> &Local {
        self.local
    }

    /// Returns a waker for this agent, which works on any thread. Cloning it does not allocate.
    pub fn waker(&self) -> Waker {
        self.local.waker_of(self.token)
    }

    /// Runs this agent again in the next pass.
    pub fn wake_self(&self) {
        self.local.wake_agent(self.token);
    }

    /// Calls the agent with [`Ready::Io`]`(key)` whenever `fd` is ready (level-triggered). The agent owns the descriptor and
    /// keeps it open until [`Cx::deregister`] or its own drop.
    pub fn register(&self, fd: BorrowedFd<'_>, key: u8, interest: Interest) -> io::Result<()> {
        self.local
            .register(self.token, fd.as_raw_fd(), key, interest)
    }

    /// Records, in a run with [`Ready::Io`], that the agent expects nothing more on its descriptors in this slice. If more
    /// arrives nevertheless, the agent runs in the next slice. If all agents with ready descriptors call this, the shard does not
    /// ask the kernel a second time in this slice.
    #[inline]
    pub fn expect_no_more(&self) {
        self.local.is_drained.set(true);
    }

    /// Records, in any run, that the agent expects more on its descriptors. The shard then asks the kernel again in this slice.
    #[inline]
    pub fn expect_more(&self) {
        self.local.must_poll.set(true);
    }

    /// Runs the agent for `fd` once in each slice from now on, whether `fd` is ready or not, instead of watching `fd`. If a
    /// descriptor is ready in nearly every slice, this costs less than asking the kernel. Returns `false` if the context has no
    /// wait, because its slices are too short for this; `fd` is then still watched.
    pub fn assume_ready(&self, fd: BorrowedFd<'_>) -> bool {
        self.local.assume_ready(self.token, fd.as_raw_fd())
    }

    /// Watches `fd` again, after [`Cx::assume_ready`].
    ///
    /// # Errors
    /// Fails if the kernel refuses to watch `fd`. The agent then still runs for `fd` in each slice.
    pub fn await_ready(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.local.await_ready(self.token, fd.as_raw_fd())
    }

    /// Stops the runs for `fd`. A run for an event that this pass has already fetched may still come. So an agent with several
    /// descriptors must ignore a key that it deregistered in the same pass. The call has no effect if `fd` is not registered.
    pub fn deregister(&self, fd: BorrowedFd<'_>) {
        self.local.deregister(self.token, fd.as_raw_fd());
    }

    /// Sets the agent's only timer, replacing the earlier deadline. Moving it later costs nothing.
    pub fn set_timer(&self, deadline_ns: u64, precision: Precision) {
        self.local.set_timer(self.token, deadline_ns, precision);
    }

    /// Cancels the agent's timer.
    pub fn clear_timer(&self) {
        self.local.clear_timer(self.token);
    }

    /// Adds to the shard's packet counter.
    pub fn count_packets(&self, packets: u64) {
        self.local.count_packets(packets);
    }
}

impl Local {
    /// Adds an agent. It does not run until a wake-up.
    pub(super) fn insert_agent(&self, agent: Box<dyn Agent>) -> (Token, Arc<WakeAgent>) {
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
            agent: Some(agent),
            generation,
            wake: wake.clone(),
            deferred: Vec::new(),
            descriptors: Vec::new(),
            timer: None,
            deadline: (0, Precision::About),
        });
        self.shard.counters().agents.set(slots.len() as u64);
        self.note_footprint(&slots, token, slots.capacity() != capacity);
        let watch = &self.shard.0.watch;
        watch.set_label(token.index as usize, Some(label));
        (token, wake)
    }

    /// Stores the addresses of a new agent in this slot. `moved`: whether all slots have moved in memory.
    fn note_footprint(&self, slots: &Slab<Slot>, token: Token, moved: bool) {
        let mut footprints = self.footprints.borrow_mut();
        let index = token.index as usize;
        if let Some(slot) = slots.get(index)
            && let Some(agent) = slot.agent.as_deref()
        {
            let length = footprints.len().max(index + 1);
            footprints.resize(length, Footprint::default());
            footprints[index] = Footprint::new(slot, agent, &*slot.wake);
        }
        if moved {
            for (index, slot) in slots {
                footprints[index].move_slot(slot);
            }
        }
    }

    pub(super) fn remove_agent(&self, token: Token) {
        let slot = {
            let mut slots = self.slots.borrow_mut();
            match slots.get(token.index as usize) {
                Some(slot) if slot.generation == token.generation => {
                    slots.remove(token.index as usize)
                }
                _ => return,
            }
        };
        self.shard.0.watch.set_label(token.index as usize, None);
        for descriptor in &slot.descriptors {
            self.forget(token, *descriptor);
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

    pub(super) fn remove_agents(&self) {
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

    /// Runs `f` with the agent, unless it has been removed or is already running.
    fn with_agent(&self, token: Token, f: impl FnOnce(&mut dyn Agent, &mut Cx<'_>)) {
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
                    "an agent is removed, because it panicked"
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

    /// Returns the agent to its slot, or drops it if it has been removed.
    fn put_back(&self, token: Token, agent: Box<dyn Agent>) {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(token.index as usize) {
            Some(slot) if slot.generation == token.generation => {
                slot.agent = Some(agent);
                if !slot.deferred.is_empty() {
                    let mut commands = self.commands.borrow_mut();
                    // The deferred commands go to the front, because later commands for this agent may already be queued.
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

    /// Runs a command for an agent, or postpones it while the agent is out of its slot. Drops the command if the agent has been
    /// removed.
    pub(super) fn with_agent_later(
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

    pub(super) fn run_agent(&self, token: Token, ready: Ready) {
        let watch = &self.shard.0.watch;
        let begin_ns = self.mark_ns.get();
        watch.begin(token.index, begin_ns);
        self.with_agent(token, |agent, cx| agent.run(cx, ready));
        watch.end();
        // The exact clock is read only if the coarse one advanced during the run.
        if watch.reads_coarse_clock() {
            let coarse_ns = sys::clock_coarse_ns();
            if self.coarse_ns.replace(coarse_ns) == coarse_ns {
                return;
            }
        }
        let end_ns = clock_now_ns();
        self.mark_ns.set(end_ns);
        let for_ns = end_ns.saturating_sub(begin_ns);
        if watch.is_too_long(for_ns) {
            self.note_blocked(token, begin_ns, watch.unnoted_ns(for_ns));
        }
    }

    #[cold]
    fn note_blocked(&self, token: Token, at_ns: u64, for_ns: u64) {
        let watch = &self.shard.0.watch;
        if !watch.is_too_long(for_ns) {
            return;
        }
        let by = watch.label(token.index as usize).unwrap_or_default();
        self.shard.note(Blocked { by, at_ns, for_ns });
    }

    /// Starts to measure the next agent's run now, so that earlier work does not count for that agent.
    pub(super) fn mark(&self) {
        self.mark_ns.set(clock_now_ns());
    }

    fn waker_of(&self, token: Token) -> Waker {
        match self.slots.borrow().get(token.index as usize) {
            Some(slot) if slot.generation == token.generation => slot.wake.clone().into(),
            _ => Waker::noop().clone(),
        }
    }

    fn wake_agent(&self, token: Token) {
        let wake = match self.slots.borrow().get(token.index as usize) {
            Some(slot) if slot.generation == token.generation => slot.wake.clone(),
            _ => return,
        };
        wake.notify();
    }

    fn register(&self, token: Token, fd: i32, key: u8, interest: Interest) -> io::Result<()> {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slot_of(&mut slots, token) else {
            return Ok(());
        };
        let descriptor = Descriptor {
            fd,
            key,
            interest,
            is_assumed: false,
        };
        self.watch(token, descriptor)?;
        slot.descriptors.push(descriptor);
        Ok(())
    }

    fn deregister(&self, token: Token, fd: i32) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slot_of(&mut slots, token)
            && let Some(i) = slot.descriptors.iter().position(|known| known.fd == fd)
        {
            let descriptor = slot.descriptors.swap_remove(i);
            self.forget(token, descriptor);
        }
    }

    fn assume_ready(&self, token: Token, fd: i32) -> bool {
        if self.shard.0.wait_ns == 0 {
            return false;
        }
        let mut slots = self.slots.borrow_mut();
        if let Some(known) = descriptor_of(&mut slots, token, fd)
            && !known.is_assumed
        {
            known.is_assumed = true;
            self.delete_fd(fd);
            let mut assumed = self.assumed.borrow_mut();
            assumed.push(token.to_event(known.key));
        }
        true
    }

    fn await_ready(&self, token: Token, fd: i32) -> io::Result<()> {
        let mut slots = self.slots.borrow_mut();
        if let Some(known) = descriptor_of(&mut slots, token, fd)
            && known.is_assumed
        {
            self.watch(token, *known)?;
            known.is_assumed = false;
            self.assume_no_more(token.to_event(known.key));
        }
        Ok(())
    }

    fn watch(&self, token: Token, descriptor: Descriptor) -> io::Result<()> {
        let events = match descriptor.interest {
            Interest::Read => sys::READABLE,
            Interest::Write => sys::WRITABLE,
        };
        let event = token.to_event(descriptor.key);
        self.epoll.add(descriptor.fd, events, event)?;
        self.must_poll.set(true);
        Ok(())
    }

    fn forget(&self, token: Token, descriptor: Descriptor) {
        if descriptor.is_assumed {
            self.assume_no_more(token.to_event(descriptor.key));
        } else {
            self.delete_fd(descriptor.fd);
        }
    }

    fn assume_no_more(&self, event: u64) {
        let mut assumed = self.assumed.borrow_mut();
        if let Some(i) = assumed.iter().position(|known| *known == event) {
            assumed.swap_remove(i);
        }
    }

    fn delete_fd(&self, fd: i32) {
        if let Err(error) = self.epoll.delete(fd) {
            tracing::warn!(fd, %error, "a descriptor was closed before it was unregistered");
        }
    }

    fn set_timer(&self, token: Token, deadline_ns: u64, precision: Precision) {
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
            // The deadline has moved to a later time. The wheel's entry stays; when it fires, the deadline is compared again.
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

    fn clear_timer(&self, token: Token) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(token.index as usize)
            && slot.generation == token.generation
            && let Some(key) = slot.timer.take()
        {
            self.wheel.borrow_mut().cancel(key);
        }
    }

    fn count_packets(&self, packets: u64) {
        self.shard.counters().packets.add(packets);
    }

    pub(super) fn agent_timer(&self, token: Token, now_ns: u64) {
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
            // The timer was moved to a later time while it was pending. (`About` may fire half a tick early.)
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

    /// Adds an agent to this shard. It does not run until a wake-up.
    pub fn add_agent<A: Agent>(&self, agent: A) -> AgentHandle<A> {
        let (token, wake) = self.insert_agent(Box::new(agent));
        AgentHandle::new(self.shard.clone(), token, wake)
    }
}

fn slot_of(slots: &mut Slab<Slot>, token: Token) -> Option<&mut Slot> {
    let slot = slots.get_mut(token.index as usize)?;
    (slot.generation == token.generation).then_some(slot)
}

fn descriptor_of(slots: &mut Slab<Slot>, token: Token, fd: i32) -> Option<&mut Descriptor> {
    let descriptors = &mut slot_of(slots, token)?.descriptors;
    descriptors.iter_mut().find(|known| known.fd == fd)
}
