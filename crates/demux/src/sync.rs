//! The primitives that cross threads: std's, or the model checker's.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

/// Locks, whoever panicked with it: what is protected is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
