//! Turns accepted datagrams into media in order.

use std::net::SocketAddr;

use super::admission::{Decision, Kind};
use super::{
    Beginning, Carries, Delivery, Keep, Learn, Leg, LegEvent, Lost, Media, MediaPacket, Payload,
    Refusal, Store, Verdict,
};
use crate::id::{NS_PER_S, PayloadType, RtpTime, SeqNum, Ssrc};
use crate::jitter::{Arrival, DropReason, Output, ResyncCause};
use crate::packet::Packet;
use crate::reception::Receipt;
use crate::session::{self, RtpHeader};

/// A queued packet in the jitter buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuedPacket<P> {
    pub(super) packet: P,
    /// Offset of the payload in the packet.
    start: u16,
    end: u16,
    payload_type: PayloadType,
    own_time: RtpTime,
    /// Whether a copy was forwarded directly.
    is_sent: bool,
}

/// A packet of a source that is not yet the current one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting<P> {
    /// The sender's address. `None`: addresses do not matter.
    from: Option<SocketAddr>,
    at_ns: u64,
    fields: Fields,
    packet: P,
}

/// A packet that bypasses the jitter buffer: an event or noise with another SSRC than the audio, or a packet that is forwarded directly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside<P> {
    due_ns: u64,
    what: Bypass<P>,
}

#[derive(Debug, Clone, Copy)]
enum Bypass<P> {
    /// The next packet starts unrelated numbers and timestamps.
    Restart,
    Packet {
        at_ns: u64,
        /// The packet's time on the audio's time line.
        time: RtpTime,
        fields: Fields,
        packet: P,
        delivery: Delivery,
    },
}

/// The fields of a packet that a leg needs. They are parsed once.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    header: RtpHeader,
    marker: bool,
    len: u16,
    /// Offset of the payload in the packet.
    start: u16,
    end: u16,
}

impl Fields {
    /// Parses a datagram. `None`: it is not RTP. If RTCP is multiplexed, the caller must not pass RTCP (see
    /// [`Channel::carried`](crate::packet::Channel::carried)).
    #[inline]
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Fields> {
        let packet = Packet::parse(bytes).ok()?;
        let payload = packet.payload_range();
        Some(Fields {
            header: RtpHeader::from(&packet),
            marker: packet.marker(),
            len: bytes.len() as u16,
            start: payload.start as u16,
            end: payload.end as u16,
        })
    }

    /// Returns the packet's SSRC.
    #[must_use]
    pub fn ssrc(&self) -> Ssrc {
        self.header.ssrc
    }

    /// Returns the packet's sequence number.
    #[must_use]
    pub fn seq(&self) -> SeqNum {
        self.header.seq
    }

    /// Returns the packet's timestamp.
    #[must_use]
    pub fn time(&self) -> RtpTime {
        self.header.time
    }

    /// Returns the marker bit.
    #[must_use]
    pub fn marker(&self) -> bool {
        self.marker
    }

    /// Returns the packet's payload type.
    #[must_use]
    pub fn payload_type(&self) -> PayloadType {
        self.header.payload_type
    }
}

/// The next [`Media`] of a leg, with packets in the form in which their keeper stores them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Due<P> {
    /// A packet.
    Packet(DuePacket<P>),
    /// Packets that missed their deadline.
    Lost {
        /// Number of the first packet.
        first: SeqNum,
        /// Number of packets.
        packets: u32,
        /// Timestamp of the first packet.
        time: RtpTime,
        /// Play time of the first packet.
        play_ns: u64,
        /// Total duration.
        duration_ns: u64,
    },
    /// The next numbers and timestamps are unrelated to those before: see [`Media::Restart`].
    Restart,
}

/// A packet in order. The fields are those of [`MediaPacket`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "said at MediaPacket")]
pub struct DuePacket<P> {
    pub packet: P,
    pub payload_type: PayloadType,
    pub time: RtpTime,
    pub own_time: RtpTime,
    pub marker: bool,
    pub play_ns: u64,
    pub discont: bool,
    pub delivery: Delivery,
    /// Offset of the payload in the packet.
    start: u16,
    end: u16,
}

