//! Pending work of the demultiplexer: orders that are ready, and sinks that were woken. All data that cross threads are here and
//! in [`crate::handle`].
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `task` | the demultiplexer, at each poll | wakers |
//! | `has_orders` | the thread that makes an order ready, before it wakes the task | the demultiplexer, once per message |
//! | `woken`, and `is_woken` of each link | wakers of sinks | the demultiplexer, once per batch |
//!
//! Flags change only by read-modify-write operations, so that their changes have one order. A flag is set before the task is
//! woken. It is cleared before the work that it stands for is checked. A later change sets it again.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{AcqRel, Acquire};
use crate::sync::{Mutex, lock};

pub(crate) struct Signals {
    task: Mutex<Waker>,
    has_orders: AtomicBool,
    has_woken: AtomicBool,
    woken: Mutex<Vec<usize>>,
}

impl Default for Signals {
    fn default() -> Self {
        Signals {
            task: Mutex::new(Waker::noop().clone()),
            // The first poll checks for orders.
            has_orders: AtomicBool::new(true),
            has_woken: AtomicBool::new(false),
            woken: Mutex::new(Vec::new()),
        }
    }
}

impl Signals {
    /// Sets the task that polls the demultiplexer now.
    pub(crate) fn set_task(&self, waker: &Waker) {
        let mut task = lock(&self.task);
        if !task.will_wake(waker) {
            let replaced = std::mem::replace(&mut *task, waker.clone());
            drop(task);
            // Dropping a foreign waker calls foreign code.
            drop(replaced);
        }
    }

    fn wake_task(&self) {
        let task = lock(&self.task).clone();
        task.wake();
    }

    pub(crate) fn tell_of_orders(&self) {
        self.has_orders.swap(true, AcqRel);
        self.wake_task();
    }

    /// Whether orders are ready. The caller then sees the orders that this flag reports.
    #[inline]
    pub(crate) fn have_orders(&self) -> bool {
        self.has_orders.load(Acquire)
    }

    /// Clears the flag for orders. Call it before the orders are checked.
    pub(crate) fn take_orders(&self) -> bool {
        self.has_orders.swap(false, AcqRel)
    }

    /// Adds the places of the sinks that were woken.
    pub(crate) fn take_woken(&self, places: &mut Vec<usize>) {
        if self.has_woken.swap(false, AcqRel) {
            places.append(&mut lock(&self.woken));
        }
    }
}

/// Wakes the demultiplexer for orders.
pub(crate) struct OrdersWaker(pub(crate) Arc<Signals>);

impl Wake for OrdersWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.tell_of_orders();
    }
}

/// Wakes the demultiplexer for one sink.
pub(crate) struct SinkWaker {
    signals: Arc<Signals>,
    place: usize,
    is_woken: AtomicBool,
}

impl SinkWaker {
    pub(crate) fn new(signals: Arc<Signals>, place: usize) -> Self {
        SinkWaker {
            signals,
            place,
            is_woken: AtomicBool::new(false),
        }
    }

    /// Clears the flag of a wake-up. Call it before the sink is polled.
    pub(crate) fn clear(&self) {
        self.is_woken.swap(false, AcqRel);
    }

    #[inline]
    pub(crate) fn is_woken(&self) -> bool {
        self.is_woken.load(Acquire)
    }
}

impl Wake for SinkWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One entry in the list is enough until it is handled.
        if !self.is_woken.swap(true, AcqRel) {
            lock(&self.signals.woken).push(self.place);
            self.signals.has_woken.swap(true, AcqRel);
        }
        self.signals.wake_task();
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::atomic::Ordering::Release;
    use std::task::Waker;

    #[derive(Default)]
    struct Counted {
        wakes: Mutex<usize>,
        woken: loom::sync::Condvar,
    }

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            *lock(&self.wakes) += 1;
            self.woken.notify_all();
        }
    }

    /// Simulates the thread of a demultiplexer: it looks, and sleeps until it is woken.
    fn looks_until<T>(woken: &Counted, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let seen = *lock(&woken.wakes);
            if let Some(found) = look() {
                return found;
            }
            let mut wakes = lock(&woken.wakes);
            while *wakes == seen {
                wakes = woken.woken.wait(wakes).unwrap();
            }
        }
    }

    #[test]
    fn loom_a_command_is_seen_before_a_later_message() {
        loom::model(|| {
            let signals = Arc::new(Signals::default());
            signals.take_orders();
            let order = Arc::new(AtomicUsize::new(0));
            let message = Arc::new(AtomicUsize::new(0));
            let writer = loom::thread::spawn({
                let (signals, order, message) = (signals.clone(), order.clone(), message.clone());
                move || {
                    order.store(1, Release);
                    signals.tell_of_orders();
                    message.store(1, Release);
                }
            });
            if message.load(Acquire) == 1 {
                assert!(signals.have_orders());
                assert_eq!(order.load(Acquire), 1);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_every_command_is_seen() {
        loom::model(|| {
            let signals = Arc::new(Signals::default());
            let woken = Arc::new(Counted::default());
            signals.set_task(&Waker::from(woken.clone()));
            let order = Arc::new(AtomicUsize::new(0));
            let writer = loom::thread::spawn({
                let (signals, order) = (signals.clone(), order.clone());
                move || {
                    order.store(1, Release);
                    Waker::from(Arc::new(OrdersWaker(signals))).wake();
                }
            });
            looks_until(&woken, || {
                let is_there = signals.take_orders() && order.load(Acquire) == 1;
                is_there.then_some(())
            });
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_every_woken_sink_is_polled() {
        loom::model(|| {
            let signals = Arc::new(Signals::default());
            let woken = Arc::new(Counted::default());
            signals.set_task(&Waker::from(woken.clone()));
            let sink = Arc::new(SinkWaker::new(signals.clone(), 3));
            let room = Arc::new(AtomicUsize::new(0));
            let writer = loom::thread::spawn({
                let (sink, room) = (sink.clone(), room.clone());
                move || {
                    for _ in 0..2 {
                        room.fetch_add(1, AcqRel);
                        sink.wake_by_ref();
                    }
                }
            });
            let mut places = Vec::new();
            looks_until(&woken, || {
                signals.take_woken(&mut places);
                if places.pop().is_some() {
                    sink.clear();
                    return (room.load(Acquire) == 2).then_some(());
                }
                None
            });
            writer.join().unwrap();
        });
    }
}
