//! Loudness normalisation of one live stream.
//!
//! - `programme`: how loud the programme is, every 100 ms, and so the gain.
//! - `limiter`: the envelopes that keep the true peak below its limit; `crate::taps`: how that is measured.
//! - `line`: the delay, three seconds of it.
//! - This file: the audio's way through them. In the delay lines lie, from the newest to the oldest frame,
//!
//! ```text
//!   written .. measured .. (2.9 s) .. judged .. shaped .. checked .. finished .. taken
//! ```
//!
//! What is *judged* has been looked at for peaks; *shaped* has the gains of the programme and of the limiter's first pass on
//! it; *checked* has been looked at again; *finished* has the second pass on it, and may be taken. Each of these goes from cell
//! to cell (half a millisecond), at places that depend on the number of frames alone: however the audio is cut into calls,
//! the same comes out, to the bit.

mod limiter;
mod line;
mod programme;
mod settings;

pub use settings::{NormalizeError, NormalizerSettings, NormalizerState};

use crate::builder::Builder;
use crate::channel::Channel;
use crate::lanes::{CHUNK_FRAMES, Filters, Group, Scratch};
use crate::limits::{BuildError, RATE_HZ_MAX};
use crate::meter::Meter;
use crate::mode::Mode;
use crate::sample::{InputError, Sample};
use crate::simd::{Level, with_denormals_flushed};

use crate::taps::{REACH_FRAMES, Taps};
use crate::window::Resolution;
use limiter::Limiter;
use line::{Line, Lines};
use programme::Programme;

/// The delay: what is looked ahead, in steps of 100 ms.
const LATENCY_STEPS: u64 = 30;
/// So many more steps can be written before something has to be taken.
const ROOM_STEPS: u64 = 2;
/// Below, the shelf of the K-weighting lies beyond the band.
const RATE_HZ_LEAST: u32 = 4_000;
/// +60 dB of full scale: what is beyond is no sound but a mistake, which would be all that counts for three seconds.
const SAMPLE_MAX: f32 = 1_000.0;
/// By how much the limiter stays below its limit. Meters read at other places between samples and with other filters: of bursts
/// of noise that fill the band, the one of libswresample finds up to 0.1 dB more.
const MARGIN_DB: f64 = 0.15;
/// By how much its first pass stays below that, so that the second has little to do.
const FIRST_MARGIN_DB: f64 = 0.02;
/// A limit that is changed while playing is gone to by so much per step of 100 ms.
const CEILING_DB_STEP: f64 = 3.0;
/// Gains by node, a ring: more than lie between the newest and what is taken.
const NODES: usize = 8;

/// Brings one stream of audio to a target loudness, under a limit for its true peak.
///
/// The gain follows the loudness of the programme (EBU R128: K-weighted, channels weighted by their places, silence and what
/// is 10 LU below the programme not counted), with 3 s of look-ahead and so that what the programme has of dynamics within
/// [`NormalizerSettings::loudness_range_target_lu`] stays. A limiter keeps the true peak of what comes out below
/// [`NormalizerSettings::max_true_peak_dbtp`], at the rate of the audio itself.
///
/// Frames go in with `add_*` and come out with `take_*`, [`Normalizer::latency_frames`] later, unchanged in number; at the end
/// of the stream, [`Normalizer::drain`] makes the rest come. Nothing is allocated after construction. Samples are kept as
/// `f32`: what that rounds lies 150 dB below the sample. What is not a number, or more than 60 dB above full
/// scale, counts as silence.
///
/// ```
/// use threadbare_loudness::{Channel, Normalizer, NormalizerSettings};
///
/// let settings = NormalizerSettings { loudness_target_lufs: -23.0, ..Default::default() };
/// let mut normalizer = Normalizer::new(48_000, &[Channel::Left, Channel::Right], settings)?;
/// let quiet: Vec<f32> = (0..48_000 * 5).flat_map(|n| [0.02 * (n as f32 * 0.1).sin(); 2]).collect();
/// let (mut loud, mut block) = (Vec::new(), [0f32; 2 * 1024]);
/// let mut rest = &quiet[..];
/// while !rest.is_empty() {
///     let frames = normalizer.add_interleaved(rest)?;
///     rest = &rest[frames * 2..];
///     if rest.is_empty() {
///         normalizer.drain();
///     }
///     loop {
///         let frames = normalizer.take_interleaved(&mut block)?;
///         if frames == 0 {
///             break;
///         }
///         loud.extend_from_slice(&block[..frames * 2]);
///     }
/// }
/// assert_eq!(loud.len(), quiet.len());
/// let gain = loud[30_000] / quiet[30_000];
/// assert!((3.0..4.0).contains(&gain));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Normalizer {
    rate_hz: u32,
    channels: usize,
    step_frames: u64,
    settings: NormalizerSettings,
    level: Level,
    taps: Taps,
    lines: Lines,
    filters: Filters,
    groups: Box<[Group]>,
    scratch: Scratch,
    weights: Vec<f64>,
    programme: Programme,
    limiter: Limiter,
    outgoing: Meter,
    /// Factors by node, and how many there have been.
    gains: [f64; NODES],
    nodes: u64,
    /// Weighted energy of the step that is being measured.
    step_energy: f64,
    ceiling_db: f64,
    /// Largest samples by cell, before and after the first pass, and what may not be exceeded there.
    peaks: [f32; CELLS],
    shaped_peaks: [f32; CELLS],
    ceilings: [f32; CELLS],
    at: Positions,
    /// Where the stream ends, once that is known.
    end: Option<u64>,
    least_gain: f32,
}

