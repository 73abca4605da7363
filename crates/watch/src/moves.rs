//! Sessions that media threads have handed to each other, for metrics and events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use threadbare_base::{NS_PER_MS, lock};
use threadbare_process::system::unix_at_zero_ns;
use threadbare_relay::Moved;
use threadbare_runtime::clock_now_ns;
use tokio::sync::broadcast;

/// The moves of all sessions. Clones share them.
#[derive(Debug, Clone)]
pub struct Moves(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Number of sessions that each thread has handed over.
    counts: Mutex<BTreeMap<String, u64>>,
    listeners: broadcast::Sender<SessionMove>,
}

/// A session that was moved to another thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMove {
    /// The session.
    pub of: MovedSession,
    /// Name of the thread that ran the session.
    pub from: String,
    /// Name of the thread that runs the session now.
    pub to: String,
    /// ms since 1970.
    pub unix_ms: u64,
}

/// The owner of a moved session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MovedSession {
    /// A stream of the configuration file, by its name.
    Stream(String),
    /// A call, by the bytes of its Call-ID.
    Call(Vec<u8>),
}

impl Default for Moves {
    fn default() -> Moves {
        Moves(Arc::new(Shared {
            counts: Mutex::default(),
            listeners: broadcast::Sender::new(MOVES_MAX),
        }))
    }
}

impl Moves {
    /// Notes a move that has just been completed.
    pub fn note(&self, of: MovedSession, moved: Moved) {
        let Moved { label, from, to } = moved;
        tracing::debug!(
            session = label,
            from,
            to,
            "a session was moved to another thread"
        );
        *lock(&self.0.counts).entry(from.clone()).or_default() += 1;
        let unix_ms = (unix_at_zero_ns() + clock_now_ns()) / NS_PER_MS;
        let told = SessionMove {
            of,
            from,
            to,
            unix_ms,
        };
        // Sending fails only without subscribers.
        let _ = self.0.listeners.send(told);
    }

    /// Subscribes to moves from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<SessionMove> {
        self.0.listeners.subscribe()
    }

    /// Returns the number of sessions that a thread has handed over.
    #[must_use]
    pub fn from_thread(&self, thread: &str) -> u64 {
        lock(&self.0.counts).get(thread).copied().unwrap_or(0)
    }
}

/// Maximum number of moves that wait for a listener. There is at most one move per second for each kind of session.
const MOVES_MAX: usize = 256;
