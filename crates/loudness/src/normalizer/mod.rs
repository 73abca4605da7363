//! Loudness normalisation of one live stream.
//!
//! - `programme`: how loud the programme is, every 100 ms, and the gain that follows from this.
//! - `limiter`: the envelopes that keep the true peak below its limit; `crate::taps`: how the true peak is measured.
//! - `line`: the delay of three seconds.
//! - This file: the path of the audio through these parts. The delay lines contain, from the newest to the oldest frame,
//!
//! ```text
//!   written .. measured .. (2.9 s) .. judged .. shaped .. checked .. finished .. taken
//! ```
//!
//! Audio passes four stages. *Judged* audio was checked for peaks. *Shaped* audio has the gains of the programme and of the
//! limiter's first pass. *Checked* audio was checked for peaks again. *Finished* audio has the second pass's gain and can be
//! taken. Each stage works in cells of half a millisecond, whose positions depend only on the number of frames. So the output is
//! identical to the bit, however the audio is divided into calls.

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

/// Length of the delay, which is the look-ahead, in steps of 100 ms.
const LATENCY_STEPS: u64 = 30;
/// Maximum number of steps that can be written before output must be taken.
const ROOM_STEPS: u64 = 2;
/// Minimum rate. At lower rates, the shelf of the K-weighting is outside the band.
const RATE_HZ_LEAST: u32 = 4_000;
/// Maximum distance of a normal peak from the programme's loudness. The peaks of speech and music are up to 20 dB above it.
const PEAK_LU_MAX: f64 = 30.0;
/// The limit of normal samples is at least this, dB of full scale, however quiet the programme is.
const SOUND_DB_MIN: f64 = 12.0;
/// Limit of normal samples before the first programme, dB of full scale.
const SOUND_DB_UNKNOWN: f64 = 24.0;
/// Margin of the limiter below its limit. It is needed because other meters check other positions between samples, with other
/// filters. For bursts of noise that fill the band, the filter of libswresample finds up to 0.1 dB more.
const MARGIN_DB: f64 = 0.15;
/// Further margin of the first pass, so that little is left for the second pass.
const FIRST_MARGIN_DB: f64 = 0.02;
/// Maximum change of the limit per step of 100 ms while playing.
const CEILING_DB_STEP: f64 = 3.0;
/// Number of nodes in the ring of gains. The output is fewer nodes behind the newest node.
const NODES: usize = 8;

/// Adjusts one stream of audio to a target loudness, under a limit for its true peak.
///
/// The gain follows the loudness of the programme (EBU R128: K-weighted, channels weighted by their positions, without silence
/// and audio 10 LU below the programme). It looks 3 s ahead, and keeps the programme's dynamics within
/// [`NormalizerSettings::loudness_range_target_lu`]. A limiter keeps the output's true peak below
/// [`NormalizerSettings::max_true_peak_dbtp`], at the rate of the audio.
///
/// `add_*` takes frames, and `take_*` returns the same number of frames, [`Normalizer::latency_frames`] later. At the end of the
/// stream, [`Normalizer::drain`] releases the remaining frames. After construction, the normaliser does not allocate. Samples are
/// stored as `f32`: the rounding is 150 dB below the sample. Samples that are both more than 30 dB above the programme and more
/// than 12 dB above full scale are clicks, and are clipped to the higher of these levels. Samples that are not numbers, or more
/// than 60 dB above full scale, count as silence.
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
    /// Gain factor of each node, and the number of nodes so far.
    gains: [f64; NODES],
    nodes: u64,
    /// Weighted energy of the step that is being measured.
    step_energy: f64,
    /// The largest sample of normal sound. Larger samples are clicks, and are clipped, because otherwise they would determine the
    /// loudness for seconds.
    sound_max: f32,
    ceiling_db: f64,
    /// Largest samples by cell, before and after the first pass, and the ceiling of each cell.
    peaks: [f32; CELLS],
    shaped_peaks: [f32; CELLS],
    ceilings: [f32; CELLS],
    at: Positions,
    /// End of the stream, once it is known.
    end: Option<u64>,
    least_gain: f32,
}

/// Number of cells in the rings. The finished stage is fewer cells behind the judged stage.
const CELLS: usize = 256;

