//! From datagrams that belong to a leg to its media in order.

use std::net::SocketAddr;

use super::admission::Decision;
use super::store::Stored;
use super::{Beginning, Carries, Leg, LegEvent, Media, MediaPacket, Payload, Refusal, Verdict};
use crate::id::{PayloadType, RtpTime};
use crate::jitter::{Arrival, Output, ResyncCause};
use crate::packet::{Packet, is_rtcp};
use crate::reception::Receipt;
use crate::session::{self, RtpHeader};

/// A held packet, as the jitter buffer knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    stored: Stored,
    /// Where its payload lies.
    start: u16,
    end: u16,
    payload_type: PayloadType,
    own_time: RtpTime,
}

/// A packet of a source that is not yet the current one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    at_ns: u64,
    fields: Fields,
    stored: Stored,
}

/// What the leg needs of a packet, parsed once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    header: RtpHeader,
    marker: bool,
    /// Where the payload lies.
    start: u16,
    end: u16,
}

impl Fields {
    #[inline]
    fn of(packet: &Packet<'_>) -> Fields {
        let payload = packet.payload_range();
        Fields {
            header: RtpHeader::from(packet),
            marker: packet.marker(),
            start: payload.start as u16,
            end: payload.end as u16,
        }
    }
}

impl Leg {
    #[inline]
    pub(super) fn handle_rtp(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        // RTCP on the RTP port without mux is nobody's media (RFC 5761, section 4).
        let Ok(packet) = Packet::parse(bytes) else {
            return self.refuse(Refusal::Malformed);
        };
        if is_rtcp(bytes) {
            return self.refuse(Refusal::Malformed);
        }
        let fields = Fields::of(&packet);
        let header = fields.header;
        let known = self.payloads.get(header.payload_type).copied();
        match self.admission.judge(at_ns, from, &header, known.is_some()) {
            Decision::Current => {}
            decision => return self.handle_other(now_ns, at_ns, from, fields, bytes, decision),
        }
        if header.ssrc == self.session.ssrc() {
            return self.handle_own_ssrc(at_ns, from);
        }
        self.packets += 1;
        self.bytes += bytes.len() as u64;
        if header.payload_type != self.payload_type {
            self.change_payload_type(known);
        }
        match self.session.receive(at_ns, header.seq, header.time) {
            Receipt::Valid | Receipt::Validated | Receipt::Probation => {
                if !self.waiting.is_empty() {
                    self.drop_waiting();
                }
                self.take(now_ns, at_ns, fields, bytes)
            }
            Receipt::OutOfRange => self.hold(true, at_ns, fields, bytes),
            Receipt::Resync => {
                self.jitter.announce_source(ResyncCause::Restart);
                self.drop_rejected();
                self.take_waiting(now_ns);
                self.take(now_ns, at_ns, fields, bytes)
            }
        }
    }

    /// A packet of another source than the current one.
    #[cold]
    fn handle_other(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        from: SocketAddr,
        fields: Fields,
        bytes: &[u8],
        decision: Decision,
    ) -> Verdict {
        let header = fields.header;
        match decision {
            Decision::Refuse(refusal) => self.refuse(refusal),
            Decision::Hold { is_first } => self.hold(is_first, at_ns, fields, bytes),
            Decision::Begin(_) | Decision::Current if header.ssrc == self.session.ssrc() => {
                self.handle_own_ssrc(at_ns, from)
            }
            Decision::Current => Verdict::Media,
            Decision::Begin(beginning) => {
                self.begin(at_ns, from, header, beginning);
                self.take_waiting(now_ns);
                self.packets += 1;
                self.session.receive(at_ns, header.seq, header.time);
                self.take(now_ns, at_ns, fields, bytes)
            }
        }
    }

    /// Tells everyone of the current source.
    fn begin(&mut self, at_ns: u64, from: SocketAddr, header: RtpHeader, beginning: Beginning) {
        let ssrc = header.ssrc;
        match beginning {
            Beginning::Moved { .. } if self.session.has_current(ssrc) => {
                self.session.move_current(from);
            }
            _ => {
                let known = self.payloads.get(header.payload_type).copied();
                self.session.adopt(at_ns, ssrc, from, self.clock_rate_hz);
                self.jitter.announce_source(ResyncCause::NewSource);
                self.drop_rejected();
                if header.payload_type != self.payload_type {
                    self.change_payload_type(known);
                }
            }
        }
        self.rtcp_from = None;
        self.beginning = Some(LegEvent::Source {
            address: from,
            ssrc,
            beginning,
        });
    }

    /// Keeps a packet that may begin the next source, or go on elsewhere in the present one's numbers.
    #[cold]
    fn hold(&mut self, is_first: bool, at_ns: u64, fields: Fields, bytes: &[u8]) -> Verdict {
        if is_first {
            self.drop_waiting();
        }
        if self.waiting.len() == WAITING_MAX {
            let oldest = self.waiting.remove(0);
            self.store.remove(oldest.stored);
        }
        if let Some(stored) = self.store.insert(bytes) {
            self.waiting.push(Waiting {
                at_ns,
                fields,
                stored,
            });
        }
        Verdict::Held
    }

