//! Re-encodes audio: decodes, converts and encodes it.

use super::comfort_noise::ComfortNoise;
use super::filter_delay::Begin;
use super::inband_dtmf::Stretch;
use super::{Direction, Loss, Route, ns_of_frames};
use crate::call::out::{Out, Work};
use crate::call::voice::Voice;
use crate::call::{DirectionConfig, Mode};
use crate::codec::{CodecError, Decoder, EncoderSettings, Format};
use crate::convert::Converter;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, MediaPacket, Payload};

#[derive(Debug)]
pub(super) struct Reencode {
    pub(super) decoder: Decoder,
    pub(super) converter: Converter,
    /// Timestamp that a packet without a gap would have.
    pub(super) next: Option<RtpTime>,
    /// Set if the sender can pause and the far side accepts comfort noise.
    pub(super) comfort_noise: Option<Box<ComfortNoise>>,
}

impl Direction {
    /// Sets the encoder for the far side, keeping the old one if possible.
    pub(super) fn set_voice(&mut self, to: Payload, format: Format) -> Option<()> {
        let asked_ns = self.config.packet_ns;
        // A clip that is being played keeps its packet time.
        let is_playing = self.playing.is_some();
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

    /// Changes the bit rates from the next packet on; the stream continues.
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

    pub(super) fn reencode(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        if self.filter.is_some() && !self.goes_on(packet.time) {
            self.fill_pause_now(work, out);
        }
        let Route::Reencode(reencode) = &mut self.route else {
            return;
        };
        work.decoded.clear();
        let Ok(frames) = reencode.decoder.decode(packet.bytes, &mut work.decoded) else {
            self.stats.undecodable += 1;
            return;
        };
        let format = reencode.decoder.format();
        if reencode.comfort_noise.is_some() && self.is_replaced_by_noise(payload, packet, out) {
            return self.cut();
        }
        if self.inband_dtmf.is_some() {
            let at = Stretch {
                time: packet.time,
                play_ns: packet.play_ns,
                units: format.clock_units(frames as u32),
                rate_hz: format.clock_rate_hz,
            };
            if self.hear(format, at, work, out) {
                return self.cut();
            }
        }
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

    /// Ends the talkspurt, because other audio replaces it for the far side; the next packet starts a new one.
    pub(super) fn cut(&mut self) {
        if let Route::Reencode(reencode) = &mut self.route
            && reencode.next.take().is_some()
        {
            reencode.converter.reset();
        }
    }

    /// Passes decoded audio, unless muted, through the filter and the converter to the encoder. Filter and tap get the lower
    /// channel count of the two sides: a doubled channel would count twice in loudness.
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

    /// Passes on the audio that the filter holds.
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

    /// Replaces a loss with silence. Returns `false` if no audio precedes it.
    pub(super) fn fall_silent(
        &mut self,
        loss: &Loss<'_>,
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

    /// Conceals a loss with at most `made_ns` of audio.
    pub(super) fn fill_in(
        &mut self,
        loss: &Loss<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Route::Reencode(reencode) = &mut self.route else {
            return;
        };
        let format = reencode.decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        // After a pause, the next packet starts a new talkspurt.
        let next = reencode
            .next
            .filter(|next| follows(*next, loss.time, format));
        if frames == 0 || next.is_none() && self.inband_dtmf.is_none() {
            return;
        }
        work.decoded.clear();
        if loss.packets > 1
            || !reencode
                .decoder
                .recover(loss.next, frames, &mut work.decoded)
        {
            reencode.decoder.conceal(frames, &mut work.decoded);
        }
        if self.inband_dtmf.is_some() && self.hear(format, loss.stretch(format, frames), work, out)
        {
            return self.cut();
        }
        let (Route::Reencode(reencode), Some(next)) = (&mut self.route, next) else {
            return;
        };
        reencode.next = Some(next.plus(format.clock_units(frames as u32)));
        self.budget_ns -= made_ns;
        self.stats.concealed_ns += made_ns;
        self.say(format, work, out);
    }
}

/// Settings of an encoder from audio in this format to `to`.
fn encoder_settings(
    config: &DirectionConfig,
    to: Payload,
    format: Format,
    packet_ns: u64,
) -> EncoderSettings {
    let mut settings = config.encoder;
    if to.carries != Carries::Audio(format) {
        // The library's default of 11 kbit/s for telephone audio is lossy.
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

pub(super) fn converter(from: Format, to: Format) -> Option<Converter> {
    Converter::new(
        from.sample_rate_hz,
        from.channels,
        to.sample_rate_hz,
        to.channels,
    )
    .ok()
}

/// Bit rate of Opus below 48 kHz, bits per sample. RFC 7587, section 3.1.1, recommends 8 to 12 kbit/s for telephone speech;
/// this is more, because the speech is encoded twice.
const BITS_PER_SAMPLE: u32 = 3;
/// Additional bits per packet: without them, short packets would drown a tone in noise.
const BITS_PER_PACKET: u32 = 100;
/// RFC 6716, section 2.1.4: "Opus can encode frames of 2.5, 5, 10, 20, 40, or 60 ms".
const PACKET_NS_SHORTEST: u64 = 2_500_000;
/// Maximum difference of timestamps that count as continuous, ns: some senders round.
const SLACK_NS: u64 = 2_000_000;
