//! Settings of a meter.

use crate::channel::Channel;
use crate::history::History;
use crate::lanes::Filters;
use crate::limits::{BuildError, CHANNELS_MAX, RATE_HZ_MAX, RATE_HZ_MIN, WINDOW_MS_MAX};
use crate::mode::Mode;
use crate::simd::Level;
use crate::weighting::{FoldedPhases, KWeighting, Oversampling};
use crate::window::{Resolution, Window};

/// Interval at which a block of 3 s enters the loudness range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RangeStep {
    /// Every 100 ms (EBU Tech 3342 since 2016).
    #[default]
    Tenth,
    /// Every second, as libebur128 does.
    Second,
}

/// Settings of a [`Meter`](crate::Meter). [`Meter::builder`](crate::Meter::builder) creates them.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    pub(crate) rate_hz: u32,
    pub(crate) mode: Mode,
    pub(crate) layout: Vec<Channel>,
    pub(crate) window_ms: u64,
    pub(crate) history_ms: u64,
    pub(crate) range_step: RangeStep,
    pub(crate) resolution: Resolution,
    pub(crate) is_per_channel: bool,
    pub(crate) is_recovering: bool,
    pub(crate) level: Level,
    pub(crate) lead_in_frames: u64,
}

impl Builder {
    pub(crate) fn new(rate_hz: u32, channels: usize) -> Builder {
        Builder {
            rate_hz,
            mode: Mode::INTEGRATED | Mode::SHORT_TERM,
            layout: Channel::default_layout(channels.min(CHANNELS_MAX + 1)),
            window_ms: 0,
            history_ms: u64::MAX,
            range_step: RangeStep::default(),
            resolution: Resolution::default(),
            is_per_channel: false,
            is_recovering: true,
            level: Level::detect(),
            lead_in_frames: 0,
        }
    }

    /// Sets the measurements. The default is momentary, short-term and integrated loudness.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the positions of the channels' loudspeakers, and so the number of channels. The default is
    /// [`Channel::default_layout`].
    ///
    /// ```
    /// use threadbare_loudness::{Channel, Meter};
    ///
    /// // Mono that is heard from both loudspeakers.
    /// let meter = Meter::builder(48_000, 1).layout(&[Channel::DualMono]).build()?;
    /// assert_eq!(meter.layout(), [Channel::DualMono]);
    /// # Ok::<(), threadbare_loudness::BuildError>(())
    /// ```
    pub fn layout(mut self, layout: &[Channel]) -> Self {
        self.layout = layout.to_vec();
        self
    }

    /// Sets the longest window for which [`Meter::window`](crate::Meter::window) can be called, in ms: at least 400, and at least
    /// 3000 if the mode includes short-term loudness.
    pub fn max_window_ms(mut self, window_ms: u64) -> Self {
        self.window_ms = window_ms;
        self
    }

    /// Sets the length of the history for integrated loudness and range, in ms: at least 400, and at least 3000 if the mode
    /// includes the range. By default, the length is unlimited. With [`Mode::HISTOGRAM`], this setting has no effect.
    pub fn max_history_ms(mut self, history_ms: u64) -> Self {
        self.history_ms = history_ms;
        self
    }

    /// Sets the interval at which a block enters the loudness range.
    pub fn range_step(mut self, step: RangeStep) -> Self {
        self.range_step = step;
        self
    }

    /// Sets how exactly windows end at the last frame.
    pub fn resolution(mut self, resolution: Resolution) -> Self {
        self.resolution = resolution;
        self
    }

    /// Sets whether the integrated loudness of each single channel is measured, too; see
    /// [`Meter::channel_integrated`](crate::Meter::channel_integrated).
    pub fn per_channel(mut self, is_per_channel: bool) -> Self {
        self.is_per_channel = is_per_channel;
        self
    }

    /// Sets whether a channel's filter restarts after a sample that is infinite or not a number. The default is true. If it is
    /// false, such a channel is not measured any more until [`Meter::reset`](crate::Meter::reset), as in libebur128.
    pub fn recover(mut self, is_recovering: bool) -> Self {
        self.is_recovering = is_recovering;
        self
    }

