//! One party's RTP session as one state machine. Datagrams go in, and media in order and RTCP come out.
//!
//! ```text
//!  datagram ─ admission ──┬─ refused: counted by cause, nothing else
//!                         ├─ RTCP ───────────→ reports (session)
//!                         └─ RTP ─ A.1 ──────→ reports, jitter buffer ── poll_media ─→ Media
//!  packetize ─────────────────────────────────→ reports ── poll_rtcp ─→ datagram
//! ```
//!
//! | data | owner |
//! |---|---|
//! | current source, the peer's address | [`admission`] |
//! | validity of sequence numbers; loss and jitter in reports; our SSRC; sent packets | [`RtcpSession`](crate::session::RtcpSession) |
//! | order, deadlines, time line | [`JitterBuffer`](crate::jitter::JitterBuffer) |
//! | meaning and clock rate of payload types | [`PayloadMap`] |

mod admission;
mod config;
mod gate;
mod latch;
mod receive;
mod rules;
#[cfg(test)]
mod scene_tests;
mod send;
mod state;
mod store;
#[cfg(test)]
mod test_bed;
#[cfg(test)]
mod tests;
mod watch;
#[cfg(test)]
mod watch_tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

pub use admission::Beginning;
pub use config::{Destination, LegConfig, LegError, Receiving};
pub use gate::{Gate, GateState};
pub use receive::{Due, DuePacket, Fields};
pub use rules::{AdmissionConfig, Learn, Method, Network, NetworkError, Once, Refusal, Refusals};
pub use send::{HEADER_BYTES, Stamp};
pub use state::{LegState, Outage, SKIPPED_PACKETS_MAX, SentState};
pub use store::{Keep, Store};
pub use threadbare_rtp_types::payload_map::{
    Carries, OpaqueCodec, Payload, PayloadMap, PayloadMapError,
};

use admission::Admission;
use receive::{BESIDE_MAX, Beside, QueuedPacket, WAITING_MAX, Waiting};
use watch::{FarReport, Watch};

use crate::id::{PayloadType, RtpTime, SeqNum, Ssrc};
use crate::jitter::{self, JitterBuffer, ResyncCause};
use crate::packet::Channel;
use crate::quality::Quality;
use crate::session::{self, ClockRates, Event, Extended, RTCP_ADDRESS_SILENCE_NS, RtcpSession};

/// What happened to a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The datagram is media, and is in the jitter buffer.
    Media,
    /// The datagram is media, and is queued until a second packet confirms its source.
    Held,
    /// The datagram is RTCP, and was handled.
    Rtcp,
    /// The datagram is malformed RTCP. The session's statistics count it.
    MalformedRtcp,
    /// The datagram does not belong to the leg.
    Refused(Refusal),
}

/// The next media of a leg, in order. They are borrowed from the leg until its next call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Media<'a> {
    /// A packet.
    Packet(MediaPacket<'a>),
    /// Packets that missed their deadline.
    Lost(Lost<'a>),
    /// The next numbers and timestamps are unrelated to those before. Play times continue.
    Restart,
}

/// Packets that missed their deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lost<'a> {
    /// Number of packets.
    pub packets: u32,
    /// Timestamp of the first packet.
    pub time: RtpTime,
    /// Play time of the first packet, ns.
    pub play_ns: u64,
    /// Total duration, ns.
    pub duration_ns: u64,
    /// Whether the packet after the lost ones was already forwarded directly: see [`Delivery`].
    pub is_sent: bool,
    /// The payload of the packet after the lost ones, which may contain a copy of the last one (Opus). It is empty if that packet is not
    /// audio.
    pub next: &'a [u8],
}

