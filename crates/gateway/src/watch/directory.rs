//! Which streams there are, as the thread tells that keeps them running.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use threadbare_relay::{Board, Pace};

use super::PERIOD_SLOW;

/// The streams. Clones are one.
#[derive(Debug, Clone)]
pub struct Directory {
    inner: Arc<Mutex<Inner>>,
    pace: Pace,
}

#[derive(Debug, Default)]
struct Inner {
    generation: u64,
    /// By numbers that no other stream gets.
    streams: BTreeMap<usize, Watched>,
}

/// A stream, as it is known from outside.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Unique.
    pub name: Arc<str>,
    /// What its loudness is to be, LUFS.
    pub target_lufs: Option<f64>,
    /// Its inputs, for people; one if there are no fallbacks.
    pub inputs: Arc<[String]>,
    /// When its integrated loudness begins anew each day, minutes after local midnight.
    pub resets: Arc<[u16]>,
    /// Where it comes from and goes to.
    pub way: Arc<Way>,
    /// Why it does not run; `None`: it does.
    pub stopped: Option<Arc<str>>,
    /// What it shows.
    pub board: Board,
}

/// Where a stream comes from and goes to, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Where its RTP is received.
    pub listen: SocketAddr,
    /// Where its RTCP is received; `None`: there is none.
    pub listen_rtcp: Option<SocketAddr>,
    /// For people.
    pub destination: String,
    /// What comes, for people.
    pub codec_in: String,
    /// What leaves, for people; `None`: nothing does.
    pub codec_out: Option<String>,
    /// RTP clock rate of what leaves; `None`: it depends on what comes.
    pub clock_rate_out_hz: Option<u32>,
    /// Whether its audio is known to somebody: it can be listened to.
    pub is_decoded: bool,
}

/// All streams of a moment.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Another one has other streams.
    pub generation: u64,
    /// By number.
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
    /// How often streams show themselves.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// A stream is new, or has other settings.
    pub fn add(&self, number: usize, watched: Watched) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.streams.insert(number, watched);
    }

    /// Where a stream shows itself.
    #[must_use]
    pub fn board(&self, number: usize) -> Board {
        let inner = self.lock();
        let watched = inner.streams.get(&number);
        watched.map_or_else(Board::default, |one| one.board.clone())
    }

    /// A stream runs, or does not, for this reason.
    pub fn set_stopped(&self, number: usize, reason: Option<&str>) {
        if let Some(watched) = self.lock().streams.get_mut(&number) {
            watched.stopped = reason.map(Arc::from);
        }
    }

    /// A stream is gone.
    pub fn remove(&self, number: usize) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.streams.remove(&number);
    }

    /// All of them.
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
