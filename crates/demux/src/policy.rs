//! Treatment of messages that a sink cannot take, or that exceed its rate limit.

use std::time::Duration;

/// Treatment of a message for a sink that is not ready and whose buffer is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The message waits, and so do all following messages of the input. No sink gets a message until this sink takes it
    /// (head-of-line blocking). This is for sinks that must get everything and may slow down the input.
    #[default]
    Block,
    /// The message is dropped.
    DropNewest,
    /// The oldest message in the buffer is dropped, and the new one is added. Without a buffer, it is the same as `DropNewest`.
    DropOldest,
    /// The message is dropped. If this many messages in a row are dropped, the sink is disconnected.
    DisconnectAfter(u32),
}

/// Limits the rate of a sink's messages: one per `period` on average, and at most `burst` at once. Further messages are dropped.
///
/// It uses the generic cell rate algorithm as a virtual schedule (ITU-T I.371, annex A), with one number for each sink and no
/// timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    period_ns: u64,
    tolerance_ns: u64,
}

impl RateLimit {
    /// Allows one message per `period`, and after a silence up to `burst` at once. A burst of 0 counts as 1.
    pub fn new(period: Duration, burst: u32) -> Self {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        RateLimit {
            period_ns,
            tolerance_ns: period_ns.saturating_mul(u64::from(burst.max(1)) - 1),
        }
    }

    /// Allows `messages` in each `time`, and as many at once. With 0 messages, it allows only the first message.
    pub fn messages_per(messages: u32, time: Duration) -> Self {
        match messages {
            0 => RateLimit::new(Duration::MAX, 1),
            _ => RateLimit::new(time / messages, messages),
        }
    }
}

/// The schedule of one sink.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Schedule {
    /// Time of the next message if all messages come at the average rate; 0 at first.
    due_ns: u64,
}

impl Schedule {
    /// Whether a message may pass now.
    #[inline]
    pub(crate) fn admits(&mut self, limit: &RateLimit, now_ns: u64) -> bool {
        if self.due_ns > now_ns.saturating_add(limit.tolerance_ns) {
            return false;
        }
        self.due_ns = self.due_ns.max(now_ns).saturating_add(limit.period_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn after_a_silence_a_burst_passes_and_then_one_each_period() {
        let limit = RateLimit::new(Duration::from_millis(10), 3);
        let mut schedule = Schedule::default();
        let start_ns = 1000 * MS;
        let burst: Vec<bool> = (0..5).map(|_| schedule.admits(&limit, start_ns)).collect();
        assert_eq!(burst, [true, true, true, false, false]);
        assert!(!schedule.admits(&limit, start_ns + 9 * MS));
        assert!(schedule.admits(&limit, start_ns + 10 * MS));
        assert!(!schedule.admits(&limit, start_ns + 19 * MS));
        assert!(schedule.admits(&limit, start_ns + 20 * MS));
    }

    #[test]
    fn a_limit_of_zero_admits_only_the_first_message() {
        let limit = RateLimit::messages_per(0, Duration::from_secs(1));
        let mut schedule = Schedule::default();
        assert!(schedule.admits(&limit, 0));
        assert!(!schedule.admits(&limit, u64::MAX / 2));
    }

    proptest! {
        /// By the definition of the algorithm (I.371), any time t has at most burst + t / period messages.
        #[test]
        fn no_interval_has_more_messages_than_the_limit_allows(
            period in 1..50_u64,
            burst in 1..6_u32,
            gaps in prop::collection::vec(0..60_u64, 1..200),
        ) {
            let limit = RateLimit::new(Duration::from_nanos(period), burst);
            let (mut schedule, mut now, mut passed) = (Schedule::default(), 0, Vec::new());
            for gap in gaps {
                now += gap;
                if schedule.admits(&limit, now) {
                    passed.push(now);
                }
            }
            for (i, from) in passed.iter().enumerate() {
                for (j, to) in passed.iter().enumerate().skip(i) {
                    let count = (j - i + 1) as u64;
                    prop_assert!(count <= u64::from(burst) + (to - from) / period);
                }
            }
        }
    }
}
