//! The path of a message: from the input, through its key and the places of sinks, to a sink.
//!
//! | phase | input | ends with |
//! |---|---|---|
//! | running | polled, at most a batch at a time | the input's end |
//! | ending | ended; sinks take their waiting messages and are closed | the last sink's close, or the deadline |
//!
//! A message that cannot continue is *held*, and the input is not polled in the meantime. There are two reasons: a sink with
//! [`crate::Policy::Block`], and more orders than one batch takes.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use futures_sink::Sink;

use crate::handle::{Control, Handle};
use crate::link::{Link, Place};
use crate::order::{Change, Order, Service, Target};
use crate::route::Route;
use crate::settings::{Deadline, Duplicates, Handler, Settings, Verdict};
use crate::signals::{OrdersWaker, Signals};
use crate::slot::{Offer, Progress};
use crate::slots::Slots;
use crate::statistics::{End, Report, Statistics};
use crate::table::{Found, Table};

/// Delivers messages from a stream to the sinks of their keys. It is a future: run it as a task, or await it.
///
/// It ends when its input ends, or earlier through [`Handle::abort`] or its handler. If an order was ready before the input gave
/// a message, the order is applied before that message is routed.
#[must_use = "futures do nothing unless polled"]
pub struct Demultiplexer<I: Stream, R: Route<I::Item>, O, S, H> {
    input: Option<I>,
    route: R,
    orders: Option<O>,
    handler: H,
    control: Arc<Control<R::Key, S>>,
    orders_waker: Waker,
    table: Table<R::Key>,
    slots: Slots<R::Key, I::Item, S>,
    /// Sinks that have taken messages since their last flush.
    unflushed: Vec<usize>,
    /// Sinks whose guards must be told of dropped messages, because a blocked sink does not flush.
    unpublished: Vec<usize>,
    woken: Vec<usize>,
    undelivered: Undelivered<I::Item>,
    settings: Settings<I::Item>,
    deadline: Option<Deadline>,
    now_ns: u64,
    statistics: Statistics,
    closing: usize,
    closed: u64,
    dropped: u64,
    end: Option<End>,
    has_reported: bool,
}

/// A message on its way.
enum Undelivered<M> {
    None,
    /// The message's sinks are not known yet, because orders come first.
    Unrouted(M),
    /// The message waits for these sinks, of which the last in the list comes first. The message has already passed the rate
    /// limit of that sink, but the sink has not taken it.
    Blocked(M, Vec<Place>),
}

/// Whether a batch continues.
enum Next {
    Go,
    /// Woken sinks, or the rest of a batch, come first.
    Wait,
}

impl<I, R, O, S, H> Demultiplexer<I, R, O, S, H>
where
    I: Stream + Unpin,
    R: Route<I::Item>,
    O: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
    S: Sink<I::Item> + Unpin,
    H: Handler<R::Key, S::Error>,
{
    pub(crate) fn new(
        input: I,
        route: R,
        orders: O,
        handler: H,
        settings: Settings<I::Item>,
    ) -> Self {
        let signals = Arc::new(Signals::default());
        Demultiplexer {
            input: Some(input),
            route,
            orders: Some(orders),
            handler,
            orders_waker: Waker::from(Arc::new(OrdersWaker(signals.clone()))),
            control: Arc::new(Control::new(signals)),
            table: Table::new(settings.seed),
            slots: Slots::new(),
            unflushed: Vec::new(),
            unpublished: Vec::new(),
            woken: Vec::new(),
            undelivered: Undelivered::None,
            settings,
            deadline: None,
            now_ns: 0,
            statistics: Statistics::default(),
            closing: 0,
            closed: 0,
            dropped: 0,
            end: None,
            has_reported: false,
        }
    }

    /// Returns a handle. Any thread can use it to give orders to the demultiplexer, even while the demultiplexer runs.
    pub fn handle(&self) -> Handle<R::Key, S> {
        Handle(self.control.clone())
    }
}

