//! Conversion of audio between sample rates and numbers of channels.
//!
//! Rates are those of [`SAMPLE_RATES_HZ`], so their ratios are fractions of small numbers. rubato stores the filter for each
//! phase that occurs, so that each sample is one product of a filter and its input, without interpolation. The level is within
//! 0.1 dB up to 0.85 of the lower Nyquist frequency; aliases are attenuated by 60 dB.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Resampler, SincInterpolationParameters, SincInterpolationType,
    WindowFunction,
};
use thiserror::Error;

use crate::codec::{CHANNELS_MAX, SAMPLE_RATES_HZ};

/// Why a conversion is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// The sample rate is not supported.
    #[error("sample rate {0} Hz, must be one of {SAMPLE_RATES_HZ:?}")]
    Rate(u32),
    /// The number of channels is out of range.
    #[error("{0} channels, must be 1 to {CHANNELS_MAX}")]
    Channels(u8),
}

/// Converts one stream of interleaved samples of full scale 1.
///
/// Mono is copied to each channel at the same level, and stereo becomes mono as the mean of its channels. In general, channel
/// numbers wrap around when n channels become m. If m is larger, output i is a copy of input i modulo n. If m is smaller, output
/// i is the mean of all inputs whose number modulo m is i.
#[derive(Debug)]
pub struct Converter {
    from_channels: usize,
    to_channels: usize,
    resampling: Option<Resampling>,
    /// Input, in as many channels as are resampled.
    mixed: Vec<f32>,
    /// Resampled audio, before its channels are copied.
    resampled: Vec<f32>,
}

impl Converter {
    /// Creates a converter from one rate and number of channels to another.
    ///
    /// # Errors
    /// Fails if a rate or a number of channels is not supported.
    pub fn new(
        from_rate_hz: u32,
        from_channels: u8,
        to_rate_hz: u32,
        to_channels: u8,
    ) -> Result<Converter, ConvertError> {
        for rate_hz in [from_rate_hz, to_rate_hz] {
            if !SAMPLE_RATES_HZ.contains(&rate_hz) {
                return Err(ConvertError::Rate(rate_hz));
            }
        }
        for channels in [from_channels, to_channels] {
            if !(1..=CHANNELS_MAX).contains(&channels) {
                return Err(ConvertError::Channels(channels));
            }
        }
        let narrow = usize::from(from_channels.min(to_channels));
        let resampling = if from_rate_hz == to_rate_hz {
            None
        } else {
            let made = Resampling::new(from_rate_hz, to_rate_hz, narrow);
            Some(made.ok_or(ConvertError::Rate(to_rate_hz))?)
        };
        Ok(Converter {
            from_channels: usize::from(from_channels),
            to_channels: usize::from(to_channels),
            resampling,
            mixed: Vec::new(),
            resampled: Vec::new(),
        })
    }

    /// Takes any number of whole frames, and appends the result. After n input frames in total, the output has n frames times the
    /// ratio of the rates, rounded down. So each packet of input produces a packet of output.
    pub fn process(&mut self, input: &[f32], out: &mut Vec<f32>) {
        let Some(resampling) = &mut self.resampling else {
            return mix(input, self.from_channels, self.to_channels, out);
        };
        // Resamples as few channels as possible.
        if self.to_channels == self.from_channels {
            resampling.process(input, out);
        } else if self.to_channels < self.from_channels {
            self.mixed.clear();
            mix(input, self.from_channels, self.to_channels, &mut self.mixed);
            resampling.process(&self.mixed, out);
        } else {
            self.resampled.clear();
            resampling.process(input, &mut self.resampled);
            mix(&self.resampled, self.from_channels, self.to_channels, out);
        }
    }

    /// Returns the delay of the output, in frames at its rate: half the filter, 4.5 ms at the lower rate, and up to three frames.
    #[must_use]
    pub fn latency_frames(&self) -> usize {
        let latency = self.resampling.as_ref().map(Resampling::latency_frames);
        latency.unwrap_or(0)
    }

    /// Restarts the stream: the output contains nothing of earlier audio.
    pub fn reset(&mut self) {
        if let Some(resampling) = &mut self.resampling {
            resampling.reset();
        }
    }
}

