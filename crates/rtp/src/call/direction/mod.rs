//! One direction of a call: from the media of one party to the stream for the other.
//!
//! Audio of each payload type has a [`Route`]. [`codes`] forwards codes that both sides share or that a table converts; other
//! audio is re-encoded ([`Route::Reencode`]). [`keys`], [`play`] and [`tap`] handle DTMF digits, clips and listeners.

mod code_ring;
mod codes;
mod comfort_noise;
mod conceal;
mod direct;
mod dtmf_insert;
mod filter_delay;
mod inband_dtmf;
mod input;
mod keys;
mod play;
mod receiver;
mod reencode;
mod tap;
mod tone;

use std::collections::VecDeque;

use super::concealers::History;
use super::keys::{Key, KeyEvent};
use super::out::{Out, Work};
use super::time_map::{Anchor, TimeMap, TimeState};
use super::voice::{PACKET_NS_DEFAULT, Voice};
use super::{CallError, DirectionConfig, Filter, Mode, TAIL_NS_MAX};
use crate::codec::{Decoder, Encoding, Format, Gaps};
use crate::id::{NS_PER_S, PayloadType, RtpTime};
use crate::leg::{Carries, Delivery, Media, MediaPacket, Payload, PayloadMap};
use crate::opus;

use codes::{silence_of, table_of, write_codes};
use comfort_noise::ComfortNoise;
use direct::Numbering;
use dtmf_insert::DtmfQueue;
use filter_delay::FilterDelay;
use inband_dtmf::{InbandDtmf, Stretch};
use play::Playing;
use receiver::check_packet_ns;
use reencode::{Reencode, converter};
use tap::Tap;
pub use tap::{Tapped, TappedAudio};
use tone::Sounding;

/// Counters of a direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Packets of audio that arrived in order.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Concealed audio, ns.
    pub concealed_ns: u64,
    /// Lost packets that the far side must conceal, because this side had no time
    /// ([`Scratch::set_spare`](super::Scratch::set_spare)).
    pub left_to_conceal: u64,
    /// Packets of telephone events.
    pub key_packets: u64,
    /// Packets of comfort noise.
    pub noise_packets: u64,
    /// Descriptions of comfort noise generated for a party that pauses by its codec's own means.
    pub noise_made: u64,
    /// Packets of payload types that were not agreed on or that the far side lacks.
    pub dropped: u64,
    /// Packets that could not be decoded.
    pub undecodable: u64,
    /// Tapped audio that was dropped because it was not taken in time, ns.
    pub tap_dropped_ns: u64,
}

/// Treatment of the audio of one payload type.
#[derive(Debug)]
enum Route {
    /// The far side has no payload type for it.
    Nowhere,
    /// Forwarded packet by packet, unchanged or converted by table.
    Pass {
        to: Payload,
        table: Option<&'static [u8; 256]>,
    },
    /// Forwarded byte by byte in packets of another length.
    Repack {
        to: Payload,
        table: Option<&'static [u8; 256]>,
        /// Bytes per packet and per timestamp unit.
        whole: usize,
        unit_bytes: usize,
    },
    /// Re-encoded.
    Reencode(Box<Reencode>),
}

