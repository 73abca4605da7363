//! What the service manager is told (sd_notify(3)): that the gateway is ready, reads its file again, stops, and is not stuck.
//! Without one, nothing happens.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::config::Config;
use crate::gateway::Gateway;
use crate::reload::NotReloaded;

/// The service manager that has started this process.
#[derive(Debug)]
pub(super) struct Manager {
    /// `None`: it has no watchdog for this process.
    period: Option<Duration>,
    next: Instant,
    /// Why the file on the disk is not what runs.
    refused: Option<String>,
}

impl Manager {
    /// By the environment that systemd sets.
    pub(super) fn new() -> Manager {
        let watchdog = sd_notify::watchdog_enabled();
        Manager {
            period: watchdog.map(|time| time / FEEDS),
            next: Instant::now(),
            refused: None,
        }
    }

    /// Requests are answered.
    pub(super) fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(&self.line(status))]);
    }

    /// The file is being read again. [`ready`](Self::ready) ends that, whatever has come of it.
    pub(super) fn reloading(&self) {
        // A clock that cannot be read is for the manager to refuse.
        let now = NotifyState::monotonic_usec_now();
        let now = now.unwrap_or(NotifyState::MonotonicUsec(0));
        self.tell(&[NotifyState::Reloading, now]);
    }

    /// What has come of it.
    pub(super) fn set_refused<T>(&mut self, outcome: &Result<T, NotReloaded>) {
        self.refused = outcome.as_ref().err().map(ToString::to_string);
    }

    /// The end has begun.
    pub(super) fn stopping(&self, cause: &str) {
        let status = format!("ends, after {cause}");
        self.tell(&[NotifyState::Stopping, NotifyState::Status(&status)]);
    }

    /// How long until the watchdog is to be fed; `None`: there is none.
    pub(super) fn wait(&self) -> Option<Duration> {
        let left = self.next.saturating_duration_since(Instant::now());
        self.period.map(|_| left)
    }

    /// The process makes progress. Whoever finds that it does not calls [`starve`](Self::starve).
    pub(super) fn feed(&mut self, status: &str) {
        self.again();
        self.tell(&[
            NotifyState::Watchdog,
            NotifyState::Status(&self.line(status)),
        ]);
    }

    /// A thread is stuck: if it stays so, the manager starts the process anew.
    pub(super) fn starve(&mut self, thread: &str) {
        self.again();
        tracing::error!(thread, "does not answer; the watchdog is not fed");
    }

    fn again(&mut self) {
        self.next = Instant::now() + self.period.unwrap_or_default();
    }

    fn line(&self, status: &str) -> String {
        match &self.refused {
            None => status.to_owned(),
            // A status is one line.
            Some(reason) => format!("{status}; the file is refused: {reason}").replace('\n', " "),
        }
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(states) {
            tracing::warn!(%error, "the service manager is not told");
        }
    }
}

/// A line about what runs. `calls`: as many as there were when somebody last asked.
pub(super) fn status(gateway: &Gateway, config: &Config, calls: Option<usize>) -> String {
    let (running, all) = (gateway.streams_running(), gateway.len());
    let mut parts = Vec::new();
    if all > 0 {
        parts.push(format!("{running} of {all} streams run"));
    }
    match (&config.serving, calls) {
        (None, _) => {}
        (Some(_), Some(calls)) => parts.push(format!("{calls} calls")),
        (Some(_), None) => parts.push("calls are taken".to_owned()),
    }
    parts.join(", ")
}

/// In the time after which the watchdog bites: two may come late.
const FEEDS: u32 = 3;
