//! The list of streams, updated by the thread that keeps them running.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use threadbare_relay::{AudioSession, Commander, Pace, SharedSnapshot};

use super::PERIOD_SLOW;
use super::moves::Moves;

/// The list of streams. Clones share it.
#[derive(Debug, Clone)]
pub struct Directory {
    inner: Arc<Mutex<Inner>>,
    pace: Pace,
    moves: Moves,
}

#[derive(Debug, Default)]
struct Inner {
    generation: u64,
    /// The streams by number. Numbers are not reused.
    streams: BTreeMap<usize, Watched>,
}

/// The data of a stream that observers see.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The stream's name, which is unique.
    pub name: Arc<str>,
    /// Target loudness, LUFS.
    pub target_lufs: Option<f64>,
    /// Names of the inputs. A stream without fallbacks has one input.
    pub inputs: Arc<[String]>,
    /// Times of day at which integrated loudness is reset, in minutes after local midnight.
    pub resets: Arc<[u16]>,
    /// Source and destination.
    pub way: Arc<Way>,
    /// Why the stream does not run; `None`: it runs.
    pub stopped: Option<Arc<str>>,
    /// The snapshot that the stream updates.
    pub snapshot: SharedSnapshot,
    /// Sends commands to the running stream; `None`: it does not run, or is a pipeline.
    pub session: Option<Commander<AudioSession>>,
}

/// Source and destination of a stream, as in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Address at which RTP is received.
    pub listen: SocketAddr,
    /// Address at which RTCP is received; `None`: no RTCP.
    pub listen_rtcp: Option<SocketAddr>,
    /// The destination as text.
    pub destination: String,
    /// The received codec as text.
    pub codec_in: String,
    /// The sent codec as text; `None`: the stream has no destination.
    pub codec_out: Option<String>,
    /// RTP clock rate of sent packets; `None`: that of the received packets.
    pub clock_rate_out_hz: Option<u32>,
    /// Whether the audio is decoded, so that the stream can be listened to.
    pub is_decoded: bool,
}

/// A copy of the list.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Number of this state of the list.
    pub generation: u64,
    /// The streams by number.
    pub streams: Vec<(usize, Watched)>,
}

impl Default for Directory {
    fn default() -> Directory {
        Directory {
            inner: Arc::default(),
            pace: Pace::new(PERIOD_SLOW),
            moves: Moves::default(),
        }
    }
}

impl Directory {
    /// Returns how often streams update their snapshots.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Returns the moves of sessions between media threads.
    #[must_use]
    pub fn moves(&self) -> &Moves {
        &self.moves
    }

    /// Adds a stream, or replaces its settings.
    pub fn add(&self, number: usize, watched: Watched) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.streams.insert(number, watched);
    }

    /// Returns the snapshot that a stream must update.
    #[must_use]
    pub fn snapshot(&self, number: usize) -> SharedSnapshot {
        let inner = self.lock();
        let watched = inner.streams.get(&number);
        watched.map_or_else(SharedSnapshot::default, |one| one.snapshot.clone())
    }

    /// Sets why a stream does not run. `None`: it runs.
    pub fn set_stopped(&self, number: usize, reason: Option<&str>) {
        if let Some(watched) = self.lock().streams.get_mut(&number) {
            watched.stopped = reason.map(Arc::from);
        }
    }

    /// Sets the sender of commands to a running stream. `None`: the stream does not run.
    pub fn set_session(&self, number: usize, session: Option<Commander<AudioSession>>) {
        let mut inner = self.lock();
        if let Some(watched) = inner.streams.get_mut(&number) {
            watched.session = session;
            inner.generation += 1;
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
