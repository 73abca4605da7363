//! From what one party sends to what the other one hears.

use std::collections::VecDeque;
use std::sync::Arc;

use super::keys::{Key, KeyEvent, KeyPayload, KeyPhase};
use super::out::Out;
use super::time_map::TimeMap;
use super::voice::{PACKET_NS_DEFAULT, PAYLOAD_BYTES_MAX, Voice};
use super::{CallError, Clip, DirectionConfig, Filter, Mode, PlayError, TAIL_NS_MAX, TAP_NS_MAX};
use crate::codec::{Decoder, Encoding, Format};
use crate::convert::Converter;
use crate::g711;
use crate::id::{NS_PER_S, PayloadType, RtpTime};
use crate::leg::{Carries, Media, MediaPacket, Payload, PayloadMap};
use crate::opus;

/// Counters of what one party sends to the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Packets of audio that came in order.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Audio made up for losses, ns.
    pub concealed_ns: u64,
    /// Packets of keys.
    pub key_packets: u64,
    /// Packets of comfort noise.
    pub noise_packets: u64,
    /// Packets for which the far side has no payload type, or which were not agreed on.
    pub dropped: u64,
    /// Packets that could not be decoded.
    pub undecodable: u64,
    /// Tapped audio that nobody took in time, ns.
    pub tap_dropped_ns: u64,
}

/// What is done with audio of one payload type.
#[derive(Debug)]
enum Route {
    /// The far side has nothing for it.
    Nowhere,
    /// Packet by packet, the bytes as they are or by a table.
    Pass {
        to: Payload,
        table: Option<&'static [u8; 256]>,
    },
    /// Byte by byte into packets of another length.
    Repack {
        to: Payload,
        table: Option<&'static [u8; 256]>,
        /// Bytes of a packet, and of a unit of the timestamps.
        whole: usize,
        unit_bytes: usize,
    },
    /// Decoded and made anew.
    Anew(Box<Anew>),
}

#[derive(Debug)]
struct Anew {
    decoder: Decoder,
    converter: Converter,
    /// The next packet's timestamp, if it follows on.
    next: Option<RtpTime>,
}

#[derive(Debug)]
struct Playing {
    clip: Clip,
    converter: Converter,
    /// Of the next sample to play.
    at: usize,
    next_ns: u64,
    /// 0: it does not end by itself.
    times_left: u32,
    has_begun: bool,
}

#[derive(Debug)]
struct Tap {
    decoder: Option<Decoder>,
    pcm: Vec<f32>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Direction {
    config: DirectionConfig,
    mode: Mode,
    /// The payload type that `route` is for.
    routed: Option<PayloadType>,
    route: Route,
    map: TimeMap,
    /// The next packet begins a talkspurt.
    is_after_pause: bool,
    /// Not sent yet, of a route that repacks.
    bytes: Vec<u8>,
    bytes_time: RtpTime,
    bytes_play_ns: u64,
    /// Of the audio in the last packet.
    packet_ns: u64,
    voice: Option<Box<Voice>>,
    /// What may be made up, ns: as much as has come, and a tail.
    budget_ns: u64,
    key: Option<Key>,
    key_events: VecDeque<KeyEvent>,
    playing: Option<Box<Playing>>,
    has_play_ended: bool,
    tap: Option<Box<Tap>>,
    filter: Option<Box<dyn Filter>>,
    stats: DirectionStats,
}

impl Direction {
    /// To a side with these payload types.
    pub(super) fn new(config: DirectionConfig, to: &PayloadMap) -> Result<Direction, CallError> {
        if config.packet_ns > 0
            && let Carries::Audio(format) = to.audio().carries
        {
            let frames = format.frames_per_packet((config.packet_ns / 1000) as u32)?;
            let most = format.max_frames_for(PAYLOAD_BYTES_MAX);
            if let Some(most) = most.filter(|most| frames > *most) {
                return Err(CallError::TooLong {
                    format,
                    packet_us: config.packet_ns / 1000,
                    us_max: ns_of_frames(most, format) / 1000,
                });
            }
        }
        Ok(Direction {
            mode: config.mode,
            routed: None,
            route: Route::Nowhere,
            map: TimeMap::new(config.first_time),
            is_after_pause: true,
            bytes: Vec::new(),
            bytes_time: RtpTime(0),
            bytes_play_ns: 0,
            packet_ns: PACKET_NS_DEFAULT,
            voice: None,
            budget_ns: TAIL_NS_MAX,
            key: None,
            key_events: VecDeque::new(),
            playing: None,
            has_play_ended: false,
            tap: None,
            filter: None,
            stats: DirectionStats::default(),
            config,
        })
    }

