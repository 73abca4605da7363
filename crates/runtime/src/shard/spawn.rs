//! Tasks: futures that run on a shard, and end with it.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{Local, Shard};

impl Shard {
    /// Runs a future on this shard. Dropping the task cancels it, and so does the end of the shard.
    ///
    /// For a task that must not outlive its owner. A task of [`Context::spawn`](crate::Context::spawn) outlives its handle, and
    /// reports its panic.
    pub fn spawn<F>(&self, future: F) -> async_task::Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let shard = self.clone();
        let (runnable, task) = async_task::spawn(enlisted(future), move |r| shard.schedule(r));
        runnable.schedule();
        task
    }
}

impl Local {
    /// Runs a future on this shard; it need not be `Send`. Dropping the task cancels it, unlike with
    /// [`Context::spawn_local`](crate::Context::spawn_local).
    pub fn spawn_local<F>(&self, future: F) -> async_task::Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let shard = self.shard.clone();
        let (runnable, task) =
            async_task::spawn_local(enlisted(future), move |r| shard.schedule(r));
        runnable.schedule();
        task
    }
}

/// Runs `future` as a task of the shard. The shard knows the task from the first poll on. When the shard ends, it can cancel the
/// task on its own thread, whichever code has the waker.
async fn enlisted<F: Future>(future: F) -> F::Output {
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
        // A shard that has ended has no tasks left.
        Local::with_current(|local| {
            if local.shard().id() == shard_id {
                let waker = local.tasks.borrow_mut().try_remove(key);
                drop(waker);
            }
        });
    }
}
