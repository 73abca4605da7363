//! Computes readings and a curve from samples.

use std::ops::Range;

use gstthreadbare::loudness::frames::{Format, Scratch};
use threadbare_loudness::{BuildError, InputError, Meter, Mode, ReadError, Resolution, Sample};

/// The measurement of a file.
#[derive(Debug)]
pub(super) struct Measurement {
    running: Option<Running>,
    scratch: Scratch,
    momentary_max_lufs: f64,
    short_term_max_lufs: f64,
    /// Peaks of earlier parts of the file, which had another number of channels.
    peaks: Peaks,
    seconds_before: f64,
    curve: Option<Vec<Point>>,
    /// The first error.
    problem: Option<String>,
}

#[derive(Debug)]
struct Running {
    format: Format,
    meter: Meter,
    /// Number of frames in the current format so far.
    frames: u64,
    /// Number of readings in the current format so far.
    polls: u64,
    /// True peak since the last point of the curve.
    recent_true_peak: f64,
}

/// Peaks of all channels; full scale is 1.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    sample: f64,
    true_peak: f64,
}

/// A point of the curve. Loudness is in LUFS, and minus infinity for silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) seconds: f64,
    pub(super) momentary: f64,
    pub(super) short_term: f64,
    /// Integrated loudness from the start.
    pub(super) integrated: f64,
    /// True peak of the loudest channel since the previous point; full scale is 1.
    pub(super) true_peak: f64,
    /// Whether a gating block of BS.1770 ends here, because at least 400 ms of audio were measured.
    pub(super) ends_block: bool,
}

/// A measured file.
#[derive(Debug)]
pub(super) struct Measured {
    /// The meter, from which the loudness of several files together is computed.
    pub(super) meter: Meter,
    pub(super) rate_hz: u32,
    pub(super) channels: usize,
    pub(super) seconds: f64,
    pub(super) momentary_max_lufs: f64,
    pub(super) short_term_max_lufs: f64,
    /// Sample peak of the loudest channel; full scale is 1.
    pub(super) sample_peak: f64,
    /// True peak of the loudest channel; full scale is 1.
    pub(super) true_peak: f64,
    /// The curve. It is empty unless it was requested.
    pub(super) curve: Vec<Point>,
}

impl Measurement {
    pub(super) fn new(is_plotted: bool) -> Measurement {
        Measurement {
            running: None,
            scratch: Scratch::default(),
            momentary_max_lufs: f64::NEG_INFINITY,
            short_term_max_lufs: f64::NEG_INFINITY,
            peaks: Peaks::default(),
            seconds_before: 0.0,
            curve: is_plotted.then(Vec::new),
            problem: None,
        }
    }

    /// Sets the caps of the following samples. If they change within a file, integrated loudness and range continue.
    pub(super) fn set_caps(&mut self, caps: &gst::CapsRef) {
        match Format::of_caps(caps) {
            Ok(format) => self.set_format(format),
            Err(error) => self.fail(error),
        }
    }

    /// Sets the format of the following samples.
    pub(super) fn set_format(&mut self, format: Format) {
        let before = self.running.take();
        if let Some(running) = &before {
            self.keep_recent_peak(running);
            self.peaks = self.peaks.with(&running.meter);
            self.seconds_before += running.seconds();
        }
        match meter(before.map(|running| running.meter), &format) {
            Ok(meter) => {
                self.running = Some(Running {
                    format,
                    meter,
                    frames: 0,
                    polls: 0,
                    recent_true_peak: 0.0,
                });
            }
            Err(error) => self.fail(error),
        }
    }

    pub(super) fn add(&mut self, buffer: &gst::BufferRef) {
        let Some(mut running) = self.running.take() else {
            return self.fail("the decoder output samples without caps");
        };
        let format = running.format.clone();
        let mut scratch = std::mem::take(&mut self.scratch);
        let read = format.read(buffer, &mut scratch, |frames| {
            self.add_frames(&mut running, frames.len(), |meter, range| {
                frames.measure(meter, range)
            });
        });
        self.scratch = scratch;
        self.running = Some(running);
        if let Err(error) = read {
            self.fail(error);
        }
    }

    /// Adds interleaved samples of the current format.
    pub(super) fn add_samples<S: Sample>(&mut self, samples: &[S]) {
        let Some(mut running) = self.running.take() else {
            return self.fail("the decoder output samples without a format");
        };
        let channels = running.format.channels();
        self.add_frames(&mut running, samples.len() / channels, |meter, range| {
            meter.add_interleaved(&samples[range.start * channels..range.end * channels])
        });
        self.running = Some(running);
    }

