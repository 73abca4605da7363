//! The broker's side: messages into the demultiplexer, and word back of how far it is.

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
    /// The client's ID, as in its path `/clients/ID`.
    pub client: Arc<str>,
    /// Sent as it is: as text where it is UTF-8, otherwise as binary data.
    pub payload: Bytes,
}

impl Identifiable for Message {
    type Id = Arc<str>;

    fn id(&self) -> Arc<str> {
        self.client.clone()
    }
}

/// Tells a broker that wants to know when a message is *accounted for*: a client's connection has taken it, or it waits in the client's
/// buffer, or it was dropped and is in a counter. Not: the client has read it.
///
/// Not later than that, because the messages that wait in buffers would use up what a broker sends unacknowledged (RabbitMQ's prefetch
/// count): one client that reads nothing would hold up all others.
#[derive(Debug)]
pub struct Receipt {
    /// Gets `number`.
    pub accounted: watch::Sender<u64>,
    /// All messages up to this one are accounted for.
    pub number: u64,
}

/// Where a broker's messages go. When it is dropped, the input of the demultiplexer ends.
#[derive(Debug)]
pub struct Feed {
    sender: mpsc::Sender<(Message, Option<Receipt>)>,
    broker: Arc<Broker>,
    stop: CancellationToken,
}

impl Feed {
    /// Puts a message in, when there is room. `false`: the demultiplexer has ended, and the message was not taken.
    pub async fn put(&self, client: &str, payload: Bytes, receipt: Option<Receipt>) -> bool {
        let client = client.into();
        let sent = self.sender.send((Message { client, payload }, receipt));
        sent.await.is_ok()
    }

    /// Over when the program is to end.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// What `GET /statistics` tells of the broker.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}

/// The connection to the broker, as the statistics tell it.
#[derive(Debug, Default)]
pub struct Broker {
    is_connected: AtomicBool,
    connections: AtomicU64,
    dropped: AtomicU64,
}

impl Broker {
    /// Messages come from now on.
    pub fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.is_connected.store(true, Relaxed);
    }

    /// No messages come.
    pub fn disconnected(&self) {
        self.is_connected.store(false, Relaxed);
    }

    /// A message was lost before this program could count it.
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
        // The demultiplexer asks for a message when it has routed all before.
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

/// Messages between the broker's task and the demultiplexer.
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
    async fn a_receipt_comes_when_the_next_message_is_asked_for() {
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
    async fn a_full_feed_waits_and_one_without_a_demultiplexer_takes_nothing() {
        let (feed, input) = feed(Arc::default(), CancellationToken::new());
        for _ in 0..FEED_MESSAGES_MAX {
            assert!(feed.put("a", Bytes::new(), None).await);
        }
        assert!(feed.put("a", Bytes::new(), None).now_or_never().is_none());
        drop(input);
        assert!(!feed.put("a", Bytes::new(), None).await);
    }
}
