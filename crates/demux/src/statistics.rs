//! Where the messages have gone.

/// Counts of messages, of which each is in one place: `received + copies` is the sum of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// From the input.
    pub received: u64,
    /// Made for the second and further sinks of a key.
    pub copies: u64,
    /// Taken by a sink.
    pub delivered: u64,
    /// Without a sink.
    pub unmatched: u64,
    /// Dropped for a sink's rate limit.
    pub limited: u64,
    /// Dropped for a full buffer, or with the buffer of a sink that was disconnected for its slowness.
    pub overflowed: u64,
    /// Lost with a sink that failed.
    pub errored: u64,
    /// Given up while they waited: at an abort, at the deadline of the end, or with one closing sink too many.
    pub abandoned: u64,
    /// Waiting for a sink.
    pub waiting: u64,
}

impl Statistics {
    /// Whether each message is accounted for.
    pub fn are_complete(&self) -> bool {
        self.received + self.copies
            == self.delivered
                + self.unmatched
                + self.limited
                + self.overflowed
                + self.errored
                + self.abandoned
                + self.waiting
    }
}

/// Counts of one sink's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SinkStatistics {
    /// Taken by the sink.
    pub delivered: u64,
    /// Dropped for the rate limit.
    pub limited: u64,
    /// Dropped for a full buffer.
    pub overflowed: u64,
}

/// How a demultiplexer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The input has ended, and all sinks took what was theirs and were closed.
    Complete,
    /// The input has ended; some sinks did not take their messages, or did not close, before the deadline.
    Deadline,
    /// [`crate::Handle::abort`].
    Aborted,
    /// The handler of failed sinks said so.
    Failed,
}

/// The result of a demultiplexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub end: End,
    /// Where the messages have gone. None waits.
    pub statistics: Statistics,
    /// Sinks that were closed in order.
    pub closed: u64,
    /// Sinks that were dropped as they were: failed, disconnected, or given up at the end.
    pub dropped: u64,
}
