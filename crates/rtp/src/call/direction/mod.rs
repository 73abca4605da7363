//! From what one party sends to what the other one hears.
//!
//! Audio of each payload type has a [`Route`]. Codes that both sides have, or have a table for, go on in [`codes`]; other audio is
//! made [`anew`]. [`keys`], [`play`] and [`tap`] come beside it.

mod anew;
mod codes;
mod direct;
mod ear;
mod held;
mod hush;
mod keys;
mod lap;
mod mend;
mod play;
mod press;
mod receiver;
mod tap;
mod tone;

use std::collections::VecDeque;

use super::keys::{Key, KeyEvent};
use super::menders::History;
use super::out::{Out, Work};
use super::time_map::{Anchor, TimeMap, TimeState};
use super::voice::{PACKET_NS_DEFAULT, Voice};
use super::{CallError, DirectionConfig, Filter, Mode, TAIL_NS_MAX};
use crate::codec::{Decoder, Encoding, Format, Gaps};
use crate::id::{NS_PER_S, PayloadType, RtpTime};
use crate::leg::{Carries, Delivery, Media, MediaPacket, Payload, PayloadMap};
use crate::opus;

use anew::{Anew, converter};
use codes::{silence_of, table_of, write_codes};
use direct::Numbering;
use ear::{Ear, Stretch};
use held::Held;
use hush::Hush;
use play::Playing;
use press::Pressing;
use receiver::check_packet_ns;
use tap::Tap;
pub use tap::{Tapped, TappedAudio};
use tone::Sounding;

/// Counters of what one party sends to the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Packets of audio that came in order.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Audio made up for losses, ns.
    pub concealed_ns: u64,
    /// Packets lost that were left to the far side to conceal: there was no time ([`Scratch::set_spare`](super::Scratch::set_spare)).
    pub left_to_conceal: u64,
    /// Packets of keys.
    pub key_packets: u64,
    /// Packets of comfort noise.
    pub noise_packets: u64,
    /// Descriptions of comfort noise made for a party that paused by its codec's own means.
    pub noise_made: u64,
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

/// Packets of a party that are missing.
struct Loss<'a> {
    packets: u32,
    /// The first one's timestamp.
    time: RtpTime,
    play_ns: u64,
    duration_ns: u64,
    /// The far side has seen the gap already.
    is_sent: bool,
    /// The payload of the packet behind them, or nothing.
    next: &'a [u8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Direction {
    config: DirectionConfig,
    mode: Mode,
    /// The payload type that `route` is for.
    routed: Option<PayloadType>,
    /// Its format, if it can be decoded.
    from: Option<Format>,
    route: Route,
    map: TimeMap,
    /// The next packet begins a talkspurt.
    is_after_pause: bool,
    /// Not sent yet, of a route that repacks.
    bytes: Vec<u8>,
    /// Codes that were passed on, for what stands in for a loss.
    history: History,
    /// Also losses of codes that are passed on as they are.
    mends_all: bool,
    /// From a loss to the packet behind it.
    gaps: Option<Gaps>,
    bytes_time: RtpTime,
    bytes_play_ns: u64,
    /// Of the audio in the last packet.
    packet_ns: u64,
    voice: Option<Box<Voice>>,
    /// What may be made up, ns: as much as has come, and a tail.
    budget_ns: u64,
    key: Option<Key>,
    key_events: VecDeque<KeyEvent>,
    /// A key is pressed, as far as is known.
    is_pressed: bool,
    /// Its tone is heard in place of the audio.
    is_sounding: bool,
    sounding: Option<Box<Sounding>>,
    /// When the key that is pressed is over, if nothing more is heard of it.
    key_over_ns: u64,
    /// When a key's packet has last paid for its tone.
    key_paid_ns: u64,
    playing: Option<Box<Playing>>,
    pressing: Option<Box<Pressing>>,
    /// How long before its play time the last packet came out of the jitter buffer.
    lead_ns: u64,
    /// Of the jitter buffer.
    latency_ns: u64,
    /// See [`Direction::direct_types`]; `None`: to be found.
    direct_types: Option<u128>,
    /// Of packets that are passed on as they come.
    numbering: Option<Numbering>,
    /// The party's keys are not passed on.
    blocks_keys: bool,
    /// Whatever the mode is.
    passes_keys: bool,
    /// The far side is sent nothing.
    is_held: bool,
    has_play_ended: bool,
    tap: Option<Box<Tap>>,
    /// Listens for keys in the audio.
    ear: Option<Box<Ear>>,
    filter: Option<Box<dyn Filter>>,
    held: Held,
    /// Filter and tap have what leaves, in the far side's format, whichever input it is of.
    is_heard_at_output: bool,
    stats: DirectionStats,
}

