//! The RTCP session: its members, how their packets arrive, and when to report. It implements RFC 3550 (sections 6 and 8, appendix A), with
//! early feedback (RFC 4585) and reduced size (RFC 5506).
//!
//! One [`RtcpSession`] for each RTP session serves both directions. It owns no socket, reads no clock and draws no random numbers. All
//! input is in [`Config`] and in the parameters.
//!
//! Arriving packets touch only the first cache lines of a session, and nothing that the timer reads. So a packet never moves the timer.
//! Unless it is flooded, a session wakes about every five seconds.

mod conflict;
mod extended;
mod feedback;
mod incoming;
mod interval;
mod outgoing;
mod source;
mod stats;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::id::{NtpTime, PayloadType, RtpTime, SeqNum, Ssrc};
use crate::packet::Packet;
use crate::reception::Receipt;

pub use extended::{Extended, JitterSummary, StatisticsSummary, VoipMetrics};
pub use feedback::{NACKS_MAX, PLIS_MAX};
pub use source::{ClockRates, LastReport, RemoteView, SOURCES_MAX};
pub use stats::{FeedbackCounts, RtcpErrors, SessionStats, SourceStats};
pub use wire::RtcpError;

use conflict::Conflicts;
use extended::ExtendedReports;
use feedback::Feedback;
use interval::Timing;
use source::{Place, Source, Sources, flag};

/// Minimum silence of a source's present address before another address is accepted, ns. It is longer than any network gap in speech, and
/// so short that a caller who moves is soon accepted again.
pub const ADDRESS_SILENCE_NS: u64 = 500_000_000;
/// Minimum number of consecutive packets from a new address. A single forged packet in a pause must not block a caller.
pub const ADDRESS_PACKETS: u32 = 5;
/// Minimum silence of an RTCP address before RTCP from another host is accepted, ns. It is three of the usual intervals of 5 s.
pub const RTCP_ADDRESS_SILENCE_NS: u64 = 15_000_000_000;
/// Silence of the current source after which another valid source replaces it, ns. It is the time of several packets.
const CURRENT_SILENCE_NS: u64 = 100_000_000;
/// Time for which a source is kept after its BYE, ns. Packets that the BYE has overtaken must not make it a new member (RFC 3550, section
/// 6.2.1).
const BYE_LINGER_NS: u64 = 2_000_000_000;
/// Maximum number of events that wait for [`RtcpSession::poll_event`]. It is the number of NACKs in one packet. If a caller does not drain
/// the events, the newest ones are lost.
const EVENTS_MAX: usize = 128;
/// Number of bytes that UDP and IPv4 add to a packet. They count in the average size (RFC 3550, section 6.2).
const LOWER_LAYERS_BYTES: usize = 28;

/// The rules for sending feedback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// RFC 3551: reports are sent at their interval only, without NACK and PLI.
    Avp,
    /// RFC 4585: feedback is sent early, and reports as often as the bandwidth allows.
    Avpf {
        /// Minimum average interval of reports without feedback (`T_rr_interval`), ns. 0: there is none.
        regular_interval_ns: u64,
        /// Maximum time that feedback may wait before it is dropped (`T_max_fb_delay`), ns.
        feedback_delay_ns_max: u64,
    },
}

impl Profile {
    fn minimum_ns(self, avp_minimum_ns: u64) -> u64 {
        match self {
            Profile::Avp => avp_minimum_ns,
            Profile::Avpf { .. } => outgoing::AVPF_INTERVAL_NS_MIN,
        }
    }
}

/// The minimum interval at which members may send RTCP, apart from its randomness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinimumInterval {
    /// It is 5 s.
    Fixed,
    /// It is 360 s divided by the session bandwidth in kbit/s, if that is less than 5 s (RFC 3550, section 6.2). This is for unicast. In a
    /// multicast group, only senders may use it.
    Reduced,
}

