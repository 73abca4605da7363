//! The jitter buffer: reorders packets, evens out their delays, and reports losses.
//!
//! Arrivals drive the buffer. Each arrival outputs everything that is due, so a steady stream needs no timer. Only a missing
//! packet or a wait for a deadline needs one ([`JitterBuffer::next_timeout`]).
//!
//! ```text
//!  handle_packet ─ judge ─┬─ next in order, ahead, behind ─→ ring ── poll_output ─→ Packet, Lost, Resync
//!                         ├─ late, duplicate ──────────────→ rejects ────────────→ Dropped
//!                         └─ does not fit ─→ candidate ─ next in order follows ─→ resync, ring
//! ```
//!
//! - Send times lie on one time line (`timeline`) that continues over wrap-arounds, restarts and changes of source.
//! - `play = send time + offset`. The offset follows the least transit of the last seconds (`skew`).
//! - `deadline = play + latency`. The latency is fixed or adaptive (`adaptive`).
//! - Packets are stored in a ring by an index that also continues (`ring`). After a restart, the next index belongs to another
//!   sequence number, and no held packet is lost.
//!
//! A single packet has no effect on these beyond one place in the ring. A packet that does not fit the stream waits for a second
//! one.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod adaptive;
mod arrive;
mod config;
mod depart;
#[doc(hidden)]
pub mod fuzzing;
mod output;
mod ring;
mod skew;
mod stats;
mod timeline;

use adaptive::Target;
pub use config::{
    Adaptive, CAPACITY_PACKETS_MAX, CAPACITY_PACKETS_MIN, CLOCK_RATE_HZ_MAX, Config, ConfigError,
    LATENCY_NS_MAX, Release, Skew, capacity_for,
};
use depart::{Head, Next};
pub use output::{Arrival, DropReason, Output, ResyncCause};
use ring::Ring;
use skew::{Offset, Slices};
use stats::Drops;
pub use stats::Stats;
use timeline::Timeline;

use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

/// The jitter buffer of one stream; `T` is the caller's handle of a packet.
///
/// After each call that takes `&mut self`, call [`poll_output`](Self::poll_output) until it returns `None`. Then call
/// [`next_timeout`](Self::next_timeout), and poll again at that time unless a packet arrives first. If the caller does not drain
/// the buffer, packets are lost ([`DropReason::Full`]), without other effects.
///
/// Times are ns on one monotonic clock of the caller's choice. All memory is allocated by the first packet.
///
/// ```
/// use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};
/// use threadbare_jitter::{Arrival, Config, JitterBuffer, Output, Release};
///
/// # fn main() -> Result<(), threadbare_jitter::ConfigError> {
/// const MS: u64 = 1_000_000;
/// let release = Release::InOrder;
/// let mut buffer = JitterBuffer::new(Config { release, ..Config::new(8_000, 60 * MS) })?;
/// let mut outputs = Vec::new();
/// // The second of three packets is lost.
/// for (n, packet) in [(0, "first"), (2, "third")] {
///     let now_ns = u64::from(n) * 20 * MS;
///     buffer.handle_packet(now_ns, Arrival {
///         ssrc: Ssrc(1),
///         seq: SeqNum(n),
///         time: RtpTime(u32::from(n) * 160),
///         marker: false,
///         arrival_ns: None,
///         packet,
///     });
///     outputs.extend(std::iter::from_fn(|| buffer.poll_output(now_ns)));
/// }
/// // It was expected at 20 ms. The buffer waits for it for another 60 ms.
/// let due_ns = buffer.next_timeout();
/// assert_eq!(due_ns, Some(80 * MS));
/// outputs.extend(std::iter::from_fn(|| buffer.poll_output(80 * MS)));
/// assert!(matches!(outputs[..], [
///     Output::Packet { packet: "first", .. },
///     Output::Lost { first: SeqNum(1), packets: 1, .. },
///     Output::Packet { packet: "third", discont: true, .. },
/// ]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct JitterBuffer<T> {
    // Fields that each packet uses come first, next to each other: with thousands of streams in a process, each cache line is a
    // miss.
    ssrc: Ssrc,
    /// Sequence number of the last packet output or declared lost.
    last_seq: SeqNum,
    /// Must stay after `last_seq`. A compiler loads both at once, and that load must wait for the store to the other field.
    highest_seq: SeqNum,
    is_active: bool,
    /// Whether [`Cold::release_to`] or [`Cold::flush_to`] is ahead of `next`.
    is_forced: bool,
    /// Whether packets before [`JitterBuffer::floor`] may belong to the present source.
    is_open_below: bool,
    is_adaptive: bool,
    drop_on_latency: bool,
    /// Whether the next packet begins another stream: [`JitterBuffer::announce_source`].
    is_announced: bool,
    /// Whether the next packet output is discontinuous.
    is_broken: bool,
    /// Number of entries in [`Cold::rejects`].
    rejects: u8,
    /// Number of entries in [`Cold::candidate`].
    candidates: u8,
    /// Number of consecutive late packets.
    late_run: u8,
    release: Release,
    skew: Skew,
    /// Index of the next packet to be output.
    next: u64,
    /// Index of the highest packet of the present numbering.
    highest: u64,
    /// Index of the first packet of the present numbering.
    floor: u64,
    /// Bit n is set if index `next - 1 - n` was output.
    delivered_bits: u64,
    timeline: Timeline,
    offset: Offset,
    highest_send_ns: i64,
    /// End of the audio that was output or declared lost so far.
    last_send_ns: i64,
    last_play_ns: i64,
    /// Time between consecutive packets; 0 while unknown.
    spacing_ns: i64,
    latency_ns: i64,
    /// See [`JitterBuffer::set_ahead_ns`].
    ahead_ns: i64,
    last_at_ns: i64,
    last_transit_ns: i64,
    /// 16 times the jitter of RFC 3550, A.8, so that the division by 16 loses nothing.
    jitter_ns_x16: u64,
    received: u64,
    delivered: u64,
    ring: Ring<T>,
    cold: Box<Cold<T>>,
}

