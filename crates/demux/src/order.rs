//! Orders: which sink gets the messages of which key, and with which service.

use std::sync::Arc;

use crate::link::Link;
use crate::policy::{Policy, RateLimit};

/// Messages that a sink gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target<K> {
    /// Messages with this key.
    Key(K),
    /// Messages whose key has no sink, and messages without a key.
    Unmatched,
}

/// Service for a sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Service {
    /// Treatment of a message when the sink is not ready and `buffer` is full.
    pub policy: Policy,
    /// Maximum number of messages buffered for the sink; memory is allocated as needed.
    pub buffer: usize,
    /// Rate limit, which is applied first. It needs [`crate::Builder::clock`].
    pub limit: Option<RateLimit>,
}

/// A change of the sinks. A tuple of a key and a sink is also an order: a subscription with the default [`Service`].
pub struct Order<K, S>(pub(crate) Change<K, S>);

pub(crate) enum Change<K, S> {
    Subscribe {
        target: Target<K>,
        sink: S,
        service: Service,
        link: Arc<Link>,
        /// Whether a guard reads the link.
        is_guarded: bool,
    },
    /// Ends all subscriptions of the target.
    Unsubscribe(Target<K>),
    /// Ends the subscription of a guard.
    Release(Arc<Link>),
    Abort,
}

impl<K, S> Order<K, S> {
    /// Subscribes the sink to the messages of the key.
    pub fn subscribe(target: Target<K>, sink: S, service: Service) -> Self {
        Order(Change::Subscribe {
            target,
            sink,
            service,
            link: Arc::default(),
            is_guarded: false,
        })
    }

    /// Ends the subscriptions of the key's sinks. Buffered messages are still delivered, and then the sinks are closed.
    pub fn unsubscribe(target: Target<K>) -> Self {
        Order(Change::Unsubscribe(target))
    }
}

impl<K, S> From<(K, S)> for Order<K, S> {
    fn from((key, sink): (K, S)) -> Self {
        Order::subscribe(Target::Key(key), sink, Service::default())
    }
}
