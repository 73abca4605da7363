//! Outgoing RTCP (RFC 3550, sections 6.3.5 to 6.3.8 and 6.4; RFC 4585, section 3.5).

use crate::id::{NS_PER_S, NtpTime, SeqNum, Ssrc};

use super::extended::{Extended, XR_BYTES};
use super::feedback::FEEDBACK_BYTES_MAX;
use super::source::{Source, flag};
use super::stats::{SessionStats, SourceStats, source_stats};
use super::wire::{self, Block, SenderInfo, Writer};
use super::{BYE_LINGER_NS, Event, LOWER_LAYERS_BYTES, Phase, Profile, RtcpSession};

/// Minimum interval in AVPF, ns. "After the first transmission of a Regular RTCP packet, Tmin MUST be set to 0." (RFC 4585, section 3.5.3)
/// A small minimum remains here, because the timer would otherwise be a busy loop.
pub(super) const AVPF_INTERVAL_NS_MIN: u64 = super::interval::FLOOR_NS;
/// Minimum interval in AVPF before the first packet, ns. "For a multiparty session, Tmin is initialized to 1.0 seconds." (RFC 4585, section
/// 3.5.1) This is twice as much, because the first interval is halved.
const AVPF_FIRST_INTERVAL_NS_MIN: u64 = 2 * NS_PER_S;
/// Maximum number of members for which a BYE is sent without back-off. The back-off is for "if the number of members is more than 50" (RFC
/// 3550, section 6.3.7).
const BYE_MEMBERS_MAX: u32 = 50;
/// Time after which conflicting addresses are forgotten, ns. It is about ten intervals of at least 5 s (RFC 3550, section 8.2).
const CONFLICT_AGE_NS: u64 = 50 * NS_PER_S;

