//! A bounded queue between two streaming threads: the inside of `ts-queue`, of proxies and of sources.
//!
//! - `core`: contents, limits and life. No lock, no clock.
//! - `item`: the items of an element's queue.
//! - this file: the core under its lock, with waits and signals.
//! - `end`: the element's handling of events and queries around the queue, and the producer that empties it.
//! - `properties`: limits and levels as properties.
//!
//! A push on a context thread never blocks. The queue accepts data beyond its limits, and the source that pushed waits for room
//! before it produces more ([`super::pending`]). So the queue may exceed its limits by the output for one input, but loses
//! nothing. An ordinary thread waits in `push`.
#![allow(missing_docs, reason = "no stable interface")]

mod core;
mod end;
mod first;
mod item;
mod properties;

use std::sync::Arc;
use std::task::{Poll, Waker};

use gst::prelude::*;
use threadbare_runtime::{Monitor, Registration, block_on, until};

use self::core::{Actions, DRAINED, ITEM, Popped, Pushed, QueueCore, ROOM};
use self::item::RunningTime;
use super::locked::{Discarded, Discards, Locked};
use super::pending::{self, Hold};
use super::prefetch;
use super::stats::StatsProperty;

pub use self::core::{Failure, Level, Limits, Refusal, WhenFull};
pub use self::end::{OwnThread, QueueEnd, QueueReader, fail_or_report};
pub use self::item::Item;
pub use self::properties::{Leaky, QueueProperties};

/// Notices that the element may emit as signals. Signals are emitted without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    Overrun,
    Underrun,
    Running,
}

/// Why a buffer or list was not accepted.
pub enum Unfit {
    /// The queue is full.
    Full(Item),
    /// The queue does not accept items any more.
    Ended,
}

/// The queue. Cheap to clone: both ends share it.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    monitor: Monitor<State>,
    notice: Box<dyn Fn(Notice) + Send + Sync>,
}

struct State {
    core: QueueCore<Item, gst::FlowError>,
    running_time: RunningTime,
    /// A reader that is an agent, not a future.
    reader: Registration,
    /// Address of the reader's waker, which the reader's thread used last. It is a hint for prefetching, and is never
    /// dereferenced.
    reader_waker: usize,
}

impl Discards for State {
    type Discarded = Discarded<Item>;

    #[inline]
    fn take_discarded(&mut self) -> Option<Discarded<Item>> {
        self.core.take_discarded()
    }
}

impl Shared {
    fn monitor(&self) -> &Monitor<State> {
        &self.monitor
    }

    /// Unlocks, then carries out the actions.
    #[inline]
    fn finish(&self, mut state: Locked<'_, State>, actions: Actions) {
        state.wake(actions.wake);
        drop(state);
        for (is_due, notice) in [
            (actions.overrun, Notice::Overrun),
            (actions.underrun, Notice::Underrun),
            (actions.running, Notice::Running),
        ] {
            if is_due {
                (self.notice)(notice);
            }
        }
    }
}

impl From<Refusal<gst::FlowError>> for gst::FlowError {
    fn from(refusal: Refusal<gst::FlowError>) -> Self {
        match refusal {
            Refusal::Flushing => gst::FlowError::Flushing,
            Refusal::Unlinked => gst::FlowError::NotLinked,
            Refusal::Ended => gst::FlowError::Eos,
            Refusal::Failed { error, .. } => error,
        }
    }
}

impl Queue {
    pub fn new(notice: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Queue(Arc::new(Shared {
            monitor: Monitor::new(State {
                core: QueueCore::default(),
                running_time: RunningTime::default(),
                reader: Registration::default(),
                reader_waker: 0,
            }),
            notice: Box::new(notice),
        }))
    }

