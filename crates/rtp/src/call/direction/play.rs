//! A clip, a tone or silence that a party hears instead of the other party.

use std::sync::Arc;

use super::filter_delay::Begin;
use super::output::{BUDGET_NS_MAX, Output};
use super::route::Route;
use crate::call::out::{Out, Work};
use crate::call::voice::PACKET_NS_DEFAULT;
use crate::call::{Part, PlayError, PlayLeft, Sound};
use crate::codec::Format;
use crate::convert::Converter;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, PayloadMap};
use crate::tone::ToneGenerator;

#[derive(Debug)]
struct Playing {
    source: Source,
    converter: Converter,
    /// Format after the converter.
    to: Format,
    /// Frames per second of the source.
    rate_hz: u32,
    channels: u8,
    next_ns: u64,
    has_begun: bool,
}

/// Source of the samples.
#[derive(Debug)]
enum Source {
    Clip {
        pcm: Arc<[f32]>,
        /// Index of the next sample to play.
        at: usize,
        /// Number of remaining plays. 0: endless.
        times_left: u32,
        /// Number of remaining samples of all plays.
        samples_left: u64,
    },
    Tone(Box<ToneGenerator>),
    Silence,
}

impl Source {
    /// Appends the next `samples` to `pcm`, or fewer at the end of the clip. Returns whether the clip has ended.
    fn next(&mut self, samples: usize, pcm: &mut Vec<f32>) -> bool {
        match self {
            Source::Clip {
                pcm: clip,
                at,
                times_left,
                samples_left,
            } => {
                let wanted = usize::try_from(*samples_left).unwrap_or(samples);
                let end = (*at + samples.min(wanted)).min(clip.len());
                pcm.extend_from_slice(&clip[*at..end]);
                *samples_left -= (end - *at) as u64;
                *at = end;
                if end < clip.len() {
                    return *samples_left == 0;
                }
                *at = 0;
                let is_over = *times_left == 1 || *samples_left == 0;
                *times_left = times_left.saturating_sub(1);
                is_over
            }
            Source::Tone(generator) => {
                generator.generate(samples, pcm);
                false
            }
            Source::Silence => {
                pcm.resize(pcm.len() + samples, 0.0);
                false
            }
        }
    }
}

/// Creates the source of a sound for audio of this rate. Returns it with its own rate and channels.
fn source_of(sound: Sound, part: Part, to_rate_hz: u32) -> Result<(Source, u32, u8), PlayError> {
    let clip = match sound {
        Sound::Clip(clip) => clip,
        Sound::Tone(tone) => {
            let mut generator = ToneGenerator::new(to_rate_hz).map_err(|_| PlayError::NoFormat)?;
            generator.start(*tone);
            return Ok((Source::Tone(Box::new(generator)), to_rate_hz, 1));
        }
        Sound::Silence => return Ok((Source::Silence, to_rate_hz, 1)),
    };
    let channels = usize::from(clip.channels.max(1));
    if clip.pcm.is_empty() || !clip.pcm.len().is_multiple_of(channels) {
        return Err(PlayError::Length(clip.pcm.len()));
    }
    let frames = clip.pcm.len() / channels;
    let begin = usize::try_from(part.start_frame).unwrap_or(frames);
    let samples_left = part.duration_ns.map_or(u64::MAX, |ns| {
        let frames = u128::from(ns) * u128::from(clip.rate_hz) / u128::from(NS_PER_S);
        u64::try_from(frames * channels as u128).unwrap_or(u64::MAX)
    });
    let source = Source::Clip {
        at: begin.min(frames) * channels,
        pcm: clip.pcm,
        times_left: clip.times,
        samples_left,
    };
    Ok((source, clip.rate_hz, clip.channels))
}

/// The clip or other sound that a party hears instead of the other party.
#[derive(Debug, Default)]
pub(super) struct Player {
    playing: Option<Box<Playing>>,
    has_ended: bool,
}

