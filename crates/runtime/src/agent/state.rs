//! The word that says whether an agent's wake-up is on a queue: `enqueue` by anyone, `dequeue` by the
//! shard's thread before it runs the agent, so that a wake-up during the run queues it again.

use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct Queued(AtomicBool);

impl Queued {
    pub(crate) fn new() -> Self {
        Queued(AtomicBool::new(false))
    }

    /// `true`: the caller must put the wake-up on the queue.
    pub(crate) fn enqueue(&self) -> bool {
        // Always a read-modify-write: a plain load could see a stale `true` while the shard has just
        // dequeued and reads the old data.
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn dequeue(&self) {
        // Read-modify-write, so that what the waker wrote before it woke is visible to the run.
        self.0.swap(false, Ordering::AcqRel);
    }
}