/// Settings of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Our own SSRC, which must be random. A collision changes it: see [`Event::Collision`].
    pub ssrc: Ssrc,
    /// Our canonical name (RFC 7022), the same for all related sessions of an endpoint. At most 255 bytes are sent.
    pub cname: String,
    /// Bandwidth of the whole session's media, bits/s.
    pub session_bandwidth_bps: u64,
    /// Bandwidth of the RTCP of all members, bits/s. `None`: 5 % of the session's bandwidth, which is usual. With 0, RTCP is off.
    pub rtcp_bandwidth_bps: Option<u64>,
    /// The minimum interval of RTCP packets.
    pub minimum_interval: MinimumInterval,
    /// Clock rates of received payload types. The default rate is also that of the sent stream.
    pub clock_rates: ClockRates,
    /// The wall clock at time 0 of the monotonic clock.
    pub ntp_at_zero: NtpTime,
    /// Seed of the random numbers. Each session needs a different one.
    pub seed: u64,
    /// Whether both sides have agreed on RTCP packets outside compounds (RFC 5506).
    pub reduced_size: bool,
    /// Rules for feedback.
    pub profile: Profile,
    /// Maximum number of sources, 2..=[`SOURCES_MAX`]. Beyond it, the source that has been silent for the longest time is forgotten. The
    /// interval is right only for groups up to this size.
    pub sources_max: usize,
}

impl Config {
    /// Returns the settings for a telephone call: 64 kbit/s of payload with headers, AVP, and a handful of sources.
    #[must_use]
    pub fn call(ssrc: Ssrc, cname: &str, clock_rate_hz: u32, seed: u64) -> Config {
        Config {
            ssrc,
            cname: cname.to_owned(),
            session_bandwidth_bps: 80_000,
            rtcp_bandwidth_bps: None,
            minimum_interval: MinimumInterval::Fixed,
            clock_rates: ClockRates::new(clock_rate_hz, &[]),
            ntp_at_zero: NtpTime(0),
            seed,
            reduced_size: false,
            profile: Profile::Avp,
            sources_max: 32,
        }
    }

    fn rtcp_bps(&self) -> u64 {
        // RFC 3550, section 6.2: "It is RECOMMENDED that the fraction of the session bandwidth added for RTCP be fixed at
        // 5%."
        self.rtcp_bandwidth_bps
            .unwrap_or(self.session_bandwidth_bps / 20)
    }
}

/// The fields of an RTP packet that the session uses. Contributing sources are left out, because they do not count as members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtpHeader {
    /// The packet's source.
    pub ssrc: Ssrc,
    /// The packet's sequence number.
    pub seq: SeqNum,
    /// The packet's timestamp.
    pub time: RtpTime,
    /// The packet's payload type.
    pub payload_type: PayloadType,
}

impl From<&Packet<'_>> for RtpHeader {
    fn from(packet: &Packet<'_>) -> RtpHeader {
        RtpHeader {
            ssrc: packet.ssrc(),
            seq: packet.seq(),
            time: packet.time(),
            payload_type: packet.payload_type(),
        }
    }
}

/// The verdict on an RTP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RtpVerdict {
    /// The packet is from a source that has passed probation.
    Valid,
    /// The sender restarts its numbers with this packet, which is the second in a row far from the previous numbers.
    Restarted,
    /// The packet is from a source that has not yet sent two packets in a row.
    Probation,
    /// The packet's number is far from the sequence of its source. Drop the packet.
    OutOfRange,
    /// The source currently sends from another address, so the packet is a third party's collision or loop. Drop it.
    Conflict,
    /// The packet has our own SSRC, which has therefore been changed. Drop the packet.
    Collision,
    /// The packet is one of ours that came back. Drop it.
    Loop,
}

impl RtpVerdict {
    /// Whether the packet belongs to a stream that may be played.
    #[must_use]
    pub fn is_valid(self) -> bool {
        matches!(self, RtpVerdict::Valid | RtpVerdict::Restarted)
    }
}

