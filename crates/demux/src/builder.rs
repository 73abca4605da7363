//! Builder of a demultiplexer.

use std::fmt;
use std::marker::PhantomData;

use futures_core::Stream;
use futures_sink::Sink;

use crate::demultiplexer::Demultiplexer;
use crate::order::Order;
use crate::route::Route;
use crate::settings::{Duplicates, Handler, NoOrders, Settings};

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
    /// Creates a builder. The demultiplexer finds the key of each message with `route`, and delivers the message to the sinks of
    /// that key. `handler` decides about sinks that fail.
    pub fn new(route: R, handler: H) -> Self {
        Builder {
            route,
            orders: NoOrders::default(),
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
    /// Adds a stream of orders, in addition to those from handles: of [`Order`]s, or of tuples of a key and a sink. When this
    /// stream ends, the demultiplexer continues.
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

    /// Sets the treatment of a subscription for a key that already has a sink.
    pub fn duplicates(mut self, duplicates: Duplicates) -> Self {
        self.settings.duplicates = duplicates;
        self
    }

    /// Allows several sinks per key, which get a clone of each message. [`Duplicates`] then has no effect.
    pub fn several_per_key(mut self) -> Self
    where
        M: Clone,
    {
        self.settings.copy = Some(M::clone);
        self
    }

    /// Sets the clock for rate limits, in ns; it must never go back. It is read once for each batch of messages.
    pub fn clock(mut self, clock: impl FnMut() -> u64 + Send + 'static) -> Self {
        self.settings.clock = Some(Box::new(clock));
        self
    }

    /// Limits the time that the sinks have after the end of the input. `deadline` is called at the end of the input. When the
    /// future that it returns completes, the sinks' time is over. By default, the time is unlimited.
    pub fn deadline<F>(mut self, deadline: impl FnOnce() -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.settings.deadline = Some(Box::new(|| Box::pin(deadline())));
        self
    }

    /// Sets the seed of the hash of keys. If other parties choose the keys, pass a random number, so that they cannot choose keys
    /// that collide.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Creates the demultiplexer of an input.
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