/// Appends `input` in another number of channels: see [`Converter`].
fn mix(input: &[f32], from: usize, to: usize, out: &mut Vec<f32>) {
    if from == to {
        return out.extend_from_slice(input);
    }
    for frame in input.chunks_exact(from) {
        out.extend((0..to).map(|channel| {
            let own = frame.iter().skip(channel % from).step_by(to);
            let (sum, count) = own.fold((0.0, 0.0), |(sum, count), one| (sum + one, count + 1.0));
            sum / count
        }));
    }
}

struct Resampling {
    inner: Async<f32>,
    channels: usize,
    /// Ratio of the rates, out to in, in lowest terms.
    up: usize,
    down: usize,
    /// Output that is due, in frames times `down`: always less than one frame.
    owed: usize,
    /// Output that is ready before it is due. It begins with silence. It is needed because rubato's number of frames depends on
    /// rounding, and the converter's must not.
    ready: Vec<f32>,
    filter_frames: usize,
}

impl std::fmt::Debug for Resampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resampling")
            .field("channels", &self.channels)
            .field("up", &self.up)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}

impl Resampling {
    fn new(from_hz: u32, to_hz: u32, channels: usize) -> Option<Resampling> {
        let common = gcd(from_hz, to_hz);
        let (up, down) = ((to_hz / common) as usize, (from_hz / common) as usize);
        // In frames of the input, and a multiple of 8, as rubato requires.
        let filter_frames = (FILTER_FRAMES * down.max(up))
            .div_ceil(up)
            .next_multiple_of(8);
        let parameters = SincInterpolationParameters::new(filter_frames, WindowFunction::Blackman)
            .f_cutoff(CUTOFF)
            .oversampling_factor(up)
            .interpolation(SincInterpolationType::Nearest);
        let ratio = up as f64 / down as f64;
        let inner = Async::new_sinc(
            ratio,
            1.0,
            &parameters,
            CHUNK_FRAMES,
            channels,
            FixedAsync::Input,
        );
        let mut new = Resampling {
            inner: inner.ok()?,
            channels,
            up,
            down,
            owed: 0,
            ready: Vec::new(),
            filter_frames,
        };
        new.reset();
        Some(new)
    }

    fn process(&mut self, input: &[f32], out: &mut Vec<f32>) {
        for chunk in input.chunks(CHUNK_FRAMES * self.channels) {
            self.resample(chunk);
        }
        self.owed += input.len() / self.channels * self.up;
        let due = (self.owed / self.down * self.channels).min(self.ready.len());
        self.owed %= self.down;
        out.extend_from_slice(&self.ready[..due]);
        self.ready.drain(..due);
    }

    /// Appends to the ready output. rubato refuses only inconsistent sizes, which cannot occur here.
    fn resample(&mut self, chunk: &[f32]) {
        let frames = chunk.len() / self.channels;
        if let Some(resizable) = self.inner.as_resizable() {
            let resized = resizable.set_chunk_size(frames);
            debug_assert!(resized.is_ok(), "{frames} frames are 1 to CHUNK_FRAMES");
        }
        let start = self.ready.len();
        let more = self.inner.output_frames_next();
        self.ready.resize(start + more * self.channels, 0.0);
        let from = InterleavedSlice::new(chunk, self.channels, frames);
        let to = InterleavedSlice::new_mut(&mut self.ready[start..], self.channels, more);
        if let (Ok(from), Ok(mut to)) = (from, to) {
            let done = self.inner.process_into_buffer(&from, &mut to, None);
            debug_assert!(done.is_ok(), "{done:?}");
        }
    }

    fn latency_frames(&self) -> usize {
        // rubato's first sample is that of one step after the filter's length of silence.
        let half = self.filter_frames / 2 * self.up - 1;
        (half + self.down / 2) / self.down + self.lead_frames() - 1
    }

    /// Returns the length of the initial silence. rubato makes its first sample two frames later than necessary. One more frame
    /// covers rubato's rounding.
    fn lead_frames(&self) -> usize {
        (2 * self.up).div_ceil(self.down) + 1
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.owed = 0;
        self.ready.clear();
        self.ready.resize(self.lead_frames() * self.channels, 0.0);
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Length of the filter in frames of the lower rate. With a Blackman window, the transition band around the cutoff has a width
/// of 5.5 * 2 / `FILTER_FRAMES` of the Nyquist frequency.
const FILTER_FRAMES: usize = 72;

/// Middle of the transition band. So this band is from 0.85 to 1 of the Nyquist frequency of the lower rate.
const CUTOFF: f32 = 0.925;

/// Number of frames resampled in one step: 10 ms at 48 kHz.
const CHUNK_FRAMES: usize = 480;
