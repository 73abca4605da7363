//! Contexts: named groups of threads, each thread with thousands of sources.
//!
//! A [`Context`] has a name, a *wait* and a number of threads. Each of its threads is a [`Shard`]: an epoll reactor, a timer
//! wheel and a ready queue, all owned by that thread. A shard's residents are [`Agent`]s and tasks. Agents are driven by sockets,
//! timers and wake-ups, and called directly without futures. Tasks run futures.
//!
//! With `wait = W` a shard handles all pending events at most once per `W`, in one batch. Between batches it sleeps in the
//! kernel, and without events it does not wake up. Control commands interrupt the sleep.
//!
//! ```
//! use threadbare_runtime::{Context, Settings};
//!
//! let context = Context::acquire("doc", Settings::default())?;
//! let shard = context.next_shard();
//! let answer = shard.call(|_local| 6 * 7)?;
//! assert_eq!(answer, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Futures
//!
//! A context also runs futures, with the names of GLib's main context: [`spawn`](Context::spawn),
//! [`spawn_local`](Context::spawn_local), [`spawn_from_within`](Context::spawn_from_within), [`block_on`](Context::block_on),
//! [`timeout_future`], [`interval_stream`]. Await a [`JoinHandle`] for the task's result. If the handle is dropped, the task
//! continues. All tasks end when the context's last user leaves.
//!
//! ```
//! use std::time::Duration;
//!
//! use futures_util::StreamExt;
//! use threadbare_runtime::{Context, Settings, interval_stream, timeout_future};
//!
//! let context = Context::acquire("futures", Settings::default())?;
//!
//! // Runs on the context's thread, at the same time as the code below.
//! let task = context.spawn(async {
//!     let mut ticks = interval_stream(Duration::from_millis(5)).take(3);
//!     let mut missed = 0;
//!     while let Some(tick) = ticks.next().await {
//!         // Ticks for which the task was too late are skipped and counted.
//!         missed += tick.missed;
//!     }
//!     missed
//! });
//!
//! // This thread sleeps until the result is ready.
//! let missed = context.block_on(async {
//!     timeout_future(Duration::from_millis(10)).await;
//!     task.await
//! })??;
//! println!("{missed} ticks missed");
//!
//! // The closure is called on the context's thread, so its future need not be `Send`. This future never ends.
//! let endless = context.spawn_from_within(|| std::future::pending::<()>());
//! endless.abort();
//! let error = threadbare_runtime::block_on(endless).unwrap_err();
//! assert!(error.is_cancelled());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate does not depend on GStreamer.
//!
//! Further reading: [`Agent`] for state machines with their own sockets and timers, which cost less than futures; [`Settings`]
//! for threads, wait, CPUs and priority; [`Lateness`] for the lateness of a thread.

#[cfg(not(loom))]
mod ahead;
#[cfg(not(loom))]
mod block;
#[cfg(not(loom))]
mod context;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod cpus;
#[cfg(not(loom))]
mod futures;
#[cfg(all(feature = "inspect", not(loom)))]
pub mod inspect;
#[cfg(not(loom))]
mod interval;
mod join;
#[cfg(not(loom))]
mod load;
mod monitor;
mod park;
mod queued;
#[cfg(not(loom))]
mod shard;
mod sync;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod task;
mod ticks;
#[cfg(not(loom))]
mod token;
#[cfg(not(loom))]
mod watch;
mod wheel;

pub use self::join::{JoinError, JoinHandle};
pub use self::monitor::{Guard, Monitor, Registration, Topics, Until, until};
pub use self::ticks::{MissedTicks, Tick, Ticks};
pub use self::wheel::{Precision, TimerKey, Wheel};
#[cfg(not(loom))]
pub use self::{
    block::block_on,
    context::{Context, ContextInfo, Settings, SettingsConflict, contexts},
    counters::{CountersSnapshot, Lateness},
    cpus::{CpuSet, NoCpuList},
    interval::{
        Interval, Timeout, interval_stream, interval_stream_with, timeout_future,
        timeout_future_seconds,
    },
    load::{Expects, Load, RECV_BATCH},
    shard::{
        Agent, AgentHandle, Cx, Interest, Local, MissingCpus, PRIORITY_MAX, Ready, Scheduling,
        Shard, ShardClosed, ShardEnd, StartError, current_shard_id, on_blocked,
    },
    sys::{
        CACHE_LINE, RawAddr, Received, RecvBatch, SEND_BATCH_MAX, SendBatch, clock_now_ns,
        disconnect, kernel_drops, prefetch, received_memory, recv_from, recv_timestamped, send_to,
        send_vectored_to, wall_clock_ahead_ns, wall_clock_is_synchronized,
    },
    task::{Sleep, sleep_until},
    watch::Blocked,
};