/// An event for the owner of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A source has passed probation.
    SsrcActive {
        /// The source's SSRC.
        ssrc: Ssrc,
        /// Source address of the source's RTP.
        from: SocketAddr,
    },
    /// Another source has become the current one, because the previous one was silent or has left.
    SsrcChanged {
        /// The previous SSRC.
        old: Ssrc,
        /// The new SSRC.
        new: Ssrc,
    },
    /// The RTP of a source now comes from another address. The previous address was silent.
    AddressChanged {
        /// The source's SSRC.
        ssrc: Ssrc,
        /// New source address of the source's RTP.
        from: SocketAddr,
    },
    /// Another sender has used our SSRC. From now on, RTP must be sent with the new one. The BYE for the old one is due.
    Collision {
        /// The old SSRC.
        old: Ssrc,
        /// The new SSRC.
        new: Ssrc,
    },
    /// Our own packets come back from this address. This is reported once for each address and SSRC.
    Loop {
        /// The address that returns them.
        from: SocketAddr,
    },
    /// A source has left.
    Bye {
        /// The source's SSRC.
        ssrc: Ssrc,
        /// The source's reason, if it gave one.
        reason: Option<Box<str>>,
    },
    /// A source has not sent RTP for two intervals. It is still a member.
    SenderTimeout {
        /// The source's SSRC.
        ssrc: Ssrc,
    },
    /// A source was silent for five intervals, and has been forgotten.
    SourceTimeout {
        /// The source's SSRC.
        ssrc: Ssrc,
    },
    /// A source has reported which timestamp corresponds to which time of its wall clock.
    SenderReport {
        /// The source's SSRC.
        ssrc: Ssrc,
        /// The time by the source's wall clock.
        ntp: NtpTime,
        /// The same moment as a timestamp.
        time: RtpTime,
    },
    /// A source has reported how our packets arrive.
    ReportAboutUs {
        /// The source.
        from: Ssrc,
        /// The source's report.
        view: RemoteView,
    },
    /// A source misses packets of ours.
    Nack {
        /// The source.
        from: Ssrc,
        /// The SSRC with which we sent them.
        media: Ssrc,
        /// The first missing packet.
        first: SeqNum,
        /// More missing packets. If bit `i`, counted from the lowest, is set, the packet `i + 1` after the first one is missing too.
        following: u16,
    },
    /// A source has lost a picture of ours.
    Pli {
        /// The source.
        from: Ssrc,
        /// The SSRC with which we sent the picture.
        media: Ssrc,
    },
    /// A source requests a full picture. This is reported once, however often the source repeats the request.
    Fir {
        /// The source.
        from: Ssrc,
        /// The SSRC with which to send the picture.
        media: Ssrc,
    },
}

/// The sending side of our stream.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Sent {
    last_ns: u64,
    packets: u64,
    octets: u64,
    time: RtpTime,
    has_any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Active,
    /// We are leaving, because `send_bye` was called. In a large group, the BYE must wait.
    Leaving {
        at_once: bool,
    },
    Left,
}

