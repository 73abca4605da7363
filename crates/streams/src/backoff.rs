//! The wait before a failed stream is restarted.

use std::time::{Duration, Instant};

use threadbare_config::Restart;

/// Computes the wait before each restart. The wait doubles from the first wait to the longest one. A healthy run resets it to the first
/// wait.
#[derive(Clone, Debug)]
pub struct Backoff {
    limits: Restart,
    next: Duration,
    /// Start of the current run. `None`: the stream does not run.
    running_since: Option<Instant>,
}

impl Backoff {
    /// Creates a back-off whose first wait is `limits.first`.
    pub fn new(limits: Restart) -> Self {
        Backoff {
            limits,
            next: limits.first,
            running_since: None,
        }
    }

    /// Records that the stream runs from now on. A start that is still in progress, for example during a slow name lookup, is not a run.
    pub fn note_running(&mut self, now: Instant) {
        self.running_since = Some(now);
    }

    /// Records a failure of a run or of a start. Returns the wait before the next start.
    ///
    /// A run that was longer than [`HEALTHY`] or than the longest wait counts as healthy. After a healthy run, the wait is the first one
    /// again.
    pub fn note_failure(&mut self, now: Instant) -> Duration {
        let ran_for = self.running_since.take().map(|since| now - since);
        if ran_for.is_some_and(|ran_for| ran_for > self.limits.max.min(HEALTHY)) {
            self.next = self.limits.first;
        }
        let wait = self.next.min(self.limits.max);
        self.next = (wait * 2).min(self.limits.max);
        wait
    }
}

/// Length of a run that counts as healthy. A stream with a permanent fault fails sooner. If a peer makes a stream fail only now and then,
/// the waits must not grow.
pub const HEALTHY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the waits after runs of these lengths. `None` stands for a start that failed after an hour.
    fn waits<const N: usize>(limits: Restart, runs: [Option<Duration>; N]) -> [Duration; N] {
        let mut backoff = Backoff::new(limits);
        let mut now = Instant::now();
        runs.map(|run| {
            match run {
                Some(ran_for) => {
                    backoff.note_running(now);
                    now += ran_for;
                }
                None => now += Duration::from_secs(3600),
            }
            backoff.note_failure(now)
        })
    }

    #[test]
    fn the_delay_doubles_up_to_the_maximum_and_restarts_after_a_healthy_run() {
        let ms = Duration::from_millis;
        let limits = Restart {
            first: ms(100),
            max: ms(350),
        };
        let runs = [0, 0, 350, 0, 351, 0].map(|ran_for| Some(ms(ran_for)));
        let expected = [100, 200, 350, 350, 100, 200].map(ms);
        assert_eq!(waits(limits, runs), expected);
    }

    #[test]
    fn healthy_run_may_be_shorter_than_the_longest_wait() {
        let s = Duration::from_secs;
        let limits = Restart {
            first: s(1),
            max: s(3600),
        };
        let runs = [0, 0, 9, 11, 0].map(|ran_for| Some(s(ran_for)));
        assert_eq!(waits(limits, runs), [1, 2, 4, 1, 2].map(s));
    }

    /// Here a name server answers late, and without an address. The stream never runs, however long the start takes.
    #[test]
    fn slow_start_is_not_a_healthy_run() {
        let s = Duration::from_secs;
        let limits = Restart {
            first: s(1),
            max: s(30),
        };
        assert_eq!(waits(limits, [None; 6]), [1, 2, 4, 8, 16, 30].map(s));
    }
}
