//! Detects a server that is too slow.
//!
//! Only the time in which the element waits for the server counts. If downstream is blocked, that is not the server's fault.

use super::problem::Problem;
use threadbare_base::NS_PER_S;

/// Limits of a server's pace; 0 for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::http) struct PaceLimits {
    /// Seconds without a byte.
    pub(in crate::http) stall_s: u32,
    /// Bytes per second, on average over [`PaceLimits::window_ns`].
    pub(in crate::http) rate: u32,
    pub(in crate::http) window_ns: u64,
}

/// The pace of one response.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct Pace {
    limits: PaceLimits,
    idle_ns: u64,
    window_ns: u64,
    window_bytes: u64,
}

impl Pace {
    pub(in crate::http) fn new(limits: PaceLimits) -> Self {
        Pace {
            limits,
            ..Pace::default()
        }
    }

    fn stall_ns(&self) -> Option<u64> {
        (self.limits.stall_s > 0).then(|| u64::from(self.limits.stall_s) * NS_PER_S)
    }

    fn has_rate(&self) -> bool {
        self.limits.rate > 0 && self.limits.window_ns > 0
    }

    /// Returns the maximum wait for bytes. After it, [`Pace::handle`] must be called without bytes. `None` means no limit.
    pub(in crate::http) fn patience_ns(&self) -> Option<u64> {
        let stall = self.stall_ns().map(|all| all.saturating_sub(self.idle_ns));
        let window =
            (self.has_rate()).then(|| self.limits.window_ns.saturating_sub(self.window_ns));
        match (stall, window) {
            (Some(stall), Some(window)) => Some(stall.min(window)),
            (one, other) => one.or(other),
        }
    }

    /// Notes a wait of `waited_ns`, in which this many bytes have arrived, possibly none.
    pub(in crate::http) fn handle(&mut self, waited_ns: u64, bytes: usize) -> Result<(), Problem> {
        self.idle_ns = match bytes {
            0 => self.idle_ns.saturating_add(waited_ns),
            _ => 0,
        };
        if self.stall_ns().is_some_and(|all| self.idle_ns >= all) {
            return Err(Problem::TimedOut(self.limits.stall_s));
        }
        self.window_ns = self.window_ns.saturating_add(waited_ns);
        self.window_bytes = self.window_bytes.saturating_add(bytes as u64);
        if !self.has_rate() || self.window_ns < self.limits.window_ns {
            return Ok(());
        }
        let (passed_ns, bytes) = (self.window_ns, self.window_bytes);
        (self.window_ns, self.window_bytes) = (0, 0);
        let least = u128::from(self.limits.rate) * u128::from(passed_ns);
        if u128::from(bytes) * u128::from(NS_PER_S) < least {
            Err(Problem::Slow {
                bytes,
                seconds: passed_ns / NS_PER_S,
                limit: self.limits.rate,
            })
        } else {
            Ok(())
        }
    }
}
