//! One party's RTP session as one state machine: datagrams in, media in order and RTCP out.
//!
//! ```text
//!  datagram ─ admission ──┬─ refused: counted by cause, nothing else
//!                         ├─ RTCP ───────────→ reports (session)
//!                         └─ RTP ─ A.1 ──────→ reports, jitter buffer ── poll_media ─→ Media
//!  packetize ─────────────────────────────────→ reports ── poll_rtcp ─→ datagram
//! ```
//!
//! | fact | its one owner |
//! |---|---|
//! | current source, the peer's address | [`admission`] |
//! | sequence numbers' validity, loss, jitter of the reports; our SSRC; sent packets | [`Session`](crate::session::Session) |
//! | order, deadlines, the time line | [`JitterBuffer`](crate::jitter::JitterBuffer) |
//! | meaning and clock rate of payload types | [`PayloadMap`] |

mod admission;
mod payloads;
mod store;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

pub use admission::{AdmissionConfig, Beginning, Learn, Network, NetworkError, Refusal, Refusals};
pub use payloads::{Carries, Payload, PayloadMap, PayloadMapError};

use admission::{Admission, Decision};
use store::{Store, Stored};

use crate::id::{NtpTime, PayloadType, RtpTime, SeqNum, Ssrc};
use crate::jitter::{self, Arrival, JitterBuffer, Output, ResyncCause};
use crate::packet::{Packet, is_rtcp};
use crate::reception::Receipt;
use crate::session::{self, ClockRates, Event, RTCP_ADDRESS_SILENCE_NS, RtpHeader, Session};

/// Settings of a [`Leg`].
#[derive(Debug, Clone)]
pub struct LegConfig {
    /// Our SSRC: random (RFC 3550, section 5.1). A collision changes it.
    pub ssrc: Ssrc,
    /// The first sequence number sent: random.
    pub first_seq: SeqNum,
    /// Our canonical name (RFC 7022).
    pub cname: Arc<str>,
    /// Seed of the random numbers: a different one for each leg.
    pub seed: u64,
    /// The wall clock at time 0 of the monotonic clock, the same for all legs with that canonical name.
    pub ntp_at_zero: NtpTime,
    /// What the peer sends.
    pub payloads: Arc<PayloadMap>,
    /// What the peer takes, the preferred audio first; `None`: what it sends.
    pub takes: Option<Arc<PayloadMap>>,
    /// Order and delay of received packets. The clock rate is that of the payload types.
    pub jitter: jitter::Config,
    /// Who may send.
    pub admission: AdmissionConfig,
    /// Where to send.
    pub destination: Destination,
    /// RTP and RTCP on one port (RFC 5761).
    pub mux: bool,
    /// Bandwidth of the media, bits/s, of which RTCP takes 5 %; 0: no RTCP is sent.
    pub bandwidth_bps: u64,
    /// Rules for feedback.
    pub profile: session::Profile,
}

impl LegConfig {
    /// What the peer takes.
    #[must_use]
    pub fn takes(&self) -> &Arc<PayloadMap> {
        self.takes.as_ref().unwrap_or(&self.payloads)
    }
}

/// Where a leg sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To the peer: where its packets come from, or, until they do, where it was signalled to be.
    Peer,
    /// To these addresses, whatever is received. RTCP about what is received goes there, too.
    Fixed {
        /// For RTP.
        rtp: SocketAddr,
        /// For RTCP; `None`: the port after RTP's, or RTP's with mux.
        rtcp: Option<SocketAddr>,
    },
}

/// Settings that are refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LegError {
    /// The jitter buffer's.
    #[error(transparent)]
    Jitter(#[from] jitter::ConfigError),
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Media: it is in the jitter buffer.
    Media,
    /// Media, kept until a second packet confirms its source.
    Held,
    /// RTCP, handled.
    Rtcp,
    /// RTCP that is malformed. Counted in the session's statistics.
    MalformedRtcp,
    /// It does not belong.
    Refused(Refusal),
}

