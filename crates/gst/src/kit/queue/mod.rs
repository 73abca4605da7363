//! A bounded queue between two streaming threads: the inside of `ts-queue` and of proxies.
//!
//! A push on a context thread never waits in place: the queue takes data beyond the limits too, and the source that
//! pushed awaits room before it produces more ([`super::pending`]). So the queue may exceed its limits by one input's
//! output, and loses nothing. An ordinary thread waits in `push`.

mod first;
mod properties;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{CACHE_LINE, prefetch};

use self::first::FirstInPlace;
use super::condition::Condition;
use super::pending::{self, Hold};
use super::stats::StatsProperty;
use super::{lock, trail};

pub(crate) use self::properties::QueueProperties;

/// The side that a full queue leaks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareQueueLeaky")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum Leaky {
    /// None: the pusher waits.
    #[default]
    #[enum_value(name = "Not leaky", nick = "no")]
    No,
    /// New buffers are dropped.
    #[enum_value(name = "Leaky on upstream (new buffers)", nick = "upstream")]
    Upstream,
    /// Old buffers are dropped.
    #[enum_value(name = "Leaky on downstream (old buffers)", nick = "downstream")]
    Downstream,
}

/// The amount in a queue, or its limit; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Level {
    pub(crate) buffers: u32,
    pub(crate) bytes: u32,
    pub(crate) time_ns: u64,
}

impl Level {
    /// Whether this reaches one of `limits`.
    fn reaches(&self, limits: &Level) -> bool {
        (limits.buffers > 0 && self.buffers >= limits.buffers)
            || (limits.bytes > 0 && self.bytes >= limits.bytes)
            || (limits.time_ns > 0 && self.time_ns >= limits.time_ns)
    }

    /// Whether this is below one of `thresholds`.
    fn is_below(&self, thresholds: &Level) -> bool {
        self.buffers < thresholds.buffers
            || self.bytes < thresholds.bytes
            || self.time_ns < thresholds.time_ns
    }
}

/// An item in the queue.
#[derive(Clone)]
pub(crate) enum Item {
    Buffer(gst::Buffer),
    List(gst::BufferList),
    Event(gst::Event),
}

impl Item {
    /// Pushes the item. The result of an event is not reported.
    pub(crate) fn push(self, pad: &gst::Pad) -> Result<gst::FlowSuccess, gst::FlowError> {
        match self {
            Item::Buffer(buffer) => pad.push(buffer),
            Item::List(list) => pad.push_list(list),
            Item::Event(event) => {
                pad.push_event(event);
                Ok(gst::FlowSuccess::Ok)
            }
        }
    }

    fn buffers(&self) -> u32 {
        match self {
            Item::Buffer(_) => 1,
            Item::List(list) => list.len() as u32,
            Item::Event(_) => 0,
        }
    }

    fn bytes(&self) -> u32 {
        let bytes = match self {
            Item::Buffer(buffer) => buffer.size(),
            Item::List(list) => list.calculate_size(),
            Item::Event(_) => 0,
        };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Begin and end.
    fn span(&self) -> Option<(gst::ClockTime, gst::ClockTime)> {
        let of = |buffer: &gst::BufferRef| {
            let begin = buffer.dts_or_pts()?;
            Some((
                begin,
                begin + buffer.duration().unwrap_or(gst::ClockTime::ZERO),
            ))
        };
        match self {
            Item::Buffer(buffer) => of(buffer),
            Item::List(list) => Some((
                of(list.get(0)?)?.0,
                of(list.get(list.len().checked_sub(1)?)?)?.1,
            )),
            Item::Event(_) => None,
        }
    }
}

/// An item with its size. The thread that takes it in has the size at hand; the thread that takes it out would have to
/// wait for the memory.
struct Queued {
    item: Item,
    buffers: u32,
    bytes: u32,
    /// Begin and end, running time.
    span: Option<(gst::ClockTime, gst::ClockTime)>,
}

/// Notices that the element may emit as signals. Signals are emitted without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    Overrun,
    Underrun,
    Running,
}

/// An event was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) error: gst::FlowError,
    /// A push has already reported it.
    pub(crate) seen: bool,
}

