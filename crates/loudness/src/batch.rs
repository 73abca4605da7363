//! Measures many streams at once.

use crate::builder::{Builder, MOMENTARY_STEPS, RangeStep, SHORT_TERM_STEPS};
use crate::history::{self, History};
use crate::lanes::{CHUNK_FRAMES, Filters, Group, Scratch};
use crate::limits::{BATCH_CHANNELS_MAX, BuildError};
use crate::meter::{LoudnessRange, Peaks, ReadError, range_of_histories};
use crate::mode::Mode;
use crate::sample::{InputError, Sample};
use crate::simd::with_denormals_flushed;
use crate::source::Streams;
use crate::window::{Resolution, Window};

/// Measures many live streams of the same format, which advance together.
///
/// The data of the streams is adjacent in memory, and each instruction processes several streams. Windows are exact to 10 ms
/// ([`Resolution::Block`]), so that a stream takes some KB instead of a MB. For endless monitoring, choose [`Mode::HISTOGRAM`].
///
/// ```
/// use threadbare_loudness::{Meter, Mode};
///
/// let mode = Mode::INTEGRATED | Mode::SHORT_TERM | Mode::TRUE_PEAK | Mode::HISTOGRAM;
/// let mut batch = Meter::builder(48_000, 2).mode(mode).build_batch(3)?;
/// // 20 ms of each stream, interleaved.
/// let (speech, music, silence) = (vec![0.1f32; 1_920], vec![-0.2f32; 1_920], vec![0.0f32; 1_920]);
/// for _ in 0..50 {
///     batch.add_interleaved(&[&speech, &music, &silence])?;
/// }
/// assert!(batch.momentary(1)? > batch.momentary(0)?);
/// assert_eq!(batch.integrated(2)?, f64::NEG_INFINITY);
/// assert!(batch.true_peak(1, 0)? > 0.19);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Batch {
    config: Builder,
    streams: usize,
    filters: Filters,
    /// The channels of all streams in groups, stream by stream.
    groups: Box<[Group]>,
    scratch: Scratch,
    window: Window,
    weights: Vec<f64>,
    gating: Vec<History>,
    ranging: Vec<History>,
    peaks: Vec<Peaks>,
    /// Start of each stream.
    starts: Vec<u64>,
    /// Room for a sum per channel of each stream.
    sums: Vec<f64>,
}

impl Batch {
    /// See [`Builder::build_batch`].
    pub(crate) fn new(builder: &Builder, streams: usize) -> Result<Batch, BuildError> {
        builder.check()?;
        let channels = builder.layout.len();
        let lanes = streams.saturating_mul(channels);
        if !(1..=BATCH_CHANNELS_MAX).contains(&lanes) {
            return Err(BuildError::Streams { streams, channels });
        }
        let config = builder.clone().resolution(Resolution::Block);
        let (gating_blocks, range_blocks) = config.history_blocks();
        let histories =
            |mode, blocks| (0..streams).filter_map(move |_| builder.history(mode, blocks));
        let weights: Vec<f64> = config.layout.iter().map(|place| place.weight()).collect();
        let all: Vec<f64> = weights.iter().copied().cycle().take(lanes).collect();
        let mut groups: Box<[Group]> = Group::cover(0, lanes).collect();
        groups.iter_mut().for_each(|group| group.set_weights(&all));
        Ok(Batch {
            filters: config.filters(),
            groups,
            scratch: Scratch::new(lanes),
            window: config.window(lanes)?,
            weights,
            gating: histories(Mode::INTEGRATED, gating_blocks).collect(),
            ranging: histories(Mode::RANGE, range_blocks).collect(),
            peaks: vec![Peaks::default(); lanes],
            starts: vec![0; streams],
            sums: vec![0.0; lanes],
            streams,
            config,
        })
    }

