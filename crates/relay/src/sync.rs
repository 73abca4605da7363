//! Locks whose data stay valid if a thread panics while it holds the lock, because all data here are consistent after each statement.

pub(crate) use threadbare_base::lock;
