//! Processes chunks of audio for several channels at once, from samples to energies and peaks.
//!
//! Up to four channels make a group, and each instruction works on all of them. Samples are widened to `f64` first, so
//! that there is one path for all types.

use std::cell::Cell;

use crate::simd::{KState, Level};
use crate::source::Source;
use crate::weighting::{FoldedPhases, KWeighting, Oversampling};

/// Common data of all groups of a meter, or of a batch of meters.
#[derive(Clone, Debug)]
pub(crate) struct Filters {
    pub(crate) level: Level,
    pub(crate) k: KWeighting,
    pub(crate) phases: FoldedPhases,
    pub(crate) oversampling: Oversampling,
    pub(crate) has_sample_peak: bool,
    pub(crate) has_true_peak: bool,
    /// Whether a filter restarts when its memory is not a number any more.
    pub(crate) is_recovering: bool,
}

/// Room for one chunk of one group.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    wide: Box<[f64]>,
    narrow: Box<[f32]>,
}

/// Maximum number of frames in a chunk. A chunk and its results fit the first-level cache.
pub(crate) const CHUNK_FRAMES: usize = 512;

/// Length of the longest filter of the true peak, in frames.
const HISTORY_FRAMES: usize = Oversampling::Twice.history_frames();

impl Scratch {
    /// Allocates memory for groups of this many channels. A mono meter takes a quarter of the memory of four channels, because
    /// there may be thousands of such meters.
    pub(crate) fn new(channels: usize) -> Scratch {
        let width = channels.clamp(1, 4).next_power_of_two();
        Scratch {
            wide: vec![0.0; CHUNK_FRAMES * width].into(),
            narrow: vec![0.0; (HISTORY_FRAMES + CHUNK_FRAMES) * width].into(),
        }
    }
}

/// Runs `work` with this thread's scratch memory, which is allocated on the first use. Meters share it, because there may be
/// thousands of them, and the memory is still in the cache for the next one.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local! {
        static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
    }
    let mut scratch = SCRATCH.take().unwrap_or_else(|| Scratch::new(LANES_MAX));
    let result = work(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

/// Maximum number of lanes in a group.
const LANES_MAX: usize = 4;

/// The filters and peaks of up to four channels.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Number of lanes of the vectors: 1, 2 or 4.
    width: usize,
    /// The group's first channel.
    pub(crate) first: usize,
    /// Number of channels; further lanes carry zeros.
    pub(crate) live: usize,
    /// Weights by lane. A channel without weight bypasses the filter, so its samples cannot enter a sum.
    pub(crate) weights: [f64; 4],
    /// Largest samples since [`Group::begin_call`].
    pub(crate) sample_peaks: [f64; 4],
    pub(crate) true_peaks: [f32; 4],
    state: KState,
    history: [f32; HISTORY_FRAMES * 4],
}

impl Group {
    /// Returns groups for this many channels. The first channel is `first`.
    pub(crate) fn cover(first: usize, channels: usize) -> impl Iterator<Item = Group> {
        (0..channels)
            .step_by(4)
            .map(move |at| Group::new(first + at, (channels - at).min(4)))
    }

    fn new(first: usize, live: usize) -> Group {
        Group {
            width: live.next_power_of_two(),
            first,
            live,
            weights: [0.0; 4],
            sample_peaks: [0.0; 4],
            true_peaks: [0.0; 4],
            state: KState::default(),
            history: [0.0; HISTORY_FRAMES * 4],
        }
    }

    /// Returns the group's channels as a range.
    pub(crate) fn channels(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.live
    }

    pub(crate) fn set_weights(&mut self, weights: &[f64]) {
        let weights = &weights[self.channels()];
        self.weights[..self.live].copy_from_slice(weights);
    }

    /// Resets the group.
    pub(crate) fn clear(&mut self) {
        self.begin_call();
        self.state = KState::default();
        self.history = [0.0; HISTORY_FRAMES * 4];
    }

