//! The meter of one stream.

use thiserror::Error;

use crate::builder::{Builder, MOMENTARY_STEPS, RangeStep, SHORT_TERM_STEPS};
use crate::channel::Channel;
use crate::history::{self, History};
use crate::lanes::{CHUNK_FRAMES, Filters, Group, Scratch, with_scratch};
use crate::limits::{BuildError, CHANNELS_MAX};
use crate::mode::Mode;
use crate::sample::{InputError, Sample};
use crate::simd::with_denormals_flushed;
use crate::source::{Interleaved, Planar, Silence, Source};
use crate::window::Window;

/// Measures one stream of audio according to EBU R128 and ITU-R BS.1770.
///
/// Add samples with [`Meter::add_interleaved`] and [`Meter::add_planar`], in pieces of any length, and take readings at any time.
/// Adding allocates nothing, with two exceptions. Each thread allocates 25 KB of scratch memory for all its meters when it first
/// builds or feeds one. An exact history without a limit (see [`Builder::max_history_ms`]) needs more memory after ten hours.
///
/// ```
/// use threadbare_loudness::{Meter, Mode};
///
/// let mode = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK;
/// let mut meter = Meter::builder(48_000, 2).mode(mode).build()?;
/// // EBU Tech 3341, case 1: a stereo sine of 1 kHz at -23 dBFS measures -23 LUFS.
/// let peak = 10f32.powf(-23.0 / 20.0);
/// for frame in 0..48_000 * 4 {
///     let sample = peak * (frame as f32 * std::f32::consts::TAU / 48.0).sin();
///     meter.add_interleaved(&[sample, sample])?;
/// }
/// assert!((meter.integrated()? + 23.0).abs() < 0.1);
/// assert!((meter.momentary() + 23.0).abs() < 0.1);
/// assert!(meter.range()?.lu < 0.1);
/// assert!(meter.true_peak(0)? >= meter.sample_peak(0)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Meter {
    config: Builder,
    filters: Filters,
    groups: Box<[Group]>,
    window: Window,
    weights: Vec<f64>,
    gating: Option<History>,
    ranging: Option<History>,
    /// History of each channel, if channels are measured separately.
    alone: Vec<History>,
    peaks: Vec<Peaks>,
    /// Start of the programme, as a frame of the window. No block starts before it.
    begun: u64,
}

/// Peaks of one channel, relative to full scale.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaks {
    pub(crate) sample: f64,
    pub(crate) true_peak: f64,
    pub(crate) sample_last: f64,
    pub(crate) true_peak_last: f64,
}

impl Peaks {
    /// Adds the groups' peaks of a call.
    pub(crate) fn note(all: &mut [Peaks], groups: &[Group]) {
        for group in groups {
            for (lane, peaks) in all[group.channels()].iter_mut().enumerate() {
                peaks.sample_last = group.sample_peaks[lane];
                peaks.true_peak_last = group.true_peak(lane);
                peaks.sample = peaks.sample.max(peaks.sample_last);
                peaks.true_peak = peaks.true_peak.max(peaks.true_peak_last);
            }
        }
    }
}

/// Why a reading is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The meter's mode does not include the measurement.
    #[error("the mode of the meter does not include {0:?}")]
    NotMeasured(Mode),
    /// The channel does not exist.
    #[error("channel {index} does not exist: the meter has {channels} channels")]
    Channel {
        /// Requested channel, from 0.
        index: usize,
        /// Number of channels.
        channels: usize,
    },
    /// The stream does not exist in the batch.
    #[error("stream {index} does not exist: the batch has {streams} streams")]
    Stream {
        /// Requested stream, from 0.
        index: usize,
        /// Number of streams.
        streams: usize,
    },
    /// [`Channel::DualMono`] was used together with other channels.
    #[error("dual mono needs exactly one channel, not {0} channels")]
    DualMono(usize),
    /// The window is longer than the meter supports.
    #[error("a window of {window_ms} ms is too long: the meter stores {window_ms_max} ms")]
    Window {
        /// Requested window.
        window_ms: u64,
        /// Longest possible window.
        window_ms_max: u64,
    },
    /// Exact histories and histograms cannot be combined to one loudness range.
    #[error("meters with exact histories and meters with histograms have no common loudness range")]
    MixedHistories,
}

