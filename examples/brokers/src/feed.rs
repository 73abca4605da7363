//! The broker's side of the demultiplexer. It passes messages to the demultiplexer, and tells the broker's task which messages are
//! accounted for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use threadbare_demux::Identifiable;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// A message for one client.
#[derive(Debug, Clone)]
pub struct Message {
    /// ID of the client, as in its path `/clients/ID`.
    pub client: Arc<str>,
    /// The contents, which are sent unchanged. They are sent as text if they are UTF-8, otherwise as binary data.
    pub payload: Bytes,
}

impl Identifiable for Message {
    type Id = Arc<str>;

    fn id(&self) -> Arc<str> {
        self.client.clone()
    }
}

/// Tells the broker's task that a message is *accounted for*. This means that a client's connection has accepted the message, that it waits
/// in the client's buffer, or that it was dropped and counted. The client may not have read it yet.
///
/// If a receipt came only after the client has read the message, waiting messages would use up the broker's limit on unacknowledged
/// messages (RabbitMQ's prefetch count). So one client that reads nothing would hold up all other clients.
#[derive(Debug)]
pub struct Receipt {
    /// Gets `number` when the message is accounted for.
    pub accounted: watch::Sender<u64>,
    /// All messages up to this one are accounted for.
    pub number: u64,
}

/// Input for the messages of a broker. When it is dropped, the input of the demultiplexer ends.
#[derive(Debug)]
pub struct Feed {
    sender: mpsc::Sender<(Message, Option<Receipt>)>,
    broker: Arc<Broker>,
    stop: CancellationToken,
}

impl Feed {
    /// Waits for room, then adds a message. If the demultiplexer has ended, drops the message and returns `false`.
    pub async fn put(&self, client: &str, payload: Bytes, receipt: Option<Receipt>) -> bool {
        let client = client.into();
        let sent = self.sender.send((Message { client, payload }, receipt));
        sent.await.is_ok()
    }

    /// Waits until the program is asked to end.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Returns the state of the connection to the broker, for `GET /statistics`.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}

/// The state of the connection to the broker, for the statistics.
#[derive(Debug, Default)]
pub struct Broker {
    is_connected: AtomicBool,
    connections: AtomicU64,
    dropped: AtomicU64,
}

impl Broker {
    /// Records that there is a connection to the broker, so that messages come from now on.
    pub fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.is_connected.store(true, Relaxed);
    }

    /// Records that the connection to the broker has ended, so that no more messages come.
    pub fn disconnected(&self) {
        self.is_connected.store(false, Relaxed);
    }

    /// Records a message that was lost before this program could count it.
    pub fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Relaxed)
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    pub(crate) fn messages_dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// The input of the demultiplexer.
#[derive(Debug)]
pub(crate) struct Input {
    receiver: mpsc::Receiver<(Message, Option<Receipt>)>,
    last: Option<Receipt>,
}

impl Stream for Input {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        // The demultiplexer asks for a message only after it has routed the previous one. So the previous message is accounted for.
        if let Some(receipt) = self.last.take() {
            receipt.accounted.send_replace(receipt.number);
        }
        self.receiver.poll_recv(cx).map(|next| {
            let (message, receipt) = next?;
            self.last = receipt;
            Some(message)
        })
    }
}

/// Capacity of the channel from the broker's task to the demultiplexer, in messages.
pub const FEED_MESSAGES_MAX: usize = 256;

pub(crate) fn feed(broker: Arc<Broker>, stop: CancellationToken) -> (Feed, Input) {
    let (sender, receiver) = mpsc::channel(FEED_MESSAGES_MAX);
    let feed = Feed {
        sender,
        broker,
        stop,
    };
    let last = None;
    (feed, Input { receiver, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt};

    #[tokio::test]
    async fn a_message_is_accounted_for_when_the_next_one_is_requested() {
        let (feed, mut input) = feed(Arc::default(), CancellationToken::new());
        let (accounted, reader) = watch::channel(0);
        for number in 1..=2 {
            let accounted = accounted.clone();
            let receipt = Receipt { accounted, number };
            assert!(feed.put("a", Bytes::new(), Some(receipt)).await);
        }
        drop((feed, accounted));
        input.next().await;
        assert_eq!(*reader.borrow(), 0);
        input.next().await;
        assert_eq!(*reader.borrow(), 1);
        assert!(input.next().await.is_none());
        assert_eq!(*reader.borrow(), 2);
        assert!(reader.has_changed().is_err(), "no more will come");
    }

    #[tokio::test]
    async fn put_waits_while_the_feed_is_full_and_fails_without_a_demultiplexer() {
        let (feed, input) = feed(Arc::default(), CancellationToken::new());
        for _ in 0..FEED_MESSAGES_MAX {
            assert!(feed.put("a", Bytes::new(), None).await);
        }
        assert!(feed.put("a", Bytes::new(), None).now_or_never().is_none());
        drop(input);
        assert!(!feed.put("a", Bytes::new(), None).await);
    }
}
