//! Types for several threads: those of std, or of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;
pub(crate) use threadbare_base::{Mutex, lock};