/// A buffer or list was refused.
pub(crate) enum Refusal {
    /// There is no room.
    Full(Item),
    /// The queue no longer accepts items.
    Ended,
}

/// The queue. Cheap to clone: both ends share it.
#[derive(Clone)]
pub(crate) struct Queue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condition,
    notice: Box<dyn Fn(Notice) + Send + Sync>,
}

struct State {
    items: FirstInPlace<Queued>,
    level: Level,
    max: Level,
    min: Level,
    leaky: Leaky,
    silent: bool,
    flush_on_eos: bool,
    flushing: bool,
    /// New items are refused, but queued ones continue.
    refusing: bool,
    /// Downstream's last flow result.
    result: Result<(), gst::FlowError>,
    /// A failed result has been reported upstream.
    result_seen: bool,
    is_eos: bool,
    /// The popper holds an item that is not pushed yet.
    in_flight: bool,
    /// A buffer was dropped: the next one follows a gap.
    discont: bool,
    is_empty_noticed: bool,
    /// Buffers that left the queue, and buffers that leaked.
    passed: u64,
    leaked: u64,
    /// Number of threads that wait for an empty queue: no threshold holds items back meanwhile.
    drains: u32,
    segment: gst::FormattedSegment<gst::ClockTime>,
    pushers: Vec<Waker>,
    popper: Option<Waker>,
}