/// More cells than are between what is judged and what is finished.
const CELLS: usize = 256;

/// How far each stage is: the first two and the last in frames, the others in cells.
#[derive(Clone, Copy, Debug, Default)]
struct Positions {
    written: u64,
    measured: u64,
    peaked: u64,
    judged: u64,
    shaped: u64,
    checked: u64,
    finished: u64,
    taken: u64,
}

impl Normalizer {
    /// For audio of `rate_hz` frames a second, 4000 to 2,822,400, of channels that stand there, 1 to 64.
    ///
    /// # Errors
    /// Rate, channels or settings are not within the limits, or there is no memory.
    pub fn new(
        rate_hz: u32,
        layout: &[Channel],
        settings: NormalizerSettings,
    ) -> Result<Normalizer, NormalizeError> {
        settings.check()?;
        if !(RATE_HZ_LEAST..=RATE_HZ_MAX).contains(&rate_hz) {
            return Err(NormalizeError::Rate(rate_hz));
        }
        let builder = Builder::new(rate_hz, layout.len()).layout(layout);
        let mode = Mode::SHORT_TERM | Mode::TRUE_PEAK | Mode::INTEGRATED | Mode::HISTOGRAM;
        let outgoing = builder.clone().mode(mode).resolution(Resolution::Block);
        let outgoing = outgoing.build().map_err(|error| match error {
            BuildError::DualMono(channels) => NormalizeError::DualMono(channels),
            BuildError::Memory => NormalizeError::Memory,
            _ => NormalizeError::Channels(layout.len()),
        })?;
        let limiter = Limiter::new(rate_hz);
        let step_frames = builder.step_frames();
        let room = (LATENCY_STEPS + ROOM_STEPS) * step_frames;
        let weights: Vec<f64> = layout.iter().map(|place| place.weight()).collect();
        let mut groups: Box<[Group]> = Group::cover(0, layout.len()).collect();
        groups
            .iter_mut()
            .for_each(|group| group.set_weights(&weights));
        let mut filters = builder.filters();
        (filters.has_sample_peak, filters.has_true_peak) = (false, false);
        Ok(Normalizer {
            rate_hz,
            channels: layout.len(),
            step_frames,
            settings,
            level: filters.level,
            taps: Taps::new(),
            lines: Lines::new(layout.len(), room.next_multiple_of(limiter.cell_frames))?,
            filters,
            groups,
            scratch: Scratch::new(layout.len()),
            weights,
            programme: Programme::new(&settings),
            outgoing,
            gains: [1.0; NODES],
            nodes: 0,
            step_energy: 0.0,
            ceiling_db: settings.max_true_peak_dbtp,
            peaks: [0.0; CELLS],
            shaped_peaks: [0.0; CELLS],
            ceilings: [1.0; CELLS],
            at: Positions::default(),
            end: None,
            least_gain: 1.0,
            limiter,
        })
    }