/// Loudness range (EBU Tech 3342) and its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoudnessRange {
    /// `high_lufs` - `low_lufs`, in LU; 0 if nothing was above the gates.
    pub lu: f64,
    /// The 10th percentile of short-term loudness, in LUFS; minus infinity if nothing was above the gates.
    pub low_lufs: f64,
    /// The 95th percentile of short-term loudness, in LUFS; minus infinity if nothing was above the gates.
    pub high_lufs: f64,
}

impl Meter {
    /// Returns settings for audio of `rate_hz` frames a second, 16 to 2,822,400, with 1 to 64 channels.
    pub fn builder(rate_hz: u32, channels: usize) -> Builder {
        Builder::new(rate_hz, channels)
    }

    pub(crate) fn new(config: Builder) -> Result<Meter, BuildError> {
        config.check()?;
        let channels = config.layout.len();
        let (gating_blocks, range_blocks) = config.history_blocks();
        let gating = || config.history(Mode::INTEGRATED, gating_blocks);
        let alone = if config.is_per_channel { channels } else { 0 };
        // A thread that builds meters usually also feeds them.
        with_scratch(|_| ());
        let mut meter = Meter {
            filters: config.filters(),
            groups: Group::cover(0, channels).collect(),
            window: config.window(channels)?,
            weights: Vec::new(),
            gating: gating(),
            ranging: config.history(Mode::RANGE, range_blocks),
            alone: (0..alone).filter_map(|_| gating()).collect(),
            peaks: vec![Peaks::default(); channels],
            begun: 0,
            config,
        };
        meter.weigh();
        Ok(meter)
    }

    /// Adds interleaved samples: whole frames, with one sample of each channel in turn.
    ///
    /// # Errors
    /// Fails if the last frame is not whole. In this case, nothing is added.
    pub fn add_interleaved<T: Sample>(&mut self, samples: &[T]) -> Result<(), InputError> {
        let source = Interleaved::new(samples, self.channels())?;
        self.add(&source, source.frames());
        Ok(())
    }

