//! State of an agent's wake-up: queued or not. Any thread calls `enqueue`. The shard's thread calls `dequeue` before it runs the
//! agent, so that a wake-up during the run queues the agent again.

use crate::sync::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct Queued(AtomicBool);

impl Queued {
    pub(crate) fn new() -> Self {
        Queued(AtomicBool::new(false))
    }

    /// Returns `true` if the caller must put the wake-up on the queue.
    pub(crate) fn enqueue(&self) -> bool {
        // Always a read-modify-write: a plain load could see a stale `true` while the shard has just dequeued and reads
        // the old data.
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn dequeue(&self) {
        // Read-modify-write, so that the run sees the waker's earlier writes.
        self.0.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
    use loom::thread;

    /// Senders write their data and wake the agent. The shard dequeues the wake-up and runs the agent, until the queue stays
    /// empty. The last run must have seen all data, and no wake-up may be queued twice.
    fn shard_against(senders: usize) {
        loom::model(move || {
            let queued = Arc::new(Queued::new());
            // Length of the shard's queue; relaxed, so that only `Queued` orders the data.
            let queue = Arc::new(AtomicUsize::new(0));
            let data: Arc<Vec<AtomicU8>> =
                Arc::new((0..senders).map(|_| AtomicU8::new(0)).collect());
            let run = {
                let (queued, queue, data) = (queued.clone(), queue.clone(), data.clone());
                move || {
                    let length = queue.load(Relaxed);
                    assert!(length <= 1, "queued twice");
                    if length == 1 {
                        queue.fetch_sub(1, Relaxed);
                        queued.dequeue();
                        return data.iter().map(|sent| sent.load(Relaxed)).sum();
                    }
                    0
                }
            };
            let threads: Vec<_> = (0..senders)
                .map(|i| {
                    let (queued, queue, data) = (queued.clone(), queue.clone(), data.clone());
                    thread::spawn(move || {
                        data[i].store(1, Relaxed);
                        if queued.enqueue() {
                            queue.fetch_add(1, Relaxed);
                        }
                    })
                })
                .collect();
            let mut seen: u8 = run().max(run());
            threads.into_iter().for_each(|t| t.join().unwrap());
            // After the joins, this thread sees the final length of the queue. Data that the runs above missed still counts as
            // missed.
            seen = seen.max(run());
            assert_eq!(usize::from(seen), senders, "a wake-up without a run");
        });
    }

    #[test]
    fn loom_a_wake_up_is_followed_by_a_run() {
        shard_against(1);
    }

    #[test]
    fn loom_two_wake_ups_are_followed_by_a_run_that_sees_both() {
        shard_against(2);
    }
}