/// Missing packets of a party.
struct Loss<'a> {
    packets: u32,
    /// Timestamp of the first one.
    time: RtpTime,
    play_ns: u64,
    duration_ns: u64,
    /// The far side has seen the gap already.
    is_sent: bool,
    /// Payload of the packet after them, or empty.
    next: &'a [u8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Direction {
    config: DirectionConfig,
    mode: Mode,
    /// The payload type for which `route` was chosen.
    routed: Option<PayloadType>,
    /// Format of that payload type, if it can be decoded.
    from: Option<Format>,
    route: Route,
    map: TimeMap,
    /// The next packet starts a talkspurt.
    is_after_pause: bool,
    /// Bytes gathered by a route that repacks.
    bytes: Vec<u8>,
    /// Forwarded codes, for concealment.
    history: History,
    /// Conceals losses even if codes are forwarded unchanged.
    mends_all: bool,
    /// State between a loss and the packet after it.
    gaps: Option<Gaps>,
    bytes_time: RtpTime,
    bytes_play_ns: u64,
    /// Audio in the last packet.
    packet_ns: u64,
    voice: Option<Box<Voice>>,
    /// Audio that may still be concealed, ns: as much as was received, and a tail.
    budget_ns: u64,
    key: Option<Key>,
    key_events: VecDeque<KeyEvent>,
    /// Whether a digit is pressed, as far as known.
    is_pressed: bool,
    /// Whether its tone replaces the audio.
    is_sounding: bool,
    sounding: Option<Box<Sounding>>,
    /// Time at which the pressed digit ends if no more packets of it arrive.
    key_over_ns: u64,
    /// Time at which a digit's packet last paid for its tone.
    key_paid_ns: u64,
    playing: Option<Box<Playing>>,
    dtmf_queue: Option<Box<DtmfQueue>>,
    /// Time between the last packet's release from the jitter buffer and its play time.
    lead_ns: u64,
    /// Latency of the jitter buffer.
    latency_ns: u64,
    /// See [`Direction::direct_types`]; `None`: not determined yet.
    direct_types: Option<u128>,
    /// Numbering of directly forwarded packets.
    numbering: Option<Numbering>,
    /// The party's digits are blocked.
    blocks_keys: bool,
    /// The party's digits pass in every mode.
    passes_keys: bool,
    /// The far side is held: it gets nothing.
    is_held: bool,
    has_play_ended: bool,
    tap: Option<Box<Tap>>,
    /// Detects digits in the audio.
    inband_dtmf: Option<Box<InbandDtmf>>,
    filter: Option<Box<dyn Filter>>,
    filter_delay: FilterDelay,
    /// Filter and tap get the outgoing audio, in the far side's format, whatever the input.
    is_heard_at_output: bool,
    stats: DirectionStats,
}

impl Direction {
    /// Creates a direction to a side with these payload types.
    pub(super) fn new(config: DirectionConfig, to: &PayloadMap) -> Result<Direction, CallError> {
        check_packet_ns(config.packet_ns, to)?;
        Ok(Direction {
            mode: config.mode,
            routed: None,
            from: None,
            route: Route::Nowhere,
            map: TimeMap::new(config.first_time),
            is_after_pause: true,
            bytes: Vec::new(),
            history: History::default(),
            mends_all: false,
            gaps: None,
            bytes_time: RtpTime(0),
            bytes_play_ns: 0,
            packet_ns: PACKET_NS_DEFAULT,
            voice: None,
            budget_ns: TAIL_NS_MAX,
            key: None,
            key_events: VecDeque::new(),
            is_pressed: false,
            is_sounding: false,
            sounding: None,
            key_over_ns: 0,
            key_paid_ns: 0,
            playing: None,
            dtmf_queue: None,
            lead_ns: 0,
            latency_ns: 0,
            direct_types: None,
            numbering: None,
            blocks_keys: false,
            passes_keys: false,
            is_held: false,
            has_play_ended: false,
            tap: None,
            inband_dtmf: config.detect_keys.then(|| Box::new(InbandDtmf::new())),
            filter: None,
            filter_delay: FilterDelay::default(),
            is_heard_at_output: false,
            stats: DirectionStats::default(),
            config,
        })
    }

    /// Handles the party's next media.
    #[inline]
    pub(super) fn handle(&mut self, media: Media<'_>, work: &mut Work, out: &mut Out<'_>) {
        match media {
            Media::Packet(packet) => match packet.delivery {
                Delivery::Ordered => {
                    self.numbering = None;
                    self.handle_packet(&packet, work, out);
                }
                Delivery::Direct(seq) if self.number(seq, out) => {
                    self.handle_packet(&packet, work, out);
                    self.note_numbered(seq, out);
                }
                Delivery::Direct(_) => self.stats.dropped += 1,
                Delivery::Beside => self.handle_packet(&packet, work, out),
                Delivery::Sent => self.hear_sent(&packet),
            },
            Media::Lost {
                packets,
                time,
                play_ns,
                duration_ns,
                is_sent,
                next,
            } => {
                let loss = Loss {
                    packets,
                    time,
                    play_ns,
                    duration_ns,
                    is_sent,
                    next,
                };
                self.handle_loss(&loss, work, out);
            }
            Media::Restart => self.restart(work, out),
        }
    }

