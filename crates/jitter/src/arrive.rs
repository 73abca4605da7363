//! Handles an arriving packet.

use crate::output::{DropReason, ResyncCause};
use crate::ring::{Mark, Slot};
use crate::skew::Offset;
use crate::{Incoming, JitterBuffer, NS_PER_MS, REJECTS_MAX, SPACING_NS_MAX, Skew};

/// Classes of an arriving packet.
enum Verdict {
    /// The first packet that ever arrives.
    First,
    /// First packet of a stream that the caller has announced.
    Announced(ResyncCause),
    /// A packet that is `step` after the highest packet so far.
    Ahead { step: u64, send_ns: i64 },
    /// Older than the newest packet, and still in time.
    Behind { index: u64, send_ns: i64 },
    /// A packet that belongs to this stream, but cannot be used.
    Useless { reason: DropReason, send_ns: i64 },
    /// A packet that does not fit the stream.
    Suspect,
}

impl<T> JitterBuffer<T> {
    pub(crate) fn admit(&mut self, incoming: Incoming<T>) {
        match self.judge(&incoming) {
            Verdict::Ahead { step, send_ns } => self.append(incoming, step, send_ns),
            Verdict::Behind { index, send_ns } => self.fill_in(incoming, index, send_ns),
            Verdict::Useless { reason, send_ns } => self.turn_away(incoming, reason, send_ns),
            Verdict::Suspect => self.suspect(incoming),
            Verdict::First => {
                self.offset = Offset::new();
                self.begin_source(incoming, Mark::Nothing);
            }
            Verdict::Announced(cause) => {
                self.is_announced = false;
                self.begin_source(incoming, Mark::Resync(cause));
            }
        }
    }

    fn judge(&self, incoming: &Incoming<T>) -> Verdict {
        if !self.is_active {
            return Verdict::First;
        }
        if self.is_announced {
            return Verdict::Announced(self.cold.announced);
        }
        if incoming.ssrc != self.ssrc {
            return Verdict::Suspect;
        }
        let step = i64::from(incoming.seq.distance_from(self.highest_seq));
        let send_ns = self.timeline.send_ns(incoming.time);
        let is_timely =
            self.is_plausible(incoming.at_ns, send_ns) || self.follows_on(step, send_ns);
        if step > 0 {
            let step = step as u64;
            return if is_timely && step <= self.usable() {
                Verdict::Ahead { step, send_ns }
            } else {
                Verdict::Suspect
            };
        }
        let index = self.highest.saturating_add_signed(step);
        if !is_timely || (index < self.next && -step > self.misorder_packets()) {
            return Verdict::Suspect;
        }
        let reason = if index >= self.next.max(self.floor) {
            if !self.ring.contains(index) {
                return Verdict::Behind { index, send_ns };
            }
            if self.ring.slot(index).time != incoming.time {
                return Verdict::Suspect;
            }
            DropReason::Duplicate
        } else if index < self.floor && self.is_before_start(index) {
            return Verdict::Behind { index, send_ns };
        } else if index >= self.floor && self.was_delivered(index) {
            DropReason::Duplicate
        } else {
            DropReason::Late
        };
        Verdict::Useless { reason, send_ns }
    }

    /// Whether the packet's timestamp is plausible. RFC 3550, A.1, checks only sequence numbers. Here, a timestamp in the future
    /// or the distant past also means an invalid packet or a restart, even if the sequence number is near.
    fn is_plausible(&self, at_ns: i64, send_ns: i64) -> bool {
        let behind_ns = at_ns
            .saturating_sub(send_ns)
            .saturating_sub(self.offset.ns());
        (-EARLY_NS_MAX..=LATE_NS_MAX).contains(&behind_ns)
    }

    /// Whether the timestamp advances as the sequence number does, however late or early the packet is. If it does, the sender or
    /// the path has paused.
    fn follows_on(&self, step: i64, send_ns: i64) -> bool {
        let advance_ns = send_ns.saturating_sub(self.highest_send_ns);
        let expected_ns = self.spacing_ns.saturating_mul(step);
        let range_ns = expected_ns.saturating_mul(2);
        match step {
            // Several packets may share a timestamp: those of a frame or of an event (RFC 4733).
            1.. => (0..=range_ns).contains(&advance_ns),
            _ => (range_ns..=0).contains(&advance_ns),
        }
    }

