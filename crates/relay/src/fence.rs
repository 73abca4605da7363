//! Until when a node may send what others take over when it is silent.
//!
//! One word: the end of a lease, on CLOCK_MONOTONIC, which goes on while the process is stopped. The socket's thread asks the clock before each
//! datagram, and not once a batch: a process that is frozen in the midst of a batch sends nothing of it when it goes on. That costs 30 ns beside a
//! system call of some microseconds, and only where there is a fence.
//!
//! The owner of the lease is one thread, and the only one that writes.
//!
//! | transition | by | |
//! |---|---|---|
//! | open until T1 -> open until T2 | owner of the lease | it was renewed |
//! | open until T -> closed | the same | the lease is over, for good: a later one has another fence |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module. Clones are the same fence.
#[derive(Debug, Clone)]
pub struct Fence(Arc<AtomicU64>);

impl Fence {
    /// Open until this time.
    #[must_use]
    pub fn new(until_ns: u64) -> Fence {
        Fence(Arc::new(AtomicU64::new(until_ns.max(CLOSED + 1))))
    }

    /// Open until this time. One that was closed stays closed.
    pub fn extend(&self, until_ns: u64) {
        if self.0.load(Ordering::Relaxed) != CLOSED {
            self.0.store(until_ns.max(CLOSED + 1), Ordering::Relaxed);
        }
    }

    /// Closed for good.
    pub fn close(&self) {
        self.0.store(CLOSED, Ordering::Relaxed);
    }

    /// Whether something may be sent at `now_ns`. The word alone counts: it orders nothing else.
    #[inline]
    #[must_use]
    pub fn is_open(&self, now_ns: u64) -> bool {
        now_ns < self.0.load(Ordering::Relaxed)
    }

    /// Whether it is the same one.
    #[must_use]
    pub fn is(&self, other: &Fence) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// No time is before.
const CLOSED: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_was_closed_stays_closed() {
        let fence = Fence::new(100);
        assert!(fence.is_open(99) && !fence.is_open(100));
        fence.clone().extend(200);
        assert!(fence.is_open(199) && !fence.is_open(200));
        fence.close();
        fence.extend(300);
        assert!(!fence.is_open(0));
        assert!(fence.is(&fence.clone()) && !fence.is(&Fence::new(0)));
    }
}