impl Direction {
    /// To a side with these payload types.
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
            pressing: None,
            lead_ns: 0,
            latency_ns: 0,
            direct_types: None,
            numbering: None,
            blocks_keys: false,
            passes_keys: false,
            is_held: false,
            has_play_ended: false,
            tap: None,
            ear: config.detect_keys.then(|| Box::new(Ear::new())),
            filter: None,
            held: Held::default(),
            is_heard_at_output: false,
            stats: DirectionStats::default(),
            config,
        })
    }

    /// Takes the next of what the party sent.
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

    /// The far side has this packet already; listeners hear it in order.
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
        if self.routed != Some(payload.payload_type) && !self.has_pressed() {
            self.choose(payload, out);
        }
        self.earn(payload, packet.bytes);
        self.lead_ns = packet.play_ns.saturating_sub(out.now_ns);
        let is_pressing = self.pressing.is_some() && self.is_pressing(packet.play_ns, out.now_ns);
        let is_quiet = self.playing.is_some() || self.mode() == Mode::Hold || is_pressing;
        let is_heard_later = matches!(packet.delivery, Delivery::Direct(_));
        if self.tap.is_some()
            && !is_heard_later
            && (is_quiet || !matches!(self.route, Route::Anew(_)))
        {
            self.note_tapped(payload, packet.bytes);
        }
        if self.is_pressed && self.is_sounded_over(payload, packet, work, out) {
            return;
        }
        if is_pressing {
            return self.cut();
        }
        if self.ear.is_some() && self.is_heard_as_key(payload, packet, work, out) {
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
            Route::Anew(_) => self.make_anew(payload, packet, work, out),
            Route::Nowhere => self.stats.dropped += 1,
        }
    }

    /// Whether the far side has an event in place of this packet. Where it is decoded anyway, that is seen there.
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

    /// The party's payload types. Keys are told in one way: who has events for them is not listened to.
    pub(super) fn set_sender(&mut self, payloads: &PayloadMap) {
        let has_events = payloads
            .iter()
            .any(|payload| payload.carries == Carries::TelephoneEvent);
        match (has_events, &self.ear) {
            (true, _) => self.ear = None,
            (false, None) if self.config.detect_keys => self.ear = Some(Box::new(Ear::new())),
            (false, _) => {}
        }
    }

    /// What is done with this payload type from now on.
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
            // What is played has the encoder.
            Some(_) => (from, format),
            None => (narrowed(from, format), narrowed(format, from)),
        };
        self.set_voice(to, format)?;
        Some(Route::Anew(Box::new(Anew {
            decoder: Decoder::new(from).ok()?,
            converter: converter(from, format)?,
            next: None,
            // A filter may hold audio back: then a pause is made anew, too.
            hush: Hush::between(from, format, payloads).filter(|_| self.filter.is_none()),
        })))
    }

    /// Sends what is gathered: a pause, another route or the end follows.
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

    /// The same of what is encoded, unless a filter holds what goes on from there.
    fn flush_voice(&mut self, out: &mut Out<'_>) {
        if let Some(voice) = self.voice.as_mut().filter(|_| !self.held.has_audio()) {
            voice.flush(&mut self.map, out);
        }
    }

    #[cold]
    fn handle_loss(&mut self, loss: &Loss<'_>, work: &mut Work, out: &mut Out<'_>) {
        self.stats.lost += u64::from(loss.packets);
        let made_ns = loss.duration_ns.min(TAIL_NS_MAX).min(self.budget_ns);
        if loss.is_sent {
            return self.hear_sent_loss(made_ns, work);
        }
        let is_pressing = self.is_pressing(loss.play_ns, out.now_ns);
        let is_quiet = self.playing.is_some() || self.mode() == Mode::Hold || is_pressing;
        let units = self.loss_units(is_quiet);
        if units > 0 && !work.spend(units) {
            return self.leave_to_far_side(loss, made_ns, is_quiet, work, out);
        }
        if is_quiet || !matches!(self.route, Route::Anew(_)) {
            self.conceal_tapped(made_ns);
        }
        if self.ear.is_some()
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
            // The far side sees the gap, and conceals it.
            Route::Pass { table: None, .. } if !self.mends_all => out.leg.skip(loss.packets),
            Route::Pass { .. } | Route::Repack { .. } => {
                // Of a key, or of what was played: it comes first.
                self.flush_voice(out);
                self.mend(loss, made_ns, work, out);
            }
            Route::Anew(_) => self.fill_in(loss, made_ns, work, out),
        }
    }

    /// The stream ends: what a filter or a packet still holds goes out.
    #[cold]
    pub(super) fn finish(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.drain_filter(work, out);
        self.flush(out);
    }

    /// The party's numbers and timestamps begin anew.
    #[cold]
    fn restart(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.end_tone(work, out);
        self.release_key();
        self.release_heard(out);
        if !self.has_pressed() {
            self.flush(out);
        }
        self.map.restart();
        self.numbering = None;
        self.history.clear();
        self.gaps = None;
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
        // A shorter one is a remainder, or made to cause many packets.
        if ns >= PACKET_NS_MIN {
            self.packet_ns = ns;
        }
        self.budget_ns = self.budget_ns.saturating_add(ns).min(BUDGET_NS_MAX);
    }

    /// Passed on to a side that has comfort noise; others fill a pause themselves.
    fn handle_noise(&mut self, payload: &Payload, packet: &MediaPacket<'_>, out: &mut Out<'_>) {
        self.stats.noise_packets += 1;
        let is_pressing = self.is_pressing(packet.play_ns, out.now_ns);
        if self.playing.is_some() || self.mode() != Mode::Pass || is_pressing {
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

    /// Units per second of the audio that goes out.
    fn routed_rate(&self, out: &Out<'_>) -> Option<u32> {
        match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => Some(to.clock_rate_hz),
            Route::Anew(_) => self.voice.as_ref().map(|voice| voice.payload.clock_rate_hz),
            Route::Nowhere => Some(out.leg.takes().audio().clock_rate_hz),
        }
    }

    /// Units per second of the audio that comes in, on whose time line everything is.
    fn incoming_rate(&self) -> Option<u32> {
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

    /// There is more than one input: filter and tap have what leaves.
    pub(super) fn hear_at_output(&mut self) {
        self.is_heard_at_output = true;
    }

    /// What follows comes from another input.
    #[cold]
    pub(super) fn change_input(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.end_play();
        self.restart(work, out);
        self.map.restart_at(out.now_ns);
        self.reroute();
    }

    /// The jitter buffer delays the party's packets by this much.
    pub(super) fn note_latency(&mut self, latency_ns: u64) {
        self.latency_ns = latency_ns;
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            self.mode = mode;
            self.reroute();
        }
    }

    /// What is done with what comes, as things are.
    #[inline]
    pub(super) fn mode(&self) -> Mode {
        if self.is_held { Mode::Hold } else { self.mode }
    }

    /// The route is chosen again with the next packet.
    pub(super) fn reroute(&mut self) {
        self.routed = None;
        self.direct_types = None;
        self.is_after_pause = true;
    }

    /// Memory that the next packet touches, for prefetching.
    pub(super) fn next_address(&self) -> usize {
        match &self.tap {
            Some(tap) if self.history.is_empty() => std::ptr::from_ref::<Tap>(tap) as usize,
            _ => self.history.next_address(),
        }
    }

    pub(super) fn stats(&self) -> DirectionStats {
        self.stats
    }

    /// Leaves no loss to the far side.
    pub(super) fn mend_all(&mut self) {
        self.mends_all = true;
    }

    /// Goes on where another direction ended: with its timestamps, its counts and its budget.
    pub(super) fn succeed(&mut self, old: Direction) {
        self.map = old.map;
        self.map.restart();
        self.stats = old.stats;
        self.budget_ns = old.budget_ns;
    }

    /// Where the outgoing timestamps are.
    pub(super) fn time_state(&self, now_ns: u64) -> Option<TimeState> {
        self.map.snapshot(now_ns)
    }

    /// What has come so far is of no interest any more.
    pub(super) fn begin_anew(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.restart(work, out);
    }

    /// Which of its timestamps are which of the party's.
    pub(super) fn anchor(&self) -> Option<Anchor> {
        self.map.take_anchor()
    }

    /// Goes on where another process has stopped now.
    pub(super) fn go_on(&mut self, now_ns: u64, time: Option<TimeState>, anchor: Option<Anchor>) {
        if let Some(time) = time {
            self.map.restore(now_ns, time, 0);
            self.is_after_pause = anchor.is_none();
        }
        if let Some(anchor) = anchor {
            self.map.set_anchor(anchor);
        }
    }

    /// Goes on with the timestamps of another process.
    pub(super) fn restore_time(&mut self, now_ns: u64, time: TimeState, elapsed_ns: u64) {
        self.map.restore(now_ns, time, elapsed_ns);
    }

    /// Audio in a packet that leaves, ns.
    pub(super) fn sent_packet_ns(&self) -> u64 {
        let made_ns = self.voice.as_ref().map(|voice| voice.packet_ns());
        let made_ns = made_ns.unwrap_or(u64::MAX).min(self.packet_ns);
        match self.config.packet_ns {
            0 => made_ns,
            packet_ns => packet_ns.min(made_ns),
        }
    }

    /// When what has the outgoing timestamp `time` is played.
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

/// Opus at no higher rate and with no more channels than the other side has: its encoder and decoder do that by themselves, for less than
/// a converter, and its packets say so.
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

/// The shortest usual packet time, but for AES67's.
const PACKET_NS_MIN: u64 = 1_000_000;
/// Largest budget that a stream without losses may save.
const BUDGET_NS_MAX: u64 = NS_PER_S;
