//! The jitter buffer: reorders packets, evens out their delays, and reports losses.
//!
//! Packets drive it. Each arrival outputs everything that is due, so a steady stream needs no timer; only a missing
//! packet, or a wait for a deadline, needs one ([`JitterBuffer::next_timeout`]).
//!
//! ```text
//!  handle_packet ─ judge ─┬─ next in order, ahead, behind ─→ ring ── poll_output ─→ Packet, Lost, Resync
//!                         ├─ late, duplicate ──────────────→ rejects ────────────→ Dropped
//!                         └─ does not fit ─→ candidate ─ a consecutive one follows ─→ resync, ring
//! ```
//!
//! - Send times lie on one time line (`timeline`) that continues over wrap-arounds, restarts and changes of source.
//! - `play = send time + offset`, where the offset follows the least transit of the last seconds (`skew`).
//! - `deadline = play + latency`, where the latency is set or adapts (`adaptive`).
//! - Packets lie in a ring by an index that continues likewise (`ring`): after a restart the next index belongs to
//!   another sequence number, and no held packet is lost.
//!
//! No single packet moves any of this by more than a place in the ring: a packet that does not fit waits for a second
//! one.

mod adaptive;
mod arrive;
mod config;
mod depart;
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

use crate::id::{RtpTime, SeqNum, Ssrc};

/// The jitter buffer of one stream; `T` is the caller's handle of a packet.
///
/// After each call that takes `&mut self`, call [`poll_output`](Self::poll_output) until it returns `None`. Then ask
/// [`next_timeout`](Self::next_timeout), and poll again at that time if no packet has come before. A caller that does
/// not drain loses packets ([`DropReason::Full`]) and nothing else.
///
/// Times are ns on one monotonic clock of the caller's choice. All memory is allocated by the first packet.
///
/// ```
/// use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
/// use threadbare_rtp::jitter::{Arrival, Config, JitterBuffer, Output, Release};
///
/// # fn main() -> Result<(), threadbare_rtp::jitter::ConfigError> {
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
/// // It would have come after 20 ms, and is waited for another 60.
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
    // Fields that every packet touches stand first and together: with thousands of streams in a process, each cache
    // line is a miss.
    ssrc: Ssrc,
    /// Of the last packet given out or declared lost.
    last_seq: SeqNum,
    /// Second of the pair: a compiler loads both at once, and that load must wait for the store to the other.
    highest_seq: SeqNum,
    is_active: bool,
    /// [`Cold::release_to`] or [`Cold::flush_to`] is ahead.
    is_forced: bool,
    /// Packets from before [`JitterBuffer::floor`] may be of the present source.
    is_open_below: bool,
    is_adaptive: bool,
    drop_on_latency: bool,
    /// The next packet begins another stream: [`JitterBuffer::announce_source`].
    is_announced: bool,
    /// The next packet output is discontinuous.
    is_broken: bool,
    /// Entries of [`Cold::rejects`].
    rejects: u8,
    /// Entries of [`Cold::candidate`].
    candidates: u8,
    /// Consecutive late packets without a good one between them.
    late_run: u8,
    release: Release,
    skew: Skew,
    /// Index of the next packet to give out.
    next: u64,
    /// Index of the highest packet of the present numbering.
    highest: u64,
    /// Index of the first packet of the present numbering.
    floor: u64,
    /// Bit n: index `next - 1 - n` was given out.
    delivered_bits: u64,
    timeline: Timeline,
    offset: Offset,
    highest_send_ns: i64,
    /// End of the audio given out or declared lost so far.
    last_send_ns: i64,
    last_play_ns: i64,
    /// Between consecutive packets; 0 while unknown.
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

/// State that a packet in order does not touch.
#[derive(Debug)]
struct Cold<T> {
    slices: Slices,
    /// Large, and mostly absent.
    target: Option<Box<Target>>,
    candidate: Option<Incoming<T>>,
    rejects: [Option<(T, DropReason)>; REJECTS_MAX],
    old_ssrc: Option<Ssrc>,
    announced: ResyncCause,
    /// All below is due.
    release_to: u64,
    /// All below is dropped.
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
    /// An empty buffer.
    ///
    /// # Errors
    /// A setting is out of range.
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

    /// The next packet begins the stream anew, whatever its SSRC, number and timestamp: the caller knows that the source
    /// changed or restarted. What is held comes out before it.
    pub fn announce_source(&mut self, cause: ResyncCause) {
        self.is_announced = self.is_active;
        self.cold.announced = cause;
        self.cold.old_ssrc = None;
        self.drop_candidate(DropReason::Unconfirmed);
    }

    /// As [`announce_source`](Self::announce_source) with [`ResyncCause::Restart`], and timestamps count other units from the
    /// next packet on.
    ///
    /// # Errors
    /// A rate out of range, which changes nothing.
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