    /// Adds the same number of frames to each stream. `inputs` has a slice of interleaved samples for each stream. If a stream
    /// has no data, add silence, or call [`Batch::reset_stream`].
    ///
    /// # Errors
    /// Fails if there is not one slice per stream, if the slices differ in length, or if their last frame is incomplete. In these
    /// cases, nothing is added.
    pub fn add_interleaved<T: Sample>(&mut self, inputs: &[&[T]]) -> Result<(), InputError> {
        let source = Streams::new(inputs, self.streams, self.config.layout.len())?;
        with_denormals_flushed(|| {
            self.groups.iter_mut().for_each(Group::begin_call);
            let (mut at, frames) = (0, source.frames());
            while at < frames {
                let count = self.window.room().min(CHUNK_FRAMES).min(frames - at);
                let (open, _) = self.window.next(count);
                for group in &mut self.groups {
                    let (filters, scratch) = (&self.filters, &mut self.scratch);
                    let energy = group.process(filters, scratch, &source, (at, count), &mut []);
                    let channels = open[group.channels()].iter_mut();
                    channels
                        .zip(energy)
                        .for_each(|(sum, energy)| *sum += energy);
                }
                if self.window.is_edge(count) {
                    let is_recovering = self.filters.is_recovering;
                    self.groups
                        .iter_mut()
                        .for_each(|group| group.settle(is_recovering));
                }
                if self.window.advance(count) {
                    self.end_step();
                }
                at += count;
            }
            if self.filters.has_sample_peak {
                Peaks::note(&mut self.peaks, &self.groups);
            }
        });
        Ok(())
    }

    /// Ends a step of 100 ms as a single meter does, but for all streams at once.
    fn end_step(&mut self) {
        let steps = self.window.position() / self.config.step_frames();
        if steps >= MOMENTARY_STEPS && !self.gating.is_empty() {
            self.end_blocks(MOMENTARY_STEPS, |batch| &mut batch.gating);
        }
        let is_due = steps >= SHORT_TERM_STEPS
            && match self.config.range_step {
                RangeStep::Tenth => true,
                RangeStep::Second => (steps - SHORT_TERM_STEPS).is_multiple_of(10),
            };
        if is_due && !self.ranging.is_empty() {
            self.end_blocks(SHORT_TERM_STEPS, |batch| &mut batch.ranging);
        }
    }

    /// Appends the energy of the last `steps` steps to the history of each stream that has already had so many steps.
    fn end_blocks(&mut self, steps: u64, histories: impl Fn(&mut Batch) -> &mut Vec<History>) {
        let frames = steps * self.config.step_frames();
        let mut sums = std::mem::take(&mut self.sums);
        self.window.energies(frames, &mut sums);
        let position = self.window.position();
        for (stream, sums) in sums.chunks_exact(self.weights.len()).enumerate() {
            let energy: f64 = sums
                .iter()
                .zip(&self.weights)
                .map(|(sum, weight)| sum * weight)
                .sum();
            if position - self.starts[stream] >= frames {
                histories(self)[stream].push(energy / frames as f64);
            }
        }
        self.sums = sums;
    }

    /// Returns the momentary loudness of a stream, up to the last whole 10 ms. In all other respects, it acts as
    /// [`Meter::momentary`](crate::Meter::momentary).
    ///
    /// # Errors
    /// Fails if the stream does not exist.
    pub fn momentary(&self, stream: usize) -> Result<f64, ReadError> {
        self.loudness_of(stream, MOMENTARY_STEPS)
    }

    /// Returns the short-term loudness of a stream, up to the last whole 10 ms.
    ///
    /// # Errors
    /// Fails if the stream does not exist, or if the mode does not include short-term loudness.
    pub fn short_term(&self, stream: usize) -> Result<f64, ReadError> {
        if !self.config.mode.contains(Mode::SHORT_TERM) {
            return Err(ReadError::NotMeasured(Mode::SHORT_TERM));
        }
        self.loudness_of(stream, SHORT_TERM_STEPS)
    }

    /// Returns the integrated loudness of a stream; see [`Meter::integrated`](crate::Meter::integrated).
    ///
    /// # Errors
    /// Fails if the stream does not exist, or if the mode does not include integrated loudness.
    pub fn integrated(&self, stream: usize) -> Result<f64, ReadError> {
        self.check_stream(stream)?;
        let history = self.gating.get(stream);
        let history = history.ok_or(ReadError::NotMeasured(Mode::INTEGRATED))?;
        Ok(history::integrated([history].into_iter()))
    }

