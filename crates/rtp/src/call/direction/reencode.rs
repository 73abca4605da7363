//! Re-encodes audio: it is decoded, filtered, converted and encoded.

use super::comfort_noise::{ComfortNoise, PAUSE_BYTES_MAX};
use super::filter_delay::{Begin, FILLED_NS_MAX, Kind, LATE_NS, PAUSE_STEP_NS_MIN};
use super::output::Output;
use super::route::Route;
use super::{Stretch, ns_of_frames};
use crate::call::out::{Out, Work};
use crate::call::voice::Voice;
use crate::call::{DirectionConfig, Mode};
use crate::codec::{CodecError, EncoderSettings, Format};
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, Lost, MediaPacket, Payload};

impl Output {
    /// Sets the encoder for the far side. Keeps the old one if possible. `is_playing` means that a clip is being played.
    pub(super) fn set_voice(
        &mut self,
        to: Payload,
        format: Format,
        is_playing: bool,
    ) -> Option<()> {
        let asked_ns = self.config.packet_ns;
        // A clip that is being played keeps its packet time.
        let fits = |voice: &Voice| {
            let is_as_asked = voice.asked_ns == asked_ns || is_playing;
            voice.payload == to && voice.format == format && is_as_asked
        };
        if !self.voice.as_deref().is_some_and(fits) {
            let packet_ns = match self.config.packet_ns {
                0 => self.packet_ns,
                packet_ns => packet_ns,
            };
            let settings = encoder_settings(&self.config, to, format, packet_ns);
            let mut voice = Voice::new(to, format, &settings, packet_ns).ok()?;
            voice.asked_ns = asked_ns;
            self.voice = Some(Box::new(voice));
        }
        Some(())
    }

    /// Changes the bit rates from the next packet on. The stream continues.
    pub(in crate::call) fn set_bitrate(
        &mut self,
        bitrate_bps: Option<u32>,
        bitrate_bps_max: Option<u32>,
    ) -> Result<(), CodecError> {
        let encoder = EncoderSettings {
            bitrate_bps,
            bitrate_bps_max,
            ..self.config.encoder
        };
        encoder.check()?;
        self.config.encoder = encoder;
        match &mut self.voice {
            Some(voice) => {
                let (to, format, packet_ns) = (voice.payload, voice.format, voice.packet_ns());
                voice.set_bitrate(&encoder_settings(&self.config, to, format, packet_ns))
            }
            None => Ok(()),
        }
    }

