//! Settings of a demultiplexer.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::order::{Order, Target};

/// What happens to a subscription for a key that has a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duplicates {
    /// It takes the key over. What waits for the sink before is still delivered, and then that one is closed.
    #[default]
    Replace,
    /// Its sink is dropped: [`crate::Status::Refused`].
    Refuse,
}

/// What happens after a sink has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The sink is dropped with what waits for it.
    Remove,
    /// The sink stays, for sinks that go on after an error. The message that it failed with is lost.
    Keep,
    /// The demultiplexer ends: [`crate::End::Failed`].
    Abort,
}

/// Decides after a sink has failed. Closures `FnMut(&Target<K>, E) -> Verdict` do.
pub trait Handler<K, E> {
    /// A sink of `target` has failed with `error`.
    fn failed(&mut self, target: &Target<K>, error: E) -> Verdict;
}

impl<K, E, F: FnMut(&Target<K>, E) -> Verdict> Handler<K, E> for F {
    fn failed(&mut self, target: &Target<K>, error: E) -> Verdict {
        self(target, error)
    }
}

/// Orders from handles only.
#[derive(Debug)]
pub struct NoOrders<K, S>(PhantomData<fn() -> (K, S)>);

impl<K, S> Default for NoOrders<K, S> {
    fn default() -> Self {
        NoOrders(PhantomData)
    }
}

impl<K, S> Stream for NoOrders<K, S> {
    type Item = Order<K, S>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // None comes, and no waker is needed for that.
        Poll::Ready(None)
    }
}

pub(crate) type Deadline = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What does not depend on the input and the orders.
pub(crate) struct Settings<M> {
    pub(crate) duplicates: Duplicates,
    /// Several sinks for a key.
    pub(crate) copy: Option<fn(&M) -> M>,
    pub(crate) clock: Option<Box<dyn FnMut() -> u64 + Send>>,
    pub(crate) deadline: Option<Box<dyn FnOnce() -> Deadline + Send>>,
    pub(crate) seed: u64,
}
