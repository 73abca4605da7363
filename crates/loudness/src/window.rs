//! The energy of the last frames. It can be read for any number of frames without summing all of them.
//!
//! A step of 100 ms is divided into sub-blocks of 10 ms. The window stores the energies of each channel per sub-block, and the
//! weighted sum over channels of each frame. If a window starts within a sub-block, the energy of that part is summed from single
//! frames.

use crate::limits::BuildError;

/// How exactly a window ends at the last frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// Exact to the frame. It takes 8 bytes per frame of the longest window: 1.2 MB for 3 s at 48 kHz.
    #[default]
    Frame,
    /// Exact to 10 ms: momentary loudness, short-term loudness and windows end with the last whole sub-block. It takes some KB.
    /// Integrated loudness and range are the same.
    Block,
    /// Exact to 100 ms, the step between gating blocks. Integrated loudness, range and peaks do not change. It takes a tenth of
    /// the memory of [`Resolution::Block`], and less time if 10 ms consist of only a few frames.
    Step,
}

/// The energies of the last frames.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    channels: usize,
    /// Number of frames in 100 ms, the step of the gating blocks.
    step_frames: u64,
    /// Number of frames of the longest window.
    frames_max: u64,
    /// Number of sub-blocks in a step: 10, or 1 if a sub-block would be less than a frame or is not needed.
    cuts: u64,
    /// Energies of whole sub-blocks: row `n % rows` for sub-block `n`, with a value per channel.
    blocks: Box<[f64]>,
    /// The energies of the sub-block that is being filled, by channel.
    open: Box<[f64]>,
    /// A ring with the weighted energies of single frames; empty if windows need to be exact only to a sub-block.
    frames: Box<[f64]>,
    /// Number of frames so far.
    position: u64,
    /// Number of whole sub-blocks so far.
    closed: u64,
    /// End of the open sub-block. This field and `ring_at` could be computed from the fields above, but that would need divisions
    /// in each call.
    open_end: u64,
    /// Place of the next frame in the ring.
    ring_at: usize,
}

impl Window {
    /// Creates the memory for windows of up to `frames_max` frames.
    pub(crate) fn new(
        channels: usize,
        step_frames: u64,
        frames_max: u64,
        resolution: Resolution,
    ) -> Result<Window, BuildError> {
        let is_cut = resolution != Resolution::Step && step_frames >= CUTS;
        let cuts = if is_cut { CUTS } else { 1 };
        // One row is for the sub-block in which a window starts, and one because the lengths of sub-blocks differ by a frame.
        let rows = frames_max.div_ceil(step_frames / cuts) + 2;
        let frames = match resolution {
            Resolution::Frame => frames_max,
            Resolution::Block | Resolution::Step => 0,
        };
        let mut window = Window {
            channels,
            step_frames,
            frames_max,
            cuts,
            blocks: zeroed(rows * channels as u64)?,
            open: zeroed(channels as u64)?,
            frames: zeroed(frames)?,
            position: 0,
            closed: 0,
            open_end: 0,
            ring_at: 0,
        };
        window.open_end = window.edge(1);
        Ok(window)
    }

    /// Resets the window.
    pub(crate) fn clear(&mut self) {
        self.blocks.fill(0.0);
        self.open.fill(0.0);
        self.frames.fill(0.0);
        self.position = 0;
        self.closed = 0;
        self.open_end = self.edge(1);
        self.ring_at = 0;
    }

