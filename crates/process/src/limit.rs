//! Limits log lines, so that unknown senders cannot fill the log with their packets.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Allows a number of lines per second, and counts the others.
#[derive(Debug)]
pub struct LineLimit {
    lines_per_second: u32,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    start: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

/// The decision on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write the line.
    Write {
        /// Number of suppressed lines since the last written one.
        suppressed: u64,
    },
    /// Suppress the line.
    Suppress,
}

impl LineLimit {
    /// Creates a limit of lines per second.
    pub const fn new(lines_per_second: u32) -> LineLimit {
        LineLimit {
            lines_per_second,
            window: Mutex::new(Window {
                start: None,
                lines: 0,
                suppressed: 0,
            }),
        }
    }

    /// Whether a line may be written at `now`.
    pub fn check(&self, now: Instant) -> Verdict {
        // If a thread panicked while it held the lock, the state is still consistent.
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over =
            |start: Instant| now.saturating_duration_since(start) >= Duration::from_secs(1);
        if window.start.is_none_or(is_over) {
            window.start = Some(now);
            window.lines = 0;
        }
        if window.lines >= self.lines_per_second {
            window.suppressed += 1;
            return Verdict::Suppress;
        }
        window.lines += 1;
        Verdict::Write {
            suppressed: std::mem::take(&mut window.suppressed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_not_written() {
        let limit = LineLimit::new(2);
        let start = Instant::now();
        let verdicts =
            [0, 1, 2, 999, 1000, 1001].map(|ms| limit.check(start + Duration::from_millis(ms)));
        let write = |suppressed| Verdict::Write { suppressed };
        let suppress = Verdict::Suppress;
        assert_eq!(
            verdicts,
            [write(0), write(0), suppress, suppress, write(2), write(0)]
        );
    }
}
