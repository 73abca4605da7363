//! The contexts of this process: load, lateness of slices, their agents, and blockages.
//!
//! A process calls [`contexts_json`] for itself. With [`serve`], other processes can get the same data (`threadbare inspect
//! contexts`).

mod server;

use serde_json::{Value, json};
use threadbare_base::{NS_PER_MS, NS_PER_US};

use crate::{Blocked, ContextInfo, Shard, clock_now_ns, contexts};

pub use self::server::{ServeError, serve, socket_path};

/// Returns all contexts of this process as JSON: an array of objects with `name`, `wait_ms`, `users` and `threads`. Each thread
/// has `busy_percent` since its start, `packets`, the lateness of its slices in µs, and `elements`. `running` is the element that
/// runs now, with the time for which it has run, in ms. `blocked` lists blockages that were longer than a slice, with element and
/// ms, newest last.
pub fn contexts_json() -> Value {
    contexts().iter().map(context_json).collect()
}

fn context_json(info: &ContextInfo) -> Value {
    let threads: Vec<Value> = info.threads.iter().map(thread_json).collect();
    json!({
        "name": info.name,
        "wait_ms": info.settings.wait.as_millis() as u64,
        "users": info.users,
        "threads": threads,
    })
}

fn thread_json(shard: &Shard) -> Value {
    let counters = shard.counters_snapshot();
    let now_ns = clock_now_ns();
    let alive_ns = now_ns.saturating_sub(shard.started_ns()).max(1);
    let running = shard.running().map(|(by, since_ns)| {
        json!({ "element": by, "ms": now_ns.saturating_sub(since_ns) / NS_PER_MS })
    });
    let blocked: Vec<Value> = shard.blocked().iter().map(blocked_json).collect();
    json!({
        "thread": shard.name(),
        "busy_percent": (counters.busy_ns as f64 / alive_ns as f64 * 1000.0).round() / 10.0,
        "wakeups": counters.wakeups,
        "packets": counters.packets,
        "slices": counters.lateness.slices,
        "late_p50_us": counters.lateness.p50_ns / NS_PER_US,
        "late_p99_us": counters.lateness.p99_ns / NS_PER_US,
        "late_max_us": counters.lateness.max_ns / NS_PER_US,
        "elements": shard.agents(),
        "running": running,
        "blocked": blocked,
    })
}

fn blocked_json(blocked: &Blocked) -> Value {
    let ago_ns = clock_now_ns().saturating_sub(blocked.at_ns);
    json!({
        "by": blocked.by,
        "ms": blocked.for_ns / NS_PER_MS,
        "ago_ms": ago_ns / NS_PER_MS,
    })
}