    /// Takes the next of what the party sent.
    #[inline]
    pub(super) fn handle(
        &mut self,
        media: Media<'_>,
        decoded: &mut Vec<f32>,
        converted: &mut Vec<f32>,
        out: &mut Out<'_>,
    ) {
        match media {
            Media::Packet(packet) => match packet.payload {
                Some(payload) => match payload.carries {
                    Carries::Audio(_) | Carries::Opaque(_) => {
                        self.handle_audio(payload, &packet, decoded, converted, out);
                    }
                    Carries::TelephoneEvent => self.handle_key(payload, &packet, converted, out),
                    Carries::ComfortNoise => self.handle_noise(payload, &packet, out),
                },
                None => self.stats.dropped += 1,
            },
            Media::Lost {
                packets,
                time,
                duration_ns,
                next,
                ..
            } => self.handle_loss(packets, time, duration_ns, next, decoded, converted, out),
            Media::Restart => self.restart(out),
        }
    }

    #[inline]
    fn handle_audio(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        decoded: &mut Vec<f32>,
        converted: &mut Vec<f32>,
        out: &mut Out<'_>,
    ) {
        self.stats.packets += 1;
        if self.routed != Some(payload.payload_type) {
            self.choose(payload, out);
        }
        self.earn(payload, packet.bytes);
        if self.tap.is_some() {
            self.note_tapped(payload, packet.bytes);
        }
        if self.playing.is_some() || self.mode == Mode::Hold {
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
                let bytes = out.begin();
                write_codes(packet.bytes, table, self.mode, &to, bytes);
                out.send(&to, time, std::mem::take(&mut self.is_after_pause), 0);
                self.map.note_sent(time, units, packet.play_ns);
            }
            Route::Repack { .. } => self.repack(payload, packet, out),
            Route::Anew(_) => self.make_anew(payload, packet, decoded, converted, out),
            Route::Nowhere => self.stats.dropped += 1,
        }
    }