impl Leg {
    /// Returns the next media that are due at `now_ns`. With `may_lose`, this may report a loss that an unread datagram might prevent.
    #[inline]
    pub fn poll_media(&mut self, now_ns: u64, may_lose: bool) -> Option<Media<'_>> {
        let due = self.poll_any(now_ns, may_lose)?;
        Some(match due {
            Due::Packet(due) => {
                self.given = Some(due.packet);
                let whole = self.store.get(due.packet);
                Media::Packet(MediaPacket {
                    payload: self.payloads.get(due.payload_type),
                    bytes: &whole[usize::from(due.start)..usize::from(due.end)],
                    whole,
                    time: due.time,
                    own_time: due.own_time,
                    marker: due.marker,
                    play_ns: due.play_ns,
                    discont: due.discont,
                    delivery: due.delivery,
                })
            }
            Due::Lost {
                packets,
                time,
                play_ns,
                duration_ns,
                ..
            } => {
                let next = self.jitter.peek().copied();
                let is_sent = next.is_some_and(|queued| queued.is_sent);
                let next = next.filter(|queued| queued.payload_type == self.payload_type);
                Media::Lost(Lost {
                    is_sent,
                    packets,
                    time,
                    play_ns,
                    duration_ns,
                    next: next.map_or(&[], |queued| {
                        &self.store.get(queued.packet)
                            [usize::from(queued.start)..usize::from(queued.end)]
                    }),
                })
            }
            Due::Restart => Media::Restart,
        })
    }

    #[inline]
    fn poll_any(&mut self, now_ns: u64, may_lose: bool) -> Option<Due<<Store as Keep>::Handle>> {
        loop {
            // Packets that are queued leave before those that are forwarded directly.
            if self.is_direct && self.is_draining {
                if let Some(due) = self.poll_due(now_ns, may_lose) {
                    return Some(due);
                }
                self.is_draining = false;
            }
            if let Some(beside) = self.poll_beside(now_ns) {
                return Some(beside);
            }
            let due = self.poll_due(now_ns, may_lose)?;
            let is_told = self.jitter.peek().is_some_and(|queued| queued.is_sent);
            if !(matches!(due, Due::Restart) && is_told) {
                return Some(due);
            }
        }
    }

    /// Sets the payload types whose packets are forwarded directly from now on, a bit for each type. All other packets leave in order. The
    /// jitter buffer still gets copies, for the reports and for listeners.
    #[inline]
    pub(crate) fn set_direct_types(&mut self, types: u128) {
        self.direct_types = types;
    }
}

impl<K: Keep> Leg<K> {
    /// Handles an RTP packet that arrived at `at_ns`.
    #[inline]
    pub fn handle_rtp(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        from: SocketAddr,
        fields: Fields,
        arriving: K::Arriving<'_>,
    ) -> Verdict {
        self.release();
        let header = fields.header;
        let known = self.payloads.get(header.payload_type).copied();
        let kind = match known.map(|payload| payload.carries) {
            None => Kind::Unknown,
            Some(Carries::TelephoneEvent | Carries::ComfortNoise) if self.takes_beside => {
                Kind::Beside
            }
            Some(_) => Kind::Audio,
        };
        match self.admission.judge(at_ns, from, &header, kind) {
            Decision::Current => {}
            decision => return self.handle_other(now_ns, at_ns, from, fields, arriving, decision),
        }
        if header.ssrc == self.session.ssrc() {
            return self.handle_own_ssrc(at_ns, from);
        }
        self.packets += 1;
        self.bytes += u64::from(fields.len);
        if header.payload_type != self.payload_type {
            self.change_payload_type(known);
        }
        match self.session.receive(at_ns, header.seq, header.time) {
            Receipt::Valid | Receipt::Validated | Receipt::Probation => {
                if !self.waiting.is_empty() {
                    self.drop_stale(at_ns, from);
                }
                self.take(now_ns, at_ns, fields, arriving)
            }
            Receipt::OutOfRange => {
                self.drop_stale(at_ns, from);
                self.hold(at_ns, from, fields, arriving)
            }
            Receipt::Resync => {
                self.announce_source(ResyncCause::Restart);
                self.drop_rejected();
                self.take_waiting(now_ns, from, &header);
                self.take(now_ns, at_ns, fields, arriving)
            }
        }
    }

