//! Lets several inputs push to one output: decides which input may push.
//!
//! Inputs are pushed by separate threads. Only one at a time may push downstream, and each input keeps its order. Waits are
//! futures: on a context's thread, the source that pushed awaits them; an ordinary thread blocks. The element's state is under
//! one lock, which is never held across a call out of the element.
#![allow(missing_docs, reason = "no stable interface")]

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
pub trait Inputs: Discards + Sized + Send + 'static {
    /// The data about an item on which the decision depends.
    type Entry: Send + Sync + 'static;
    /// The decision on an item.
    type Decision: Send + 'static;

    /// Returns the queue of an input; `None`: the input was removed.
    fn queue(&mut self, id: u32) -> Option<&mut Tickets>;

    /// Returns the decision for a removed input.
    fn flushing() -> Self::Decision;

    /// Whether an input accepts items: it is not flushing and not stopped.
    fn is_open(&self, id: u32) -> bool;

    /// Decides about the first item in an input's queue. If it is pending, the decision is repeated after a change of [`TURN`],
    /// or when [`Inputs::clock_wait`] is over.
    fn decide(&mut self, id: u32, entry: &Self::Entry) -> Poll<Self::Decision>;

    /// Returns the wait after which the first item in an input's queue must be decided again.
    fn clock_wait(&self, id: u32, entry: &Self::Entry) -> Option<ClockWait>;
}

/// Anything on which a decision depends has changed.
pub const TURN: Topics = Topics::of(0);

/// Items that an input passes or queues, in order.
#[derive(Debug, Default)]
pub struct Tickets {
    waiting: VecDeque<u64>,
    last: u64,
}

impl Tickets {
    fn enter(&mut self) -> u64 {
        self.last += 1;
        self.waiting.push_back(self.last);
        self.last
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Makes all waiting pushes return as flushing.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// An element's state, shared with waiting pushes.
pub struct Turns<S>(Arc<Monitor<S>>);

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
    pub fn state(&self) -> Locked<'_, S> {
        Locked::of(&self.0)
    }

    /// Returns a future that completes when `condition` is ready. The condition is evaluated under the lock: at once, after each
    /// change of `topics`, and when the wait of `clock_wait` ends.
    pub async fn until<R>(
        &self,
        topics: Topics,
        condition: impl FnMut(&mut Guard<'_, S>) -> Poll<R>,
        mut clock_wait: impl FnMut(&mut S) -> Option<ClockWait>,
    ) -> R {
        let (mut condition, mut clock) = (pin!(self.0.until(topics, condition)), None);
        poll_fn(|cx| {
            loop {
                // Evaluate the condition first, because a change of the state may end the wait for the clock, or start another
                // wait.
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
    /// Queues an item after those that the input is passing.
    pub fn enter(&self, id: u32, entry: S::Entry) -> Turn<S> {
        let ticket = self.state().queue(id).map(Tickets::enter);
        Turn {
            turns: self.clone(),
            id,
            ticket,
            entry,
        }
    }
}

/// The turn of an item at an input. Dropping it lets the next item proceed.
pub struct Turn<S: Inputs> {
    turns: Turns<S>,
    id: u32,
    /// `None`: the input accepts no more items.
    ticket: Option<u64>,
    entry: S::Entry,
}

impl<S: Inputs> Turn<S> {
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn entry(&self) -> &S::Entry {
        &self.entry
    }

    pub fn entry_mut(&mut self) -> &mut S::Entry {
        &mut self.entry
    }

    /// Calls `carry_out` when the item's turn has come. If the item has to wait, the source that pushed calls it later; an
    /// ordinary thread waits here. `before_wait` runs before such a wait.
    ///
    /// # Errors
    /// Returns the error of `carry_out`. A source that calls `carry_out` later gets the error later.
    pub fn pass(
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
            // Then, futures left by downstream stay with the same source.
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

    /// Acts as [`pass`](Self::pass), for items that may pass in parts. If another decision is needed for the remaining part,
    /// `carry_out` returns the turn. No other item overtakes that part.
    ///
    /// # Errors
    /// Returns the error of `carry_out`. A source that calls `carry_out` later gets the error later.
    pub fn pass_in_parts(
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

    /// Returns the number of items before this one; `None` if the item does not wait any longer.
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

/// Pushes an input's sticky events downstream, except the EOS.
pub fn announce(pad: &gst::Pad, src_pad: &gst::Pad) {
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

    /// Two inputs. The items of the first input wait for permission.
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
            if self.is_allowed || id == 1 {
                Poll::Ready(Some(()))
            } else {
                Poll::Pending
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
    fn a_blocked_input_keeps_its_order_and_blocks_no_other_input() {
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
    fn flushed_item_frees_its_place() {
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