/// The run.
impl<I, R, O, S, H> Demultiplexer<I, R, O, S, H>
where
    I: Stream + Unpin,
    R: Route<I::Item>,
    O: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
    S: Sink<I::Item> + Unpin,
    H: Handler<R::Key, S::Error>,
{
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Next {
        let mut budget = BATCH;
        self.serve_woken();
        loop {
            if self.control.signals.have_orders()
                && let Next::Wait = self.apply_orders(cx)
            {
                return Next::Wait;
            }
            if self.end.is_some() {
                return Next::Go;
            }
            if let Next::Wait = self.let_go() {
                return Next::Wait;
            }
            let Some(input) = self.input.as_mut() else {
                return Next::Go;
            };
            if budget == 0 {
                cx.waker().wake_by_ref();
                return Next::Wait;
            }
            match Pin::new(input).poll_next(cx) {
                Poll::Pending => return Next::Wait,
                Poll::Ready(None) => {
                    self.input = None;
                    self.begin_end();
                    return Next::Go;
                }
                Poll::Ready(Some(message)) => {
                    budget -= 1;
                    self.statistics.received += 1;
                    if self.control.signals.have_orders() {
                        self.undelivered = Undelivered::Unrouted(message);
                    } else {
                        self.route(message);
                    }
                }
            }
        }
    }

    /// Delivers a held message. Returns `Wait` if its sink has not been woken yet.
    #[inline]
    fn let_go(&mut self) -> Next {
        match std::mem::replace(&mut self.undelivered, Undelivered::None) {
            Undelivered::None => Next::Go,
            Undelivered::Unrouted(message) => {
                self.route(message);
                Next::Go
            }
            Undelivered::Blocked(message, places) => {
                self.serve_woken();
                self.give_all(message, places, true);
                match self.undelivered {
                    Undelivered::None => Next::Go,
                    _ => Next::Wait,
                }
            }
        }
    }

    #[inline]
    fn route(&mut self, message: I::Item) {
        let key = self.route.key(&message);
        match self.table.find(key) {
            None => self.statistics.unmatched += 1,
            Some(Found::One(index)) => self.give(index, message),
            Some(Found::Many(indices)) => {
                let indices = indices.to_vec();
                let places = indices.iter().filter_map(|index| self.slots.place(*index));
                let places: Vec<Place> = places.collect();
                self.statistics.copies += (places.len() as u64).saturating_sub(1);
                self.give_all(message, places, false);
            }
        }
    }

    /// Delivers to one sink, the usual case.
    #[inline]
    fn give(&mut self, index: usize, message: I::Item) {
        let Some(slot) = self.slots.get(index) else {
            debug_assert!(false, "the table has no place without a sink");
            self.statistics.unmatched += 1;
            return;
        };
        match slot.offer(message, self.now_ns) {
            Offer::Delivered => {
                if !std::mem::replace(&mut slot.needs_flush, true) {
                    self.unflushed.push(index);
                }
                self.statistics.delivered += 1;
            }
            Offer::Blocked(message) => {
                let place = self.slots.place(index);
                self.undelivered = Undelivered::Blocked(message, place.into_iter().collect());
            }
            other => self.note(index, other),
        }
    }

    /// Delivers to several sinks, of which the last in the list comes first. `is_admitted`: the message has already passed the
    /// rate limit of that sink.
    fn give_all(&mut self, message: I::Item, mut places: Vec<Place>, is_admitted: bool) {
        let (mut message, mut is_admitted) = (message, is_admitted);
        while let Some(place) = places.pop() {
            let admitted = std::mem::replace(&mut is_admitted, false);
            if !self.slots.has(place) {
                self.statistics.abandoned += 1;
                continue;
            }
            let copy = self.settings.copy.filter(|_| !places.is_empty());
            let rest = copy.map(|copy| copy(&message));
            let offer = match self.slots.get(place.index) {
                Some(slot) if admitted => slot.offer_admitted(message),
                Some(slot) => slot.offer(message, self.now_ns),
                None => return,
            };
            if let Offer::Blocked(message) = offer {
                places.push(place);
                self.undelivered = Undelivered::Blocked(message, places);
                return;
            }
            self.note(place.index, offer);
            match rest {
                Some(rest) => message = rest,
                None => return,
            }
        }
    }

    /// Counts the result of an offered message.
    fn note(&mut self, index: usize, offer: Offer<I::Item, S::Error>) {
        match offer {
            Offer::Delivered => {
                self.statistics.delivered += 1;
                self.mark_unflushed(index);
            }
            Offer::Waits => self.statistics.waiting += 1,
            Offer::Limited => {
                self.statistics.limited += 1;
                self.mark_unpublished(index);
            }
            Offer::Overflowed | Offer::WaitsForOldest => {
                self.statistics.overflowed += 1;
                self.mark_unpublished(index);
            }
            Offer::Disconnect => {
                self.statistics.overflowed += 1 + self.drop_sink(index);
            }
            Offer::Failed(error) => {
                self.statistics.errored += 1;
                self.judge(index, error);
            }
            Offer::Blocked(_) => debug_assert!(false, "a blocked message is held"),
        }
    }

    fn mark_unflushed(&mut self, index: usize) {
        if let Some(slot) = self.slots.get(index)
            && !std::mem::replace(&mut slot.needs_flush, true)
        {
            self.unflushed.push(index);
        }
    }

    fn mark_unpublished(&mut self, index: usize) {
        if let Some(slot) = self.slots.get(index)
            && slot.is_guarded
            && !std::mem::replace(&mut slot.needs_publish, true)
        {
            self.unpublished.push(index);
        }
    }

    fn publish_marked(&mut self) {
        while let Some(index) = self.unpublished.pop() {
            // Another sink may have the place by now. The removed sink has already published its last counts.
            if let Some(slot) = self.slots.get(index)
                && std::mem::replace(&mut slot.needs_publish, false)
            {
                slot.link.publish(slot.statistics());
            }
        }
    }

    /// Handles a failure of a sink.
    fn judge(&mut self, index: usize, error: S::Error) {
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        let verdict = self.handler.failed(&slot.target, error);
        // A sink that fails while it is closing is removed, whatever the handler decides.
        let is_closing = slot.is_closing;
        if verdict == Verdict::Abort {
            self.end.get_or_insert(End::Failed);
        }
        if verdict == Verdict::Remove || is_closing {
            self.statistics.errored += self.drop_sink(index);
        }
    }

    /// Drops a sink; returns the number of messages that waited for it.
    fn drop_sink(&mut self, index: usize) -> u64 {
        self.dropped += 1;
        self.remove(index)
    }

    fn remove(&mut self, index: usize) -> u64 {
        let Some(slot) = self.slots.remove(index) else {
            return 0;
        };
        if slot.is_closing {
            self.closing -= 1;
        } else {
            self.table.remove(&slot.target, index);
        }
        slot.link.end(slot.statistics());
        let waiting = slot.waiting() as u64;
        self.statistics.waiting -= waiting;
        waiting
    }

    /// Ends a sink, which gets no more messages.
    fn retire(&mut self, index: usize, most: usize) {
        let Some(slot) = self.slots.get(index).filter(|slot| !slot.is_closing) else {
            return;
        };
        slot.is_closing = true;
        slot.link.end(slot.statistics());
        self.table.remove(&slot.target, index);
        self.closing += 1;
        self.unhold(index);
        if self.closing > most {
            self.statistics.abandoned += self.drop_sink(index);
        } else {
            self.advance(index);
        }
    }

    /// Moves a held message to the buffer of this sink, because the message came before the sink's end.
    fn unhold(&mut self, index: usize) {
        let (message, mut places) =
            match std::mem::replace(&mut self.undelivered, Undelivered::None) {
                Undelivered::Blocked(message, places) => (message, places),
                other => {
                    self.undelivered = other;
                    return;
                }
            };
        let is_it = |place: &Place| place.index == index;
        let Some(at) = places.iter().position(is_it) else {
            self.undelivered = Undelivered::Blocked(message, places);
            return;
        };
        places.remove(at);
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        self.statistics.waiting += 1;
        match self.settings.copy.filter(|_| !places.is_empty()) {
            Some(copy) => {
                slot.push(copy(&message));
                self.undelivered = Undelivered::Blocked(message, places);
            }
            None => slot.push(message),
        }
    }

    fn serve_woken(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        self.control.signals.take_woken(&mut woken);
        for index in woken.drain(..) {
            if let Some(slot) = self.slots.get(index) {
                slot.clear_signal();
                self.advance(index);
            }
        }
        // Swap the lists, to reuse their memory. Indices that were added in the meantime stay.
        woken.append(&mut self.woken);
        self.woken = woken;
    }

    /// Continues a sink's work: its buffer, flush and end.
    fn advance(&mut self, index: usize) {
        loop {
            let Some(slot) = self.slots.get(index) else {
                return;
            };
            let (delivered, error) = slot.drain();
            slot.needs_flush |= delivered > 0;
            self.statistics.delivered += delivered;
            self.statistics.waiting -= delivered;
            let Some(error) = error else { break };
            self.statistics.waiting -= 1;
            self.statistics.errored += 1;
            self.judge(index, error);
        }
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        if !slot.is_closing {
            self.flush(index);
            return;
        }
        match slot.poll_close() {
            Progress::Pending => {}
            Progress::Closed => {
                self.closed += 1;
                self.remove(index);
            }
            Progress::Failed(error) => self.judge(index, error),
        }
    }

    fn flush(&mut self, index: usize) {
        let Some(slot) = self.slots.get(index).filter(|slot| slot.needs_flush) else {
            return;
        };
        match slot.poll_flush() {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                if slot.is_guarded {
                    slot.link.publish(slot.statistics());
                }
                // The flush itself may have made room, without a call of the waker.
                if slot.is_full() {
                    self.woken.push(index);
                }
            }
            Poll::Ready(Err(error)) => self.judge(index, error),
        }
    }

    /// Ends a batch. Returns `true` if there is more work to do immediately.
    fn end_batch(&mut self) -> bool {
        let mut unflushed = std::mem::take(&mut self.unflushed);
        for index in unflushed.drain(..) {
            self.flush(index);
        }
        unflushed.append(&mut self.unflushed);
        self.unflushed = unflushed;
        self.publish_marked();
        self.control.publish(self.count());
        !self.woken.is_empty()
    }

    fn count(&self) -> Statistics {
        let undelivered = match &self.undelivered {
            Undelivered::None => 0,
            Undelivered::Unrouted(_) => 1,
            Undelivered::Blocked(_, places) => places.len() as u64,
        };
        Statistics {
            waiting: self.statistics.waiting + undelivered,
            ..self.statistics
        }
    }
}

