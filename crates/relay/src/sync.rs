//! Locks whose data stay valid if a holder panics: all data here are consistent after each statement.

pub(crate) use threadbare_base::lock;
