//! One sink: its limits, its buffer and its end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_sink::Sink;

use crate::link::Link;
use crate::order::{Service, Target};
use crate::policy::{Policy, Schedule};
use crate::signals::SinkWaker;
use crate::statistics::SinkStatistics;

/// Result of an offered message.
pub(crate) enum Offer<M, E> {
    Delivered,
    Waits,
    /// The message is buffered, and the oldest one is dropped.
    WaitsForOldest,
    Limited,
    Overflowed,
    /// The message is dropped, because too many before it were dropped in a row. The sink must be disconnected.
    Disconnect,
    /// The message must wait, and so must all following ones.
    Blocked(M),
    Failed(E),
}

/// Progress of a sink that gets no more messages.
pub(crate) enum Progress<E> {
    Pending,
    Closed,
    Failed(E),
}

/// The layout is fixed: fields used for each message come first, because thousands of sinks share the cache.
#[repr(C)]
pub(crate) struct Slot<K, M, S> {
    sink: S,
    /// Whether the sink has returned `Pending` and has not been woken since.
    is_pending: bool,
    pub(crate) needs_flush: bool,
    /// Whether the sink's guard must be told of dropped messages.
    pub(crate) needs_publish: bool,
    pub(crate) is_closing: bool,
    /// Whether a guard reads the link.
    pub(crate) is_guarded: bool,
    /// Whether `service` has a limit, kept here for the cache.
    has_limit: bool,
    /// Whether `waiting` has messages, kept here for the cache.
    has_waiting: bool,
    overflows_in_row: u32,
    statistics: SinkStatistics,
    waker: Waker,
    waiting: VecDeque<M>,
    service: Service,
    schedule: Schedule,
    signal: Arc<SinkWaker>,
    pub(crate) target: Target<K>,
    pub(crate) link: Arc<Link>,
}

impl<K, M, S> Slot<K, M, S> {
    pub(crate) fn statistics(&self) -> SinkStatistics {
        self.statistics
    }
}

impl<K, M, S: Sink<M> + Unpin> Slot<K, M, S> {
    pub(crate) fn new(
        target: Target<K>,
        sink: S,
        service: Service,
        link: Arc<Link>,
        signal: Arc<SinkWaker>,
    ) -> Self {
        Slot {
            sink,
            is_pending: false,
            needs_flush: false,
            needs_publish: false,
            is_closing: false,
            is_guarded: false,
            has_limit: service.limit.is_some(),
            has_waiting: false,
            overflows_in_row: 0,
            statistics: SinkStatistics::default(),
            waker: Waker::from(signal.clone()),
            waiting: VecDeque::new(),
            service,
            schedule: Schedule::default(),
            signal,
            target,
            link,
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the sink has returned `Pending`, or messages wait for it.
    pub(crate) fn is_full(&self) -> bool {
        self.is_pending || !self.waiting.is_empty()
    }

    /// Offers a new message. After `Blocked`, call it again when the sink is woken.
    #[inline]
    pub(crate) fn offer(&mut self, message: M, now_ns: u64) -> Offer<M, S::Error> {
        if self.has_limit
            && let Some(limit) = &self.service.limit
            && !self.schedule.admits(limit, now_ns)
        {
            self.statistics.limited += 1;
            return Offer::Limited;
        }
        self.offer_admitted(message)
    }

    /// Acts as [`Slot::offer`], for a message that has already passed the limit.
    #[inline]
    pub(crate) fn offer_admitted(&mut self, message: M) -> Offer<M, S::Error> {
        if !self.has_waiting {
            match self.poll_ready() {
                Poll::Ready(Ok(())) => {
                    return match self.send(message) {
                        Ok(()) => Offer::Delivered,
                        Err(error) => Offer::Failed(error),
                    };
                }
                Poll::Ready(Err(error)) => return Offer::Failed(error),
                Poll::Pending => {}
            }
        }
        self.keep(message)
    }

    fn keep(&mut self, message: M) -> Offer<M, S::Error> {
        if self.waiting.len() < self.service.buffer {
            self.push(message);
            return Offer::Waits;
        }
        match self.service.policy {
            Policy::Block => return Offer::Blocked(message),
            Policy::DropNewest => {}
            Policy::DropOldest => {
                self.statistics.overflowed += 1;
                if self.waiting.pop_front().is_some() {
                    self.waiting.push_back(message);
                    return Offer::WaitsForOldest;
                }
                return Offer::Overflowed;
            }
            Policy::DisconnectAfter(most) => {
                self.overflows_in_row += 1;
                if self.overflows_in_row >= most {
                    self.statistics.overflowed += 1;
                    return Offer::Disconnect;
                }
            }
        }
        self.statistics.overflowed += 1;
        Offer::Overflowed
    }

    /// Buffers a message regardless of the limits.
    pub(crate) fn push(&mut self, message: M) {
        self.waiting.push_back(message);
        self.has_waiting = true;
    }

    #[inline]
    fn poll_ready(&mut self) -> Poll<Result<(), S::Error>> {
        if self.is_pending {
            if !self.signal.is_woken() {
                return Poll::Pending;
            }
            self.signal.clear();
        }
        let ready = Pin::new(&mut self.sink).poll_ready(&mut Context::from_waker(&self.waker));
        self.is_pending = ready.is_pending();
        ready
    }

    #[inline]
    fn send(&mut self, message: M) -> Result<(), S::Error> {
        Pin::new(&mut self.sink).start_send(message)?;
        self.statistics.delivered += 1;
        self.overflows_in_row = 0;
        Ok(())
    }

    /// Clears the wake-up flag of a sink that was woken, or that is checked for the first time after a change.
    pub(crate) fn clear_signal(&mut self) {
        self.signal.clear();
        self.is_pending = false;
    }

    /// Delivers buffered messages while the sink takes them. Returns their number. With an error, one more message was lost.
    pub(crate) fn drain(&mut self) -> (u64, Option<S::Error>) {
        let mut delivered = 0;
        while !self.waiting.is_empty() {
            let ready = match self.poll_ready() {
                Poll::Ready(ready) => ready,
                Poll::Pending => break,
            };
            // Each error loses one message, so that a sink that always fails cannot block others.
            let Some(message) = self.waiting.pop_front() else {
                break;
            };
            self.has_waiting = !self.waiting.is_empty();
            if let Err(error) = ready.and_then(|()| self.send(message)) {
                return (delivered, Some(error));
            }
            delivered += 1;
        }
        (delivered, None)
    }

    /// Flushes the sink. If the result is `Pending`, the sink's waker is called later.
    pub(crate) fn poll_flush(&mut self) -> Poll<Result<(), S::Error>> {
        let mut cx = Context::from_waker(&self.waker);
        let flushed = Pin::new(&mut self.sink).poll_flush(&mut cx);
        if flushed.is_ready() {
            self.needs_flush = false;
        }
        flushed
    }

    /// Closes a sink that gets no more messages, after [`Slot::drain`].
    pub(crate) fn poll_close(&mut self) -> Progress<S::Error> {
        if !self.waiting.is_empty() {
            return Progress::Pending;
        }
        let mut cx = Context::from_waker(&self.waker);
        match Pin::new(&mut self.sink).poll_close(&mut cx) {
            Poll::Ready(Ok(())) => Progress::Closed,
            Poll::Ready(Err(error)) => Progress::Failed(error),
            Poll::Pending => Progress::Pending,
        }
    }
}
