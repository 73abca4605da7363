//! A thread that gives many orders in a row tells the calls' threads of them together: telling one interrupts its sleep, which costs two changes
//! of threads, as much as some orders do.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// While this lives, calls' threads are not told of what this thread wants at once ([`CallHandle::with`](crate::CallHandle::with)), but when the
/// last of these is dropped, or before this thread waits for an answer. Those that work anyway may find the orders earlier.
#[must_use = "orders are gathered while it lives"]
#[derive(Debug)]
pub struct Gathering {
    /// Of this thread.
    not_send: PhantomData<*const ()>,
}

impl Gathering {
    /// From now on.
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
            tell_all();
        }
    }
}

/// Tells a thread of orders, now or later.
pub(crate) fn tell(one: impl FnOnce() + 'static) {
    match GATHERINGS.get() {
        0 => one(),
        _ => UNTOLD.with_borrow_mut(|untold| untold.push(Box::new(one))),
    }
}

/// Tells all that is left: this thread is about to wait.
pub(crate) fn tell_all() {
    // What is called may give orders.
    for one in UNTOLD.take() {
        one();
    }
}

type Tell = Box<dyn FnOnce()>;

thread_local! {
    static GATHERINGS: Cell<usize> = const { Cell::new(0) };
    /// At most one for each thread of calls: an inbox is told of once.
    static UNTOLD: RefCell<Vec<Tell>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn threads_are_told_at_once_or_when_the_last_gathering_ends_or_before_a_wait() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let give = |number: u32| {
            let told = told.clone();
            tell(move || told.borrow_mut().push(number));
        };
        give(1);
        assert_eq!(*told.borrow(), [1]);
        let outer = Gathering::begin();
        give(2);
        let inner = Gathering::begin();
        give(3);
        drop(inner);
        assert_eq!(*told.borrow(), [1]);
        tell_all();
        assert_eq!(*told.borrow(), [1, 2, 3], "in order");
        give(4);
        assert_eq!(*told.borrow(), [1, 2, 3]);
        drop(outer);
        assert_eq!(*told.borrow(), [1, 2, 3, 4]);
        give(5);
        assert_eq!(*told.borrow(), [1, 2, 3, 4, 5]);
    }
}
