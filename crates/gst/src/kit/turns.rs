//! Several inputs, one output: whose turn it is to push.
//!
//! Inputs are pushed by threads of their own; one at a time may push downstream, those of one input in their order. What has to wait
//! does so as a future: on a context's thread the source that pushed awaits it, an ordinary thread waits in place. The element's state
//! is under one lock, which nobody holds across a call out of the element.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use gst::prelude::*;
use threadbare_runtime::{Guard, Monitor, Topics};

use super::locked::{Discards, Locked};
use super::pending::{self, Hold};
use super::time::ClockWait;

/// The state of an element with several inputs.
pub(crate) trait Inputs: Discards + Sized + Send + 'static {
    /// What takes a turn, as far as the decision needs to know.
    type Entry: Send + Sync + 'static;
    /// What is to be done with it.
    type Decision: Send + 'static;

    /// The queue of an input; `None`: it has gone.
    fn queue(&mut self, id: u32) -> Option<&mut Tickets>;

    /// Of an input that has gone.
    fn flushing() -> Self::Decision;

    /// Whether an input takes anything: it neither flushes nor is stopped.
    fn is_open(&self, id: u32) -> bool;

    /// Decides about the first of an input's queue; pending: after a change of [`TURN`], or when [`Inputs::clock_wait`] is over, again.
    fn decide(&mut self, id: u32, entry: &Self::Entry) -> Poll<Self::Decision>;

    /// The wait of the first of an input's queue, which was not decided.
    fn clock_wait(&self, id: u32, entry: &Self::Entry) -> Option<ClockWait>;
}

/// The change of anything that a decision depends on.
pub(crate) const TURN: Topics = Topics::of(0);

/// What an input passes, or what waits there, in order.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    waiting: VecDeque<u64>,
    last: u64,
}