    /// Whether a packet before the first one is still in time. There are two conditions: no packet of the present numbering has
    /// been output yet, so that the ring holds no packets of an earlier numbering; and the ring has a free place.
    fn is_before_start(&self, index: u64) -> bool {
        self.is_open_below && self.next == self.floor && self.highest + 1 - index <= self.usable()
    }

    fn was_delivered(&self, index: u64) -> bool {
        let age = self.next - 1 - index;
        age < 64 && self.delivered_bits >> age & 1 == 1
    }

    /// Returns the number of places that may be in use between arrivals.
    pub(crate) fn usable(&self) -> u64 {
        self.ring.size() - SPARE_PLACES
    }

    /// Returns MAX_DROPOUT of RFC 3550, A.1, for this stream's packets.
    fn dropout_packets(&self) -> i64 {
        let max_ms = self.cold.config.max_dropout_ms;
        packets_within(max_ms, self.spacing_ns, MAX_DROPOUT_PACKETS)
    }

    /// Returns MAX_MISORDER of RFC 3550, A.1, for this stream's packets.
    fn misorder_packets(&self) -> i64 {
        let max_ms = self.cold.config.max_misorder_ms;
        packets_within(max_ms, self.spacing_ns, MAX_MISORDER_PACKETS)
    }

    /// Handles a packet after the highest one, which is the usual case.
    fn append(&mut self, incoming: Incoming<T>, step: u64, send_ns: i64) {
        let mut index = self.highest + step;
        let mut mark = Mark::Nothing;
        if step > 1 && index - self.next >= self.usable() {
            // The missing packets get no places, because they cannot arrive any more.
            index = self.highest + 1;
            mark = Mark::Gap;
            self.is_open_below = false;
        }
        if index - self.next >= self.ring.size() {
            return self.reject(incoming.packet, DropReason::Full);
        }
        let advance_ns = send_ns.saturating_sub(self.highest_send_ns);
        let expected_ns = self.spacing_ns.saturating_mul(step as i64);
        let is_silence_before =
            incoming.marker || (expected_ns > 0 && advance_ns > expected_ns.saturating_mul(2));
        if step == 1 && 0 < advance_ns && advance_ns <= SPACING_NS_MAX && !incoming.marker {
            self.spacing_ns = advance_ns;
        }
        self.observe(incoming.at_ns, send_ns, true);
        if is_silence_before {
            self.settle();
        }
        self.timeline.follow(incoming.time);
        self.late_run = 0;
        self.store_highest(incoming, index, send_ns, mark);
    }

    fn store_highest(&mut self, incoming: Incoming<T>, index: u64, send_ns: i64, mark: Mark) {
        self.highest = index;
        self.highest_seq = incoming.seq;
        self.highest_send_ns = send_ns;
        self.last_at_ns = incoming.at_ns;
        if mark != Mark::Nothing {
            self.floor = index;
        }
        self.ring.insert(index, slot_of(incoming, send_ns, mark));
    }

    /// Stores a reordered packet that is still in time.
    fn fill_in(&mut self, incoming: Incoming<T>, index: u64, send_ns: i64) {
        self.observe(incoming.at_ns, send_ns, false);
        self.last_at_ns = incoming.at_ns;
        self.late_run = 0;
        let mut mark = Mark::Nothing;
        if index < self.next {
            // This packet is now the first one, so the mark of the former first packet moves to it.
            mark = std::mem::replace(&mut self.ring.slot_mut(self.floor).mark, mark);
            self.next = index;
            self.floor = index;
            self.cold.release_to = self.cold.release_to.min(index);
            self.cold.flush_to = self.cold.flush_to.min(index);
        }
        self.ring.insert(index, slot_of(incoming, send_ns, mark));
    }

    /// Updates skew, jitter and adaptive latency with a packet's delay. `is_newest`: no later packet has arrived before this one.
    fn observe(&mut self, at_ns: i64, send_ns: i64, is_newest: bool) {
        // Of several packets with the same timestamp, only the first has a meaningful delay.
        if send_ns == self.highest_send_ns {
            return;
        }
        let transit_ns = at_ns.saturating_sub(send_ns);
        let delay_ns = self.offset.sample(&mut self.cold.slices, at_ns, transit_ns);
        let behind_ns = transit_ns.saturating_sub(self.offset.ns());
        let is_late = behind_ns > self.latency_ns.max(LATENCY_NS_STEP_MIN);
        if is_newest && is_late && self.skew == Skew::Window {
            self.offset
                .step_up(&mut self.cold.slices, at_ns, transit_ns);
        }
        self.note_jitter(transit_ns);
        if self.is_adaptive {
            self.adapt(at_ns, delay_ns);
        }
    }

