//! Sources of the samples of a call: interleaved or planar samples, samples of several streams, or silence.

use crate::sample::{InputError, Sample};
use crate::simd::Level;

/// Source of a group's samples.
pub(crate) trait Source {
    /// Writes the frames from `at` on, of `live` channels from `first` on, to `lanes`. Full scale is 1.0. Lanes beyond `live`
    /// stay unchanged.
    fn fill<const G: usize>(
        &self,
        level: Level,
        at: usize,
        first: usize,
        live: usize,
        lanes: &mut [[f64; G]],
    );
}

/// Interleaved samples: whole frames of this many channels.
pub(crate) struct Interleaved<'a, T> {
    samples: &'a [T],
    channels: usize,
}

impl<'a, T: Sample> Interleaved<'a, T> {
    pub(crate) fn new(samples: &'a [T], channels: usize) -> Result<Self, InputError> {
        if !samples.len().is_multiple_of(channels) {
            let samples = samples.len();
            return Err(InputError::PartialFrame { samples, channels });
        }
        Ok(Interleaved { samples, channels })
    }

    pub(crate) fn frames(&self) -> usize {
        self.samples.len() / self.channels
    }
}

impl<T: Sample> Source for Interleaved<'_, T> {
    fn fill<const G: usize>(
        &self,
        level: Level,
        at: usize,
        first: usize,
        live: usize,
        lanes: &mut [[f64; G]],
    ) {
        let from = &self.samples[at * self.channels..][..lanes.len() * self.channels];
        level.gather(from, self.channels, first, 0..live, lanes);
    }
}

/// Planar samples: one slice per channel, all of the same length.
pub(crate) struct Planar<'a, P, T> {
    planes: &'a [P],
    frames: usize,
    sample: std::marker::PhantomData<T>,
}

impl<'a, P: AsRef<[T]>, T: Sample> Planar<'a, P, T> {
    pub(crate) fn new(planes: &'a [P], channels: usize) -> Result<Self, InputError> {
        if planes.len() != channels {
            let planes = planes.len();
            return Err(InputError::Planes { planes, channels });
        }
        let expected = planes.first().map_or(0, |plane| plane.as_ref().len());
        for (index, plane) in planes.iter().enumerate() {
            let frames = plane.as_ref().len();
            if frames != expected {
                return Err(InputError::Uneven {
                    index,
                    frames,
                    expected,
                });
            }
        }
        let sample = std::marker::PhantomData;
        Ok(Planar {
            planes,
            frames: expected,
            sample,
        })
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames
    }
}

impl<P: AsRef<[T]>, T: Sample> Source for Planar<'_, P, T> {
    fn fill<const G: usize>(
        &self,
        level: Level,
        at: usize,
        first: usize,
        live: usize,
        lanes: &mut [[f64; G]],
    ) {
        for lane in 0..live.min(G) {
            let from = &self.planes[first + lane].as_ref()[at..at + lanes.len()];
            level.gather_plane(from, lane, lanes);
        }
    }
}

/// Silence on all channels.
pub(crate) struct Silence;

impl Source for Silence {
    fn fill<const G: usize>(
        &self,
        _level: Level,
        _at: usize,
        _first: usize,
        _live: usize,
        lanes: &mut [[f64; G]],
    ) {
        lanes.fill([0.0; G]);
    }
}

/// Interleaved samples of several streams. Channels are numbered across all streams: the numbers of the second stream's channels
/// follow those of the first stream's channels.
pub(crate) struct Streams<'a, T> {
    inputs: &'a [&'a [T]],
    channels: usize,
}

impl<'a, T: Sample> Streams<'a, T> {
    pub(crate) fn new(
        inputs: &'a [&'a [T]],
        streams: usize,
        channels: usize,
    ) -> Result<Self, InputError> {
        if inputs.len() != streams {
            return Err(InputError::Streams {
                inputs: inputs.len(),
                streams,
            });
        }
        let samples = inputs.first().map_or(0, |input| input.len());
        if !samples.is_multiple_of(channels) {
            return Err(InputError::PartialFrame { samples, channels });
        }
        if let Some(index) = inputs.iter().position(|input| input.len() != samples) {
            let (frames, expected) = (inputs[index].len() / channels, samples / channels);
            return Err(InputError::Uneven {
                index,
                frames,
                expected,
            });
        }
        Ok(Streams { inputs, channels })
    }

    pub(crate) fn frames(&self) -> usize {
        self.inputs
            .first()
            .map_or(0, |input| input.len() / self.channels)
    }
}

impl<T: Sample> Source for Streams<'_, T> {
    fn fill<const G: usize>(
        &self,
        level: Level,
        at: usize,
        first: usize,
        live: usize,
        lanes: &mut [[f64; G]],
    ) {
        let mut lane = 0;
        while lane < live {
            let (stream, channel) = (
                (first + lane) / self.channels,
                (first + lane) % self.channels,
            );
            let end = live.min(lane + self.channels - channel);
            let from = &self.inputs[stream][at * self.channels..][..lanes.len() * self.channels];
            level.gather(from, self.channels, channel, lane..end, lanes);
            lane = end;
        }
    }
}
