//! The two channels of a recording, on one clock. No thread, no clock of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use hound::{SampleFormat, WavSpec, WavWriter};
use threadbare_rtp::call::Side;
use threadbare_rtp::codec::Format;
use threadbare_rtp::convert::Converter;

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

/// A file that grows.
#[derive(Debug)]
pub(super) struct Tracks {
    file: Wav,
    rate_hz: u32,
    /// The time of the file's first frame, pauses taken out, ns.
    start_ns: u64,
    paused_ns: Option<u64>,
    tracks: [Track; 2],
    /// Frames in the file.
    written: u64,
}

struct Wav(WavWriter<BufWriter<File>>);

impl std::fmt::Debug for Wav {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Wav").field(&self.0.spec()).finish()
    }
}

/// What one side said.
#[derive(Debug, Default)]
struct Track {
    converter: Option<(Format, Converter)>,
    /// Behind what is in the file.
    samples: VecDeque<f32>,
}

impl Tracks {
    /// Creates the file, which must not be there yet.
    pub(super) fn new(path: &Path, rate_hz: u32, now_ns: u64) -> Result<Tracks, WriteError> {
        let file = File::options().write(true).create_new(true).open(path)?;
        let spec = WavSpec {
            channels: 2,
            sample_rate: rate_hz,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let mut file = WavWriter::new(BufWriter::new(file), spec)?;
        file.flush()?;
        Ok(Tracks {
            file: Wav(file),
            rate_hz,
            start_ns: now_ns,
            paused_ns: None,
            tracks: [Track::default(), Track::default()],
            written: 0,
        })
    }

    /// What a side said until `now_ns`.
    pub(super) fn add(&mut self, now_ns: u64, side: Side, format: Format, pcm: &[f32]) {
        if self.paused_ns.is_some() {
            return;
        }
        let target = self.frame_at(now_ns);
        let slack = SLACK_NS * u64::from(self.rate_hz) / NS_PER_S;
        let (rate_hz, written) = (self.rate_hz, self.written);
        let track = &mut self.tracks[side as usize];
        let mut converted = Vec::new();
        if !track.convert(format, rate_hz, pcm, &mut converted) {
            return;
        }
        let end = |track: &Track| written + track.samples.len() as u64 + converted.len() as u64;
        let behind = target.saturating_sub(end(track));
        if behind > slack {
            // The side was silent.
            let silence = track.samples.len() + behind as usize;
            track.samples.resize(silence, 0.0);
        }
        let ahead = end(track).saturating_sub(target);
        if ahead > slack {
            // Its clock is faster than ours, or the file was slower than the call.
            converted.drain(..converted.len().min((ahead) as usize));
        }
        track.samples.extend(converted);
    }

    /// Writes what is complete.
    pub(super) fn write(&mut self, now_ns: u64) -> Result<(), WriteError> {
        if self.paused_ns.is_some() {
            return Ok(());
        }
        self.write_to(self.frame_at(now_ns.saturating_sub(DELAY_NS)))
    }

    /// Writes what there is: what comes is left out.
    pub(super) fn pause(&mut self, now_ns: u64) -> Result<(), WriteError> {
        if self.paused_ns.is_some() {
            return Ok(());
        }
        self.write_to(self.frame_at(now_ns))?;
        self.paused_ns = Some(now_ns);
        for track in &mut self.tracks {
            track.samples.clear();
        }
        Ok(())
    }

    /// Goes on.
    pub(super) fn resume(&mut self, now_ns: u64) {
        if let Some(paused_ns) = self.paused_ns.take() {
            self.start_ns += now_ns.saturating_sub(paused_ns);
        }
    }

    /// Writes all of it.
    pub(super) fn finish(&mut self, now_ns: u64) -> Result<(), WriteError> {
        self.pause(now_ns)
    }

    fn frame_at(&self, now_ns: u64) -> u64 {
        let ns = u128::from(now_ns.saturating_sub(self.start_ns));
        (ns * u128::from(self.rate_hz) / u128::from(NS_PER_S)) as u64
    }

    /// With a header that says so: a file whose writer is killed is whole but for its end.
    fn write_to(&mut self, frame: u64) -> Result<(), WriteError> {
        if frame > FRAMES_MAX {
            return Err(WriteError::TooLong);
        }
        while self.written < frame {
            for track in &mut self.tracks {
                let sample = track.samples.pop_front().unwrap_or(0.0);
                let scaled = (sample * 32_768.0).round().clamp(-32_768.0, 32_767.0);
                self.file.0.write_sample(scaled as i16)?;
            }
            self.written += 1;
        }
        self.file.0.flush()?;
        Ok(())
    }
}

impl Track {
    /// To the file's rate, and to one channel. Whether that can be done.
    fn convert(&mut self, format: Format, rate_hz: u32, pcm: &[f32], out: &mut Vec<f32>) -> bool {
        let is_other = self.converter.as_ref().is_none_or(|(of, _)| *of != format);
        if is_other {
            let new = Converter::new(format.sample_rate_hz, format.channels, rate_hz, 1);
            self.converter = new.ok().map(|new| (format, new));
        }
        let Some((_, converter)) = &mut self.converter else {
            return false;
        };
        converter.process(pcm, out);
        true
    }
}

const NS_PER_S: u64 = 1_000_000_000;
/// A channel may be off by this much before it is moved: packets are heard in slices of 20 ms, and wait in the jitter buffer.
const SLACK_NS: u64 = 60_000_000;
/// What comes later than this is not in the file: the writer takes orders in turn, and a disk may pause.
const DELAY_NS: u64 = 300_000_000;
/// 4 GiB less a header: the sizes in it have 32 bits. More than six hours of 48 kHz.
const FRAMES_MAX: u64 = (u32::MAX as u64 - 1024) / 4;
