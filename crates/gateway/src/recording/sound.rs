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

    /// Appends samples.
    pub(super) fn write(self, samples: impl Iterator<Item = i16>, out: &mut Vec<u8>) {
        match self {
            Coding::Linear => out.extend(samples.flat_map(i16::to_le_bytes)),
            // What was decoded becomes the code that came.
            Coding::ALaw => out.extend(samples.map(g711::linear_to_alaw)),
            Coding::ULaw => out.extend(samples.map(g711::linear_to_ulaw)),
        }
    }
}

impl Sound {
    pub(super) fn frame_bytes(self) -> u32 {
        u32::from(self.channels) * self.coding.sample_bytes()
    }
}
