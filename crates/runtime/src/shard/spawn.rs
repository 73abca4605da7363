//! Tasks: futures that run on a shard, and end with it.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::Local;

/// Runs `future` as a task of the shard. The shard knows the task from the task's first poll on. So when the shard ends, it can
/// cancel the task on its own thread, whichever code has the waker.
pub(super) async fn enlisted<F: Future>(future: F) -> F::Output {
    let _enlisted = poll_fn(|cx| Poll::Ready(Enlisted::new(cx))).await;
    future.await
}

struct Enlisted(Option<(u64, usize)>);

impl Enlisted {
    fn new(cx: &Context<'_>) -> Self {
        let enlist = |local: &Local| {
            (
                local.shard().id(),
                local.tasks.borrow_mut().insert(cx.waker().clone()),
            )
        };
        Enlisted(Local::with_current(enlist))
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        let Some((shard_id, key)) = self.0 else {
            return;
        };
        // If the shard has ended, it has no tasks left.
        Local::with_current(|local| {
            if local.shard().id() == shard_id {
                let waker = local.tasks.borrow_mut().try_remove(key);
                drop(waker);
            }
        });
    }
}