    /// How many frames later a frame comes out than it went in: 3 s, always.
    #[must_use]
    pub fn latency_frames(&self) -> u64 {
        LATENCY_STEPS * self.step_frames
    }

    /// How many channels there are.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Frames per second.
    #[must_use]
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// What it is told to do.
    #[must_use]
    pub fn settings(&self) -> &NormalizerSettings {
        &self.settings
    }

    /// Tells it something else. It goes there by 3 dB every 100 ms at most, beginning with what comes out 0.3 s from here.
    ///
    /// # Errors
    /// A value is out of its range; nothing changed.
    pub fn set_settings(&mut self, settings: NormalizerSettings) -> Result<(), NormalizeError> {
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    /// Adds interleaved samples: whole frames, a sample of each channel after the other. Says how many frames it took: all,
    /// as long as less than 200 ms are waiting to be taken; none after [`Normalizer::drain`].
    ///
    /// # Errors
    /// The last frame is not whole; nothing was added.
    pub fn add_interleaved<T: Sample>(&mut self, samples: &[T]) -> Result<usize, InputError> {
        let channels = self.channels;
        if !samples.len().is_multiple_of(channels) {
            let samples = samples.len();
            return Err(InputError::PartialFrame { samples, channels });
        }
        let level = self.level;
        Ok(
            self.add(samples.len() / channels, |lines, (slot, from, count)| {
                let samples = &samples[from * channels..][..count * channels];
                lines.each(|line| line.take_in(level, samples, channels, slot, SAMPLE_MAX));
            }),
        )
    }

    /// Adds planar samples, a slice for each channel, else as [`Normalizer::add_interleaved`].
    ///
    /// # Errors
    /// There are not as many slices as channels, or they differ in length; nothing was added.
    pub fn add_planar<T: Sample, P: AsRef<[T]>>(
        &mut self,
        planes: &[P],
    ) -> Result<usize, InputError> {
        let frames = check_planes(
            planes.iter().map(|plane| plane.as_ref().len()),
            self.channels,
        )?;
        let level = self.level;
        Ok(self.add(frames, |lines, (slot, from, count)| {
            lines.each(|line| {
                for lane in 0..line.live {
                    let plane = &planes[line.first + lane].as_ref()[from..][..count];
                    line.take_in_plane(level, plane, lane, slot, SAMPLE_MAX);
                }
            });
        }))
    }

    /// Adds so many frames in which nothing is heard, as for a gap in a stream. Says how many it took.
    pub fn add_silence(&mut self, frames: usize) -> usize {
        self.add(frames, |lines, (slot, _, count)| lines.silence(slot, count))
    }

    /// `write` gets where in the lines, from which frame on, and how many.
    fn add(&mut self, frames: usize, write: impl Fn(&mut Lines, (usize, usize, usize))) -> usize {
        if self.end.is_some() {
            return 0;
        }
        with_denormals_flushed(|| self.write(frames, write))
    }

    fn write(&mut self, frames: usize, write: impl Fn(&mut Lines, (usize, usize, usize))) -> usize {
        let room = self.lines.frames - (self.at.written - self.at.taken);
        let frames = room.min(frames as u64) as usize;
        let mut done = 0;
        while done < frames {
            let slot = self.lines.slot(self.at.written);
            let until = self
                .unit_end()
                .min(self.at.written + self.lines.until_end(slot) as u64);
            let count = ((until - self.at.written) as usize).min(frames - done);
            write(&mut self.lines, (slot, done, count));
            self.at.written += count as u64;
            done += count;
            if self.at.written == self.unit_end() {
                self.measure();
            }
        }
        frames
    }

    /// Up to where the next measurement goes: always at the same places, so that sums are rounded the same.
    fn unit_end(&self) -> u64 {
        let from = self.at.measured;
        let step_end = (from / self.step_frames + 1) * self.step_frames;
        let lap_end = (from / self.lines.frames + 1) * self.lines.frames;
        (from + CHUNK_FRAMES as u64).min(step_end).min(lap_end)
    }

    /// The loudness of what has been written.
    fn measure(&mut self) {
        let (from, end) = (self.at.measured, self.at.written);
        let count = (end - from) as usize;
        let source = self.lines.source(from);
        for group in &mut self.groups {
            let (filters, scratch) = (&self.filters, &mut self.scratch);
            let energy = group.process(filters, scratch, &source, (0, count), &mut []);
            let weights = &self.weights[group.channels()];
            let weighted = weights
                .iter()
                .zip(energy)
                .map(|(weight, energy)| weight * energy);
            self.step_energy += weighted.sum::<f64>();
            group.settle(true);
        }
        self.at.measured = end;
        if !end.is_multiple_of(self.step_frames) {
            return;
        }
        // The step in which the stream ends is as loud as what there is of it.
        let start = end - self.step_frames;
        let frames = self.end.map_or(end, |last| last.clamp(start, end)) - start;
        let energy = if frames == 0 {
            0.0
        } else {
            self.step_energy / frames as f64
        };
        self.step_energy = 0.0;
        if let Some(gain) = self.programme.push(energy, &self.settings) {
            self.gains[(self.nodes % NODES as u64) as usize] = gain;
            self.nodes += 1;
        }
    }

    /// The stream ends here: all that is held can be taken, and nothing be added before [`Normalizer::reset`] or
    /// [`Normalizer::restart`].
    pub fn drain(&mut self) {
        self.end.get_or_insert(self.at.written);
    }

    /// How many frames can be taken.
    #[must_use]
    pub fn ready(&self) -> u64 {
        let end = match self.end {
            Some(end) => end,
            None => self.at.written.saturating_sub(self.latency_frames()),
        };
        end - self.at.taken
    }

    /// How many frames went in and have not come out.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.end.unwrap_or(self.at.written) - self.at.taken
    }

