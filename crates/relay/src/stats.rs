//! Counters of a call, a shard, and the engine.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters of a shard once: the cells that its thread writes, and the values for readers.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Values since the engine started, of all shards.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Only the shard's thread writes them; readers take relaxed snapshots.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* }
            }
        }

        impl std::ops::AddAssign for Stats {
            fn add_assign(&mut self, other: Stats) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Number of present calls.
    calls,
    /// Calls created.
    created,
    /// Calls removed because they panicked.
    panicked,
    /// Calls removed because the system refused to watch their sockets.
    failed,
    /// Datagrams delivered to calls.
    packets_received,
    /// Datagrams sent.
    packets_sent,
    /// Datagrams longer than the room for them; dropped.
    truncated,
    /// Datagrams on shared ports without a call; dropped.
    unmatched,
    /// Datagrams on shared ports that are neither RTP nor RTCP, and frames of rings that the kernel would drop; dropped.
    malformed,
    /// Datagrams on shared ports above a call's budget for one slice; dropped.
    over_budget,
    /// ICMP errors for sent datagrams.
    icmp_errors,
    /// Errors of receive calls. The socket stays in use.
    receive_errors,
    /// Datagrams that the system refused to send for reasons other than room.
    send_errors,
    /// Datagrams dropped because the socket's send buffer was full.
    send_full,
    /// Datagrams not sent because another machine may have taken over: [`Fence`](crate::Fence).
    fenced,
    /// Datagrams that calls staged for unreachable addresses or missing ports, or that were too long.
    stage_refused,
    /// Datagrams that calls staged for addresses that [`Settings::destinations`](crate::Settings::destinations) forbids.
    forbidden,
    /// Delivered datagrams that arrived by an XDP ring.
    ring_received,
    /// Sent datagrams that left by an XDP ring.
    ring_sent,
    /// Datagrams dropped by the kernel because a socket's buffer or a ring was full. Sampled: complete some seconds later.
    kernel_drops,
}

/// The values of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStats {
    /// Name of its thread.
    pub thread: String,
    /// Its counters.
    pub stats: Stats,
    /// Recent lateness of its slices, ns.
    pub lateness_ns: u64,
}

/// The counters of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Datagrams delivered to the call.
    pub packets_received: u64,
    /// Bytes of these datagrams.
    pub bytes_received: u64,
    /// Datagrams staged by the call.
    pub packets_staged: u64,
    /// Bytes of these datagrams.
    pub bytes_staged: u64,
    /// Datagrams refused as in [`Stats::stage_refused`].
    pub stage_refused: u64,
    /// Datagrams dropped as in [`Stats::truncated`].
    pub truncated: u64,
    /// Datagrams dropped as in [`Stats::over_budget`].
    pub over_budget: u64,
}

/// A number with one writer at a time: a load and a store, no atomic read-modify-write.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
}