impl Queue {
    pub(crate) fn new(notice: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Queue(Arc::new(Shared {
            state: Mutex::new(State {
                items: FirstInPlace::default(),
                level: Level::default(),
                max: Level {
                    buffers: 200,
                    bytes: 1 << 20,
                    time_ns: 1_000_000_000,
                },
                min: Level::default(),
                leaky: Leaky::No,
                silent: false,
                flush_on_eos: false,
                flushing: true,
                refusing: false,
                result: Ok(()),
                result_seen: false,
                is_eos: false,
                in_flight: false,
                discont: false,
                is_empty_noticed: true,
                passed: 0,
                leaked: 0,
                drains: 0,
                segment: gst::FormattedSegment::new(),
                pushers: Vec::new(),
                popper: None,
            }),
            changed: Condition::default(),
            notice: Box::new(notice),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Fields that both ends touch for each item.
    pub(crate) fn span(&self) -> (usize, usize) {
        trail::span(&self.0.state)
    }

    /// The same, for the end that takes items out.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let lines = size_of::<Mutex<State>>().div_ceil(CACHE_LINE);
        prefetch(&raw const self.0.state, lines);
    }

    /// Takes a buffer or list, in order. On a context thread the pushing source waits for room.
    pub(crate) fn push(&self, item: Item) -> Result<(), gst::FlowError> {
        let mut overran = false;
        self.prefetch();
        loop {
            let mut state = self.state();
            state.prefetch_popper();
            state.check_for_pusher()?;
            if !state.is_full() || state.leaky == Leaky::Downstream {
                state.leak_old();
                self.enqueue(state, item);
                return Ok(());
            }
            if state.leaky == Leaky::Upstream {
                state.discont = true;
                state.leaked += u64::from(item.buffers());
                return Ok(());
            }
            if pending::can_defer() {
                let noticed = !state.silent;
                self.enqueue(state, item);
                if noticed {
                    (self.0.notice)(Notice::Overrun);
                }
                pending::defer(Hold::Source, Box::pin(Room(self.clone())));
                return Ok(());
            }
            if !std::mem::replace(&mut overran, true) && !state.silent {
                drop(state);
                (self.0.notice)(Notice::Overrun);
                continue;
            }
            // An ordinary thread waits here, and checks everything again afterwards.
            drop(self.0.changed.wait(state));
        }
    }

    /// Takes the item if there is room. `Ok`: whether the queue is full now.
    pub(crate) fn offer(&self, item: Item) -> Result<bool, Refusal> {
        self.prefetch();
        let mut state = self.state();
        state.prefetch_popper();
        state.check_for_pusher().map_err(|_| Refusal::Ended)?;
        if state.is_full() && state.leaky == Leaky::No {
            return Err(Refusal::Full(item));
        }
        if state.is_full() && state.leaky == Leaky::Upstream {
            state.discont = true;
            state.leaked += u64::from(item.buffers());
            return Ok(true);
        }
        state.leak_old();
        Ok(self.enqueue(state, item))
    }

    /// The property `stats` of an element with a queue inside.
    pub(crate) fn stats_property(&self, name: &'static str) -> StatsProperty {
        let items = self.clone();
        StatsProperty::new(move || {
            gst::Structure::builder(name)
                .field("passed", items.passed())
                .field("leaked", items.leaked())
                .field("buffers", u64::from(items.level().buffers))
                .build()
        })
    }

    /// Buffers that have left it.
    pub(crate) fn passed(&self) -> u64 {
        self.state().passed
    }

    /// Buffers dropped for lack of room.
    pub(crate) fn leaked(&self) -> u64 {
        self.state().leaked
    }

    /// Current contents.
    pub(crate) fn level(&self) -> Level {
        self.state().level
    }

    /// Takes the item regardless of the limits.
    pub(crate) fn push_over(&self, item: Item) -> Result<(), gst::FlowError> {
        let mut state = self.state();
        state.check_for_pusher()?;
        self.enqueue(state, item);
        Ok(())
    }

    /// Stops or starts accepting items, while queued ones continue; releases threads that wait to push.
    pub(crate) fn refuse(&self, refusing: bool) {
        self.state().refusing = refusing;
        self.wake_all();
    }

    /// Takes a serialized event; limits never hold up events.
    pub(crate) fn push_event(&self, event: gst::Event) -> Result<(), Refused> {
        let mut state = self.state();
        if event.type_() == gst::EventType::StreamStart {
            state.is_eos = false;
        }
        if let Err(error) = state.check() {
            let seen = state.result_seen;
            return Err(Refused { error, seen });
        }
        match event.view() {
            gst::EventView::Segment(segment) => {
                if let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>() {
                    state.segment = segment.clone();
                }
            }
            gst::EventView::Eos(_) => {
                state.is_eos = true;
                if state.flush_on_eos {
                    state.items.retain(|queued| queued.buffers == 0);
                    state.recount();
                }
            }
            _ => {}
        }
        self.enqueue(state, Item::Event(event));
        Ok(())
    }

    /// Appends the item. Returns whether the queue is full now.
    fn enqueue(&self, mut state: MutexGuard<'_, State>, mut item: Item) -> bool {
        if std::mem::take(&mut state.discont) {
            if let Item::Buffer(buffer) = &mut item {
                buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
            } else {
                state.discont = true;
            }
        }
        let queued = state.sized(item);
        let has_time = queued.span.is_some();
        state.level.buffers += queued.buffers;
        state.level.bytes = state.level.bytes.saturating_add(queued.bytes);
        state.items.push_back(queued);
        if has_time {
            state.retime();
        }
        let popper = if state.may_pop() {
            state.popper.take()
        } else {
            None
        };
        let running =
            !state.silent && state.level.buffers > 0 && std::mem::take(&mut state.is_empty_noticed);
        let is_full = state.is_full();
        drop(state);
        if running {
            (self.0.notice)(Notice::Running);
        }
        if let Some(popper) = popper {
            popper.wake();
        }
        is_full
    }

    /// The next item, if any; otherwise `waker` is woken when one arrives.
    pub(crate) fn pop(&self, waker: impl FnOnce() -> Waker) -> Option<Item> {
        let mut state = self.state();
        let was_in_flight = std::mem::take(&mut state.in_flight);
        if state.flushing || !state.may_pop() {
            state.popper = Some(waker());
            let underrun = !state.silent
                && !state.flushing
                && !std::mem::replace(&mut state.is_empty_noticed, true);
            drop(state);
            if was_in_flight {
                self.0.changed.notify_all();
            }
            if underrun {
                (self.0.notice)(Notice::Underrun);
            }
            return None;
        }
        let item = state.take_front();
        state.in_flight = true;
        let pushers = if state.is_full() {
            Vec::new()
        } else {
            std::mem::take(&mut state.pushers)
        };
        drop(state);
        self.0.changed.notify_all();
        pushers.into_iter().for_each(Waker::wake);
        item
    }

    /// Waits for the next item on a dedicated thread. `None`: `is_interrupted` ended the wait; it is called when an
    /// item arrives and when a flush begins or ends.
    pub(crate) fn pop_wait(&self, is_interrupted: impl Fn() -> bool) -> Option<Item> {
        threadbare_runtime::block_on(std::future::poll_fn(|cx| {
            // Checked first, so that no item from after the interruption is taken.
            if is_interrupted() {
                return Poll::Ready(None);
            }
            match self.pop(|| cx.waker().clone()) {
                Some(item) => Poll::Ready(Some(item)),
                // An interruption precedes a flush, which has woken the waiting threads by now.
                None if is_interrupted() => Poll::Ready(None),
                None => Poll::Pending,
            }
        }))
    }

    /// Downstream failed: the next push returns its result. `true`: no push will come, the stream has ended.
    pub(crate) fn fail(&self, error: gst::FlowError) -> bool {
        // The failed item was pushed before a completed flush: it does not concern later items.
        self.note_failure(error, |state| std::mem::take(&mut state.in_flight))
    }

    /// The same for a popper that keeps its popped items, so no item needs to be in its hands when a push fails. A
    /// failure after the start of a flush is not noted; all earlier pushes have returned when the flush ends.
    pub(crate) fn fail_kept(&self, error: gst::FlowError) -> bool {
        self.note_failure(error, |state| !state.flushing)
    }

    /// As [`Queue::fail`], if it `matters`.
    fn note_failure(
        &self,
        error: gst::FlowError,
        matters: impl FnOnce(&mut State) -> bool,
    ) -> bool {
        let unseen = {
            let mut state = self.state();
            if !matters(&mut state) {
                return false;
            }
            state.result = Err(error);
            state.result_seen = false;
            state.is_eos
        };
        self.wake_all();
        unseen
    }

    /// Sets limits from within the element.
    pub(crate) fn limit(&self, leaky: Leaky, max: Level) {
        self.set_limits(|state| {
            state.leaky = leaky;
            state.max = max;
        });
    }

    /// Begins or ends a flush; also releases all waiting threads before the element stops. Returns the queued sticky
    /// events that are still valid.
    pub(crate) fn flush(&self, flushing: bool) -> Vec<gst::Event> {
        let dropped = {
            let mut state = self.state();
            state.flushing = flushing;
            state.in_flight = false;
            state.is_eos = false;
            state.is_empty_noticed = true;
            state.level = Level::default();
            if !flushing {
                state.result = Ok(());
                state.segment = gst::FormattedSegment::new();
            }
            std::mem::take(&mut state.items)
        };
        self.wake_all();
        let sticky = dropped.into_iter().filter_map(|queued| match queued.item {
            Item::Event(event)
                if event.is_sticky()
                    && !matches!(event.type_(), gst::EventType::Segment | gst::EventType::Eos) =>
            {
                Some(event)
            }
            _ => None,
        });
        sticky.collect()
    }

    /// Waits, on an ordinary thread, until all pushed items have left. `false`: they will not.
    pub(crate) fn wait_drained(&self) -> bool {
        let mut state = self.state();
        state.drains += 1;
        // A threshold may have held items back.
        if let Some(popper) = state.popper.take() {
            popper.wake();
        }
        let has_left = loop {
            if state.check().is_err() {
                break false;
            }
            if state.items.is_empty() && !state.in_flight {
                break true;
            }
            state = self.0.changed.wait(state);
        };
        state.drains -= 1;
        has_left
    }

    fn wake_all(&self) {
        let (pushers, popper) = {
            let mut state = self.state();
            (std::mem::take(&mut state.pushers), state.popper.take())
        };
        self.0.changed.notify_all();
        pushers.into_iter().chain(popper).for_each(Waker::wake);
    }

    /// Limits may have changed while a thread waits.
    fn set_limits(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.wake_all();
    }
}

impl State {
    fn check(&self) -> Result<(), gst::FlowError> {
        if self.flushing || self.refusing {
            return Err(gst::FlowError::Flushing);
        }
        self.result?;
        if self.is_eos {
            Err(gst::FlowError::Eos)
        } else {
            Ok(())
        }
    }

    /// As [`State::check`], for a push: its caller sees a failed result from now on.
    fn check_for_pusher(&mut self) -> Result<(), gst::FlowError> {
        self.result_seen |= self.result.is_err();
        self.check()
    }

    /// The consumer's thread touched this waker last.
    #[inline]
    fn prefetch_popper(&self) {
        if let Some(popper) = &self.popper {
            prefetch(popper.data(), 1);
        }
    }

    fn is_full(&self) -> bool {
        self.level.reaches(&self.max)
    }

    /// Whether the queue has an item and reaches its threshold.
    fn may_pop(&self) -> bool {
        !self.items.is_empty()
            && (self.is_eos
                || self.drains > 0
                || self.is_full()
                || !self.level.is_below(&self.min)
                || !matches!(self.items.front(), Some(queued) if queued.is_data()))
    }

    fn take_front(&mut self) -> Option<Item> {
        let queued = self.items.pop_front()?;
        self.level.buffers -= queued.buffers;
        self.passed += u64::from(queued.buffers);
        self.level.bytes = self.level.bytes.saturating_sub(queued.bytes);
        if queued.span.is_some() {
            self.retime();
        }
        Some(queued.item)
    }

    /// Makes room for one more by dropping the oldest buffers; events stay.
    fn leak_old(&mut self) {
        while self.leaky == Leaky::Downstream && self.is_full() {
            let Some(i) = self.items.iter().position(|queued| queued.buffers > 0) else {
                return;
            };
            let queued = self.items.remove(i);
            self.leaked += queued.map_or(0, |queued| u64::from(queued.buffers));
            self.discont_next();
            self.recount();
        }
    }

    /// The first buffer still queued, or else the next one, follows a gap.
    fn discont_next(&mut self) {
        for queued in self.items.iter_mut() {
            if let Item::Buffer(buffer) = &mut queued.item {
                buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
                return;
            }
        }
        self.discont = true;
    }

    fn stats(&self) -> gst::Structure {
        gst::Structure::builder("application/x-ts-queue-stats")
            .field("buffers-passed", self.passed)
            .field("buffers-leaked", self.leaked)
            .field("current-level-buffers", self.level.buffers)
            .field("current-level-bytes", self.level.bytes)
            .field("current-level-time", self.level.time_ns)
            .build()
    }

    fn recount(&mut self) {
        self.level.buffers = self.items.iter().map(|queued| queued.buffers).sum();
        let bytes = self.items.iter().map(|queued| queued.bytes);
        self.level.bytes = bytes.fold(0, u32::saturating_add);
        self.retime();
    }

    /// Queued time: from the begin of the first to the end of the last item with a time.
    fn retime(&mut self) {
        let first = self.items.iter().find_map(|queued| queued.span);
        let last = self.items.iter().rev().find_map(|queued| queued.span);
        self.level.time_ns = match (first, last) {
            (Some((begin, _)), Some((_, end))) => end.nseconds().saturating_sub(begin.nseconds()),
            _ => 0,
        };
    }

    fn sized(&self, item: Item) -> Queued {
        let running = |time: gst::ClockTime| self.segment.to_running_time(time).unwrap_or(time);
        Queued {
            buffers: item.buffers(),
            bytes: item.bytes(),
            span: item
                .span()
                .map(|(begin, end)| (running(begin), running(end))),
            item,
        }
    }
}

impl Queued {
    fn is_data(&self) -> bool {
        !matches!(self.item, Item::Event(_))
    }
}

/// Completes when there is room again.
struct Room(Queue);

impl Future for Room {
    type Output = Result<(), gst::FlowError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        // The end of the stream is no error here: the queue took this wait's item earlier.
        if state.flushing {
            return Poll::Ready(Err(gst::FlowError::Flushing));
        }
        if let Err(error) = state.result {
            state.result_seen = true;
            return Poll::Ready(Err(error));
        }
        if !state.is_full() || state.leaky != Leaky::No {
            return Poll::Ready(Ok(()));
        }
        state.pushers.push(cx.waker().clone());
        Poll::Pending
    }
}