/// Orders.
impl<I, R, O, S, H> Demultiplexer<I, R, O, S, H>
where
    I: Stream + Unpin,
    R: Route<I::Item>,
    O: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
    S: Sink<I::Item> + Unpin,
    H: Handler<R::Key, S::Error>,
{
    /// Applies all orders that are ready. Returns `Wait` if there are more than one batch takes.
    #[cold]
    fn apply_orders(&mut self, cx: &mut Context<'_>) -> Next {
        self.control.signals.take_orders();
        for _ in 0..ORDERS_MAX {
            if self.end.is_some() {
                return Next::Go;
            }
            let order = self.control.next().or_else(|| self.poll_orders());
            match order {
                Some(order) => self.apply(order),
                None => return Next::Go,
            }
        }
        self.control.signals.tell_of_orders();
        cx.waker().wake_by_ref();
        Next::Wait
    }

    fn poll_orders(&mut self) -> Option<Order<R::Key, S>> {
        let mut cx = Context::from_waker(&self.orders_waker);
        match Pin::new(self.orders.as_mut()?).poll_next(&mut cx) {
            Poll::Ready(Some(order)) => Some(order.into()),
            Poll::Ready(None) => {
                self.orders = None;
                None
            }
            Poll::Pending => None,
        }
    }

    fn apply(&mut self, order: Order<R::Key, S>) {
        match order.0 {
            Change::Subscribe {
                target,
                sink,
                service,
                link,
                is_guarded,
            } => self.subscribe(target, sink, service, (link, is_guarded)),
            Change::Unsubscribe(target) => {
                for index in self.table.places(&target) {
                    self.retire(index, CLOSING_MAX);
                }
            }
            Change::Release(link) => {
                if let Some(place) = link.place().filter(|place| self.slots.has(*place)) {
                    self.retire(place.index, CLOSING_MAX);
                }
            }
            Change::Abort => self.end = Some(End::Aborted),
        }
    }

    fn subscribe(
        &mut self,
        target: Target<R::Key>,
        sink: S,
        service: Service,
        (link, is_guarded): (Arc<Link>, bool),
    ) {
        let lacks_clock = service.limit.is_some() && self.settings.clock.is_none();
        let is_taken = self.settings.copy.is_none() && self.table.has(&target);
        let is_refused = is_taken && self.settings.duplicates == Duplicates::Refuse;
        if self.input.is_none() || lacks_clock || is_refused {
            link.refuse();
            return;
        }
        if is_taken {
            for index in self.table.places(&target) {
                self.retire(index, CLOSING_MAX);
            }
        }
        let signals = self.control.signals.clone();
        let index = (self.slots).add(&signals, target.clone(), sink, service, link);
        if let Some(slot) = self.slots.get(index) {
            slot.is_guarded = is_guarded;
        }
        self.table.add(&target, index);
    }
}

