//! A condition variable with a free notification while no thread waits: the standard library's always makes a system
//! call.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// Belongs to one mutex. The notifying thread has held that mutex since the condition came true. So a thread that began
/// to wait earlier is counted, and one that begins later sees the condition: the mutex orders the count.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    condvar: Condvar,
    waiting: AtomicU32,
}

impl Condition {
    /// Waits for a notification; may return earlier.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.condvar.wait(guard);
        self.waiting.fetch_sub(1, Relaxed);
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for at most this long.
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