    /// Resets one lane.
    pub(crate) fn clear_lane(&mut self, lane: usize) {
        let KState {
            input,
            middle,
            output,
        } = &mut self.state;
        for row in [input, middle, output].into_iter().flatten() {
            row[lane] = 0.0;
        }
        self.history
            .chunks_exact_mut(self.width)
            .for_each(|frame| frame[lane] = 0.0);
        (self.sample_peaks[lane], self.true_peaks[lane]) = (0.0, 0.0);
    }

    /// Resets the peaks of the last call.
    pub(crate) fn begin_call(&mut self) {
        self.sample_peaks = [0.0; 4];
        self.true_peaks = [0.0; 4];
    }

    /// Processes `count` frames (at most [`CHUNK_FRAMES`]) from `at` on. Returns the energy of each lane.
    ///
    /// Adds the weighted energy of each frame to `frames`, or writes it for the first group. Call [`Group::settle`] every 10 ms.
    pub(crate) fn process<S: Source>(
        &mut self,
        filters: &Filters,
        scratch: &mut Scratch,
        source: &S,
        (at, count): (usize, usize),
        frames: &mut [f64],
    ) -> [f64; 4] {
        let run = match self.width {
            1 => Group::run::<1, S>,
            2 => Group::run::<2, S>,
            _ => Group::run::<4, S>,
        };
        run(self, filters, scratch, source, (at, count), frames)
    }

    fn run<const G: usize, S: Source>(
        &mut self,
        filters: &Filters,
        scratch: &mut Scratch,
        source: &S,
        (at, count): (usize, usize),
        frames: &mut [f64],
    ) -> [f64; 4] {
        let level = filters.level;
        let lanes = &mut scratch.wide.as_chunks_mut::<G>().0[..count];
        if self.live < G {
            lanes.fill([0.0; G]);
        }
        source.fill(level, at, self.first, self.live, lanes);
        if filters.has_sample_peak {
            level.sample_peaks(lanes, &mut self.sample_peaks);
        }
        if filters.has_true_peak && filters.oversampling != Oversampling::None {
            self.interpolate::<G>(filters, lanes.as_flattened(), &mut scratch.narrow);
        }
        for lane in (0..self.live).filter(|lane| self.weights[*lane] == 0.0) {
            lanes.iter_mut().for_each(|row| row[lane] = 0.0);
        }
        let mut energy = [0.0; 4];
        level.weight(&filters.k, &mut self.state, lanes, &mut energy);
        if !frames.is_empty() {
            level.sum_lanes(lanes, &self.weights, self.first == 0, frames);
        }
        energy
    }

    fn interpolate<const G: usize>(&mut self, filters: &Filters, wide: &[f64], narrow: &mut [f32]) {
        let history = filters.oversampling.history_frames() * G;
        let samples = &mut narrow[..history + wide.len()];
        samples[..history].copy_from_slice(&self.history[..history]);
        filters.level.narrow(wide, &mut samples[history..]);
        let (oversampling, phases) = (filters.oversampling, &filters.phases);
        filters
            .level
            .interpolate::<G>(oversampling, phases, samples, &mut self.true_peaks);
        self.history[..history].copy_from_slice(&samples[wide.len()..]);
    }

    /// Clears filter memory that would fade for minutes. With `is_recovering`, it also clears memory that is not a number.
    ///
    /// This keeps denormals out of the filter if the processor does not flush them: in the 10 ms between two calls, the memory
    /// cannot fade from [`FADED`] down to a denormal.
    pub(crate) fn settle(&mut self, is_recovering: bool) {
        let KState {
            input,
            middle,
            output,
        } = &mut self.state;
        let rows = [input, middle, output].map(|pair| pair.as_flattened_mut());
        for row in rows {
            for value in row {
                let is_faded = value.abs() < FADED;
                let is_lost = is_recovering && !value.is_finite();
                if is_faded || is_lost {
                    *value = 0.0;
                }
            }
        }
    }

    /// Returns the largest value of a lane since the last call started, between the samples or at them.
    pub(crate) fn true_peak(&self, lane: usize) -> f64 {
        f64::from(self.true_peaks[lane]).max(self.sample_peaks[lane])
    }
}

/// Limit below which filter memory is cleared: -4000 dB.
const FADED: f64 = 1e-200;