/// Position of each stage. The first two and the last are in frames, the others in cells.
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
    /// Creates a normaliser for audio of `rate_hz` frames a second, 4000 to 2,822,400, with 1 to 64 channels of these positions.
    ///
    /// # Errors
    /// Fails if rate, channels or settings are not within the limits, or memory is short.
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
            sound_max: sound_max(None),
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

    /// Returns the delay of each frame, in frames. It is always 3 s.
    #[must_use]
    pub fn latency_frames(&self) -> u64 {
        LATENCY_STEPS * self.step_frames
    }

    /// Returns the number of channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the number of frames per second.
    #[must_use]
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> &NormalizerSettings {
        &self.settings
    }

    /// Changes the settings. The output changes by at most 3 dB every 100 ms, starting 0.3 s after the current output position.
    ///
    /// # Errors
    /// Fails if a value is out of its range. In this case, nothing changes.
    pub fn set_settings(&mut self, settings: NormalizerSettings) -> Result<(), NormalizeError> {
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    /// Adds interleaved samples: whole frames, with one sample of each channel in turn. Returns the number of accepted frames.
    /// The normalizer accepts frames until 200 ms of output wait to be taken. After [`Normalizer::drain`], it accepts none.
    ///
    /// # Errors
    /// Fails if the last frame is not whole. In this case, nothing is added.
    pub fn add_interleaved<T: Sample>(&mut self, samples: &[T]) -> Result<usize, InputError> {
        let channels = self.channels;
        if !samples.len().is_multiple_of(channels) {
            let samples = samples.len();
            return Err(InputError::PartialFrame { samples, channels });
        }
        let level = self.level;
        Ok(self.add(
            samples.len() / channels,
            |lines, (slot, from, count), limit| {
                let samples = &samples[from * channels..][..count * channels];
                lines.each(|line| line.take_in(level, samples, channels, slot, limit));
            },
        ))
    }

    /// Adds planar samples, a slice for each channel. In all other respects, it acts as [`Normalizer::add_interleaved`].
    ///
    /// # Errors
    /// Fails if there is not one slice per channel, or if the slices differ in length. In these cases, nothing is added.
    pub fn add_planar<T: Sample, P: AsRef<[T]>>(
        &mut self,
        planes: &[P],
    ) -> Result<usize, InputError> {
        let frames = check_planes(
            planes.iter().map(|plane| plane.as_ref().len()),
            self.channels,
        )?;
        let level = self.level;
        Ok(self.add(frames, |lines, (slot, from, count), limit| {
            lines.each(|line| {
                for lane in 0..line.live {
                    let plane = &planes[line.first + lane].as_ref()[from..][..count];
                    line.take_in_plane(level, plane, lane, slot, limit);
                }
            });
        }))
    }

    /// Adds this many silent frames, for a gap in a stream. Returns the number of accepted frames.
    pub fn add_silence(&mut self, frames: usize) -> usize {
        self.add(frames, |lines, (slot, _, count), _| {
            lines.silence(slot, count)
        })
    }

    /// Adds frames with `write`. Its arguments are the place in the lines, the first frame and the number of frames. `write`
    /// returns the largest normal sample.
    fn add(
        &mut self,
        frames: usize,
        write: impl Fn(&mut Lines, (usize, usize, usize), f32),
    ) -> usize {
        if self.end.is_some() {
            return 0;
        }
        with_denormals_flushed(|| self.write(frames, write))
    }

    fn write(
        &mut self,
        frames: usize,
        write: impl Fn(&mut Lines, (usize, usize, usize), f32),
    ) -> usize {
        let room = self.lines.frames - (self.at.written - self.at.taken);
        let frames = room.min(frames as u64) as usize;
        let mut done = 0;
        while done < frames {
            let slot = self.lines.slot(self.at.written);
            let until = self
                .unit_end()
                .min(self.at.written + self.lines.until_end(slot) as u64);
            let count = ((until - self.at.written) as usize).min(frames - done);
            write(&mut self.lines, (slot, done, count), self.sound_max);
            self.at.written += count as u64;
            done += count;
            if self.at.written == self.unit_end() {
                self.measure();
            }
        }
        frames
    }

    /// Returns the end of the next unit of measurement. Units end at the same frames, however the audio is divided into calls, so
    /// that sums are always rounded in the same way.
    fn unit_end(&self) -> u64 {
        let from = self.at.measured;
        let step_end = (from / self.step_frames + 1) * self.step_frames;
        let lap_end = (from / self.lines.frames + 1) * self.lines.frames;
        (from + CHUNK_FRAMES as u64).min(step_end).min(lap_end)
    }

    /// Measures the loudness of the written audio.
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
        // If the last step of the stream is incomplete, the missing part is assumed to be as loud as the existing part.
        let start = end - self.step_frames;
        let frames = self.end.map_or(end, |last| last.clamp(start, end)) - start;
        let energy = if frames == 0 {
            0.0
        } else {
            self.step_energy / frames as f64
        };
        self.step_energy = 0.0;
        let gain = self.programme.push(energy, &self.settings);
        self.sound_max = sound_max(self.programme.level_lufs());
        if let Some(gain) = gain {
            self.gains[(self.nodes % NODES as u64) as usize] = gain;
            self.nodes += 1;
        }
    }

    /// Ends the stream. All queued audio can then be taken, and no audio can be added before [`Normalizer::reset`] or
    /// [`Normalizer::restart`].
    pub fn drain(&mut self) {
        self.end.get_or_insert(self.at.written);
    }

    /// Returns the number of frames that can be taken.
    #[must_use]
    pub fn ready(&self) -> u64 {
        let end = match self.end {
            Some(end) => end,
            None => self.at.written.saturating_sub(self.latency_frames()),
        };
        end - self.at.taken
    }

    /// Returns the number of frames in the normaliser.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.end.unwrap_or(self.at.written) - self.at.taken
    }

    /// Takes interleaved samples, as many as are ready and fit. Returns the number of frames. For integer types, samples are
    /// rounded to the nearest value.
    ///
    /// # Errors
    /// Fails if the slice does not hold whole frames. In this case, nothing is taken.
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

    /// Takes planar samples to a slice for each channel. In all other respects, it acts as [`Normalizer::take_interleaved`].
    ///
    /// # Errors
    /// Fails if there is not one slice per channel, or if the slices differ in length. In these cases, nothing is taken.
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

    /// Takes frames with `read`. Its arguments are the place in the lines, the output frame and the number of frames.
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

    /// Finishes all audio before this frame.
    fn finish_to(&mut self, frame: u64) {
        let cells = frame.div_ceil(self.limiter.cell_frames);
        if self.end.is_some() {
            // Audio after the end counts as silence.
            let missing = (frame + self.latency_frames()).saturating_sub(self.at.written);
            self.write(missing as usize, |lines, (slot, _, count), _| {
                lines.silence(slot, count);
            });
        }
        while self.at.finished < cells {
            self.finish();
        }
    }

    /// Applies the second pass of the limiter to the next cell.
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

    /// Checks the first pass's result for the next cell against the ceiling.
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

    /// Applies the gain of the programme and the limiter's first pass to the next cell.
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

    /// Computes the allowed factor of the next cell. Its audio has the gain of the programme.
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

    /// Returns the largest magnitude in a cell and up to the first sample after it. If the result is not above `most`, it may be
    /// too small.
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

    /// Returns the largest sample of a cell.
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

    /// Returns the gain of the programme at the start of a cell, which is interpolated linearly between nodes.
    fn gain_before(&self, cell: u64) -> f64 {
        let frame = cell * self.limiter.cell_frames;
        let (node, part) = (frame / self.step_frames, frame % self.step_frames);
        debug_assert!(node + 1 < self.nodes, "node {node} of {}", self.nodes);
        let at = |node: u64| self.gains[(node % NODES as u64) as usize];
        at(node) + (at(node + 1) - at(node)) * (part as f64 / self.step_frames as f64)
    }

    /// Returns the state at the output position.
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

    /// Restarts the minimum in [`NormalizerState::limiter_db`].
    pub fn forget_limiter(&mut self) {
        self.least_gain = 1.0;
    }

    /// Drops all queued audio, and the programme's loudness.
    pub fn reset(&mut self) {
        self.begin(Programme::new(&self.settings));
        self.outgoing.reset();
    }

    /// Drops all queued audio, but keeps the programme's loudness. This is for a stream that continues after a jump.
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

/// Returns the largest normal sample of a programme of this loudness.
fn sound_max(level_lufs: Option<f64>) -> f32 {
    let db = level_lufs.map_or(SOUND_DB_UNKNOWN, |level| {
        (level + PEAK_LU_MAX).max(SOUND_DB_MIN)
    });
    factor(db) as f32
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

/// Returns the factor, at most 1, that reduces `peak` to `most`.
fn allowed(most: f32, peak: f32) -> f32 {
    if peak > most { most / peak } else { 1.0 }
}

fn factor(db: f64) -> f64 {
    10f64.powf(db / 20.0)
}

fn slot(cell: u64) -> usize {
    (cell % CELLS as u64) as usize
}