    /// Updates the jitter of RFC 3550, A.8: J += (|D| - J) / 16. The field stores J times 16.
    fn note_jitter(&mut self, transit_ns: i64) {
        let difference_ns = transit_ns
            .saturating_sub(self.last_transit_ns)
            .unsigned_abs();
        let decay_ns = (self.jitter_ns_x16 + 8) >> 4;
        self.jitter_ns_x16 = (self.jitter_ns_x16 - decay_ns).saturating_add(difference_ns);
        self.last_transit_ns = transit_ns;
    }

    #[inline(never)]
    fn adapt(&mut self, at_ns: i64, delay_ns: i64) {
        if let Some(target) = &mut self.cold.target {
            target.sample(at_ns, delay_ns);
            self.latency_ns = target.ns();
        }
    }

    /// Changes offset and latency at the end of a silence, where the listener does not notice it.
    #[inline(never)]
    fn settle(&mut self) {
        self.offset.settle();
        if let Some(target) = &mut self.cold.target {
            target.settle();
            self.latency_ns = target.ns();
        }
    }

    /// Rejects a late packet or a duplicate. If several consecutive packets are late, with no other packet between them, the
    /// sender has restarted with numbers just below the present ones.
    #[cold]
    fn turn_away(&mut self, incoming: Incoming<T>, reason: DropReason, send_ns: i64) {
        let is_consecutive = self.late_run > 0 && incoming.seq == self.cold.late_seq.plus(1);
        if is_consecutive {
            self.late_run = self.late_run.saturating_add(1);
        } else {
            self.late_run = 1;
            self.cold.late_since_ns = incoming.at_ns;
        }
        self.cold.late_seq = incoming.seq;
        let run_ns = incoming.at_ns.saturating_sub(self.cold.late_since_ns);
        let sent_ns = self.spacing_ns * i64::from(self.late_run - 1);
        // Late packets of a slow path would come in a burst, or with timely packets between them. These packets did not, so this
        // is a restart.
        if self.late_run >= LATE_RUN_PACKETS && 2 * run_ns >= sent_ns {
            return self.begin_source(incoming, Mark::Resync(ResyncCause::Restart));
        }
        if reason == DropReason::Late {
            // Late packets are measured, too, because packets that arrive in time cannot make the latency grow.
            let transit_ns = incoming.at_ns.saturating_sub(send_ns);
            self.note_jitter(transit_ns);
            if self.is_adaptive {
                self.adapt(
                    incoming.at_ns,
                    self.offset.delay_of(&self.cold.slices, transit_ns),
                );
            }
        }
        self.reject(incoming.packet, reason);
    }

    /// Keeps a packet that does not fit until a second, consecutive one arrives (RFC 3550, A.1: "two consecutive packets"). A
    /// single stray or forged packet thus changes nothing.
    #[cold]
    fn suspect(&mut self, incoming: Incoming<T>) {
        if self.candidates > 0
            && let Some(candidate) = self.cold.candidate.take()
        {
            self.candidates = 0;
            if candidate.ssrc == incoming.ssrc && incoming.seq == candidate.seq.plus(1) {
                return self.confirm(candidate, incoming);
            }
            if candidate.ssrc == incoming.ssrc && candidate.seq == incoming.seq.plus(1) {
                return self.confirm(incoming, candidate);
            }
            self.reject(candidate.packet, DropReason::Unconfirmed);
        }
        let since_ns = incoming.at_ns.saturating_sub(self.last_at_ns);
        if self.cold.old_ssrc == Some(incoming.ssrc) && since_ns < ALIVE_NS {
            return self.reject(incoming.packet, DropReason::OldSource);
        }
        self.candidates = 1;
        self.cold.candidate = Some(incoming);
    }

    /// Continues the stream from two consecutive packets that agree.
    fn confirm(&mut self, first: Incoming<T>, second: Incoming<T>) {
        let step = i64::from(first.seq.distance_from(self.highest_seq));
        let send_ns = self.timeline.send_ns(first.time);
        let is_gap = first.ssrc == self.ssrc
            && (1..=self.dropout_packets()).contains(&step)
            && self.is_plausible(first.at_ns, send_ns);
        if is_gap {
            // The step is larger than the ring, so `append` gives the missing packets no places.
            self.append(first, step.max(self.usable() as i64 + 1) as u64, send_ns);
        } else if first.ssrc == self.ssrc {
            self.begin_source(first, Mark::Resync(ResyncCause::Restart));
        } else {
            self.cold.old_ssrc = Some(self.ssrc);
            self.begin_source(first, Mark::Resync(ResyncCause::NewSource));
        }
        // The second packet is now the next one in order. If its timestamp does not fit, it becomes the candidate, whose place is
        // free.
        self.admit(second);
    }