/// The next of what a leg received, in order. Borrowed from the leg until its next call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Media<'a> {
    /// A packet.
    Packet(MediaPacket<'a>),
    /// Packets that missed their deadline.
    Lost {
        /// How many.
        packets: u32,
        /// The timestamp of the first.
        time: RtpTime,
        /// When the first would have been played.
        play_ns: u64,
        /// Of all of them.
        duration_ns: u64,
        /// The payload of the packet behind them, which may carry a copy of the last one (Opus); empty if it is no audio.
        next: &'a [u8],
    },
    /// The numbers and timestamps that follow have nothing to do with those before; play times continue.
    Restart,
}

/// A packet in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MediaPacket<'a> {
    /// What it carries; `None`: a payload type that was not agreed on. It takes its place in the order, so that it is not
    /// mistaken for a loss.
    pub payload: Option<&'a Payload>,
    /// The payload.
    pub bytes: &'a [u8],
    /// The whole packet, as it came.
    pub whole: &'a [u8],
    /// Its timestamp on the audio's time line.
    pub time: RtpTime,
    /// Its own timestamp: a key press has one for its whole length.
    pub own_time: RtpTime,
    /// The marker bit.
    pub marker: bool,
    /// Its send time on the local clock, as [`Output::Packet`] has it.
    pub play_ns: u64,
    /// After a loss, a drop or a restart.
    pub discont: bool,
}

impl MediaPacket<'_> {
    /// Bytes of padding behind the payload.
    pub(crate) fn padding(&self) -> usize {
        let has_padding = self
            .whole
            .first()
            .is_some_and(|first| first & PADDING_BIT != 0);
        let last = self.whole.last().copied().map_or(0, usize::from);
        if has_padding { last } else { 0 }
    }
}

/// What the owner of a leg should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LegEvent {
    /// A source sends from here now.
    Source {
        /// Its address.
        address: SocketAddr,
        /// Its SSRC.
        ssrc: Ssrc,
        /// How it came to be the current one.
        beginning: Beginning,
    },
    /// Of the RTCP session.
    Report(Event),
}

/// Header fields of a packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The payload type.
    pub payload_type: PayloadType,
    /// The timestamp.
    pub time: RtpTime,
    /// The marker bit.
    pub marker: bool,
    /// How much later than the timestamp the packet is, in its units: a key press is reported for long under its first timestamp.
    pub elapsed: u32,
}

/// Counters and gauges of a leg.
#[derive(Debug, Clone, PartialEq)]
pub struct LegStats {
    /// RTP packets of the peer.
    pub packets: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// When the last one arrived, ns.
    pub heard_ns: Option<u64>,
    /// Datagrams that did not belong.
    pub refused: Refusals,
    /// Packets for which the leg had no room.
    pub no_room: u64,
    /// Packets not sent because no destination is known.
    pub no_destination: u64,
    /// The jitter buffer.
    pub jitter: jitter::Stats,
    /// The session.
    pub session: session::SessionStats,
    /// Where RTP is sent.
    pub rtp_to: Option<SocketAddr>,
    /// The current source.
    pub source: Option<(SocketAddr, Ssrc)>,
}

/// A held packet, as the jitter buffer knows it.
#[derive(Debug, Clone, Copy)]
struct Held {
    stored: Stored,
    /// Where its payload lies.
    start: u16,
    end: u16,
    payload_type: PayloadType,
    own_time: RtpTime,
}

/// A packet of a source that is not yet the current one.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    at_ns: u64,
    fields: Fields,
    stored: Stored,
}

