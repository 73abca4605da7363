//! The file of a recording: WAV of 16 bits with two channels. No thread, no clock of its own.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use hound::{SampleFormat, WavSpec, WavWriter};
use threadbare_relay::Listening;

use super::tracks::Tracks;

/// Why a recording ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Wav(#[from] hound::Error),
    #[error("a WAV file holds no more than {FRAMES_MAX} frames")]
    TooLong,
}

/// A file that grows, of a call that is listened to.
pub(super) struct Wav {
    file: WavWriter<BufWriter<File>>,
    listening: Listening,
    tracks: Tracks,
    frames: Vec<i16>,
}

impl std::fmt::Debug for Wav {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Wav").field(&self.file.spec()).finish()
    }
}

impl Wav {
    /// Creates the file, which must not be there yet.
    pub(super) fn new(
        path: &Path,
        rate_hz: u32,
        listening: Listening,
        now_ns: u64,
    ) -> Result<Wav, WriteError> {
        let file = File::options().write(true).create_new(true).open(path)?;
        let spec = WavSpec {
            channels: 2,
            sample_rate: rate_hz,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let mut file = WavWriter::new(BufWriter::new(file), spec)?;
        file.flush()?;
        Ok(Wav {
            file,
            listening,
            tracks: Tracks::new(rate_hz, now_ns),
            frames: Vec::new(),
        })
    }

    /// Writes what is complete.
    pub(super) fn write(&mut self, now_ns: u64) -> Result<(), WriteError> {
        self.hear();
        let until_ns = now_ns.saturating_sub(DELAY_NS);
        self.tracks.take(until_ns, &mut self.frames);
        self.flush()
    }

    /// Writes what there is: what comes is left out.
    pub(super) fn pause(&mut self, now_ns: u64) -> Result<(), WriteError> {
        self.hear();
        self.tracks.pause(now_ns, &mut self.frames);
        self.flush()
    }

    /// Goes on.
    pub(super) fn resume(&mut self, now_ns: u64) {
        self.tracks.resume(now_ns);
    }

    /// Audio that the disk was too slow for, ns.
    pub(super) fn missed_ns(&self) -> u64 {
        self.listening.missed_ns()
    }

    fn hear(&mut self) {
        let tracks = &mut self.tracks;
        self.listening
            .take(|portion, samples| tracks.add(portion, samples));
    }

    /// With a header that says so: a file whose writer is killed is whole but for its end.
    fn flush(&mut self) -> Result<(), WriteError> {
        let frames = (self.frames.len() / 2) as u64;
        if u64::from(self.file.duration()) + frames > FRAMES_MAX {
            return Err(WriteError::TooLong);
        }
        for sample in self.frames.drain(..) {
            self.file.write_sample(sample)?;
        }
        self.file.flush()?;
        Ok(())
    }
}

/// What comes later than this is not in the file: what is heard is taken in turn, and a disk may pause.
const DELAY_NS: u64 = 300_000_000;
/// 4 GiB less a header: the sizes in it have 32 bits. More than six hours of 48 kHz.
const FRAMES_MAX: u64 = (u32::MAX as u64 - 1024) / 4;