/// State that packets in order do not use.
#[derive(Debug)]
struct Cold<T> {
    slices: Slices,
    /// The adaptive latency. Boxed, because it is large and mostly absent.
    target: Option<Box<Target>>,
    candidate: Option<Incoming<T>>,
    rejects: [Option<(T, DropReason)>; REJECTS_MAX],
    old_ssrc: Option<Ssrc>,
    announced: ResyncCause,
    /// Everything below this index is due.
    release_to: u64,
    /// Everything below this index is dropped.
    flush_to: u64,
    late_seq: SeqNum,
    late_since_ns: i64,
    drops: Drops,
    lost: u64,
    resyncs: u64,
    config: Config,
}

#[derive(Debug)]
struct Incoming<T> {
    at_ns: i64,
    ssrc: Ssrc,
    seq: SeqNum,
    time: RtpTime,
    marker: bool,
    packet: T,
}

impl<T> JitterBuffer<T> {
    /// Creates an empty buffer.
    ///
    /// # Errors
    /// Fails if a setting is out of range.
    pub fn new(config: Config) -> Result<JitterBuffer<T>, ConfigError> {
        config.check()?;
        let target = config
            .adaptive
            .map(|bounds| Box::new(Target::new(bounds, config.latency_ns)));
        let latency_ns = target
            .as_ref()
            .map_or(config.latency_ns as i64, |target| target.ns());
        Ok(JitterBuffer {
            ssrc: Ssrc(0),
            highest_seq: SeqNum(0),
            last_seq: SeqNum(0),
            is_active: false,
            is_forced: false,
            is_open_below: false,
            is_adaptive: target.is_some(),
            drop_on_latency: config.drop_on_latency,
            is_announced: false,
            is_broken: true,
            rejects: 0,
            candidates: 0,
            late_run: 0,
            release: config.release,
            skew: config.skew,
            next: FIRST_INDEX,
            highest: FIRST_INDEX - 1,
            floor: FIRST_INDEX,
            delivered_bits: 0,
            timeline: Timeline::new(config.clock_rate_hz),
            offset: Offset::new(),
            highest_send_ns: 0,
            last_send_ns: 0,
            last_play_ns: 0,
            spacing_ns: 0,
            latency_ns,
            ahead_ns: 0,
            last_at_ns: 0,
            last_transit_ns: 0,
            jitter_ns_x16: 0,
            received: 0,
            delivered: 0,
            ring: Ring::empty(),
            cold: Box::new(Cold {
                slices: Slices::default(),
                target,
                candidate: None,
                rejects: [const { None }; REJECTS_MAX],
                old_ssrc: None,
                announced: ResyncCause::NewSource,
                release_to: 0,
                flush_to: 0,
                late_seq: SeqNum(0),
                late_since_ns: 0,
                drops: Drops::default(),
                lost: 0,
                resyncs: 0,
                config,
            }),
        })
    }