    /// Takes interleaved samples, as many as are ready and there is room for. Says how many frames. Integers are rounded to
    /// the nearest.
    ///
    /// # Errors
    /// The room is not one for whole frames; nothing was taken.
    pub fn take_interleaved<T: Sample>(&mut self, samples: &mut [T]) -> Result<usize, InputError> {
        let channels = self.channels;
        if !samples.len().is_multiple_of(channels) {
            let samples = samples.len();
            return Err(InputError::PartialFrame { samples, channels });
        }
        let (level, frames) = (self.level, samples.len() / channels);
        Ok(self.take(frames, |lines, (slot, to, count)| {
            let samples = &mut samples[to * channels..][..count * channels];
            lines.each(|line| line.give_out(level, slot, channels, samples));
        }))
    }

    /// Takes planar samples to a slice for each channel, else as [`Normalizer::take_interleaved`].
    ///
    /// # Errors
    /// There are not as many slices as channels, or they differ in length; nothing was taken.
    pub fn take_planar<T: Sample, P: AsMut<[T]>>(
        &mut self,
        planes: &mut [P],
    ) -> Result<usize, InputError> {
        let frames = check_planes(
            planes.iter_mut().map(|plane| plane.as_mut().len()),
            self.channels,
        )?;
        let level = self.level;
        Ok(self.take(frames, |lines, (slot, to, count)| {
            lines.each(|line| {
                for lane in 0..line.live {
                    let plane = &mut planes[line.first + lane].as_mut()[to..][..count];
                    line.give_out_plane(level, slot, lane, plane);
                }
            });
        }))
    }

    /// `read` gets where in the lines, to which frame, and how many.
    fn take(
        &mut self,
        frames: usize,
        mut read: impl FnMut(&mut Lines, (usize, usize, usize)),
    ) -> usize {
        let frames = self.ready().min(frames as u64) as usize;
        with_denormals_flushed(|| {
            let mut done = 0;
            while done < frames {
                let slot = self.lines.slot(self.at.taken);
                let count = (frames - done)
                    .min(self.lines.until_end(slot))
                    .min(self.step_frames as usize);
                self.finish_to(self.at.taken + count as u64);
                self.outgoing.add(&self.lines.source(self.at.taken), count);
                read(&mut self.lines, (slot, done, count));
                self.at.taken += count as u64;
                done += count;
            }
        });
        frames
    }

