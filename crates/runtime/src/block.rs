//! Runs a future on an ordinary thread, which sleeps until the future is woken.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::sys::clock_now_ns;

/// Runs `future` on this thread until it completes. The thread sleeps while the future is pending.
/// [`sleep_until`](crate::sleep_until) works inside `future`. Do not call this on a shard's thread, because it blocks all other
/// agents and tasks of the shard; await the future there instead.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let parker = Arc::new(Parker {
        thread: thread::current(),
        woken: AtomicBool::new(false),
    });
    let waker = Waker::from(parker.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        let alarm = Alarm(ALARM.replace(Some(NEVER)));
        let polled = future.as_mut().poll(&mut cx);
        let alarm_ns = ALARM.get().unwrap_or(NEVER);
        drop(alarm);
        if let Poll::Ready(output) = polled {
            return output;
        }
        parker.park_until(alarm_ns);
    }
}

/// Requests another poll of the surrounding [`block_on`]'s future at this time of CLOCK_MONOTONIC. Returns `false` outside of
/// [`block_on`].
pub(crate) fn set_alarm(deadline_ns: u64) -> bool {
    ALARM.with(|alarm| {
        let known = alarm.get();
        if let Some(earlier_ns) = known {
            alarm.set(Some(earlier_ns.min(deadline_ns)));
        }
        known.is_some()
    })
}

/// Whether this thread is polling a future of [`block_on`].
pub(crate) fn is_inside() -> bool {
    ALARM.get().is_some()
}

thread_local! {
    /// Alarm of the surrounding [`block_on`]; `None` outside of it.
    static ALARM: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The alarm of an outer `block_on`, which is restored when the inner one ends, even after a panic.
struct Alarm(Option<u64>);

impl Drop for Alarm {
    fn drop(&mut self) {
        ALARM.set(self.0);
    }
}

const NEVER: u64 = u64::MAX;

struct Parker {
    thread: Thread,
    woken: AtomicBool,
}

impl Parker {
    fn park_until(&self, alarm_ns: u64) {
        // Other code may unpark this thread for other reasons.
        while !self.woken.swap(false, Ordering::Acquire) {
            if alarm_ns == NEVER {
                thread::park();
                continue;
            }
            let left_ns = alarm_ns.saturating_sub(clock_now_ns());
            if left_ns == 0 {
                return;
            }
            thread::park_timeout(Duration::from_nanos(left_ns));
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
