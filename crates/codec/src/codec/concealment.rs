//! Loss concealment for decoded audio of any number of channels, with a [`Concealer`] for each pair of channels.

use super::linear::{from_i16, to_i16};
use super::{CHANNELS_MAX, Format};
use crate::conceal::{self, Concealer, Gap};

/// Position in the gap for each pair of channels.
pub type Gaps = [Gap; (CHANNELS_MAX as usize).div_ceil(conceal::CHANNELS_MAX)];

#[derive(Debug)]
pub(super) struct Concealment {
    /// Concealers of channels 0 and 1, 2 and 3, and so on; the last one may have a single channel.
    pairs: Box<[Concealer]>,
    channels: usize,
    /// Audio of one pair of channels: in the concealer's format, and as received.
    audio: Vec<i16>,
    before: Vec<i16>,
}

impl Concealment {
    /// Creates the concealers; `None` if the rate is not supported.
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

    /// Takes received audio, and changes it only after a loss. The concealer works with 16 bits. So only the changes that it
    /// makes are added to the audio, and all other samples keep all their bits.
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

    /// Continues in a gap. The audio before the gap must have been passed already.
    pub(super) fn resume(&mut self, gaps: &Gaps) {
        for (gap, concealer) in gaps.iter().zip(&mut self.pairs) {
            concealer.resume(*gap);
        }
    }

    /// Fills all of `audio` in place of missing audio.
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