    /// Sees to it that all before this frame is finished.
    fn finish_to(&mut self, frame: u64) {
        let cells = frame.div_ceil(self.limiter.cell_frames);
        if self.end.is_some() {
            // What follows the end, as if it were silence.
            let missing = (frame + self.latency_frames()).saturating_sub(self.at.written);
            self.write(missing as usize, |lines, (slot, _, count)| {
                lines.silence(slot, count);
            });
        }
        while self.at.finished < cells {
            self.finish();
        }
    }

    /// The second pass of the limiter, on the next cell.
    fn finish(&mut self) {
        let cell = self.at.finished;
        while self.at.checked <= self.limiter.corrected_to(cell + 1) {
            self.check();
        }
        let (from, to) = (
            self.limiter.correction_before(cell),
            self.limiter.correction_before(cell + 1),
        );
        if from < 1.0 || to < 1.0 {
            self.least_gain = self.least_gain.min(from);
            self.ramp(cell, from, to);
        }
        self.at.finished += 1;
    }

    /// What the first pass has made of the next cell: is it below the ceiling?
    fn check(&mut self) {
        let cell = self.at.checked;
        while self.at.shaped <= cell + self.limiter.reach_cells {
            self.shape();
        }
        let ceiling = self.ceilings[slot(cell)];
        let peak = self.peak_around(cell, ceiling, |normalizer| &normalizer.shaped_peaks);
        self.limiter.correct(cell, allowed(ceiling, peak));
        self.at.checked += 1;
    }

    /// The gain of the programme and the limiter's first pass, on the next cell.
    fn shape(&mut self) {
        let cell = self.at.shaped;
        while self.at.judged <= self.limiter.allowed_to(cell + 1) {
            self.judge();
        }
        let limits = [cell, cell + 1].map(|cell| self.limiter.gain_before(cell));
        self.least_gain = self.least_gain.min(limits[0]);
        let gains = [cell, cell + 1].map(|cell| self.gain_before(cell) as f32);
        self.ramp(cell, gains[0] * limits[0], gains[1] * limits[1]);
        self.shaped_peaks[slot(cell)] = self.cell_peak(cell);
        self.at.shaped += 1;
    }

    /// What the next cell may be multiplied by, once it has the gain of the programme.
    fn judge(&mut self) {
        let cell = self.at.judged;
        while self.at.peaked <= cell + self.limiter.reach_cells {
            self.peaks[slot(self.at.peaked)] = self.cell_peak(self.at.peaked);
            self.at.peaked += 1;
        }
        let step = CEILING_DB_STEP * self.limiter.cell_frames as f64 / self.step_frames as f64;
        let way = self.settings.max_true_peak_dbtp - self.ceiling_db;
        self.ceiling_db += way.clamp(-step, step);
        let ceiling = factor(self.ceiling_db - MARGIN_DB);
        self.ceilings[slot(cell)] = ceiling as f32;
        let gain = self.gain_before(cell).max(self.gain_before(cell + 1));
        let most = (ceiling * factor(-FIRST_MARGIN_DB) / gain) as f32;
        let peak = self.peak_around(cell, most, |normalizer| &normalizer.peaks);
        self.limiter.allow(cell, allowed(most, peak));
        self.at.judged += 1;
    }

    /// The largest magnitude in a cell and up to the first sample behind it; less if that is not above `most` anyway.
    fn peak_around(&mut self, cell: u64, most: f32, peaks: impl Fn(&Self) -> &[f32; CELLS]) -> f32 {
        let reach = self.limiter.reach_cells;
        let cells = cell.saturating_sub(reach)..=cell + reach;
        let around = cells
            .map(|cell| peaks(self)[slot(cell)])
            .fold(0.0, f32::max);
        let mut peak = peaks(self)[slot(cell)];
        if around * self.taps.gain_max > most {
            let frames = self.limiter.cell_frames as usize + 2 * REACH_FRAMES - 1;
            let start = (cell * self.limiter.cell_frames).checked_sub(REACH_FRAMES as u64 - 1);
            self.lines
                .between(self.level, &self.taps, start, frames, &mut peak);
        }
        peak
    }

