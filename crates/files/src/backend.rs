//! What carries operations out, below the service thread.

use std::io;
use std::time::Duration;

use crate::job::{Done, Job};

/// The number of an operation, and its result.
pub(crate) type Finished = (u64, io::Result<Done>);

/// Used by the service thread alone.
pub(crate) trait Backend: Send {
    /// Begins an operation. The number is no other's that is under way.
    fn begin(&mut self, token: u64, job: Job);

    /// An operation need not be completed. Its result comes in any case.
    fn cancel(&mut self, token: u64);

    /// Whether the next [`wait`](Self::wait) is a moment whatever happens: nobody has to wake the thread up.
    fn waits_briefly(&self) -> bool {
        false
    }

    /// Sleeps until an operation is done, the thread is woken, or the time is over; adds what is done.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Finished>);
}
