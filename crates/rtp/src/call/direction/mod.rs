//! One direction of a call: from the media of one party to the stream for the other party.
//!
//! A [`Direction`] decides what the far side gets: the party's audio, the event or tone of a digit, a clip, or nothing. These parts do the
//! work:
//!
//! | part | task |
//! |---|---|
//! | [`Output`] | the stream to the far side: route, timestamps, encoder, concealment, filter and tap |
//! | [`Keys`], [`InbandDtmf`] | digits that the party sends as events or as tones |
//! | [`DigitTone`] | the tone of a digit, for a side without events |
//! | [`DtmfQueue`] | digits that the owner inserts |
//! | [`Player`] | clips and other sounds |
//! | [`Substitution`] | the sound that replaces a silent party |
//! | [`Numbering`] | sequence numbers of packets that skip the jitter buffer |

mod code_ring;
mod codes;
mod comfort_noise;
mod digits;
mod direct;
mod dtmf_insert;
mod filter_delay;
mod inband_dtmf;
mod keys;
mod output;
mod play;
mod reencode;
mod route;
mod settings;
mod substitute;
mod tap;
mod tone;

use std::sync::Arc;

use super::out::{Out, Work};
use super::{
    DirectionConfig, Mode, Part, PlayError, PlayLeft, SessionError, Sound, Substitute, TAIL_NS_MAX,
};
use crate::codec::{Encoding, Format};
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, Delivery, Lost, Media, MediaPacket, Payload, PayloadMap};
use crate::opus;

use direct::Numbering;
use dtmf_insert::DtmfQueue;
use inband_dtmf::InbandDtmf;
use keys::Keys;
use output::{Output, PACKET_NS_MIN};
use play::Player;
pub(super) use play::check_sound;
use route::Route;
pub(super) use settings::check_packet_ns;
use substitute::{Step, Substitution};
pub use tap::{Tapped, TappedAudio};
use tone::DigitTone;

/// Counters of a direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Number of packets of audio that arrived in order.
    pub packets: u64,
    /// Number of packets that were lost.
    pub lost: u64,
    /// Duration of the audio that was concealed, ns.
    pub concealed_ns: u64,
    /// Number of lost packets that the far side must conceal, because this side had no time
    /// ([`Scratch::set_spare`](super::Scratch::set_spare)).
    pub left_to_conceal: u64,
    /// Number of packets of telephone events.
    pub key_packets: u64,
    /// Number of packets of comfort noise.
    pub noise_packets: u64,
    /// Number of descriptions of comfort noise that were generated for a party that pauses with the means of its codec.
    pub noise_made: u64,
    /// Number of packets whose payload types were not agreed on, or that the far side lacks.
    pub dropped: u64,
    /// Number of packets that could not be decoded.
    pub undecodable: u64,
    /// Duration of tapped audio that was dropped because it was not taken in time, ns.
    pub tap_dropped_ns: u64,
    /// The active input. 0 is the leg itself, and its fallbacks follow.
    pub active: usize,
    /// Number of changes of the input.
    pub switches: u64,
    /// Whether the far side hears the party's [substitute](super::Substitute).
    pub is_substituted: bool,
}

/// A stretch of audio on the incoming time line.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    format: Format,
    time: RtpTime,
    play_ns: u64,
    units: u32,
    rate_hz: u32,
}

impl Stretch {
    /// Returns the part of a loss that is concealed.
    fn of_loss(loss: &Lost<'_>, format: Format, frames: usize) -> Stretch {
        Stretch {
            format,
            time: loss.time,
            play_ns: loss.play_ns,
            units: format.clock_units(frames as u32),
            rate_hz: format.clock_rate_hz,
        }
    }
}

/// One direction of a call: see the module documentation.
#[derive(Debug)]
pub(super) struct Direction {
    output: Output,
    keys: Keys,
    tone: DigitTone,
    /// Detects digits in the audio.
    inband: Option<Box<InbandDtmf>>,
    dtmf_queue: Option<Box<DtmfQueue>>,
    player: Player,
    /// The sound that replaces the party while it sends nothing.
    substitution: Option<Box<Substitution>>,
    /// Numbering of directly forwarded packets.
    numbering: Numbering,
    /// Time between the last packet's release from the jitter buffer and its play time.
    lead_ns: u64,
    /// Latency of the jitter buffer.
    latency_ns: u64,
}

