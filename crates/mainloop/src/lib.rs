//! What GLib's main context lacks, for programs in async Rust: channels, tasks by the thousand, signals as streams, readiness of
//! descriptors, intervals, values that stay on their thread, and tokio beside it.
//!
//! It is made for glib 0.22 and does not repeat that: `MainContext::spawn` and `block_on`, `timeout_future`, gio's `*_future`
//! methods and `glib_unix::signal_stream` are glib's own.
//!
//! | to | use |
//! |---|---|
//! | send to a main context from any thread | [`channel()`], [`sync_channel`]; attach a closure, or read a stream |
//! | run thousands of tasks on one source | [`Executor`], from other threads its [`Spawner`] |
//! | end tasks with their owner | [`TaskScope`] |
//! | await signals and property changes | [`signal_stream`], [`notify_stream`] |
//! | await a descriptor | [`readable`], [`writable`], [`readiness`] |
//! | tick | [`interval_stream`], [`interval_stream_with`] and its [`MissedTicks`] |
//! | hold a value of the main thread elsewhere | [`ContextBound`] |
//! | use tokio in the same program | `Bridge`, with the feature `tokio` |
//!
//! The same style works on a Threadbare context, a thread that thousands of sources share: [`threadbare_runtime::Context`]
//! has `spawn`, `spawn_local`, `spawn_from_within` and `block_on`, and its `timeout_future` and `interval_stream` have the names
//! of those here. Channels and signal streams of this crate work on both.
//!
//! ```
//! use glib::{ControlFlow, MainContext, MainLoop};
//! use threadbare_mainloop::channel;
//!
//! // A worker updates what only the main thread may touch.
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
//! Where to look next: the table above; each of its items has an example.
//!
//! # Threads
//!
//! A closure or future that is not `Send` stays on the thread where it was attached or spawned. That has to be the thread that
//! runs the context. What another thread drops of it is sent home; where there is no home any more it is leaked, with a
//! line in the log, and never dropped on a foreign thread.
//!
//! A panic of a task goes to its [`JoinHandle`]. A panic of a closure that a source calls ends the process, as everywhere in
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
    /// What is not `Send` can be attached on the thread that runs the context only.
    #[error("another thread runs the main context; attach there, or something that is Send")]
    NotOwner,
    /// The process or the system has too many.
    #[error("no event descriptor: {0}")]
    Descriptor(#[from] std::io::Error),
}