/// A packet in order, as media of a leg.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MediaPacket<'a> {
    /// The agreed payload type. `None`: it was not agreed on. The packet still takes its place in the order, so that it does not look like
    /// a loss.
    pub payload: Option<&'a Payload>,
    /// The payload.
    pub bytes: &'a [u8],
    /// The whole packet as received.
    pub whole: &'a [u8],
    /// The packet's timestamp, converted to the audio's time line.
    pub time: RtpTime,
    /// The packet's own timestamp. A DTMF digit has the same one for its whole length.
    pub own_time: RtpTime,
    /// The marker bit.
    pub marker: bool,
    /// The packet's send time on the local clock: see [`Output`](crate::jitter::Output).
    pub play_ns: u64,
    /// Whether the packet follows a loss, a drop or a restart.
    pub discont: bool,
    /// How the packet passed through the leg.
    pub delivery: Delivery,
}

/// How a packet passes through a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// In order, through the jitter buffer.
    #[default]
    Ordered,
    /// On arrival, with this number, and perhaps out of order. It comes again as [`Sent`](Delivery::Sent).
    Direct(SeqNum),
    /// Through the jitter buffer, for listeners. It was already forwarded directly.
    Sent,
    /// Outside the numbers of the current source, with another SSRC.
    Beside,
}

impl MediaPacket<'_> {
    /// Returns the number of padding bytes after the payload.
    pub(crate) fn padding(&self) -> usize {
        let has_padding = self
            .whole
            .first()
            .is_some_and(|first| first & PADDING_BIT != 0);
        let last = self.whole.last().copied().map_or(0, usize::from);
        if has_padding { last } else { 0 }
    }
}

/// An event for the owner of a leg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LegEvent {
    /// A source now sends from this address.
    Source {
        /// The source's address.
        address: SocketAddr,
        /// The source's SSRC.
        ssrc: Ssrc,
        /// How the source became the current one.
        beginning: Beginning,
    },
    /// An event of the RTCP session.
    Report(Event),
}

/// Counters and gauges of a leg.
#[derive(Debug, Clone, PartialEq)]
pub struct LegStats {
    /// Number of RTP packets of the peer.
    pub packets: u64,
    /// Number of bytes in these packets, headers included.
    pub bytes: u64,
    /// Arrival time of the last packet, ns.
    pub heard_ns: Option<u64>,
    /// Numbers of refused datagrams.
    pub refused: Refusals,
    /// Number of packets for which the leg had no memory.
    pub no_room: u64,
    /// Number of packets that were not sent because no destination is known.
    pub no_destination: u64,
    /// Counters of the jitter buffer.
    pub jitter: jitter::Stats,
    /// Counters of the RTCP session.
    pub session: session::SessionStats,
    /// Destination of RTP.
    pub rtp_to: Option<SocketAddr>,
    /// The current source.
    pub source: Option<(SocketAddr, Ssrc)>,
    /// Quality of the peer's audio as received here. A sample is taken with each report. `None`: not recorded.
    pub quality: Option<Quality>,
    /// Quality of the peer's audio at the other party of a call. It includes the losses, jitter and round trip that this party reports.
    pub end_to_end: Option<Quality>,
    /// The peer's extended reports on our audio, if it sends them.
    pub extended: Option<Extended>,
}

