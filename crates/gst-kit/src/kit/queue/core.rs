//! A queue's contents and life: no clock, no lock, no GStreamer. Sizes and times are numbers; an item is anything.
//!
//! The two ends have a state each. [`Intake`] is the writer's:
//!
//! | intake | a push | entered with |
//! |---|---|---|
//! | `Stopped` | refused; the reader's wait ends | [`QueueCore::stop`]; the initial state |
//! | `Flushing` | refused | [`QueueCore::handle_flush_start`] |
//! | `Shut` | refused; queued items continue | [`QueueCore::shut`] |
//! | `Open` | taken, up to the limits | [`QueueCore::open`], [`QueueCore::handle_flush_stop`], a stream's start |
//! | `Ended` | refused until the next stream's start | the end of the stream |
//!
//! [`Outflow`] is the reader's:
//!
//! | outflow | a pop | a failed push downstream |
//! |---|---|---|
//! | `Flowing` | the next item | makes it `Failed` |
//! | `Stale` | nothing: the reader's current push is from before a flush | is ignored |
//! | `Failed` | nothing; the next push into the queue returns the error | is ignored: the first one counts |
//!
//! `Stale` ends when the reader gets the end of the flush ([`QueueCore::handle_resume`]); no thread waits for that.
//!
//! Every method returns the work to do outside of the lock: [`Actions`]. The cost of a method does not depend on the number of
//! items, even if an item leaks.

use std::collections::VecDeque;

use threadbare_runtime::Topics;

use super::first::FirstInPlace;
use super::properties::Leaky;
use crate::kit::locked::Discarded;

/// The reader may find an item.
pub(super) const ITEM: Topics = Topics::of(0);
/// A writer may find room.
pub(super) const ROOM: Topics = Topics::of(1);
/// All items may have left.
pub(super) const DRAINED: Topics = Topics::of(2);

/// The amount in a queue, or its limit; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    pub buffers: u32,
    pub bytes: u32,
    pub time_ns: u64,
}

impl Level {
    /// Whether one of `limits` is reached.
    fn reaches(&self, limits: &Level) -> bool {
        (limits.buffers > 0 && self.buffers >= limits.buffers)
            || (limits.bytes > 0 && self.bytes >= limits.bytes)
            || (limits.time_ns > 0 && self.time_ns >= limits.time_ns)
    }

    /// Whether one of `thresholds` is not reached.
    fn is_below(&self, thresholds: &Level) -> bool {
        self.buffers < thresholds.buffers
            || self.bytes < thresholds.bytes
            || self.time_ns < thresholds.time_ns
    }
}

/// The settings of a queue.
#[derive(Debug, Clone)]
pub struct Limits {
    pub max: Level,
    /// Minimum level at which items may leave.
    pub min: Level,
    pub leaky: Leaky,
    pub flush_on_eos: bool,
    /// Whether the queue gives no notices.
    pub silent: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max: Level {
                buffers: 200,
                bytes: 1 << 20,
                time_ns: 1_000_000_000,
            },
            min: Level::default(),
            leaky: Leaky::No,
            flush_on_eos: false,
            silent: false,
        }
    }
}

/// The size of an item. The writer computes it, because it has the item's memory in its cache. The reader would have to wait for
/// that memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Size {
    /// Number of buffers; 0 for an event, which is not subject to limits.
    pub buffers: u32,
    pub bytes: u32,
    /// Start and end, running time, ns.
    pub span_ns: Option<(u64, u64)>,
}

/// What a push does if the queue is full and does not leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Returns the item: the writer waits, or gives up.
    Return,
    /// Exceeds the limits: the writer waits before its next push.
    Exceed,
    /// Drops the item.
    Drop,
}

/// The result of a push.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<T, E> {
    /// `exceeds`: the queue was full. `is_full`: the queue is full now.
    Taken {
        exceeds: bool,
        is_full: bool,
    },
    Dropped,
    Full(T),
    Refused(Refusal<E>),
}

/// Why the queue accepts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal<E> {
    Flushing,
    /// The writer's pad was unlinked while the writer waited.
    Unlinked,
    Ended,
    /// `is_seen`: a push has returned the error before.
    Failed {
        error: E,
        is_seen: bool,
    },
}