    /// Decodes a packet of audio into `work.decoded`. Returns its length in frames, and the format. `None`: the packet is malformed.
    pub(super) fn decode(
        &mut self,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> Option<(usize, Format)> {
        if self.filter.is_some() && !self.goes_on(packet.time) {
            self.fill_pause_now(work, out);
        }
        let Route::Reencode(reencode) = &mut self.route else {
            return None;
        };
        work.decoded.clear();
        let Ok(frames) = reencode.decoder.decode(packet.bytes, &mut work.decoded) else {
            self.stats.undecodable += 1;
            return None;
        };
        Some((frames, reencode.decoder.format()))
    }

    /// Encodes the audio of a [decoded](Self::decode) packet for the far side.
    pub(super) fn reencode(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        (frames, format): (usize, Format),
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let at_output = self.is_filtered_at_output();
        self.expect_next(out.now_ns + ns_of_frames(frames, format));
        let (Route::Reencode(reencode), Some(voice)) = (&mut self.route, &mut self.voice) else {
            return;
        };
        let rates = (payload.clock_rate_hz, voice.payload.clock_rate_hz);
        let follows = reencode
            .next
            .is_some_and(|next| follows(next, packet.time, format));
        if !follows {
            let is_filtered = self.filter.is_some();
            if reencode.next.is_some() {
                if !is_filtered {
                    voice.flush(&mut self.map, out);
                }
                if !is_filtered || at_output {
                    reencode.converter.reset();
                }
            }
            let play_ns = packet.play_ns;
            let time = self.map.map(packet.time, play_ns, rates.0, rates.1);
            if is_filtered {
                self.filter_delay.begin(Begin { time, play_ns })
            } else {
                voice.begin(self.map.not_before_end(time), play_ns)
            }
        }
        self.is_after_pause = false;
        let begin = reencode.next.filter(|_| follows).unwrap_or(packet.time);
        reencode.next = Some(begin.plus(format.clock_units(frames as u32)));
        if self.config.packet_ns == 0 {
            voice.prefer_packet_ns(ns_of_frames(frames, format));
        }
        self.say(format, work, out);
    }

    /// Whether a packet with this timestamp follows without a gap.
    fn goes_on(&self, time: RtpTime) -> bool {
        match &self.route {
            Route::Reencode(reencode) => reencode
                .next
                .is_some_and(|next| follows(next, time, reencode.decoder.format())),
            _ => true,
        }
    }

    /// Ends the talkspurt, because the far side gets other audio instead. The next packet starts a new talkspurt.
    pub(super) fn cut(&mut self) {
        if let Route::Reencode(reencode) = &mut self.route
            && reencode.next.take().is_some()
        {
            reencode.converter.reset();
        }
    }

    /// Passes decoded audio, unless it is muted, through the filter and the converter to the encoder. Filter and tap get the lower channel
    /// count of the two sides, because a doubled channel would count twice in the loudness.
    #[inline]
    fn say(&mut self, format: Format, work: &mut Work, out: &mut Out<'_>) {
        let (Route::Reencode(reencode), Some(voice)) = (&mut self.route, &mut self.voice) else {
            return;
        };
        if self.mode == Mode::Mute {
            work.decoded.fill(0.0);
        }
        if self.filter.is_some() {
            return self.say_filtered(work, out);
        }
        work.converted.clear();
        reencode
            .converter
            .process(&work.decoded, &mut work.converted);
        voice.push(&work.converted, &mut self.map, out);
        if let Some(comfort_noise) = &mut reencode.comfort_noise {
            comfort_noise.remember(&work.converted);
        }
        if let Some(tap) = &mut self.tap {
            if format.channels < voice.format.channels && !self.is_heard_at_output {
                tap.add(format, &work.decoded)
            } else {
                tap.add(voice.format, &work.converted)
            }
            self.bound_tap();
        }
    }

    #[cold]
    fn say_filtered(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let at_output = self.is_filtered_at_output();
        if let (Route::Reencode(reencode), true) = (&mut self.route, at_output) {
            work.converted.clear();
            reencode
                .converter
                .process(&work.decoded, &mut work.converted);
            std::mem::swap(&mut work.decoded, &mut work.converted);
        }
        if let Some(format) = self.filter_format() {
            self.filter_on(format, false, work, out);
        }
    }

    /// Passes on the audio that is still in the filter.
    pub(super) fn drain_filter(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let Some(format) = self.filter_format() else {
            return;
        };
        if let Some(filter) = &mut self.filter {
            work.decoded.clear();
            filter.finish(format, &mut work.decoded);
            self.say_held(format, work, out);
            self.filter_delay.clear();
        }
    }

    /// Replaces a loss with silence. Returns `false` if there was no audio before it.
    pub(super) fn fall_silent(
        &mut self,
        loss: &Lost<'_>,
        ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Route::Reencode(reencode) = &mut self.route else {
            return false;
        };
        let format = reencode.decoder.format();
        let Some(next) = reencode
            .next
            .filter(|next| follows(*next, loss.time, format))
        else {
            return false;
        };
        let frames = (ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        reencode.next = Some(next.plus(format.clock_units(frames as u32)));
        self.budget_ns -= ns;
        work.decoded.clear();
        let samples = frames * usize::from(format.channels);
        work.decoded.resize(samples, 0.0);
        self.say(format, work, out);
        true
    }

    /// Conceals a loss with at most `made_ns` of audio in `work.decoded`. After a pause there is nothing to conceal, because the next
    /// packet starts a new talkspurt. `is_heard` means that the audio is needed nevertheless.
    pub(super) fn recover(
        &mut self,
        loss: &Lost<'_>,
        made_ns: u64,
        is_heard: bool,
        work: &mut Work,
    ) -> Option<Stretch> {
        let Route::Reencode(reencode) = &mut self.route else {
            return None;
        };
        let format = reencode.decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        let goes_on = reencode
            .next
            .is_some_and(|next| follows(next, loss.time, format));
        if frames == 0 || !goes_on && !is_heard {
            return None;
        }
        work.decoded.clear();
        if loss.packets > 1
            || !reencode
                .decoder
                .recover(loss.next, frames, &mut work.decoded)
        {
            reencode.decoder.conceal(frames, &mut work.decoded);
        }
        Some(Stretch::of_loss(loss, format, frames))
    }

    /// Encodes the audio that [conceals](Self::recover) a loss, unless the loss comes after a pause.
    pub(super) fn say_recovered(
        &mut self,
        at: Stretch,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Route::Reencode(reencode) = &mut self.route else {
            return;
        };
        let Some(next) = reencode
            .next
            .filter(|next| follows(*next, at.time, at.format))
        else {
            return;
        };
        reencode.next = Some(next.plus(at.units));
        self.budget_ns -= made_ns;
        self.stats.concealed_ns += made_ns;
        self.say(at.format, work, out);
    }

    /// Whether comfort noise replaces this packet for the far side. The first packet of a pause becomes a description of the noise, and the
    /// others are omitted.
    pub(super) fn is_replaced_by_noise(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        out: &mut Out<'_>,
    ) -> bool {
        let is_pausing = packet.bytes.len() <= PAUSE_BYTES_MAX && self.mode == Mode::Pass;
        let (Some(comfort_noise), Some(voice)) = (comfort_noise_of(&mut self.route), &self.voice)
        else {
            return false;
        };
        let was_pausing = std::mem::replace(&mut comfort_noise.is_pausing, is_pausing);
        if !is_pausing || was_pausing {
            return is_pausing;
        }
        let to_hz = voice.payload.clock_rate_hz;
        let Some(to) = out.leg.takes().comfort_noise(to_hz).copied() else {
            comfort_noise.is_pausing = false;
            return false;
        };
        self.flush(out);
        let time = self
            .map
            .map(packet.time, packet.play_ns, payload.clock_rate_hz, to_hz);
        let time = self.map.not_before_end(time);
        if let Some(comfort_noise) = comfort_noise_of(&mut self.route) {
            comfort_noise.describe(out.begin());
        }
        out.send(&to, time, false, 0);
        self.stats.noise_made += 1;
        self.is_after_pause = true;
        true
    }

    /// Returns the time at which the pause since the last packet must be filled, if the filter contains audio.
    pub(in crate::call) fn next_pause(&self) -> Option<u64> {
        let late_ns = LATE_NS.max(self.pause_step_ns());
        let due_ns = self.filter_delay.due_ns.saturating_add(late_ns);
        (self.filter.is_some() && self.filter_delay.has_audio()).then_some(due_ns)
    }

    fn pause_step_ns(&self) -> u64 {
        self.packet_ns.max(PAUSE_STEP_NS_MIN)
    }

    /// Notes when the next audio is expected.
    #[inline]
    pub(super) fn expect_next(&mut self, due_ns: u64) {
        self.filter_delay.due_ns = due_ns;
    }

    /// Feeds silence to the filter while it contains audio and no packets arrive.
    #[inline]
    pub(in crate::call) fn fill_pause(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if self.next_pause().is_some_and(|at_ns| at_ns <= out.now_ns) {
            self.fill_pause_now(work, out);
        }
    }

    /// Fills the part of the pause that has passed.
    #[cold]
    pub(super) fn fill_pause_now(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let step_ns = self.pause_step_ns();
        while self.filter_delay.due_ns.saturating_add(step_ns) <= out.now_ns
            && self.filter_delay.has_audio()
        {
            self.filter_delay.due_ns += step_ns;
            self.filter_delay.filled_ns += step_ns;
            if self.filter_delay.filled_ns > FILLED_NS_MAX {
                return self.filter_delay.clear();
            }
            let Some(format) = self.filter_format() else {
                return;
            };
            let frames = (step_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
            work.decoded.clear();
            work.decoded
                .resize(frames * usize::from(format.channels), 0.0);
            self.filter_on(format, true, work, out);
        }
    }

    /// Returns the format of the filter. It is that of the incoming audio, or that of the outgoing audio if this has fewer channels or
    /// there are several inputs.
    pub(super) fn filter_format(&self) -> Option<Format> {
        let to = self.voice.as_ref().map(|voice| voice.format)?;
        match &self.route {
            _ if self.is_heard_at_output => Some(to),
            Route::Reencode(reencode) if reencode.decoder.format().channels > to.channels => {
                Some(to)
            }
            Route::Reencode(reencode) => Some(reencode.decoder.format()),
            _ => None,
        }
    }

    /// Whether the filter comes after the converter.
    pub(super) fn is_filtered_at_output(&self) -> bool {
        let to = self.voice.as_ref().map_or(0, |voice| voice.format.channels);
        match &self.route {
            Route::Reencode(reencode) => {
                self.is_heard_at_output || reencode.decoder.format().channels > to
            }
            _ => true,
        }
    }

    /// Passes decoded or converted audio through the filter, and processes what comes out. `format` is that of the filter.
    pub(super) fn filter_on(
        &mut self,
        format: Format,
        is_pause: bool,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some(filter) = &mut self.filter else {
            return;
        };
        let frames = work.decoded.len() / usize::from(format.channels);
        self.filter_delay.take_in(format, frames, is_pause);
        filter.process(format, &mut work.decoded);
        self.say_held(format, work, out);
    }

    /// Processes the filter's output in `work.decoded` with its original times.
    pub(super) fn say_held(&mut self, format: Format, work: &mut Work, out: &mut Out<'_>) {
        let at_output = self.is_filtered_at_output();
        let Some(voice) = &mut self.voice else { return };
        let mut converter = match &mut self.route {
            Route::Reencode(reencode) if !at_output => Some(&mut reencode.converter),
            _ => None,
        };
        let channels = usize::from(format.channels);
        let mut rest = &work.decoded[..];
        while rest.len() >= channels {
            let (frames, kind) = self.filter_delay.give_out(rest.len() / channels);
            let (pcm, later) = rest.split_at(frames * channels);
            rest = later;
            if kind != Kind::Audio(None) {
                voice.flush(&mut self.map, out);
                if let Some(converter) = &mut converter {
                    converter.reset();
                }
            }
            match kind {
                Kind::Pause => continue,
                Kind::Audio(None) => {}
                Kind::Audio(Some(begin)) => {
                    voice.begin(self.map.not_before_end(begin.time), begin.play_ns);
                }
            }
            work.converted.clear();
            match &mut converter {
                None => work.converted.extend_from_slice(pcm),
                Some(converter) => converter.process(pcm, &mut work.converted),
            }
            voice.push(&work.converted, &mut self.map, out);
            if let Some(tap) = &mut self.tap {
                if format.channels < voice.format.channels {
                    tap.add(format, pcm)
                } else {
                    tap.add(voice.format, &work.converted)
                }
            }
        }
        self.bound_tap();
    }
}

fn comfort_noise_of(route: &mut Route) -> Option<&mut ComfortNoise> {
    match route {
        Route::Reencode(reencode) => reencode.comfort_noise.as_deref_mut(),
        _ => None,
    }
}

/// Returns the settings of an encoder to `to` for audio in this format.
fn encoder_settings(
    config: &DirectionConfig,
    to: Payload,
    format: Format,
    packet_ns: u64,
) -> EncoderSettings {
    let mut settings = config.encoder;
    if to.carries != Carries::Audio(format) {
        // The library's default of 11 kbit/s for telephone audio loses too much.
        let samples = format.sample_rate_hz * u32::from(format.channels);
        let packets = (NS_PER_S / packet_ns.max(PACKET_NS_SHORTEST)) as u32;
        let bits = samples * BITS_PER_SAMPLE + packets * BITS_PER_PACKET;
        settings.bitrate_bps = settings.bitrate_bps.or(Some(bits));
    }
    settings
}

fn follows(next: RtpTime, time: RtpTime, format: Format) -> bool {
    time.distance_from(next).unsigned_abs() * NS_PER_S < SLACK_NS * u64::from(format.clock_rate_hz)
}

/// Bit rate of Opus below 48 kHz, in bits per sample. RFC 7587, section 3.1.1, recommends 8 to 12 kbit/s for telephone speech. This rate is
/// higher, because the speech is encoded twice.
const BITS_PER_SAMPLE: u32 = 3;
/// Additional bits per packet. Without them, the tone in short packets would be lost in noise.
const BITS_PER_PACKET: u32 = 100;
/// Shortest packet time of Opus. "Opus can encode frames of 2.5, 5, 10, 20, 40, or 60 ms" (RFC 6716, section 2.1.4).
const PACKET_NS_SHORTEST: u64 = 2_500_000;
/// Maximum difference of timestamps that count as continuous, ns, because some senders round them.
const SLACK_NS: u64 = 2_000_000;