/// An RTCP session: see the module documentation.
///
/// **Contract.** After every call of a `handle_*` or `request_*` function, and whenever [`next_timeout`] is reached, call [`poll_transmit`]
/// until it returns `None`, then [`poll_event`] until it returns `None`. Then set the timer to [`next_timeout`]. After [`handle_rtp`] and
/// [`handle_rtp_sent`], all this may wait until the timer fires. These two never move the timer, and only one of their events, a collision,
/// requires a packet. `now_ns` is monotonic and must not go back. If it does, only the intervals are wrong.
///
/// [`next_timeout`]: RtcpSession::next_timeout
/// [`poll_transmit`]: RtcpSession::poll_transmit
/// [`poll_event`]: RtcpSession::poll_event
/// [`handle_rtp`]: RtcpSession::handle_rtp
/// [`handle_rtp_sent`]: RtcpSession::handle_rtp_sent
#[derive(Debug)]
#[repr(C, align(64))] // the current source is at the front: two cache lines serve a received packet
pub struct RtcpSession {
    sources: Sources,
    sent: Sent,
    timing: Timing,
    ssrc: Ssrc,
    phase: Phase,
    reduced_size: bool,
    has_bandwidth: bool,
    profile: Profile,
    /// The minimum interval without early feedback.
    avp_minimum_ns: u64,
    /// The SSRC that we gave up, and whose BYE is still to be sent.
    departed: Option<Ssrc>,
    /// The SSRC that we gave up, and will never use again.
    given_up: Option<Ssrc>,
    /// The SSRC of sent packets before a change, which some packets may still have: see `note_sent`.
    sent_before: Option<Ssrc>,
    sent_beside: Option<Ssrc>,
    clock_rates: ClockRates,
    /// Clock rate of the sent stream.
    sent_rate_hz: u32,
    ntp_at_zero: NtpTime,
    cname: Box<str>,
    bye_reason: Box<str>,
    conflicts: Conflicts,
    feedback: Feedback,
    events: VecDeque<Event>,
    counts: stats::Counts,
    /// The extended reports. They are allocated when the first one is needed.
    extended: Option<Box<ExtendedReports>>,
}

impl RtcpSession {
    /// Size of the first part of the session, which each packet uses.
    pub(crate) const HOT_BYTES: usize = std::mem::offset_of!(RtcpSession, phase);

    /// Creates a session that starts at `now_ns`.
    #[must_use]
    pub fn new(now_ns: u64, config: Config) -> RtcpSession {
        let minimum_ns = match config.minimum_interval {
            MinimumInterval::Fixed => interval::FIXED_MINIMUM_NS,
            MinimumInterval::Reduced => interval::reduced_minimum_ns(config.session_bandwidth_bps),
        };
        let avp_minimum_ns = minimum_ns;
        let minimum_ns = config.profile.minimum_ns(avp_minimum_ns);
        let first_bytes = LOWER_LAYERS_BYTES
            + wire::SR_BYTES
            + wire::BLOCK_BYTES
            + wire::cname_bytes(&config.cname);
        let rtcp_bps = config.rtcp_bps();
        RtcpSession {
            sources: Sources::new(config.sources_max),
            sent: Sent {
                last_ns: 0,
                packets: 0,
                octets: 0,
                time: RtpTime(0),
                has_any: false,
            },
            timing: Timing::new(now_ns, rtcp_bps, minimum_ns, first_bytes, config.seed),
            ssrc: config.ssrc,
            phase: Phase::Active,
            reduced_size: config.reduced_size,
            has_bandwidth: rtcp_bps > 0,
            profile: config.profile,
            avp_minimum_ns,
            departed: None,
            given_up: None,
            sent_before: None,
            sent_beside: None,
            sent_rate_hz: config.clock_rates.default_hz(),
            clock_rates: config.clock_rates,
            ntp_at_zero: config.ntp_at_zero,
            cname: wire::cut(&config.cname).into(),
            bye_reason: Box::default(),
            conflicts: Conflicts::default(),
            feedback: Feedback::new(),
            events: VecDeque::new(),
            counts: stats::Counts::default(),
            extended: None,
        }
    }

    /// Handles an RTP packet that arrived at `now_ns` from `from`, before it is played.
    ///
    /// This allocates nothing, except when a second source appears or an event is queued.
    #[inline]
    pub fn handle_rtp(&mut self, now_ns: u64, from: SocketAddr, packet: RtpHeader) -> RtpVerdict {
        let source = &mut self.sources.current;
        if source.is_steady(packet.ssrc, packet.payload_type, from) {
            let receipt = source.reception.handle(now_ns, packet.seq, packet.time);
            return verdict(receipt);
        }
        self.handle_rtp_otherwise(now_ns, from, packet)
    }