/// Relevant kinds of serialized events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    StreamStart,
    Eos,
    /// Another sticky event: also valid for later items, so a failed queue keeps it.
    Sticky,
    Other,
}

/// An item on its way out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Popped<T> {
    pub item: T,
    /// Whether data before it were dropped.
    pub follows_gap: bool,
}

/// Work to do outside of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Actions {
    pub wake: Topics,
    pub overrun: bool,
    pub underrun: bool,
    pub running: bool,
}

impl Actions {
    fn waking(wake: Topics) -> Self {
        Actions {
            wake,
            ..Actions::default()
        }
    }
}

/// The consequence of a failed push downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The failed push began before a flush, or an earlier push has failed already.
    DoesNotCount,
    /// The next push returns the error.
    Noted,
    /// No push returns the error, because the stream has ended.
    Unseen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intake {
    Stopped,
    Flushing,
    Shut,
    Open,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outflow<E> {
    Flowing,
    Stale,
    Failed { error: E, is_seen: bool },
}

#[derive(Debug)]
struct Queued<T> {
    item: T,
    buffers: u32,
    bytes: u32,
    has_time: bool,
    follows_gap: bool,
}

/// A queue without its lock.
#[derive(Debug)]
pub(crate) struct QueueCore<T, E> {
    intake: Intake,
    outflow: Outflow<E>,
    /// Events whose data has leaked; they precede `items`.
    events_ahead: VecDeque<Queued<T>>,
    items: FirstInPlace<Queued<T>>,
    /// Start and end of the items with a time.
    spans_ns: FirstInPlace<(u64, u64)>,
    buffers: u32,
    bytes: u64,
    limits: Limits,
    /// Whether the reader has popped an item and has not returned yet.
    is_with_reader: bool,
    /// Whether the reader has returned to an empty queue, and no data has arrived since.
    is_dry: bool,
    /// Whether the next data popped, or pushed, follows a gap.
    gap_at_head: bool,
    gap_at_tail: bool,
    /// Number of waits until the queue is empty. During a wait, no threshold holds items back.
    drains: u32,
    /// Number of times that the writer's pad was unlinked.
    unlinks: u32,
    passed: u64,
    leaked: u64,
    /// Items that must not be dropped under the lock.
    discarded: Discarded<T>,
}

impl<T, E: Copy + PartialEq> Default for QueueCore<T, E> {
    fn default() -> Self {
        QueueCore {
            intake: Intake::Stopped,
            outflow: Outflow::Stale,
            events_ahead: VecDeque::new(),
            items: FirstInPlace::default(),
            spans_ns: FirstInPlace::default(),
            buffers: 0,
            bytes: 0,
            limits: Limits::default(),
            is_with_reader: false,
            is_dry: true,
            gap_at_head: false,
            gap_at_tail: false,
            drains: 0,
            unlinks: 0,
            passed: 0,
            leaked: 0,
            discarded: Discarded::default(),
        }
    }
}

/// Life: start, stop, flushes and failures.
impl<T, E: Copy + PartialEq> QueueCore<T, E> {
    /// Accepts items, after a restart.
    pub(crate) fn open(&mut self) -> Actions {
        self.discard_all();
        self.intake = Intake::Open;
        self.outflow = Outflow::Flowing;
        self.is_with_reader = false;
        Actions::waking(Topics::ALL)
    }

    /// Ends all waits, and returns the items.
    pub(crate) fn stop(&mut self) -> (impl Iterator<Item = T> + use<T, E>, Actions) {
        self.intake = Intake::Stopped;
        self.outflow = Outflow::Stale;
        (self.clear(), Actions::waking(Topics::ALL))
    }

    /// Stops the writer's side, or restarts it. While it is stopped, pushes are refused, and queued items continue.
    pub(crate) fn shut(&mut self, is_shut: bool) -> Actions {
        self.intake = match (self.intake, is_shut) {
            (Intake::Open | Intake::Ended, true) => Intake::Shut,
            (Intake::Shut, false) => Intake::Open,
            (other, _) => other,
        };
        Actions::waking(ROOM | DRAINED)
    }

    /// Starts a flush: returns the items, and ends all waits of writers.
    pub(crate) fn handle_flush_start(&mut self) -> (impl Iterator<Item = T> + use<T, E>, Actions) {
        if self.intake != Intake::Stopped {
            self.intake = Intake::Flushing;
        }
        self.outflow = Outflow::Stale;
        (self.clear(), Actions::waking(Topics::ALL))
    }

    /// Ends a flush: accepts items again. The reader gets `event` before any of them ([`QueueCore::handle_resume`]).
    pub(crate) fn handle_flush_stop(&mut self, event: T) -> Actions {
        if self.intake == Intake::Stopped {
            self.discarded.add(event);
            return Actions::default();
        }
        self.discard_all();
        self.intake = Intake::Open;
        self.outflow = Outflow::Stale;
        self.append(event, Size::default());
        Actions::waking(ITEM)
    }

    /// Records that the reader's push from before the flush has returned. Returns the event of the newest flush, which the reader
    /// pushes before other items. Returns `None` if no event is pending.
    pub(crate) fn handle_resume(&mut self) -> Option<T> {
        if self.outflow != Outflow::Stale {
            return None;
        }
        // A flush leaves the queue empty, so the end of the flush is its first item. A leak may have moved that item ahead.
        let ahead = self.events_ahead.pop_front();
        let event = ahead.or_else(|| self.items.pop_front())?;
        self.outflow = Outflow::Flowing;
        Some(event.item)
    }

    /// Records a failed push downstream.
    pub(crate) fn handle_failure(&mut self, error: E) -> (Failure, Actions) {
        if self.outflow != Outflow::Flowing {
            return (Failure::DoesNotCount, Actions::default());
        }
        self.outflow = Outflow::Failed {
            error,
            is_seen: false,
        };
        let failure = match self.intake {
            Intake::Ended => Failure::Unseen,
            _ => Failure::Noted,
        };
        (failure, Actions::waking(ROOM | DRAINED))
    }

    /// Records that the cause of the error `mended` is gone. Returns `true` if items flow again.
    pub(crate) fn handle_mended(&mut self, mended: E) -> (bool, Actions) {
        match self.outflow {
            Outflow::Failed { error, .. } if error == mended => {
                self.outflow = Outflow::Flowing;
                (true, Actions::waking(ITEM))
            }
            _ => (false, Actions::default()),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.intake == Intake::Stopped
    }

    /// Takes items to be dropped after the unlock.
    #[inline]
    pub(crate) fn take_discarded(&mut self) -> Option<Discarded<T>> {
        self.discarded.take()
    }

    fn discard_all(&mut self) {
        let all = self.clear();
        self.discarded.extend(all);
    }

    fn clear(&mut self) -> impl Iterator<Item = T> + use<T, E> {
        self.buffers = 0;
        self.bytes = 0;
        self.spans_ns.clear();
        self.is_dry = true;
        self.gap_at_head = false;
        self.gap_at_tail = false;
        let ahead = std::mem::take(&mut self.events_ahead);
        let items = std::mem::take(&mut self.items);
        ahead
            .into_iter()
            .chain(items.into_iter())
            .map(|queued| queued.item)
    }
}

/// The writer's end.
impl<T, E: Copy + PartialEq> QueueCore<T, E> {
    /// Handles arriving data.
    #[inline]
    pub(crate) fn handle_push(
        &mut self,
        item: T,
        size: Size,
        when_full: WhenFull,
    ) -> (Pushed<T, E>, Actions) {
        if let Err(refusal) = self.ask_for_push() {
            self.discarded.add(item);
            return (Pushed::Refused(refusal), Actions::default());
        }
        let mut actions = Actions::default();
        let is_full = self.is_full();
        if is_full {
            actions.overrun = !self.limits.silent;
            match (self.limits.leaky, when_full) {
                (Leaky::Downstream, _) => while self.is_full() && self.leak_oldest() {},
                (Leaky::No, WhenFull::Return) => return (Pushed::Full(item), actions),
                (Leaky::No, WhenFull::Exceed) => {}
                (Leaky::Upstream, _) | (Leaky::No, WhenFull::Drop) => {
                    self.leaked += u64::from(size.buffers);
                    self.gap_at_tail = true;
                    self.discarded.add(item);
                    return (Pushed::Dropped, actions);
                }
            }
        }
        self.append(item, size);
        if size.buffers > 0 && self.is_dry && !self.limits.silent {
            self.is_dry = false;
            actions.running = true;
        }
        if self.may_pop() {
            actions.wake = ITEM;
        }
        let taken = Pushed::Taken {
            exceeds: is_full && self.limits.leaky == Leaky::No,
            is_full: self.is_full(),
        };
        (taken, actions)
    }

    /// Handles an arriving serialized event. Limits do not delay it.
    pub(crate) fn handle_event(&mut self, item: T, kind: EventKind) -> Result<Actions, Refusal<E>> {
        if kind == EventKind::StreamStart && self.intake == Intake::Ended {
            self.intake = Intake::Open;
        }
        let lasts = matches!(kind, EventKind::StreamStart | EventKind::Sticky);
        match self.ask() {
            Ok(()) => {}
            Err(Refusal::Failed { .. }) if lasts => {}
            Err(refusal) => {
                self.discarded.add(item);
                return Err(refusal);
            }
        }
        if kind == EventKind::Eos {
            self.intake = Intake::Ended;
            if self.limits.flush_on_eos {
                self.drop_data();
            }
        }
        self.append(item, Size::default());
        Ok(if self.may_pop() {
            Actions::waking(ITEM)
        } else {
            Actions::default()
        })
    }

    /// Records that the writer's pad was unlinked, so that the writer stops waiting.
    pub(crate) fn handle_unlink(&mut self) -> Actions {
        self.unlinks = self.unlinks.wrapping_add(1);
        Actions::waking(ROOM)
    }

    /// Returns a ticket for [`QueueCore::ask_for_room`], which is valid until the pad is unlinked.
    pub(crate) fn ticket(&self) -> u32 {
        self.unlinks
    }

    /// Whether there is room, for a writer that waits or whose item has exceeded the limits. The end of the stream is not a
    /// refusal here.
    pub(crate) fn ask_for_room(&mut self, ticket: u32) -> Result<bool, Refusal<E>> {
        if ticket != self.unlinks {
            return Err(Refusal::Unlinked);
        }
        match self.ask_for_push() {
            Ok(()) | Err(Refusal::Ended) => Ok(!self.is_full() || self.limits.leaky != Leaky::No),
            Err(refusal) => Err(refusal),
        }
    }

    fn ask(&self) -> Result<(), Refusal<E>> {
        match (self.intake, self.outflow) {
            (Intake::Stopped | Intake::Flushing | Intake::Shut, _) => Err(Refusal::Flushing),
            (_, Outflow::Failed { error, is_seen }) => Err(Refusal::Failed { error, is_seen }),
            (Intake::Ended, _) => Err(Refusal::Ended),
            (Intake::Open, _) => Ok(()),
        }
    }

    /// Checks whether a push is accepted. If the result is an error, the error counts as seen from now on.
    #[inline]
    fn ask_for_push(&mut self) -> Result<(), Refusal<E>> {
        let answer = self.ask();
        if let (Err(Refusal::Failed { .. }), Outflow::Failed { is_seen, .. }) =
            (&answer, &mut self.outflow)
        {
            *is_seen = true;
        }
        answer
    }

    /// Begins a query's wait until all items have left; thresholds do not hold them back any more.
    pub(crate) fn begin_drain(&mut self) -> Actions {
        self.drains += 1;
        Actions::waking(ITEM)
    }

    pub(crate) fn end_drain(&mut self) {
        self.drains -= 1;
    }

    /// Whether all items have left.
    pub(crate) fn is_drained(&self) -> Result<bool, Refusal<E>> {
        self.ask()?;
        Ok(self.is_empty() && !self.is_with_reader)
    }

    fn append(&mut self, item: T, size: Size) {
        self.buffers += size.buffers;
        self.bytes += u64::from(size.bytes);
        if let Some(span_ns) = size.span_ns {
            self.spans_ns.push_back(span_ns);
        }
        self.items.push_back(Queued {
            item,
            buffers: size.buffers,
            bytes: size.bytes,
            has_time: size.span_ns.is_some(),
            follows_gap: size.buffers > 0 && std::mem::take(&mut self.gap_at_tail),
        });
    }

    /// Drops the oldest data, but not events. Returns `false` without data.
    fn leak_oldest(&mut self) -> bool {
        while self.items.front().is_some_and(|oldest| oldest.buffers == 0) {
            // Each event moves only once, so the cost of a leak does not grow with the number of events.
            self.events_ahead.extend(self.items.pop_front());
        }
        let Some(oldest) = self.items.pop_front() else {
            return false;
        };
        self.subtract(&oldest);
        self.leaked += u64::from(oldest.buffers);
        self.discarded.add(oldest.item);
        self.gap_at_head = true;
        true
    }

    fn drop_data(&mut self) {
        for queued in std::mem::take(&mut self.items).into_iter() {
            if queued.buffers == 0 {
                self.items.push_back(queued);
            } else {
                self.discarded.add(queued.item);
            }
        }
        self.spans_ns.clear();
        self.buffers = 0;
        self.bytes = 0;
    }
}

/// The reader's end.
impl<T, E: Copy + PartialEq> QueueCore<T, E> {
    /// Records that the reader has returned, and gives it the next item.
    #[inline]
    pub(crate) fn handle_pop(&mut self) -> (Option<Popped<T>>, Actions) {
        let was_with_reader = std::mem::take(&mut self.is_with_reader);
        let mut actions = Actions::default();
        let is_flowing = self.outflow == Outflow::Flowing;
        let next = if is_flowing && self.may_pop() {
            self.take_front()
        } else {
            None
        };
        let Some(queued) = next else {
            if was_with_reader {
                actions.wake = DRAINED;
            }
            if !self.is_dry && is_flowing && !self.limits.silent {
                self.is_dry = true;
                actions.underrun = true;
            }
            return (None, actions);
        };
        self.is_with_reader = true;
        self.passed += u64::from(queued.buffers);
        if !self.is_full() {
            actions.wake = ROOM;
        }
        let is_at_gap = queued.buffers > 0 && std::mem::take(&mut self.gap_at_head);
        let popped = Popped {
            item: queued.item,
            follows_gap: queued.follows_gap || is_at_gap,
        };
        (Some(popped), actions)
    }

    fn take_front(&mut self) -> Option<Queued<T>> {
        if let Some(event) = self.events_ahead.pop_front() {
            return Some(event);
        }
        let queued = self.items.pop_front()?;
        self.subtract(&queued);
        Some(queued)
    }

    fn subtract(&mut self, queued: &Queued<T>) {
        self.buffers -= queued.buffers;
        self.bytes -= u64::from(queued.bytes);
        if queued.has_time {
            self.spans_ns.pop_front();
        }
    }

    /// Whether the queue has an item and reaches its threshold.
    fn may_pop(&self) -> bool {
        if !self.events_ahead.is_empty() {
            return true;
        }
        let Some(front) = self.items.front() else {
            return false;
        };
        front.buffers == 0
            || self.intake == Intake::Ended
            || self.drains > 0
            || !self.level().is_below(&self.limits.min)
            || self.is_full()
    }
}

/// Contents and limits.
impl<T, E: Copy + PartialEq> QueueCore<T, E> {
    /// Returns the current contents. The time is from the start of the first item with a time to the end of the last one.
    pub(crate) fn level(&self) -> Level {
        let time_ns = match (self.spans_ns.front(), self.spans_ns.back()) {
            (Some((begin_ns, _)), Some((_, end_ns))) => end_ns.saturating_sub(*begin_ns),
            _ => 0,
        };
        Level {
            buffers: self.buffers,
            bytes: u32::try_from(self.bytes).unwrap_or(u32::MAX),
            time_ns,
        }
    }

    fn is_full(&self) -> bool {
        self.level().reaches(&self.limits.max)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events_ahead.is_empty() && self.items.is_empty()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Changes the limits: waits at both ends may end.
    pub(crate) fn handle_limits(&mut self, change: impl FnOnce(&mut Limits)) -> Actions {
        change(&mut self.limits);
        Actions::waking(ITEM | ROOM)
    }

    /// Returns the number of buffers that have left the queue.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Returns the number of buffers that were dropped because the queue was full.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked
    }
}

#[cfg(test)]
mod tests;
