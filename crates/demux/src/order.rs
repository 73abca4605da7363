//! Orders: which sink gets the messages of which key, and how.

use std::sync::Arc;

use crate::link::Link;
use crate::policy::{Policy, RateLimit};

/// Whose messages a sink gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target<K> {
    /// Those of this key.
    Key(K),
    /// Those that no key's sink gets.
    Unmatched,
}

/// How a sink is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Service {
    /// When the sink is not ready and `buffer` is full.
    pub policy: Policy,
    /// Messages that wait for the sink; room for more is made when they come.
    pub buffer: usize,
    /// Of messages, before all else. It needs [`crate::Builder::clock`].
    pub limit: Option<RateLimit>,
}

/// A change of the sinks. A tuple of a key and a sink is one, too: a subscription with the default [`Service`].
pub struct Order<K, S>(pub(crate) Change<K, S>);

pub(crate) enum Change<K, S> {
    Subscribe {
        target: Target<K>,
        sink: S,
        service: Service,
        link: Arc<Link>,
        /// A guard reads the link.
        is_guarded: bool,
    },
    /// All sinks of the target.
    Unsubscribe(Target<K>),
    /// The one of a guard.
    Release(Arc<Link>),
    Abort,
}

impl<K, S> Order<K, S> {
    /// The sink gets the messages of the key.
    pub fn subscribe(target: Target<K>, sink: S, service: Service) -> Self {
        Order(Change::Subscribe {
            target,
            sink,
            service,
            link: Arc::default(),
            is_guarded: false,
        })
    }

    /// The sinks of the key get no more messages. What waits for them is still delivered, and then they are closed.
    pub fn unsubscribe(target: Target<K>) -> Self {
        Order(Change::Unsubscribe(target))
    }
}

impl<K, S> From<(K, S)> for Order<K, S> {
    fn from((key, sink): (K, S)) -> Self {
        Order::subscribe(Target::Key(key), sink, Service::default())
    }
}