    /// Handles all packets except the next one of a known source.
    #[cold]
    fn handle_rtp_otherwise(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: RtpHeader,
    ) -> RtpVerdict {
        if packet.ssrc == self.ssrc {
            return self.handle_own_ssrc(now_ns, from);
        }
        let place = self.place_of(now_ns, from, packet.ssrc);
        self.revive(now_ns, place);
        let source = self.sources.get_mut(place);
        if source.has_rtp && source.rtp_from != from {
            // A source "MAY keep the packets from one and discard the packets from the other when this can be detected by different source
            // transport addresses". But "in some applications of RTP sources may be expected to change addresses during a session" (RFC
            // 3550, section 8.2). In that case, the old address falls silent.
            if source.reception.is_valid() {
                if !source.has_moved(now_ns, from) {
                    source.conflicts += 1;
                    self.counts.conflicts += 1;
                    return RtpVerdict::Conflict;
                }
                let ssrc = packet.ssrc;
                self.tell(Event::AddressChanged { ssrc, from });
            }
        }
        let source = self.sources.get_mut(place);
        source.rtp_from = from;
        source.has_rtp = true;
        if source.payload_type != packet.payload_type {
            source.payload_type = packet.payload_type;
            let rate_hz = self.clock_rates.of(packet.payload_type);
            source.reception.set_clock_rate(rate_hz);
        }
        let receipt = source.reception.handle(now_ns, packet.seq, packet.time);
        if receipt == Receipt::Validated {
            let ssrc = packet.ssrc;
            self.tell(Event::SsrcActive { ssrc, from });
        }
        if verdict(receipt).is_valid() {
            self.sources.get_mut(place).flags |= flag::VALID;
            self.count_in(place, flag::MEMBER | flag::SENDER);
            self.consider_current(now_ns, place);
        }
        verdict(receipt)
    }

    /// Makes a valid source the current one, if the present one is gone or silent.
    fn consider_current(&mut self, now_ns: u64, place: Place) {
        if place == 0 || self.sources.get(place).has(flag::LEFT) {
            return;
        }
        let current = &self.sources.current;
        let silence_ns = now_ns.saturating_sub(current.reception.arrived_ns());
        let is_heard = current.has(flag::PRESENT | flag::VALID)
            && !current.has(flag::LEFT)
            && silence_ns < CURRENT_SILENCE_NS;
        if is_heard {
            return;
        }
        let was_heard = current.has(flag::PRESENT | flag::VALID);
        let (old, new) = (current.ssrc, self.sources.get(place).ssrc);
        self.sources.promote(place);
        if was_heard {
            self.tell(Event::SsrcChanged { old, new });
        }
    }

    /// Notes that RTP was sent at `now_ns`: `packets` packets with `payload_bytes` of payload in total, of which the last one had the
    /// timestamp `time`.
    #[inline]
    pub fn handle_rtp_sent(
        &mut self,
        now_ns: u64,
        time: RtpTime,
        payload_bytes: usize,
        packets: u32,
    ) {
        self.sent.last_ns = now_ns;
        self.sent.time = time;
        self.sent.packets += u64::from(packets);
        self.sent.octets += payload_bytes as u64;
        if !self.timing.we_sent {
            self.begin_sending();
        }
    }

    /// Notes a packet that was sent with `ssrc`. Use this if another part of the program, such as a payloader, chooses the SSRC of packets.
    /// The reports change to another SSRC when two consecutive packets have it, and never return to an earlier one. So if two streams
    /// alternate, the reports stay with one of them. The reports also never use an SSRC that was given up in a collision.
    #[inline]
    pub fn note_sent(&mut self, now_ns: u64, ssrc: Ssrc, time: RtpTime, payload_bytes: usize) {
        if ssrc == self.ssrc || self.adopt_sent(ssrc) {
            self.sent_beside = None;
            self.handle_rtp_sent(now_ns, time, payload_bytes, 1);
        }
    }

