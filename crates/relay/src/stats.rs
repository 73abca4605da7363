//! Counters of a call, a shard, and the engine.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters of a shard once: the cells that its thread writes, and the values that others read.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Values since the engine started, summed over all shards.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters of a shard. Only the shard's thread writes them, and readers take relaxed snapshots.
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
    /// Number of calls that exist.
    calls,
    /// Number of calls that were created.
    created,
    /// Number of moves of calls to another thread, counted for the thread that handed over the call.
    moved,
    /// Number of calls that were removed because they panicked.
    panicked,
    /// Number of calls that were removed because the system refused to watch their sockets.
    failed,
    /// Number of datagrams that were delivered to calls.
    packets_received,
    /// Number of datagrams that were sent.
    packets_sent,
    /// Number of datagrams that were dropped because they were longer than the buffer for a datagram.
    truncated,
    /// Number of datagrams that were dropped because they came on shared ports and belonged to no call.
    unmatched,
    /// Number of datagrams on shared ports that were dropped because they are neither RTP nor RTCP, and of frames in rings that the kernel
    /// would drop too.
    malformed,
    /// Number of datagrams on shared ports that were dropped because a call had used up its budget for one slice.
    over_budget,
    /// Number of ICMP errors for sent datagrams.
    icmp_errors,
    /// Number of errors of receive calls. The socket stays in use.
    receive_errors,
    /// Number of datagrams that the system refused to send for other reasons than lack of room.
    send_errors,
    /// Number of datagrams that were dropped because the socket's send buffer was full.
    send_full,
    /// Number of datagrams that were not sent because another machine may have taken over: see [`Fence`](crate::Fence).
    fenced,
    /// Number of datagrams that calls staged for unreachable addresses or missing ports, or that were too long.
    stage_refused,
    /// Number of datagrams that calls staged for addresses that [`Settings::destinations`](crate::Settings::destinations) forbids.
    forbidden,
    /// Number of delivered datagrams that arrived through an XDP ring.
    ring_received,
    /// Number of sent datagrams that left through an XDP ring.
    ring_sent,
    /// Number of datagrams that the kernel dropped because a socket's buffer or a ring was full. The number is complete only some seconds
    /// later, because it is sampled.
    kernel_drops,
}

/// The values of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStats {
    /// Name of the shard's thread.
    pub thread: String,
    /// The shard's counters.
    pub stats: Stats,
    /// Recent lateness of the shard's slices, ns.
    pub lateness_ns: u64,
}

/// The counters of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Number of datagrams that were delivered to the call.
    pub packets_received: u64,
    /// Number of bytes in these datagrams.
    pub bytes_received: u64,
    /// Number of datagrams that the call staged.
    pub packets_staged: u64,
    /// Number of bytes in these datagrams.
    pub bytes_staged: u64,
    /// Number of datagrams that were refused as in [`Stats::stage_refused`].
    pub stage_refused: u64,
    /// Number of datagrams that were dropped as in [`Stats::truncated`].
    pub truncated: u64,
    /// Number of datagrams that were dropped as in [`Stats::over_budget`].
    pub over_budget: u64,
}

/// A number with one writer at a time. It needs only a load and a store, and no atomic read-modify-write.
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
