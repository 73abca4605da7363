//! Snapshots of streams, and of the parties of calls. Each session publishes its values, and other threads read them without asking it.
//!
//! | data | threads |
//! |---|---|
//! | `SharedSnapshot` | written by the shard's thread in the stream's turn, unless a reader holds the lock; read by any thread |
//! | `LineSnapshot::peak` | written as above; taken by the thread that gathers the snapshots |
//! | `is_programme_due` | set by any thread, taken by the shard's thread |
//! | `listeners` | changed by any thread: see `listen.rs` |
//! | `Pace` | written by any thread, read by all shards |

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use threadbare_rtp::call::{Session, SessionState};
use threadbare_rtp::id::Ssrc;
use threadbare_rtp::leg::{Leg, Payload};
use threadbare_rtp::session::RemoteView;

use crate::listen::{Listeners, Listening};
use crate::loudness::Loudness;
use crate::sync::lock;

/// Interval at which streams publish their snapshots. Clones share it.
#[derive(Debug, Clone)]
pub struct Pace(Arc<AtomicU64>);

impl Pace {
    /// Creates the interval.
    #[must_use]
    pub fn new(period: Duration) -> Pace {
        let pace = Pace(Arc::default());
        pace.set(period);
        pace
    }

    /// Changes the interval for all streams that use it.
    pub fn set(&self, period: Duration) {
        self.0.store(period.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn period_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The snapshot of one stream, or of one party of a call, for other threads.
#[derive(Debug, Clone, Default)]
pub struct SharedSnapshot(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    values: Mutex<LineSnapshot>,
    /// Whether a restart of integrated loudness, range and the highest peak was requested.
    is_programme_due: AtomicBool,
    listeners: Listeners,
    /// Whether the session publishes its state, too.
    keeps_state: AtomicBool,
    /// The last state with its time, ns.
    state: Mutex<Option<(u64, SessionState)>>,
}

/// The values in a snapshot. For a party of a call, the sending party is this one, and the receiving party is the other one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LineSnapshot {
    /// Time of the snapshot, ns of CLOCK_MONOTONIC. `None`: there is none yet.
    pub shown_ns: Option<u64>,
    /// Arrival time of the sending party's last packet, ns.
    pub heard_ns: Option<u64>,
    /// Number of RTP packets from the sending party.
    pub packets: u64,
    /// Number of packets that had not arrived by their time to be played.
    pub lost: u64,
    /// Number of packets that arrived after their deadline.
    pub late: u64,
    /// Duration of the audio that was concealed, ns.
    pub concealed_ns: u64,
    /// Number of refused datagrams.
    pub refused: u64,
    /// Number of changes of the input.
    pub switches: u64,
    /// The active input. 0 is the sending party, and its fallbacks follow.
    pub active: usize,
    /// How far the sender's clock has fallen behind since the stream's start, ns. Negative if it is ahead.
    pub skew_ns: i64,
    /// Interarrival jitter (RFC 3550, A.8), ns.
    pub jitter_ns: u64,
    /// Number of packets in the jitter buffer.
    pub held_packets: u32,
    /// Delay of the jitter buffer, ns.
    pub latency_ns: u64,
    /// Mean opinion score (ITU-T G.107) of the audio between our last two RTCP reports, 1 to 4.5. `None`: the stream has no RTCP, or
    /// no report was due yet.
    pub mos: Option<f64>,
    /// Round-trip time by RTCP, ns.
    pub round_trip_ns: Option<u64>,
    /// The sending party's address and SSRC.
    pub source: Option<(SocketAddr, Ssrc)>,
    /// The payload type that the sending party used last for audio.
    pub payload: Option<Payload>,
    /// Destination of RTP.
    pub rtp_to: Option<SocketAddr>,
    /// The contents of our reports about the sending party. `None`: nothing was received.
    pub sender: Option<SenderView>,
    /// The receiving party's last report about our packets.
    pub listener: Option<ListenerView>,
    /// The loudness. `None`: it is not measured, or nothing was received yet.
    pub loudness: Option<Loudness>,
    /// The highest true peak since [`SharedSnapshot::take`], full scale 1.
    pub peak: f64,
}

/// Reception of a sending party, as in reports (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderView {
    /// Number of RTP packets lost since the party began. Negative if there are more duplicates than losses.
    pub lost: i64,
    /// Packets lost in the interval of our last report, in 256ths.
    pub fraction_lost: u8,
    /// Interarrival jitter, ns.
    pub jitter_ns: u64,
}

impl SenderView {
    /// Returns the reception of the leg's peer. `None`: nothing was received.
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

/// The last report about our packets (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerView {
    /// SSRC of the reporter.
    pub ssrc: Ssrc,
    /// Contents of the report.
    pub report: RemoteView,
}

impl ListenerView {
    /// Returns the last report of the leg's peer. `None`: it has sent none.
    #[must_use]
    pub fn of(leg: &Leg) -> Option<ListenerView> {
        let told = leg.sources().find_map(|one| Some((one.ssrc, one.remote?)));
        told.map(|(ssrc, report)| ListenerView { ssrc, report })
    }
}

impl SharedSnapshot {
    /// Returns the last snapshot.
    #[must_use]
    pub fn look(&self) -> LineSnapshot {
        *lock(&self.0.values)
    }

