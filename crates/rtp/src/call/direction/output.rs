//! The stream to the far side: its route, its timestamps and its encoder.
//!
//! Audio of each payload type has a [`Route`]. [`codes`](super::codes) forwards codes that both sides share or that a table converts.
//! [`reencode`](super::reencode) handles all other audio.

use super::comfort_noise::ComfortNoise;
use super::filter_delay::FilterDelay;
use super::route::{Reencode, Route, converter, narrowed, silence_of, table_of};
use super::tap::{Tap, Tapped};
use super::{DirectionStats, units_of};
use crate::call::concealers::History;
use crate::call::out::Out;
use crate::call::time_map::TimeMap;
use crate::call::voice::{PACKET_NS_DEFAULT, Voice};
use crate::call::{DirectionConfig, Filter, Mode, TAIL_NS_MAX};
use crate::codec::{Decoder, Encoding, Format, Gaps};
use crate::id::{NS_PER_S, PayloadType, RtpTime};
use crate::leg::{Carries, MediaPacket, Payload, PayloadMap};

/// The stream to the far side: see the module documentation.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) config: DirectionConfig,
    pub(super) mode: Mode,
    /// Whether the far side is held, so that it gets nothing.
    pub(super) is_held: bool,
    /// The payload type for which `route` was chosen.
    pub(super) routed: Option<PayloadType>,
    /// The format of that payload type, if it can be decoded.
    pub(super) from: Option<Format>,
    pub(super) route: Route,
    /// The payload types that may be forwarded directly, a bit for each. `None`: not determined yet.
    direct_types: Option<u128>,
    pub(super) map: TimeMap,
    /// Whether the next packet starts a talkspurt.
    pub(super) is_after_pause: bool,
    pub(super) voice: Option<Box<Voice>>,
    /// Bytes that a route with packets of another length has gathered.
    pub(super) bytes: Vec<u8>,
    pub(super) bytes_time: RtpTime,
    pub(super) bytes_play_ns: u64,
    /// Forwarded codes, which are needed for concealment.
    pub(super) history: History,
    /// Whether losses are concealed here even if codes are forwarded unchanged.
    pub(super) mends_all: bool,
    /// State between a loss and the packet after it.
    pub(super) gaps: Option<Gaps>,
    /// Duration of the audio in the party's last packet, ns.
    pub(super) packet_ns: u64,
    /// Duration of the audio that may still be concealed, ns. It is as long as the received audio, plus a tail.
    pub(super) budget_ns: u64,
    pub(super) filter: Option<Box<dyn Filter>>,
    pub(super) filter_delay: FilterDelay,
    /// Whether filter and tap get the outgoing audio, in the far side's format, whatever the input is.
    pub(super) is_heard_at_output: bool,
    pub(super) tap: Option<Box<Tap>>,
    pub(super) stats: DirectionStats,
}

impl Output {
    pub(super) fn new(config: DirectionConfig) -> Output {
        Output {
            mode: config.mode,
            is_held: false,
            routed: None,
            from: None,
            route: Route::Nowhere,
            direct_types: None,
            map: TimeMap::new(config.first_time),
            is_after_pause: true,
            voice: None,
            bytes: Vec::new(),
            bytes_time: RtpTime(0),
            bytes_play_ns: 0,
            history: History::default(),
            mends_all: false,
            gaps: None,
            packet_ns: PACKET_NS_DEFAULT,
            budget_ns: TAIL_NS_MAX,
            filter: None,
            filter_delay: FilterDelay::default(),
            is_heard_at_output: false,
            tap: None,
            stats: DirectionStats::default(),
            config,
        }
    }

    /// Returns what currently happens to the party's media.
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

