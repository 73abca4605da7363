//! Sends messages of NATS to WebSocket clients. A message with the subject PREFIX.ID goes to the client that is connected to `/clients/ID`.
//!
//! NATS without JetStream delivers each message at most once. Messages that are published while this program is not connected are lost. The
//! client library reconnects and subscribes again automatically, and WebSocket clients stay connected in the meantime. The library drops
//! messages that this program does not read in time, which happens only with the policy `block` or on a machine that is too slow. The
//! statistics count these messages as dropped by the broker.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use brokers::{Broker, Feed, Options};
use bytes::Bytes;
use clap::Parser;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{info, warn};

/// Sends messages of NATS to WebSocket clients: those with the subject PREFIX.ID to the client at ws://ADDRESS:PORT/clients/ID
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// NATS, as nats://USER:PASSWORD@HOST:PORT, or without user and password
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222", value_parser = parse_url)]
    broker: ServerAddr,

    /// Subjects are PREFIX.ID
    #[arg(long, default_value = "clients", value_parser = parse_prefix)]
    prefix: String,
}

fn parse_url(text: &str) -> Result<ServerAddr, String> {
    let address: ServerAddr = text
        .parse()
        .map_err(|error| format!("{text} is not a URL such as nats://HOST:PORT: {error}"))?;
    match address.scheme() {
        "nats" => Ok(address),
        scheme => Err(format!(
            "{text}: {scheme} is not supported; expected nats://HOST:PORT, without TLS"
        )),
    }
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let is_token = |token: &str| {
        !token.is_empty() && !token.contains(|c: char| c.is_whitespace() || "*>".contains(c))
    };
    if text.split('.').all(is_token) {
        Ok(text.into())
    } else {
        Err(format!(
            "{text} is not a subject: expected names with dots between them, without *, > and blanks"
        ))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    brokers::log_to_stderr();
    let options = arguments.options.clone();
    brokers::run(options, |feed| consume(arguments, feed)).await
}

/// Maximum wait for an answer of NATS.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Capacity of the queue for events of the client library.
const EVENTS_MAX: usize = 1024;

async fn consume(arguments: Arguments, feed: Feed) -> Result<()> {
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let client = ConnectOptions::new()
        .name("nats-websockets")
        .retry_on_initial_connect()
        .event_callback(move |event| {
            let sender = sender.clone();
            async move {
                let _ = sender.send(event).await;
            }
        })
        .connect(arguments.broker)
        .await?;
    let prefix = format!("{}.", arguments.prefix);
    let mut subscriber = client.subscribe(format!("{prefix}>")).await?;
    loop {
        tokio::select! {
            () = feed.stopped() => break,
            Some(event) = events.recv() => note(event, &client, feed.broker()),
            message = subscriber.next() => {
                let message = message.context("the subscription has ended")?;
                if !put(&feed, &prefix, message).await {
                    break;
                }
            }
        }
    }
    let rest = async {
        // NATS sends its pending messages. After them, the stream ends.
        subscriber.drain().await?;
        while let Some(message) = subscriber.next().await {
            if !put(&feed, &prefix, message).await {
                break;
            }
        }
        anyhow::Ok(())
    };
    match timeout(arguments.options.deadline, rest).await {
        Ok(ended) => ended,
        // NATS does not answer, so there is nothing to wait for.
        Err(_) => Ok(()),
    }
}

async fn put(feed: &Feed, prefix: &str, message: async_nats::Message) -> bool {
    match message.subject.strip_prefix(prefix) {
        Some(client) => feed.put(client, message.payload, None).await,
        // This cannot happen, because the subscription covers only subjects with this prefix.
        None => true,
    }
}

fn note(event: Event, client: &Client, broker: &Arc<Broker>) {
    match event {
        Event::Connected => {
            tokio::spawn(confirm(client.clone(), broker.clone()));
        }
        Event::Disconnected => {
            broker.disconnected();
            warn!("NATS: disconnected; the library reconnects");
        }
        Event::SlowConsumer(_) => broker.dropped(),
        other => warn!("NATS: {other}"),
    }
}

/// Waits until NATS knows the subscription. NATS handles the commands of a connection in order. So when a message comes back that the
/// client has sent to itself, the subscription is active.
async fn confirm(client: Client, broker: Arc<Broker>) {
    let echo = async {
        let inbox = client.new_inbox();
        let mut subscriber = client.subscribe(inbox.clone()).await?;
        client.publish(inbox, Bytes::new()).await?;
        subscriber.next().await;
        anyhow::Ok(())
    };
    match timeout(ANSWER_TIME_MAX, echo).await {
        Ok(Ok(())) => {
            broker.connected();
            info!("NATS: subscribed");
        }
        // The next `Connected` event repeats this check.
        Ok(Err(error)) => warn!("NATS: {error}"),
        Err(_) => warn!("NATS: no answer within {} s", ANSWER_TIME_MAX.as_secs()),
    }
}
