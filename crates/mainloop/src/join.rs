//! The result of a task, which is passed to the task's handle.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::ready::Key;
use crate::sync::{Mutex, lock};

/// Handle of a task of an [`Executor`](crate::Executor). Awaiting it returns the task's result; dropping it detaches the task.
///
/// It corresponds to `glib::JoinHandle`, for tasks of this crate.
#[must_use = "a task whose handle is dropped continues; its result is lost"]
pub struct JoinHandle<T> {
    join: Arc<Join<T>>,
    executor: Weak<dyn Abort>,
}

/// Why a task has no result.
#[derive(thiserror::Error)]
pub enum JoinError {
    /// The task was aborted, or its executor ended.
    #[error("the task was cancelled")]
    Cancelled,
    /// The task panicked, with this payload.
    #[error("the task panicked: {}", message(.0.as_ref()))]
    Panicked(Box<dyn Any + Send>),
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => f.write_str("Cancelled"),
            JoinError::Panicked(payload) => f
                .debug_tuple("Panicked")
                .field(&message(payload.as_ref()))
                .finish(),
        }
    }
}

impl JoinError {
    /// Whether the task was aborted, or its executor ended.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self, JoinError::Panicked(_))
    }
}

impl<T> JoinHandle<T> {
    /// Creates a handle without a task.
    pub(crate) fn cancelled() -> Self {
        struct Nobody;
        impl Abort for Nobody {
            fn abort(&self, _: Key) {}
        }
        pair(Weak::<Nobody>::new()).2
    }

    /// Ends the task, from any thread: its executor drops it at the next dispatch. A task that has already ended keeps its
    /// result.
    pub fn abort(&self) {
        if let Some(key) = self.join.abort()
            && let Some(executor) = self.executor.upgrade()
        {
            executor.abort(key);
        }
    }

    /// Returns the key of the task; `None` if it has not reached its executor yet, or has no executor.
    pub(crate) fn key(&self) -> Option<Key> {
        lock(&self.join.0).key
    }

    /// Whether the result is ready, or will never come.
    pub fn is_finished(&self) -> bool {
        lock(&self.join.0).is_finished
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// Returns [`JoinError::Cancelled`] after the result has been taken.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.join.0);
        if state.is_finished {
            return Poll::Ready(state.outcome.take().unwrap_or(Err(JoinError::Cancelled)));
        }
        let replaced = state.waker.replace(cx.waker().clone());
        drop(state);
        // Dropped after the unlock, because a waker's drop calls foreign code.
        drop(replaced);
        Poll::Pending
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Drops aborted tasks.
pub(crate) trait Abort: Send + Sync {
    fn abort(&self, key: Key);
}

pub(crate) struct Join<T>(Mutex<State<T>>);

struct State<T> {
    outcome: Option<Result<T, JoinError>>,
    is_finished: bool,
    /// Whether the task was aborted, before or after it reached the executor.
    is_aborted: bool,
    key: Option<Key>,
    waker: Option<Waker>,
}

impl<T> Join<T> {
    fn abort(&self) -> Option<Key> {
        let mut state = lock(&self.0);
        state.is_aborted = true;
        state.key.filter(|_| !state.is_finished)
    }

    /// Records that the executor has the task now. Returns `false` if the task was aborted before.
    pub(crate) fn begin(&self, key: Key) -> bool {
        let mut state = lock(&self.0);
        state.key = Some(key);
        !state.is_aborted
    }
}

/// Sets the result of a task. If it is dropped without a result, the task counts as cancelled.
pub(crate) struct Promise<T>(Arc<Join<T>>);

impl<T> Promise<T> {
    pub(crate) fn keep(self, outcome: Result<T, Box<dyn Any + Send>>) {
        self.set(outcome.map_err(JoinError::Panicked));
    }

    fn set(&self, outcome: Result<T, JoinError>) {
        let mut state = lock(&self.0.0);
        if state.is_finished {
            return;
        }
        state.is_finished = true;
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.set(Err(JoinError::Cancelled));
    }
}

pub(crate) fn pair<T>(executor: Weak<dyn Abort>) -> (Promise<T>, Arc<Join<T>>, JoinHandle<T>) {
    // If the task is bound to one thread, so is the handle. Then only that thread has this value.
    #[allow(clippy::arc_with_non_send_sync)]
    let join = Arc::new(Join(Mutex::new(State {
        outcome: None,
        is_finished: false,
        is_aborted: false,
        key: None,
        waker: None,
    })));
    let handle = JoinHandle {
        join: join.clone(),
        executor,
    };
    (Promise(join.clone()), join, handle)
}

/// Returns the text of a panic.
pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
