//! Additions to GLib's main context for programs in async Rust. They are channels, thousands of tasks, signals as streams,
//! readiness of descriptors, intervals, values that stay on their thread, and cooperation with tokio.
//!
//! The crate is for glib 0.22. It does not repeat glib's own functions: `MainContext::spawn` and `block_on`, `timeout_future`,
//! gio's `*_future` methods and `glib_unix::signal_stream`.
//!
//! | task | use |
//! |---|---|
//! | send to a main context from any thread | [`channel()`], [`sync_channel`]; attach a closure, or read a stream |
//! | run thousands of tasks on one source | [`Executor`], from other threads its [`Spawner`] |
//! | end tasks with their owner | [`TaskScope`] |
//! | await signals and property changes | [`signal_stream`], [`notify_stream`] |
//! | await a descriptor | [`readable`], [`writable`], [`readiness`] |
//! | run at intervals | [`interval_stream`], [`interval_stream_with`] and its [`MissedTicks`] |
//! | hold a value of the main thread on another thread | [`ContextBound`] |
//! | use tokio in the same program | `Bridge`, with the feature `tokio` |
//!
//! Programs for a Threadbare context, which is a thread that thousands of sources share, look the same.
//! [`threadbare_runtime::Context`] has `spawn`, `spawn_local`, `spawn_from_within` and `block_on`; its `timeout_future` and
//! `interval_stream` have the same names as here. Channels and signal streams of this crate work on both kinds of contexts.
//!
//! ```
//! use glib::{ControlFlow, MainContext, MainLoop};
//! use threadbare_mainloop::channel;
//!
//! // A worker updates a value that only the main thread may access.
//! let context = MainContext::new();
//! let main_loop = MainLoop::new(Some(&context), false);
//! let (sender, receiver) = channel::<u32>();
//! let (label, quit) = (std::rc::Rc::new(std::cell::Cell::new(0)), main_loop.clone());
//! let shown = label.clone();
//! receiver.attach(Some(&context), move |percent| {
//!     shown.set(percent);
//!     if percent == 100 {
//!         quit.quit();
//!     }
//!     ControlFlow::Continue
//! })?;
//! std::thread::spawn(move || (0..=100).for_each(|percent| sender.send(percent).unwrap()));
//! main_loop.run();
//! assert_eq!(label.get(), 100);
//! # Ok::<(), threadbare_mainloop::AttachError>(())
//! ```
//!
//! Further reading: the table above; each of its items has an example.
//!
//! # Threads
//!
//! A closure or future that is not `Send` stays on the thread where it was attached or spawned. That must be the thread that runs
//! the context. If another thread drops such a closure or future, it is sent to its own thread. If its context has ended, it is
//! leaked, with a log message. It is never dropped on a foreign thread.
//!
//! A panic of a task is stored in its [`JoinHandle`]. A panic of a closure that a source calls ends the process, as everywhere in
//! glib: C cannot unwind.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

#[cfg(not(loom))]
mod bell;
#[cfg(not(loom))]
mod bound;
#[cfg(all(not(loom), feature = "tokio"))]
mod bridge;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod fd;
#[cfg(not(loom))]
mod interval;
#[cfg(not(loom))]
mod join;
mod ready;
#[cfg(not(loom))]
mod scope;
#[cfg(not(loom))]
mod signals;
mod sync;

#[cfg(all(not(loom), feature = "tokio"))]
pub use self::bridge::{Bridge, OnContext, OnTokio, WithTokio};
#[cfg(not(loom))]
pub use self::{
    bound::ContextBound,
    channel::{
        Attachment, Receiver, SendError, Sender, SyncSender, TrySendError, channel, sync_channel,
    },
    executor::{Executor, LocalSpawner, Spawner},
    fd::{Readiness, readable, readiness, writable},
    interval::{Interval, interval_stream, interval_stream_with},
    join::{JoinError, JoinHandle},
    scope::TaskScope,
    signals::{
        Overflow, SignalError, SignalStream, SignalStreamBuilder, notify_stream, signal_stream,
    },
};
#[cfg(not(loom))]
pub use threadbare_runtime::{MissedTicks, Tick};

/// Why nothing could be attached to a main context.
#[cfg(not(loom))]
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A value that is not `Send` can be attached only on the thread that runs the context.
    #[error(
        "another thread runs the main context: attach on that thread, or attach a value that is Send"
    )]
    NotOwner,
    /// The process or the system has too many descriptors.
    #[error("cannot create an event descriptor (eventfd): {0}")]
    Descriptor(#[from] std::io::Error),
}
