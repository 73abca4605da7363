//! A WebSocket of a client. It has a sink for the demultiplexer, and a task that owns the connection.
//!
//! A WebSocket needs more than writes. Only a read notices a close, a pong or a reset. If a peer disappears without a FIN, only missing
//! pongs show this. And the server must close the connection with a code. So a task owns the WebSocket, and the demultiplexer's sink is a
//! short channel to that task. When the connection ends for any reason, the task drops the subscription.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ws::{self, CloseFrame, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{Sink, SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::PollSender;

use crate::feed::Message;

/// Capacity of the channel from the demultiplexer to a connection's task. The task writes and flushes all waiting messages
/// together.
const OUTLET_MESSAGES_MAX: usize = 16;

/// Maximum time that a client may take to answer the close frame.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// The error of a sink whose connection has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone;

/// The demultiplexer's end of a connection.
pub(crate) struct Outlet {
    sender: PollSender<Bytes>,
    is_closed: Arc<AtomicBool>,
}

/// The receiving end of the same channel. It belongs to the connection's task.
pub(crate) struct Deliveries {
    receiver: mpsc::Receiver<Bytes>,
    is_closed: Arc<AtomicBool>,
}

pub(crate) fn outlet() -> (Outlet, Deliveries) {
    let (sender, receiver) = mpsc::channel(OUTLET_MESSAGES_MAX);
    let sender = PollSender::new(sender);
    let is_closed = Arc::<AtomicBool>::default();
    let outlet = Outlet {
        sender,
        is_closed: is_closed.clone(),
    };
    (
        outlet,
        Deliveries {
            receiver,
            is_closed,
        },
    )
}

impl Sink<Message> for Outlet {
    type Error = Gone;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.sender.poll_reserve(cx).map_err(|_| Gone)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Gone> {
        self.sender.send_item(message.payload).map_err(|_| Gone)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        // There is nothing to do, because the connection's task flushes.
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let has_gone = (self.sender.get_ref()).is_none_or(mpsc::Sender::is_closed);
        self.is_closed.store(true, Ordering::Release);
        self.sender.close();
        // A connection that ended by itself has not taken all messages. Because of the error, the report counts it as dropped, not as
        // closed.
        Poll::Ready(if has_gone { Err(Gone) } else { Ok(()) })
    }
}

/// The reason why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client closed or reset the connection.
    Left,
    /// The client sent no pong, or read nothing, for too long.
    Silent,
    /// The demultiplexer closed the sink after all pending messages.
    Closed,
    /// The demultiplexer dropped the sink with its pending messages.
    Dropped,
}

/// Carries messages to the client until one side ends. After this, the caller must end the subscription and then call [`close`].
pub(crate) async fn serve(
    socket: &mut (SplitSink<WebSocket, ws::Message>, SplitStream<WebSocket>),
    deliveries: &mut Deliveries,
    patience: Duration,
) -> Over {
    let (write, read) = socket;
    tokio::select! {
        over = deliver(write, deliveries, patience) => over,
        over = listen(read, patience) => over,
    }
}

/// Sends messages and pings to the client.
async fn deliver(
    write: &mut SplitSink<WebSocket, ws::Message>,
    deliveries: &mut Deliveries,
    patience: Duration,
) -> Over {
    let mut ping = interval(patience / 3);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::with_capacity(OUTLET_MESSAGES_MAX);
    loop {
        tokio::select! {
            count = deliveries.receiver.recv_many(&mut batch, OUTLET_MESSAGES_MAX) => {
                if count == 0 {
                    return if deliveries.is_closed.load(Ordering::Acquire) { Over::Closed } else { Over::Dropped };
                }
            }
            _ = ping.tick() => {}
        }
        let frames = if batch.is_empty() {
            vec![ws::Message::Ping(Bytes::new())]
        } else {
            batch.drain(..).map(frame).collect()
        };
        match timeout(patience, write_all(write, frames)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Over::Left,
            Err(_) => return Over::Silent,
        }
    }
}

async fn write_all(
    write: &mut SplitSink<WebSocket, ws::Message>,
    frames: Vec<ws::Message>,
) -> Result<(), axum::Error> {
    for frame in frames {
        write.feed(frame).await?;
    }
    write.flush().await
}

fn frame(payload: Bytes) -> ws::Message {
    match Utf8Bytes::try_from(payload.clone()) {
        Ok(text) => ws::Message::Text(text),
        Err(_) => ws::Message::Binary(payload),
    }
}

/// Receives pongs and the close frame. Clients send nothing else.
async fn listen(read: &mut SplitStream<WebSocket>, patience: Duration) -> Over {
    loop {
        match timeout(patience, read.next()).await {
            Ok(Some(Ok(ws::Message::Close(_)) | Err(_)) | None) => return Over::Left,
            Ok(Some(Ok(_))) => {}
            Err(_) => return Over::Silent,
        }
    }
}

/// Sends the close frame with the reason. Then waits until the client closes its side. After the closing handshake, the server closes the
/// TCP connection (RFC 6455, section 7.1.1).
pub(crate) async fn close(
    socket: (SplitSink<WebSocket, ws::Message>, SplitStream<WebSocket>),
    over: Over,
    is_stopping: bool,
) {
    let (mut write, mut read) = socket;
    let (code, reason) = match over {
        // The client does not respond, so a close frame would not help.
        Over::Silent => return,
        Over::Left => (close_code::NORMAL, ""),
        _ if is_stopping => (close_code::AWAY, "the server is shutting down"),
        Over::Closed => (CODE_REPLACED, "another connection has taken over"),
        Over::Dropped => (close_code::POLICY, "too slow"),
    };
    let reason = Utf8Bytes::from_static(reason);
    let handshake = async {
        let close = ws::Message::Close(Some(CloseFrame { code, reason }));
        // This fails if the client has already sent a close frame. In that case, reading on sends the answer to that frame.
        let _ = write.send(close).await;
        while let Some(Ok(_)) = read.next().await {}
    };
    let _ = timeout(CLOSE_TIME_MAX, handshake).await;
}

/// Close code for a replaced connection. The codes from 4000 to 4999 are for private use (RFC 6455, section 7.4.2).
const CODE_REPLACED: u16 = 4000;