    /// Adds planar samples: a slice for each channel.
    ///
    /// # Errors
    /// Fails if there is not one slice per channel, or if the slices differ in length. In these cases, nothing is added.
    ///
    /// ```
    /// # use threadbare_loudness::Meter;
    /// let mut meter = Meter::builder(44_100, 2).build()?;
    /// let (left, right) = (vec![100i16; 441], vec![-100i16; 441]);
    /// meter.add_planar(&[&left[..], &right[..]])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_planar<T: Sample, P: AsRef<[T]>>(&mut self, planes: &[P]) -> Result<(), InputError> {
        let source = Planar::new(planes, self.channels())?;
        self.add(&source, source.frames());
        Ok(())
    }

    /// Adds this many silent frames, for a gap in a stream.
    pub fn add_silence(&mut self, frames: usize) {
        self.add(&Silence, frames);
    }

    pub(crate) fn add<S: Source>(&mut self, source: &S, frames: usize) {
        with_scratch(|scratch| with_denormals_flushed(|| self.add_with(scratch, source, frames)));
    }

    fn add_with<S: Source>(&mut self, scratch: &mut Scratch, source: &S, frames: usize) {
        self.groups.iter_mut().for_each(Group::begin_call);
        let mut at = 0;
        while at < frames {
            let count = self.window.room().min(CHUNK_FRAMES).min(frames - at);
            let (open, ring) = self.window.next(count);
            for group in &mut self.groups {
                let energy = group.process(&self.filters, scratch, source, (at, count), ring);
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
    }

    /// Handles the end of a step of 100 ms. A gating block of 400 ms ends with each step, because these blocks overlap by 75 %
    /// (ITU-R BS.1770, annex 1). A block of 3 s for the loudness range may end, too.
    fn end_step(&mut self) {
        let (position, step) = (self.window.position(), self.config.step_frames());
        let steps = (position - self.begun) / step;
        if position <= self.config.lead_in_frames || steps < MOMENTARY_STEPS {
            return;
        }
        if let Some(history) = &mut self.gating {
            let frames = MOMENTARY_STEPS * step;
            history.push(self.window.energy(frames, &self.weights) / frames as f64);
            for (channel, history) in self.alone.iter_mut().enumerate() {
                history.push(self.window.channel_energy(frames, channel) / frames as f64);
            }
        }
        let is_due = steps >= SHORT_TERM_STEPS
            && match self.config.range_step {
                RangeStep::Tenth => true,
                RangeStep::Second => (steps - SHORT_TERM_STEPS).is_multiple_of(10),
            };
        if let Some(history) = self.ranging.as_mut().filter(|_| is_due) {
            let frames = SHORT_TERM_STEPS * step;
            history.push(self.window.energy(frames, &self.weights) / frames as f64);
        }
    }

    /// Returns the loudness of the last 400 ms, in LUFS (EBU Tech 3341, 2.2). The time before the first frame counts as silence.
    /// The result is minus infinity for silence.
    #[must_use]
    pub fn momentary(&self) -> f64 {
        self.loudness_of(MOMENTARY_STEPS * self.config.step_frames())
    }

    /// Returns the loudness of the last 3 s, in LUFS (EBU Tech 3341, 2.2). In all other respects, it acts as
    /// [`Meter::momentary`].
    ///
    /// # Errors
    /// Fails if the mode does not include short-term loudness and the longest window is shorter than 3 s.
    pub fn short_term(&self) -> Result<f64, ReadError> {
        let frames = SHORT_TERM_STEPS * self.config.step_frames();
        if frames > self.window.frames_max() {
            return Err(ReadError::NotMeasured(Mode::SHORT_TERM));
        }
        Ok(self.loudness_of(frames))
    }

    /// Returns the loudness of the last `window_ms` ms, in LUFS. In all other respects, it acts as [`Meter::momentary`]. The
    /// result is NaN if the window is shorter than a frame.
    ///
    /// ```
    /// # use threadbare_loudness::{Meter, Mode};
    /// let mut meter = Meter::builder(48_000, 1).max_window_ms(10_000).build()?;
    /// meter.add_interleaved(&vec![0.1f64; 48_000 * 12])?;
    /// // A constant does not get through the high-pass filter.
    /// assert!(meter.window(10_000)? < -100.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the longest window is shorter than `window_ms`; see [`Meter::set_max_window_ms`].
    pub fn window(&self, window_ms: u64) -> Result<f64, ReadError> {
        let window_ms_max = self.config.window_ms();
        if window_ms > window_ms_max {
            return Err(ReadError::Window {
                window_ms,
                window_ms_max,
            });
        }
        Ok(self.loudness_of(u64::from(self.config.rate_hz) * window_ms / 1_000))
    }

    fn loudness_of(&self, frames: u64) -> f64 {
        history::to_lufs(self.window.energy(frames, &self.weights) / frames as f64)
    }

    /// Returns the integrated loudness of all audio so far, in LUFS (ITU-R BS.1770, annex 1). It is minus infinity if nothing was
    /// above the gates.
    ///
    /// # Errors
    /// Fails if the mode does not include integrated loudness.
    pub fn integrated(&self) -> Result<f64, ReadError> {
        integrated_of([self])
    }

    /// Returns the relative gate of the integrated loudness, in LUFS (ITU-R BS.1770, annex 1). It is 10 LU below the mean of the
    /// blocks above the absolute gate of -70 LUFS. If there are no such blocks, it is -70.
    ///
    /// # Errors
    /// Fails if the mode does not include integrated loudness.
    pub fn relative_threshold(&self) -> Result<f64, ReadError> {
        let gate = history::relative_gate([self.gating()?].into_iter());
        Ok(gate.map_or(-70.0, history::to_lufs))
    }

    /// Returns the loudness range of all audio so far (EBU Tech 3342).
    ///
    /// # Errors
    /// Fails if the mode does not include the range.
    pub fn range(&self) -> Result<LoudnessRange, ReadError> {
        range_of([self])
    }

    /// Returns the largest magnitude of a channel's samples, relative to full scale.
    ///
    /// # Errors
    /// Fails if the mode does not include sample peaks, or if the channel does not exist.
    pub fn sample_peak(&self, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(channel, Mode::SAMPLE_PEAK)
            .map(|peaks| peaks.sample)
    }

    /// Acts as [`sample_peak`](Self::sample_peak), but only for the samples in the last call.
    ///
    /// # Errors
    /// Fails if the mode does not include sample peaks, or if the channel does not exist.
    pub fn last_sample_peak(&self, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(channel, Mode::SAMPLE_PEAK)
            .map(|peaks| peaks.sample_last)
    }

    /// Returns the largest magnitude of a channel's signal, also between the samples, relative to full scale (ITU-R BS.1770,
    /// annex 2). The signal is oversampled four times below 96 kHz, and twice below 192 kHz. At higher rates, the result is the
    /// sample peak.
    ///
    /// # Errors
    /// Fails if the mode does not include true peaks, or if the channel does not exist.
    pub fn true_peak(&self, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(channel, Mode::TRUE_PEAK)
            .map(|peaks| peaks.true_peak)
    }

    /// Acts as [`true_peak`](Self::true_peak), but only for the samples in the last call.
    ///
    /// # Errors
    /// Fails if the mode does not include true peaks, or if the channel does not exist.
    pub fn last_true_peak(&self, channel: usize) -> Result<f64, ReadError> {
        self.peaks_of(channel, Mode::TRUE_PEAK)
            .map(|peaks| peaks.true_peak_last)
    }

    /// Returns the momentary loudness of one channel, as if it were the only channel and in front, in LUFS. The window ends with
    /// the last whole 10 ms.
    ///
    /// # Errors
    /// Fails if the channel does not exist.
    pub fn channel_momentary(&self, channel: usize) -> Result<f64, ReadError> {
        self.channel_loudness(channel, MOMENTARY_STEPS)
    }

    /// Returns the short-term loudness of one channel. In all other respects, it acts as [`Meter::channel_momentary`].
    ///
    /// # Errors
    /// Fails if the channel does not exist, or the mode does not include short-term loudness.
    pub fn channel_short_term(&self, channel: usize) -> Result<f64, ReadError> {
        self.short_term()?;
        self.channel_loudness(channel, SHORT_TERM_STEPS)
    }

    /// Returns the integrated loudness of one channel, as if it were the only channel and in front, in LUFS. Each channel has its
    /// own gates.
    ///
    /// ```
    /// # use threadbare_loudness::Meter;
    /// let mut meter = Meter::builder(48_000, 2).per_channel(true).build()?;
    /// let (left, silence): (Vec<f32>, _) = ((0..48_000).map(|n| (n as f32 * 0.1).sin()).collect(), vec![0.0; 48_000]);
    /// meter.add_planar(&[left, silence])?;
    /// assert!((meter.channel_integrated(0)? - meter.integrated()?).abs() < 1e-9);
    /// assert_eq!(meter.channel_integrated(1)?, f64::NEG_INFINITY);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the channel does not exist, or if the meter was not built with both [`Builder::per_channel`] and
    /// [`Mode::INTEGRATED`].
    pub fn channel_integrated(&self, channel: usize) -> Result<f64, ReadError> {
        self.check_channel(channel)?;
        let history = self.alone.get(channel);
        let history = history.ok_or(ReadError::NotMeasured(Mode::INTEGRATED))?;
        Ok(history::integrated([history].into_iter()))
    }

    /// Resets all measurements, but not the settings.
    pub fn reset(&mut self) {
        self.restart();
        self.begin_programme();
    }

    /// Starts another programme in the same audio: integrated loudness, loudness range and peaks restart; momentary and
    /// short-term loudness continue.
    ///
    /// ```
    /// # use threadbare_loudness::{Meter, Mode};
    /// let mut meter = Meter::builder(48_000, 1).mode(Mode::INTEGRATED).build()?;
    /// let tone = |level: f32| (0..240_000).map(|n| level * (n as f32 * 0.13).sin()).collect::<Vec<_>>();
    /// meter.add_interleaved(&tone(0.5))?;
    /// let loud = meter.integrated()?;
    /// meter.begin_programme();
    /// assert_eq!(meter.integrated()?, f64::NEG_INFINITY);
    /// assert!((meter.momentary() - loud).abs() < 0.1);
    /// meter.add_interleaved(&tone(0.05))?;
    /// assert!((meter.integrated()? - (loud - 20.0)).abs() < 0.1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_programme(&mut self) {
        self.begun = self.window.position();
        self.peaks.fill(Peaks::default());
        let histories = self
            .gating
            .iter_mut()
            .chain(&mut self.ranging)
            .chain(&mut self.alone);
        histories.for_each(History::clear);
    }

    /// Sets the position of a channel's loudspeaker. Integrated loudness and range use the new position from the next 100 ms step
    /// on. Windows use it at once. If a window starts within a 10 ms sub-block, the channels of this sub-block are assumed to
    /// have had the same proportions throughout.
    ///
    /// # Errors
    /// Fails if the channel does not exist, or if [`Channel::DualMono`] is set on a meter with other channels.
    pub fn set_channel(&mut self, channel: usize, place: Channel) -> Result<(), ReadError> {
        self.check_channel(channel)?;
        if place == Channel::DualMono && self.channels() > 1 {
            return Err(ReadError::DualMono(self.channels()));
        }
        self.config.layout[channel] = place;
        self.weigh();
        Ok(())
    }

    /// Changes the rate or the number of channels of the audio. Integrated loudness and range continue; windows and filters
    /// restart. If the number of channels changes, the peaks restart, too, and the layout becomes [`Channel::default_layout`].
    ///
    /// Returns whether anything changed.
    ///
    /// # Errors
    /// Fails if the rate or the number of channels is not within the limits. In this case, nothing changes.
    pub fn set_format(&mut self, rate_hz: u32, channels: usize) -> Result<bool, BuildError> {
        let mut config = self.config.clone();
        config.rate_hz = rate_hz;
        if channels != self.channels() {
            config.layout = Channel::default_layout(channels.min(CHANNELS_MAX + 1));
        }
        config.check()?;
        if rate_hz == self.config.rate_hz && channels == self.channels() {
            return Ok(false);
        }
        let mut meter = Meter::new(config)?;
        meter.gating = self.gating.take();
        meter.ranging = self.ranging.take();
        if channels == self.channels() {
            meter.peaks = std::mem::take(&mut self.peaks);
            meter.alone = std::mem::take(&mut self.alone);
        }
        *self = meter;
        Ok(true)
    }

    /// Sets the longest window for which [`Meter::window`] can be called, in ms: at least 400, and at least 3000 if the mode
    /// includes short-term loudness. If that changes the window, all windows restart, and the result is `true`.
    ///
    /// # Errors
    /// Fails if the window is longer than an hour, or if memory is short. In these cases, nothing changes.
    pub fn set_max_window_ms(&mut self, window_ms: u64) -> Result<bool, BuildError> {
        let mut config = self.config.clone();
        config.window_ms = window_ms;
        config.check()?;
        if config.window_ms() == self.config.window_ms() {
            return Ok(false);
        }
        self.window = config.window(self.channels())?;
        self.config = config;
        Ok(true)
    }

    /// Sets the length of the history for integrated loudness and range from now on, in ms: at least 400, and at least 3000 if
    /// the mode includes the range. Older values are dropped for good, even if the history becomes longer again. Returns whether
    /// the length has changed.
    ///
    /// With [`RangeStep::Second`], the limit counts the blocks of the range as if they did not overlap, as libebur128 does.
    pub fn set_max_history_ms(&mut self, history_ms: u64) -> bool {
        let before = self.config.history_ms();
        self.config.history_ms = history_ms;
        if self.config.history_ms() == before {
            return false;
        }
        let (gating_blocks, range_blocks) = self.config.history_blocks();
        let gating = self.gating.iter_mut().chain(&mut self.alone);
        gating.for_each(|history| history.truncate(gating_blocks));
        self.ranging
            .iter_mut()
            .for_each(|history| history.truncate(range_blocks));
        true
    }

    /// Returns the number of channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.config.layout.len()
    }

    /// Returns the number of frames per second.
    #[must_use]
    pub fn rate_hz(&self) -> u32 {
        self.config.rate_hz
    }

    /// Returns the measurements.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.config.mode
    }

    /// Returns the positions of the channels' loudspeakers.
    #[must_use]
    pub fn layout(&self) -> &[Channel] {
        &self.config.layout
    }

    /// Adds the measurements of a later part of the same programme, and continues from its end.
    pub(crate) fn append(&mut self, later: Meter) {
        let mine = self
            .gating
            .iter_mut()
            .chain(&mut self.ranging)
            .chain(&mut self.alone);
        let its = later
            .gating
            .iter()
            .chain(&later.ranging)
            .chain(&later.alone);
        mine.zip(its).for_each(|(mine, its)| mine.append(its));
        for (mine, its) in self.peaks.iter_mut().zip(&later.peaks) {
            mine.sample = mine.sample.max(its.sample);
            mine.true_peak = mine.true_peak.max(its.true_peak);
            (mine.sample_last, mine.true_peak_last) = (its.sample_last, its.true_peak_last);
        }
        (self.groups, self.window, self.config) = (later.groups, later.window, later.config);
        self.begun = later.begun;
    }

    fn gating(&self) -> Result<&History, ReadError> {
        self.gating
            .as_ref()
            .ok_or(ReadError::NotMeasured(Mode::INTEGRATED))
    }

    fn peaks_of(&self, channel: usize, mode: Mode) -> Result<&Peaks, ReadError> {
        if !self.mode().contains(mode) {
            return Err(ReadError::NotMeasured(mode));
        }
        self.check_channel(channel)?;
        Ok(&self.peaks[channel])
    }

    fn channel_loudness(&self, channel: usize, steps: u64) -> Result<f64, ReadError> {
        self.check_channel(channel)?;
        let frames = steps * self.config.step_frames();
        Ok(history::to_lufs(
            self.window.channel_energy(frames, channel) / frames as f64,
        ))
    }

    fn check_channel(&self, index: usize) -> Result<(), ReadError> {
        let channels = self.channels();
        if index >= channels {
            return Err(ReadError::Channel { index, channels });
        }
        Ok(())
    }

    /// Computes the channels' weights from the layout.
    fn weigh(&mut self) {
        let weights = self
            .config
            .layout
            .iter()
            .map(|place| place.weight())
            .collect();
        let before = std::mem::replace(&mut self.weights, weights);
        self.window.reweigh(&before, &self.weights);
        self.groups
            .iter_mut()
            .for_each(|group| group.set_weights(&self.weights));
    }

    fn restart(&mut self) {
        self.config.lead_in_frames = 0;
        self.window.clear();
        self.begun = 0;
        self.groups.iter_mut().for_each(Group::clear);
    }
}