impl Player {
    /// Whether a sound is being played.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.playing.is_some()
    }

    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        sound: Sound,
        part: Part,
        payloads: &PayloadMap,
        is_sending_digit: bool,
        output: &mut Output,
    ) -> Result<(), PlayError> {
        let to = *payloads.audio();
        let Carries::Audio(format) = to.carries else {
            return Err(PlayError::NoFormat);
        };
        let (source, rate_hz, channels) = source_of(sound, part, format.sample_rate_hz)?;
        let converter = Converter::new(rate_hz, channels, format.sample_rate_hz, format.channels)
            .map_err(|_| PlayError::Format { rate_hz, channels })?;
        // A pressed digit keeps the encoder until it ends.
        if !is_sending_digit {
            output
                .set_voice(to, format, self.is_on())
                .ok_or(PlayError::NoFormat)?;
            output.map.restart();
        }
        self.playing = Some(Box::new(Playing {
            source,
            converter,
            to: format,
            rate_hz,
            channels,
            next_ns: now_ns,
            has_begun: false,
        }));
        Ok(())
    }

    pub(super) fn end(&mut self, output: &mut Output) {
        if self.playing.take().is_some() {
            self.has_ended = true;
            output.map.restart();
            output.reroute();
            // The encoder of this route may have changed, so a loss that comes before the next packet must not use the route.
            if matches!(output.route, Route::Reencode(_)) {
                output.route = Route::Nowhere;
            }
        }
    }

    pub(super) fn left(&self) -> Option<PlayLeft> {
        let playing = self.playing.as_deref()?;
        let Source::Clip {
            at,
            times_left,
            samples_left,
            ..
        } = &playing.source
        else {
            return None;
        };
        let channels = usize::from(playing.channels.max(1));
        let duration_ns = (*samples_left < u64::MAX).then(|| {
            let frames = u128::from(*samples_left / channels as u64);
            // The duration is rounded up, so that it covers all frames.
            let ns = (frames * u128::from(NS_PER_S)).div_ceil(u128::from(playing.rate_hz.max(1)));
            u64::try_from(ns).unwrap_or(u64::MAX)
        });
        Some(PlayLeft {
            times: *times_left,
            part: Part {
                start_frame: (at / channels) as u64,
                duration_ns,
            },
        })
    }

    pub(super) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.playing.as_ref().map(|playing| playing.next_ns)
    }

    /// Restarts the clip with its next packet, after other audio, or because the far side has other payload types.
    pub(super) fn resume(&mut self, now_ns: u64, output: &mut Output) {
        if let Some(playing) = &mut self.playing {
            playing.next_ns = playing.next_ns.max(now_ns);
            playing.has_begun = false;
            output.map.restart();
        }
    }

    /// Sends the sound's audio that is due.
    #[cold]
    pub(super) fn play(
        &mut self,
        now_ns: u64,
        output: &mut Output,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some(playing) = &mut self.playing else {
            return;
        };
        if playing.play(now_ns, output, work, out) {
            output.flush_voice(out);
            self.end(output);
        }
        output.bound_tap();
    }
}

impl Playing {
    /// Prepares the encoder and its converter. Returns `None` if the far side accepts no audio that can be encoded.
    fn prepare(&mut self, output: &mut Output, out: &mut Out<'_>) -> Option<()> {
        output.flush_bytes(out);
        let to = *out.leg.takes().audio();
        let Carries::Audio(format) = to.carries else {
            return None;
        };
        if !output.is_heard_at_output || output.filter.is_none() {
            output.flush_voice(out);
        }
        // The encoder starts again, so its packet time may change.
        output.set_voice(to, format, false)?;
        if self.to != format {
            let (rate_hz, channels) = (self.rate_hz, self.channels);
            self.converter =
                Converter::new(rate_hz, channels, format.sample_rate_hz, format.channels).ok()?;
            self.to = format;
        }
        Some(())
    }

    /// Plays the audio that is due. Returns whether the clip has ended.
    fn play(
        &mut self,
        now_ns: u64,
        output: &mut Output,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let is_filtered = output.is_heard_at_output && output.filter.is_some();
        if !self.has_begun && self.prepare(output, out).is_none() {
            return true;
        }
        let Some(voice) = &mut output.voice else {
            return true;
        };
        let (format, rate_hz) = (voice.format, voice.payload.clock_rate_hz);
        out.leg.set_sent_clock_rate(rate_hz);
        if now_ns.saturating_sub(self.next_ns) > BUDGET_NS_MAX {
            self.next_ns = now_ns; // audio whose time has passed is skipped
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            let play_ns = self.next_ns;
            let time = output.map.map(RtpTime(0), play_ns, rate_hz, rate_hz);
            if is_filtered {
                output.filter_delay.begin(Begin { time, play_ns })
            } else {
                voice.begin(time, play_ns)
            }
        }
        let channels = usize::from(self.channels.max(1));
        let samples =
            channels * (PACKET_NS_DEFAULT * u64::from(self.rate_hz) / NS_PER_S).max(1) as usize;
        let mut is_over = false;
        while self.next_ns <= now_ns && !is_over {
            work.decoded.clear();
            is_over = self.source.next(samples, &mut work.decoded);
            let frames = work.decoded.len() / channels;
            self.next_ns += frames as u64 * NS_PER_S / u64::from(self.rate_hz);
            work.converted.clear();
            self.converter.process(&work.decoded, &mut work.converted);
            if is_filtered {
                std::mem::swap(&mut work.decoded, &mut work.converted);
                output.filter_on(format, false, work, out);
                continue;
            }
            if let Some(tap) = output.tap.as_mut().filter(|_| output.is_heard_at_output) {
                tap.add(format, &work.converted);
            }
            if let Some(voice) = &mut output.voice {
                voice.push(&work.converted, &mut output.map, out);
            }
        }
        output.expect_next(self.next_ns);
        is_over
    }
}

/// Checks that a sound can be played.
pub(in crate::call) fn check_sound(sound: &Sound, payloads: &PayloadMap) -> Result<(), PlayError> {
    let Carries::Audio(to) = payloads.audio().carries else {
        return Err(PlayError::NoFormat);
    };
    let (_, rate_hz, channels) = source_of(sound.clone(), Part::default(), to.sample_rate_hz)?;
    Converter::new(rate_hz, channels, to.sample_rate_hz, to.channels)
        .map_err(|_| PlayError::Format { rate_hz, channels })?;
    Ok(())
}
