//! Takes the messages of one stream to the sinks of their keys, loses none unsaid, and needs no runtime of its own.
//!
//! A [`Demultiplexer`] is a future over an input [`Stream`](futures_core::Stream), a way to find the key of a message ([`Route`]), and sinks
//! that come and go by orders: from a stream of them ([`Builder::orders`]), or from any thread by a [`Handle`].
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
//! - **Nothing is lost between an order and a message.** An order that was ready before the input gave a message is applied before that
//!   message is routed: whoever subscribes and then asks for messages gets them all.
//! - **A slow sink has a [`Policy`]**: block the input, drop the newest or the oldest, disconnect; over a bounded buffer of its own. A
//!   [`RateLimit`] drops what comes too fast.
//! - **A failed sink goes to the [`Handler`]**, which removes it, keeps it or ends all.
//! - **The end**: the input ends, sinks take what waits for them and are closed, up to a [deadline](Builder::deadline); then there is a
//!   [`Report`]. [`Handle::abort`] ends at once.
//! - **Each message is accounted for**: [`Statistics`].
//!
//! The cost of a message: one poll of the input, one load of an atomic, the key (kept from the last message, or looked up), `poll_ready` and
//! `start_send`. Sinks are flushed once for each batch of up to 256 messages, or when the input has nothing; they are polled only when they
//! were woken, so that thousands of idle sinks cost nothing.
//!
//! Where to look next: [`Builder`] has all that can be set, [`Handle`] all that can be ordered, [`Route`] and [`Handler`] are what a program
//! brings.
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