/// What the leg needs of a packet, parsed once.
#[derive(Debug, Clone, Copy)]
struct Fields {
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

/// See the module.
///
/// **Contract.** After each `handle_*`: drain [`poll_media`](Leg::poll_media), [`poll_rtcp`](Leg::poll_rtcp), [`poll_event`](Leg::poll_event),
/// and poll again at [`next_timeout`](Leg::next_timeout) if nothing has come before. Times are ns on one monotonic clock. Nothing is
/// allocated per packet once as many packets as ever were held at a time.
#[derive(Debug)]
pub struct Leg {
    admission: Admission,
    session: Session,
    jitter: JitterBuffer<Held>,
    store: Store,
    /// Given out last; its place is free with the next call.
    given: Option<Stored>,
    /// Of a possible next source.
    waiting: Vec<Waiting>,
    payloads: Arc<PayloadMap>,
    takes: Arc<PayloadMap>,
    /// Of the audio received last.
    clock_rate_hz: u32,
    audio_time: RtpTime,
    payload_type: PayloadType,
    mux: bool,
    /// No RTCP is sent.
    is_silent: bool,
    destination: Destination,
    rtcp_from: Option<(SocketAddr, u64)>,
    seq: SeqNum,
    beginning: Option<LegEvent>,
    packets: u64,
    bytes: u64,
    no_room: u64,
    no_destination: u64,
    refused: Refusals,
}

impl Leg {
    /// A leg that joins its session at `now_ns`.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(now_ns: u64, config: LegConfig) -> Result<Leg, LegError> {
        let audio = *config.payloads.audio();
        let jitter = JitterBuffer::new(jitter::Config {
            clock_rate_hz: audio.clock_rate_hz,
            ..config.jitter
        })?;
        let mut reports =
            session::Config::call(config.ssrc, &config.cname, audio.clock_rate_hz, config.seed);
        reports.session_bandwidth_bps = config.bandwidth_bps;
        reports.clock_rates = ClockRates::new(audio.clock_rate_hz, &[]);
        reports.ntp_at_zero = config.ntp_at_zero;
        reports.profile = config.profile;
        // The peer and those it replaces; strangers do not get this far.
        reports.sources_max = SOURCES_MAX;
        Ok(Leg {
            admission: Admission::new(config.admission),
            session: Session::new(now_ns, reports),
            jitter,
            store: Store::new(
                PACKET_BYTES_USUAL,
                config.jitter.capacity_packets + WAITING_MAX as u16 + 2,
            ),
            given: None,
            waiting: Vec::new(),
            clock_rate_hz: audio.clock_rate_hz,
            audio_time: RtpTime(0),
            payload_type: audio.payload_type,
            takes: config.takes.unwrap_or_else(|| config.payloads.clone()),
            payloads: config.payloads,
            mux: config.mux,
            is_silent: config.bandwidth_bps == 0,
            destination: config.destination,
            rtcp_from: None,
            seq: config.first_seq,
            beginning: None,
            packets: 0,
            bytes: 0,
            no_room: 0,
            no_destination: 0,
            refused: Refusals::default(),
        })
    }