    /// Returns the last snapshot, and restarts the peak. Only the thread that collects the snapshots may call this.
    #[must_use]
    pub fn take(&self) -> LineSnapshot {
        let mut values = lock(&self.0.values);
        let taken = *values;
        values.peak = 0.0;
        taken
    }

    /// Starts another programme, so that integrated loudness, range and true peak restart.
    pub fn begin_programme(&self) {
        self.0.is_programme_due.store(true, Relaxed);
    }

    /// Listens to the stream's audio from now on. It is decoded, as for a meter. As long as there are listeners, the stream decodes its
    /// audio. If it cannot decode the codec, the listeners hear silence.
    #[must_use]
    pub fn listen(&self) -> Listening {
        self.0.listeners.listen(LISTENING_BYTES)
    }

    /// Acts as [`listen`](Self::listen), with another buffer size: see [`Listeners::listen`].
    #[must_use]
    pub fn listen_with_room(&self, room_bytes: usize) -> Listening {
        self.0.listeners.listen(room_bytes)
    }

    /// Makes the session publish its state with each snapshot.
    pub fn keep_state(&self) {
        self.0.keeps_state.store(true, Relaxed);
    }

    /// Returns the last published state with its time, ns of CLOCK_MONOTONIC.
    #[must_use]
    pub fn state(&self) -> Option<(u64, SessionState)> {
        lock(&self.0.state).clone()
    }

    /// Publishes the state of a session, if it is wanted. If a reader is using the last one, the next turn publishes.
    pub(crate) fn publish_state(&self, now_ns: u64, session: &Session) {
        if self.0.keeps_state.load(Relaxed)
            && let Ok(mut state) = self.0.state.try_lock()
        {
            *state = Some((now_ns, session.snapshot(now_ns)));
        }
    }

    pub(crate) fn listeners(&self) -> &Listeners {
        &self.0.listeners
    }

    /// Returns whether a restart was requested, and clears the request.
    pub(crate) fn take_programme(&self) -> bool {
        let due = &self.0.is_programme_due;
        due.load(Relaxed) && due.swap(false, Relaxed)
    }

    /// Locks the snapshot for writing, unless a reader has it.
    pub(crate) fn try_write(&self) -> Option<MutexGuard<'_, LineSnapshot>> {
        match self.0.values.try_lock() {
            Ok(values) => Some(values),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Default buffer size. It is more than a second of stereo Opus, which is the maximum that a tap returns at once.
const LISTENING_BYTES: usize = 1 << 18;
