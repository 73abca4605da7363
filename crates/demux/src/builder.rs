//! Settings of a demultiplexer.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_sink::Sink;

use crate::demultiplexer::Demultiplexer;
use crate::order::{Order, Target};
use crate::route::Route;

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

/// Builds a [`Demultiplexer`] for messages `M` and sinks `S`.
#[must_use = "`build` makes the demultiplexer"]
pub struct Builder<M, S, R, O, H> {
    route: R,
    orders: O,
    handler: H,
    settings: Settings<M>,
    sinks: PhantomData<fn() -> S>,
}

impl<M, S, R: Route<M>, H> Builder<M, S, R, NoOrders<R::Key, S>, H> {
    /// Messages go to the sinks of the keys that `route` finds; `handler` decides about sinks that fail.
    pub fn new(route: R, handler: H) -> Self {
        Builder {
            route,
            orders: NoOrders(PhantomData),
            handler,
            settings: Settings {
                duplicates: Duplicates::default(),
                copy: None,
                clock: None,
                deadline: None,
                seed: 0,
            },
            sinks: PhantomData,
        }
    }
}

impl<M, S, R, O, H> Builder<M, S, R, O, H> {
    /// A stream of orders, besides those from handles: of [`Order`]s or of tuples of a key and a sink. When it ends, the demultiplexer goes on.
    pub fn orders<P>(self, orders: P) -> Builder<M, S, R, P, H>
    where
        R: Route<M>,
        P: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
    {
        Builder {
            route: self.route,
            orders,
            handler: self.handler,
            settings: self.settings,
            sinks: PhantomData,
        }
    }

    /// For a key that has a sink already.
    pub fn duplicates(mut self, duplicates: Duplicates) -> Self {
        self.settings.duplicates = duplicates;
        self
    }

    /// A key may have several sinks, which get a clone of each message. [`Duplicates`] then means nothing.
    pub fn several_per_key(mut self) -> Self
    where
        M: Clone,
    {
        self.settings.copy = Some(M::clone);
        self
    }

    /// For rate limits: a clock that never goes back, ns. It is read once for each batch of messages.
    pub fn clock(mut self, clock: impl FnMut() -> u64 + Send + 'static) -> Self {
        self.settings.clock = Some(Box::new(clock));
        self
    }

    /// How long sinks may take after the end of the input: until the future is over that this makes then. Without, as long as they like.
    pub fn deadline<F>(mut self, deadline: impl FnOnce() -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.settings.deadline = Some(Box::new(|| Box::pin(deadline())));
        self
    }

    /// Seeds the hash of keys. Where strangers choose keys, give a random number: it keeps them from choosing such as collide.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Makes the demultiplexer of an input.
    pub fn build<I>(self, input: I) -> Demultiplexer<I, R, O, S, H>
    where
        I: Stream<Item = M> + Unpin,
        R: Route<M>,
        O: Stream<Item: Into<Order<R::Key, S>>> + Unpin,
        S: Sink<M> + Unpin,
        H: Handler<R::Key, S::Error>,
    {
        Demultiplexer::new(input, self.route, self.orders, self.handler, self.settings)
    }
}

impl<M, S, R, O, H> fmt::Debug for Builder<M, S, R, O, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("duplicates", &self.settings.duplicates)
            .finish_non_exhaustive()
    }
}