    /// Handles a packet of a source other than the current one.
    #[cold]
    fn handle_other(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        from: SocketAddr,
        fields: Fields,
        arriving: K::Arriving<'_>,
        decision: Decision,
    ) -> Verdict {
        let header = fields.header;
        match decision {
            Decision::Refuse(refusal) => self.refuse(refusal),
            Decision::Hold => self.hold(at_ns, from, fields, arriving),
            _ if header.ssrc == self.session.ssrc() => self.handle_own_ssrc(at_ns, from),
            Decision::Beside => self.take_beside(at_ns, fields, arriving),
            Decision::Current => Verdict::Media,
            Decision::Begin(beginning) => {
                self.begin(at_ns, from, header, beginning);
                self.take_waiting(now_ns, from, &header);
                self.packets += 1;
                self.bytes += u64::from(fields.len);
                self.session.receive(at_ns, header.seq, header.time);
                self.take(now_ns, at_ns, fields, arriving)
            }
        }
    }

    /// Announces the current source to the session, the jitter buffer and the owner.
    fn begin(&mut self, at_ns: u64, from: SocketAddr, header: RtpHeader, beginning: Beginning) {
        let ssrc = header.ssrc;
        match beginning {
            Beginning::Moved if self.session.has_current(ssrc) => {
                self.session.move_current(from);
            }
            _ => {
                let known = self.payloads.get(header.payload_type).copied();
                self.session.adopt(at_ns, ssrc, from, self.clock_rate_hz);
                self.announce_source(ResyncCause::NewSource);
                self.drop_rejected();
                if header.payload_type != self.payload_type {
                    self.change_payload_type(known);
                }
            }
        }
        self.rtcp_from = None;
        self.has_moved = true;
        self.beginning = Some(LegEvent::Source {
            address: from,
            ssrc,
            beginning,
        });
    }

    /// Keeps a packet that may start the next source, or continue the current source from another address.
    #[cold]
    fn hold(
        &mut self,
        at_ns: u64,
        from: SocketAddr,
        fields: Fields,
        arriving: K::Arriving<'_>,
    ) -> Verdict {
        let from = self.waiting_from(from);
        let own = self.waiting.iter().filter(|waiting| waiting.from == from);
        let is_own_full = own.count() == WAITING_OF_ONE_MAX;
        if is_own_full || self.waiting.len() == WAITING_MAX {
            let is_oldest = |waiting: &Waiting<_>| !is_own_full || waiting.from == from;
            if let Some(at) = self.waiting.iter().position(is_oldest) {
                let oldest = self.waiting.remove(at);
                self.refuse_waiting(oldest);
            }
        }
        if let Some(packet) = self.store.keep(arriving) {
            self.waiting.push(Waiting {
                from,
                at_ns,
                fields,
                packet,
            });
        }
        Verdict::Held
    }

    /// Moves the queued packets of this packet's sender to the jitter buffer, if their numbers lead up to this packet.
    #[cold]
    fn take_waiting(&mut self, now_ns: u64, from: SocketAddr, next: &RtpHeader) {
        let from = self.waiting_from(from);
        for waiting in std::mem::take(&mut self.waiting) {
            let header = waiting.fields.header;
            if waiting.from != from || header.ssrc != next.ssrc {
                self.waiting.push(waiting);
                continue;
            }
            if header.seq.distance_from(next.seq).abs() > LEADING_PACKETS_MAX {
                self.refuse_waiting(waiting);
                continue;
            }
            let Waiting {
                at_ns,
                fields,
                packet,
                ..
            } = waiting;
            self.packets += 1;
            self.bytes += u64::from(fields.len);
            // After a restart within the same source, the session has already judged this packet.
            if self.session.current_reception().arrived_ns() < at_ns
                || !self.session.current_reception().is_valid()
            {
                self.session.receive(at_ns, header.seq, header.time);
            }
            self.accept(now_ns, at_ns, fields, packet);
        }
    }