/// Returns the integrated loudness of several programmes, as if they were one, in LUFS. This is for an album, or for a file that
/// was measured in parts. The result is minus infinity if nothing is above the gates.
///
/// ```
/// use threadbare_loudness::{Meter, Mode, integrated_of, range_of};
///
/// let builder = Meter::builder(44_100, 2).mode(Mode::INTEGRATED | Mode::RANGE);
/// let mut album = [builder.build()?, builder.build()?];
/// for (song, level) in album.iter_mut().zip([8_000i16, 4_000]) {
///     let square: Vec<i16> = (0..44_100 * 10).flat_map(|n| [if n / 50 % 2 == 0 { level } else { -level }; 2]).collect();
///     song.add_interleaved(&square)?;
/// }
/// let (first, second) = (album[0].integrated()?, album[1].integrated()?);
/// assert!((first - second - 6.0).abs() < 0.1);
/// assert!(first > integrated_of(&album)? && integrated_of(&album)? > second);
/// assert!((range_of(&album)?.lu - 6.0).abs() < 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails if the mode of one of the meters does not include integrated loudness.
pub fn integrated_of<'a>(
    meters: impl IntoIterator<Item = &'a Meter, IntoIter: Clone>,
) -> Result<f64, ReadError> {
    let meters = meters.into_iter();
    for meter in meters.clone() {
        meter.gating()?;
    }
    Ok(history::integrated(
        meters.filter_map(|meter| meter.gating.as_ref()),
    ))
}

