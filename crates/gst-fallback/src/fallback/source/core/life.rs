//! The life of one source.
//!
//! | state | meaning | ends with |
//! |---|---|---|
//! | `Idle` | not needed, or not started yet | a need for the source |
//! | `Starting` | started; its streams are incomplete or held back | data (live), the release, or failure |
//! | `Running` | delivers data | failure, end of stream, or an empty buffer |
//! | `Stopping` | being shut down | the element's answer |
//! | `Waiting` | pause before the next start | the end of the pause |
//! | `Ended` | the main source has ended, and with it the output | |

use super::{Action, FULL_PERCENT, Reason, Run, Settings, SourceId, Status};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Life {
    #[default]
    Idle,
    Starting {
        since_ns: u64,
        /// Whether all streams of the source are held at their start.
        is_ready: bool,
    },
    Running {
        since_ns: u64,
        last_ns: u64,
    },
    Stopping {
        /// The reason for a restart, if the source must be restarted.
        why: Option<Reason>,
    },
    Waiting {
        until_ns: u64,
    },
    Ended,
}

impl Life {
    /// Notes data. Returns `false` if the source was still starting.
    pub(super) fn hear(&mut self, now_ns: u64) -> bool {
        match self {
            Life::Running { last_ns, .. } => {
                *last_ns = now_ns;
                true
            }
            Life::Starting { since_ns, .. } => {
                *since_ns = now_ns;
                false
            }
            _ => true,
        }
    }

    pub(super) fn become_ready(&mut self) {
        if let Life::Starting { is_ready, .. } = self {
            *is_ready = true;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) life: Life,
    /// Number of the source's current run.
    pub(super) number: u32,
    pub(super) is_live: bool,
    /// Fill level of the source's buffer, in percent, if reported.
    pub(super) percent: Option<u32>,
    /// Time at which the current run began to deliver. It stays the same after interruptions.
    pub(super) begun_ns: Option<u64>,
    /// Failures in a row.
    pub(super) failures: u32,
    pub(super) last_failure: Reason,
    /// Whether a picture of the source is stored, so that the source itself is not needed.
    pub(super) has_still: bool,
    pub(super) is_given_up: bool,
    /// Number of retries since the element's start.
    pub(super) retries: u64,
    pub(super) last_reason: Reason,
}

impl Source {
    pub(super) fn run(&self, source: SourceId) -> Run {
        Run {
            source,
            number: self.number,
        }
    }

    pub(super) fn start(&mut self, now_ns: u64, number: u32) {
        (self.number, self.is_live, self.percent) = (number, false, None);
        self.begun_ns = None;
        self.life = Life::Starting {
            since_ns: now_ns,
            is_ready: false,
        };
    }

    /// Stops the source. `why` is the reason for a restart; `None` if the source must not be restarted.
    pub(super) fn stop(
        &mut self,
        run: Run,
        why: Option<Reason>,
        actions: &mut impl Extend<Action>,
    ) {
        if self.runs() {
            self.life = Life::Stopping { why };
            actions.extend([Action::Stop(run)]);
        }
    }

    /// Whether the source is running.
    pub(super) fn runs(&self) -> bool {
        matches!(self.life, Life::Starting { .. } | Life::Running { .. })
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.life, Life::Starting { is_ready: true, .. })
    }

    pub(super) fn delivers(&self) -> bool {
        self.has_still || matches!(self.life, Life::Running { .. } | Life::Ended)
    }

    /// Returns the time at which a source that still delivers nothing has failed.
    pub(super) fn silent_until_ns(&self, settings: &Settings) -> Option<u64> {
        let heard_ns = match self.life {
            // A ready source waits for the application, so its silence is not a failure.
            Life::Starting { is_ready: true, .. } if !self.is_filling_up() => return None,
            Life::Starting { since_ns, .. } => since_ns,
            Life::Running { last_ns, .. } => last_ns,
            _ => return None,
        };
        Some(heard_ns.saturating_add(settings.restart_timeout_ns))
    }

    fn is_filling_up(&self) -> bool {
        self.percent.is_some_and(|percent| percent < FULL_PERCENT)
    }

    /// Returns the time at which the source has run for long enough that its earlier failures are forgotten.
    pub(super) fn settles_ns(&self, settings: &Settings) -> Option<u64> {
        match self.life {
            Life::Running { since_ns, .. } => {
                Some(since_ns.saturating_add(settings.restart_timeout_ns))
            }
            _ => None,
        }
    }

    pub(super) fn is_settled(&self, now_ns: u64, settings: &Settings) -> bool {
        self.has_still || self.settles_ns(settings).is_some_and(|ns| ns <= now_ns)
    }

    /// Returns the time at which a source that does not deliver counts as failing.
    pub(super) fn fails_ns(&self, settings: &Settings) -> Option<u64> {
        match self.life {
            Life::Starting { since_ns, .. } if self.failures == 0 => {
                Some(since_ns.saturating_add(settings.timeout_ns))
            }
            _ => None,
        }
    }

    pub(super) fn is_failing(&self, now_ns: u64, settings: &Settings) -> bool {
        !self.delivers()
            && (self.is_given_up
                || self.failures > 0
                || self.fails_ns(settings).is_some_and(|ns| ns <= now_ns))
    }

    /// Notes the end of a run. If the run has lasted for a while, its end is not a failure, so that a short source that repeats
    /// has no delays.
    pub(super) fn note_failure(&mut self, now_ns: u64, reason: Reason, settings: &Settings) {
        let has_run = |for_ns: u64| {
            let begun_ns = self.begun_ns;
            begun_ns.is_some_and(|begun_ns| now_ns >= begun_ns.saturating_add(for_ns))
        };
        let is_end = reason == Reason::Eos && has_run(settings.retry_delay_ns);
        if is_end || has_run(settings.restart_timeout_ns) {
            self.failures = 0;
        }
        if !is_end {
            self.failures = self.failures.saturating_add(1);
        }
        self.last_failure = reason;
    }

    /// Returns the delay before the next start. It doubles with each failure, up to a limit. The actual delay is random, between
    /// half of that and all of it, so that sources that failed together are not retried together.
    pub(super) fn delay_ns(&self, settings: &Settings, random: u64) -> u64 {
        let Some(doublings) = self.failures.checked_sub(1) else {
            return 0;
        };
        let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let longest_ns = settings.retry_delay_ns.saturating_mul(factor);
        let longest_ns = longest_ns.min(settings.retry_delay_ns_max);
        let spread_ns = longest_ns / 2;
        let part = (u128::from(random) * u128::from(spread_ns)) >> u64::BITS;
        longest_ns - spread_ns + u64::try_from(part).unwrap_or(spread_ns)
    }

    pub(super) fn status(&self) -> Status {
        match self.life {
            _ if self.has_still => Status::Running,
            _ if self.is_given_up => Status::Stopped,
            Life::Running { .. } => Status::Running,
            Life::Starting { .. } if self.failures == 0 => Status::Buffering,
            // Once the source is ready, the retry has succeeded.
            Life::Starting { is_ready: true, .. } => Status::Buffering,
            Life::Starting { .. } | Life::Waiting { .. } => Status::Retrying,
            Life::Stopping { why: Some(_) } => Status::Retrying,
            Life::Stopping { why: None } | Life::Idle | Life::Ended => Status::Stopped,
        }
    }
}
