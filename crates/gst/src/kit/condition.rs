//! A condition variable whose notification is free while no thread waits: the standard library's makes a system call
//! each time.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// Goes with one mutex. The notifying thread has held that mutex since the condition came true, so that a thread that began to
/// wait before is counted, and one that begins later sees the condition: the mutex orders the count.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    condvar: Condvar,
    waiting: AtomicU32,
}

impl Condition {
    /// Until a notification; sometimes sooner.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.condvar.wait(guard);
        self.waiting.fetch_sub(1, Relaxed);
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for at most so long.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Relaxed);
        let waited = self.condvar.wait_timeout(guard, timeout);
        self.waiting.fetch_sub(1, Relaxed);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    #[inline]
    pub(crate) fn notify_all(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}