    /// What is done with this payload type from now on.
    #[cold]
    fn choose(&mut self, payload: &Payload, out: &mut Out<'_>) {
        self.flush(out);
        self.routed = Some(payload.payload_type);
        let payloads = out.leg.takes().clone();
        self.route = self
            .find_route(payload, &payloads)
            .unwrap_or(Route::Nowhere);
        let rate_hz = match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => to.clock_rate_hz,
            Route::Anew(_) => self
                .voice
                .as_ref()
                .map_or(8000, |voice| voice.payload.clock_rate_hz),
            Route::Nowhere => return,
        };
        out.leg.set_sent_clock_rate(rate_hz);
    }

    /// As it is, if the far side has the same; by table, if both are G.711; or anew.
    fn find_route(&mut self, payload: &Payload, payloads: &PayloadMap) -> Option<Route> {
        let same = payloads.iter().find(|other| {
            other.carries == payload.carries && other.clock_rate_hz == payload.clock_rate_hz
        });
        let Carries::Audio(from) = payload.carries else {
            let to = *same?;
            return (self.mode != Mode::Mute).then_some(Route::Pass { to, table: None });
        };
        let is_made_anew =
            self.filter.is_some() || self.mode == Mode::Mute && silence_of(from.encoding).is_none();
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
        self.set_voice(to, format)?;
        Some(Route::Anew(Box::new(Anew {
            decoder: Decoder::new(from).ok()?,
            converter: converter(from, format)?,
            next: None,
        })))
    }

    fn by_codes(&self, to: Payload, format: Format, table: Option<&'static [u8; 256]>) -> Route {
        let us = (self.config.packet_ns / 1000) as u32;
        let whole = match us {
            0 => None,
            us => format.frames_per_packet(us).ok().and_then(|frames| {
                Some((
                    format.payload_bytes(frames)?,
                    format.clock_units(frames as u32),
                ))
            }),
        };
        match whole {
            Some((whole, units)) if units > 0 => Route::Repack {
                to,
                table,
                whole,
                unit_bytes: whole / units as usize,
            },
            _ => Route::Pass { to, table },
        }
    }

    /// The encoder for the far side, as it is or a new one.
    fn set_voice(&mut self, to: Payload, format: Format) -> Option<()> {
        if self.voice.as_ref().is_none_or(|voice| voice.payload != to) {
            let packet_ns = match self.config.packet_ns {
                0 => self.packet_ns,
                packet_ns => packet_ns,
            };
            let voice = Voice::new(to, format, &self.config.encoder, packet_ns).ok()?;
            self.voice = Some(Box::new(voice));
        }
        Some(())
    }

    /// Into packets of another length.
    fn repack(&mut self, payload: &Payload, packet: &MediaPacket<'_>, out: &mut Out<'_>) {
        let Route::Repack {
            to,
            table,
            whole,
            unit_bytes,
        } = self.route
        else {
            return;
        };
        let rate_hz = payload.clock_rate_hz;
        let time = self
            .map
            .map(packet.time, packet.play_ns, rate_hz, to.clock_rate_hz);
        let gathered = (self.bytes.len() / unit_bytes.max(1)) as u32;
        if !self.bytes.is_empty() && self.bytes_time.plus(gathered) != time {
            self.flush(out);
        }
        if self.bytes.is_empty() {
            (self.bytes_time, self.bytes_play_ns) = (time, packet.play_ns);
        }
        write_codes(packet.bytes, table, self.mode, &to, &mut self.bytes);
        let mut sent = 0;
        while self.bytes.len() - sent >= whole {
            self.send_bytes(sent..sent + whole, &to, unit_bytes, out);
            sent += whole;
        }
        self.bytes.drain(..sent);
    }

    fn send_bytes(
        &mut self,
        range: std::ops::Range<usize>,
        to: &Payload,
        unit_bytes: usize,
        out: &mut Out<'_>,
    ) {
        let units = (range.len() / unit_bytes.max(1)) as u32;
        out.begin().extend_from_slice(&self.bytes[range]);
        let time = self.bytes_time;
        out.send(to, time, std::mem::take(&mut self.is_after_pause), 0);
        self.map.note_sent(time, units, self.bytes_play_ns);
        self.bytes_time = time.plus(units);
        self.bytes_play_ns += u64::from(units) * NS_PER_S / u64::from(to.clock_rate_hz);
    }

    /// Sends what is gathered: a pause, another route or the end follows.
    fn flush(&mut self, out: &mut Out<'_>) {
        if let Route::Repack { to, unit_bytes, .. } = self.route
            && !self.bytes.is_empty()
        {
            self.send_bytes(0..self.bytes.len(), &to, unit_bytes, out);
            self.bytes.clear();
        }
        if let Some(voice) = &mut self.voice {
            voice.flush(&mut self.map, out);
        }
    }

    fn make_anew(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        decoded: &mut Vec<f32>,
        converted: &mut Vec<f32>,
        out: &mut Out<'_>,
    ) {
        let (Route::Anew(anew), Some(voice)) = (&mut self.route, &mut self.voice) else {
            return;
        };
        decoded.clear();
        converted.clear();
        let Ok(frames) = anew.decoder.decode(packet.bytes, decoded) else {
            self.stats.undecodable += 1;
            return;
        };
        let format = anew.decoder.format();
        let rates = (payload.clock_rate_hz, voice.payload.clock_rate_hz);
        let follows = anew.next.is_some_and(|next| {
            packet.time.distance_from(next).unsigned_abs() * NS_PER_S
                < SLACK_NS * u64::from(rates.0)
        });
        if !follows {
            if anew.next.is_some() {
                voice.flush(&mut self.map, out);
                anew.converter.reset();
            }
            let time = self.map.map(packet.time, packet.play_ns, rates.0, rates.1);
            voice.begin(time, packet.play_ns);
        }
        self.is_after_pause = false;
        let begin = anew.next.filter(|_| follows).unwrap_or(packet.time);
        anew.next = Some(begin.plus(format.clock_units(frames as u32)));
        if self.config.packet_ns == 0 {
            voice.prefer_packet_ns(ns_of_frames(frames, format));
        }
        if self.mode == Mode::Mute {
            decoded.fill(0.0);
        }
        if let Some(filter) = &mut self.filter {
            filter.process(format, decoded);
        }
        anew.converter.process(decoded, converted);
        voice.push(converted, &mut self.map, out);
    }

    #[cold]
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one loss, and the memory to work in"
    )]
    fn handle_loss(
        &mut self,
        packets: u32,
        time: RtpTime,
        duration_ns: u64,
        next: &[u8],
        decoded: &mut Vec<f32>,
        converted: &mut Vec<f32>,
        out: &mut Out<'_>,
    ) {
        self.stats.lost += u64::from(packets);
        let made_ns = duration_ns.min(TAIL_NS_MAX).min(self.budget_ns);
        self.conceal_tapped(made_ns);
        if self.playing.is_some() || self.mode == Mode::Hold {
            return;
        }
        match &mut self.route {
            Route::Nowhere => {}
            // The far side sees the gap, and conceals it.
            Route::Pass { .. } => out.leg.skip(packets),
            Route::Repack {
                to,
                whole,
                unit_bytes,
                ..
            } => {
                let packet_units = (*whole / (*unit_bytes).max(1)) as u64;
                let packet_ns = packet_units * NS_PER_S / u64::from(to.clock_rate_hz);
                self.flush(out);
                out.leg.skip((duration_ns / packet_ns.max(1)).max(1) as u32);
            }
            Route::Anew(anew) => {
                let Some(voice) = &mut self.voice else { return };
                let format = anew.decoder.format();
                let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
                let is_next = anew.next.is_some_and(|expected| {
                    time.distance_from(expected).unsigned_abs() * NS_PER_S
                        < SLACK_NS * u64::from(format.clock_rate_hz)
                });
                if frames == 0 || !is_next {
                    return; // After a pause, the next packet begins anew.
                }
                decoded.clear();
                converted.clear();
                if packets > 1 || !anew.decoder.recover(next, frames, decoded) {
                    anew.decoder.conceal(frames, decoded);
                }
                anew.next = anew
                    .next
                    .map(|next| next.plus(format.clock_units(frames as u32)));
                self.budget_ns -= made_ns;
                self.stats.concealed_ns += made_ns;
                if self.mode == Mode::Mute {
                    decoded.fill(0.0);
                }
                if let Some(filter) = &mut self.filter {
                    filter.process(format, decoded);
                }
                anew.converter.process(decoded, converted);
                voice.push(converted, &mut self.map, out);
            }
        }
    }

    /// The party's numbers and timestamps begin anew.
    #[cold]
    fn restart(&mut self, out: &mut Out<'_>) {
        self.flush(out);
        self.map.restart();
        self.is_after_pause = true;
        self.key = None;
        if let Route::Anew(anew) = &mut self.route {
            anew.next = None;
            anew.converter.reset();
        }
    }

    /// A packet may make up for as much as it carries.
    #[inline]
    fn earn(&mut self, payload: &Payload, bytes: &[u8]) {
        let units = u64::from(units_of(payload, bytes));
        let ns = units * NS_PER_S / u64::from(payload.clock_rate_hz);
        if ns > 0 {
            self.packet_ns = ns;
        }
        self.budget_ns = self.budget_ns.saturating_add(ns).min(BUDGET_NS_MAX);
    }

    fn handle_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        converted: &mut Vec<f32>,
        out: &mut Out<'_>,
    ) {
        self.stats.key_packets += 1;
        let Some(told) = KeyPayload::parse(packet.bytes) else {
            self.stats.undecodable += 1;
            return;
        };
        let is_new = self.key.is_none_or(|key| key.own_time != packet.own_time);
        self.note_key(payload, packet, told, is_new);
        if self.playing.is_some() || self.mode != Mode::Pass {
            return;
        }
        self.flush(out);
        let audio = *out.leg.takes().audio();
        let Some(to) = out
            .leg
            .takes()
            .telephone_event(audio.clock_rate_hz)
            .copied()
        else {
            return self.sound_key(payload, packet, told, is_new, converted, out);
        };
        let audio_hz = self.routed_rate(out).unwrap_or(payload.clock_rate_hz);
        let from_hz = self.incoming_rate(out).unwrap_or(payload.clock_rate_hz);
        let time = match self.key.as_ref().filter(|_| !is_new) {
            Some(key) => key.time,
            None => self.map.map(packet.time, packet.play_ns, from_hz, audio_hz),
        };
        if let Some(key) = &mut self.key {
            key.time = time;
        }
        let told = told.at_rate(payload.clock_rate_hz, to.clock_rate_hz);
        told.write(out.begin());
        let elapsed = u32::from(told.duration);
        out.send(&to, time, is_new, elapsed);
        self.is_after_pause = true;
    }

    /// Tells the owner, once for each press and release.
    fn note_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        is_new: bool,
    ) {
        if is_new {
            self.key = Some(Key {
                own_time: packet.own_time,
                time: RtpTime(0),
                event: told.event,
                is_ended: false,
                toned_ns: 0,
            });
            self.tell_key(told.event, KeyPhase::Pressed);
        }
        if let Some(key) = &mut self.key
            && told.is_end
            && !std::mem::replace(&mut key.is_ended, true)
        {
            let event = key.event;
            let duration_ms =
                u64::from(told.duration) * 1000 / u64::from(payload.clock_rate_hz.max(1));
            let duration_ms = duration_ms as u32;
            self.tell_key(event, KeyPhase::Released { duration_ms });
        }
    }

    fn tell_key(&mut self, event: u8, phase: KeyPhase) {
        if self.key_events.len() < KEY_EVENTS_MAX {
            self.key_events.push_back(KeyEvent { event, phase });
        }
    }

    /// A side without telephone events hears the key's tone.
    fn sound_key(
        &mut self,
        _payload: &Payload,
        _packet: &MediaPacket<'_>,
        _told: KeyPayload,
        _is_new: bool,
        _converted: &mut Vec<f32>,
        _out: &mut Out<'_>,
    ) {
        self.stats.dropped += 1;
    }

    /// Passed on to a side that has comfort noise; others fill a pause themselves.
    fn handle_noise(&mut self, payload: &Payload, packet: &MediaPacket<'_>, out: &mut Out<'_>) {
        self.stats.noise_packets += 1;
        if self.playing.is_some() || self.mode != Mode::Pass {
            return;
        }
        self.flush(out);
        self.is_after_pause = true;
        let to_hz = self.routed_rate(out).unwrap_or(payload.clock_rate_hz);
        let from_hz = self.incoming_rate(out).unwrap_or(payload.clock_rate_hz);
        let Some(to) = out.leg.takes().comfort_noise(to_hz).copied() else {
            self.stats.dropped += 1;
            return;
        };
        let time = self.map.map(packet.time, packet.play_ns, from_hz, to_hz);
        let bytes = packet.bytes;
        out.begin().extend_from_slice(bytes);
        out.send(&to, time, false, 0);
    }

    /// Units per second of the audio that goes out.
    fn routed_rate(&self, out: &Out<'_>) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Anew(_) => self.voice.as_ref().map(|voice| voice.payload.clock_rate_hz),
            Route::Nowhere => Some(out.leg.takes().audio().clock_rate_hz),
        }
    }

    /// Units per second of the audio that comes in, on whose time line everything is.
    fn incoming_rate(&self, _out: &Out<'_>) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Anew(anew) => Some(anew.decoder.format().clock_rate_hz),
            Route::Nowhere => None,
        }
    }

    pub(super) fn set_filter(&mut self, filter: Box<dyn Filter>) {
        self.filter = Some(filter);
        self.reroute();
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            self.mode = mode;
            self.reroute();
        }
    }

    /// The route is chosen again with the next packet.
    pub(super) fn reroute(&mut self) {
        self.routed = None;
        self.is_after_pause = true;
    }

    pub(super) fn begin_play(
        &mut self,
        now_ns: u64,
        clip: Clip,
        payloads: &Arc<PayloadMap>,
    ) -> Result<(), PlayError> {
        let channels = usize::from(clip.channels.max(1));
        if clip.pcm.is_empty() || !clip.pcm.len().is_multiple_of(channels) {
            return Err(PlayError::Length(clip.pcm.len()));
        }
        let to = *payloads.audio();
        let Carries::Audio(format) = to.carries else {
            return Err(PlayError::NoFormat);
        };
        let refused = || PlayError::Format {
            rate_hz: clip.rate_hz,
            channels: clip.channels,
        };
        let converter = Converter::new(
            clip.rate_hz,
            clip.channels,
            format.sample_rate_hz,
            format.channels,
        )
        .map_err(|_| refused())?;
        self.set_voice(to, format).ok_or(PlayError::NoFormat)?;
        self.map.restart();
        self.playing = Some(Box::new(Playing {
            times_left: clip.times,
            converter,
            at: 0,
            next_ns: now_ns,
            has_begun: false,
            clip,
        }));
        Ok(())
    }

    pub(super) fn end_play(&mut self) {
        if self.playing.take().is_some() {
            self.has_play_ended = true;
            self.map.restart();
            self.reroute();
        }
    }

    pub(super) fn take_play_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_play_ended)
    }

    pub(super) fn next_play(&self) -> Option<u64> {
        self.playing.as_ref().map(|playing| playing.next_ns)
    }

    /// Sends what of the clip is due.
    #[inline]
    pub(super) fn play(&mut self, now_ns: u64, converted: &mut Vec<f32>, out: &mut Out<'_>) {
        if self.next_play().is_none_or(|next_ns| next_ns > now_ns) {
            return;
        }
        self.play_on(now_ns, converted, out);
    }

    #[cold]
    fn play_on(&mut self, now_ns: u64, converted: &mut Vec<f32>, out: &mut Out<'_>) {
        let (Some(playing), Some(voice)) = (&mut self.playing, &mut self.voice) else {
            return;
        };
        let rate_hz = voice.payload.clock_rate_hz;
        out.leg.set_sent_clock_rate(rate_hz);
        if now_ns.saturating_sub(playing.next_ns) > BUDGET_NS_MAX {
            playing.next_ns = now_ns; // What nobody could hear in time is left out.
        }
        if !std::mem::replace(&mut playing.has_begun, true) {
            voice.flush(&mut self.map, out);
            let time = self.map.map(RtpTime(0), playing.next_ns, rate_hz, rate_hz);
            voice.begin(time, playing.next_ns);
        }
        let samples = usize::from(playing.clip.channels)
            * (PACKET_NS_DEFAULT * u64::from(playing.clip.rate_hz) / NS_PER_S).max(1) as usize;
        let mut is_over = false;
        while playing.next_ns <= now_ns && !is_over {
            let end = (playing.at + samples).min(playing.clip.pcm.len());
            let part = &playing.clip.pcm[playing.at..end];
            let frames = part.len() / usize::from(playing.clip.channels.max(1));
            playing.next_ns += frames as u64 * NS_PER_S / u64::from(playing.clip.rate_hz);
            converted.clear();
            playing.converter.process(part, converted);
            voice.push(converted, &mut self.map, out);
            playing.at = end;
            if end == playing.clip.pcm.len() {
                playing.at = 0;
                is_over = playing.times_left == 1;
                playing.times_left = playing.times_left.saturating_sub(1);
            }
        }
        if is_over {
            voice.flush(&mut self.map, out);
            self.end_play();
        }
    }

    pub(super) fn tap(&mut self, is_on: bool) {
        self.tap = is_on.then(|| {
            Box::new(Tap {
                decoder: None,
                pcm: Vec::new(),
            })
        });
    }

    fn note_tapped(&mut self, payload: &Payload, bytes: &[u8]) {
        let (Some(tap), Carries::Audio(format)) = (&mut self.tap, payload.carries) else {
            return;
        };
        if tap.decoder.as_ref().map(Decoder::format) != Some(format) {
            tap.decoder = Decoder::new(format).ok();
            tap.pcm.clear();
        }
        let Some(decoder) = &mut tap.decoder else {
            return;
        };
        // Counted where it is decoded for the far side; here it is a hole.
        let _ = decoder.decode(bytes, &mut tap.pcm);
        self.bound_tap();
    }

    fn conceal_tapped(&mut self, ns: u64) {
        let Some(tap) = &mut self.tap else { return };
        let Some(decoder) = &mut tap.decoder else {
            return;
        };
        let frames = ns * u64::from(decoder.format().sample_rate_hz) / NS_PER_S;
        decoder.conceal(frames as usize, &mut tap.pcm);
        self.bound_tap();
    }

    /// The oldest goes when nobody takes it.
    fn bound_tap(&mut self) {
        let Some(tap) = &mut self.tap else { return };
        let Some(format) = tap.decoder.as_ref().map(Decoder::format) else {
            return;
        };
        let per_s = u64::from(format.sample_rate_hz) * u64::from(format.channels);
        let most = (per_s * TAP_NS_MAX / NS_PER_S) as usize;
        let excess = tap.pcm.len().saturating_sub(most);
        if excess > 0 {
            tap.pcm.drain(..excess);
            self.stats.tap_dropped_ns += excess as u64 * NS_PER_S / per_s;
        }
    }

    pub(super) fn take_tapped(&mut self, samples: &mut Vec<f32>) -> Option<Format> {
        let tap = self.tap.as_mut()?;
        let format = tap.decoder.as_ref()?.format();
        samples.append(&mut tap.pcm);
        Some(format)
    }

    pub(super) fn tapped(&self) -> usize {
        self.tap.as_ref().map_or(0, |tap| tap.pcm.len())
    }

    pub(super) fn poll_key(&mut self) -> Option<KeyEvent> {
        self.key_events.pop_front()
    }

    pub(super) fn stats(&self) -> DirectionStats {
        self.stats
    }
}