    /// Decides whether the sent packets have another SSRC from now on.
    #[cold]
    fn adopt_sent(&mut self, ssrc: Ssrc) -> bool {
        if self.given_up == Some(ssrc) || self.sent_before == Some(ssrc) {
            return false;
        }
        let has_sent = self.has_sent();
        if has_sent && self.sent_beside != Some(ssrc) {
            self.sent_beside = Some(ssrc);
            return false;
        }
        self.sent_before = has_sent.then_some(self.ssrc);
        self.set_ssrc(ssrc);
        true
    }

    /// Counts us as a sender. "If the participant sends an RTP packet when we_sent is false, it adds itself to the sender table and sets
    /// we_sent to true." (RFC 3550, section 6.3.8)
    #[cold]
    fn begin_sending(&mut self) {
        self.sent.has_any = true;
        if self.phase == Phase::Active {
            self.timing.we_sent = true;
            self.timing.senders += 1;
        }
    }

    /// Returns the time of the next call of [`poll_transmit`](RtcpSession::poll_transmit), monotonic. `None`: we have left.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if self.phase == Phase::Left {
            return None;
        }
        if self.departed.is_some() {
            return Some(self.timing.last_ns);
        }
        let regular_ns = self.timing.next_ns;
        Some(
            self.feedback
                .early_ns()
                .map_or(regular_ns, |early_ns| early_ns.min(regular_ns)),
        )
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Changes the SSRC. The caller's packets have the new one already. The session sends no BYE for the old SSRC. A BYE is sent after a
    /// collision (RFC 3550, section 8.2), but here listeners would take it for the end of the session. For them, the old SSRC times out.
    pub fn set_ssrc(&mut self, ssrc: Ssrc) {
        if ssrc == self.ssrc {
            return;
        }
        self.ssrc = ssrc;
        (self.sent.packets, self.sent.octets) = (0, 0);
    }

    /// Changes the canonical name.
    pub fn set_cname(&mut self, cname: &str) {
        self.cname = wire::cut(cname).into();
    }

    /// Changes the rules for feedback from `now_ns` on, as both sides have agreed. If feedback is no longer allowed, pending feedback is
    /// dropped.
    pub fn set_profile(&mut self, now_ns: u64, profile: Profile, reduced_size: bool) {
        let minimum_ns = profile.minimum_ns(self.avp_minimum_ns);
        self.reduced_size = reduced_size;
        if std::mem::replace(&mut self.profile, profile) == profile {
            return;
        }
        self.feedback.clear();
        if self.phase == Phase::Active {
            self.timing.change_minimum_ns(now_ns, minimum_ns);
        }
    }

    /// Sets the clock rates of received payload types, for sources that appear from now on. The default rate is also that of the sent
    /// stream.
    pub fn set_clock_rates(&mut self, clock_rates: ClockRates) {
        self.sent_rate_hz = clock_rates.default_hz();
        self.clock_rates = clock_rates;
    }

    /// Sets the clock rate of the sent timestamps.
    pub fn set_sent_clock_rate(&mut self, clock_rate_hz: u32) {
        self.sent_rate_hz = clock_rate_hz.max(1);
    }

    /// Returns our SSRC.
    #[must_use]
    pub fn ssrc(&self) -> Ssrc {
        self.ssrc
    }

    /// Whether others may know our SSRC because RTP or RTCP was sent.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.sent.has_any || self.counts.rtcp_sent > 0
    }

    /// Returns the SSRC of the source from which RTP is received. It is the last source that passed probation while no other was sending.
    #[must_use]
    pub fn current_ssrc(&self) -> Option<Ssrc> {
        let current = &self.sources.current;
        current
            .has(flag::PRESENT | flag::VALID)
            .then_some(current.ssrc)
    }

    /// Whether the BYE has been sent, or is not necessary.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.phase == Phase::Left
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        } else {
            self.counts.events_dropped += 1;
        }
    }

    fn ntp(&self, now_ns: u64) -> NtpTime {
        self.ntp_at_zero.plus_ns(now_ns)
    }

    /// Returns the place of a source. If it is new, adds it.
    fn place_of(&mut self, now_ns: u64, from: SocketAddr, ssrc: Ssrc) -> Place {
        if let Some(place) = self.sources.find(ssrc) {
            return place;
        }
        let source = Source::new(now_ns, ssrc, from, self.clock_rates.default_hz());
        let (place, evicted) = self.sources.insert(source);
        if let Some(evicted) = evicted {
            self.count_out(evicted.flags);
        }
        place
    }

    /// Resets a source that has left and sends again after a while.
    fn revive(&mut self, now_ns: u64, place: Place) {
        let source = self.sources.get_mut(place);
        if source.has(flag::LEFT) && now_ns.saturating_sub(source.left_ns) >= BYE_LINGER_NS {
            let rate_hz = self.clock_rates.default_hz();
            *source = Source::new(now_ns, source.ssrc, source.rtp_from, rate_hz);
        }
    }

    /// Sets flags of a source, and counts the source for each new flag. Does nothing if the source has left, or while we leave, because
    /// "members is NOT incremented when other RTCP packets or RTP packets are received" (RFC 3550, section 6.3.7).
    fn count_in(&mut self, place: Place, flags: u8) {
        let source = self.sources.get_mut(place);
        if self.phase != Phase::Active || source.has(flag::LEFT) {
            return;
        }
        let new = flags & !source.flags;
        source.flags |= new;
        self.timing.members += u32::from(new & flag::MEMBER != 0);
        self.timing.senders += u32::from(new & flag::SENDER != 0);
    }

    /// Removes a source from the counts, because it has left or has lost these flags.
    fn count_out(&mut self, flags: u8) {
        if self.phase != Phase::Active {
            return;
        }
        self.timing.members -= u32::from(flags & flag::MEMBER != 0);
        self.timing.senders -= u32::from(flags & flag::SENDER != 0);
    }

    /// Handles a packet with our own SSRC. RFC 3550, section 8.2: "If a source discovers at any time that another source is using the same
    /// SSRC identifier as its own, it MUST send an RTCP BYE packet for the old identifier and choose another random one. (As explained
    /// below, this step is taken only once in case of a loop.)"
    fn handle_own_ssrc(&mut self, now_ns: u64, from: SocketAddr) -> RtpVerdict {
        if self.conflicts.note(now_ns, from) {
            self.counts.looped += 1;
            if self.counts.loop_told != Some((self.ssrc, from)) {
                self.counts.loop_told = Some((self.ssrc, from));
                self.tell(Event::Loop { from });
            }
            return RtpVerdict::Loop;
        }
        self.counts.collisions += 1;
        let old = self.ssrc;
        self.given_up = Some(old);
        // This takes at most as many rounds as there are sources. A random SSRC out of 2^32 is rarely in use.
        loop {
            self.ssrc = Ssrc((self.timing.random_u64() >> 32) as u32);
            if self.ssrc != old && self.sources.find(self.ssrc).is_none() {
                break;
            }
        }
        // "A participant which never sent an RTP or RTCP packet MUST NOT send a BYE packet", section 6.3.7.
        let is_known = self.sent.has_any || !self.timing.initial;
        if self.phase != Phase::Left && is_known && self.has_bandwidth {
            self.departed = Some(old);
        }
        self.sent.packets = 0;
        self.sent.octets = 0;
        self.tell(Event::Collision {
            old,
            new: self.ssrc,
        });
        RtpVerdict::Collision
    }
}

/// Converts a receipt to a verdict.
#[inline]
fn verdict(receipt: Receipt) -> RtpVerdict {
    match receipt {
        Receipt::Valid | Receipt::Validated => RtpVerdict::Valid,
        Receipt::Resync => RtpVerdict::Restarted,
        Receipt::Probation => RtpVerdict::Probation,
        Receipt::OutOfRange => RtpVerdict::OutOfRange,
    }
}