/// The end.
impl<I, R, O, S, H> Demultiplexer<I, R, O, S, H>
where
    I: Stream + Unpin,
    R: Route<I::Item>,
    O: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
    S: Sink<I::Item> + Unpin,
    H: Handler<R::Key, S::Error>,
{
    fn begin_end(&mut self) {
        self.deadline = self.settings.deadline.take().map(|deadline| deadline());
        for index in self.slots.indices() {
            self.retire(index, usize::MAX);
        }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) {
        if self.control.signals.have_orders()
            && let Next::Wait = self.apply_orders(cx)
        {
            return;
        }
        self.serve_woken();
        if self.end.is_some() {
            return;
        }
        if self.slots.len() == 0 {
            self.end = Some(End::Complete);
        } else if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.end = Some(End::Deadline);
        }
    }

    fn report(&mut self, end: End) -> Report {
        for index in self.slots.indices() {
            self.statistics.abandoned += self.drop_sink(index);
        }
        self.statistics.abandoned += self.count().waiting;
        self.undelivered = Undelivered::None;
        (self.input, self.orders) = (None, None);
        self.has_reported = true;
        end_control(&self.control, self.statistics);
        Report {
            end,
            statistics: self.statistics,
            closed: self.closed,
            dropped: self.dropped,
        }
    }
}

