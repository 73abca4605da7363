//! An operation as a future.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::failure::Failure;
use crate::job::Done;
use crate::lock;

/// Receives the result of an operation.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    result: Option<Result<Done, Failure>>,
    waker: Option<Waker>,
}

impl Slot {
    /// Stores the result. Call it without a lock, because it wakes the waiting task.
    pub(crate) fn complete(&self, result: Result<Done, Failure>) {
        let waker = {
            let mut state = lock(&self.0);
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An operation of the service. Dropping this does not stop the operation, whose resources belong to the service.
#[must_use = "futures do nothing unless polled"]
pub struct Op<T> {
    slot: Arc<Slot>,
    convert: fn(Done) -> T,
}

impl<T> Op<T> {
    pub(crate) fn new(convert: fn(Done) -> T) -> (Self, Arc<Slot>) {
        let slot = Arc::<Slot>::default();
        let op = Op {
            slot: slot.clone(),
            convert,
        };
        (op, slot)
    }
}

impl<T> Future for Op<T> {
    type Output = Result<T, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.slot.0);
        match state.result.take() {
            Some(result) => Poll::Ready(result.map(self.convert)),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
