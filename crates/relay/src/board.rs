//! What a line shows of itself: other threads look, and its own is not asked.
//!
//! | field | who |
//! |---|---|
//! | `Board` | written by the thread of the line's shard, in the line's turn, unless somebody looks just then; read by any thread |
//! | `Shown::peak` | as above, but taken out by the one thread that gathers |
//! | a programme that is to begin | set by any thread, taken by the line's |
//! | listeners | come and go on any thread: see `listen.rs` |
//! | `Pace` | written by any thread, read by all shards |

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use threadbare_rtp::id::Ssrc;
use threadbare_rtp::leg::{Leg, Payload};
use threadbare_rtp::session::RemoteView;

use crate::listen::{Ears, Listening};
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
    ears: Ears,
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
    /// Where the party that sends does so from, and its SSRC.
    pub source: Option<(SocketAddr, Ssrc)>,
    /// What audio the party that sends has sent last.
    pub payload: Option<Payload>,
    /// Where RTP is sent.
    pub rtp_to: Option<SocketAddr>,
    /// What our reports say of the party that sends; `None`: nothing was heard.
    pub sender: Option<SenderView>,
    /// What the party that hears last said of our packets.
    pub listener: Option<ListenerView>,
    /// `None`: not measured, or nothing was heard yet.
    pub loudness: Option<Loudness>,
    /// The highest true peak since [`Board::take`], full scale 1.
    pub peak: f64,
}

/// How a party that sends is heard, as reports tell it (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderView {
    /// RTP packets lost since it began; negative when duplicates outnumber losses.
    pub lost: i64,
    /// Lost in the interval of our last report, in 256ths.
    pub fraction_lost: u8,
    /// Interarrival jitter, ns.
    pub jitter_ns: u64,
}

impl SenderView {
    /// Of the party that a leg receives; `None`: nothing was heard.
    #[must_use]
    pub fn of(leg: &Leg) -> Option<SenderView> {
        let (_, ssrc) = leg.source()?;
        let known = leg.sources().find(|one| one.ssrc == ssrc)?;
        Some(SenderView {
            lost: known.lost,
            fraction_lost: known.fraction_lost,
            jitter_ns: known.jitter_ns,
        })
    }
}

/// The last report about what is sent (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerView {
    /// Whose it is.
    pub ssrc: Ssrc,
    /// What it says.
    pub report: RemoteView,
}

impl ListenerView {
    /// Of the party that a leg sends to; `None`: it has told nothing.
    #[must_use]
    pub fn of(leg: &Leg) -> Option<ListenerView> {
        let told = leg.sources().find_map(|one| Some((one.ssrc, one.remote?)));
        told.map(|(ssrc, report)| ListenerView { ssrc, report })
    }
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

    /// Listens to what the line carries from now on, decoded, as a meter hears it. Costs the line its decoding as long as somebody does; a line that passes
    /// on what it cannot decode is silent.
    #[must_use]
    pub fn listen(&self) -> Listening {
        self.0.ears.listen(LISTENING_BYTES)
    }

    /// The same, for who takes it at other times: see [`Ears::listen`].
    #[must_use]
    pub fn listen_with_room(&self, room_bytes: usize) -> Listening {
        self.0.ears.listen(room_bytes)
    }

    pub(crate) fn ears(&self) -> &Ears {
        &self.0.ears
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

/// More than a second of Opus in stereo, of which a tap gives no more at a time.
const LISTENING_BYTES: usize = 1 << 18;