impl RtcpSession {
    /// Writes the next RTCP packet that is due at `now_ns` to `out`, and returns its length. A buffer of 1500 bytes is always enough. With
    /// a smaller one, reports on some sources wait for their turn, and feedback may be omitted. If even the rest does not fit, the packet
    /// is skipped.
    ///
    /// This also handles the time-outs. It allocates nothing, except for their events.
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut [u8]) -> Option<usize> {
        if self.phase == Phase::Left {
            return None;
        }
        if let Some(old) = self.departed.take() {
            return self.write_departure(old, out);
        }
        if let Phase::Leaving { at_once } = self.phase {
            return self.poll_bye(now_ns, at_once, out);
        }
        if self.feedback.early_ns().is_some_and(|at| at <= now_ns) {
            return self.write_early(now_ns, out);
        }
        if now_ns < self.timing.next_ns {
            return None;
        }
        self.time_out(now_ns);
        self.adapt_minimum();
        if !self.timing.reconsider(now_ns) {
            return None;
        }
        if !self.has_bandwidth || self.is_suppressed(now_ns) {
            self.timing.suppressed(now_ns);
            self.feedback.regular_passed(now_ns, false);
            return None;
        }
        self.write_regular(now_ns, out)
    }

    /// Leaves the session. The BYE is due at once, or later if the group is large. Poll until [`has_left`](RtcpSession::has_left). If
    /// nothing was ever sent, no BYE is sent.
    pub fn send_bye(&mut self, now_ns: u64, reason: &str) {
        if self.phase != Phase::Active {
            return;
        }
        // RFC 3550, section 6.3.7: "a participant which never sent an RTP or RTCP packet MUST NOT send a BYE packet when they
        // leave the group."
        let is_known = self.sent.has_any || !self.timing.initial;
        if !is_known || !self.has_bandwidth {
            self.phase = Phase::Left;
            return;
        }
        self.bye_reason = wire::cut(reason).into();
        // "If the group size estimate members is less than 50 when the participant decides to leave, the participant MAY send
        // a BYE packet immediately."
        let at_once = self.timing.members <= BYE_MEMBERS_MAX;
        self.phase = Phase::Leaving { at_once };
        if at_once {
            self.timing.next_ns = now_ns;
        } else {
            let bytes = LOWER_LAYERS_BYTES + 8 + wire::cname_bytes(&self.cname) + 8;
            self.timing.begin_bye(now_ns, bytes + self.bye_reason.len());
        }
    }

    /// Requests packets from `media` again, in the order of their numbers. If the request cannot be sent, returns `false`, and counts it as
    /// dropped. This happens if the profile does not allow it, if the queue is full, or if the request would arrive too late.
    pub fn request_nack(
        &mut self,
        now_ns: u64,
        media: Ssrc,
        lost: impl IntoIterator<Item = SeqNum>,
    ) -> bool {
        // At most one number more than the maximum is used, however many the caller passes.
        let mut lost = lost.into_iter().take(super::NACKS_MAX + 1);
        let has_room = lost.all(|seq| self.feedback.add_nack(media, seq));
        self.schedule_feedback(now_ns) && has_room
    }

    /// Requests a new picture from `media`, because the received part of the last one cannot be decoded. Returns `false` in the same cases
    /// as [`request_nack`](RtcpSession::request_nack).
    pub fn request_pli(&mut self, now_ns: u64, media: Ssrc) -> bool {
        let has_room = self.feedback.add_pli(media);
        self.schedule_feedback(now_ns) && has_room
    }

    /// Requests a full picture from `media`, which does not depend on earlier ones (RFC 5104, section 3.5.1). This is for a viewer that
    /// joins, or that cannot detect a loss. Returns `false` in the same cases as [`request_nack`](RtcpSession::request_nack).
    pub fn request_fir(&mut self, now_ns: u64, media: Ssrc) -> bool {
        let has_room = self.feedback.add_fir(media);
        self.schedule_feedback(now_ns) && has_room
    }

    fn schedule_feedback(&mut self, now_ns: u64) -> bool {
        let is_scheduled = match self.profile {
            Profile::Avpf {
                feedback_delay_ns_max,
                ..
            } if self.phase == Phase::Active && self.has_bandwidth => {
                self.feedback
                    .schedule(now_ns, &mut self.timing, feedback_delay_ns_max)
            }
            _ => {
                self.feedback.clear();
                false
            }
        };
        self.counts.feedback_dropped += u64::from(!is_scheduled);
        is_scheduled
    }

    fn is_suppressed(&mut self, now_ns: u64) -> bool {
        match self.profile {
            Profile::Avpf {
                regular_interval_ns,
                ..
            } if regular_interval_ns > 0 => {
                // "T_rr_current_interval = RND2*T_rr_interval" (RFC 4585, section 3.5.3), which is half to one and a half times the
                // interval.
                let share = self.timing.random_unit() + 0.5;
                let interval_ns = (regular_interval_ns as f64 * share) as u64;
                self.feedback.may_suppress(now_ns, interval_ns)
            }
            _ => false,
        }
    }

    fn adapt_minimum(&mut self) {
        if matches!(self.profile, Profile::Avpf { .. }) {
            let is_first_of_many = self.timing.initial && self.timing.members > 2;
            self.timing.set_minimum_ns(if is_first_of_many {
                AVPF_FIRST_INTERVAL_NS_MIN
            } else {
                AVPF_INTERVAL_NS_MIN
            });
        }
    }

    /// Handles the time-outs of members. "The participant MUST perform this check at least once per RTCP transmission interval." (RFC 3550,
    /// section 6.3.5)
    fn time_out(&mut self, now_ns: u64) {
        let member_ns = self.timing.member_timeout_ns();
        let sender_ns = self.timing.sender_timeout_ns();
        for place in self.sources.places_backwards() {
            let source = self.sources.get(place);
            let (ssrc, flags) = (source.ssrc, source.flags);
            if source.has(flag::LEFT) {
                if now_ns.saturating_sub(source.left_ns) >= BYE_LINGER_NS {
                    self.sources.remove(place);
                }
            } else if now_ns.saturating_sub(source.heard_ns()) > member_ns {
                self.sources.remove(place);
                self.count_out(flags);
                if flags & flag::MEMBER != 0 {
                    self.tell(Event::SourceTimeout { ssrc });
                }
            } else if source.has(flag::SENDER)
                && now_ns.saturating_sub(source.reception.arrived_ns()) > sender_ns
            {
                self.sources.get_mut(place).flags &= !flag::SENDER;
                self.count_out(flag::SENDER);
                self.tell(Event::SenderTimeout { ssrc });
            }
        }
        if self.timing.we_sent && now_ns.saturating_sub(self.sent.last_ns) > sender_ns {
            // Section 6.3.8: "the participant removes itself from the sender table, decrements the sender count, and sets
            // we_sent to false."
            self.timing.we_sent = false;
            self.timing.senders -= 1;
        }
        self.conflicts.expire(now_ns, CONFLICT_AGE_NS);
        // "If any members time out, the reverse reconsideration algorithm [...] SHOULD be performed."
        self.timing.members_left(now_ns);
    }

    fn sender_info(&self, now_ns: u64) -> SenderInfo {
        // The RTP timestamp "Corresponds to the same time as the NTP timestamp (above)" (RFC 3550, section 6.4.1). This is the present
        // time, and not the time at which the last packet was sent.
        let since_ns = u128::from(now_ns.saturating_sub(self.sent.last_ns));
        let rate_hz = u128::from(self.sent_rate_hz);
        let units = since_ns * rate_hz / u128::from(NS_PER_S);
        SenderInfo {
            ntp: self.ntp(now_ns),
            time: self.sent.time.plus(units as u32),
            packets: self.sent.packets as u32,
            octets: self.sent.octets as u32,
        }
    }

    fn write_regular(&mut self, now_ns: u64, out: &mut [u8]) -> Option<usize> {
        let info = self.timing.we_sent.then(|| self.sender_info(now_ns));
        let mut writer = Writer::new(out);
        let feedback_bytes = if self.feedback.is_empty() {
            0
        } else {
            FEEDBACK_BYTES_MAX
        };
        let extended = self.extended.as_mut();
        let extended = extended.and_then(|extended| extended.offered.take());
        let extended_bytes = extended.as_ref().map_or(0, |_| XR_BYTES);
        let reserved =
            wire::SR_BYTES + wire::cname_bytes(&self.cname) + feedback_bytes + extended_bytes;
        let count = writer.blocks_room(reserved);
        let places = self.sources.report_places(count);
        let sources = &mut self.sources;
        let blocks = places.map(|place| report_block(now_ns, sources.get_mut(place)));
        let is_whole =
            writer.report(self.ssrc, info, blocks) && writer.cname(self.ssrc, &self.cname);
        if let Some(extended) = extended {
            let has_left = write_extended(&mut writer, self.ssrc, &extended);
            self.extended.get_or_insert_default().has_left = has_left;
        }
        self.feedback
            .write(self.ssrc, &mut writer, &mut self.counts.feedback_sent);
        self.feedback.regular_passed(now_ns, is_whole);
        let bytes = writer.bytes();
        self.timing.sent(now_ns, bytes + LOWER_LAYERS_BYTES);
        self.finish(is_whole, bytes)
    }

    fn write_early(&mut self, now_ns: u64, out: &mut [u8]) -> Option<usize> {
        let info = self.timing.we_sent.then(|| self.sender_info(now_ns));
        let mut writer = Writer::new(out);
        // A minimal compound has "exactly one RR or SR" and "exactly one SDES" (RFC 4585, section 3.1). RFC 5506 requires neither.
        let is_whole = self.reduced_size
            || (writer.report(self.ssrc, info, std::iter::empty())
                && writer.cname(self.ssrc, &self.cname));
        self.feedback
            .write(self.ssrc, &mut writer, &mut self.counts.feedback_sent);
        self.feedback.sent_early();
        let bytes = writer.bytes();
        self.timing.sent_early(bytes + LOWER_LAYERS_BYTES);
        self.finish(is_whole, bytes)
    }

    fn poll_bye(&mut self, now_ns: u64, at_once: bool, out: &mut [u8]) -> Option<usize> {
        if !at_once && !self.timing.reconsider(now_ns) {
            return None;
        }
        self.phase = Phase::Left;
        let mut writer = Writer::new(out);
        // A BYE is part of a compound, like any other packet (RFC 3550, section 6.1).
        let is_whole = writer.report(self.ssrc, None, std::iter::empty())
            && writer.cname(self.ssrc, &self.cname)
            && writer.bye(self.ssrc, &self.bye_reason);
        let bytes = writer.bytes();
        self.finish(is_whole, bytes)
    }

    /// Writes the BYE of an SSRC that collided.
    fn write_departure(&mut self, old: Ssrc, out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer::new(out);
        let is_whole = writer.report(old, None, std::iter::empty())
            && writer.cname(old, &self.cname)
            && writer.bye(old, "SSRC collision");
        let bytes = writer.bytes();
        self.finish(is_whole, bytes)
    }

    fn finish(&mut self, is_whole: bool, bytes: usize) -> Option<usize> {
        let is_sent = is_whole && bytes > 0;
        self.counts.rtcp_sent += u64::from(is_sent);
        is_sent.then_some(bytes)
    }

    /// Returns the counters of our side. This is cheap, and allocates nothing.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        let counts = &self.counts;
        SessionStats {
            ssrc: self.ssrc,
            packets_sent: self.sent.packets,
            octets_sent: self.sent.octets,
            rtcp_sent: counts.rtcp_sent,
            rtcp_received: counts.rtcp_received,
            rtcp_errors: counts.errors,
            members: self.timing.members,
            senders: self.timing.senders,
            rtt_ns: counts.rtt_ns,
            rtt_refused: counts.rtt_refused,
            conflicts: counts.conflicts,
            extended_malformed: self
                .extended
                .as_ref()
                .map_or(0, |extended| extended.malformed),
            collisions: counts.collisions,
            looped: counts.looped,
            evictions: self.sources.evictions,
            events_dropped: counts.events_dropped,
            feedback_dropped: counts.feedback_dropped,
            feedback_sent: counts.feedback_sent,
            feedback_received: counts.feedback_received,
        }
    }

    /// Returns the remote sources, the current one first. Sources that have left stay in the list for a moment.
    pub fn sources(&self) -> impl Iterator<Item = SourceStats<'_>> {
        self.sources.iter().map(source_stats)
    }

    /// Returns the wall clock at `now_ns`, as in our sender reports.
    #[must_use]
    pub fn wall_clock(&self, now_ns: u64) -> NtpTime {
        self.ntp(now_ns)
    }

    /// Returns the number of bytes that the session takes in memory, with those on the heap.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let cnames: usize = self.sources.iter().map(|source| text(&source.cname)).sum();
        size_of::<RtcpSession>()
            + self.sources.heap_bytes()
            + cnames
            + self.cname.len()
            + self.bye_reason.len()
            + size_of::<super::ExtendedReports>() * usize::from(self.extended.is_some())
            + self.events.capacity() * size_of::<super::Event>()
            + self.feedback.heap_bytes()
            + self.conflicts.heap_bytes()
    }
}

