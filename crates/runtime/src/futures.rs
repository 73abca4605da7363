//! Futures on a context, with the names of GLib's main context: one style for both.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{self, Poll};

use crate::block::block_on;
use crate::context::Context;
use crate::join::{JoinError, JoinHandle, Promise, promise};
use crate::shard::{Local, Shard, current_shard_id};

impl Context {
    /// Runs a future on the next of the context's threads ([`next_shard`](Self::next_shard)), from the next slice on.
    ///
    /// The task ends when the future completes, when [`JoinHandle::abort`] is called, or when the context ends. A handle does not
    /// keep the context in use. (A future that owns a [`Context`] does.) If the future panics, only this task ends: the panic is
    /// logged, and awaiting the handle returns it.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (promise, handle) = promise();
        let task = Supervised::new(future, promise);
        self.next_shard().spawn(task).detach();
        handle
    }

    /// Runs a future on the current thread, which must belong to the context. The future need not be `Send`. In all other
    /// respects, this acts as [`spawn`](Self::spawn).
    ///
    /// # Panics
    /// Panics on a thread that does not belong to the context, because a future that is not `Send` could not leave that thread.
    /// Use [`spawn_from_within`](Self::spawn_from_within) there.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        assert!(
            self.shards().iter().any(Shard::is_current),
            "spawn_local was called on a thread outside of context '{}': use spawn_from_within",
            self.name()
        );
        let (promise, handle) = promise();
        spawn_here(future, promise);
        handle
    }

    /// Calls `f` on the next of the context's threads in the next slice, and runs the future that it returns on that thread. The
    /// future need not be `Send`. In all other respects, this acts as [`spawn`](Self::spawn).
    pub fn spawn_from_within<F>(
        &self,
        f: impl FnOnce() -> F + Send + 'static,
    ) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let (promise, handle) = promise();
        let start = Start { f, promise };
        self.next_shard().spawn(start.run()).detach();
        handle
    }

    /// Runs a future on a thread of the context, as [`spawn`](Self::spawn) does, and blocks the calling thread until the result
    /// is ready. (In contrast, a main context's `block_on` and [`block_on`](crate::block_on) run the future on the calling
    /// thread.)
    ///
    /// # Errors
    /// Fails with [`JoinError`] if the future panicked, or if it is called on a thread of any context
    /// ([`is_refused`](JoinError::is_refused)), because it would block all agents and tasks of that thread.
    pub fn block_on<F>(&self, future: F) -> Result<F::Output, JoinError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if current_shard_id().is_some() {
            return Err(JoinError::refused());
        }
        block_on(self.spawn(future))
    }
}

/// Runs `future` on this thread's shard.
fn spawn_here<F>(future: F, promise: Promise<F::Output>)
where
    F: Future + 'static,
    F::Output: 'static,
{
    let task = Supervised::new(future, promise);
    Local::with_current(|local| local.spawn_local(task).detach());
}

/// A closure that was sent to the context and has not been called yet. Its fields are dropped in this order, so the closure is
/// dropped before its end is reported.
struct Start<C, T> {
    f: C,
    promise: Promise<T>,
}

impl<C, F> Start<C, F::Output>
where
    C: FnOnce() -> F,
    F: Future + 'static,
    F::Output: 'static,
{
    async fn run(self) {
        let is_aborted = poll_fn(|cx| Poll::Ready(self.promise.is_aborted(cx.waker()))).await;
        if is_aborted {
            return;
        }
        let Start { f, promise } = self;
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(future) => spawn_here(future, promise),
            Err(payload) => promise.keep(Err(panicked(payload))),
        }
    }
}

/// A future whose end, of any kind, is reported to a [`JoinHandle`] after the future has been dropped.
struct Supervised<F: Future> {
    /// Boxed, so that it can be dropped before the task.
    future: Option<Pin<Box<F>>>,
    promise: Option<Promise<F::Output>>,
}

impl<F: Future> Supervised<F> {
    fn new(future: F, promise: Promise<F::Output>) -> Self {
        Supervised {
            future: Some(Box::pin(future)),
            promise: Some(promise),
        }
    }

    /// Drops the future and reports its end. `result`: the result of the future; `None`: the future was stopped.
    fn end(&mut self, result: Option<Result<F::Output, JoinError>>) {
        let future = self.future.take();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(future)));
        let Some(promise) = self.promise.take() else {
            return;
        };
        let result = match dropped {
            Ok(()) => result.unwrap_or_else(|| Err(JoinError::cancelled())),
            Err(payload) => Err(panicked(payload)),
        };
        // If the handle was dropped, this drops the result, which may panic.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| promise.keep(result))) {
            panicked(payload);
        }
    }
}

// The future is pinned by its box.
impl<F: Future> Unpin for Supervised<F> {}

impl<F: Future> Future for Supervised<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let (Some(future), Some(promise)) = (&mut this.future, &this.promise) else {
            return Poll::Ready(());
        };
        if promise.is_aborted(cx.waker()) {
            this.end(None);
            return Poll::Ready(());
        }
        let result = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(panicked(payload)),
        };
        this.end(Some(result));
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Supervised<F> {
    /// Reports the end if the context ends before the future.
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Logs a task's panic, because the task may be detached.
fn panicked(payload: Box<dyn std::any::Any + Send>) -> JoinError {
    let error = JoinError::panicked(payload);
    let thread = std::thread::current();
    tracing::error!(context_thread = thread.name(), %error, "a task failed");
    error
}
