//! The list of streams, updated by the thread that keeps them running.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use threadbare_relay::{Pace, SharedSnapshot};

use super::PERIOD_SLOW;

/// The list of streams. Clones share it.
#[derive(Debug, Clone)]
pub struct Directory {
    inner: Arc<Mutex<Inner>>,
    pace: Pace,
}

#[derive(Debug, Default)]
struct Inner {
    generation: u64,
    /// The streams by number; a number is not reused.
    streams: BTreeMap<usize, Watched>,
}

/// The public data of a stream.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Unique.
    pub name: Arc<str>,
    /// Target loudness, LUFS.
    pub target_lufs: Option<f64>,
    /// Names of its inputs; one without fallbacks.
    pub inputs: Arc<[String]>,
    /// Times of day at which its integrated loudness is reset, minutes after local midnight.
    pub resets: Arc<[u16]>,
    /// Its source and destination.
    pub way: Arc<Way>,
    /// Why it does not run; `None`: it runs.
    pub stopped: Option<Arc<str>>,
    /// Its snapshots.
    pub snapshot: SharedSnapshot,
}

/// Source and destination of a stream, as in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Address at which its RTP is received.
    pub listen: SocketAddr,
    /// Address at which its RTCP is received; `None` without RTCP.
    pub listen_rtcp: Option<SocketAddr>,
    /// The destination as text.
    pub destination: String,
    /// The received codec as text.
    pub codec_in: String,
    /// The sent codec as text; `None` without a destination.
    pub codec_out: Option<String>,
    /// RTP clock rate of sent packets; `None`: that of the received ones.
    pub clock_rate_out_hz: Option<u32>,
    /// Whether its audio is decoded, so that it can be listened to.
    pub is_decoded: bool,
}

/// A snapshot of the list.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Changes with the list.
    pub generation: u64,
    /// The streams by number.
    pub streams: Vec<(usize, Watched)>,
}

impl Default for Directory {
    fn default() -> Directory {
        Directory {
            inner: Arc::default(),
            pace: Pace::new(PERIOD_SLOW),
        }
    }
}

impl Directory {
    /// How often streams publish snapshots.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Adds a stream, or replaces its settings.
    pub fn add(&self, number: usize, watched: Watched) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.streams.insert(number, watched);
    }

    /// The snapshot that a stream publishes to.
    #[must_use]
    pub fn snapshot(&self, number: usize) -> SharedSnapshot {
        let inner = self.lock();
        let watched = inner.streams.get(&number);
        watched.map_or_else(SharedSnapshot::default, |one| one.snapshot.clone())
    }

    /// Sets why a stream does not run; `None`: it runs.
    pub fn set_stopped(&self, number: usize, reason: Option<&str>) {
        if let Some(watched) = self.lock().streams.get_mut(&number) {
            watched.stopped = reason.map(Arc::from);
        }
    }

    /// Removes a stream.
    pub fn remove(&self, number: usize) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.streams.remove(&number);
    }

    /// Returns all streams.
    #[must_use]
    pub fn list(&self) -> Listed {
        let inner = self.lock();
        let streams = inner.streams.iter();
        Listed {
            generation: inner.generation,
            streams: streams
                .map(|(number, one)| (*number, one.clone()))
                .collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
