//! The tone of a digit, for a side without telephone events.
//!
//! The packets of an event state its length so far (RFC 4733, section 2.5.1). Each packet extends the tone to this length. The tone
//! replaces the audio.

use super::output::Output;
use super::route::Route;
use crate::call::out::{Out, Work};
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::Carries;
use crate::tone::{Tone, ToneGenerator};

/// The tone of a digit, and its position in the stream.
#[derive(Debug, Default)]
pub(super) struct DigitTone {
    /// Whether the tone of the party's digit replaces the audio.
    pub(super) is_on: bool,
    sounding: Option<Box<Sounding>>,
}

#[derive(Debug)]
struct Sounding {
    generator: ToneGenerator,
    channels: usize,
    rate_hz: u32,
    made_ns: u64,
    made_frames: u64,
}

impl DigitTone {
    /// Returns the length of the tone so far, ns. `None` before the first tone.
    pub(super) fn made_ns(&self) -> Option<u64> {
        Some(self.sounding.as_ref()?.made_ns)
    }

    /// Starts a tone at a timestamp and play time. `is_playing` means that a clip is being played. Returns `None` if the tone cannot be
    /// encoded for the far side.
    pub(super) fn begin(
        &mut self,
        tone: Tone,
        (time, play_ns): (RtpTime, u64),
        is_playing: bool,
        output: &mut Output,
        out: &mut Out<'_>,
    ) -> Option<()> {
        let to = *out.leg.takes().audio();
        let Carries::Audio(format) = to.carries else {
            return None;
        };
        // Use the current encoder, whatever its sample rate is.
        let known = output.voice.as_ref().filter(|voice| voice.payload == to);
        let format = known.map_or(format, |voice| voice.format);
        output.set_voice(to, format, is_playing)?;
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
        output.voice.as_mut()?.begin(time, play_ns);
        self.sounding = Some(sounding);
        Some(())
    }

    pub(super) fn generate(
        &mut self,
        ns: u64,
        output: &mut Output,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let (Some(sounding), Some(voice)) = (&mut self.sounding, &mut output.voice) else {
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
        voice.push(&work.converted, &mut output.map, out);
    }

    /// Generates the end of the tone, if there is one, and sends the rest.
    pub(super) fn end(&mut self, output: &mut Output, work: &mut Work, out: &mut Out<'_>) {
        if std::mem::take(&mut self.is_on) {
            self.finish(output, work, out);
        }
    }

    pub(super) fn finish(&mut self, output: &mut Output, work: &mut Work, out: &mut Out<'_>) {
        if let Some(sounding) = &mut self.sounding {
            sounding.generator.stop();
        }
        self.generate(FADE_NS, output, work, out);
        if let Some(voice) = &mut output.voice {
            voice.finish(&mut output.map, out);
        }
        output.is_after_pause = true;
        if !matches!(output.route, Route::Reencode(_)) {
            output.reroute(); // the clock rate of the audio may differ
        }
    }
}

/// Duration of the tone that one packet of an event pays for, ns. It is a little more than the usual interval of 50 ms.
pub(super) const KEY_NS_MAX: u64 = 60_000_000;
/// Duration of the generator's fade, ns.
pub(super) const FADE_NS: u64 = 5_000_000;