    #[cold]
    fn make_ring(&mut self) {
        self.ring = Ring::new(self.cold.config.capacity_packets);
    }

    /// Takes an arrived packet. `now_ns` must not go back.
    pub fn handle_packet(&mut self, now_ns: u64, arrival: Arrival<T>) {
        let at_ns = arrival.arrival_ns.unwrap_or(now_ns).min(now_ns);
        self.received += 1;
        if self.ring.size() == 0 {
            self.make_ring();
        }
        self.admit(Incoming {
            at_ns: local_ns(at_ns),
            ssrc: arrival.ssrc,
            seq: arrival.seq,
            time: arrival.time,
            marker: arrival.marker,
            packet: arrival.packet,
        });
    }

    /// Restarts the stream with the next packet, whatever its SSRC, sequence number and timestamp. Call this if the source has
    /// changed or restarted. Held packets are output first.
    pub fn announce_source(&mut self, cause: ResyncCause) {
        self.is_announced = self.is_active;
        self.cold.announced = cause;
        self.cold.old_ssrc = None;
        self.drop_candidate(DropReason::Unconfirmed);
    }

    /// Acts as [`announce_source`](Self::announce_source) with [`ResyncCause::Restart`], and sets the clock rate of the
    /// timestamps from the next packet on.
    ///
    /// # Errors
    /// Fails if the rate is out of range, without any change.
    pub fn announce_clock_rate(&mut self, clock_rate_hz: u32) -> Result<(), ConfigError> {
        let config = Config {
            clock_rate_hz,
            ..self.cold.config
        };
        config.check()?;
        self.cold.config = config;
        self.announce_source(ResyncCause::Restart);
        Ok(())
    }

