//! Sends messages of RabbitMQ to WebSocket clients. A message with the routing key ID goes to the client that is connected to
//! `/clients/ID`.
//!
//! The program declares a topic exchange, and a durable queue that is bound to it. It *acknowledges* a message when the demultiplexer has
//! accounted for the message. This means that the client's connection has accepted the message, that the message waits in the client's
//! buffer, or that it was dropped and counted (no such client, the client's limit, a full buffer). Until then RabbitMQ keeps the message,
//! and sends it again after a broken connection. So this program gets each message of the queue at least once. Clients may not have read
//! all acknowledged messages. If this program crashes, the messages that wait for clients are lost.
//!
//! While RabbitMQ is down, clients stay connected. The program tries to connect again until RabbitMQ is back.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use brokers::{FEED_MESSAGES_MAX, Feed, Options, Receipt};
use bytes::Bytes;
use clap::Parser;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// Sends messages of RabbitMQ to WebSocket clients: those with the routing key ID to the client at ws://ADDRESS:PORT/clients/ID
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// RabbitMQ, as an AMQP URI, with user, password and virtual host if needed
    #[arg(long, value_name = "URI", default_value = "amqp://127.0.0.1:5672", value_parser = parse_uri)]
    broker: AMQPUri,

    /// Topic exchange that messages are published to; declared as durable
    #[arg(long, value_name = "NAME", default_value = "clients")]
    exchange: String,

    /// Queue of this program, bound to the exchange; declared as durable. Two programs with one queue would share its messages
    #[arg(long, value_name = "NAME", default_value = "rabbitmq-websockets")]
    queue: String,

    /// Routing keys that the queue is bound to
    #[arg(long, value_name = "PATTERN", default_value = "#")]
    binding: String,
}

fn parse_uri(text: &str) -> Result<AMQPUri, String> {
    let uri: AMQPUri = text
        .parse()
        .map_err(|error| format!("{text} is not an AMQP URI such as amqp://HOST:PORT: {error}"))?;
    match uri.scheme {
        AMQPScheme::AMQP => Ok(uri),
        AMQPScheme::AMQPS => Err(format!(
            "{text}: this program has no TLS; expected amqp://HOST:PORT"
        )),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    brokers::log_to_stderr();
    let options = arguments.options.clone();
    brokers::run(options, |feed| consume(arguments, feed)).await
}

/// Shortest and longest pause before the next attempt to connect. The pause doubles with each attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Maximum wait for an answer of RabbitMQ. It applies when a session begins, when it cancels its consumer, and when it closes the
/// connection.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

async fn consume(arguments: Arguments, feed: Feed) -> Result<()> {
    let mut pause = PAUSE_MIN;
    loop {
        let session = tokio::select! {
            () = feed.stopped() => return Ok(()),
            session = timeout(ANSWER_TIME_MAX, Session::begin(&arguments)) => session,
        };
        let result = match session {
            Ok(Ok(mut session)) => {
                info!(
                    exchange = arguments.exchange,
                    queue = arguments.queue,
                    "consumes messages"
                );
                pause = PAUSE_MIN;
                feed.broker().connected();
                let result = session.carry(&feed).await;
                feed.broker().disconnected();
                if result.is_ok() {
                    // This ends the input of the demultiplexer.
                    drop(feed);
                    return session.end().await;
                }
                result
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(anyhow!("no answer within {} s", ANSWER_TIME_MAX.as_secs())),
        };
        if let Err(error) = result {
            warn!("RabbitMQ: {error:#}; connects again in {pause:?}");
        }
        tokio::select! {
            () = feed.stopped() => return Ok(()),
            () = sleep(pause) => {}
        }
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// One connection to RabbitMQ, from the start of the consumer to the last acknowledgement. Delivery tags are those of `channel`.
struct Session {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    accounted: watch::Sender<u64>,
    progress: watch::Receiver<u64>,
    acknowledged: u64,
}

impl Session {
    async fn begin(arguments: &Arguments) -> Result<Self> {
        let properties =
            ConnectionProperties::default().with_connection_name("rabbitmq-websockets".into());
        let connection = Connection::connect_uri(arguments.broker.clone(), properties).await?;
        let channel = connection.create_channel().await?;
        let (exchange, queue) = (arguments.exchange.as_str(), arguments.queue.as_str());
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        (channel
            .exchange_declare(
                exchange.into(),
                ExchangeKind::Topic,
                durable,
                FieldTable::default(),
            )
            .await)
            .with_context(|| {
                format!("--exchange {exchange}: cannot be declared as a durable topic exchange")
            })?;
        (channel
            .queue_declare(
                queue.into(),
                QueueDeclareOptions::durable(),
                FieldTable::default(),
            )
            .await)
            .with_context(|| format!("--queue {queue}: cannot be declared as durable"))?;
        let binding = arguments.binding.as_str();
        let bound = QueueBindOptions::default();
        (channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                binding.into(),
                bound,
                FieldTable::default(),
            )
            .await)
            .with_context(|| format!("--binding {binding}: cannot be bound"))?;
        // The program requests no more messages than the feed has room for. The other messages wait at RabbitMQ.
        let prefetch = u16::try_from(FEED_MESSAGES_MAX)?;
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        let consumer = channel
            .basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let (accounted, progress) = watch::channel(0);
        Ok(Session {
            connection,
            channel,
            consumer,
            accounted,
            progress,
            acknowledged: 0,
        })
    }

    /// Forwards messages until the feed is stopped (`Ok`), or until the connection is lost.
    async fn carry(&mut self, feed: &Feed) -> Result<()> {
        loop {
            tokio::select! {
                () = feed.stopped() => return Ok(()),
                changed = self.progress.changed() => {
                    changed?;
                    self.acknowledge().await?;
                }
                delivery = self.consumer.next() => {
                    let delivery = delivery.context("the consumer was cancelled")??;
                    let receipt = Receipt {
                        accounted: self.accounted.clone(),
                        number: delivery.delivery_tag,
                    };
                    let client = delivery.routing_key.as_str();
                    if !feed.put(client, Bytes::from(delivery.data), Some(receipt)).await {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Acknowledges all messages up to the last accounted one, with a single frame.
    async fn acknowledge(&mut self) -> Result<()> {
        let tag = *self.progress.borrow_and_update();
        // RabbitMQ closes the channel if a tag is acknowledged twice. It takes the tag 0 to mean all messages.
        if tag > self.acknowledged {
            self.acknowledged = tag;
            let options = BasicAckOptions { multiple: true };
            self.channel.basic_ack(tag, options).await?;
        }
        Ok(())
    }

    /// Stops the consumer, and waits until all messages in the feed are accounted for. RabbitMQ keeps all later messages.
    async fn end(mut self) -> Result<()> {
        let tag = self.consumer.tag();
        let cancelled = self
            .channel
            .basic_cancel(tag, BasicCancelOptions::default());
        timeout(ANSWER_TIME_MAX, cancelled).await??;
        // This drops the session's own sender. Only receipts have senders now, so `changed` fails after the last receipt was dropped.
        self.accounted = watch::channel(0).0;
        loop {
            let is_over = self.progress.changed().await.is_err();
            self.acknowledge().await?;
            if is_over {
                break;
            }
        }
        let closed = self.connection.close(REPLY_SUCCESS, "stops".into());
        Ok(timeout(ANSWER_TIME_MAX, closed).await??)
    }
}

/// The code `reply-success` of AMQP 0-9-1 (section 1.2 of the specification).
const REPLY_SUCCESS: u16 = 200;