    /// The caller polls this much ahead of the present time, so that packets are on time on average. A loss is declared when the
    /// deadline itself has passed, because the packet may arrive until then.
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns as i64;
    }

    /// As set by [`set_ahead_ns`](Self::set_ahead_ns).
    #[must_use]
    pub fn ahead_ns(&self) -> u64 {
        self.ahead_ns as u64
    }

    /// The next output that is due at `now_ns`, or nothing.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<Output<T>> {
        self.poll(now_ns, true)
    }

    /// The next packet that was turned away on arrival, for callers that must have each handle back: at most two per arrival, and
    /// lost with the next arrivals.
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

    /// As [`poll_output`](Self::poll_output), but returns `None` when the next output is a loss that a later packet
    /// might prevent. For callers with packets that they have not handed in yet: they drain with this function after
    /// each packet, and with `poll_output` when no packets are left or they stop looking. Losses for want of places, or
    /// because of [`release_all`](Self::release_all), are not held back.
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

    /// The missing packets are awaited until `due_ns`, and not given up for another reason.
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

    /// The earliest time, in ns, at which [`poll_output`](Self::poll_output) has output if no packet comes before. 0 if
    /// it has output now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if self.rejects > 0 {
            return Some(0);
        }
        let head = self.head()?;
        Some(self.due_ns(&head).max(0) as u64)
    }

    /// Everything held is due at once, in order, with its losses declared: the stream has ended (BYE), or downstream
    /// drains. The stream continues with the next packet.
    pub fn release_all(&mut self) {
        self.is_forced = true;
        self.cold.release_to = self.highest + 1;
    }

    /// Drops everything held as [`DropReason::Flushed`] and forgets the source: the next packet is a first one.
    /// Settings and counts stay.
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

    /// As new, with the present settings. Held packets are dropped, not given back, and the counts are 0.
    pub fn reset(&mut self) {
        if let Ok(new) = JitterBuffer::new(self.config()) {
            let ahead_ns = self.ahead_ns;
            *self = JitterBuffer { ahead_ns, ..new };
        }
    }

    /// The present settings.
    #[must_use]
    pub fn config(&self) -> Config {
        self.cold.config
    }

    /// Sets the latency; with [`Config::adaptive`] it starts again from there, within its bounds. Packets held get new
    /// deadlines.
    ///
    /// # Errors
    /// More than [`LATENCY_NS_MAX`].
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

    /// Has at least as many places from now on: a longer latency needs them.
    ///
    /// # Errors
    /// See [`Config::capacity_packets`].
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

    /// The source of the packets that are held and given out; `None` before the first.
    #[must_use]
    pub fn ssrc(&self) -> Option<Ssrc> {
        self.is_active.then_some(self.ssrc)
    }

    /// Packets held: those in order or waited for, and one that may turn out to be of a new source.
    #[must_use]
    pub fn held_packets(&self) -> u32 {
        self.ring.held() + u32::from(self.candidates)
    }

    /// Audio held, in ns: from the send time of the first packet held to that of the last.
    #[must_use]
    pub fn held_ns(&self) -> u64 {
        let Some(head) = self.head() else { return 0 };
        let span_ns = self.highest_send_ns.saturating_sub(head.send_ns);
        span_ns.max(0) as u64
    }

    /// Time from packet to packet of the source, ns; 0 while it is unknown.
    #[must_use]
    pub fn spacing_ns(&self) -> u64 {
        self.spacing_ns.max(0).unsigned_abs()
    }

    /// The latency now, in ns: as set, or as adapted.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.latency_ns as u64
    }

    /// The next packet to come out, if it is held.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.ring.packet(self.next)
    }

    /// Addresses of the next packet's place to leave and to enter, for prefetching. Not to be dereferenced.
    #[must_use]
    pub fn next_places(&self) -> [usize; 2] {
        let address = |index| self.ring.address(index);
        [address(self.next), address(self.highest + 1)]
    }

    /// Counters.
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

/// Local times are below half the range, so that their sums and differences stay within it.
fn local_ns(ns: u64) -> i64 {
    ns.min(i64::MAX as u64 / 2) as i64
}

/// Leaves room below for packets from before the first one.
const FIRST_INDEX: u64 = 1 << 20;

/// One call rejects at most two: the packet itself and a candidate.
const REJECTS_MAX: usize = 2;

/// No packet carries more audio than this (RFC 3551, section 4.2: receivers should accept 0 to 200 ms).
const SPACING_NS_MAX: i64 = 200 * NS_PER_MS;

const NS_PER_MS: i64 = 1_000_000;

#[cfg(test)]
mod tests;
