//! Code that `rabbitmq-websockets` and `nats-websockets` share. It sends the messages of a broker to WebSocket clients, to each client at
//! its own pace.
//!
//! ```text
//!  broker --> Feed --> Demultiplexer --> Outlet --> task of the connection --> WebSocket
//!  (the binaries)      (buffer, policy and limit of each client)   (ping, close)
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `options` | arguments of both programs |
//! | `feed` | the broker's side: messages in, receipts back |
//! | `client` | one WebSocket: a sink for the demultiplexer, and the task that owns the connection |
//! | `server` | `GET /clients/ID`, `GET /statistics` |
//! | `run` | start, signals, end, report |
#![forbid(unsafe_code)]
#![cfg(feature = "programs")]

mod client;
mod feed;
mod options;
mod run;
mod server;

pub use feed::{Broker, FEED_MESSAGES_MAX, Feed, Message, Receipt};
pub use options::Options;
pub use run::{log_to_stderr, run};
