//! Waiting for a future on an ordinary thread: a real park, no polling.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs `future` to its end on this thread, which sleeps in between. On a shard's thread this stalls every other
/// resident: await instead.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let parker = Arc::new(Parker {
        thread: thread::current(),
        woken: AtomicBool::new(false),
    });
    let waker = Waker::from(parker.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // Other code may unpark this thread for its own reasons.
        while !parker.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

struct Parker {
    thread: Thread,
    woken: AtomicBool,
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
