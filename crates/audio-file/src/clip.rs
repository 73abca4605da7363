//! Audio files that are decoded into memory, for fallbacks.
//!
//! Streams that name the same file share its samples.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use threadbare_rtp::call::Clip;

use crate::audio_file;

/// The files read so far, by path.
#[derive(Debug, Default)]
pub struct Clips {
    read: HashMap<PathBuf, Clip>,
    samples: usize,
}

/// The reason why a file gives no audio.
#[derive(Debug, thiserror::Error)]
pub enum ClipError {
    /// The file is missing, has no audio, or has an unsupported format.
    #[error("{}: {reason}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file is too long.
    #[error(
        "{} has {samples} samples; expected at most {FILE_SAMPLES_MAX} in a file, and {ALL_SAMPLES_MAX} in all files of a gateway together",
        .path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Samples of all its channels.
        samples: usize,
    },
}

impl Clips {
    /// Returns the samples of a file, for endless repetition. Each file is read only once.
    ///
    /// # Errors
    /// Fails if the file is unreadable or too long.
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
    let unreadable = |reason: &dyn ToString| ClipError::Unreadable {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    let opened = audio_file::open(Box::new(BufReader::new(file)));
    let clip = opened.and_then(audio_file::Opened::decode);
    let clip = clip.map_err(|error| unreadable(&error))?;
    let samples = clip.pcm.len();
    if samples > FILE_SAMPLES_MAX.min(room) {
        let path = path.to_owned();
        return Err(ClipError::TooLong { path, samples });
    }
    Ok(Clip { times: 0, ..clip })
}

/// Maximum number of samples of a file, 64 MiB: almost six minutes of 48 kHz mono, half an hour of 8 kHz.
pub const FILE_SAMPLES_MAX: usize = 16 << 20;
/// Maximum number of samples of all files, 256 MiB.
pub const ALL_SAMPLES_MAX: usize = 4 * FILE_SAMPLES_MAX;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hound::{SampleFormat, WavSpec, WavWriter};

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

    /// Samples of any width are converted to the same full scale of 1.
    #[test]
    fn a_file_is_read_once_and_full_scale_becomes_1() {
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
        assert!(refused(&path).contains("known format"));
    }

    #[test]
    fn memory_for_all_files_is_bounded() {
        let path = write(spec(16, SampleFormat::Int), [1_i16; 8]);
        assert!(matches!(
            read(&path, 7),
            Err(ClipError::TooLong { samples: 8, .. })
        ));
        assert!(read(&path, 8).is_ok());
    }
}
