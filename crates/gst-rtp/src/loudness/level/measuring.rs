//! One stream's meter, and the readings that are due at each interval.

use std::ops::Range;

use threadbare_loudness::{BuildError, Meter, Mode, Resolution};

use super::super::frames::{Format, Refused, Scratch};
use super::super::readings::add_readings;

/// Settings of the element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    pub(super) interval_ns: u64,
    pub(super) is_posting: bool,
}

/// Output that becomes due while samples are added: the structures of messages, in order. An empty vector takes no memory, so
/// nothing is allocated if no message is due.
pub(super) type Due = Vec<gst::Structure>;

/// Position of the current samples on the stream's time line, and the action for them.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) pts: Option<gst::ClockTime>,
    pub(super) segment: Option<&'a gst::FormattedSegment<gst::ClockTime>>,
    pub(super) settings: &'a Settings,
}

#[derive(Debug)]
pub(super) struct Measuring {
    format: Format,
    scratch: Scratch,
    interval: Interval,
    meter: Meter,
}

/// Intervals between messages, in frames.
#[derive(Debug, Default)]
struct Interval {
    /// Number of frames since the measurement began.
    frames: u64,
    /// Start of the first interval, in frames.
    origin: u64,
    ended: u64,
    /// End of the running interval, in frames.
    end: u64,
}

impl Interval {
    /// Starts the first interval after this many frames.
    fn begin(frames: u64, format: &Format, settings: &Settings) -> Interval {
        let mut interval = Interval {
            frames,
            origin: frames,
            ..Interval::default()
        };
        interval.next(format, settings);
        interval
    }

    /// Computes each end from the start, so that intervals with a fractional number of frames do not drift.
    fn next(&mut self, format: &Format, settings: &Settings) {
        self.ended += 1;
        let length = format.frames_in(self.ended.saturating_mul(settings.interval_ns));
        let end = self.origin.saturating_add(length);
        self.end = end.max(self.frames + 1);
    }
}

impl Measuring {
    pub(super) fn new(format: Format, settings: &Settings) -> Result<Measuring, BuildError> {
        Ok(Measuring {
            meter: meter(&format, settings)?,
            interval: Interval::begin(0, &format, settings),
            scratch: Scratch::default(),
            format,
        })
    }

    /// Continues with other caps. If only the type or the layout of the samples changes, the measurement is not interrupted.
    pub(super) fn set_format(
        &mut self,
        format: Format,
        settings: &Settings,
    ) -> Result<(), BuildError> {
        let is_same = self.format.rate_hz == format.rate_hz && self.format.layout == format.layout;
        if !is_same {
            self.meter = meter(&format, settings)?;
            self.interval = Interval::begin(0, &format, settings);
        }
        self.format = format;
        Ok(())
    }

    /// Changes the measurements, which restarts them.
    pub(super) fn set_mode(&mut self, settings: &Settings) -> Result<(), BuildError> {
        self.meter = meter(&self.format, settings)?;
        self.interval = Interval::begin(0, &self.format, settings);
        Ok(())
    }

    pub(super) fn set_interval(&mut self, settings: &Settings) {
        self.interval = Interval::begin(self.interval.frames, &self.format, settings);
    }

    /// Resets the measurements.
    pub(super) fn reset(&mut self, settings: &Settings) {
        self.meter.reset();
        self.interval = Interval::begin(0, &self.format, settings);
    }

    pub(super) fn add_buffer(
        &mut self,
        buffer: &gst::BufferRef,
        at: &At<'_>,
        due: &mut Due,
    ) -> Result<(), Refused> {
        if buffer.flags().contains(gst::BufferFlags::GAP) {
            let frames = self.format.frames_of(buffer)?;
            self.add_silence(frames as u64, at, due);
            return Ok(());
        }
        let Measuring {
            format,
            scratch,
            interval,
            meter,
        } = self;
        format.read(buffer, scratch, |frames| {
            let measure = |meter: &mut Meter, range: Range<usize>| {
                let taken = frames.measure(meter, range);
                debug_assert!(taken.is_ok(), "the meter is made for this format");
            };
            add((meter, interval), format, frames.len(), measure, at, due);
        })
    }

    /// Adds a gap in the stream.
    pub(super) fn add_gap(&mut self, duration: gst::ClockTime, at: &At<'_>, due: &mut Due) {
        let frames = self.format.frames_in(duration.nseconds());
        self.add_silence(frames, at, due);
    }

    fn add_silence(&mut self, frames: u64, at: &At<'_>, due: &mut Due) {
        let frames = frames.min(u64::from(self.format.rate_hz) * SILENCE_S_MAX);
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        let measure = |meter: &mut Meter, range: Range<usize>| meter.add_silence(range.len());
        let Measuring {
            format,
            interval,
            meter,
            ..
        } = self;
        add((meter, interval), format, frames, measure, at, due);
    }

    pub(super) fn add_readings(&self, structure: &mut gst::StructureRef) {
        structure.set("frames", self.interval.frames);
        add_readings(structure, &self.meter);
    }
}

/// Maximum silence that is measured, in seconds. Silence is below all gates: after the length of the longest window, more silence
/// changes no reading. A GAP event that claims a year must not keep the thread busy.
const SILENCE_S_MAX: u64 = 10;

fn meter(format: &Format, settings: &Settings) -> Result<Meter, BuildError> {
    Meter::builder(format.rate_hz, format.channels())
        .layout(&format.layout)
        .mode(settings.mode | Mode::HISTOGRAM)
        // With this resolution, the meter takes some KB, instead of 8 bytes for each frame of 3 s. Windows end at most 10 ms
        // before the last frame.
        .resolution(Resolution::Block)
        .build()
}

/// Adds this many frames, in pieces, so that each reading is taken at the frame at which it is due.
fn add(
    (meter, interval): (&mut Meter, &mut Interval),
    format: &Format,
    frames: usize,
    measure: impl Fn(&mut Meter, Range<usize>),
    at: &At<'_>,
    due: &mut Due,
) {
    let mut done = 0;
    while done < frames {
        let room = interval.end - interval.frames;
        let count = (frames - done).min(usize::try_from(room).unwrap_or(usize::MAX));
        measure(meter, done..done + count);
        done += count;
        interval.frames += count as u64;
        if interval.frames < interval.end {
            continue;
        }
        interval.next(format, at.settings);
        if at.settings.is_posting {
            let passed = gst::ClockTime::from_nseconds(format.duration_ns(done as u64));
            due.push(message(meter, at, passed));
        }
    }
}

/// Creates a message. Its times are those of the last measured frame, `passed` after the start of the current samples.
fn message(meter: &Meter, at: &At<'_>, passed: gst::ClockTime) -> gst::Structure {
    let timestamp = at.pts.and_then(|pts| pts.checked_add(passed));
    let running = at.segment.and_then(|s| s.to_running_time(timestamp));
    let stream = at.segment.and_then(|s| s.to_stream_time(timestamp));
    let mut structure = gst::Structure::builder("ebur128-level")
        .field("timestamp", timestamp)
        .field("running-time", running)
        .field("stream-time", stream)
        .build();
    add_readings(&mut structure, meter);
    structure
}
