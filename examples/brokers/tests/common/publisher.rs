//! Publishes messages to a broker, as any other program would.

use async_nats::Client;
use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::time::sleep;

use super::server::{Address, Kind};
use super::{POLL_PAUSE, in_time};

pub enum Publisher {
    RabbitMq {
        exchange: String,
        channel: Channel,
        _connection: Connection,
    },
    Nats {
        prefix: String,
        client: Client,
    },
}

/// Value of `delivery-mode` in `basic.properties` of AMQP 0-9-1. Such messages survive a restart of the broker.
const PERSISTENT: u8 = 2;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl Publisher {
    pub async fn start(address: &Address, name: &str) -> Publisher {
        Publisher::try_start(address, name).await.unwrap()
    }

    pub async fn try_start(address: &Address, name: &str) -> Result<Publisher> {
        let (name, url) = (name.to_owned(), address.url());
        Ok(match address.kind {
            Kind::RabbitMq => {
                let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                channel
                    .confirm_select(ConfirmSelectOptions::default())
                    .await?;
                Publisher::RabbitMq {
                    exchange: name,
                    channel,
                    _connection: connection,
                }
            }
            Kind::Nats => Publisher::Nats {
                prefix: name,
                client: async_nats::connect(url).await?,
            },
        })
    }

    /// Publishes messages. Returns after RabbitMQ has confirmed all of them, or NATS has handled all of them.
    pub async fn publish(&self, messages: &[(String, String)]) {
        self.try_publish(messages).await.unwrap();
    }

    pub async fn try_publish(&self, messages: &[(String, String)]) -> Result<()> {
        match self {
            Publisher::RabbitMq {
                exchange, channel, ..
            } => {
                let mut confirms = Vec::new();
                for (id, text) in messages {
                    let options = BasicPublishOptions::default();
                    let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
                    let (exchange, id) = (exchange.as_str().into(), id.as_str().into());
                    let confirm =
                        channel.basic_publish(exchange, id, options, text.as_bytes(), properties);
                    confirms.push(confirm.await?);
                }
                for confirm in confirms {
                    let confirmation = confirm.await?;
                    if !matches!(confirmation, Confirmation::Ack(_)) {
                        return Err(format!("{confirmation:?}").into());
                    }
                }
            }
            Publisher::Nats { prefix, client } => {
                for (id, text) in messages {
                    let subject = format!("{prefix}.{id}");
                    client.publish(subject, text.clone().into()).await?;
                }
                // NATS handles the commands of a connection in order, so the echo comes after all messages.
                let inbox = client.new_inbox();
                let mut echo = client.subscribe(inbox.clone()).await?;
                client.publish(inbox, "".into()).await?;
                echo.next().await.ok_or("no echo")?;
            }
        }
        Ok(())
    }

    /// Waits until RabbitMQ has this many messages in a queue. The wait is necessary because RabbitMQ takes some time to return the
    /// unacknowledged messages of an ended connection to the queue.
    pub async fn until_queued(&self, queue: &str, count: u64) {
        let Publisher::RabbitMq { channel, .. } = self else {
            panic!("NATS has no queues");
        };
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let counts = async {
            loop {
                let declared = channel.queue_declare(queue.into(), passive, FieldTable::default());
                if u64::from(declared.await.unwrap().message_count()) == count {
                    return;
                }
                sleep(POLL_PAUSE).await;
            }
        };
        in_time(&format!("queue of {count} messages"), counts).await;
    }
}
