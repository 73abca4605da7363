//! How many descriptors the ports of ranges take, in this process: those of calls, and those that rest between two calls. Calls may have all
//! that the system gives; what rests leaves room for files, connections and the calls to come.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::sys::resource::{Resource, getrlimit};

/// Sockets of one lease, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Held(u64);

impl Held {
    pub(super) fn new(sockets: usize) -> Held {
        let sockets = sockets as u64;
        HELD.fetch_add(sockets, Relaxed);
        Held(sockets)
    }

    /// Whether those of an ended call may rest.
    pub(super) fn may_rest() -> bool {
        HELD.load(Relaxed) <= limit() / 4 * 3
    }

    /// Whether what rests is in the way of others.
    pub(super) fn is_crowded() -> bool {
        // Not the same: where nothing more may rest, what does is not closed for each new call.
        HELD.load(Relaxed) > limit() / 8 * 7
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Relaxed);
    }
}

/// Of open files, as it is when it is asked for first.
fn limit() -> u64 {
    *LIMIT.get_or_init(|| getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft))
}

/// A count, which orders nothing.
static HELD: AtomicU64 = AtomicU64::new(0);
static LIMIT: OnceLock<u64> = OnceLock::new();
