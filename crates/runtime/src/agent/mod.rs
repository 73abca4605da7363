//! Agents: a shard's residents, called when their sockets, timers or wake-ups are due.

mod state;

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake as StdWake, Waker};
use std::{any::Any, io};

use self::state::Queued;
use crate::local::{Local, Token};
use crate::shard::{Shard, ShardClosed};
use crate::wheel::Precision;

/// A resident of a shard. Only the shard's thread calls it, so it needs no locks; it is dropped there, too.
pub trait Agent: Any + Send {
    /// An event is ready. Must not block: everything else on the shard waits meanwhile. Bound the work of one call and
    /// request another with [`Cx::wake_self`].
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready);

    /// The agent runs soon: [`crate::prefetch`] the memory it will touch besides itself. With thousands of agents
    /// taking turns, waiting for memory is most of the work.
    #[inline]
    fn prefetch(&self) {}

    /// Its name for observers, such as an element's. Read once, when the agent is added to its shard.
    fn label(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

/// Why an agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// The descriptor registered with this key is readable, writable, or has an error to fetch.
    Io(u8),
    /// The agent's waker was woken.
    Woken,
    /// The agent's timer is due.
    Timer,
}

/// Events to wait for on a descriptor (errors are always reported).
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
    pub(crate) local: &'a Local,
    pub(crate) token: Token,
}

impl Cx<'_> {
    /// Nanoseconds of CLOCK_MONOTONIC, read once a pass.
    pub fn now_ns(&self) -> u64 {
        self.local.now_ns()
    }

    /// The shard's own state.
    pub fn local(&self) -> &Local {
        self.local
    }

    /// Wakes this agent, from any thread. Allocates nothing when cloned.
    pub fn waker(&self) -> Waker {
        self.local.waker_of(self.token)
    }

    /// Runs this agent again in the next pass.
    pub fn wake_self(&self) {
        self.local.wake_agent(self.token);
    }

    /// Calls the agent with [`Ready::Io`]`(key)` whenever `fd` is ready (level-triggered). The agent owns
    /// the descriptor and keeps it open until [`Cx::deregister`] or its own drop.
    pub fn register(&self, fd: BorrowedFd<'_>, key: u8, interest: Interest) -> io::Result<()> {
        self.local
            .register(self.token, fd.as_raw_fd(), key, interest)
    }

    /// Ends the calls for `fd`. One call that this pass has already fetched may still come: an agent with several
    /// descriptors must ignore a key that it deregistered in the same pass. No effect if `fd` is not registered.
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

/// A handle of an agent for any thread. Dropping the handle does not remove the agent.
pub struct AgentHandle<A> {
    shard: Shard,
    token: Token,
    wake: Arc<WakeAgent>,
    kind: PhantomData<fn(A)>,
}

impl<A: Agent> AgentHandle<A> {
    pub(crate) fn new(shard: Shard, token: Token, wake: Arc<WakeAgent>) -> Self {
        AgentHandle {
            shard,
            token,
            wake,
            kind: PhantomData,
        }
    }

    /// The shard the agent lives on.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Runs the agent at the next opportunity; a throttled shard waits for its slice edge.
    pub fn wake(&self) {
        self.wake.notify();
    }

    /// A waker for this agent.
    pub fn waker(&self) -> Waker {
        self.wake.clone().into()
    }

    /// Runs `f` with the agent on its shard, at once: a throttled sleep is interrupted. Commands of one thread run in
    /// order; while the agent is in a call to another shard, they wait for the end of its run. Dropped unrun if the
    /// agent is gone.
    pub fn command(&self, f: impl FnOnce(&mut A, &mut Cx<'_>) + Send + 'static) {
        let token = self.token;
        let result = self.shard.command(move |local| {
            local.with_agent_later(token, |agent, cx| {
                let agent: &mut dyn Any = agent;
                if let Some(agent) = agent.downcast_mut::<A>() {
                    f(agent, cx);
                }
            });
        });
        if result.is_err() {
            tracing::debug!("command for an agent of a shard that has shut down");
        }
    }

    /// Removes the agent from its shard and waits until it is dropped; its descriptors are unregistered before that. If
    /// the agent itself calls it, directly or indirectly, it returns at once and the agent is dropped when its run
    /// returns. The same holds while the agent is in a call to another shard, which might in turn wait for this one.
    pub fn remove(&self) {
        let token = self.token;
        match self.shard.call(move |local| local.remove_agent(token)) {
            Ok(()) | Err(ShardClosed) => {}
        }
    }
}

impl<A> Clone for AgentHandle<A> {
    fn clone(&self) -> Self {
        AgentHandle {
            shard: self.shard.clone(),
            token: self.token,
            wake: self.wake.clone(),
            kind: PhantomData,
        }
    }
}

impl<A> std::fmt::Debug for AgentHandle<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentHandle")
            .field("shard", &self.shard)
            .field("token", &self.token)
            .finish()
    }
}

/// The wake-up of one agent: queued at most once, however often it is woken.
#[derive(Debug)]
pub(crate) struct WakeAgent {
    shard: Shard,
    token: Token,
    queued: Queued,
}

impl WakeAgent {
    pub(crate) fn new(shard: Shard, token: Token) -> Self {
        WakeAgent {
            shard,
            token,
            queued: Queued::new(),
        }
    }

    pub(crate) fn notify(&self) {
        if self.queued.enqueue() {
            self.shard.wake_agent(self.token);
        }
    }

    /// The shard dequeues the wake-up, before it runs the agent.
    pub(crate) fn dequeue(&self) {
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
