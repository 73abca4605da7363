//! The synchronisation primitives that loom can replace, so that loom checks the unchanged code.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};
pub(crate) use threadbare_base::{Mutex, MutexGuard, lock};
