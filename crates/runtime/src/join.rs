//! The result of a task, which is passed from the task's thread to the thread that awaits it.
//!
//! Two halves share a [`Join`]: the task owns the [`Promise`], the spawner the [`JoinHandle`]. Neither keeps the context in use.
//! The promise belongs to its task, which the context drops when it ends.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `phase` | promise: at the end; handle: takes the result | both |
//! | `is_aborted` | handle | promise, before each poll of the future |
//! | `task` | promise: the task's waker, until the task ends | handle: to abort the task |
//! | `joiner` | handle: the waker of the awaiting task | promise: at the end |
//!
//! One lock protects all of them. Foreign code never runs under it: wakers are woken and dropped after the unlock.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};

/// Handle of a task: await it for the task's result, or abort the task. Dropping the handle detaches the task, which continues.
///
/// A handle does not keep the context in use. When the context's last user leaves, its tasks end, and awaiting them returns
/// [`JoinError`] (cancelled).
///
/// The handle is `Send` if the result is:
///
/// ```compile_fail,E0277
/// # use threadbare_runtime::JoinHandle;
/// fn elsewhere(handle: JoinHandle<std::rc::Rc<()>>) {
///     std::thread::spawn(move || drop(handle));
/// }
/// ```
pub struct JoinHandle<T>(Arc<Join<T>>);

impl<T> JoinHandle<T> {
    /// Ends the task. Its future is not polled again, and is soon dropped on its own thread. Awaiting the handle then returns
    /// [`JoinError`] (cancelled). A task that has already ended keeps its result.
    pub fn abort(&self) {
        let task = {
            let mut state = lock(&self.0.state);
            state.is_aborted = true;
            state.task.take()
        };
        // A task without a waker has not begun, or has ended. If it begins later, it checks for an abort.
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether the task has completed, panicked or been cancelled.
    pub fn is_finished(&self) -> bool {
        !matches!(lock(&self.0.state).phase, Phase::Running)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// A poll after the result was returned reports the task as cancelled.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let joiner = cx.waker().clone();
        let (polled, unused) = {
            let mut state = lock(&self.0.state);
            match std::mem::replace(&mut state.phase, Phase::Taken) {
                Phase::Running => {
                    state.phase = Phase::Running;
                    (Poll::Pending, state.joiner.replace(joiner))
                }
                Phase::Over(result) => (Poll::Ready(result), Some(joiner)),
                Phase::Taken => (Poll::Ready(Err(JoinError::cancelled())), Some(joiner)),
            }
        };
        drop(unused);
        polled
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let joiner = lock(&self.0.state).joiner.take();
        drop(joiner);
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Why a task has no result.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct JoinError(Reason);

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("the task was cancelled: aborted, or its context has ended")]
    Cancelled,
    #[error("the task panicked: {}", .0.message())]
    Panicked(Payload),
    #[error(
        "block_on was called on a context's thread, which it would block: await the future there, or spawn it"
    )]
    Refused,
}

impl JoinError {
    /// Whether the task was aborted, or ended with its context.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Reason::Panicked(_))
    }

    /// Whether [`Context::block_on`](crate::Context::block_on) refused to run the future, because it was called on a context's
    /// thread.
    pub fn is_refused(&self) -> bool {
        matches!(self.0, Reason::Refused)
    }

    /// Returns the payload of the task's panic, for [`resume_unwind`](std::panic::resume_unwind).
    ///
    /// # Panics
    /// Panics if the task did not panic.
    pub fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        match self.try_into_panic() {
            Ok(payload) => payload,
            Err(error) => panic!("no panic to take: {error}"),
        }
    }

    /// Returns the payload of the task's panic, if any.
    ///
    /// # Errors
    /// Returns the error itself if the task did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send + 'static>, JoinError> {
        match self.0 {
            Reason::Panicked(payload) => Ok(payload.into_inner()),
            other => Err(JoinError(other)),
        }
    }

    pub(crate) fn cancelled() -> Self {
        JoinError(Reason::Cancelled)
    }

    #[cfg_attr(loom, allow(dead_code, reason = "of `futures`"))]
    pub(crate) fn panicked(payload: Box<dyn Any + Send + 'static>) -> Self {
        JoinError(Reason::Panicked(Payload(StdMutex::new(payload))))
    }

    #[cfg_attr(loom, allow(dead_code, reason = "of `futures`"))]
    pub(crate) fn refused() -> Self {
        JoinError(Reason::Refused)
    }
}