    fn lock(&self) -> Locked<'_, State> {
        Locked::of(&self.0.monitor)
    }

    /// Returns the memory of the fields that both ends use for each item.
    pub fn span(&self) -> (usize, usize) {
        prefetch::span(&self.0.monitor)
    }

    /// Prefetches the fields that both ends use for each item. The reading end calls this.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::value(&self.0.monitor);
    }

    /// Changes the life of the queue, such as by a stop or a flush. Returns the dropped sticky events that are still valid.
    fn change<I: Iterator<Item = Item>>(
        &self,
        change: impl FnOnce(&mut State) -> (I, Actions),
    ) -> Vec<gst::Event> {
        let mut state = self.lock();
        let (dropped, actions) = change(&mut state);
        self.0.finish(state, actions);
        dropped.filter_map(Item::into_lasting_event).collect()
    }

    /// Accepts items from now on.
    pub fn open(&self) {
        self.change(|state| {
            state.running_time = RunningTime::default();
            (std::iter::empty(), state.core.open())
        });
    }

    /// Accepts no more items, drops all items and ends all waits.
    pub fn stop(&self) {
        self.change(|state| state.core.stop());
    }

    /// Stops or restarts the writer's side. A stop releases threads that wait to push, while the reader still gets queued items.
    pub fn shut(&self, is_shut: bool) {
        self.change(|state| (std::iter::empty(), state.core.shut(is_shut)));
    }

    /// Starts a flush. Returns the queued sticky events that are still valid.
    pub fn begin_flush(&self) -> Vec<gst::Event> {
        self.change(|state| state.core.handle_flush_start())
    }

    /// Ends a flush: the queue accepts items again. The reader gets these items after it has called [`Queue::resume`].
    pub fn end_flush(&self, event: gst::Event) {
        self.change(|state| {
            state.running_time = RunningTime::default();
            let actions = state.core.handle_flush_stop(Item::Event(event));
            (std::iter::empty(), actions)
        });
    }

    /// Records that the reader's earlier pushes have returned. Returns the event at the end of a flush, if any, which the reader
    /// passes on before other items.
    pub fn resume(&self) -> Option<gst::Event> {
        match self.lock().core.handle_resume()? {
            Item::Event(event) => Some(event),
            Item::Buffer(_) | Item::List(_) => None,
        }
    }

    /// Records a failure downstream, which the next push returns. Returns `true` if no push will follow, because the stream has
    /// ended.
    pub fn fail(&self, error: gst::FlowError) -> bool {
        let mut state = self.lock();
        let (failure, actions) = state.core.handle_failure(error);
        self.0.finish(state, actions);
        failure == Failure::Unseen
    }

    /// Records that downstream was linked again. Returns `true` if items flow again, because the queue had stopped only because
    /// it was not linked.
    pub fn relink(&self) -> bool {
        let mut state = self.lock();
        let (flows, actions) = state.core.handle_mended(gst::FlowError::NotLinked);
        self.0.finish(state, actions);
        flows
    }
}

/// The writer's end.
impl Queue {
    /// Queues a buffer or list. On a context thread, the pushing source waits for room. An ordinary thread waits here. Both waits
    /// end when `pad`, if any, is unlinked.
    pub fn push(&self, pad: Option<&gst::Pad>, item: Item) -> Result<(), gst::FlowError> {
        let when_full = if pending::can_defer() {
            WhenFull::Exceed
        } else {
            WhenFull::Return
        };
        let mut next = item;
        loop {
            match self.try_push(next, when_full) {
                Pushed::Taken { exceeds: true, .. } => {
                    let room = self.room(pad);
                    return pending::wait(Hold::Source, async move {
                        // The next push returns this error, so that a tee can combine it with the results of its other branches.
                        room.await.map_err(|error| match error {
                            gst::FlowError::NotLinked => gst::FlowError::Flushing,
                            error => error,
                        })
                    });
                }
                Pushed::Taken { .. } | Pushed::Dropped => return Ok(()),
                Pushed::Refused(refusal) => return Err(refusal.into()),
                // Try again, because other threads may have used the room, or the limits may have changed.
                Pushed::Full(item) => {
                    block_on(self.room(pad))?;
                    next = item;
                }
            }
        }
    }

