//! Messages to the service manager (sd_notify(3)): ready, reloading, stopping, and the watchdog. Without a manager, nothing
//! happens.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use threadbare_config::Config;
use threadbare_streams::gateway::Gateway;
use threadbare_streams::reload::NotReloaded;

/// The service manager that started this process.
#[derive(Debug)]
pub(super) struct Manager {
    /// Watchdog period. `None`: there is no watchdog.
    period: Option<Duration>,
    next: Instant,
    /// The reason why the last reload was refused.
    refused: Option<String>,
}

impl Manager {
    /// Reads the environment variables that systemd sets.
    pub(super) fn new() -> Manager {
        let watchdog = sd_notify::watchdog_enabled();
        Manager {
            period: watchdog.map(|time| time / FEEDS),
            next: Instant::now(),
            refused: None,
        }
    }

    /// Reports that the process is ready.
    pub(super) fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(&self.line(status))]);
    }

    /// Reports that the file is being reloaded. Call [`ready`](Self::ready) afterwards, whether the reload succeeded or not.
    pub(super) fn reloading(&self) {
        // If the clock cannot be read, the message lacks the time, so the manager refuses it.
        let now = NotifyState::monotonic_usec_now();
        let now = now.unwrap_or(NotifyState::MonotonicUsec(0));
        self.tell(&[NotifyState::Reloading, now]);
    }

    /// Stores the result of a reload.
    pub(super) fn set_refused<T>(&mut self, outcome: &Result<T, NotReloaded>) {
        self.refused = outcome.as_ref().err().map(ToString::to_string);
    }

    /// Reports that the process is stopping.
    pub(super) fn stopping(&self, cause: &str) {
        let status = format!("the process ends, after {cause}");
        self.tell(&[NotifyState::Stopping, NotifyState::Status(&status)]);
    }

    /// Returns the time until the watchdog must be fed. `None`: the service manager has no watchdog.
    pub(super) fn wait(&self) -> Option<Duration> {
        let left = self.next.saturating_duration_since(Instant::now());
        self.period.map(|_| left)
    }

    /// Sends a keep-alive to the watchdog. Call [`starve`](Self::starve) instead if a thread makes no progress.
    pub(super) fn feed(&mut self, status: &str) {
        self.again();
        self.tell(&[
            NotifyState::Watchdog,
            NotifyState::Status(&self.line(status)),
        ]);
    }

    /// Withholds the keep-alive, because a thread is stuck. If it stays stuck, the manager restarts the process.
    pub(super) fn starve(&mut self, thread: &str) {
        self.again();
        tracing::error!(
            thread,
            "a thread does not answer, so the service manager's watchdog gets no keep-alive"
        );
    }

    fn again(&mut self) {
        self.next = Instant::now() + self.period.unwrap_or_default();
    }

    fn line(&self, status: &str) -> String {
        match &self.refused {
            None => status.to_owned(),
            // Line breaks are replaced, because a status is one line.
            Some(reason) => {
                format!("{status}; the configuration file was refused: {reason}").replace('\n', " ")
            }
        }
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(states) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}

/// Formats the status line. `calls` is the last known number of calls.
pub(super) fn status(gateway: &Gateway, config: &Config, calls: Option<usize>) -> String {
    let (running, all) = (gateway.streams_running(), gateway.len());
    let mut parts = Vec::new();
    if all > 0 {
        parts.push(format!("{running} of {all} streams run"));
    }
    match (&config.serving, calls) {
        (None, _) => {}
        (Some(_), Some(calls)) => parts.push(format!("{calls} calls")),
        (Some(_), None) => parts.push("new calls are accepted".to_owned()),
    }
    parts.join(", ")
}

/// Number of keep-alives within the watchdog's period. Two of them may be late.
const FEEDS: u32 = 3;