/// One party's RTP session: see the module documentation. `K` stores the queued packets. By default, the leg itself does this.
///
/// **Contract.** After each `handle_*`, drain [`poll_media`](Leg::poll_media), [`poll_rtcp`](Leg::poll_rtcp) and
/// [`poll_event`](Leg::poll_event). Poll again at [`next_timeout`](Leg::next_timeout) if nothing has arrived before. Times are ns
/// on one monotonic clock. Packets cause no allocation unless more of them are queued than ever before.
///
/// The layout is fixed. The fields that are used for each packet come first, up to the start of the session.
#[derive(Debug)]
#[repr(C)]
pub struct Leg<K: Keep = Store> {
    admission: Admission,
    payloads: Arc<PayloadMap>,
    takes: Arc<PayloadMap>,
    packets: u64,
    bytes: u64,
    /// Clock rate of the latest audio.
    clock_rate_hz: u32,
    audio_time: RtpTime,
    seq: SeqNum,
    payload_type: PayloadType,
    mux: bool,
    /// Whether RTCP is off.
    is_silent: bool,
    /// Whether RTP is off.
    is_held: bool,
    has_moved: bool,
    /// The packet that was returned last. The next call frees its place.
    given: Option<K::Handle>,
    /// Packets of sources that may become the next one.
    waiting: Vec<Waiting<K::Handle>>,
    /// Packets that bypass the jitter buffer.
    #[allow(
        clippy::box_collection,
        reason = "few legs ever have some, and a leg is small"
    )]
    beside: Option<Box<VecDeque<Beside<K::Handle>>>>,
    /// Whether [`poll_media`](Leg::poll_media) returns these packets.
    takes_beside: bool,
    /// The payload types that are forwarded directly: see [`set_direct_types`](Leg::set_direct_types).
    direct_types: u128,
    /// Whether packets are forwarded directly.
    is_direct: bool,
    /// Whether queued packets must leave before direct ones.
    is_draining: bool,
    jitter: JitterBuffer<QueuedPacket<K::Handle>>,
    store: K,
    destination: Destination,
    session: RtcpSession,
    rtcp_from: Option<(SocketAddr, u64)>,
    beginning: Option<LegEvent>,
    no_room: u64,
    no_destination: u64,
    refused: Refusals,
    /// The quality, if it is recorded.
    watch: Option<Box<Watch>>,
}

impl Leg {
    /// Creates a leg that joins its session at `now_ns`.
    ///
    /// # Errors
    /// Fails if a setting is out of range.
    pub fn new(now_ns: u64, config: LegConfig) -> Result<Leg, LegError> {
        let places = config.jitter.capacity_packets + (WAITING_MAX + BESIDE_MAX) as u16 + 2;
        let mut leg = Leg::with_keeper(now_ns, config, Store::new(PACKET_BYTES_USUAL, places))?;
        leg.takes_beside = true;
        Ok(leg)
    }