    /// Drops the queued packets of all senders.
    #[cold]
    pub(super) fn drop_waiting(&mut self) {
        self.drop_waiting_of(|_| true);
    }

    /// Drops queued packets that come from the current source's address, and old ones. The current source continues, so these packets start
    /// no other source.
    #[cold]
    fn drop_stale(&mut self, at_ns: u64, from: SocketAddr) {
        let from = self.waiting_from(from);
        self.drop_waiting_of(|waiting| {
            waiting.from == from || at_ns.saturating_sub(waiting.at_ns) > WAITING_NS_MAX
        });
    }

    /// Returns the sender's address, if addresses matter.
    fn waiting_from(&self, from: SocketAddr) -> Option<SocketAddr> {
        Some(from).filter(|_| self.admission.config().learn != Learn::Anyone)
    }

    fn drop_waiting_of(&mut self, is_dropped: impl Fn(&Waiting<K::Handle>) -> bool) {
        for waiting in std::mem::take(&mut self.waiting) {
            if is_dropped(&waiting) {
                self.refuse_waiting(waiting);
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    fn refuse_waiting(&mut self, waiting: Waiting<K::Handle>) {
        self.store.let_go(waiting.packet);
        self.refused.count(match self.admission.current() {
            Some((from, _)) if waiting.from.is_some_and(|other| other != from) => Refusal::Stranger,
            Some((_, ssrc)) if ssrc == waiting.fields.header.ssrc => Refusal::OutOfRange,
            _ => Refusal::OtherSource,
        });
    }

    /// Handles an event or noise of the party with another SSRC. It is played together with the audio of the same moment.
    #[cold]
    fn take_beside(&mut self, at_ns: u64, fields: Fields, arriving: K::Arriving<'_>) -> Verdict {
        self.packets += 1;
        self.bytes += u64::from(fields.len);
        let due_ns = if self.is_direct {
            0
        } else {
            at_ns.saturating_add(self.jitter.latency_ns())
        };
        let time = self.audio_time;
        match self.store.keep(arriving).filter(|_| self.has_room_beside()) {
            Some(packet) => self.bypass(
                due_ns,
                Bypass::Packet {
                    at_ns,
                    time,
                    fields,
                    packet,
                    delivery: Delivery::Beside,
                },
            ),
            None => self.no_room += 1,
        }
        Verdict::Media
    }

    #[inline]
    fn has_room_beside(&self) -> bool {
        self.beside
            .as_ref()
            .is_none_or(|beside| beside.len() < BESIDE_MAX)
    }

    #[inline]
    fn bypass(&mut self, due_ns: u64, what: Bypass<K::Handle>) {
        self.beside
            .get_or_insert_default()
            .push_back(Beside { due_ns, what });
    }

    /// Marks that the next packet starts another numbering.
    #[cold]
    fn announce_source(&mut self, cause: ResyncCause) {
        self.jitter.announce_source(cause);
        if self.is_direct {
            self.bypass(0, Bypass::Restart);
        }
    }

    /// Returns the next due packet that bypasses the jitter buffer.
    #[inline]
    fn poll_beside(&mut self, now_ns: u64) -> Option<Due<K::Handle>> {
        if self.next_beside()? > now_ns {
            return None;
        }
        self.release();
        let beside = self.beside.as_mut()?.pop_front()?;
        Some(match beside.what {
            Bypass::Restart => Due::Restart,
            Bypass::Packet {
                at_ns,
                time,
                fields,
                packet,
                delivery,
            } => Due::Packet(DuePacket {
                packet,
                payload_type: fields.header.payload_type,
                time,
                own_time: fields.header.time,
                marker: fields.marker,
                play_ns: at_ns,
                discont: false,
                delivery,
                start: fields.start,
                end: fields.end,
            }),
        })
    }

    /// Returns the time of the next packet that bypasses the jitter buffer.
    #[inline]
    pub(super) fn next_beside(&self) -> Option<u64> {
        self.beside.as_ref()?.front().map(|beside| beside.due_ns)
    }

    /// Frees the packets that bypass the jitter buffer.
    pub(super) fn drop_beside(&mut self) {
        for beside in self.beside.iter_mut().flat_map(|beside| beside.drain(..)) {
            if let Bypass::Packet { packet, .. } = beside.what {
                self.store.let_go(packet);
            }
        }
    }

    /// Handles a change of the current source's payload type. The timestamps may then use another clock rate.
    #[cold]
    fn change_payload_type(&mut self, known: Option<Payload>) {
        let Some(payload) = known else { return };
        if !matches!(payload.carries, Carries::Audio(_) | Carries::Opaque(_)) {
            return;
        }
        self.payload_type = payload.payload_type;
        if payload.clock_rate_hz != self.clock_rate_hz
            && self
                .jitter
                .announce_clock_rate(payload.clock_rate_hz)
                .is_ok()
        {
            self.drop_rejected();
            self.clock_rate_hz = payload.clock_rate_hz;
            self.session.set_current_clock_rate(payload.clock_rate_hz);
        }
    }

    #[inline]
    fn take(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        fields: Fields,
        arriving: K::Arriving<'_>,
    ) -> Verdict {
        match self.store.keep(arriving) {
            Some(packet) => self.accept(now_ns, at_ns, fields, packet),
            None => self.no_room += 1,
        }
        Verdict::Media
    }

    #[inline]
    fn accept(&mut self, now_ns: u64, at_ns: u64, fields: Fields, packet: K::Handle) {
        let payload_type = fields.header.payload_type;
        let is_passed = self.direct_types >> (payload_type.0 & 0x7f) & 1 != 0;
        // Events and noise are forwarded in the same way as their audio.
        let is_direct = is_passed && (self.is_direct || payload_type == self.payload_type);
        if is_direct && !self.is_direct {
            self.release_all();
            self.is_draining = true;
        }
        self.is_direct = is_direct;
        if is_direct {
            self.arrive_directly(now_ns, at_ns, fields, packet);
        } else {
            self.arrive(now_ns, at_ns, fields, packet, false);
        }
    }

    /// Forwards a packet directly, unless it is a duplicate. If there is no memory for a copy, the packet waits in the jitter buffer.
    fn arrive_directly(&mut self, now_ns: u64, at_ns: u64, fields: Fields, packet: K::Handle) {
        let copy = Some(&packet).filter(|_| self.has_room_beside());
        let copy = copy.and_then(|packet| self.store.copy(packet));
        let is_new = self.arrive(now_ns, at_ns, fields, packet, copy.is_some());
        match copy {
            Some(copy) if is_new => self.bypass(
                0,
                Bypass::Packet {
                    at_ns,
                    time: self.audio_time,
                    fields,
                    packet: copy,
                    delivery: Delivery::Direct(fields.header.seq),
                },
            ),
            Some(copy) => self.store.let_go(copy),
            None => {}
        }
    }

    /// Passes a packet to the jitter buffer. Returns `false` if it is a duplicate.
    #[inline]
    fn arrive(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        fields: Fields,
        packet: K::Handle,
        is_sent: bool,
    ) -> bool {
        let header = fields.header;
        let time = if header.payload_type == self.payload_type {
            header.time
        } else {
            self.time_beside(&header)
        };
        self.audio_time = time;
        self.jitter.handle_packet(
            now_ns,
            Arrival {
                ssrc: header.ssrc,
                seq: header.seq,
                time,
                marker: fields.marker,
                arrival_ns: Some(at_ns),
                packet: QueuedPacket {
                    packet,
                    start: fields.start,
                    end: fields.end,
                    payload_type: header.payload_type,
                    own_time: header.time,
                    is_sent,
                },
            },
        );
        self.drop_rejected()
    }

    /// Frees the places of packets that the jitter buffer rejected. Returns `false` if one of them was a duplicate.
    #[inline]
    fn drop_rejected(&mut self) -> bool {
        let mut is_new = true;
        while let Some((queued, reason)) = self.jitter.poll_rejected() {
            self.store.let_go(queued.packet);
            is_new &= reason != DropReason::Duplicate;
        }
        is_new
    }

    /// Returns the time of a packet with another SSRC on the audio's time line. It is the packet's own timestamp if the clock rate is that
    /// of the audio, or else the timestamp of the latest audio.
    #[cold]
    fn time_beside(&self, header: &RtpHeader) -> RtpTime {
        let audio_hz = self.clock_rate_hz;
        match self.payloads.clock_rate_hz(header.payload_type, audio_hz) {
            Some(rate_hz) if rate_hz == audio_hz => header.time,
            _ => self.audio_time,
        }
    }

    #[cold]
    fn handle_own_ssrc(&mut self, at_ns: u64, from: SocketAddr) -> Verdict {
        self.session.note_own_ssrc(at_ns, from);
        self.refuse(Refusal::OwnSsrc)
    }

    /// Returns the next media as [`poll_media`](Leg::poll_media) does, for a custom keeper.
    #[inline]
    pub fn poll_due(&mut self, now_ns: u64, may_lose: bool) -> Option<Due<K::Handle>> {
        self.release();
        loop {
            let output = if may_lose {
                self.jitter.poll_output(now_ns)
            } else {
                self.jitter.poll_before_loss(now_ns)
            };
            match output? {
                Output::Packet {
                    packet: queued,
                    time,
                    marker,
                    play_ns,
                    discont,
                    ..
                } => {
                    return Some(Due::Packet(DuePacket {
                        packet: queued.packet,
                        payload_type: queued.payload_type,
                        time,
                        own_time: queued.own_time,
                        marker,
                        play_ns,
                        discont,
                        delivery: if queued.is_sent {
                            Delivery::Sent
                        } else {
                            Delivery::Ordered
                        },
                        start: queued.start,
                        end: queued.end,
                    }));
                }
                Output::Lost {
                    first,
                    packets,
                    time,
                    play_ns,
                    duration_ns,
                } => {
                    if let Some(watch) = &mut self.watch {
                        watch.note_lost(self.jitter.stats().delivered, packets);
                    }
                    return Some(Due::Lost {
                        first,
                        packets,
                        time,
                        play_ns,
                        duration_ns,
                    });
                }
                Output::Resync { .. } => return Some(Due::Restart),
                Output::Dropped { packet: queued, .. } => self.store.let_go(queued.packet),
            }
        }
    }

    #[inline]
    pub(super) fn release(&mut self) {
        if let Some(packet) = self.given.take() {
            self.store.let_go(packet);
        }
    }
}

impl<P> Beside<P> {
    /// Makes this packet due now.
    pub(super) fn release(&mut self) {
        self.due_ns = 0;
    }
}

/// Maximum number of queued packets of one source that may be the next. They are enough to confirm it.
const WAITING_OF_ONE_MAX: usize = session::ADDRESS_PACKETS as usize;
/// Maximum number of queued packets of all such sources. With this limit, a stranger's packets do not displace the party's.
pub(super) const WAITING_MAX: usize = 2 * WAITING_OF_ONE_MAX;
/// Maximum age of a queued packet, ns. By that time, a real source has sent another packet.
const WAITING_NS_MAX: u64 = NS_PER_S;
/// Maximum distance from the first queued packet to the one that confirms its source. Packets between them may be lost or late.
const LEADING_PACKETS_MAX: i32 = 32;
/// Maximum number of packets that bypass the jitter buffer. It allows three digits with their repeated ends in one batch.
pub(super) const BESIDE_MAX: usize = 16;
