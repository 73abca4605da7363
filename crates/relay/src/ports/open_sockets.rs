//! Counts the descriptors of port ranges in this process: those of calls, and the sealed ones between two calls. Calls may use all
//! descriptors that the system allows. Sealed sockets must leave room for files, connections and more calls.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::sys::resource::{Resource, getrlimit};

/// The sockets of one lease. They are counted until this is dropped.
#[derive(Debug)]
pub(super) struct OpenSockets(u64);

impl OpenSockets {
    pub(super) fn new(sockets: usize) -> OpenSockets {
        let sockets = sockets as u64;
        OPEN.fetch_add(sockets, Relaxed);
        OpenSockets(sockets)
    }

    /// Whether the sockets of an ended call may be sealed and kept.
    pub(super) fn may_rest() -> bool {
        OPEN.load(Relaxed) <= limit() / 4 * 3
    }

    /// Whether there are too many kept sockets.
    pub(super) fn is_crowded() -> bool {
        // This bound is higher than the one in `may_rest`. Otherwise, at the limit, each new call would close kept sockets.
        OPEN.load(Relaxed) > limit() / 8 * 7
    }
}

impl Drop for OpenSockets {
    fn drop(&mut self) {
        OPEN.fetch_sub(self.0, Relaxed);
    }
}

/// Returns the limit of open files, as it was at the first use.
fn limit() -> u64 {
    *LIMIT.get_or_init(|| getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft))
}

/// A plain counter, which orders no other memory.
static OPEN: AtomicU64 = AtomicU64::new(0);
static LIMIT: OnceLock<u64> = OnceLock::new();
