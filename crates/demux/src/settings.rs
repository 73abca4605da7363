//! Settings of a demultiplexer.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::order::{Order, Target};

/// Treatment of a subscription for a key that already has a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duplicates {
    /// The new sink takes over the key. Messages buffered for the previous sink are still delivered, and then that sink is
    /// closed.
    #[default]
    Replace,
    /// The new sink is dropped: [`crate::Status::Refused`].
    Refuse,
}

/// Action after a failure of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The sink is dropped with its buffered messages.
    Remove,
    /// The sink stays. This is for sinks that continue after an error. The message that failed is lost.
    Keep,
    /// The demultiplexer ends: [`crate::End::Failed`].
    Abort,
}

/// Decides after a sink has failed. Closures `FnMut(&Target<K>, E) -> Verdict` implement it.
pub trait Handler<K, E> {
    /// Returns the action after a sink of `target` has failed with `error`.
    fn failed(&mut self, target: &Target<K>, error: E) -> Verdict;
}

impl<K, E, F: FnMut(&Target<K>, E) -> Verdict> Handler<K, E> for F {
    fn failed(&mut self, target: &Target<K>, error: E) -> Verdict {
        self(target, error)
    }
}

/// No stream of orders: they come from handles only.
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
        // No order ever comes, so no waker is needed.
        Poll::Ready(None)
    }
}

pub(crate) type Deadline = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Settings that do not depend on the types of input and orders.
pub(crate) struct Settings<M> {
    pub(crate) duplicates: Duplicates,
    /// How a message is copied, if a key may have several sinks.
    pub(crate) copy: Option<fn(&M) -> M>,
    pub(crate) clock: Option<Box<dyn FnMut() -> u64 + Send>>,
    pub(crate) deadline: Option<Box<dyn FnOnce() -> Deadline + Send>>,
    pub(crate) seed: u64,
}
