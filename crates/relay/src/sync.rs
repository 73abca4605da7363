//! Locks whose data stay valid if a holder panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Enters a lock, also one whose holder panicked: all data here is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
