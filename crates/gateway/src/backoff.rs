//! The waiting time before a failed stream is started again.

use std::time::Duration;

use crate::config::Restart;

/// Doubles from the first wait to the longest; a long run resets it.
#[derive(Clone, Debug)]
pub struct Backoff {
    limits: Restart,
    next: Duration,
}

impl Backoff {
    /// Starts with `limits.first`.
    pub fn new(limits: Restart) -> Self {
        Backoff {
            limits,
            next: limits.first,
        }
    }

    /// The next wait, after a run of `ran_for`.
    ///
    /// A run longer than the longest wait, or than [`HEALTHY`], counts as healthy, and the doubling starts over.
    pub fn after(&mut self, ran_for: Duration) -> Duration {
        if ran_for > self.limits.max.min(HEALTHY) {
            self.next = self.limits.first;
        }
        let wait = self.next.min(self.limits.max);
        self.next = (wait * 2).min(self.limits.max);
        wait
    }
}

/// A stream that fails by itself fails sooner; a peer that makes a stream fail now and then must not keep it down for
/// longer and longer.
pub const HEALTHY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_longest_and_starts_over_after_a_healthy_run() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(Restart {
            first: ms(100),
            max: ms(350),
        });
        let waits = [0, 0, 350, 0, 351, 0].map(|ran_for| backoff.after(ms(ran_for)).as_millis());
        assert_eq!(waits, [100, 200, 350, 350, 100, 200]);
    }

    #[test]
    fn a_healthy_run_need_not_be_as_long_as_the_longest_wait() {
        let mut backoff = Backoff::new(Restart {
            first: Duration::from_secs(1),
            max: Duration::from_secs(3600),
        });
        let waits =
            [0, 0, 9, 11, 0].map(|ran_for| backoff.after(Duration::from_secs(ran_for)).as_secs());
        assert_eq!(waits, [1, 2, 4, 1, 2]);
    }
}
