//! Batches wake-ups of calls' threads, for a thread that gives many orders in a row. A wake-up interrupts a sleep. This costs two context
//! switches, which is as much as some orders cost.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// As long as this value exists, orders of this thread that need an immediate wake-up ([`CallHandle::with`](crate::CallHandle::with)) are
/// gathered. The wake-ups are sent when the last of these values is dropped, or before this thread waits for an answer. Threads that are
/// awake may find the orders earlier.
#[must_use = "orders are gathered while it lives"]
#[derive(Debug)]
pub struct Gathering {
    /// Makes the value stay on one thread.
    not_send: PhantomData<*const ()>,
}

impl Gathering {
    /// Starts gathering.
    pub fn begin() -> Gathering {
        GATHERINGS.set(GATHERINGS.get() + 1);
        Gathering {
            not_send: PhantomData,
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        GATHERINGS.set(GATHERINGS.get() - 1);
        if GATHERINGS.get() == 0 {
            wake_all();
        }
    }
}

/// Wakes a thread so that it finds its orders, now or at the end of the gathering.
pub(crate) fn wake(one: impl FnOnce() + 'static) {
    match GATHERINGS.get() {
        0 => one(),
        _ => PENDING.with_borrow_mut(|pending| pending.push(Box::new(one))),
    }
}

/// Sends all pending wake-ups, because this thread is about to wait.
pub(crate) fn wake_all() {
    // A wake-up may give more orders.
    for one in PENDING.take() {
        one();
    }
}

type WakeUp = Box<dyn FnOnce()>;

thread_local! {
    static GATHERINGS: Cell<usize> = const { Cell::new(0) };
    /// The pending wake-ups. There is at most one for each thread of calls, because an inbox asks for only one.
    static PENDING: RefCell<Vec<WakeUp>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn wake_ups_are_sent_at_once_or_when_the_last_gathering_ends() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let give = |number: u32| {
            let told = told.clone();
            wake(move || told.borrow_mut().push(number));
        };
        give(1);
        assert_eq!(*told.borrow(), [1]);
        let outer = Gathering::begin();
        give(2);
        let inner = Gathering::begin();
        give(3);
        drop(inner);
        assert_eq!(*told.borrow(), [1]);
        wake_all();
        assert_eq!(*told.borrow(), [1, 2, 3], "in order");
        give(4);
        assert_eq!(*told.borrow(), [1, 2, 3]);
        drop(outer);
        assert_eq!(*told.borrow(), [1, 2, 3, 4]);
        give(5);
        assert_eq!(*told.borrow(), [1, 2, 3, 4, 5]);
    }
}
