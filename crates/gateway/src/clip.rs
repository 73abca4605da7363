//! Audio files, decoded into memory: for fallbacks, which are played from there.
//!
//! Streams that name the same file share its samples.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hound::{SampleFormat, WavReader};
use threadbare_rtp::call::Clip;
use threadbare_rtp::codec::{CHANNELS_MAX, SAMPLE_RATES_HZ};

/// The files that were read.
#[derive(Debug, Default)]
pub struct Clips {
    read: HashMap<PathBuf, Clip>,
    samples: usize,
}

/// Why there is no audio of a file.
#[derive(Debug, thiserror::Error)]
pub enum ClipError {
    /// It is not there, or no WAV file.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: hound::Error,
    },
    /// Another rate, or too many channels.
    #[error(
        "{path}: {rate_hz} Hz, {channels} channels; allowed are rates of {SAMPLE_RATES_HZ:?} Hz and up to {CHANNELS_MAX} channels"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its rate.
        rate_hz: u32,
        /// Its channels.
        channels: u16,
    },
    /// It has no audio.
    #[error("{0}: no audio in it")]
    Empty(PathBuf),
    /// It is too long.
    #[error(
        "{path}: {samples} samples; allowed are up to {FILE_SAMPLES_MAX} in a file, {ALL_SAMPLES_MAX} in all files of a gateway"
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Of all its channels.
        samples: usize,
    },
}

impl Clips {
    /// The samples of a file, to be repeated without end. A file is read once.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn get(&mut self, path: &Path) -> Result<Clip, ClipError> {
        if let Some(clip) = self.read.get(path) {
            return Ok(clip.clone());
        }
        let clip = read(path, ALL_SAMPLES_MAX - self.samples)?;
        self.samples += clip.pcm.len();
        self.read.insert(path.to_owned(), clip.clone());
        Ok(clip)
    }
}

fn read(path: &Path, room: usize) -> Result<Clip, ClipError> {
    let unreadable = |reason| ClipError::Unreadable {
        path: path.to_owned(),
        reason,
    };
    let file = WavReader::open(path).map_err(unreadable)?;
    let spec = file.spec();
    let rate_hz = spec.sample_rate;
    let channels = u8::try_from(spec.channels)
        .ok()
        .filter(|channels| (1..=CHANNELS_MAX).contains(channels));
    let Some(channels) = channels.filter(|_| SAMPLE_RATES_HZ.contains(&rate_hz)) else {
        return Err(ClipError::Format {
            path: path.to_owned(),
            rate_hz,
            channels: spec.channels,
        });
    };
    let samples = file.len() as usize;
    if samples > FILE_SAMPLES_MAX.min(room) {
        let path = path.to_owned();
        return Err(ClipError::TooLong { path, samples });
    }
    let pcm: Result<Vec<f32>, hound::Error> = match spec.sample_format {
        SampleFormat::Float => file.into_samples::<f32>().collect(),
        SampleFormat::Int => {
            let full_scale = (1_i64 << (spec.bits_per_sample.clamp(1, 32) - 1)) as f32;
            let samples = file.into_samples::<i32>();
            let scaled = samples.map(|sample| Ok(sample? as f32 / full_scale));
            scaled.collect()
        }
    };
    let mut pcm = pcm.map_err(unreadable)?;
    // A file that was cut short may end within a frame.
    pcm.truncate(pcm.len() / usize::from(channels) * usize::from(channels));
    // Floating-point files may hold anything.
    let is_odd = |sample: &&mut f32| !sample.is_finite();
    pcm.iter_mut()
        .filter(is_odd)
        .for_each(|sample| *sample = 0.0);
    if pcm.is_empty() {
        return Err(ClipError::Empty(path.to_owned()));
    }
    Ok(Clip {
        pcm: pcm.into(),
        rate_hz,
        channels,
        times: 0,
    })
}

/// 64 MiB: almost six minutes of 48 kHz mono, half an hour of 8 kHz.
pub const FILE_SAMPLES_MAX: usize = 16 << 20;
/// 256 MiB.
pub const ALL_SAMPLES_MAX: usize = 4 * FILE_SAMPLES_MAX;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hound::{WavSpec, WavWriter};

    use super::*;

    fn write<S: hound::Sample>(
        spec: WavSpec,
        samples: impl IntoIterator<Item = S>,
    ) -> tempfile::TempPath {
        let file = tempfile::NamedTempFile::new()
            .expect("a file")
            .into_temp_path();
        let mut writer = WavWriter::create(&file, spec).expect("created");
        for sample in samples {
            writer.write_sample(sample).expect("written");
        }
        writer.finalize().expect("finished");
        file
    }

    fn spec(bits_per_sample: u16, sample_format: SampleFormat) -> WavSpec {
        WavSpec {
            channels: 2,
            sample_rate: 44_100,
            bits_per_sample,
            sample_format,
        }
    }

    /// Full scale is 1, in every width.
    #[test]
    fn samples_are_read_at_their_level_and_once() {
        for bits in [8, 16, 24, 32] {
            let half = 1_i32 << (bits - 2);
            let path = write(spec(bits, SampleFormat::Int), [half, -half, 0, half / 2]);
            let mut clips = Clips::default();
            let clip = clips.get(&path).expect("readable");
            assert_eq!((clip.rate_hz, clip.channels, clip.times), (44_100, 2, 0));
            assert_eq!(clip.pcm[..], [0.5, -0.5, 0.0, 0.25], "{bits} bits");
            std::fs::write(&path, "gone").expect("written");
            let again = clips.get(&path).expect("known");
            assert!(Arc::ptr_eq(&clip.pcm, &again.pcm));
        }
        let path = write(spec(32, SampleFormat::Float), [0.5_f32, f32::NAN]);
        let clip = Clips::default().get(&path).expect("readable");
        assert_eq!(clip.pcm[..], [0.5, 0.0]);
    }

    #[test]
    fn a_file_that_cannot_be_played_is_refused() {
        let mut clips = Clips::default();
        let mut refused = |path: &Path| clips.get(path).expect_err("refused").to_string();
        assert!(refused(Path::new("no/such.wav")).contains("no/such.wav"));
        let empty = write::<i16>(spec(16, SampleFormat::Int), []);
        assert!(refused(&empty).contains("no audio"));
        let odd = WavSpec {
            sample_rate: 12_345,
            ..spec(16, SampleFormat::Int)
        };
        assert!(refused(&write(odd, [1_i16, 2])).contains("12345 Hz"));
        let path = write(spec(16, SampleFormat::Int), [1_i16; 8]);
        let mut bytes = std::fs::read(&path).expect("there");
        bytes[0] = b'X';
        std::fs::write(&path, bytes).expect("written");
        refused(&path);
    }

    #[test]
    fn what_is_held_of_all_files_is_bounded() {
        let path = write(spec(16, SampleFormat::Int), [1_i16; 8]);
        assert!(matches!(
            read(&path, 7),
            Err(ClipError::TooLong { samples: 8, .. })
        ));
        assert!(read(&path, 8).is_ok());
    }
}
