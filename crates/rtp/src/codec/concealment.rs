//! Loss concealment for decoded audio of any number of channels: a [`Concealer`] for each pair of them.

use super::format::CHANNELS_MAX;
use super::format::Format;
use super::linear::{from_i16, to_i16};
use crate::conceal::{self, Concealer, Gap};

/// Where concealment is in a gap, for each pair of channels.
pub(crate) type Gaps = [Gap; (CHANNELS_MAX as usize).div_ceil(conceal::CHANNELS_MAX)];

#[derive(Debug)]
pub(super) struct Concealment {
    /// For channels 0 and 1, 2 and 3, and so on; the last one may have one.
    pairs: Box<[Concealer]>,
    channels: usize,
    /// One pair's audio, as the concealer takes it and as it came.
    audio: Vec<i16>,
    before: Vec<i16>,
}

impl Concealment {
    /// `None` at a rate that cannot be concealed.
    pub(super) fn new(format: Format) -> Option<Concealment> {
        let channels = usize::from(format.channels);
        let pairs = (0..channels).step_by(conceal::CHANNELS_MAX).map(|first| {
            let width = (channels - first).min(conceal::CHANNELS_MAX);
            Concealer::new(format.sample_rate_hz, width).ok()
        });
        Some(Concealment {
            pairs: pairs.collect::<Option<_>>()?,
            channels,
            audio: Vec::new(),
            before: Vec::new(),
        })
    }

    /// Received audio. Left as is but after a loss. What was not touched keeps all of its bits, of which the concealer takes
    /// 16: only its changes are added.
    pub(super) fn pass(&mut self, audio: &mut [f32]) {
        for (pair, concealer) in self.pairs.iter_mut().enumerate() {
            let first = pair * conceal::CHANNELS_MAX;
            self.audio.clear();
            let width = (self.channels - first).min(conceal::CHANNELS_MAX);
            for frame in audio.chunks_exact(self.channels) {
                self.audio
                    .extend(frame[first..first + width].iter().map(|x| to_i16(*x)));
            }
            if !concealer.is_filling() {
                concealer.pass(&mut self.audio);
                continue;
            }
            self.before.clone_from(&self.audio);
            concealer.pass(&mut self.audio);
            let now = self
                .audio
                .chunks_exact(width)
                .zip(self.before.chunks_exact(width));
            for (frame, (now, before)) in audio.chunks_exact_mut(self.channels).zip(now) {
                for (channel, (now, before)) in now.iter().zip(before).enumerate() {
                    frame[first + channel] += from_i16(*now) - from_i16(*before);
                }
            }
        }
    }

    /// Forgets the audio so far.
    pub(super) fn reset(&mut self) {
        self.pairs.iter_mut().for_each(Concealer::reset);
    }

    pub(super) fn gaps(&self) -> Gaps {
        let mut gaps = Gaps::default();
        for (gap, concealer) in gaps.iter_mut().zip(&self.pairs) {
            *gap = concealer.gap();
        }
        gaps
    }

    /// Goes on in a gap, behind the audio that was passed.
    pub(super) fn resume(&mut self, gaps: &Gaps) {
        for (gap, concealer) in gaps.iter().zip(&mut self.pairs) {
            concealer.resume(*gap);
        }
    }

    /// Missing audio: fills all of `audio`.
    pub(super) fn fill(&mut self, audio: &mut [f32]) {
        let frames = audio.len() / self.channels;
        for (pair, concealer) in self.pairs.iter_mut().enumerate() {
            let first = pair * conceal::CHANNELS_MAX;
            let width = (self.channels - first).min(conceal::CHANNELS_MAX);
            self.audio.clear();
            self.audio.resize(frames * width, 0);
            concealer.fill(&mut self.audio);
            for (frame, filled) in audio
                .chunks_exact_mut(self.channels)
                .zip(self.audio.chunks_exact(width))
            {
                for (sample, filled) in frame[first..].iter_mut().zip(filled) {
                    *sample = from_i16(*filled);
                }
            }
        }
    }
}