    /// Queues a buffer or list if there is room; otherwise drops it, and counts it as dropped.
    pub fn push_or_drop(&self, item: Item) -> Result<(), gst::FlowError> {
        match self.try_push(item, WhenFull::Drop) {
            Pushed::Refused(refusal) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Queues a buffer or list regardless of the limits.
    pub fn push_over(&self, item: Item) -> Result<(), gst::FlowError> {
        match self.try_push(item, WhenFull::Exceed) {
            Pushed::Refused(refusal) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Queues the item if there is room. Returns `Ok(true)` if the queue is full now.
    pub fn offer(&self, item: Item) -> Result<bool, Unfit> {
        match self.try_push(item, WhenFull::Return) {
            Pushed::Taken { is_full, .. } => Ok(is_full),
            Pushed::Dropped => Ok(true),
            Pushed::Full(item) => Err(Unfit::Full(item)),
            Pushed::Refused(_) => Err(Unfit::Ended),
        }
    }

    #[inline]
    fn try_push(&self, item: Item, when_full: WhenFull) -> Pushed<Item, gst::FlowError> {
        self.prefetch();
        let mut state = self.lock();
        threadbare_runtime::prefetch(state.reader_waker as *const u8, 1);
        let size = item.size(&state.running_time);
        let (pushed, actions) = state.core.handle_push(item, size, when_full);
        self.0.finish(state, actions);
        pushed
    }

    /// Queues a serialized event; limits do not apply to events.
    pub fn push_event(&self, event: gst::Event) -> Result<(), Refusal<gst::FlowError>> {
        let mut state = self.lock();
        if let gst::EventView::Segment(segment) = event.view()
            && let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>()
        {
            state.running_time = RunningTime::of(segment);
        }
        let kind = item::kind_of(&event);
        let actions = state.core.handle_event(Item::Event(event), kind)?;
        self.0.finish(state, actions);
        Ok(())
    }

    /// Ends waits for room when the writer's pad is unlinked, as long as the pad exists.
    pub fn follow_links(&self, pad: &gst::Pad) {
        let items = self.clone();
        pad.connect_unlinked(move |_, _| items.unlink());
    }

    /// Records that the writer's pad was unlinked, and ends waits for room.
    pub fn unlink(&self) {
        let mut state = self.lock();
        let actions = state.core.handle_unlink();
        self.0.finish(state, actions);
    }

    /// Completes when the queue has room.
    fn room(
        &self,
        pad: Option<&gst::Pad>,
    ) -> impl Future<Output = Result<(), gst::FlowError>> + Send + use<> {
        let ticket = self.lock().core.ticket();
        if pad.is_some_and(|pad| !pad.is_linked()) {
            // The pad was unlinked during this push, but before this thread read the ticket. No other signal will end the wait,
            // so end it here.
            self.unlink();
        }
        until(
            self.0.clone(),
            Shared::monitor,
            ROOM,
            move |state| match state.core.ask_for_room(ticket) {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => Poll::Pending,
                Err(refusal) => Poll::Ready(Err(refusal.into())),
            },
        )
    }

    /// Waits, on an ordinary thread, until all queued items have left. Returns `false` if they will not leave.
    pub fn wait_drained(&self) -> bool {
        let mut state = self.lock();
        let actions = state.core.begin_drain();
        self.0.finish(state, actions);
        let has_left = block_on(until(
            self.0.clone(),
            Shared::monitor,
            DRAINED,
            |state| match state.core.is_drained() {
                Ok(true) => Poll::Ready(true),
                Ok(false) => Poll::Pending,
                Err(_) => Poll::Ready(false),
            },
        ));
        self.lock().core.end_drain();
        has_left
    }
}

/// The reader's end.
impl Queue {
    /// Returns the next item. If there is none, wakes `waker` when an item may have arrived.
    #[inline]
    pub fn pop(&self, waker: impl FnOnce() -> Waker) -> Option<Item> {
        let mut state = self.lock();
        let (popped, actions) = state.core.handle_pop();
        if popped.is_none() {
            state.await_item(waker());
        }
        self.0.finish(state, actions);
        popped.map(marked)
    }

    /// Returns the next item, if any, and whether it was the last one. If there was no item, or it was the last one, wakes
    /// `waker` when another item arrives. This is for a reader that need not return after it has pushed the last item. For such a
    /// reader, the queue gives no notices, and no thread may wait until all items have left.
    #[inline]
    pub fn take(&self, waker: impl FnOnce() -> Waker) -> Option<(Item, bool)> {
        let mut state = self.lock();
        let (popped, actions) = state.core.handle_pop();
        let is_empty = popped.is_none() || state.core.is_empty();
        if is_empty {
            state.await_item(waker());
        }
        self.0.finish(state, actions);
        popped.map(|popped| (marked(popped), is_empty))
    }

    /// Waits for the next item or for the end of a flush. This is for a reader that is an ordinary thread. Returns `None` if the
    /// queue was stopped.
    pub fn next(&self) -> Option<Item> {
        let next = block_on(until(self.0.clone(), Shared::monitor, ITEM, |state| {
            if state.core.is_stopped() {
                return Poll::Ready(None);
            }
            if let Some(item) = state.core.handle_resume() {
                let follows_gap = false;
                return Poll::Ready(Some(Popped { item, follows_gap }));
            }
            let (popped, actions) = state.core.handle_pop();
            state.wake(actions.wake);
            popped.map_or(Poll::Pending, |popped| Poll::Ready(Some(popped)))
        }));
        next.map(marked)
    }
}

/// Limits, levels, statistics.
impl Queue {
    /// Sets limits that the element itself chooses.
    pub fn limit(&self, leaky: Leaky, max: Level) {
        self.set_limits(|limits| {
            limits.leaky = leaky;
            limits.max = max;
        });
    }

    pub fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        let mut state = self.lock();
        let actions = state.core.handle_limits(change);
        self.0.finish(state, actions);
    }

    pub fn limits(&self) -> Limits {
        self.lock().core.limits().clone()
    }

    /// Returns the current contents.
    pub fn level(&self) -> Level {
        self.lock().core.level()
    }

    /// Returns the value of the property `stats` of `ts-queue` and the sources of proxies.
    fn stats(&self) -> gst::Structure {
        let state = self.lock();
        let level = state.core.level();
        gst::Structure::builder("application/x-ts-queue-stats")
            .field("buffers-passed", state.core.passed())
            .field("buffers-leaked", state.core.leaked())
            .field("current-level-buffers", level.buffers)
            .field("current-level-bytes", level.bytes)
            .field("current-level-time", level.time_ns)
            .build()
    }

    /// Creates the property `stats` of an element with a queue inside.
    pub fn stats_property(&self, name: &'static str) -> StatsProperty {
        let items = self.clone();
        StatsProperty::new(move || {
            let state = items.lock();
            gst::Structure::builder(name)
                .field("passed", state.core.passed())
                .field("leaked", state.core.leaked())
                .field("buffers", u64::from(state.core.level().buffers))
                .build()
        })
    }
}

impl Locked<'_, State> {
    /// Makes the queue wake the reader when there may be an item.
    #[inline]
    fn await_item(&mut self, waker: Waker) {
        let mut reader = std::mem::take(&mut self.reader);
        self.reader_waker = waker.data() as usize;
        self.register(&mut reader, ITEM, waker);
        self.reader = reader;
    }
}

fn marked(popped: Popped<Item>) -> Item {
    let mut item = popped.item;
    if popped.follows_gap {
        item.mark_discont();
    }
    item
}
