//! Counts of messages by their destination.

/// Counts of messages. Each message is in exactly one count: `received + copies` is the sum of all other counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Received from the input.
    pub received: u64,
    /// Copies for the second and further sinks of a key.
    pub copies: u64,
    /// Delivered to a sink.
    pub delivered: u64,
    /// Without a matching sink.
    pub unmatched: u64,
    /// Dropped because of a sink's rate limit.
    pub limited: u64,
    /// Dropped because of a full buffer, or with the buffer of a sink that was disconnected for being slow.
    pub overflowed: u64,
    /// Lost because a sink failed.
    pub errored: u64,
    /// Abandoned while waiting: at an abort, at the deadline of the end, or because too many sinks were closing.
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
    /// Delivered to the sink.
    pub delivered: u64,
    /// Dropped because of the rate limit.
    pub limited: u64,
    /// Dropped because of a full buffer.
    pub overflowed: u64,
}

/// The reason why a demultiplexer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The input has ended, and all sinks took their messages and were closed.
    Complete,
    /// The input has ended; some sinks did not take their messages, or did not close, before the deadline.
    Deadline,
    /// [`crate::Handle::abort`] was called.
    Aborted,
    /// The handler of failed sinks requested it.
    Failed,
}

/// Result of a demultiplexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The reason why the demultiplexer ended.
    pub end: End,
    /// Counts of messages. None is waiting any more.
    pub statistics: Statistics,
    /// Number of sinks that were closed normally.
    pub closed: u64,
    /// Number of sinks that were dropped without closing: they failed, were disconnected, or were abandoned at the end.
    pub dropped: u64,
}
