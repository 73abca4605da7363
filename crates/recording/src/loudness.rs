//! Measures the loudness of a file (EBU R128) while the file is written.

use std::fmt;

use serde::{Deserialize, Serialize};
use threadbare_loudness::{Meter, Mode, Resolution};
use utoipa::ToSchema;

use super::sound::{Coding, Sound};

/// Loudness and peak of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileLoudness {
    /// Integrated loudness in LUFS.
    pub integrated_lufs: f64,
    /// Loudness range in LU.
    pub range_lu: f64,
    /// True peak of the loudest channel in dBTP.
    pub true_peak_dbtp: f64,
}

impl fmt::Display for FileLoudness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileLoudness {
            integrated_lufs,
            range_lu,
            true_peak_dbtp,
        } = self;
        write!(
            f,
            "integrated {integrated_lufs:.2} LUFS, range {range_lu:.2} LU, true peak {true_peak_dbtp:.2} dBTP"
        )
    }
}

/// Meter for the loudness of one file.
#[derive(Debug)]
pub(super) struct FileMeter {
    meter: Option<Box<Meter>>,
    coding: Coding,
}

impl FileMeter {
    /// Creates a meter for interleaved audio. It measures nothing if loudness is not defined for the sample rate or the number of channels.
    pub(super) fn new(sound: Sound) -> FileMeter {
        let mode = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK | Mode::HISTOGRAM;
        let meter = Meter::builder(sound.rate_hz, usize::from(sound.channels))
            .mode(mode)
            .resolution(Resolution::Step)
            .build();
        FileMeter {
            meter: meter.ok().map(Box::new),
            coding: sound.coding,
        }
    }

    /// Adds whole frames in the file's coding.
    pub(super) fn add(&mut self, frames: &[u8]) {
        let Some(meter) = &mut self.meter else { return };
        let mut room = [0; PIECE_SAMPLES];
        let sample_bytes = self.coding.sample_bytes();
        let most = PIECE_SAMPLES / meter.channels() * meter.channels();
        for piece in frames.chunks(most * sample_bytes) {
            let samples = &mut room[..piece.len() / sample_bytes];
            self.coding.decode(piece, samples);
            // This cannot fail, because the frames are complete.
            let _ = meter.add_interleaved(samples);
        }
    }

    /// Returns the loudness so far. `None`: the audio was too quiet or too short.
    pub(super) fn read(&self) -> Option<FileLoudness> {
        let meter = self.meter.as_ref()?;
        let peaks = (0..meter.channels()).filter_map(|channel| meter.true_peak(channel).ok());
        let read = FileLoudness {
            integrated_lufs: meter.integrated().ok()?,
            range_lu: meter.range().ok()?.lu,
            true_peak_dbtp: 20.0 * peaks.fold(0.0, f64::max).log10(),
        };
        let all = [read.integrated_lufs, read.range_lu, read.true_peak_dbtp];
        all.iter().all(|value| value.is_finite()).then_some(read)
    }
}

/// Number of samples of all channels that are decoded at a time.
const PIECE_SAMPLES: usize = 2048;
