//! Calls to a shard from another thread, which waits for the result.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Local, ShardClosed, current_shard_id};

/// Returns the two ends of a call: for the shard's thread, and for the caller.
pub(super) fn reply<R>() -> (ReplySender<R>, Arc<Reply<R>>) {
    let reply = Arc::new(Reply {
        value: Mutex::new(ReplyState::Waiting),
        done: Condvar::new(),
    });
    (ReplySender(reply.clone()), reply)
}

/// Receives the result of a call.
pub(super) struct Reply<R> {
    value: Mutex<ReplyState<R>>,
    done: Condvar,
}

enum ReplyState<R> {
    Waiting,
    Done(R),
    /// The command was dropped or panicked.
    Lost,
}

impl<R> Reply<R> {
    pub(super) fn wait(&self) -> Result<R, ShardClosed> {
        let on_shard = current_shard_id().is_some();
        let mut state = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *state, ReplyState::Waiting) {
                ReplyState::Done(value) => return Ok(value),
                ReplyState::Lost => return Err(ShardClosed),
                ReplyState::Waiting => {}
            }
            if !on_shard {
                state = self
                    .done
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self
                .done
                .wait_timeout(state, CROSS_CALL_SERVE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if matches!(*state, ReplyState::Waiting) {
                drop(state);
                Local::with_current(Local::take_control);
                state = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Sends the result of a call.
pub(super) struct ReplySender<R>(Arc<Reply<R>>);

impl<R> ReplySender<R> {
    pub(super) fn send(self, value: R) {
        self.set(ReplyState::Done(value));
    }

    fn set(&self, to: ReplyState<R>) {
        let mut state = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, ReplyState::Done(_)) {
            *state = to;
            self.0.done.notify_all();
        }
    }
}

impl<R> Drop for ReplySender<R> {
    fn drop(&mut self) {
        self.set(ReplyState::Lost);
    }
}

/// Interval at which a shard that waits for another one checks its own commands.
const CROSS_CALL_SERVE: Duration = Duration::from_millis(5);
