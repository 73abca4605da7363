//! What a line shows of itself: other threads look, and its own is not asked.
//!
//! | field | who |
//! |---|---|
//! | `Board` | written by the thread of the line's shard, in the line's turn, unless somebody looks just then; read by any thread |
//! | `Shown::peak` | as above, but taken out by the one thread that gathers |
//! | a programme that is to begin | set by any thread, taken by the line's |
//! | `Pace` | written by any thread, read by all shards |

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::loudness::Loudness;
use crate::sync::lock;

/// How often lines show themselves. Clones are one.
#[derive(Debug, Clone)]
pub struct Pace(Arc<AtomicU64>);

impl Pace {
    /// A pace of so much time between two looks.
    #[must_use]
    pub fn new(period: Duration) -> Pace {
        let pace = Pace(Arc::default());
        pace.set(period);
        pace
    }

    /// Changes it for all lines that have it.
    pub fn set(&self, period: Duration) {
        self.0.store(period.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn period_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The values of one line, for other threads.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    shown: Mutex<Shown>,
    /// Somebody wants integrated loudness, range and the highest peak to begin anew.
    is_programme_due: AtomicBool,
}

/// What a line shows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shown {
    /// When it was shown, ns of CLOCK_MONOTONIC; `None`: not yet.
    pub shown_ns: Option<u64>,
    /// When the last packet of the party that sends came, ns.
    pub heard_ns: Option<u64>,
    /// RTP packets of the party that sends.
    pub packets: u64,
    /// Packets that missed their time.
    pub lost: u64,
    /// Packets that came after their time.
    pub late: u64,
    /// Audio made up for losses, ns.
    pub concealed_ns: u64,
    /// Datagrams that did not belong.
    pub refused: u64,
    /// How often the input has changed.
    pub switches: u64,
    /// The input that is heard: 0 is the party that sends, then its fallbacks.
    pub active: usize,
    /// How far the sender's clock has fallen behind since the stream began, ns; negative when it has got ahead.
    pub skew_ns: i64,
    /// Interarrival jitter (RFC 3550, A.8), ns.
    pub jitter_ns: u64,
    /// Packets in the jitter buffer.
    pub held_packets: u32,
    /// Delay of the jitter buffer, ns.
    pub latency_ns: u64,
    /// Round trip by RTCP, ns.
    pub round_trip_ns: Option<u64>,
    /// `None`: not measured, or nothing was heard yet.
    pub loudness: Option<Loudness>,
    /// The highest true peak since [`Board::take`], full scale 1.
    pub peak: f64,
}

impl Board {
    /// What was shown last.
    #[must_use]
    pub fn look(&self) -> Shown {
        *lock(&self.0.shown)
    }

    /// The same for the one thread that gathers: peaks begin anew.
    #[must_use]
    pub fn take(&self) -> Shown {
        let mut shown = lock(&self.0.shown);
        let taken = *shown;
        shown.peak = 0.0;
        taken
    }

    /// Another programme begins with what is heard from now on: integrated loudness, range and true peak are its own.
    pub fn begin_programme(&self) {
        self.0.is_programme_due.store(true, Relaxed);
    }

    /// Whether it is to.
    pub(crate) fn take_programme(&self) -> bool {
        let due = &self.0.is_programme_due;
        due.load(Relaxed) && due.swap(false, Relaxed)
    }

    /// To write; does not wait for who looks just now.
    pub(crate) fn try_write(&self) -> Option<MutexGuard<'_, Shown>> {
        match self.0.shown.try_lock() {
            Ok(shown) => Some(shown),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