    /// Returns the number of frames so far.
    pub(super) fn frames(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.frames)
    }

    fn add_frames(
        &mut self,
        running: &mut Running,
        frames: usize,
        add: impl Fn(&mut Meter, Range<usize>) -> Result<(), InputError>,
    ) {
        let mut at = 0;
        while at < frames {
            let due = (running.polls + 1) * u64::from(running.format.rate_hz) / POLLS_PER_SECOND;
            let room = usize::try_from(due.saturating_sub(running.frames)).unwrap_or(usize::MAX);
            let range: Range<usize> = at..at + room.min(frames - at);
            at = range.end;
            running.frames += range.len() as u64;
            if let Err(error) = add(&mut running.meter, range) {
                return self.fail(error);
            }
            if self.curve.is_some() {
                let latest = largest(&running.meter, Meter::last_true_peak);
                running.recent_true_peak = running.recent_true_peak.max(latest);
            }
            if running.frames >= due {
                running.polls += 1;
                self.poll(running);
            }
        }
    }

    fn poll(&mut self, running: &mut Running) {
        let meter = &running.meter;
        let (momentary, short_term) = (
            meter.momentary(),
            meter.short_term().unwrap_or(f64::NEG_INFINITY),
        );
        self.momentary_max_lufs = self.momentary_max_lufs.max(momentary);
        self.short_term_max_lufs = self.short_term_max_lufs.max(short_term);
        let Some(curve) = &mut self.curve else { return };
        if !running.polls.is_multiple_of(POLLS_PER_POINT) {
            return;
        }
        // Read it less and less often: reading needs a pass over all blocks so far, and the value changes less and less.
        let integrated = match curve.last() {
            Some(last) if !curve.len().is_multiple_of(1 + curve.len() / 1_000) => last.integrated,
            _ => meter.integrated().unwrap_or(f64::NEG_INFINITY),
        };
        let seconds = self.seconds_before + running.seconds();
        curve.push(Point {
            seconds,
            momentary,
            short_term,
            integrated,
            true_peak: std::mem::take(&mut running.recent_true_peak),
            // Subtract half of the interval of readings, because a sum of floats may be slightly too low.
            ends_block: seconds > BLOCK_S - 0.005,
        });
    }

    /// Adds the peak after the last point to that point, because the remaining audio is too short for another point.
    fn keep_recent_peak(&mut self, running: &Running) {
        if let Some(last) = self.curve.as_mut().and_then(|curve| curve.last_mut()) {
            last.true_peak = last.true_peak.max(running.recent_true_peak);
        }
    }

    /// Returns the result. `None`: the input had no audio.
    pub(super) fn finish(mut self) -> Result<Option<Measured>, String> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let Some(running) = self.running.take() else {
            return Ok(None);
        };
        self.keep_recent_peak(&running);
        let seconds = self.seconds_before + running.seconds();
        if seconds == 0.0 {
            return Ok(None);
        }
        let peaks = self.peaks.with(&running.meter);
        Ok(Some(Measured {
            rate_hz: running.format.rate_hz,
            channels: running.format.channels(),
            seconds,
            momentary_max_lufs: self.momentary_max_lufs,
            short_term_max_lufs: self.short_term_max_lufs,
            sample_peak: peaks.sample,
            true_peak: peaks.true_peak,
            curve: self.curve.unwrap_or_default(),
            meter: running.meter,
        }))
    }

    fn fail(&mut self, problem: impl ToString) {
        self.problem.get_or_insert_with(|| problem.to_string());
    }
}

impl Running {
    fn seconds(&self) -> f64 {
        self.frames as f64 / f64::from(self.format.rate_hz)
    }
}

impl Peaks {
    fn with(self, meter: &Meter) -> Peaks {
        Peaks {
            sample: self.sample.max(largest(meter, Meter::sample_peak)),
            true_peak: self.true_peak.max(largest(meter, Meter::true_peak)),
        }
    }
}

/// Returns the peak of the loudest channel.
fn largest(meter: &Meter, peak: fn(&Meter, usize) -> Result<f64, ReadError>) -> f64 {
    let channels = 0..meter.layout().len();
    channels.fold(0.0, |most, c| f64::max(most, peak(meter, c).unwrap_or(0.0)))
}

/// Returns a new meter, or sets the existing one to another format.
fn meter(before: Option<Meter>, format: &Format) -> Result<Meter, BuildError> {
    let Some(mut meter) = before else {
        return Meter::builder(format.rate_hz, format.channels())
            .layout(&format.layout)
            .mode(Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK)
            // Use the resolution that takes only some KB, because an album has many meters.
            .resolution(Resolution::Block)
            .build();
    };
    meter.set_format(format.rate_hz, format.channels())?;
    for (channel, place) in format.layout.iter().enumerate() {
        // This cannot fail: each channel has one position, and none is dual mono.
        let _ = meter.set_channel(channel, *place);
    }
    Ok(meter)
}

/// Number of readings per second. The tests for meters in EBU Tech 3341 have windows on a grid of 10 ms.
const POLLS_PER_SECOND: u64 = 100;
/// Number of readings per point: there is a point each 100 ms.
const POLLS_PER_POINT: u64 = 10;
/// Length of a gating block. Another one begins every 100 ms (BS.1770-4, annex 1: an overlap of 75 %), like the points.
const BLOCK_S: f64 = 0.4;