    /// Handles a datagram that arrived at `at_ns`. With mux, RTCP arrives on the RTP port too.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        if Channel::Rtp.carried(self.mux, bytes) == Channel::Rtcp {
            return self.handle_rtcp(at_ns, from, bytes);
        }
        match Fields::of(bytes) {
            Some(fields) => self.handle_rtp(now_ns, at_ns, from, fields, bytes),
            None => self.refuse_malformed(),
        }
    }

    /// Returns the number of bytes on the heap, in addition to the leg itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.store.memory_bytes()
            + self
                .session
                .memory_bytes()
                .saturating_sub(size_of::<RtcpSession>())
            + self.waiting.capacity() * size_of::<Waiting<<Store as Keep>::Handle>>()
            + self.beside.as_ref().map_or(0, |beside| {
                beside.capacity() * size_of::<Beside<<Store as Keep>::Handle>>()
            })
    }

    /// Whether each place in the store belongs to a queued packet.
    pub(crate) fn is_consistent(&self) -> bool {
        let ordered = self.jitter.held_packets() as usize;
        let beside = self.beside.as_ref().map_or(0, |beside| beside.len());
        let aside = self.waiting.len() + beside;
        self.store.held() == ordered + aside + usize::from(self.given.is_some())
    }

    /// Calls `fetch` with addresses in the memory that the next packet touches, so that the caller can prefetch it.
    #[inline]
    pub fn prefetch(&self, fetch: &mut impl FnMut(*const u8)) {
        self.jitter.prefetch(fetch);
        fetch(self.store.next_address() as *const u8);
    }

    /// Gives up all received packets that were not played yet, in order, for another process. `give` gets the arrival time without jitter,
    /// the sender, and the packet. No packet stays queued.
    pub fn give_up(&mut self, now_ns: u64, mut give: impl FnMut(u64, SocketAddr, &[u8])) {
        let Some((from, ..)) = self.admission.source() else {
            return;
        };
        self.release_all();
        while let Some(media) = self.poll_media(now_ns, true) {
            if let Media::Packet(packet) = media
                && packet.delivery != Delivery::Sent
            {
                give(packet.play_ns.min(now_ns), from, packet.whole);
            }
        }
    }

    /// Returns the state of the sent stream.
    #[must_use]
    pub fn sent_state(&self) -> SentState {
        let sent = self.session.stats();
        SentState {
            ssrc: sent.ssrc,
            next_seq: self.seq,
            packets_sent: sent.packets_sent,
            octets_sent: sent.octets_sent,
        }
    }

    /// Continues the stream of another process. No receiver has got the packets that were sent here so far.
    pub fn restore_sent(&mut self, state: &SentState) {
        self.session.set_ssrc(state.ssrc);
        self.session
            .restore_sent(state.packets_sent, state.octets_sent);
        self.seq = state.next_seq;
    }

    /// Returns the state that another process needs to continue this leg.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> LegState {
        LegState {
            sent: self.sent_state(),
            source: self.admission.source(),
            rtcp_from: self.rtcp_from.map(|(address, _)| address),
            is_fixed: self.admission.is_fixed(now_ns),
        }
    }

    /// Continues where another process stopped, skipping [`Outage::skipped_packets`] numbers. Call this only for a leg that has neither
    /// sent nor received anything.
    pub fn restore(&mut self, now_ns: u64, state: &LegState, skipped_packets: u16) {
        self.restore_sent(&state.sent);
        self.seq = self.seq.plus(skipped_packets);
        self.admission.restore(now_ns, state.source, state.is_fixed);
        if let Some((address, ssrc, _)) = state.source {
            self.session
                .adopt(now_ns, ssrc, address, self.clock_rate_hz);
            self.jitter.announce_source(ResyncCause::NewSource);
            self.has_moved = true;
        }
        self.rtcp_from = state.rtcp_from.map(|address| (address, now_ns));
    }
}

impl<K: Keep> Leg<K> {
    /// Number of bytes from the start of a leg that a packet touches, for prefetching.
    pub const HOT_BYTES: usize = std::mem::offset_of!(Leg<K>, session) + RtcpSession::HOT_BYTES;

    /// Creates a leg that joins its session at `now_ns`. `keeper` stores its packets.
    ///
    /// # Errors
    /// Fails if a setting is out of range.
    pub fn with_keeper(now_ns: u64, config: LegConfig, keeper: K) -> Result<Leg<K>, LegError> {
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
        // The table contains the peer and the sources that the peer replaces. Packets of strangers are refused before they reach it.
        reports.sources_max = SOURCES_MAX;
        Ok(Leg {
            admission: Admission::new(now_ns, config.admission),
            session: RtcpSession::new(now_ns, reports),
            jitter,
            store: keeper,
            given: None,
            waiting: Vec::new(),
            beside: None,
            takes_beside: false,
            direct_types: 0,
            is_direct: false,
            is_draining: false,
            clock_rate_hz: audio.clock_rate_hz,
            audio_time: RtpTime(0),
            payload_type: audio.payload_type,
            takes: config.takes.unwrap_or_else(|| config.payloads.clone()),
            payloads: PayloadMap::received(config.payloads, config.mux),
            mux: config.mux,
            is_silent: config.bandwidth_bps == 0,
            is_held: false,
            destination: config.destination,
            rtcp_from: None,
            seq: config.first_seq,
            beginning: None,
            has_moved: false,
            packets: 0,
            bytes: 0,
            no_room: 0,
            no_destination: 0,
            refused: Refusals::default(),
            watch: None,
        })
    }

