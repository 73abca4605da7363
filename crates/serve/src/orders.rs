//! Orders from other threads to the control thread, which owns the calls. An order is a closure that runs between two requests.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::waker::WakeSignal;

/// A closure for the control thread, which owns an `S`.
type Order<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The reason why an order was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotDone {
    /// The queue is full.
    #[error("the queue of the control thread already has {ORDERS_MAX} orders")]
    Busy,
    /// The control thread has ended.
    #[error("the relay is stopping")]
    Gone,
}

/// The sending end of the queue.
pub(super) struct Control<S> {
    queue: SyncSender<Order<S>>,
    wake: WakeSignal,
}

/// The receiving end of the queue, for the control thread.
pub(super) struct Orders<S> {
    queue: Receiver<Order<S>>,
    wake: WakeSignal,
}

/// Creates an empty queue that signals `wake`.
pub(super) fn orders<S>(wake: WakeSignal) -> (Control<S>, Orders<S>) {
    let (put, taken) = sync_channel(ORDERS_MAX);
    let control = Control {
        queue: put,
        wake: wake.clone(),
    };
    (control, Orders { queue: taken, wake })
}

impl<S> Clone for Control<S> {
    fn clone(&self) -> Control<S> {
        Control {
            queue: self.queue.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<S> Control<S> {
    /// Queues an order without waiting for it.
    ///
    /// # Errors
    /// Fails if the queue is full, or the control thread has ended.
    pub(super) fn order(&self, order: impl FnOnce(&mut S) + Send + 'static) -> Result<(), NotDone> {
        match self.queue.try_send(Box::new(order)) {
            Ok(()) => {
                self.wake.ring();
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(NotDone::Busy),
            Err(TrySendError::Disconnected(_)) => Err(NotDone::Gone),
        }
    }

    /// Queues an order, and waits for its result. The order is skipped if the caller has stopped waiting.
    ///
    /// # Errors
    /// Fails if the queue is full, or the control thread has ended.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let (tell, told) = oneshot::channel();
        self.order(move |owner| {
            if !tell.is_closed() {
                let _ = tell.send(order(owner));
            }
        })?;
        told.await.map_err(|_| NotDone::Gone)
    }
}

/// An order that waits for room in the queue, or is in the queue. `None`: it has run.
type QueuedOrder<F> = Arc<Mutex<Option<F>>>;

impl<S: 'static> Control<S> {
    /// Queues an order that must not be lost. If the queue is full, the order waits for room. It is lost only if the control thread has
    /// ended. Call this on a tokio runtime. At most as many orders wait as there are requests in progress.
    pub(super) fn order_surely(&self, order: impl FnOnce(&mut S) + Send + 'static) {
        let queued = Arc::new(Mutex::new(Some(order)));
        if self.try_order(&queued) {
            return;
        }
        let control = self.clone();
        tokio::spawn(async move {
            while !control.try_order(&queued) {
                sleep(AGAIN).await;
            }
        });
    }

    /// Queues an order. Returns `false` if the queue is full.
    fn try_order<F: FnOnce(&mut S) + Send + 'static>(&self, queued: &QueuedOrder<F>) -> bool {
        let queued = queued.clone();
        let run = move |owner: &mut S| {
            let order = queued.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(order) = order {
                order(owner);
            }
        };
        self.order(run) != Err(NotDone::Busy)
    }
}

impl<S> Orders<S> {
    /// Returns up to [`BURST`] queued orders. If there are more, signals the wake-up again. So clear the signal before this call.
    pub(super) fn take(&self) -> Vec<Order<S>> {
        let taken: Vec<Order<S>> = self.queue.try_iter().take(BURST).collect();
        if taken.len() == BURST {
            self.wake.ring();
        }
        taken
    }
}

/// Maximum number of queued orders. It allows one for each HTTP connection, and as many for clients that have gone.
const ORDERS_MAX: usize = 512;
/// Pause before another attempt to use a full queue.
const AGAIN: Duration = Duration::from_millis(10);
/// Maximum number of orders that are carried out before the next requests of proxies.
const BURST: usize = 64;

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn run(orders: &Orders<Vec<u32>>, done: &mut Vec<u32>) -> usize {
        let taken = orders.take();
        let number = taken.len();
        taken.into_iter().for_each(|order| order(done));
        number
    }

    #[test]
    fn orders_run_in_order_and_return_their_results() {
        let (control, orders) = orders::<Vec<u32>>(WakeSignal::new().expect("a bell"));
        let mut done = Vec::new();
        control.order(|done| done.push(1)).expect("room");
        let mut asked = pin!(control.ask(|done: &mut Vec<u32>| {
            done.push(2);
            done.len()
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(asked.as_mut().poll(&mut cx), Poll::Pending);
        assert_eq!(run(&orders, &mut done), 2);
        assert_eq!(asked.as_mut().poll(&mut cx), Poll::Ready(Ok(2)));
        assert_eq!(done, [1, 2]);
    }

    #[test]
    fn orders_fail_if_the_queue_is_full_or_closed() {
        let (control, orders) = orders::<Vec<u32>>(WakeSignal::new().expect("a bell"));
        let mut done = Vec::new();
        for _ in 0..ORDERS_MAX {
            control.order(|done| done.push(0)).expect("room");
        }
        assert_eq!(control.order(|_| ()), Err(NotDone::Busy));
        assert_eq!(poll(control.ask(|_| ())), Poll::Ready(Err(NotDone::Busy)));
        // Orders are taken in batches, and the remaining ones wait.
        assert_eq!(run(&orders, &mut done), BURST);
        while run(&orders, &mut done) > 0 {}
        assert_eq!(done.len(), ORDERS_MAX);
        let mut asked = pin!(control.ask(|_| ()));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(asked.as_mut().poll(&mut cx), Poll::Pending);
        drop(orders);
        assert_eq!(
            asked.as_mut().poll(&mut cx),
            Poll::Ready(Err(NotDone::Gone))
        );
        assert_eq!(control.order(|_| ()), Err(NotDone::Gone));
    }

    /// If a required order were lost, the receiver of its reply would wait for ever.
    #[test]
    fn required_order_waits_for_room() {
        let (control, orders) = orders::<Vec<u32>>(WakeSignal::new().expect("a bell"));
        for _ in 0..ORDERS_MAX {
            control.order(|done| done.push(0)).expect("room");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime").block_on(async {
            control.order_surely(|done| done.push(7));
            let mut done = Vec::new();
            while !done.contains(&7) {
                run(&orders, &mut done);
                tokio::task::yield_now().await;
            }
            assert_eq!(done.len(), ORDERS_MAX + 1);
            drop(orders);
            // The control thread has ended.
            control.order_surely(|_| panic!("it is done"));
        });
    }

    /// Otherwise, an order of a client that has gone could end a call later, for example.
    #[test]
    fn order_without_a_waiter_is_skipped() {
        let (control, orders) = orders::<Vec<u32>>(WakeSignal::new().expect("a bell"));
        let mut done = Vec::new();
        assert_eq!(poll(control.ask(|done| done.push(1))), Poll::Pending);
        assert_eq!(run(&orders, &mut done), 1);
        assert!(done.is_empty());
    }
}