    /// Returns the loudness range of a stream; see [`Meter::range`](crate::Meter::range).
    ///
    /// # Errors
    /// Fails if the stream does not exist, or if the mode does not include the range.
    pub fn range(&self, stream: usize) -> Result<LoudnessRange, ReadError> {
        self.check_stream(stream)?;
        let history = self
            .ranging
            .get(stream)
            .ok_or(ReadError::NotMeasured(Mode::RANGE))?;
        Ok(range_of_histories([history].into_iter()))
    }

    /// Returns the largest sample of a stream's channel; see [`Meter::sample_peak`](crate::Meter::sample_peak).
    ///
    /// # Errors
    /// Fails if the stream or channel does not exist, or if the mode does not include sample peaks.
    pub fn sample_peak(&self, stream: usize, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(stream, channel, Mode::SAMPLE_PEAK)
            .map(|peaks| peaks.sample)
    }

    /// Acts as [`sample_peak`](Self::sample_peak), but only for the samples in the last call.
    ///
    /// # Errors
    /// Fails if the stream or channel does not exist, or if the mode does not include sample peaks.
    pub fn last_sample_peak(&self, stream: usize, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(stream, channel, Mode::SAMPLE_PEAK)
            .map(|peaks| peaks.sample_last)
    }

    /// Returns the largest value of a stream's channel between the samples; see [`Meter::true_peak`](crate::Meter::true_peak).
    ///
    /// # Errors
    /// Fails if the stream or channel does not exist, or if the mode does not include true peaks.
    pub fn true_peak(&self, stream: usize, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(stream, channel, Mode::TRUE_PEAK)
            .map(|peaks| peaks.true_peak)
    }

    /// Acts as [`true_peak`](Self::true_peak), but only for the samples in the last call.
    ///
    /// # Errors
    /// Fails if the stream or channel does not exist, or if the mode does not include true peaks.
    pub fn last_true_peak(&self, stream: usize, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(stream, channel, Mode::TRUE_PEAK)
            .map(|peaks| peaks.true_peak_last)
    }

    /// Resets a stream, so that another programme can take its place.
    ///
    /// # Errors
    /// Fails if the stream does not exist.
    pub fn reset_stream(&mut self, stream: usize) -> Result<(), ReadError> {
        self.check_stream(stream)?;
        let channels = self.config.layout.len();
        let lanes = stream * channels..(stream + 1) * channels;
        for group in &mut self.groups {
            for lane in 0..group.live {
                if lanes.contains(&(group.first + lane)) {
                    group.clear_lane(lane);
                }
            }
        }
        self.window.clear_channels(lanes.clone());
        self.peaks[lanes].fill(Peaks::default());
        for histories in [&mut self.gating, &mut self.ranging] {
            histories
                .get_mut(stream)
                .into_iter()
                .for_each(History::clear);
        }
        self.starts[stream] = self.window.position();
        Ok(())
    }

    /// Returns the number of streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams
    }

    fn loudness_of(&self, stream: usize, steps: u64) -> Result<f64, ReadError> {
        self.check_stream(stream)?;
        let frames = steps * self.config.step_frames();
        let lanes = stream * self.weights.len()..;
        let energies = lanes
            .zip(&self.weights)
            .map(|(lane, weight)| weight * self.window.channel_energy(frames, lane));
        Ok(history::to_lufs(energies.sum::<f64>() / frames as f64))
    }

    fn peaks_of(&self, stream: usize, channel: usize, mode: Mode) -> Result<&Peaks, ReadError> {
        if !self.config.mode.contains(mode) {
            return Err(ReadError::NotMeasured(mode));
        }
        self.check_stream(stream)?;
        let channels = self.config.layout.len();
        if channel >= channels {
            return Err(ReadError::Channel {
                index: channel,
                channels,
            });
        }
        Ok(&self.peaks[stream * channels + channel])
    }

    fn check_stream(&self, index: usize) -> Result<(), ReadError> {
        let streams = self.streams;
        if index >= streams {
            return Err(ReadError::Stream { index, streams });
        }
        Ok(())
    }
}