/// Payload of a task's panic. The lock makes it `Sync`, so that `?` converts the error to any error type.
struct Payload(StdMutex<Box<dyn Any + Send + 'static>>);

impl Payload {
    fn into_inner(self) -> Box<dyn Any + Send + 'static> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the text of the panic, if it has one.
    fn message(&self) -> String {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("no text").to_owned()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

/// Creates a promise and its handle.
pub(crate) fn promise<T>() -> (Promise<T>, JoinHandle<T>) {
    let join = Arc::new(Join {
        state: Mutex::new(State {
            phase: Phase::Running,
            is_aborted: false,
            task: None,
            joiner: None,
        }),
    });
    (Promise(join.clone()), JoinHandle(join))
}

/// The task's half. If it is dropped without a result, the task counts as cancelled.
pub(crate) struct Promise<T>(Arc<Join<T>>);

impl<T> Promise<T> {
    /// Whether the task was aborted. If not, a later abort wakes `task`.
    pub(crate) fn is_aborted(&self, task: &Waker) -> bool {
        let mut state = lock(&self.0.state);
        if state.is_aborted {
            return true;
        }
        if !state
            .task
            .as_ref()
            .is_some_and(|known| known.will_wake(task))
        {
            // This clones the task's own waker, which is not foreign code.
            state.task = Some(task.clone());
        }
        false
    }

    /// Stores the result of the task.
    pub(crate) fn keep(self, result: Result<T, JoinError>) {
        self.end(result);
    }

    fn end(&self, result: Result<T, JoinError>) {
        let (task, joiner) = {
            let mut state = lock(&self.0.state);
            if matches!(state.phase, Phase::Running) {
                state.phase = Phase::Over(result);
            }
            (state.task.take(), state.joiner.take())
        };
        drop(task);
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.end(Err(JoinError::cancelled()));
    }
}

struct Join<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    phase: Phase<T>,
    is_aborted: bool,
    task: Option<Waker>,
    joiner: Option<Waker>,
}

enum Phase<T> {
    Running,
    Over(Result<T, JoinError>),
    /// The result has been returned to the awaiting side.
    Taken,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::block_on;
    use std::thread;

    /// A type with allocated memory, so that Miri finds leaks and races.
    fn text() -> String {
        "result".to_owned()
    }

    #[test]
    fn the_result_crosses_threads_whichever_half_is_first() {
        let (promise, handle) = promise();
        let task = thread::spawn(move || promise.keep(Ok(text())));
        assert_eq!(block_on(handle).unwrap(), text());
        task.join().unwrap();

        let (promise, handle) = super::promise();
        let joining = thread::spawn(move || block_on(handle).unwrap());
        promise.keep(Ok(text()));
        assert_eq!(joining.join().unwrap(), text());
    }

    #[test]
    fn the_task_or_the_handle_may_be_dropped_first() {
        let (promise, handle) = promise();
        let detaching = thread::spawn(move || drop(handle));
        promise.keep(Ok(text()));
        detaching.join().unwrap();

        let (promise, handle) = super::promise::<String>();
        let ending = thread::spawn(move || drop(promise));
        assert!(block_on(handle).unwrap_err().is_cancelled());
        ending.join().unwrap();
    }

    #[test]
    fn abort_is_visible_to_the_task_before_its_result() {
        let (promise, handle) = promise::<String>();
        assert!(!promise.is_aborted(Waker::noop()));
        handle.abort();
        assert!(promise.is_aborted(Waker::noop()) && !handle.is_finished());
        promise.keep(Ok(text()));
        handle.abort();
        assert_eq!(block_on(handle).unwrap(), text(), "it ended all the same");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use loom::thread;
    use std::task::Wake;

    /// A waker that records that it was woken.
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }

    fn flag() -> (Arc<Flag>, Waker) {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        (flag.clone(), flag.into())
    }

    fn poll(handle: &mut JoinHandle<u8>, waker: &Waker) -> Poll<Result<u8, JoinError>> {
        Pin::new(handle).poll(&mut Context::from_waker(waker))
    }

    #[test]
    fn loom_awaiting_task_sees_the_end_or_is_woken() {
        loom::model(|| {
            let (promise, mut handle) = promise();
            let (woken, waker) = flag();
            let task = thread::spawn(move || promise.keep(Ok(7)));
            let polled = poll(&mut handle, &waker);
            task.join().unwrap();
            let result = match polled {
                Poll::Ready(result) => Poll::Ready(result),
                Poll::Pending => {
                    assert!(woken.0.load(Relaxed), "the end is not reported");
                    poll(&mut handle, &waker)
                }
            };
            assert!(matches!(result, Poll::Ready(Ok(7))));
        });
    }

    #[test]
    fn loom_a_task_that_begins_sees_an_abort_or_is_woken() {
        loom::model(|| {
            let (promise, handle) = promise::<u8>();
            let (woken, task) = flag();
            let aborting = thread::spawn(move || handle.abort());
            let is_aborted = promise.is_aborted(&task);
            aborting.join().unwrap();
            assert!(is_aborted || woken.0.load(Relaxed), "the abort is lost");
            assert!(promise.is_aborted(&task));
        });
    }

    #[test]
    fn loom_an_abort_during_the_end_leaves_one_result_and_no_waker() {
        loom::model(|| {
            let (promise, handle) = promise();
            let (held, waker) = flag();
            assert!(!promise.is_aborted(&waker));
            let aborting = thread::spawn(move || {
                handle.abort();
                handle
            });
            if promise.is_aborted(&waker) {
                drop(promise);
            } else {
                promise.keep(Ok(7));
            }
            drop(waker);
            let mut handle = aborting.join().unwrap();
            assert_eq!(Arc::strong_count(&held), 1, "a waker is left");
            match poll(&mut handle, Waker::noop()) {
                Poll::Ready(Ok(7)) => {}
                Poll::Ready(Err(error)) => assert!(error.is_cancelled()),
                other => panic!("{other:?}"),
            }
        });
    }
}
