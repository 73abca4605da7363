//! Splits a long programme into parts that several cores measure at once.

use std::ops::Range;

use crate::builder::Builder;
use crate::limits::BuildError;
use crate::meter::Meter;

/// A part of a programme, created by [`Builder::split`].
///
/// To measure a part other than the first, a meter also needs some frames before the part's start, until its filters and windows
/// have the same contents as in a measurement of the whole programme. Its measurements are then the same, except for rounding.
///
/// ```
/// use threadbare_loudness::{Meter, Mode, merge};
///
/// let builder = Meter::builder(48_000, 1).mode(Mode::INTEGRATED | Mode::RANGE);
/// let programme: Vec<f32> = (0..48_000 * 60).map(|n| (n as f32 * 0.05).sin() * 0.1).collect();
/// let parts = builder.split(programme.len() as u64, 4);
/// let meters = std::thread::scope(|scope| {
///     let measure = |part: &threadbare_loudness::Part| {
///         let mut meter = part.meter()?;
///         let feed = part.feed();
///         meter.add_interleaved(&programme[feed.start as usize..feed.end as usize]).expect("mono");
///         Ok::<_, threadbare_loudness::BuildError>(meter)
///     };
///     let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || measure(part))).collect();
///     threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
/// })?;
/// let meter = merge(meters).expect("at least one part");
/// assert!(meter.integrated()?.is_finite());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Part {
    builder: Builder,
    feed_start: u64,
    frames: Range<u64>,
}

impl Part {
    /// Returns the frames of the programme that must be added to this part's meter.
    #[must_use]
    pub fn feed(&self) -> Range<u64> {
        self.feed_start..self.frames.end
    }

    /// Returns the frames that this part measures. The parts of a programme cover it without overlap.
    #[must_use]
    pub fn frames(&self) -> Range<u64> {
        self.frames.clone()
    }

    /// Builds the meter for this part.
    ///
    /// # Errors
    /// Fails as [`Builder::build`] does.
    pub fn meter(&self) -> Result<Meter, BuildError> {
        self.builder.build()
    }
}

/// See [`Builder::split`].
pub(crate) fn split(settings: &Builder, frames: u64, parts: usize) -> Vec<Part> {
    let step_frames = settings.step_frames();
    // The loudness range may use only one step out of ten, so parts start with such a step.
    let grain = step_frames * GRAIN_STEPS;
    let window_steps = settings.window_ms() / 100 + FADE_STEPS;
    let lead_in = (window_steps * step_frames).next_multiple_of(grain);
    let length = frames
        .div_ceil(parts.max(1) as u64)
        .next_multiple_of(grain)
        .max(lead_in);
    let starts = (0..frames.max(1)).step_by(usize::try_from(length).unwrap_or(usize::MAX));
    let part = |start: u64| {
        let feed_start = start.saturating_sub(lead_in);
        let mut builder = settings.clone();
        builder.lead_in_frames = start - feed_start;
        Part {
            builder,
            feed_start,
            frames: start..(start + length).min(frames),
        }
    };
    starts.map(part).collect()
}

/// Combines the meters of a programme's parts, in order, into the meter of the whole programme. The result has the same readings
/// as if it had measured the whole programme, and can continue. Returns `None` if there are no meters.
///
/// The meters must come from [`Part::meter`], and each must have got the frames of [`Part::feed`].
pub fn merge(meters: impl IntoIterator<Item = Meter>) -> Option<Meter> {
    meters.into_iter().reduce(|mut whole, later| {
        whole.append(later);
        whole
    })
}

const GRAIN_STEPS: u64 = 10;
/// Number of steps to skip. After half a second, less than 1e-40 of earlier audio is left in the high-pass filter.
const FADE_STEPS: u64 = 5;
