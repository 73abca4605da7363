//! A clip that a party hears instead of the other one.

use std::sync::Arc;

use super::{BUDGET_NS_MAX, Direction};
use crate::call::out::{Out, Work};
use crate::call::voice::PACKET_NS_DEFAULT;
use crate::call::{Clip, PlayError};
use crate::convert::Converter;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, PayloadMap};

#[derive(Debug)]
pub(super) struct Playing {
    clip: Clip,
    converter: Converter,
    /// Of the next sample to play.
    at: usize,
    next_ns: u64,
    /// 0: it does not end by itself.
    times_left: u32,
    has_begun: bool,
}

impl Direction {
    pub(in crate::call) fn begin_play(
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
        self.is_sounding = false;
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

    pub(in crate::call) fn end_play(&mut self) {
        if self.playing.take().is_some() {
            self.has_play_ended = true;
            self.map.restart();
            self.reroute();
        }
    }

    pub(in crate::call) fn take_play_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_play_ended)
    }

    pub(in crate::call) fn next_play(&self) -> Option<u64> {
        self.playing.as_ref().map(|playing| playing.next_ns)
    }

    /// Sends what of the clip is due.
    #[inline]
    pub(in crate::call) fn play(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        if self.next_play().is_none_or(|next_ns| next_ns > now_ns) {
            return;
        }
        self.play_on(now_ns, work, out);
    }

    #[cold]
    fn play_on(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
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
            work.converted.clear();
            playing.converter.process(part, &mut work.converted);
            voice.push(&work.converted, &mut self.map, out);
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
}