/// The timestamp units that a packet of audio covers; 0 if its codec is unknown.
#[inline]
fn units_of(payload: &Payload, bytes: &[u8]) -> u32 {
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

fn ns_of_frames(frames: usize, format: Format) -> u64 {
    frames as u64 * NS_PER_S / u64::from(format.sample_rate_hz)
}

/// Codes as they are, by table, or silence of the same length.
#[inline]
fn write_codes(
    codes: &[u8],
    table: Option<&'static [u8; 256]>,
    mode: Mode,
    to: &Payload,
    out: &mut Vec<u8>,
) {
    if mode == Mode::Mute
        && let Carries::Audio(format) = to.carries
        && let Some(silence) = silence_of(format.encoding)
    {
        return out.resize(out.len() + codes.len(), silence);
    }
    match table {
        Some(table) => out.extend(codes.iter().map(|code| table[usize::from(*code)])),
        None => out.extend_from_slice(codes),
    }
}

/// The byte of silence.
fn silence_of(encoding: Encoding) -> Option<u8> {
    match encoding {
        Encoding::Pcmu => Some(g711::linear_to_ulaw(0)),
        Encoding::Pcma => Some(g711::linear_to_alaw(0)),
        Encoding::L16 | Encoding::L24 => Some(0),
        Encoding::G722 | Encoding::Opus => None,
    }
}

fn table_of(from: Format, to: Format) -> Option<&'static [u8; 256]> {
    let is_alike = from.sample_rate_hz == to.sample_rate_hz && from.channels == to.channels;
    match (from.encoding, to.encoding) {
        (Encoding::Pcmu, Encoding::Pcma) if is_alike => Some(&g711::ULAW_TO_ALAW),
        (Encoding::Pcma, Encoding::Pcmu) if is_alike => Some(&g711::ALAW_TO_ULAW),
        _ => None,
    }
}

fn converter(from: Format, to: Format) -> Option<Converter> {
    Converter::new(
        from.sample_rate_hz,
        from.channels,
        to.sample_rate_hz,
        to.channels,
    )
    .ok()
}

/// Timestamps that differ by less follow on: some senders round.
const SLACK_NS: u64 = 2_000_000;
/// Largest budget that a stream without losses may save.
const BUDGET_NS_MAX: u64 = NS_PER_S;
/// Presses and releases that wait for the owner.
const KEY_EVENTS_MAX: usize = 32;