    /// Uses only the instructions that every processor of this architecture has. This is for comparisons.
    #[doc(hidden)]
    pub fn baseline(mut self) -> Self {
        self.level = Level::BASELINE;
        self
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let channels = self.layout.len();
        if !(RATE_HZ_MIN..=RATE_HZ_MAX).contains(&self.rate_hz) {
            return Err(BuildError::Rate(self.rate_hz));
        }
        if !(1..=CHANNELS_MAX).contains(&channels) {
            return Err(BuildError::Channels(channels));
        }
        if !self.mode.contains(Mode::MOMENTARY) {
            return Err(BuildError::Mode(self.mode));
        }
        if channels > 1 && self.layout.contains(&Channel::DualMono) {
            return Err(BuildError::DualMono(channels));
        }
        let window_ms = self.window_ms();
        if window_ms > WINDOW_MS_MAX {
            return Err(BuildError::Window(window_ms));
        }
        Ok(())
    }

    /// Returns the number of frames in 100 ms.
    pub(crate) fn step_frames(&self) -> u64 {
        u64::from(self.rate_hz + 5) / 10
    }

    pub(crate) fn window_ms(&self) -> u64 {
        self.window_ms.max(self.window_steps() * 100)
    }

    /// Returns the number of 100 ms steps in the longest window that the mode needs.
    fn window_steps(&self) -> u64 {
        if self.mode.contains(Mode::SHORT_TERM) {
            SHORT_TERM_STEPS
        } else {
            MOMENTARY_STEPS
        }
    }

    pub(crate) fn history_ms(&self) -> u64 {
        let least = if self.mode.contains(Mode::RANGE) {
            SHORT_TERM_STEPS
        } else {
            MOMENTARY_STEPS
        };
        self.history_ms.max(least * 100)
    }

    /// Returns the maximum numbers of gating blocks and of blocks of the loudness range.
    pub(crate) fn history_blocks(&self) -> (usize, usize) {
        let range_ms = match self.range_step {
            RangeStep::Tenth => 100,
            // As in libebur128, the limit counts one block per 3 s, as if the blocks did not overlap, although one starts every
            // second.
            RangeStep::Second => 3_000,
        };
        let blocks = |each_ms| usize::try_from(self.history_ms() / each_ms).unwrap_or(usize::MAX);
        (blocks(100), blocks(range_ms))
    }

    pub(crate) fn history(&self, mode: Mode, blocks: usize) -> Option<History> {
        let make = || {
            if self.mode.contains(Mode::HISTOGRAM) {
                History::histogram()
            } else {
                History::exact(blocks)
            }
        };
        self.mode.contains(mode).then(make)
    }

    /// Creates a window. `channels` may exceed the limit of a meter, because a batch has one window for all its streams.
    pub(crate) fn window(&self, channels: usize) -> Result<Window, BuildError> {
        let step_frames = self.step_frames();
        let frames = u64::from(self.rate_hz) * self.window_ms() / 1_000;
        let frames_max = frames
            .next_multiple_of(step_frames)
            .max(self.window_steps() * step_frames);
        Window::new(channels, step_frames, frames_max, self.resolution)
    }

    pub(crate) fn filters(&self) -> Filters {
        Filters {
            level: self.level,
            k: KWeighting::new(self.rate_hz),
            phases: FoldedPhases::new(),
            oversampling: Oversampling::at(self.rate_hz),
            has_sample_peak: self.mode.contains(Mode::SAMPLE_PEAK),
            has_true_peak: self.mode.contains(Mode::TRUE_PEAK),
            is_recovering: self.is_recovering,
        }
    }
}

/// Momentary loudness: 400 ms (EBU Tech 3341, 2.2).
pub(crate) const MOMENTARY_STEPS: u64 = 4;
/// Short-term loudness: 3 s (EBU Tech 3341, 2.2).
pub(crate) const SHORT_TERM_STEPS: u64 = 30;