    /// Takes a datagram that arrived at `at_ns`. With mux, RTCP comes on the RTP port, too.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        self.release();
        match self.mux && is_rtcp(bytes) {
            true => self.handle_rtcp(at_ns, from, bytes),
            false => self.handle_rtp(now_ns, at_ns, from, bytes),
        }
    }

    /// Counts a datagram that was longer than the receive buffer.
    pub fn handle_truncated(&mut self) -> Verdict {
        self.refuse(Refusal::Truncated)
    }

    #[inline]
    fn handle_rtp(&mut self, now_ns: u64, at_ns: u64, from: SocketAddr, bytes: &[u8]) -> Verdict {
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
    fn drop_waiting(&mut self) {
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

    /// Takes a datagram of the RTCP port that arrived at `at_ns`.
    pub fn handle_rtcp(&mut self, at_ns: u64, from: SocketAddr, bytes: &[u8]) -> Verdict {
        self.release();
        if let Err(refusal) = self.admission.judge_rtcp(from, self.mux) {
            return self.refuse(refusal);
        }
        if self.session.handle_rtcp(at_ns, from, bytes).is_err() {
            return Verdict::MalformedRtcp;
        }
        let is_heard = self.rtcp_from.is_some_and(|(address, heard_ns)| {
            address != from && at_ns.saturating_sub(heard_ns) < RTCP_ADDRESS_SILENCE_NS
        });
        if !is_heard {
            self.rtcp_from = Some((from, at_ns));
        }
        Verdict::Rtcp
    }

    #[cold]
    fn refuse(&mut self, refusal: Refusal) -> Verdict {
        self.refused.count(refusal);
        Verdict::Refused(refusal)
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
    fn release(&mut self) {
        if let Some(stored) = self.given.take() {
            self.store.remove(stored);
        }
    }

    /// Writes the header of the next packet to `out` and counts it as sent at `now_ns`. Returns where to send it, with the payload of
    /// `payload_bytes` behind it; `None`: nowhere yet, and nothing is written.
    #[inline]
    pub fn packetize(
        &mut self,
        now_ns: u64,
        stamp: Stamp,
        payload_bytes: usize,
        out: &mut [u8; HEADER_BYTES],
    ) -> Option<SocketAddr> {
        let Some(to) = self.rtp_to() else {
            self.no_destination += 1;
            return None;
        };
        out[0] = VERSION << 6;
        out[1] = u8::from(stamp.marker) << 7 | stamp.payload_type.0;
        out[2..4].copy_from_slice(&self.seq.0.to_be_bytes());
        out[4..8].copy_from_slice(&stamp.time.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.session.ssrc().0.to_be_bytes());
        self.seq = self.seq.plus(1);
        // RFC 3550, section 6.4.1: a report ties the timestamp of the present moment to the wall clock.
        let time = stamp.time.plus(stamp.elapsed);
        self.session.handle_rtp_sent(now_ns, time, payload_bytes, 1);
        Some(to)
    }

    /// Counts a packet of another sender that is sent on as it is, under the sender's SSRC. Returns where to send it.
    pub(crate) fn forward(&mut self, now_ns: u64, packet: &MediaPacket<'_>) -> Option<SocketAddr> {
        let Some(to) = self.rtp_to() else {
            self.no_destination += 1;
            return None;
        };
        let ssrc = packet.whole.get(8..12)?.try_into().ok()?;
        self.session.set_ssrc(Ssrc(u32::from_be_bytes(ssrc)));
        if let Some(payload) = packet.payload {
            self.session.set_sent_clock_rate(payload.clock_rate_hz);
        }
        let bytes = packet.bytes.len();
        self.session.handle_rtp_sent(now_ns, packet.time, bytes, 1);
        Some(to)
    }

    /// Leaves out this many sequence numbers: the receiver sees that packets are missing.
    pub fn skip(&mut self, packets: u32) {
        self.seq = self.seq.plus(packets as u16);
    }

    /// Units per second of the timestamps that are sent from now on.
    pub fn set_sent_clock_rate(&mut self, clock_rate_hz: u32) {
        self.session.set_sent_clock_rate(clock_rate_hz);
    }

    /// Writes the next RTCP packet that is due to `out` (1500 bytes are always enough). Returns its length and where to send it.
    pub fn poll_rtcp(&mut self, now_ns: u64, out: &mut [u8]) -> Option<(usize, SocketAddr)> {
        loop {
            let len = self.session.poll_transmit(now_ns, out)?;
            // A report that has nowhere to go is made up for by the next one.
            if let Some(to) = self.rtcp_to()
                && !self.is_silent
            {
                return Some((len, to));
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<LegEvent> {
        self.beginning
            .take()
            .or_else(|| self.session.poll_event().map(LegEvent::Report))
    }

    /// Leaves the session: a BYE is due, if anything was ever sent.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        self.session.send_bye(now_ns, reason);
    }

    /// When to poll next if nothing comes before. 0: now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let rtcp_ns = self.session.next_timeout();
        rtcp_ns.into_iter().chain(self.jitter.next_timeout()).min()
    }

    /// When the next report is due.
    #[must_use]
    pub fn next_report(&self) -> Option<u64> {
        self.session.next_timeout()
    }

    /// When media is due if no packet comes before.
    #[must_use]
    pub fn next_media(&self) -> Option<u64> {
        self.jitter.next_timeout()
    }

    /// Where RTP goes.
    #[must_use]
    pub fn rtp_to(&self) -> Option<SocketAddr> {
        match self.destination {
            Destination::Fixed { rtp, .. } => Some(rtp),
            Destination::Peer => {
                let current = self.admission.current().map(|(address, _)| address);
                current.or(self.admission.config().peer)
            }
        }
    }

    /// Where RTCP goes: where it comes from; until that is known, the port after RTP's (RFC 3550, section 11). With mux, where
    /// RTP goes.
    #[must_use]
    pub fn rtcp_to(&self) -> Option<SocketAddr> {
        let rtp = self.rtp_to()?;
        let heard = self.rtcp_from.map(|(address, _)| address);
        match self.destination {
            Destination::Fixed {
                rtcp: Some(rtcp), ..
            } => Some(rtcp),
            _ if self.mux => Some(rtp),
            Destination::Peer if heard.is_some() => heard,
            _ => Some(SocketAddr::new(rtp.ip(), rtp.port().checked_add(1)?)),
        }
    }

    /// The peer is another one, or elsewhere, as signalled: learns anew.
    pub fn relearn(&mut self, admission: AdmissionConfig, destination: Destination) {
        self.admission.relearn(admission);
        self.destination = destination;
        self.rtcp_from = None;
        self.drop_waiting();
    }

    /// Sends elsewhere from now on.
    pub fn set_destination(&mut self, destination: Destination) {
        self.destination = destination;
    }

    /// Everything held is due now, in order: the stream ends.
    pub fn release_all(&mut self) {
        self.jitter.release_all();
    }

    /// The current source: its address and SSRC.
    #[must_use]
    pub fn source(&self) -> Option<(SocketAddr, Ssrc)> {
        self.admission.current()
    }

    /// The peer sends and takes other payload types from now on. What is held keeps the meaning of its number.
    pub fn set_payloads(&mut self, sends: Arc<PayloadMap>, takes: Arc<PayloadMap>) {
        (self.payloads, self.takes) = (sends, takes);
    }

    /// What the peer takes.
    #[must_use]
    pub fn takes(&self) -> &Arc<PayloadMap> {
        &self.takes
    }

    /// Our SSRC.
    #[must_use]
    pub fn ssrc(&self) -> Ssrc {
        self.session.ssrc()
    }

    /// The delay of received packets, ns.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.jitter.latency_ns()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> LegStats {
        LegStats {
            packets: self.packets,
            bytes: self.bytes,
            heard_ns: self.admission.heard_ns(),
            refused: self.refused,
            no_room: self.no_room,
            no_destination: self.no_destination,
            jitter: self.jitter.stats(),
            session: self.session.stats(),
            rtp_to: self.rtp_to(),
            source: self.admission.current(),
        }
    }

    /// The reports' view of the sources, the current one first.
    pub fn sources(&self) -> impl Iterator<Item = session::SourceStats<'_>> {
        self.session.sources()
    }

    /// Heap bytes, besides the leg itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.store.memory_bytes()
            + self
                .session
                .memory_bytes()
                .saturating_sub(size_of::<Session>())
            + self.waiting.capacity() * size_of::<Waiting>()
    }

    /// Memory that the next packet touches, for prefetching. Not to be dereferenced.
    #[must_use]
    pub fn next_addresses(&self) -> [usize; 3] {
        let [leave, enter] = self.jitter.next_places();
        [leave, enter, self.store.next_address()]
    }
}

/// Bytes of a header without CSRC entries and extension (RFC 3550, section 5.1).
pub const HEADER_BYTES: usize = 12;
const VERSION: u8 = 2;
/// RFC 3550, section 5.1: P.
const PADDING_BIT: u8 = 0x20;
/// 20 ms of G.711 and a header; whole cache lines.
const PACKET_BYTES_USUAL: usize = 192;
/// Packets of a possible next source: as many as confirm it.
const WAITING_MAX: usize = session::ADDRESS_PACKETS as usize;
/// Of the session's table.
const SOURCES_MAX: usize = 4;