/// Drops orders that were not applied.
fn end_control<K, S>(control: &Control<K, S>, statistics: Statistics) {
    for order in control.end(statistics) {
        if let Change::Subscribe { link, .. } = order.0 {
            link.refuse();
        }
    }
}

impl<I, R, O, S, H> Future for Demultiplexer<I, R, O, S, H>
where
    I: Stream + Unpin,
    R: Route<I::Item> + Unpin,
    O: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
    S: Sink<I::Item> + Unpin,
    H: Handler<R::Key, S::Error> + Unpin,
    I::Item: Unpin,
    R::Key: Unpin,
{
    type Output = Report;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Report> {
        let this = &mut *self;
        assert!(!this.has_reported, "polled after its end");
        this.control.signals.set_task(cx.waker());
        if let Some(clock) = &mut this.settings.clock {
            this.now_ns = clock();
        }
        if this.input.is_some() {
            this.poll_input(cx);
        }
        if this.input.is_none() && this.end.is_none() {
            this.poll_end(cx);
        }
        if this.end.is_none() {
            if this.end_batch() {
                cx.waker().wake_by_ref();
            }
            // A flush may have failed.
            if this.end.is_none() {
                return Poll::Pending;
            }
        }
        let end = this.end.unwrap_or(End::Complete);
        Poll::Ready(this.report(end))
    }
}

impl<I: Stream, R: Route<I::Item>, O, S, H> Drop for Demultiplexer<I, R, O, S, H> {
    fn drop(&mut self) {
        if !self.has_reported {
            end_control(&self.control, self.statistics);
            self.slots.end_links();
        }
    }
}

impl<I: Stream, R: Route<I::Item>, O, S, H> fmt::Debug for Demultiplexer<I, R, O, S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Demultiplexer")
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

/// Maximum number of messages in one poll, so that other tasks can run.
const BATCH: usize = 256;
/// Maximum number of orders in one poll.
const ORDERS_MAX: usize = 1024;
/// Maximum number of sinks that are closing while the input continues. Further sinks are dropped at once. Without this limit, the
/// sinks of peers that come and go without reading would accumulate.
const CLOSING_MAX: usize = 1024;