    #[inline]
    fn handle_packet(&mut self, packet: &MediaPacket<'_>, work: &mut Work, out: &mut Out<'_>) {
        let Some(payload) = packet.payload else {
            self.stats.dropped += 1;
            return;
        };
        match payload.carries {
            Carries::Audio(_) | Carries::Opaque(_) => {
                self.handle_audio(payload, packet, work, out);
            }
            Carries::TelephoneEvent => self.handle_key(payload, packet, work, out),
            Carries::ComfortNoise => self.handle_noise(payload, packet, out),
        }
    }

    /// Passes a packet to the listeners, in order. The far side has already got it.
    #[inline]
    fn hear_sent(&mut self, packet: &MediaPacket<'_>) {
        if self.tap.is_some()
            && let Some(payload) = packet.payload
        {
            self.note_tapped(payload, packet.bytes);
        }
    }

    #[inline]
    fn handle_audio(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        self.stats.packets += 1;
        if self.routed != Some(payload.payload_type) && !self.is_sending_digit() {
            self.choose(payload, out);
        }
        self.earn(payload, packet.bytes);
        self.lead_ns = packet.play_ns.saturating_sub(out.now_ns);
        let is_inserting_dtmf =
            self.dtmf_queue.is_some() && self.is_inserting_dtmf(packet.play_ns, out.now_ns);
        let is_quiet = self.playing.is_some() || self.mode() == Mode::Hold || is_inserting_dtmf;
        let is_heard_later = matches!(packet.delivery, Delivery::Direct(_));
        if self.tap.is_some()
            && !is_heard_later
            && (is_quiet || !matches!(self.route, Route::Reencode(_)))
        {
            self.note_tapped(payload, packet.bytes);
        }
        if self.is_pressed && self.is_sounded_over(payload, packet, work, out) {
            return;
        }
        if is_inserting_dtmf {
            return self.cut();
        }
        if self.inband_dtmf.is_some() && self.is_heard_as_key(payload, packet, work, out) {
            return;
        }
        if is_quiet {
            return;
        }
        self.is_after_pause |= packet.marker;
        match &mut self.route {
            Route::Pass { to, table } => {
                let (to, table) = (*to, *table);
                let units = units_of(payload, packet.bytes);
                let from_hz = payload.clock_rate_hz;
                let time = self
                    .map
                    .map(packet.time, packet.play_ns, from_hz, to.clock_rate_hz);
                if self.gaps.is_some() {
                    self.join(packet.bytes, work, out.begin());
                } else {
                    write_codes(packet.bytes, table, self.mode, &to, out.begin());
                }
                if table.is_some() || self.mends_all {
                    self.history.add(packet.bytes);
                }
                if out.is_late() {
                    return out.send(&to, time, false, 0);
                }
                out.send(&to, time, std::mem::take(&mut self.is_after_pause), 0);
                self.map.note_sent(time, units, packet.play_ns);
            }
            Route::Repack { .. } => self.repack(payload, packet, work, out),
            Route::Reencode(_) => self.reencode(payload, packet, work, out),
            Route::Nowhere => self.stats.dropped += 1,
        }
    }

