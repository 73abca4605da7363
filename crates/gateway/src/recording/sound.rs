//! The audio of a file: rate, channels, and how a sample is written.

use serde::{Deserialize, Serialize};
use threadbare_rtp::g711;

/// How a sample is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coding {
    /// 16 bits, little endian.
    #[default]
    Linear,
    /// ITU-T G.711, a byte.
    ALaw,
    /// ITU-T G.711, a byte.
    ULaw,
}

/// The audio of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sound {
    pub(super) coding: Coding,
    pub(super) channels: u8,
    pub(super) rate_hz: u32,
}

impl Coding {
    pub(super) fn sample_bytes(self) -> u32 {
        match self {
            Coding::Linear => 2,
            Coding::ALaw | Coding::ULaw => 1,
        }
    }

    /// Appends samples: those of `width` in each frame that begin with `first`.
    pub(super) fn write(
        self,
        frames: &[i16],
        (first, width): (usize, usize),
        all: usize,
        out: &mut Vec<u8>,
    ) {
        if width < all {
            let own: Vec<i16> = match width {
                1 => frames.iter().skip(first).step_by(all).copied().collect(),
                _ => {
                    let own = frames.chunks_exact(all);
                    own.flat_map(|frame| &frame[first..first + width])
                        .copied()
                        .collect()
                }
            };
            return self.write_all(&own, out);
        }
        self.write_all(frames, out);
    }

    fn write_all(self, samples: &[i16], out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + samples.len() * self.sample_bytes() as usize, 0);
        let room = &mut out[begin..];
        match self {
            Coding::Linear => {
                for (two, sample) in room.as_chunks_mut::<2>().0.iter_mut().zip(samples) {
                    *two = sample.to_le_bytes();
                }
            }
            // What was decoded becomes the code that came.
            Coding::ALaw => {
                for (one, sample) in room.iter_mut().zip(samples) {
                    *one = g711::linear_to_alaw(*sample);
                }
            }
            Coding::ULaw => {
                for (one, sample) in room.iter_mut().zip(samples) {
                    *one = g711::linear_to_ulaw(*sample);
                }
            }
        }
    }
}

impl Sound {
    pub(super) fn frame_bytes(self) -> u32 {
        u32::from(self.channels) * self.coding.sample_bytes()
    }
}
