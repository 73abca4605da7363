//! Orders from any thread: a handle, and guards of subscriptions.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::link::{Link, Status};
use crate::order::{Change, Order, Service, Target};
use crate::signals::Signals;
use crate::statistics::{SinkStatistics, Statistics};
use crate::sync::{Mutex, lock};

/// State shared between handles and the demultiplexer.
pub(crate) struct Control<K, S> {
    pub(crate) signals: Arc<Signals>,
    inner: Mutex<Inner<K, S>>,
}

struct Inner<K, S> {
    orders: VecDeque<Order<K, S>>,
    statistics: Statistics,
    has_ended: bool,
}

impl<K, S> Control<K, S> {
    pub(crate) fn new(signals: Arc<Signals>) -> Self {
        Control {
            signals,
            inner: Mutex::new(Inner {
                orders: VecDeque::new(),
                statistics: Statistics::default(),
                has_ended: false,
            }),
        }
    }

    /// Sends an order. Returns it as an error if the demultiplexer has ended.
    fn send(&self, order: Order<K, S>) -> Result<(), Order<K, S>> {
        {
            let mut inner = lock(&self.inner);
            if inner.has_ended {
                return Err(order);
            }
            inner.orders.push_back(order);
        }
        self.signals.tell_of_orders();
        Ok(())
    }

    pub(crate) fn next(&self) -> Option<Order<K, S>> {
        lock(&self.inner).orders.pop_front()
    }

    pub(crate) fn publish(&self, statistics: Statistics) {
        lock(&self.inner).statistics = statistics;
    }

    /// Refuses further orders. Returns the orders that were not applied.
    pub(crate) fn end(&self, statistics: Statistics) -> VecDeque<Order<K, S>> {
        let mut inner = lock(&self.inner);
        inner.has_ended = true;
        inner.statistics = statistics;
        std::mem::take(&mut inner.orders)
    }
}

/// Gives orders to a demultiplexer, from any thread. The demultiplexer does not wait for its handles: it ends with its input.
pub struct Handle<K, S>(pub(crate) Arc<Control<K, S>>);

impl<K, S> Clone for Handle<K, S> {
    fn clone(&self) -> Self {
        Handle(self.0.clone())
    }
}

impl<K, S> fmt::Debug for Handle<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// The error if the demultiplexer has ended. It contains the sink.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ended<S>(pub S);

// It is implemented for any sink type, because most have no `Debug` output.
impl<S> fmt::Debug for Ended<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended").finish_non_exhaustive()
    }
}

impl<S> fmt::Display for Ended<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the demultiplexer has ended")
    }
}

impl<S> std::error::Error for Ended<S> {}

impl<K, S> Handle<K, S> {
    /// Subscribes a sink. It gets the messages of the target until the guard is dropped. This includes all messages that the
    /// input gives after this call has returned.
    ///
    /// # Errors
    /// Fails if the demultiplexer has ended.
    pub fn subscribe(
        &self,
        target: Target<K>,
        sink: S,
        service: Service,
    ) -> Result<Guard<K, S>, Ended<S>> {
        let link = Arc::<Link>::default();
        let order = Order(Change::Subscribe {
            target,
            sink,
            service,
            link: link.clone(),
            is_guarded: true,
        });
        match self.0.send(order) {
            Ok(()) => Ok(Guard {
                control: Arc::downgrade(&self.0),
                link,
            }),
            Err(Order(Change::Subscribe { sink, .. })) => Err(Ended(sink)),
            Err(_) => unreachable!("the order comes back"),
        }
    }

    /// Ends all subscriptions of the target. Buffered messages are still delivered, and then the sinks are closed.
    pub fn unsubscribe(&self, target: Target<K>) {
        let _ = self.0.send(Order::unsubscribe(target));
    }

    /// Ends the demultiplexer at once: sinks are dropped with their buffers.
    pub fn abort(&self) {
        let _ = self.0.send(Order(Change::Abort));
    }

    /// Returns the counts at the end of the last batch.
    pub fn statistics(&self) -> Statistics {
        lock(&self.0.inner).statistics
    }

    /// Whether the demultiplexer has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.0.inner).has_ended
    }
}

/// A subscription. It ends when the guard is dropped. Buffered messages are still delivered, and then the sink is closed.
#[must_use = "dropping it ends the subscription"]
pub struct Guard<K, S> {
    control: Weak<Control<K, S>>,
    link: Arc<Link>,
}

impl<K, S> Guard<K, S> {
    /// Returns the state of the subscription.
    pub fn status(&self) -> Status {
        self.link.status()
    }

    /// Returns the sink's counts at its last flush, or at the last batch in which messages for it were dropped.
    pub fn statistics(&self) -> SinkStatistics {
        self.link.statistics()
    }

    /// Keeps the sink subscribed without a guard.
    pub fn detach(mut self) {
        self.control = Weak::new();
    }
}

impl<K, S> fmt::Debug for Guard<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl<K, S> Drop for Guard<K, S> {
    fn drop(&mut self) {
        if let Some(control) = self.control.upgrade() {
            let _ = control.send(Order(Change::Release(self.link.clone())));
        }
    }
}
