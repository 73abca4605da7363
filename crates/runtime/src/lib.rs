//! Contexts: one thread each, carrying thousands of sources.
//!
//! A [`Context`] has a name, a *wait* and a number of threads. Each of its threads is a [`Shard`]: an epoll reactor, a
//! timer wheel and a ready queue, all owned by that thread. A shard's residents are [`Agent`]s (driven by sockets,
//! timers and wake-ups, called directly without futures) and tasks (futures).
//!
//! With `wait = W` a shard handles all pending events at most once per `W`, in one batch. Between batches it sleeps in
//! the kernel, and without events it does not wake up at all. Control commands interrupt the sleep.
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
//! This crate does not depend on GStreamer.

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

pub use self::monitor::{Guard, Monitor, Registration, Topics, Until, until};
pub use self::ticks::{MissedTicks, Tick, Ticks};
pub use self::wheel::{Precision, TimerKey, Wheel};
#[cfg(not(loom))]
pub use self::{
    block::block_on,
    context::{Context, ContextInfo, Settings, SettingsConflict, contexts},
    counters::{CountersSnapshot, Lateness},
    cpus::{CpuSet, NoCpuList},
    shard::{
        Agent, AgentHandle, Cx, Interest, Local, MissingCpus, PRIORITY_MAX, Ready, Scheduling,
        Shard, ShardClosed, ShardEnd, StartError, current_shard_id, on_blocked,
    },
    sys::{
        CACHE_LINE, RawAddr, Received, RecvBatch, SEND_BATCH_MAX, SendBatch, clock_now_ns,
        prefetch, recv_from, recv_timestamped, send_to, send_vectored_to,
    },
    task::{Sleep, sleep_until},
    watch::Blocked,
};