impl Direction {
    /// Creates a direction to a side with these payload types.
    pub(super) fn new(config: DirectionConfig, to: &PayloadMap) -> Result<Direction, SessionError> {
        check_packet_ns(config.packet_ns, to)?;
        Ok(Direction {
            output: Output::new(config),
            keys: Keys::default(),
            tone: DigitTone::default(),
            inband: config.detect_keys.then(|| Box::new(InbandDtmf::new())),
            dtmf_queue: None,
            player: Player::default(),
            substitution: None,
            numbering: Numbering::default(),
            lead_ns: 0,
            latency_ns: 0,
        })
    }

    /// Handles the party's next media.
    #[inline]
    pub(super) fn handle(&mut self, media: Media<'_>, work: &mut Work, out: &mut Out<'_>) {
        if let Some(substitution) = &mut self.substitution
            && matches!(media, Media::Packet(_))
            && substitution.handle_packet(out.now_ns)
        {
            self.end_substitute();
        }
        match media {
            Media::Packet(packet) => match packet.delivery {
                Delivery::Ordered => {
                    self.numbering.restart();
                    self.handle_packet(&packet, work, out);
                }
                Delivery::Direct(seq) if self.numbering.number(seq, out) => {
                    self.handle_packet(&packet, work, out);
                    self.numbering.note_sent(seq, out);
                }
                Delivery::Direct(_) => self.output.stats.dropped += 1,
                Delivery::Beside => self.handle_packet(&packet, work, out),
                Delivery::Sent => self.hear_sent(&packet),
            },
            Media::Lost(lost) => self.handle_loss(&lost, work, out),
            Media::Restart => self.restart(work, out),
        }
    }

