//! Handle of an agent for other threads.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Waker;

use super::{Agent, Cx, Shard, ShardClosed, WakeAgent};
use crate::token::Token;

/// A handle of an agent for any thread. Dropping the handle does not remove the agent.
pub struct AgentHandle<A> {
    shard: Shard,
    token: Token,
    wake: Arc<WakeAgent>,
    kind: PhantomData<fn(A)>,
}

impl<A: Agent> AgentHandle<A> {
    pub(super) fn new(shard: Shard, token: Token, wake: Arc<WakeAgent>) -> AgentHandle<A> {
        AgentHandle {
            shard,
            token,
            wake,
            kind: PhantomData,
        }
    }

    /// Returns the agent's shard.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Runs the agent as soon as possible. A throttled shard runs it at the edge of its slice.
    pub fn wake(&self) {
        self.wake.notify();
    }

    /// Returns a waker for this agent.
    pub fn waker(&self) -> Waker {
        self.wake.clone().into()
    }

    /// Runs `f` with the agent on its shard, at once: a throttled sleep is interrupted. Commands of one thread run in order.
    /// While the agent is in a call to another shard, its commands wait until its run ends. If the agent has been removed, `f` is
    /// dropped.
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
            tracing::debug!("dropped a command for an agent, because its shard has shut down");
        }
    }

    /// Removes the agent from its shard and waits until it is dropped. Before that, its descriptors are unregistered. In two
    /// cases, the call returns at once, and the agent is dropped when its run returns: if the agent itself makes this call,
    /// directly or indirectly; and while the agent is in a call to another shard, which might in turn be waiting for this one.
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