    /// The largest sample of a cell.
    fn cell_peak(&self, cell: u64) -> f32 {
        let frames = self.limiter.cell_frames;
        let slot = self.lines.slot(cell * frames);
        let mut peak = 0.0;
        for line in &self.lines.lines {
            self.level
                .loudest(line.rows(slot, frames as usize), &mut peak);
        }
        peak
    }

    fn ramp(&mut self, cell: u64, from: f32, to: f32) {
        let (level, frames) = (self.level, self.limiter.cell_frames);
        let slot = self.lines.slot(cell * frames);
        let step = (to - from) / frames as f32;
        self.lines
            .each(|line: &mut Line| line.ramp(level, slot, frames as usize, from, step));
    }

    /// The gain of the programme where a cell begins: a line from node to node.
    fn gain_before(&self, cell: u64) -> f64 {
        let frame = cell * self.limiter.cell_frames;
        let (node, part) = (frame / self.step_frames, frame % self.step_frames);
        debug_assert!(node + 1 < self.nodes, "node {node} of {}", self.nodes);
        let at = |node: u64| self.gains[(node % NODES as u64) as usize];
        at(node) + (at(node + 1) - at(node)) * (part as f64 / self.step_frames as f64)
    }

    /// How things stand where frames are taken.
    #[must_use]
    pub fn state(&self) -> NormalizerState {
        let node = (self.at.taken / self.step_frames).min(self.nodes.saturating_sub(1));
        let (short_term_in_lufs, gain_db) = match self.nodes {
            0 => (f64::NEG_INFINITY, 0.0),
            _ => self.programme.report(node),
        };
        let true_peak = (0..self.channels)
            .filter_map(|channel| self.outgoing.true_peak(channel).ok())
            .fold(0.0, f64::max);
        NormalizerState {
            gain_db,
            limiter_db: 20.0 * f64::from(self.least_gain).log10(),
            short_term_in_lufs,
            short_term_out_lufs: self.outgoing.short_term().unwrap_or(f64::NEG_INFINITY),
            integrated_out_lufs: self.outgoing.integrated().unwrap_or(f64::NEG_INFINITY),
            true_peak_out_dbtp: 20.0 * true_peak.log10(),
        }
    }

    /// From here on, [`NormalizerState::limiter_db`] is the least gain of what is to come.
    pub fn forget_limiter(&mut self) {
        self.least_gain = 1.0;
    }

    /// Forgets all that it holds, and how loud the programme is.
    pub fn reset(&mut self) {
        self.begin(Programme::new(&self.settings));
        self.outgoing.reset();
    }

    /// Forgets all that it holds, but not how loud the programme is: for a stream that goes on after a jump.
    pub fn restart(&mut self) {
        self.begin(self.programme.restarted(&self.settings));
    }

    fn begin(&mut self, programme: Programme) {
        self.programme = programme;
        self.lines.clear();
        self.groups.iter_mut().for_each(Group::clear);
        self.limiter.clear();
        (self.nodes, self.step_energy) = (0, 0.0);
        self.at = Positions::default();
        self.end = None;
    }
}

fn check_planes(
    mut frames: impl ExactSizeIterator<Item = usize>,
    channels: usize,
) -> Result<usize, InputError> {
    if frames.len() != channels {
        let planes = frames.len();
        return Err(InputError::Planes { planes, channels });
    }
    let expected = frames.next().unwrap_or(0);
    match frames.enumerate().find(|(_, frames)| *frames != expected) {
        Some((index, frames)) => Err(InputError::Uneven {
            index: index + 1,
            frames,
            expected,
        }),
        None => Ok(expected),
    }
}

/// What to multiply `peak` by so that it does not exceed `most`.
fn allowed(most: f32, peak: f32) -> f32 {
    if peak > most { most / peak } else { 1.0 }
}

fn factor(db: f64) -> f64 {
    10f64.powf(db / 20.0)
}

fn slot(cell: u64) -> usize {
    (cell % CELLS as u64) as usize
}