    pub(crate) fn frames_max(&self) -> u64 {
        self.frames_max
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of frames that may be added before [`Window::advance`]: up to the end of a sub-block or of the ring.
    pub(crate) fn room(&self) -> usize {
        let block = (self.open_end - self.position) as usize;
        match self.frames.len() {
            0 => block,
            length => block.min(length - self.ring_at),
        }
    }

    /// Whether a sub-block ends with the next `count` frames.
    pub(crate) fn is_edge(&self, count: usize) -> bool {
        self.position + count as u64 == self.open_end
    }

    /// Returns slices for the energies of the next `count` frames. The first slice has the channels of the open sub-block; the
    /// caller adds to its values. The second slice has the frames, and is empty if windows are not exact to the frame; the caller
    /// overwrites its values.
    pub(crate) fn next(&mut self, count: usize) -> (&mut [f64], &mut [f64]) {
        let ring = match self.frames.len() {
            0 => &mut [],
            _ => &mut self.frames[self.ring_at..self.ring_at + count],
        };
        (&mut self.open, ring)
    }

    /// Adds this many frames. Returns whether a step of 100 ms ends with them.
    pub(crate) fn advance(&mut self, count: usize) -> bool {
        let is_edge = self.is_edge(count);
        self.position += count as u64;
        self.ring_at += count;
        if self.ring_at >= self.frames.len() {
            self.ring_at = 0;
        }
        if !is_edge {
            return false;
        }
        let row = self.row(self.closed);
        self.blocks[row..row + self.channels].copy_from_slice(&self.open);
        self.open.fill(0.0);
        self.closed += 1;
        self.open_end = self.edge(self.closed + 1);
        self.closed.is_multiple_of(self.cuts)
    }

    /// Returns the energy of the last `count` frames, weighted and summed over channels.
    pub(crate) fn energy(&self, count: u64, weights: &[f64]) -> f64 {
        let start = self.position.saturating_sub(count);
        let first = self.first_from(start);
        if self.frames.is_empty() {
            // If windows are not exact to the frame, the energy is that of the same number of whole sub-blocks, up to the last
            // one.
            let start = self.edge(self.closed).saturating_sub(count);
            return self.rows(self.first_from(start), weights);
        }
        if first > self.closed {
            return self.ring(start, self.position);
        }
        let open: f64 = weighted(&self.open, weights);
        self.ring(start, self.edge(first)) + self.rows(first, weights) + open
    }

    /// Returns the unweighted energy of one channel, in the whole sub-blocks of the last `count` frames.
    pub(crate) fn channel_energy(&self, count: u64, channel: usize) -> f64 {
        let start = self.edge(self.closed).saturating_sub(count);
        let rows = self.first_from(start)..self.closed;
        rows.map(|block| self.blocks[self.row(block) + channel])
            .sum()
    }

    /// Writes the energies of all channels to `sums`.
    pub(crate) fn energies(&self, count: u64, sums: &mut [f64]) {
        sums.fill(0.0);
        let start = self.edge(self.closed).saturating_sub(count);
        for block in self.first_from(start)..self.closed {
            let row = &self.blocks[self.row(block)..][..self.channels];
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, energy)| *sum += energy);
        }
    }

    /// Resets these channels as if they had been silent so far.
    pub(crate) fn clear_channels(&mut self, channels: std::ops::Range<usize>) {
        for row in self.blocks.chunks_exact_mut(self.channels) {
            row[channels.clone()].fill(0.0);
        }
        self.open[channels].fill(0.0);
    }

    /// Changes the weights of the channels. The ring of frames contains only sums over channels. A frame's sum is scaled by the
    /// change of the sum over its sub-block. This is exact if all audible channels are scaled by the same factor, or if only one
    /// channel is audible.
    pub(crate) fn reweigh(&mut self, before: &[f64], after: &[f64]) {
        if self.frames.is_empty() || before == after {
            return;
        }
        let length = self.frames.len() as u64;
        let kept = self.position.saturating_sub(length);
        let scale = |energies: &[f64]| {
            let sum = weighted(energies, before);
            if sum > 0.0 {
                weighted(energies, after) / sum
            } else {
                1.0
            }
        };
        for block in self.first_from(kept).saturating_sub(1)..=self.closed {
            let factor = if block == self.closed {
                scale(&self.open)
            } else {
                scale(&self.blocks[self.row(block)..][..self.channels])
            };
            for frame in self.edge(block).max(kept)..self.edge(block + 1).min(self.position) {
                self.frames[(frame % length) as usize] *= factor;
            }
        }
    }

    /// Returns the first frame of a sub-block.
    fn edge(&self, block: u64) -> u64 {
        block / self.cuts * self.step_frames + block % self.cuts * self.step_frames / self.cuts
    }

    /// Returns the first sub-block that starts at `frame` or later.
    fn first_from(&self, frame: u64) -> u64 {
        let mut block = frame / self.step_frames * self.cuts
            + frame % self.step_frames * self.cuts / self.step_frames;
        while self.edge(block) < frame {
            block += 1;
        }
        block
    }

    fn row(&self, block: u64) -> usize {
        let rows = (self.blocks.len() / self.channels) as u64;
        (block % rows) as usize * self.channels
    }

    /// Returns the sum of the whole sub-blocks from `first` on.
    fn rows(&self, first: u64, weights: &[f64]) -> f64 {
        let rows = first..self.closed;
        rows.map(|block| weighted(&self.blocks[self.row(block)..][..self.channels], weights))
            .sum()
    }

    /// Returns the sum of single frames.
    fn ring(&self, from: u64, to: u64) -> f64 {
        let length = self.frames.len() as u64;
        let (from, count) = ((from % length) as usize, (to - from) as usize);
        let until_end = count.min(self.frames.len() - from);
        let first: f64 = self.frames[from..from + until_end].iter().sum();
        first + self.frames[..count - until_end].iter().sum::<f64>()
    }
}

