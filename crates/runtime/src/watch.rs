//! Agents of a shard: their labels, the running one, and a log of blockages longer than a slice.
//!
//! | field | threads |
//! |---|---|
//! | `running`, `since_ns` | written by the shard's thread around each run of an agent, read by any thread |
//! | `noted_ns` | only the shard's thread |
//! | `labels` | changed by the shard's thread when agents come and go; read by any thread; under its lock |
//! | `log` | the shard's thread and readers, under its lock |

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::lock;
use crate::sys;

/// A blockage: an agent or element occupied a shard's thread for longer than a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// Label of the agent, or the name given to [`Shard::note_blocked`](crate::Shard::note_blocked).
    pub by: String,
    /// Start, ns of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Duration in ns.
    pub for_ns: u64,
}

pub(crate) struct Watch {
    /// Index of the running agent, plus one; 0 if none.
    running: AtomicU64,
    since_ns: AtomicU64,
    /// Part of the current run, ns, that is already logged as a blockage by something other than the agent.
    noted_ns: AtomicU64,
    limit_ns: u64,
    /// Maximum error, ns, by which the measured time of a run is too long; 0 if runs are measured exactly.
    resolution_ns: u64,
    labels: Mutex<Vec<Option<Box<str>>>>,
    log: Mutex<VecDeque<Blocked>>,
}

impl Watch {
    /// Creates a watch without agents. `wait_ns`: the context's wait; 0 means no throttling.
    pub(crate) fn new(wait_ns: u64) -> Self {
        let limit_ns = if wait_ns == 0 {
            UNTHROTTLED_LIMIT_NS
        } else {
            wait_ns
        };
        let resolution_ns = sys::coarse_resolution_ns();
        Watch {
            running: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            noted_ns: AtomicU64::new(0),
            limit_ns,
            resolution_ns: if limit_ns >= RESOLUTIONS_MIN * resolution_ns {
                resolution_ns
            } else {
                0
            },
            labels: Mutex::default(),
            log: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn begin(&self, index: u32, now_ns: u64) {
        self.since_ns.store(now_ns, Relaxed);
        self.noted_ns.store(0, Relaxed);
        self.running.store(u64::from(index) + 1, Relaxed);
    }

    #[inline]
    pub(crate) fn end(&self) {
        self.running.store(0, Relaxed);
    }

    #[inline]
    pub(crate) fn is_too_long(&self, for_ns: u64) -> bool {
        for_ns > self.limit_ns + self.resolution_ns
    }

    /// Whether the coarse clock is enough to find blockages.
    #[inline]
    pub(crate) fn reads_coarse_clock(&self) -> bool {
        self.resolution_ns > 0
    }

    /// Notes a blockage within the run of an agent, so that the agent is not reported for the same time.
    pub(crate) fn discount(&self, for_ns: u64) {
        self.noted_ns.fetch_add(for_ns, Relaxed);
    }

    /// Returns `for_ns`, the length of a run, without the blockages in the run that are already logged.
    pub(crate) fn unnoted_ns(&self, for_ns: u64) -> u64 {
        for_ns.saturating_sub(self.noted_ns.load(Relaxed))
    }

    pub(crate) fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    pub(crate) fn set_label(&self, index: usize, label: Option<String>) {
        let mut labels = lock(&self.labels);
        if labels.len() <= index {
            labels.resize(index + 1, None);
        }
        labels[index] = label.map(String::into_boxed_str);
    }

    pub(crate) fn label(&self, index: usize) -> Option<String> {
        let labels = lock(&self.labels);
        Some(labels.get(index)?.as_deref()?.to_owned())
    }

    pub(crate) fn labels(&self) -> Vec<String> {
        let labels = lock(&self.labels);
        labels
            .iter()
            .flatten()
            .map(|label| label.to_string())
            .collect()
    }

    /// Returns the running agent, and the time at which its run began.
    pub(crate) fn running(&self) -> Option<(String, u64)> {
        let index = self.running.load(Relaxed).checked_sub(1)?;
        let since_ns = self.since_ns.load(Relaxed);
        Some((self.label(index as usize)?, since_ns))
    }

    pub(crate) fn note(&self, blocked: Blocked) {
        let mut log = lock(&self.log);
        if log.len() >= LOG_MAX {
            log.pop_front();
        }
        log.push_back(blocked);
    }

    pub(crate) fn log(&self) -> Vec<Blocked> {
        lock(&self.log).iter().cloned().collect()
    }
}

/// Minimum number of clock steps in the shortest blockage. If there are fewer, the coarse clock is too coarse.
const RESOLUTIONS_MIN: u64 = 3;
/// Minimum blockage without slices: the length of a usual slice.
const UNTHROTTLED_LIMIT_NS: u64 = 20_000_000;
/// Maximum number of logged blockages, so that a context with constant blockages does not fill the memory.
const LOG_MAX: usize = 32;