    /// Whether the far side gets an event in place of this packet. Audio that is decoded anyway is checked after decoding.
    #[cold]
    fn is_heard_as_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let at = Stretch {
            time: packet.time,
            play_ns: packet.play_ns,
            units: units_of(payload, packet.bytes),
            rate_hz: payload.clock_rate_hz,
        };
        !self.is_decoding() && self.listen(payload, packet.bytes, at, work, out)
    }

    /// Sets the party's payload types. Digits are reported once: a party with telephone events has no tone detection.
    pub(super) fn set_sender(&mut self, payloads: &PayloadMap) {
        let has_events = payloads
            .iter()
            .any(|payload| payload.carries == Carries::TelephoneEvent);
        match (has_events, &self.inband_dtmf) {
            (true, _) => self.inband_dtmf = None,
            (false, None) if self.config.detect_keys => {
                self.inband_dtmf = Some(Box::new(InbandDtmf::new()))
            }
            (false, _) => {}
        }
    }

    /// Chooses the route for this payload type.
    #[cold]
    fn choose(&mut self, payload: &Payload, out: &mut Out<'_>) {
        self.flush(out);
        self.history.clear();
        self.gaps = None;
        self.routed = Some(payload.payload_type);
        self.from = match payload.carries {
            Carries::Audio(format) => Some(format),
            _ => None,
        };
        let payloads = out.leg.takes().clone();
        self.route = self
            .find_route(payload, &payloads)
            .unwrap_or(Route::Nowhere);
        let rate_hz = match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => to.clock_rate_hz,
            Route::Reencode(_) => self
                .voice
                .as_ref()
                .map_or(8000, |voice| voice.payload.clock_rate_hz),
            Route::Nowhere => return,
        };
        out.leg.set_sent_clock_rate(rate_hz);
    }

    /// Finds a route: unchanged if the far side has the same format, by table if both are G.711, otherwise re-encoded.
    fn find_route(&mut self, payload: &Payload, payloads: &PayloadMap) -> Option<Route> {
        let same = payloads.iter().find(|other| {
            other.carries == payload.carries && other.clock_rate_hz == payload.clock_rate_hz
        });
        let Carries::Audio(from) = payload.carries else {
            let to = *same?;
            return (self.mode != Mode::Mute).then_some(Route::Pass { to, table: None });
        };
        // Opus cannot be cut into packets of another length.
        let is_cut = self.config.packet_ns > 0 && from.encoding == Encoding::Opus;
        let is_made_anew = is_cut
            || self.config.makes_anew
            || self.filter.is_some()
            || self.mode == Mode::Mute && silence_of(from.encoding).is_none();
        if let Some(same) = same.filter(|_| !is_made_anew) {
            return Some(self.by_codes(*same, from, None));
        }
        let to = *payloads.audio();
        let Carries::Audio(format) = to.carries else {
            return None;
        };
        if let Some(table) = table_of(from, format).filter(|_| !is_made_anew) {
            return Some(self.by_codes(to, from, Some(table)));
        }
        let (from, format) = match self.playing {
            // The clip being played uses the encoder.
            Some(_) => (from, format),
            None => (narrowed(from, format), narrowed(format, from)),
        };
        self.set_voice(to, format)?;
        Some(Route::Reencode(Box::new(Reencode {
            decoder: Decoder::new(from).ok()?,
            converter: converter(from, format)?,
            next: None,
            // A filter may hold audio back; then pauses are re-encoded, too.
            comfort_noise: ComfortNoise::between(from, format, payloads)
                .filter(|_| self.filter.is_none()),
        })))
    }

    /// Sends the gathered audio before a pause, another route or the end.
    fn flush(&mut self, out: &mut Out<'_>) {
        self.flush_bytes(out);
        self.flush_voice(out);
    }

    fn flush_bytes(&mut self, out: &mut Out<'_>) {
        if let Route::Repack { to, unit_bytes, .. } = self.route
            && !self.bytes.is_empty()
        {
            self.send_bytes(0..self.bytes.len(), &to, unit_bytes, out);
            self.bytes.clear();
        }
    }

    /// [`flush`](Self::flush) for re-encoded audio, unless a filter holds audio that continues it.
    fn flush_voice(&mut self, out: &mut Out<'_>) {
        if let Some(voice) = self
            .voice
            .as_mut()
            .filter(|_| !self.filter_delay.has_audio())
        {
            voice.flush(&mut self.map, out);
        }
    }

    #[cold]
    fn handle_loss(&mut self, loss: &Loss<'_>, work: &mut Work, out: &mut Out<'_>) {
        self.stats.lost += u64::from(loss.packets);
        let mut made_ns = loss.duration_ns.min(TAIL_NS_MAX).min(self.budget_ns);
        if made_ns < loss.duration_ns.min(PACKET_NS_MIN) {
            // If so little audio made a packet, a party could cause one packet per gap.
            made_ns = 0;
        }
        if loss.is_sent {
            return self.hear_sent_loss(made_ns, work);
        }
        let is_inserting_dtmf = self.is_inserting_dtmf(loss.play_ns, out.now_ns);
        let is_quiet = self.playing.is_some() || self.mode() == Mode::Hold || is_inserting_dtmf;
        let units = self.loss_units(is_quiet);
        if units > 0 && !work.spend(units) {
            return self.leave_to_far_side(loss, made_ns, is_quiet, work, out);
        }
        if is_quiet || !matches!(self.route, Route::Reencode(_)) {
            self.conceal_tapped(made_ns);
        }
        if self.inband_dtmf.is_some()
            && !self.is_decoding()
            && self.listen_to_loss(loss, made_ns, work, out)
        {
            return;
        }
        if is_quiet || self.is_sounding {
            return;
        }
        match self.route {
            Route::Nowhere => {}
            // The far side sees the gap and conceals it.
            Route::Pass { table: None, .. } if !self.mends_all => out.leg.skip(loss.packets),
            Route::Pass { .. } | Route::Repack { .. } => {
                // Audio of a digit or clip comes first.
                self.flush_voice(out);
                self.conceal(loss, made_ns, work, out);
            }
            Route::Reencode(_) => self.fill_in(loss, made_ns, work, out),
        }
    }

    /// Ends the stream: sends the audio that a filter or a packet still holds.
    #[cold]
    pub(super) fn finish(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.drain_filter(work, out);
        self.flush(out);
    }

    /// Handles a restart of the party's numbers and timestamps.
    #[cold]
    fn restart(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.end_tone(work, out);
        self.release_key();
        self.release_heard(out);
        if !self.is_sending_digit() {
            self.flush(out);
        }
        self.map.restart();
        self.numbering = None;
        self.history.clear();
        self.gaps = None;
        self.is_after_pause = true;
        self.key = None;
        if let Route::Reencode(reencode) = &mut self.route {
            reencode.next = None;
            reencode.converter.reset();
        }
    }

    /// Credits a packet: concealment may use as much audio as was received.
    #[inline]
    fn earn(&mut self, payload: &Payload, bytes: &[u8]) {
        let units = u64::from(units_of(payload, bytes));
        let ns = units * NS_PER_S / u64::from(payload.clock_rate_hz);
        // A shorter packet is a remainder, or is meant to cause many packets.
        if ns >= PACKET_NS_MIN {
            self.packet_ns = ns;
        }
        self.budget_ns = self.budget_ns.saturating_add(ns).min(BUDGET_NS_MAX);
    }

    /// Forwards comfort noise to a side that accepts it; other sides fill pauses themselves.
    fn handle_noise(&mut self, payload: &Payload, packet: &MediaPacket<'_>, out: &mut Out<'_>) {
        self.stats.noise_packets += 1;
        let is_inserting_dtmf = self.is_inserting_dtmf(packet.play_ns, out.now_ns);
        if self.playing.is_some() || self.mode() != Mode::Pass || is_inserting_dtmf {
            return;
        }
        self.flush(out);
        self.is_after_pause = true;
        let to_hz = self.routed_rate(out).unwrap_or(payload.clock_rate_hz);
        let from_hz = self.incoming_rate().unwrap_or(payload.clock_rate_hz);
        let Some(to) = out.leg.takes().comfort_noise(to_hz).copied() else {
            self.stats.dropped += 1;
            return;
        };
        let time = self.map.map(packet.time, packet.play_ns, from_hz, to_hz);
        let bytes = packet.bytes;
        out.begin().extend_from_slice(bytes);
        out.send(&to, time, false, 0);
    }

    /// Clock rate of the outgoing audio, Hz.
    fn routed_rate(&self, out: &Out<'_>) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Reencode(_) => self.voice.as_ref().map(|voice| voice.payload.clock_rate_hz),
            Route::Nowhere => Some(out.leg.takes().audio().clock_rate_hz),
        }
    }

    /// Clock rate of the incoming audio, Hz; all times are on its time line.
    fn incoming_rate(&self) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Reencode(reencode) => Some(reencode.decoder.format().clock_rate_hz),
            Route::Nowhere => None,
        }
    }

    pub(super) fn set_filter(&mut self, filter: Box<dyn Filter>) {
        self.filter = Some(filter);
        self.reroute();
    }

    /// Gives filter and tap the outgoing audio, because there are several inputs.
    pub(super) fn hear_at_output(&mut self) {
        self.is_heard_at_output = true;
    }

    /// Switches to another input.
    #[cold]
    pub(super) fn change_input(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.end_play();
        self.restart(work, out);
        self.map.restart_at(out.now_ns);
        self.reroute();
    }

    /// Sets the delay of the jitter buffer.
    pub(super) fn note_latency(&mut self, latency_ns: u64) {
        self.latency_ns = latency_ns;
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            self.mode = mode;
            self.reroute();
        }
    }

    /// The current treatment of the party's media.
    #[inline]
    pub(super) fn mode(&self) -> Mode {
        if self.is_held { Mode::Hold } else { self.mode }
    }

    /// Makes the next packet choose the route again.
    pub(super) fn reroute(&mut self) {
        self.routed = None;
        self.direct_types = None;
        self.is_after_pause = true;
    }

    /// Address of memory that the next packet touches, for prefetching.
    pub(super) fn next_address(&self) -> usize {
        match &self.tap {
            Some(tap) if self.history.is_empty() => std::ptr::from_ref::<Tap>(tap) as usize,
            _ => self.history.next_address(),
        }
    }

    pub(super) fn stats(&self) -> DirectionStats {
        self.stats
    }

    /// Conceals all losses here, leaving none to the far side.
    pub(super) fn mend_all(&mut self) {
        self.mends_all = true;
    }

    /// Takes over the timestamps, counters and budget of the direction that this one replaces.
    pub(super) fn succeed(&mut self, old: Direction) {
        self.map = old.map;
        self.map.restart();
        self.stats = old.stats;
        self.budget_ns = old.budget_ns;
    }

    /// The position of the outgoing timestamps.
    pub(super) fn time_state(&self, now_ns: u64) -> Option<TimeState> {
        self.map.snapshot(now_ns)
    }

    /// Discards everything received so far.
    pub(super) fn begin_anew(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.restart(work, out);
    }

    /// Mapping from the incoming to the outgoing timestamps.
    pub(super) fn anchor(&self) -> Option<Anchor> {
        self.map.take_anchor()
    }

    /// Continues where another process has just stopped.
    pub(super) fn go_on(&mut self, now_ns: u64, time: Option<TimeState>, anchor: Option<Anchor>) {
        if let Some(time) = time {
            self.map.restore(now_ns, time, 0);
            self.is_after_pause = anchor.is_none();
        }
        if let Some(anchor) = anchor {
            self.map.set_anchor(anchor);
        }
    }

    /// Continues with the timestamps of another process.
    pub(super) fn restore_time(&mut self, now_ns: u64, time: TimeState, elapsed_ns: u64) {
        self.map.restore(now_ns, time, elapsed_ns);
    }

    /// Packet time of the outgoing audio, ns.
    pub(super) fn sent_packet_ns(&self) -> u64 {
        let made_ns = self.voice.as_ref().map(|voice| voice.packet_ns());
        let made_ns = made_ns.unwrap_or(u64::MAX).min(self.packet_ns);
        match self.config.packet_ns {
            0 => made_ns,
            packet_ns => packet_ns.min(made_ns),
        }
    }

    /// Play time of the outgoing timestamp `time`.
    pub(super) fn play_ns(&self, time: RtpTime) -> Option<u64> {
        self.map.play_ns(time)
    }
}

