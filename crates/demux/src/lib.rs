//! Delivers the messages of one stream to the sinks of their keys. It loses no message silently, and needs no particular runtime.
//!
//! A [`Demultiplexer`] is a future over an input [`Stream`](futures_core::Stream), a function from a message to its key
//! ([`Route`]), and sinks. Orders add and remove sinks: from a stream ([`Builder::orders`]), or from any thread by a [`Handle`].
//!
//! ```
//! use futures_util::{SinkExt, StreamExt, stream};
//! use threadbare_demux::{Builder, Service, Target, Verdict};
//!
//! # futures_executor::block_on(async {
//! let input = stream::iter([("eggs", 1), ("ham", 2), ("eggs", 3)]);
//! // Whatever is a Sink will do: a channel, a WebSocket, a Vec.
//! let eggs: Vec<(&str, i32)> = Vec::new();
//! let sink = eggs.with(|message| std::future::ready(Ok::<_, std::convert::Infallible>(message)));
//!
//! let demultiplexer = Builder::new(
//!     |message: &(&'static str, i32)| Some(message.0),
//!     |_: &Target<&'static str>, _| Verdict::Remove,
//! )
//! .build(input);
//! let handle = demultiplexer.handle();
//! let guard = handle.subscribe(Target::Key("eggs"), Box::pin(sink), Service::default())?;
//!
//! let report = demultiplexer.await;
//! assert_eq!((report.statistics.delivered, report.statistics.unmatched), (2, 1));
//! assert_eq!(guard.statistics().delivered, 2);
//! # Ok::<(), threadbare_demux::Ended<_>>(())
//! # }).unwrap();
//! ```
//!
//! - **Nothing is lost between an order and a message.** An order that was ready before the input gave a message is applied
//!   before that message is routed. A client that subscribes and then requests messages gets all of them.
//! - **A slow sink has a [`Policy`]**: block the input, drop the newest or the oldest message, or disconnect. Each sink has its
//!   own bounded buffer. A [`RateLimit`] drops messages that come too fast.
//! - **A failed sink is reported to the [`Handler`]**, which removes it, keeps it or ends everything.
//! - **The end**: when the input ends, sinks take their buffered messages and are closed, up to a [deadline](Builder::deadline).
//!   The result is a [`Report`]. [`Handle::abort`] ends at once.
//! - **Each message is accounted for**: [`Statistics`].
//!
//! The cost of a message: one poll of the input, one load of an atomic, the key (the same as the last one, or looked up),
//! `poll_ready` and `start_send`. Sinks are flushed once for each batch of up to 256 messages, or when the input is pending. They
//! are polled only after a wake-up, so thousands of idle sinks cost nothing.
//!
//! Further reading: [`Builder`] has all settings, and [`Handle`] all orders. A program implements [`Route`] and [`Handler`].
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod builder;
mod demultiplexer;
mod handle;
mod hash;
mod link;
mod order;
mod policy;
mod route;
mod settings;
mod signals;
mod slot;
mod slots;
mod statistics;
mod sync;
mod table;

pub use builder::Builder;
pub use demultiplexer::Demultiplexer;
pub use handle::{Ended, Guard, Handle};
pub use link::Status;
pub use order::{Order, Service, Target};
pub use policy::{Policy, RateLimit};
pub use route::{ById, Identifiable, Route};
pub use settings::{Duplicates, Handler, NoOrders, Verdict};
pub use statistics::{End, Report, SinkStatistics, Statistics};