impl Tickets {
    fn enter(&mut self) -> u64 {
        self.last += 1;
        self.waiting.push_back(self.last);
        self.last
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// All that waits comes back, flushing.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// An element's state, shared with what waits.
pub(crate) struct Turns<S>(Arc<Monitor<S>>);

impl<S> Clone for Turns<S> {
    fn clone(&self) -> Self {
        Turns(self.0.clone())
    }
}

impl<S: Default> Default for Turns<S> {
    fn default() -> Self {
        Turns(Arc::new(Monitor::new(S::default())))
    }
}

impl<S: Discards> Turns<S> {
    pub(crate) fn state(&self) -> Locked<'_, S> {
        Locked::of(&self.0)
    }

    /// Completes with `condition`, which is evaluated under the lock: at once, after each change of `topics`, and when the wait is over
    /// that `clock_wait` gives.
    pub(crate) async fn until<R>(
        &self,
        topics: Topics,
        condition: impl FnMut(&mut Guard<'_, S>) -> Poll<R>,
        mut clock_wait: impl FnMut(&mut S) -> Option<ClockWait>,
    ) -> R {
        let (mut condition, mut clock) = (pin!(self.0.until(topics, condition)), None);
        poll_fn(|cx| {
            loop {
                // The changes of the state first: they may end the wait for the clock, or begin another.
                if let Poll::Ready(result) = condition.as_mut().poll(cx) {
                    return Poll::Ready(result);
                }
                clock = clock_wait(&mut self.state());
                let Some(wait) = &mut clock else {
                    return Poll::Pending;
                };
                if Pin::new(wait).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl<S: Inputs> Turns<S> {
    /// Puts something behind what an input passes already.
    pub(crate) fn enter(&self, id: u32, entry: S::Entry) -> Turn<S> {
        let ticket = self.state().queue(id).map(Tickets::enter);
        Turn {
            turns: self.clone(),
            id,
            ticket,
            entry,
        }
    }
}

/// Something that an input passes. Dropped, it makes way for what is behind it.
pub(crate) struct Turn<S: Inputs> {
    turns: Turns<S>,
    id: u32,
    /// `None`: the input took nothing more.
    ticket: Option<u64>,
    entry: S::Entry,
}

impl<S: Inputs> Turn<S> {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn entry(&self) -> &S::Entry {
        &self.entry
    }

    pub(crate) fn entry_mut(&mut self) -> &mut S::Entry {
        &mut self.entry
    }

    /// Has it carried out when its turn has come: at once, or later by the source that pushed, or after a wait here.
    /// `before_wait` runs if there is a wait.
    ///
    /// # Errors
    /// Those of `carry_out`; a source that carries it out later sees them later.
    pub(crate) fn pass(
        self,
        before_wait: impl FnOnce(),
        carry_out: impl FnOnce(Self, S::Decision) -> Result<gst::FlowSuccess, gst::FlowError>
        + Send
        + 'static,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let now = self.decide(&mut self.turns.state());
        if let Poll::Ready(decision) = now {
            return carry_out(self, decision);
        }
        before_wait();
        if pending::can_defer() {
            // What downstream leaves then stays with the same source.
            let later = async move {
                let decision = self.decision().await;
                carry_out(self, decision).map(|_| ())
            };
            pending::defer(Hold::Source, Box::pin(later));
            return Ok(gst::FlowSuccess::Ok);
        }
        let decision = threadbare_runtime::block_on(self.decision());
        carry_out(self, decision)
    }

    /// The same for what may pass in parts: `carry_out` returns the turn if the rest is to be decided, and nobody passes it meanwhile.
    ///
    /// # Errors
    /// Those of `carry_out`; a source that carries it out later sees them later.
    pub(crate) fn pass_in_parts(
        mut self,
        mut carry_out: impl FnMut(Self, S::Decision) -> Result<Option<Self>, gst::FlowError>
        + Send
        + 'static,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        loop {
            let now = self.decide(&mut self.turns.state());
            let Poll::Ready(decision) = now else {
                break;
            };
            match carry_out(self, decision)? {
                Some(rest) => self = rest,
                None => return Ok(gst::FlowSuccess::Ok),
            }
        }
        let later = async move {
            let mut turn = self;
            loop {
                let decision = turn.decision().await;
                match carry_out(turn, decision)? {
                    Some(rest) => turn = rest,
                    None => return Ok(()),
                }
            }
        };
        pending::wait(Hold::Source, later).map(|()| gst::FlowSuccess::Ok)
    }

    /// How many are before it; `None`: it waits no longer.
    fn place(&self, state: &mut S) -> Option<usize> {
        let (queue, ticket) = (state.queue(self.id)?, self.ticket?);
        queue.waiting.iter().position(|waiting| *waiting == ticket)
    }

    fn decide(&self, state: &mut S) -> Poll<S::Decision> {
        match self.place(state).filter(|_| state.is_open(self.id)) {
            None => Poll::Ready(S::flushing()),
            Some(0) => state.decide(self.id, &self.entry),
            Some(_) => Poll::Pending,
        }
    }

    async fn decision(&self) -> S::Decision {
        let decided = |state: &mut Guard<'_, S>| self.decide(state);
        let clock_wait = |state: &mut S| match self.place(state) {
            Some(0) => state.clock_wait(self.id, &self.entry),
            _ => None,
        };
        self.turns.until(TURN, decided, clock_wait).await
    }
}

impl<S: Inputs> Drop for Turn<S> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        if let (Some(queue), Some(ticket)) = (state.queue(self.id), self.ticket) {
            queue.waiting.retain(|waiting| *waiting != ticket);
        }
        state.wake(TURN);
    }
}

/// Tells downstream of an input's stream: by its sticky events but for the end.
pub(crate) fn announce(pad: &gst::Pad, src_pad: &gst::Pad) {
    let mut events = Vec::new();
    pad.sticky_events_foreach(|event| {
        if event.type_() != gst::EventType::Eos {
            events.push(event.clone());
        }
        ControlFlow::Continue(gst::EventForeachAction::Keep)
    });
    for event in events {
        src_pad.push_event(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two inputs; what waits of the first goes when that is allowed.
    #[derive(Default)]
    struct Two {
        queues: [Tickets; 2],
        is_allowed: bool,
        is_shut: bool,
    }

    impl Discards for Two {
        type Discarded = ();

        fn take_discarded(&mut self) -> Option<()> {
            None
        }
    }

    impl Inputs for Two {
        type Entry = ();
        type Decision = Option<()>;

        fn queue(&mut self, id: u32) -> Option<&mut Tickets> {
            self.queues.get_mut(id as usize)
        }

        fn flushing() -> Option<()> {
            None
        }

        fn is_open(&self, _id: u32) -> bool {
            !self.is_shut
        }

        fn decide(&mut self, id: u32, (): &()) -> Poll<Option<()>> {
            match self.is_allowed || id == 1 {
                true => Poll::Ready(Some(())),
                false => Poll::Pending,
            }
        }

        fn clock_wait(&self, _id: u32, (): &()) -> Option<ClockWait> {
            None
        }
    }

    fn decide(turn: &Turn<Two>) -> Poll<Option<()>> {
        turn.decide(&mut turn.turns.state())
    }

    #[test]
    fn an_input_keeps_its_order_and_holds_no_other_up() {
        let turns = Turns::<Two>::default();
        let [first, second] = [0, 1].map(|_| turns.enter(0, ()));
        assert_eq!(decide(&turns.enter(1, ())), Poll::Ready(Some(())));
        turns.state().is_allowed = true;
        assert_eq!(decide(&second), Poll::Pending, "behind the first");
        assert_eq!(decide(&first), Poll::Ready(Some(())));
        drop(first);
        assert_eq!(decide(&second), Poll::Ready(Some(())));
    }

    #[test]
    fn what_was_flushed_leaves_its_place() {
        let turns = Turns::<Two>::default();
        let flushed = turns.enter(0, ());
        turns.state().is_shut = true;
        assert_eq!(decide(&flushed), Poll::Ready(None));
        drop(flushed);
        {
            let mut state = turns.state();
            (state.is_shut, state.is_allowed) = (false, true);
        }
        let unlinked = turns.enter(0, ());
        assert_eq!(decide(&unlinked), Poll::Ready(Some(())));
        turns.state().queues[0].clear();
        assert_eq!(decide(&unlinked), Poll::Ready(None));
        assert_eq!(decide(&turns.enter(7, ())), Poll::Ready(None), "no input");
    }

    #[test]
    fn an_ordinary_thread_waits_in_place() {
        let turns = Turns::<Two>::default();
        let turn = turns.enter(0, ());
        let allow = {
            let turns = turns.clone();
            move || {
                let mut state = turns.state();
                state.is_allowed = true;
                state.wake(TURN);
            }
        };
        let passed = turn.pass(allow, |_, decision| {
            decision.ok_or(gst::FlowError::Flushing)?;
            Ok(gst::FlowSuccess::Ok)
        });
        assert_eq!(passed, Ok(gst::FlowSuccess::Ok));
    }
}