/// The timestamp units that a packet of audio covers; 0 if its codec is unknown.
#[inline]
pub(super) fn units_of(payload: &Payload, bytes: &[u8]) -> u32 {
    match payload.carries {
        Carries::Audio(format) if format.encoding == Encoding::Opus => {
            opus::packet_samples(bytes).unwrap_or(0)
        }
        Carries::Audio(format) => {
            let frames = format.payload_samples(bytes.len()).unwrap_or(0);
            format.clock_units(frames)
        }
        _ => 0,
    }
}

/// Limits Opus to the other side's rate and channels. The Opus encoder and decoder reduce both at less cost than a converter,
/// and the packets indicate both.
fn narrowed(format: Format, other: Format) -> Format {
    if format.encoding != Encoding::Opus {
        return format;
    }
    let rates = Encoding::Opus.sample_rates_hz().iter().copied();
    let enough = rates.filter(|rate_hz| *rate_hz >= other.sample_rate_hz);
    let rate_hz = enough.min().unwrap_or(format.sample_rate_hz);
    let rate_hz = rate_hz.min(format.sample_rate_hz);
    let channels = format.channels.min(other.channels);
    Format::new(Encoding::Opus, rate_hz, channels).unwrap_or(format)
}

fn ns_of_frames(frames: usize, format: Format) -> u64 {
    frames as u64 * NS_PER_S / u64::from(format.sample_rate_hz)
}

/// The shortest usual packet time, except for AES67.
const PACKET_NS_MIN: u64 = 1_000_000;
/// Largest budget that a stream without losses can save.
const BUDGET_NS_MAX: u64 = NS_PER_S;
