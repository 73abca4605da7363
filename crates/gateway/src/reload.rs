//! Requests to read the configuration again: any thread asks, the main thread does it and tells.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::event::Event;

/// What was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Streams that have begun.
    pub streams_added: usize,
    /// Streams that have ended.
    pub streams_removed: usize,
    /// Streams that have begun anew, as their settings differ.
    pub streams_restarted: usize,
    /// Settings of calls differ.
    pub calls_changed: bool,
}

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReloaded {
    /// The process was started by arguments.
    #[error("the settings are arguments: there is no file to read again")]
    NoFile,
    /// Each with its line.
    #[error("the file has mistakes: {}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// Keys with both values.
    #[error("these need a restart: {}", .0.join("; "))]
    NeedsRestart(Vec<String>),
    /// The machine refuses.
    #[error("{0}")]
    Failed(String),
}

/// Who waits to be told.
#[derive(Debug)]
pub struct Reloads {
    events: Sender<Event>,
    waiting: Mutex<Vec<Waiting>>,
}

type Waiting = oneshot::Sender<Result<Reloaded, NotReloaded>>;

impl Reloads {
    /// Requests go to the main thread by its events.
    #[must_use]
    pub fn new(events: Sender<Event>) -> Reloads {
        Reloads {
            events,
            waiting: Mutex::default(),
        }
    }

    /// Has the file read again, and tells what came of it. As many as HTTP has connections wait at a time.
    pub fn ask(&self) -> oneshot::Receiver<Result<Reloaded, NotReloaded>> {
        let (tell, told) = oneshot::channel();
        self.lock().push(tell);
        // Fails when the process ends: then nobody tells.
        let _ = self.events.send(Event::Reload);
        told
    }

    /// It was done, for all who have asked so far.
    pub fn answer(&self, outcome: &Result<Reloaded, NotReloaded>) {
        for tell in std::mem::take(&mut *self.lock()) {
            // Who asked may have given up.
            let _ = tell.send(outcome.clone());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
