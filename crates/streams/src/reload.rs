//! Requests to reload the configuration. Any thread can send a request. The main thread carries it out and replies.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::event::Event;

/// The changes that a reload has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Number of streams that were started.
    pub streams_added: usize,
    /// Number of streams that were ended.
    pub streams_removed: usize,
    /// Number of streams that were restarted because their settings have changed.
    pub streams_restarted: usize,
    /// Whether settings of calls were changed.
    pub calls_changed: bool,
}

/// The reason why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReloaded {
    /// The process was started with arguments instead of a file.
    #[error("the settings came from the command line, so the process has no file to reload")]
    NoFile,
    /// The mistakes, each with its line.
    #[error("the file has mistakes: {}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// Changed keys that need a restart, with their old and new values.
    #[error("these changes need a restart: {}", .0.join("; "))]
    NeedsRestart(Vec<String>),
    /// The machine refuses the change.
    #[error("{0}")]
    Failed(String),
}

/// The callers that wait for a reply.
#[derive(Debug)]
pub struct Reloads {
    events: Sender<Event>,
    waiting: Mutex<Vec<Waiting>>,
}

type Waiting = oneshot::Sender<Result<Reloaded, NotReloaded>>;

impl Reloads {
    /// Creates the queue. The main thread is notified of requests through `events`.
    #[must_use]
    pub fn new(events: Sender<Event>) -> Reloads {
        Reloads {
            events,
            waiting: Mutex::default(),
        }
    }

    /// Requests a reload, and returns a receiver for the result. At most one request per HTTP connection waits.
    pub fn ask(&self) -> oneshot::Receiver<Result<Reloaded, NotReloaded>> {
        let (tell, told) = oneshot::channel();
        self.lock().push(tell);
        // This fails if the process is ending. In that case there is no reply.
        let _ = self.events.send(Event::Reload);
        told
    }

    /// Replies to all callers that wait.
    pub fn answer(&self, outcome: &Result<Reloaded, NotReloaded>) {
        for tell in std::mem::take(&mut *self.lock()) {
            // This fails if the caller no longer waits.
            let _ = tell.send(outcome.clone());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