    #[inline]
    fn handle_packet(&mut self, packet: &MediaPacket<'_>, work: &mut Work, out: &mut Out<'_>) {
        let Some(payload) = packet.payload else {
            self.output.stats.dropped += 1;
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

    /// Passes a packet that the far side has already got to the listeners, in order.
    #[inline]
    fn hear_sent(&mut self, packet: &MediaPacket<'_>) {
        if self.output.tap.is_some()
            && let Some(payload) = packet.payload
        {
            self.output.note_tapped(payload, packet.bytes);
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
        self.output.stats.packets += 1;
        if self.output.routed != Some(payload.payload_type) && !self.is_sending_digit() {
            self.output.choose(payload, self.player.is_on(), out);
        }
        self.output.earn(payload, packet.bytes);
        self.lead_ns = packet.play_ns.saturating_sub(out.now_ns);
        let is_inserting_dtmf =
            self.dtmf_queue.is_some() && self.is_inserting_dtmf(packet.play_ns, out.now_ns);
        let is_quiet = self.player.is_on() || self.output.mode() == Mode::Hold || is_inserting_dtmf;
        let is_heard_later = matches!(packet.delivery, Delivery::Direct(_));
        if self.output.tap.is_some()
            && !is_heard_later
            && (is_quiet || !matches!(self.output.route, Route::Reencode(_)))
        {
            self.output.note_tapped(payload, packet.bytes);
        }
        if self.keys.is_pressed && self.is_sounded_over(payload, packet, work, out) {
            return;
        }
        if is_inserting_dtmf {
            return self.output.cut();
        }
        if self.inband.is_some() && self.is_heard_as_key(payload, packet, work, out) {
            return;
        }
        if is_quiet {
            return;
        }
        self.output.is_after_pause |= packet.marker;
        match self.output.route {
            Route::Pass { .. } => self.output.pass(payload, packet, work, out),
            Route::Repack { .. } => self.output.repack(payload, packet, work, out),
            Route::Reencode(_) => self.reencode(payload, packet, work, out),
            Route::Nowhere => self.output.stats.dropped += 1,
        }
    }

    /// Whether the far side gets an event instead of this packet. Audio that is decoded for other reasons is checked after decoding.
    #[cold]
    fn is_heard_as_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Carries::Audio(format) = payload.carries else {
            return false;
        };
        let at = Stretch {
            format,
            time: packet.time,
            play_ns: packet.play_ns,
            units: units_of(payload, packet.bytes),
            rate_hz: payload.clock_rate_hz,
        };
        !self.is_decoding() && self.listen(payload, packet.bytes, at, work, out)
    }

    /// Re-encodes a packet, unless comfort noise or a digit's event replaces it.
    fn reencode(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some((frames, format)) = self.output.decode(packet, work, out) else {
            return;
        };
        if self.output.is_replaced_by_noise(payload, packet, out) {
            return self.output.cut();
        }
        if self.inband.is_some() {
            let at = Stretch {
                format,
                time: packet.time,
                play_ns: packet.play_ns,
                units: format.clock_units(frames as u32),
                rate_hz: format.clock_rate_hz,
            };
            if self.hear(at, work, out) {
                return self.output.cut();
            }
        }
        self.output
            .reencode(payload, packet, (frames, format), work, out);
    }

    #[cold]
    fn handle_loss(&mut self, loss: &Lost<'_>, work: &mut Work, out: &mut Out<'_>) {
        self.output.stats.lost += u64::from(loss.packets);
        let mut made_ns = loss.duration_ns.min(TAIL_NS_MAX).min(self.output.budget_ns);
        if made_ns < loss.duration_ns.min(PACKET_NS_MIN) {
            // If so little audio became a packet, a party could cause one packet for each gap.
            made_ns = 0;
        }
        if loss.is_sent {
            return self.output.hear_sent_loss(made_ns, work);
        }
        let is_inserting_dtmf = self.is_inserting_dtmf(loss.play_ns, out.now_ns);
        let is_quiet = self.player.is_on() || self.output.mode() == Mode::Hold || is_inserting_dtmf;
        let units = self.output.loss_units(is_quiet) + u32::from(self.inband.is_some());
        if units > 0 && !work.spend(units) {
            let is_quiet = is_quiet || self.tone.is_on;
            return self
                .output
                .leave_to_far_side(loss, made_ns, is_quiet, work, out);
        }
        if is_quiet || !matches!(self.output.route, Route::Reencode(_)) {
            self.output.conceal_tapped(made_ns);
        }
        if self.inband.is_some()
            && !self.is_decoding()
            && self.listen_to_loss(loss, made_ns, work, out)
        {
            return;
        }
        if is_quiet || self.tone.is_on {
            return;
        }
        match self.output.route {
            Route::Nowhere => {}
            // The far side sees the gap, and conceals it.
            Route::Pass { table: None, .. } if !self.output.mends_all => out.leg.skip(loss.packets),
            Route::Pass { .. } | Route::Repack { .. } => {
                // Audio of a digit or a clip is sent first.
                self.output.flush_voice(out);
                self.output.conceal(loss, made_ns, work, out);
            }
            Route::Reencode(_) => self.fill_in(loss, made_ns, work, out),
        }
    }

    /// Conceals a loss in audio that is re-encoded, with at most `made_ns` of audio.
    fn fill_in(&mut self, loss: &Lost<'_>, made_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        let is_heard = self.inband.is_some();
        let Some(at) = self.output.recover(loss, made_ns, is_heard, work) else {
            return;
        };
        if is_heard && self.hear(at, work, out) {
            return self.output.cut();
        }
        self.output.say_recovered(at, made_ns, work, out);
    }

    /// Ends the stream: sends the audio that a filter or a packet still holds.
    #[cold]
    pub(super) fn finish(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.output.drain_filter(work, out);
        self.output.flush(out);
    }

    /// Handles a restart of the party's numbers and timestamps.
    #[cold]
    fn restart(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.tone.end(&mut self.output, work, out);
        self.keys.release();
        self.release_heard(out);
        if !self.is_sending_digit() {
            self.output.flush(out);
        }
        self.output.map.restart();
        self.numbering.restart();
        self.output.history.clear();
        self.output.gaps = None;
        self.output.is_after_pause = true;
        self.keys.key = None;
        if let Route::Reencode(reencode) = &mut self.output.route {
            reencode.next = None;
            reencode.converter.reset();
        }
    }

    /// Forwards comfort noise to a side that accepts it. Other sides fill pauses themselves.
    fn handle_noise(&mut self, payload: &Payload, packet: &MediaPacket<'_>, out: &mut Out<'_>) {
        self.output.stats.noise_packets += 1;
        let is_inserting_dtmf = self.is_inserting_dtmf(packet.play_ns, out.now_ns);
        if self.player.is_on() || self.output.mode() != Mode::Pass || is_inserting_dtmf {
            return;
        }
        self.output.pass_noise(payload, packet, out);
    }

    /// Switches to another input.
    #[cold]
    pub(super) fn change_input(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.player.end(&mut self.output);
        self.restart(work, out);
        self.output.map.restart_at(out.now_ns);
        self.output.reroute();
    }

    /// Discards everything received so far.
    pub(super) fn begin_anew(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.restart(work, out);
    }

    /// Sends everything that is due and needs no packet of the party: ends of digits and pauses, inserted digits, and clips.
    #[inline]
    pub(super) fn poll_beside(
        &mut self,
        media_ns: u64,
        may_play: bool,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        self.expire_key(work, out);
        self.output.fill_pause(work, out);
        self.poll_dtmf(media_ns, work, out);
        if may_play {
            self.play(media_ns, work, out);
        }
    }

    /// Begins or ends the party's substitute. `is_expected`: whether the far side can hear the party.
    pub(super) fn poll_substitute(
        &mut self,
        media_ns: u64,
        is_expected: bool,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some(substitution) = &mut self.substitution else {
            return;
        };
        let is_expected = is_expected && self.output.mode() == Mode::Pass;
        let step = substitution.poll(out.now_ns, is_expected, self.player.is_on());
        match step {
            Some(Step::Begin(sound)) => {
                let payloads = out.leg.takes().clone();
                if self
                    .start(out.now_ns, sound, Part::default(), &payloads)
                    .is_ok()
                {
                    self.play(media_ns, work, out);
                } else if let Some(substitution) = &mut self.substitution {
                    substitution.fail(out.now_ns);
                }
            }
            Some(Step::End) => self.end_substitute(),
            None => {}
        }
    }

    /// Stops the substitute, which is being played.
    fn end_substitute(&mut self) {
        self.player.end(&mut self.output);
        // The owner did not start this sound, so it gets no event about the end.
        self.player.take_ended();
    }

    /// Whether the far side hears the party's substitute.
    pub(super) fn is_substituted(&self) -> bool {
        self.substitution.as_ref().is_some_and(|one| one.is_on())
    }

    pub(super) fn has_substitute(&self) -> bool {
        self.substitution.is_some()
    }

    /// Sets the sound that replaces the party while it sends nothing.
    pub(super) fn set_substitute(&mut self, substitute: Option<Arc<Substitute>>) {
        if self.is_substituted() {
            self.end_substitute();
        }
        match &mut self.substitution {
            Some(substitution) => substitution.set(substitute),
            None if substitute.is_some() => {
                self.substitution.insert(Box::default()).set(substitute);
            }
            None => {}
        }
    }

    /// Returns whether the substitute is heard, if that has changed since the last call.
    pub(super) fn take_substituted(&mut self) -> Option<bool> {
        self.substitution.as_mut()?.take_report()
    }

    /// Returns the time at which the substitute begins if the party stays silent.
    pub(super) fn next_substitute(&self) -> Option<u64> {
        let substitution = self.substitution.as_ref()?;
        // A sound of the owner is played to its end first.
        substitution.next_timeout().filter(|_| !self.player.is_on())
    }

    /// Returns the party's payload types that may be forwarded directly now, a bit for each. 0 means none.
    #[inline]
    pub(super) fn direct_types(&mut self, sends: &PayloadMap, takes: &PayloadMap) -> u128 {
        let output = &self.output;
        let is_free = output.config.passes_directly
            && output.mode() == Mode::Pass
            && !self.player.is_on()
            && !self.has_queued_dtmf()
            && self.inband.is_none()
            && output.filter.is_none()
            && output.gaps.is_none()
            && !self.tone.is_on
            && !output.mends_all;
        if is_free {
            self.output.direct_types(sends, takes)
        } else {
            0
        }
    }

    /// Returns what currently happens to the party's media.
    #[inline]
    pub(super) fn mode(&self) -> Mode {
        self.output.mode()
    }

    /// Makes the next packet choose the route again.
    pub(super) fn reroute(&mut self) {
        self.output.reroute();
    }

    /// Returns the address of memory that the next packet touches, for prefetching.
    pub(super) fn next_address(&self) -> usize {
        self.output.next_address()
    }

    pub(super) fn stats(&self) -> DirectionStats {
        self.output.stats
    }

    /// Starts a sound of the owner instead of the party's audio. A pressed digit keeps the encoder until it ends.
    pub(super) fn begin_play(
        &mut self,
        now_ns: u64,
        sound: Sound,
        part: Part,
        payloads: &PayloadMap,
    ) -> Result<(), PlayError> {
        self.start(now_ns, sound, part, payloads)?;
        if let Some(substitution) = &mut self.substitution {
            substitution.yield_player();
        }
        Ok(())
    }

    fn start(
        &mut self,
        now_ns: u64,
        sound: Sound,
        part: Part,
        payloads: &PayloadMap,
    ) -> Result<(), PlayError> {
        let (is_sending, output) = (self.is_sending_digit(), &mut self.output);
        self.player
            .begin(now_ns, sound, part, payloads, is_sending, output)?;
        self.tone.is_on = false;
        Ok(())
    }

    /// Ends a sound of the owner.
    pub(super) fn end_play(&mut self) {
        if !self.is_substituted() {
            self.player.end(&mut self.output);
        }
    }

    /// Returns the rest of a sound of the owner.
    pub(super) fn play_left(&self) -> Option<PlayLeft> {
        self.player.left().filter(|_| !self.is_substituted())
    }

    pub(super) fn take_play_ended(&mut self) -> bool {
        self.player.take_ended()
    }

    pub(super) fn next_play(&self) -> Option<u64> {
        self.player.next()
    }

    /// Returns the time of the clip's next packet, if no digit is pressed by then.
    pub(super) fn next_play_without_dtmf(&self) -> Option<u64> {
        self.next_play().filter(|_| !self.is_sending_digit())
    }

    /// Sends the sound's audio that is due.
    #[inline]
    pub(super) fn play(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        if self.next_play().is_none_or(|next_ns| next_ns > now_ns) || self.is_sending_digit() {
            return;
        }
        self.player.play(now_ns, &mut self.output, work, out);
    }

    /// Starts or stops the tap. A tap that is on keeps its decoder.
    #[inline]
    pub(super) fn tap(&mut self, is_on: bool) {
        if is_on != self.output.tap.is_some() {
            self.output.tap = is_on.then(Box::default);
        }
    }

    #[inline]
    pub(super) fn take_tapped(&mut self, hear: impl FnMut(Tapped<'_>)) {
        self.output.take_tapped(hear);
    }

    /// Returns the address at which the next codes will be written.
    #[inline]
    pub(super) fn tapped_address(&self) -> usize {
        let tap = self.output.tap.as_deref();
        tap.map_or(0, |tap| tap.next_address())
    }

    #[inline]
    pub(super) fn tapped(&self) -> usize {
        let tap = self.output.tap.as_deref();
        tap.map_or(0, |tap| tap.waiting())
    }
}

/// Returns the number of timestamp units that a packet of audio covers, or 0 if its codec is unknown.
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

fn ns_of_frames(frames: usize, format: Format) -> u64 {
    frames as u64 * NS_PER_S / u64::from(format.sample_rate_hz)
}
