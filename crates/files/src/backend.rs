//! Backends execute operations. They run on the service thread.

use std::io;
use std::time::Duration;

use crate::job::{Done, Job};

/// The number of an operation, and its result.
pub(crate) type Finished = (u64, io::Result<Done>);

/// Executes operations. Only the service thread uses it.
pub(crate) trait Backend: Send {
    /// Begins an operation. No other running operation has the same number.
    fn begin(&mut self, token: u64, job: Job);

    /// Allows an operation to end before it is complete. It has a result in any case.
    fn cancel(&mut self, token: u64);

    /// Whether the next [`wait`](Self::wait) is short in any case, so that the thread need not be woken.
    fn waits_briefly(&self) -> bool {
        false
    }

    /// Sleeps until an operation is done, the thread is woken, or the timeout ends; adds finished operations.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Finished>);
}