fn write_extended(writer: &mut Writer<'_>, ssrc: Ssrc, extended: &Extended) -> bool {
    let summary = extended.summary.map(|summary| summary.bytes());
    let metrics = extended.metrics.map(|metrics| metrics.bytes());
    let summary = summary.as_ref().map_or(&[][..], |bytes| bytes);
    let metrics = metrics.as_ref().map_or(&[][..], |bytes| bytes);
    writer.extended(ssrc, &[summary, metrics])
}

fn report_block(now_ns: u64, source: &mut Source) -> Block {
    let loss = source.reception.take_loss();
    source.fraction_lost = loss.fraction;
    let (lsr, dlsr) = source.report.map_or((0, 0), |report| {
        // RFC 3550, section 6.4.1: "The delay, expressed in units of 1/65536 seconds, between receiving the last SR packet
        // from source SSRC_n and sending this reception report block."
        let delay_ns = u128::from(now_ns.saturating_sub(report.arrived_ns));
        let delay = delay_ns * 65_536 / u128::from(NS_PER_S);
        (
            report.ntp.middle(),
            u32::try_from(delay).unwrap_or(u32::MAX),
        )
    });
    Block {
        ssrc: source.ssrc,
        fraction_lost: loss.fraction,
        cumulative_lost: loss.cumulative,
        highest: source.reception.highest_reported(),
        jitter_units: source.reception.jitter_units(),
        lsr,
        dlsr,
    }
}