    /// What was kept is of the current source.
    #[cold]
    fn take_waiting(&mut self, now_ns: u64) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.packets += 1;
            let Waiting {
                at_ns,
                fields,
                stored,
            } = waiting;
            let header = fields.header;
            // After a restart in the same source, the session has judged it already.
            if self.session.current_reception().arrived_ns() < at_ns
                || !self.session.current_reception().is_valid()
            {
                self.session.receive(at_ns, header.seq, header.time);
            }
            self.arrive(now_ns, at_ns, fields, stored);
        }
    }

    /// What was kept leads nowhere.
    #[cold]
    pub(super) fn drop_waiting(&mut self) {
        let current = self.admission.current().map(|(_, ssrc)| ssrc);
        for waiting in self.waiting.drain(..) {
            self.store.remove(waiting.stored);
            self.refused.count(match current {
                Some(ssrc) if ssrc == waiting.fields.header.ssrc => Refusal::OutOfRange,
                _ => Refusal::OtherSource,
            });
        }
    }

    /// Another payload type of the current source, of which the time line may count other units.
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
    fn take(&mut self, now_ns: u64, at_ns: u64, fields: Fields, bytes: &[u8]) -> Verdict {
        match self.store.insert(bytes) {
            Some(stored) => self.arrive(now_ns, at_ns, fields, stored),
            None => self.no_room += 1,
        }
        Verdict::Media
    }

    #[inline]
    fn arrive(&mut self, now_ns: u64, at_ns: u64, fields: Fields, stored: Stored) {
        let header = fields.header;
        let time = match header.payload_type == self.payload_type {
            true => header.time,
            false => self.time_beside(&header),
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
                packet: Held {
                    stored,
                    start: fields.start,
                    end: fields.end,
                    payload_type: header.payload_type,
                    own_time: header.time,
                },
            },
        );
        self.drop_rejected();
    }

    /// Frees the places of what the jitter buffer turned away.
    #[inline]
    fn drop_rejected(&mut self) {
        while let Some((held, _)) = self.jitter.poll_rejected() {
            self.store.remove(held.stored);
        }
    }

    /// On the audio's time line: timestamps that count other units say nothing there.
    #[cold]
    fn time_beside(&self, header: &RtpHeader) -> RtpTime {
        let payload = self.payloads.get(header.payload_type);
        match payload.is_some_and(|payload| payload.clock_rate_hz == self.clock_rate_hz) {
            true => header.time,
            false => self.audio_time,
        }
    }

    #[cold]
    fn handle_own_ssrc(&mut self, at_ns: u64, from: SocketAddr) -> Verdict {
        self.session.note_own_ssrc(at_ns, from);
        self.refuse(Refusal::OwnSsrc)
    }

    /// The next media that is due at `now_ns`. `may_lose`: a loss that a datagram not yet handed in might prevent may be
    /// declared.
    #[inline]
    pub fn poll_media(&mut self, now_ns: u64, may_lose: bool) -> Option<Media<'_>> {
        self.release();
        loop {
            let output = match may_lose {
                true => self.jitter.poll_output(now_ns),
                false => self.jitter.poll_before_loss(now_ns),
            };
            match output? {
                Output::Packet {
                    packet,
                    time,
                    marker,
                    play_ns,
                    discont,
                    ..
                } => {
                    self.given = Some(packet.stored);
                    let whole = self.store.get(packet.stored);
                    return Some(Media::Packet(MediaPacket {
                        payload: self.payloads.get(packet.payload_type),
                        bytes: &whole[usize::from(packet.start)..usize::from(packet.end)],
                        whole,
                        time,
                        own_time: packet.own_time,
                        marker,
                        play_ns,
                        discont,
                    }));
                }
                Output::Lost {
                    packets,
                    time,
                    play_ns,
                    duration_ns,
                    ..
                } => {
                    let next = self.jitter.peek().copied();
                    let next = next.filter(|held| held.payload_type == self.payload_type);
                    return Some(Media::Lost {
                        packets,
                        time,
                        play_ns,
                        duration_ns,
                        next: next.map_or(&[], |held| {
                            &self.store.get(held.stored)
                                [usize::from(held.start)..usize::from(held.end)]
                        }),
                    });
                }
                Output::Resync { .. } => return Some(Media::Restart),
                Output::Dropped { packet, .. } => self.store.remove(packet.stored),
            }
        }
    }

    #[inline]
    pub(super) fn release(&mut self) {
        if let Some(stored) = self.given.take() {
            self.store.remove(stored);
        }
    }
}

/// Packets of a possible next source: as many as confirm it.
pub(super) const WAITING_MAX: usize = session::ADDRESS_PACKETS as usize;