    /// Restarts numbers and timestamps with this packet. It is played as if its transit were equal to the present offset, so the
    /// time line continues.
    fn begin_source(&mut self, incoming: Incoming<T>, mark: Mark) {
        let index = self.highest + 1;
        if index - self.next >= self.ring.size() {
            return self.reject(incoming.packet, DropReason::Full);
        }
        self.drop_candidate(DropReason::Unconfirmed);
        let transit_ns = self.play_offset_ns();
        let send_ns = incoming.at_ns.saturating_sub(transit_ns);
        self.is_active = true;
        self.is_open_below = true;
        self.ssrc = incoming.ssrc;
        self.timeline
            .count_at(self.cold.config.clock_rate_hz, incoming.time, send_ns);
        self.offset
            .begin(&mut self.cold.slices, incoming.at_ns, transit_ns);
        self.last_transit_ns = transit_ns;
        self.late_run = 0;
        self.floor = index;
        self.cold.resyncs += u64::from(mark != Mark::Nothing);
        self.store_highest(incoming, index, send_ns, mark);
    }

    pub(crate) fn drop_candidate(&mut self, reason: DropReason) {
        self.candidates = 0;
        if let Some(candidate) = self.cold.candidate.take() {
            self.reject(candidate.packet, reason);
        }
    }

    /// Keeps a rejected packet until the caller fetches it. If the list is full, drops the packet.
    #[cold]
    fn reject(&mut self, packet: T, reason: DropReason) {
        self.cold.drops.count(reason);
        let place = usize::from(self.rejects);
        if place < REJECTS_MAX {
            self.cold.rejects[place] = Some((packet, reason));
            self.rejects += 1;
        }
    }
}

fn slot_of<T>(incoming: Incoming<T>, send_ns: i64, mark: Mark) -> Slot<T> {
    Slot {
        packet: Some(incoming.packet),
        send_ns,
        time: incoming.time,
        seq: incoming.seq,
        marker: incoming.marker,
        mark,
    }
}

/// Returns the number of packets, `spacing_ns` apart, within `span_ms`; `fallback` if the spacing is unknown.
fn packets_within(span_ms: u32, spacing_ns: i64, fallback: i64) -> i64 {
    match (i64::from(span_ms) * NS_PER_MS).checked_div(spacing_ns) {
        None => fallback,
        // Sequence numbers can be ordered only within half their range.
        Some(packets) => packets.clamp(1, i64::from(i16::MAX)),
    }
}

/// Places that stay free between arrivals. One call may insert two packets: the second packet of a source, and the first one,
/// which has waited for the second.
const SPARE_PLACES: u64 = 2;

/// RFC 3550, A.1: MAX_DROPOUT, a minute at 50 packets/s.
const MAX_DROPOUT_PACKETS: i64 = 3_000;

/// RFC 3550, A.1: MAX_MISORDER, two seconds at 50 packets/s.
const MAX_MISORDER_PACKETS: i64 = 100;

/// Maximum lead of a packet. No packet arrives before it is sent, but after two hours of clock drift, or if a sender runs fast,
/// the lead seems this large.
const EARLY_NS_MAX: i64 = 1_000 * NS_PER_MS;

/// Maximum delay: no network has longer queues. [`JitterBuffer::follows_on`] recognises a sender that paused.
const LATE_NS_MAX: i64 = 2_000 * NS_PER_MS;

/// Minimum lateness that counts as a step of the delay, however short the latency is. Without it, jitter would count as a step if
/// the latency is short.
const LATENCY_NS_STEP_MIN: i64 = 40 * NS_PER_MS;

/// A source counts as restarted after this many consecutive late packets that arrive at the stream's rate.
const LATE_RUN_PACKETS: u8 = 4;

/// A source counts as active for this time after a packet. Stragglers take less time than this. But the time must not be longer
/// than needed, because two forged packets of another SSRC block the true source for this time.
const ALIVE_NS: i64 = 500 * NS_PER_MS;
