//! The delay: rings with the queued audio. A row of a ring has one lane for each channel of a group.

use crate::limits::RATE_HZ_MAX;
use crate::sample::Sample;
use crate::simd::Level;
use crate::source::Source;

use super::settings::NormalizeError;
use crate::taps::{REACH_FRAMES, Taps};

/// The ring of up to four channels, with a row of lanes for each frame.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The first channel of the group.
    pub(super) first: usize,
    /// Number of channels; further lanes carry zeros.
    pub(super) live: usize,
    /// Number of lanes: 1, 2 or 4.
    width: usize,
    rows: Box<[f32]>,
}

/// Runs a method that has the number of lanes as its first constant.
macro_rules! by_width {
    ($line:expr, $G:ident => $call:expr) => {
        match $line.width {
            1 => {
                const $G: usize = 1;
                $call
            }
            2 => {
                const $G: usize = 2;
                $call
            }
            _ => {
                const $G: usize = 4;
                $call
            }
        }
    };
}

impl Line {
    pub(super) fn rows(&self, slot: usize, count: usize) -> &[f32] {
        &self.rows[slot * self.width..][..count * self.width]
    }

    fn rows_mut(&mut self, slot: usize, count: usize) -> &mut [f32] {
        &mut self.rows[slot * self.width..][..count * self.width]
    }

    pub(super) fn take_in<T: Sample>(
        &mut self,
        level: Level,
        samples: &[T],
        channels: usize,
        slot: usize,
        limit: f32,
    ) {
        let first = self.first;
        let count = samples.len() / channels;
        by_width!(self, G => level.take_in::<T, G>(samples, channels, first, limit, self.rows_mut(slot, count)));
    }

    pub(super) fn take_in_plane<T: Sample>(
        &mut self,
        level: Level,
        samples: &[T],
        lane: usize,
        slot: usize,
        limit: f32,
    ) {
        let count = samples.len();
        by_width!(self, G => level.take_in_plane::<T, G>(samples, lane, limit, self.rows_mut(slot, count)));
    }

    pub(super) fn give_out<T: Sample>(
        &self,
        level: Level,
        slot: usize,
        channels: usize,
        samples: &mut [T],
    ) {
        let rows = self.rows(slot, samples.len() / channels);
        by_width!(self, G => level.give_out::<T, G>(rows, channels, self.first, samples));
    }

    pub(super) fn give_out_plane<T: Sample>(
        &self,
        level: Level,
        slot: usize,
        lane: usize,
        samples: &mut [T],
    ) {
        let rows = self.rows(slot, samples.len());
        by_width!(self, G => level.give_out_plane::<T, G>(rows, lane, samples));
    }

    pub(super) fn ramp(&mut self, level: Level, slot: usize, count: usize, from: f32, step: f32) {
        by_width!(self, G => level.ramp::<G>(self.rows_mut(slot, count), from, step));
    }
}

/// The rings of all channels.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) lines: Box<[Line]>,
    /// Capacity in frames.
    pub(super) frames: u64,
    /// Memory for consecutive frames, for the filter.
    stretch: Vec<f32>,
}

impl Lines {
    pub(super) fn new(channels: usize, frames: u64) -> Result<Lines, NormalizeError> {
        let line = |first: usize| {
            let live = (channels - first).min(4);
            let width = live.next_power_of_two();
            let mut rows = Vec::new();
            let count = frames as usize * width;
            rows.try_reserve_exact(count)
                .map_err(|_| NormalizeError::Memory)?;
            rows.resize(count, 0.0);
            Ok(Line {
                first,
                live,
                width,
                rows: rows.into(),
            })
        };
        Ok(Lines {
            lines: (0..channels)
                .step_by(4)
                .map(line)
                .collect::<Result<_, _>>()?,
            frames,
            // Room for a cell at the highest rate, plus the reach of the filter.
            stretch: vec![0.0; (2 * REACH_FRAMES + RATE_HZ_MAX as usize / 2_000 + 1) * 4],
        })
    }

    /// Returns the place of a frame in the ring.
    pub(super) fn slot(&self, frame: u64) -> usize {
        (frame % self.frames) as usize
    }

    /// Returns the number of frames from `slot` to the end of the ring.
    pub(super) fn until_end(&self, slot: usize) -> usize {
        self.frames as usize - slot
    }

    pub(super) fn each(&mut self, work: impl FnMut(&mut Line)) {
        self.lines.iter_mut().for_each(work);
    }

    pub(super) fn silence(&mut self, slot: usize, count: usize) {
        self.each(|line| line.rows_mut(slot, count).fill(0.0));
    }

    pub(super) fn clear(&mut self) {
        self.each(|line| line.rows.fill(0.0));
    }

    /// Returns the frames from `frame` on, up to the end of the ring.
    pub(super) fn source(&self, frame: u64) -> Stretch<'_> {
        Stretch {
            lines: &self.lines,
            slot: self.slot(frame),
        }
    }

    /// Raises `peak` to the largest magnitude between the samples of `frames` frames. The frames start at `start`. If `start` is
    /// `None`, they start before the first frame, in silence.
    pub(super) fn between(
        &mut self,
        level: Level,
        taps: &Taps,
        start: Option<u64>,
        frames: usize,
        peak: &mut f32,
    ) {
        let before = if start.is_none() { REACH_FRAMES - 1 } else { 0 };
        let slot = self.slot(start.unwrap_or(0));
        let count = frames - before;
        let first = count.min(self.until_end(slot));
        for line in &self.lines {
            let stretch = &mut self.stretch[..frames * line.width];
            let (silence, sound) = stretch.split_at_mut(before * line.width);
            silence.fill(0.0);
            let (until_end, from_start) = sound.split_at_mut(first * line.width);
            until_end.copy_from_slice(line.rows(slot, first));
            from_start.copy_from_slice(line.rows(0, count - first));
            by_width!(line, G => level.between::<G>(taps, stretch, peak));
        }
    }
}

/// A stretch of queued audio, as the input of a meter.
pub(super) struct Stretch<'a> {
    lines: &'a [Line],
    slot: usize,
}

impl Source for Stretch<'_> {
    fn fill<const G: usize>(
        &self,
        _level: Level,
        at: usize,
        first: usize,
        _live: usize,
        lanes: &mut [[f64; G]],
    ) {
        let line = &self.lines[first / 4];
        let rows = line.rows(self.slot + at, lanes.len());
        for (to, from) in lanes.as_flattened_mut().iter_mut().zip(rows) {
            *to = f64::from(*from);
        }
    }
}