    /// Chooses the route for this payload type. `is_playing` means that a clip is being played.
    #[cold]
    pub(super) fn choose(&mut self, payload: &Payload, is_playing: bool, out: &mut Out<'_>) {
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
            .find_route(payload, &payloads, is_playing)
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

    /// Finds the route. Audio passes unchanged if the far side has the same format, by table if both are G.711, and is re-encoded
    /// otherwise.
    pub(super) fn find_route(
        &mut self,
        payload: &Payload,
        payloads: &PayloadMap,
        is_playing: bool,
    ) -> Option<Route> {
        let same = payloads.iter().find(|other| {
            other.carries == payload.carries && other.clock_rate_hz == payload.clock_rate_hz
        });
        let Carries::Audio(from) = payload.carries else {
            let to = *same?;
            return (self.mode != Mode::Mute).then_some(Route::Pass { to, table: None });
        };
        // Opus cannot be divided into packets of another length.
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
        // A clip that is being played uses the encoder.
        let (from, format) = if is_playing {
            (from, format)
        } else {
            (narrowed(from, format), narrowed(format, from))
        };
        self.set_voice(to, format, is_playing)?;
        Some(Route::Reencode(Box::new(Reencode {
            decoder: Decoder::new(from).ok()?,
            converter: converter(from, format)?,
            next: None,
            // A filter may delay audio. In that case, pauses are re-encoded too.
            comfort_noise: ComfortNoise::between(from, format, payloads)
                .filter(|_| self.filter.is_none()),
        })))
    }

    /// Sends the audio gathered so far, before a pause, another route or the end.
    pub(super) fn flush(&mut self, out: &mut Out<'_>) {
        self.flush_bytes(out);
        self.flush_voice(out);
    }

    pub(super) fn flush_bytes(&mut self, out: &mut Out<'_>) {
        if let Route::Repack { to, unit_bytes, .. } = self.route
            && !self.bytes.is_empty()
        {
            self.send_bytes(0..self.bytes.len(), &to, unit_bytes, out);
            self.bytes.clear();
        }
    }

    /// Acts as [`flush`](Self::flush) for re-encoded audio, unless a filter contains audio that continues it.
    pub(super) fn flush_voice(&mut self, out: &mut Out<'_>) {
        if let Some(voice) = self
            .voice
            .as_mut()
            .filter(|_| !self.filter_delay.has_audio())
        {
            voice.flush(&mut self.map, out);
        }
    }

    /// Adds the audio of a packet to the budget: concealment may use as much audio as was received.
    #[inline]
    pub(super) fn earn(&mut self, payload: &Payload, bytes: &[u8]) {
        let units = u64::from(units_of(payload, bytes));
        let ns = units * NS_PER_S / u64::from(payload.clock_rate_hz);
        // A shorter packet is a remainder, or is meant to cause many packets, so it adds nothing.
        if ns >= PACKET_NS_MIN {
            self.packet_ns = ns;
        }
        self.budget_ns = self.budget_ns.saturating_add(ns).min(BUDGET_NS_MAX);
    }

    /// Forwards comfort noise to a side that accepts it. Other sides fill pauses themselves.
    pub(super) fn pass_noise(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        out: &mut Out<'_>,
    ) {
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

    /// Returns the clock rate of the outgoing audio, Hz.
    pub(super) fn routed_rate(&self, out: &Out<'_>) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Reencode(_) => self.voice.as_ref().map(|voice| voice.payload.clock_rate_hz),
            Route::Nowhere => Some(out.leg.takes().audio().clock_rate_hz),
        }
    }

    /// Returns the clock rate of the incoming audio, Hz. All times are on its time line.
    pub(super) fn incoming_rate(&self) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Reencode(reencode) => Some(reencode.decoder.format().clock_rate_hz),
            Route::Nowhere => None,
        }
    }

    /// Returns the address of memory that the next packet touches, for prefetching.
    pub(super) fn next_address(&self) -> usize {
        match &self.tap {
            Some(tap) if self.history.is_empty() => std::ptr::from_ref::<Tap>(tap) as usize,
            _ => self.history.next_address(),
        }
    }

    /// Returns the packet time of the outgoing audio, ns.
    pub(super) fn sent_packet_ns(&self) -> u64 {
        let made_ns = self.voice.as_ref().map(|voice| voice.packet_ns());
        let made_ns = made_ns.unwrap_or(u64::MAX).min(self.packet_ns);
        match self.config.packet_ns {
            0 => made_ns,
            packet_ns => packet_ns.min(made_ns),
        }
    }

    /// Returns the party's payload types that need no conversion, a bit for each.
    #[inline]
    pub(super) fn direct_types(&mut self, sends: &PayloadMap, takes: &PayloadMap) -> u128 {
        match self.direct_types {
            Some(types) => types,
            None => *self
                .direct_types
                .insert(self.find_direct_types(sends, takes)),
        }
    }

    /// Finds the payload types that need no conversion. Those that were not agreed on count too, because their packets are dropped without
    /// a gap in the numbers.
    #[cold]
    fn find_direct_types(&self, sends: &PayloadMap, takes: &PayloadMap) -> u128 {
        let has_events = takes.telephone_event(takes.audio().clock_rate_hz).is_some();
        let is_passed = |payload: &Payload| match payload.carries {
            Carries::TelephoneEvent => has_events,
            Carries::ComfortNoise => true,
            Carries::Audio(_) | Carries::Opaque(_) => {
                let is_same = |other: &Payload| {
                    other.carries == payload.carries && other.clock_rate_hz == payload.clock_rate_hz
                };
                takes.iter().any(is_same) && self.config.packet_ns == 0 && !self.config.makes_anew
            }
        };
        let converted = sends.iter().filter(|payload| !is_passed(payload));
        converted.fold(u128::MAX, |types, payload| {
            types & !(1 << (payload.payload_type.0 & 0x7f))
        })
    }

    pub(super) fn note_tapped(&mut self, payload: &Payload, bytes: &[u8]) {
        if let (Some(tap), Carries::Audio(format)) = (&mut self.tap, payload.carries) {
            tap.add_payload(format, bytes);
            self.bound_tap();
        }
    }

    pub(super) fn conceal_tapped(&mut self, ns: u64) {
        if let Some(tap) = &mut self.tap {
            tap.conceal(ns);
            self.bound_tap();
        }
    }

    /// Replaces a loss with silence, because there is no time to conceal it.
    pub(super) fn silence_tapped(&mut self, ns: u64) {
        if let Some(tap) = &mut self.tap {
            tap.fall_silent(ns);
            self.bound_tap();
        }
    }

    /// Drops the oldest audio that is not taken in time.
    pub(super) fn bound_tap(&mut self) {
        if let Some(tap) = &mut self.tap {
            self.stats.tap_dropped_ns += tap.bound();
        }
    }

    #[inline]
    pub(super) fn take_tapped(&mut self, hear: impl FnMut(Tapped<'_>)) {
        if let Some(tap) = self.tap.as_mut().filter(|tap| tap.has_audio()) {
            tap.take(hear);
        }
    }
}

/// Minimum packet time that adds to the budget. It is the shortest usual one, except for AES67.
pub(super) const PACKET_NS_MIN: u64 = 1_000_000;
/// Maximum budget that a stream without losses can save.
pub(super) const BUDGET_NS_MAX: u64 = NS_PER_S;
