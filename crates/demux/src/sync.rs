//! The primitives that cross threads: std's, or the model checker's.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;
pub(crate) use threadbare_base::{Mutex, lock};