/// Returns the loudness range of several programmes, as if they were one.
///
/// # Errors
/// Fails if the mode of one of the meters does not include the range, or if only some meters have histograms.
pub fn range_of<'a>(
    meters: impl IntoIterator<Item = &'a Meter, IntoIter: Clone>,
) -> Result<LoudnessRange, ReadError> {
    let meters = meters.into_iter();
    let mut histories = meters.clone().map(|meter| meter.ranging.as_ref());
    if histories.clone().any(|history| history.is_none()) {
        return Err(ReadError::NotMeasured(Mode::RANGE));
    }
    let kind = |history: Option<&History>| history.is_some_and(History::is_histogram);
    if let Some(first) = histories.next()
        && histories.any(|history| kind(history) != kind(first))
    {
        return Err(ReadError::MixedHistories);
    }
    Ok(range_of_histories(
        meters.filter_map(|meter| meter.ranging.as_ref()),
    ))
}

pub(crate) fn range_of_histories<'a>(
    histories: impl Iterator<Item = &'a History> + Clone,
) -> LoudnessRange {
    match history::range(histories) {
        Some((low_lufs, high_lufs)) => LoudnessRange {
            lu: high_lufs - low_lufs,
            low_lufs,
            high_lufs,
        },
        None => LoudnessRange {
            lu: 0.0,
            low_lufs: f64::NEG_INFINITY,
            high_lufs: f64::NEG_INFINITY,
        },
    }
}