const CUTS: u64 = 10;

fn weighted(energies: &[f64], weights: &[f64]) -> f64 {
    energies
        .iter()
        .zip(weights)
        .map(|(energy, weight)| energy * weight)
        .sum()
}

/// Allocations of up to this number of values are not checked first.
const UNCHECKED_VALUES: u64 = 8 << 20;

/// Allocates zeros; beyond 64 MB, a lack of memory is an error instead of an abort.
fn zeroed(count: u64) -> Result<Box<[f64]>, BuildError> {
    if count <= UNCHECKED_VALUES {
        return Ok(vec![0.0; count as usize].into());
    }
    let mut values = Vec::new();
    let count = usize::try_from(count).map_err(|_| BuildError::Memory)?;
    values
        .try_reserve_exact(count)
        .map_err(|_| BuildError::Memory)?;
    values.resize(count, 0.0);
    Ok(values.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a window frame by frame, with an energy that identifies each frame.
    fn filled(step_frames: u64, frames_max: u64, frames: u64) -> Window {
        let mut window = Window::new(1, step_frames, frames_max, Resolution::Frame).unwrap();
        for frame in 0..frames {
            let energy = value(frame);
            let (open, ring) = window.next(1);
            open[0] += energy;
            ring[0] = energy;
            window.advance(1);
        }
        window
    }

    fn value(frame: u64) -> f64 {
        (frame * 7 % 1_000) as f64
    }

    #[test]
    fn a_window_is_the_sum_of_its_frames() {
        for step_frames in [2, 3, 9, 10, 11, 23, 441] {
            let frames_max = step_frames * 30;
            for frames in [0, 1, 5, step_frames * 12 + 3, step_frames * 47 + 1] {
                let window = filled(step_frames, frames_max, frames);
                for count in [
                    0,
                    1,
                    2,
                    step_frames / 2,
                    step_frames * 4,
                    frames_max - 1,
                    frames_max,
                ] {
                    let naive: f64 = (frames.saturating_sub(count)..frames).map(value).sum();
                    let found = window.energy(count, &[1.0]);
                    assert_eq!(found, naive, "{step_frames} {frames} {count}");
                }
            }
        }
    }

    #[test]
    fn a_step_ends_every_100_ms() {
        let mut window = Window::new(1, 23, 23 * 4, Resolution::Frame).unwrap();
        let ends: Vec<u64> = (1..=92).filter(|_| window.advance(1)).collect();
        assert_eq!(ends, [23, 46, 69, 92]);
    }

    #[test]
    fn new_weights_apply_to_earlier_samples() {
        let mut window = filled(100, 400, 777);
        window.reweigh(&[1.0], &[2.0]);
        for count in [3, 100, 123, 400] {
            let naive: f64 = (777 - count..777).map(value).sum();
            assert!(
                (window.energy(count, &[2.0]) - 2.0 * naive).abs() < 1e-6,
                "{count}"
            );
        }
    }
}