    /// Sets how far ahead of the present time the caller polls. If a caller polls at intervals, this makes packets on time on
    /// average. A loss is still declared only at the deadline itself, because the packet may arrive until then.
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns as i64;
    }

    /// Returns the value that [`set_ahead_ns`](Self::set_ahead_ns) has set.
    #[must_use]
    pub fn ahead_ns(&self) -> u64 {
        self.ahead_ns as u64
    }

    /// Returns the next output that is due at `now_ns`, if any.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<Output<T>> {
        self.poll(now_ns, true)
    }

    /// Returns the next packet that was rejected on arrival. This is for callers that need each handle back. There are at most
    /// two such packets per arrival, and later arrivals drop them.
    #[inline]
    pub fn poll_rejected(&mut self) -> Option<(T, DropReason)> {
        if self.rejects == 0 {
            return None;
        }
        match self.take_reject()? {
            Output::Dropped { packet, reason } => Some((packet, reason)),
            _ => None,
        }
    }

    /// Acts as [`poll_output`](Self::poll_output), but returns `None` if the next output is a loss that a later packet might
    /// prevent. This is for callers that have packets which they have not handed in yet. They call this function after each
    /// packet, and `poll_output` after the last one. If a loss has another reason, such as a lack of places or
    /// [`release_all`](Self::release_all), it is not delayed.
    pub fn poll_before_loss(&mut self, now_ns: u64) -> Option<Output<T>> {
        self.poll(now_ns, false)
    }

    /// Whether [`poll_before_loss`](Self::poll_before_loss) stops at the next loss.
    #[must_use]
    pub fn is_loss_due(&self, now_ns: u64) -> bool {
        if self.rejects > 0 {
            return false;
        }
        self.head().is_some_and(|head| {
            let due_ns = self.due_ns(&head);
            Self::may_be_spared(&head, due_ns) && due_ns <= local_ns(now_ns)
        })
    }

    /// Whether the buffer waits for the missing packets until `due_ns`, and does not give them up for another reason.
    fn may_be_spared(head: &Head, due_ns: i64) -> bool {
        matches!(head.what, Next::Missing { .. }) && due_ns > i64::MIN
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, with_losses: bool) -> Option<Output<T>> {
        if self.rejects > 0
            && let Some(dropped) = self.take_reject()
        {
            return Some(dropped);
        }
        let head = self.head()?;
        if self.is_forced {
            if self.next < self.cold.flush_to {
                return self.drop_head(head.index, DropReason::Flushed);
            }
            self.is_forced = self.next < self.cold.release_to;
        }
        let due_ns = self.due_ns(&head);
        if local_ns(now_ns) >= due_ns {
            if !with_losses && Self::may_be_spared(&head, due_ns) {
                return None;
            }
            return match head.what {
                Next::Packet => self.give_out(head.send_ns),
                Next::Missing {
                    packets,
                    step_ns,
                    send_ns,
                } => Some(self.declare_lost(&head, packets, step_ns, send_ns)),
                Next::Resync(cause) => Some(self.announce(head.index, cause)),
            };
        }
        let span_ns = self.highest_send_ns.saturating_sub(head.send_ns);
        let is_packet = matches!(head.what, Next::Packet);
        if self.drop_on_latency && is_packet && span_ns > self.latency_ns {
            return self.drop_head(head.index, DropReason::Latency);
        }
        None
    }

    /// Returns the earliest time, in ns, at which [`poll_output`](Self::poll_output) will have output if no packet arrives
    /// before; 0 if it has output now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if self.rejects > 0 {
            return Some(0);
        }
        let head = self.head()?;
        Some(self.due_ns(&head).max(0) as u64)
    }

    /// Makes everything held due at once, in order and with its losses. Call this if the stream has ended (BYE), or if downstream
    /// drains. The stream continues with the next packet.
    pub fn release_all(&mut self) {
        self.is_forced = true;
        self.cold.release_to = self.highest + 1;
    }

    /// Drops everything held as [`DropReason::Flushed`] and forgets the source. The next packet is the first of a new stream.
    /// Settings and counters stay.
    pub fn flush(&mut self) {
        self.is_forced = true;
        self.cold.flush_to = self.highest + 1;
        self.cold.release_to = self.cold.flush_to;
        self.is_active = false;
        self.is_announced = false;
        self.is_broken = true;
        self.late_run = 0;
        self.spacing_ns = 0;
        self.cold.old_ssrc = None;
        self.drop_candidate(DropReason::Flushed);
    }

    /// Returns to the initial state with the present settings. Held packets are dropped, not returned, and the counters are 0.
    pub fn reset(&mut self) {
        if let Ok(new) = JitterBuffer::new(self.config()) {
            let ahead_ns = self.ahead_ns;
            *self = JitterBuffer { ahead_ns, ..new };
        }
    }

    /// Returns the present settings.
    #[must_use]
    pub fn config(&self) -> Config {
        self.cold.config
    }

    /// Sets the latency. With [`Config::adaptive`], adaptation restarts from this value, within its bounds. Held packets get new
    /// deadlines.
    ///
    /// # Errors
    /// Fails if the latency is above [`LATENCY_NS_MAX`].
    pub fn set_latency_ns(&mut self, latency_ns: u64) -> Result<(), ConfigError> {
        config::check_latency(latency_ns)?;
        self.cold.config.latency_ns = latency_ns;
        self.latency_ns = latency_ns as i64;
        if let (Some(target), Some(bounds)) = (&mut self.cold.target, self.cold.config.adaptive) {
            **target = Target::new(bounds, latency_ns);
            self.latency_ns = target.ns();
        }
        Ok(())
    }

    /// Increases the number of places to at least this, for a longer latency.
    ///
    /// # Errors
    /// Fails if the number is not valid for [`Config::capacity_packets`].
    pub fn grow(&mut self, capacity_packets: u16) -> Result<(), ConfigError> {
        if capacity_packets <= self.cold.config.capacity_packets {
            return Ok(());
        }
        let config = Config {
            capacity_packets,
            ..self.cold.config
        };
        config.check()?;
        self.cold.config = config;
        if self.ring.size() > 0 {
            let first = self
                .next
                .min(self.floor)
                .max(self.highest + 1 - self.ring.size());
            self.ring.grow(capacity_packets, first, self.highest);
        }
        Ok(())
    }

    /// Sets [`Config::drop_on_latency`].
    pub fn set_drop_on_latency(&mut self, drop_on_latency: bool) {
        self.cold.config.drop_on_latency = drop_on_latency;
        self.drop_on_latency = drop_on_latency;
    }

    /// Sets [`Config::release`].
    pub fn set_release(&mut self, release: Release) {
        self.cold.config.release = release;
        self.release = release;
    }

    /// Sets [`Config::max_dropout_ms`] and [`Config::max_misorder_ms`].
    pub fn set_tolerance_ms(&mut self, max_dropout_ms: u32, max_misorder_ms: u32) {
        self.cold.config.max_dropout_ms = max_dropout_ms;
        self.cold.config.max_misorder_ms = max_misorder_ms;
    }

    /// Returns the source of the packets that are held and output; `None` before the first packet.
    #[must_use]
    pub fn ssrc(&self) -> Option<Ssrc> {
        self.is_active.then_some(self.ssrc)
    }

    /// Returns the number of packets held: those in order, those that wait for earlier packets, and one that may belong to a new
    /// source.
    #[must_use]
    pub fn held_packets(&self) -> u32 {
        self.ring.held() + u32::from(self.candidates)
    }

    /// Returns the duration of the audio held, in ns: from the send time of the first packet held to that of the last one.
    #[must_use]
    pub fn held_ns(&self) -> u64 {
        let Some(head) = self.head() else { return 0 };
        let span_ns = self.highest_send_ns.saturating_sub(head.send_ns);
        span_ns.max(0) as u64
    }

    /// Returns the interval between the source's packets in ns; 0 while it is unknown.
    #[must_use]
    pub fn spacing_ns(&self) -> u64 {
        self.spacing_ns.max(0).unsigned_abs()
    }

    /// Returns the present latency in ns, as set or as adapted.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.latency_ns as u64
    }

    /// Returns the next packet in order, if it is held.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.ring.packet(self.next)
    }

    /// Calls `fetch` with the addresses of the places that the next packets leave and enter, so that the caller can prefetch
    /// them.
    #[inline]
    pub fn prefetch(&self, fetch: &mut impl FnMut(*const u8)) {
        for index in [self.next, self.highest + 1] {
            fetch(self.ring.address(index) as *const u8);
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            received: self.received,
            delivered: self.delivered,
            lost: self.cold.lost,
            resyncs: self.cold.resyncs,
            jitter_ns: self.jitter_ns_x16 / 16,
            held_packets: self.held_packets(),
            latency_ns: self.latency_ns(),
            skew_ns: self.offset.ns(),
            ..Stats::default()
        };
        stats.count_drops(&self.cold.drops);
        stats
    }
}

/// Limits a local time to half the range, so that sums and differences of local times do not overflow.
fn local_ns(ns: u64) -> i64 {
    ns.min(i64::MAX as u64 / 2) as i64
}

/// Index of the first packet. It leaves room for packets before it.
const FIRST_INDEX: u64 = 1 << 20;

/// Maximum number of rejects per call: the packet itself and a candidate.
const REJECTS_MAX: usize = 2;

/// The constant as a signed number, because times are signed here.
const NS_PER_MS: i64 = threadbare_base::NS_PER_MS as i64;
/// Maximum duration of a packet (RFC 3551, section 4.2: receivers should accept 0 to 200 ms).
const SPACING_NS_MAX: i64 = 200 * NS_PER_MS;

#[cfg(test)]
mod tests;
