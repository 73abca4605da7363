//! A fence: the deadline after which this node must not send, because another node takes over.
//!
//! One word contains the end of a lease on CLOCK_MONOTONIC, which continues while the process is stopped. The socket's thread compares the
//! clock with it before each datagram, and not only once for a batch. So if a process is frozen within a batch, it sends none of the
//! remaining datagrams when it resumes. The comparison costs 30 ns, compared with some microseconds for the system call. Only sockets with
//! a fence need it.
//!
//! One thread owns the lease. Only this thread writes the word.
//!
//! | transition | thread | reason |
//! |---|---|---|
//! | open until T1 -> open until T2 | the lease's owner | the lease was renewed |
//! | open until T -> closed | the lease's owner | the lease has ended; a later lease has another fence |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The deadline for sending: see the module documentation. Clones share the same fence.
#[derive(Debug, Clone)]
pub struct Fence(Arc<AtomicU64>);

impl Fence {
    /// Creates a fence that is open until this time.
    #[must_use]
    pub fn new(until_ns: u64) -> Fence {
        Fence(Arc::new(AtomicU64::new(until_ns.max(CLOSED + 1))))
    }

    /// Keeps the fence open until this time. A closed fence stays closed.
    pub fn extend(&self, until_ns: u64) {
        if self.0.load(Ordering::Relaxed) != CLOSED {
            self.0.store(until_ns.max(CLOSED + 1), Ordering::Relaxed);
        }
    }

    /// Closes the fence permanently.
    pub fn close(&self) {
        self.0.store(CLOSED, Ordering::Relaxed);
    }

    /// Whether sending is allowed at `now_ns`. Reading the word orders no other memory.
    #[inline]
    #[must_use]
    pub fn is_open(&self, now_ns: u64) -> bool {
        now_ns < self.0.load(Ordering::Relaxed)
    }

    /// Whether both are clones of the same fence.
    #[must_use]
    pub fn is(&self, other: &Fence) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The value of a closed fence, which is before any time.
const CLOSED: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_fence_cannot_be_opened_again() {
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
