//! A lock under which no buffer is dropped.
//!
//! Dropping a buffer, list, event or sample calls the owner of its memory, which may call the element again. So data that is
//! discarded under the lock of a sink or queue is stored in the state's [`Discarded`], and is dropped after the unlock.
#![allow(missing_docs, reason = "no stable interface")]

use std::ops::{Deref, DerefMut};

use threadbare_runtime::{Guard, Monitor};

/// Objects that must be dropped without the lock. Usually there is only one, which needs no allocation.
#[derive(Debug)]
pub struct Discarded<T> {
    /// Occupied if `more` is not empty.
    one: Option<T>,
    more: Vec<T>,
}

impl<T> Default for Discarded<T> {
    fn default() -> Self {
        Discarded {
            one: None,
            more: Vec::new(),
        }
    }
}

impl<T> Discarded<T> {
    #[inline]
    pub fn add(&mut self, thing: T) {
        match self.one {
            None => self.one = Some(thing),
            Some(_) => self.more.push(thing),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.one.is_none()
    }

    /// Takes all objects. Returns `None` if there are none.
    #[inline]
    pub fn take(&mut self) -> Option<Self> {
        (!self.is_empty()).then(|| std::mem::take(self))
    }
}

impl<T> Extend<T> for Discarded<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, things: I) {
        things.into_iter().for_each(|thing| self.add(thing));
    }
}

/// A state that discards objects.
pub trait Discards {
    type Discarded;

    /// Takes the data discarded since the last call, if any.
    fn take_discarded(&mut self) -> Option<Self::Discarded>;
}

/// The locked state. Dropping it unlocks, wakes, and then drops the discarded data.
pub struct Locked<'a, S: Discards> {
    // In this order, because fields are dropped from the first to the last.
    guard: Guard<'a, S>,
    discarded: Option<S::Discarded>,
}

impl<'a, S: Discards> Locked<'a, S> {
    #[inline]
    pub fn of(monitor: &'a Monitor<S>) -> Self {
        Locked {
            guard: monitor.lock(),
            discarded: None,
        }
    }
}

impl<'a, S: Discards> Deref for Locked<'a, S> {
    type Target = Guard<'a, S>;

    #[inline]
    fn deref(&self) -> &Guard<'a, S> {
        &self.guard
    }
}

impl<S: Discards> DerefMut for Locked<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

impl<S: Discards> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.discarded = self.guard.take_discarded();
    }
}