    /// Handles a datagram of the RTCP port that arrived at `at_ns`.
    pub fn handle_rtcp(&mut self, at_ns: u64, from: SocketAddr, bytes: &[u8]) -> Verdict {
        self.release();
        if !self.is_reported_to(from)
            && let Err(refusal) = self.admission.judge_rtcp(from, self.mux)
        {
            return self.refuse(refusal);
        }
        if self.session.handle_rtcp(at_ns, from, bytes).is_err() {
            return Verdict::MalformedRtcp;
        }
        self.admission.note_rtcp(at_ns, from);
        if self.is_reported_to(from) && !self.is_at_source(from) {
            return Verdict::Rtcp;
        }
        let is_heard = self.rtcp_from.is_some_and(|(address, heard_ns)| {
            address != from && at_ns.saturating_sub(heard_ns) < RTCP_ADDRESS_SILENCE_NS
        });
        if !is_heard {
            self.rtcp_from = Some((from, at_ns));
        }
        Verdict::Rtcp
    }

    /// Whether RTCP from this address may come from a receiver of our packets.
    fn is_reported_to(&self, from: SocketAddr) -> bool {
        match self.destination {
            Destination::Fixed { rtp, .. } if self.mux => rtp == from,
            Destination::Fixed { rtp, .. } => rtp.ip() == from.ip(),
            Destination::Peer => false,
        }
    }

    fn is_at_source(&self, from: SocketAddr) -> bool {
        let source = self.admission.current();
        source.is_some_and(|(address, _)| address.ip() == from.ip())
    }

    /// Refuses a datagram of the RTP port that is neither RTP nor, with mux, RTCP.
    #[cold]
    pub fn refuse_malformed(&mut self) -> Verdict {
        self.refuse(Refusal::Malformed)
    }

    #[cold]
    fn refuse(&mut self, refusal: Refusal) -> Verdict {
        self.refused.count(refusal);
        Verdict::Refused(refusal)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<LegEvent> {
        self.beginning
            .take()
            .or_else(|| self.session.poll_event().map(LegEvent::Report))
    }

    /// Leaves the session. A BYE becomes due, if anything was ever sent.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        self.session.send_bye(now_ns, reason);
    }

