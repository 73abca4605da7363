//! A digit's tone, for a side without telephone events.
//!
//! The packets of an event give its length so far (RFC 4733, section 2.5.1). Each packet extends the tone to that length, in
//! place of the audio.

use super::{BUDGET_NS_MAX, Direction, Route};
use crate::call::TAIL_NS_MAX;
use crate::call::keys::KeyPayload;
use crate::call::out::{Out, Work};
use crate::dtmf;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, MediaPacket, Payload};
use crate::tone::{Tone, ToneGenerator};

#[derive(Debug)]
pub(super) struct Sounding {
    generator: ToneGenerator,
    channels: usize,
    rate_hz: u32,
    made_ns: u64,
    made_frames: u64,
}

impl Direction {
    pub(super) fn sound_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some(key) = self.key else { return };
        let from_hz = self.incoming_rate().unwrap_or(payload.clock_rate_hz);
        if key.time.is_none() && self.begin_tone(packet, told, from_hz, out).is_none() {
            self.stats.dropped += 1;
            return;
        }
        if !self.is_sounding {
            return; // One of the packets that repeat the end.
        }
        // Each packet pays for the time since the previous one at most, even if it claims more. That time includes lost
        // packets.
        let passed_ns = out.now_ns.saturating_sub(self.key_paid_ns);
        self.key_paid_ns = out.now_ns;
        let earned_ns = passed_ns.min(KEY_NS_MAX);
        self.budget_ns = self.budget_ns.saturating_add(earned_ns).min(BUDGET_NS_MAX);
        let Some(sounding) = &mut self.sounding else {
            return;
        };
        // The fade is generated when the digit ends.
        let wanted_ns = key.ns().saturating_sub(sounding.made_ns + FADE_NS);
        let ns = wanted_ns.min(KEY_NS_MAX + TAIL_NS_MAX).min(self.budget_ns);
        self.budget_ns -= ns;
        self.make_tone(ns, work, out);
        if told.is_end {
            self.end_tone(work, out);
        }
    }

    /// Starts the tone of the pressed digit. Returns `None` if the tone is unknown or has no codec.
    fn begin_tone(
        &mut self,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        from_hz: u32,
        out: &mut Out<'_>,
    ) -> Option<()> {
        let tone = Tone::key(dtmf::Key::new(told.event)?, told.volume, 0);
        let to_hz = out.leg.takes().audio().clock_rate_hz;
        self.flush(out);
        let time = self.map.map(packet.time, packet.play_ns, from_hz, to_hz);
        let time = self.map.not_before_end(time);
        self.begin_sounding(tone, time, packet.play_ns, out)?;
        self.key.as_mut()?.time = Some(time);
        self.is_sounding = true;
        Some(())
    }

    /// Starts a tone at `time`. Returns `None` if the far side has no codec for it.
    pub(super) fn begin_sounding(
        &mut self,
        tone: Tone,
        time: RtpTime,
        play_ns: u64,
        out: &mut Out<'_>,
    ) -> Option<()> {
        let to = *out.leg.takes().audio();
        let Carries::Audio(format) = to.carries else {
            return None;
        };
        // Use the current encoder, whatever its rate.
        let known = self.voice.as_ref().filter(|voice| voice.payload == to);
        let format = known.map_or(format, |voice| voice.format);
        self.set_voice(to, format)?;
        let rate_hz = format.sample_rate_hz;
        let known = self.sounding.take();
        let mut sounding = match known.filter(|known| known.rate_hz == rate_hz) {
            Some(known) => known,
            None => Box::new(Sounding {
                generator: ToneGenerator::new(rate_hz).ok()?,
                channels: 0,
                rate_hz,
                made_ns: 0,
                made_frames: 0,
            }),
        };
        sounding.generator.start(tone);
        sounding.channels = usize::from(format.channels);
        (sounding.made_ns, sounding.made_frames) = (0, 0);
        out.leg.set_sent_clock_rate(to.clock_rate_hz);
        self.voice.as_mut()?.begin(time, play_ns);
        self.sounding = Some(sounding);
        Some(())
    }

    pub(super) fn make_tone(&mut self, ns: u64, work: &mut Work, out: &mut Out<'_>) {
        let (Some(sounding), Some(voice)) = (&mut self.sounding, &mut self.voice) else {
            return;
        };
        sounding.made_ns += ns;
        let frames = sounding.made_ns * u64::from(sounding.rate_hz) / NS_PER_S;
        let new = frames.saturating_sub(sounding.made_frames) as usize;
        sounding.made_frames = frames;
        work.decoded.clear();
        sounding.generator.generate(new, &mut work.decoded);
        work.converted.clear();
        let samples = work.decoded.iter();
        let samples = samples.flat_map(|sample| std::iter::repeat_n(*sample, sounding.channels));
        work.converted.extend(samples);
        voice.push(&work.converted, &mut self.map, out);
    }

    /// Generates the end of the tone, if any, and sends the rest.
    pub(super) fn end_tone(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if std::mem::take(&mut self.is_sounding) {
            self.finish_tone(work, out);
        }
    }

    pub(super) fn finish_tone(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if let Some(sounding) = &mut self.sounding {
            sounding.generator.stop();
        }
        self.make_tone(FADE_NS, work, out);
        if let Some(voice) = &mut self.voice {
            voice.finish(&mut self.map, out);
        }
        self.is_after_pause = true;
        if !matches!(self.route, Route::Reencode(_)) {
            self.reroute(); // The audio's clock rate may differ.
        }
    }
}

/// Tone that one packet of an event pays for: a little more than the usual interval of 50 ms.
const KEY_NS_MAX: u64 = 60_000_000;
/// The generator's fade.
pub(super) const FADE_NS: u64 = 5_000_000;
