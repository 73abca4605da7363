//! Audio that is decoded, converted and encoded anew.

use super::ear::Stretch;
use super::held::Begin;
use super::hush::Hush;
use super::{Direction, Loss, Route, ns_of_frames};
use crate::call::out::{Out, Work};
use crate::call::voice::Voice;
use crate::call::{DirectionConfig, Mode};
use crate::codec::{CodecError, Decoder, EncoderSettings, Format};
use crate::convert::Converter;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, MediaPacket, Payload};

#[derive(Debug)]
pub(super) struct Anew {
    pub(super) decoder: Decoder,
    pub(super) converter: Converter,
    /// The next packet's timestamp, if it follows on.
    pub(super) next: Option<RtpTime>,
    /// If the sender can pause and the far side takes comfort noise.
    pub(super) hush: Option<Box<Hush>>,
}

impl Direction {
    /// The encoder for the far side, as it is or a new one.
    pub(super) fn set_voice(&mut self, to: Payload, format: Format) -> Option<()> {
        let asked_ns = self.config.packet_ns;
        // What is played goes on in the packets in which it began.
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

    /// Other bit rates from the next packet on: the stream goes on as it is.
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

    pub(super) fn make_anew(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        if self.filter.is_some() && !self.goes_on(packet.time) {
            self.fill_pause_now(work, out);
        }
        let Route::Anew(anew) = &mut self.route else {
            return;
        };
        work.decoded.clear();
        let Ok(frames) = anew.decoder.decode(packet.bytes, &mut work.decoded) else {
            self.stats.undecodable += 1;
            return;
        };
        let format = anew.decoder.format();
        if anew.hush.is_some() && self.is_hushed(payload, packet, out) {
            return self.cut();
        }
        if self.ear.is_some() {
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
        let (Route::Anew(anew), Some(voice)) = (&mut self.route, &mut self.voice) else {
            return;
        };
        let rates = (payload.clock_rate_hz, voice.payload.clock_rate_hz);
        let follows = anew
            .next
            .is_some_and(|next| follows(next, packet.time, format));
        if !follows {
            let is_filtered = self.filter.is_some();
            if anew.next.is_some() {
                if !is_filtered {
                    voice.flush(&mut self.map, out);
                }
                if !is_filtered || at_output {
                    anew.converter.reset();
                }
            }
            let play_ns = packet.play_ns;
            let time = self.map.map(packet.time, play_ns, rates.0, rates.1);
            match is_filtered {
                // Behind what the filter holds.
                true => self.held.begin(Begin { time, play_ns }),
                false => voice.begin(self.map.not_before_end(time), play_ns),
            }
        }
        self.is_after_pause = false;
        let begin = anew.next.filter(|_| follows).unwrap_or(packet.time);
        anew.next = Some(begin.plus(format.clock_units(frames as u32)));
        if self.config.packet_ns == 0 {
            voice.prefer_packet_ns(ns_of_frames(frames, format));
        }
        self.say(format, work, out);
    }

    /// Whether a packet of this timestamp follows on.
    fn goes_on(&self, time: RtpTime) -> bool {
        match &self.route {
            Route::Anew(anew) => anew
                .next
                .is_some_and(|next| follows(next, time, anew.decoder.format())),
            _ => true,
        }
    }

    /// The far side has something else in place of the audio: the next packet begins anew.
    pub(super) fn cut(&mut self) {
        if let Route::Anew(anew) = &mut self.route
            && anew.next.take().is_some()
        {
            anew.converter.reset();
        }
    }

    /// What was decoded goes on, unless it is muted, through the filter and the converter to the encoder. Filter and tap have the
    /// fewer channels of the two sides: a channel that was doubled would count twice in loudness.
    #[inline]
    fn say(&mut self, format: Format, work: &mut Work, out: &mut Out<'_>) {
        let (Route::Anew(anew), Some(voice)) = (&mut self.route, &mut self.voice) else {
            return;
        };
        if self.mode == Mode::Mute {
            work.decoded.fill(0.0);
        }
        if self.filter.is_some() {
            return self.say_filtered(work, out);
        }
        work.converted.clear();
        anew.converter.process(&work.decoded, &mut work.converted);
        voice.push(&work.converted, &mut self.map, out);
        if let Some(hush) = &mut anew.hush {
            hush.remember(&work.converted);
        }
        if let Some(tap) = &mut self.tap {
            match format.channels < voice.format.channels && !self.is_heard_at_output {
                true => tap.add(format, &work.decoded),
                false => tap.add(voice.format, &work.converted),
            }
            self.bound_tap();
        }
    }

    #[cold]
    fn say_filtered(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let at_output = self.is_filtered_at_output();
        if let (Route::Anew(anew), true) = (&mut self.route, at_output) {
            work.converted.clear();
            anew.converter.process(&work.decoded, &mut work.converted);
            std::mem::swap(&mut work.decoded, &mut work.converted);
        }
        if let Some(format) = self.filter_format() {
            self.filter_on(format, false, work, out);
        }
    }

    /// What the filter holds goes on.
    pub(super) fn drain_filter(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let Some(format) = self.filter_format() else {
            return;
        };
        if let Some(filter) = &mut self.filter {
            work.decoded.clear();
            filter.finish(format, &mut work.decoded);
            self.say_held(format, work, out);
            self.held.clear();
        }
    }

    /// Silence in place of what was lost. `false`: there is nothing that it would join on to.
    pub(super) fn fall_silent(
        &mut self,
        loss: &Loss<'_>,
        ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Route::Anew(anew) = &mut self.route else {
            return false;
        };
        let format = anew.decoder.format();
        let Some(next) = anew.next.filter(|next| follows(*next, loss.time, format)) else {
            return false;
        };
        let frames = (ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        anew.next = Some(next.plus(format.clock_units(frames as u32)));
        self.budget_ns -= ns;
        work.decoded.clear();
        let samples = frames * usize::from(format.channels);
        work.decoded.resize(samples, 0.0);
        self.say(format, work, out);
        true
    }

    /// Fills in what was lost, with at most `made_ns` of audio.
    pub(super) fn fill_in(
        &mut self,
        loss: &Loss<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Route::Anew(anew) = &mut self.route else {
            return;
        };
        let format = anew.decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        // After a pause, the next packet begins anew.
        let next = anew.next.filter(|next| follows(*next, loss.time, format));
        if frames == 0 || next.is_none() && self.ear.is_none() {
            return;
        }
        work.decoded.clear();
        if loss.packets > 1 || !anew.decoder.recover(loss.next, frames, &mut work.decoded) {
            anew.decoder.conceal(frames, &mut work.decoded);
        }
        if self.ear.is_some() && self.hear(format, loss.stretch(format, frames), work, out) {
            return self.cut();
        }
        let (Route::Anew(anew), Some(next)) = (&mut self.route, next) else {
            return;
        };
        anew.next = Some(next.plus(format.clock_units(frames as u32)));
        self.budget_ns -= made_ns;
        self.stats.concealed_ns += made_ns;
        self.say(format, work, out);
    }
}

/// Of an encoder that makes `to` of audio in this format.
fn encoder_settings(
    config: &DirectionConfig,
    to: Payload,
    format: Format,
    packet_ns: u64,
) -> EncoderSettings {
    let mut settings = config.encoder;
    if to.carries != Carries::Audio(format) {
        // Left to the library, telephone audio gets 11 kbit/s, and loses what it had.
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

/// Of Opus at less than 48 kHz. RFC 7587, section 3.1.1, has 8 to 12 kbit/s for telephone speech that is not encoded twice.
const BITS_PER_SAMPLE: u32 = 3;
/// A packet's own cost: with short packets, a tone drowns in noise otherwise.
const BITS_PER_PACKET: u32 = 100;
/// RFC 6716, section 2.1.4: "Opus can encode frames of 2.5, 5, 10, 20, 40, or 60 ms".
const PACKET_NS_SHORTEST: u64 = 2_500_000;
/// Timestamps that differ by less follow on: some senders round.
const SLACK_NS: u64 = 2_000_000;