    /// Returns the time of the next poll if nothing arrives before. 0 means now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let rtcp_ns = self.session.next_timeout();
        rtcp_ns.into_iter().chain(self.next_media()).min()
    }

    /// Returns the time of the next report.
    #[must_use]
    pub fn next_report(&self) -> Option<u64> {
        self.session.next_timeout()
    }

    /// Returns the time of the next media if no packet arrives before.
    #[must_use]
    pub fn next_media(&self) -> Option<u64> {
        let jitter_ns = self.jitter.next_timeout();
        jitter_ns.into_iter().chain(self.next_beside()).min()
    }

    /// Sets whether later datagrams have passed SRTP's authentication.
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.admission.set_authenticated(is_authenticated);
    }

    /// Applies a new description of the peer. If the description does not replace the peer's address, it stays.
    pub fn relearn(&mut self, now_ns: u64, admission: AdmissionConfig, destination: Destination) {
        self.admission.relearn(now_ns, admission);
        self.destination = destination;
        self.rtcp_from = None;
        self.drop_waiting();
    }

    /// Whether this is the current description of the peer.
    pub(crate) fn is_described(
        &self,
        admission: &AdmissionConfig,
        destination: Destination,
    ) -> bool {
        self.admission.config() == admission && self.destination == destination
    }

    /// Changes the destination.
    pub fn set_destination(&mut self, destination: Destination) {
        self.destination = destination;
    }

    /// Ends the stream. Everything that is queued becomes due, in order.
    pub fn release_all(&mut self) {
        self.jitter.release_all();
        let beside = self.beside.iter_mut().flat_map(|beside| beside.iter_mut());
        beside.for_each(Beside::release);
    }

    /// Returns the address and SSRC of the current source.
    #[must_use]
    pub fn source(&self) -> Option<(SocketAddr, Ssrc)> {
        self.admission.current()
    }

    /// Changes the payload types that the peer sends and accepts. Queued packets keep the payload types that they had on arrival.
    pub fn set_payloads(&mut self, sends: Arc<PayloadMap>, takes: Arc<PayloadMap>) {
        self.payloads = PayloadMap::received(sends, self.mux);
        self.takes = takes;
        // The next packet looks up its payload type again.
        self.payload_type = NO_TYPE;
    }

    /// Returns the payload type of the latest audio, or of the audio to expect if only digits or noise have arrived so far. `None` if no
    /// source is sending, or if the payload types were signalled again since then.
    #[must_use]
    pub fn heard_payload(&self) -> Option<Payload> {
        self.source()?;
        self.payloads.get(self.payload_type).copied()
    }

    /// Returns the payload types that the peer sends.
    #[must_use]
    pub fn payloads(&self) -> &Arc<PayloadMap> {
        &self.payloads
    }

    /// Returns the payload types that the peer accepts.
    #[must_use]
    pub fn takes(&self) -> &Arc<PayloadMap> {
        &self.takes
    }

    /// Returns our SSRC.
    #[must_use]
    pub fn ssrc(&self) -> Ssrc {
        self.session.ssrc()
    }

    /// Whether RTP and RTCP share one port (RFC 5761).
    #[inline]
    #[must_use]
    pub fn is_mux(&self) -> bool {
        self.mux
    }

    /// Returns the delay of received packets in the jitter buffer, ns.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.jitter.latency_ns()
    }

    /// Returns the counters and gauges.
    #[must_use]
    pub fn stats(&self) -> LegStats {
        LegStats {
            packets: self.packets,
            bytes: self.bytes,
            heard_ns: self.heard_ns(),
            refused: self.refused,
            no_room: self.no_room,
            no_destination: self.no_destination,
            jitter: self.jitter.stats(),
            session: self.session.stats(),
            rtp_to: self.rtp_to(),
            source: self.admission.current(),
            quality: self.watch.as_ref().map(|watch| watch.quality),
            end_to_end: self.watch.as_ref().map(|watch| watch.end_to_end),
            extended: self.session.extended(),
        }
    }

    /// Returns the arrival time of the current source's last packet, ns. If the source is known from another process, it must first send a
    /// packet here.
    #[must_use]
    pub fn heard_ns(&self) -> Option<u64> {
        self.admission.heard_ns().filter(|_| self.packets > 0)
    }

    /// Returns the session's statistics of the sources, the current one first.
    pub fn sources(&self) -> impl Iterator<Item = session::SourceStats<'_>> {
        self.session.sources()
    }

    /// Records quality from now on: see [`LegStats::quality`](super::LegStats::quality). This takes some hundred bytes. Calls record
    /// quality by default.
    pub fn record_quality(&mut self) {
        self.watch.get_or_insert_default();
    }

    /// Sends extended reports (RFC 3611) with the regular ones, if the peer has agreed on that. They contain statistics and VoIP metrics of
    /// the peer's stream. This also records quality.
    pub fn send_extended_reports(&mut self, sends: bool) {
        self.watch.get_or_insert_default().sends_extended = sends;
    }

    /// Returns the peer's last report on our packets, received at `at_ns`.
    pub(crate) fn report_of_peer(&self, at_ns: u64) -> Option<FarReport> {
        watch::report_of_peer(self, at_ns)
    }

    /// Notes a report of the party that receives the media of this leg's peer.
    pub(crate) fn note_far_report(&mut self, report: FarReport) {
        if let Some(watch) = &mut self.watch {
            watch.note_far_report(report);
        }
    }
}

/// The padding bit P (RFC 3550, section 5.1).
const PADDING_BIT: u8 = 0x20;
/// A payload type that no packet has.
const NO_TYPE: PayloadType = PayloadType(u8::MAX);
/// Usual size of a stored packet. It is 20 ms of G.711 and a header, rounded up to whole cache lines.
const PACKET_BYTES_USUAL: usize = 192;
/// Maximum number of sources in the session's table.
const SOURCES_MAX: usize = 4;
