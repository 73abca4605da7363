//! One stream's normaliser with its queue: three seconds of audio, and the events in between.

use std::collections::VecDeque;

use gst::prelude::*;
use gst_audio::AudioInfo;
use threadbare_loudness::{
    InputError, NormalizeError, Normalizer, NormalizerSettings, NormalizerState,
};

use super::super::frames::{Format, Frames, Refused, Scratch, Typed, with_typed_frames};
use super::output;
use super::timeline::{Arrival, Timeline};

/// Maximum number of events in three seconds. No programme has more of them. Above it, the oldest event leaves at once.
const EVENTS_MAX: usize = 256;
/// Minimum length of the buffers at the end of a stream. Within the limits, they are as long as the input's.
const PIECE_MS_MIN: u64 = 10;
/// Maximum length of buffers at the end of a stream.
const PIECE_MS_MAX: u64 = 100;

/// A buffer of the output.
#[derive(Debug)]
pub(super) enum Item {
    Buffer(gst::Buffer),
    Event(gst::Event),
}

/// An input buffer, and the part of it that has been used.
pub(super) struct Feed {
    pub(super) sound: Sound,
    frames: u64,
    done: u64,
}

pub(super) enum Sound {
    Of(gst::Buffer),
    Silence,
}

impl Feed {
    pub(super) fn silence(frames: u64) -> Feed {
        Feed {
            sound: Sound::Silence,
            frames,
            done: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done >= self.frames
    }

    /// Returns the buffer if it is not needed any more.
    pub(super) fn spare(self) -> Option<gst::Buffer> {
        match self.sound {
            Sound::Of(buffer) => Some(buffer),
            Sound::Silence => None,
        }
    }
}

/// Counters since the element went to PAUSED.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) frames_in: u64,
    pub(super) frames_out: u64,
    /// Number of silent frames that replaced gaps.
    pub(super) frames_filled: u64,
    /// Number of jumps of the stream.
    pub(super) jumps: u64,
}

#[derive(Debug)]
pub(super) struct NormalizerQueue {
    format: Format,
    info: AudioInfo,
    normalizer: Normalizer,
    scratch: Scratch,
    timeline: Timeline,
    /// Events, each with the number of the frame that it precedes.
    events: VecDeque<(u64, gst::Event)>,
    /// Number of input frames in this run. A run begins at the start, or at the last jump.
    frames_in: u64,
    frames_out: u64,
    piece_frames: u64,
    /// Whether the next buffer does not follow the previous one.
    is_jump: bool,
    pub(super) counts: Counts,
}

impl NormalizerQueue {
    pub(super) fn new(
        format: Format,
        info: AudioInfo,
        settings: NormalizerSettings,
    ) -> Result<NormalizerQueue, NormalizeError> {
        Ok(NormalizerQueue {
            normalizer: Normalizer::new(format.rate_hz, &format.layout, settings)?,
            format,
            info,
            scratch: Scratch::default(),
            timeline: Timeline::new(),
            events: VecDeque::with_capacity(EVENTS_MAX),
            frames_in: 0,
            frames_out: 0,
            piece_frames: 0,
            is_jump: true,
            counts: Counts::default(),
        })
    }

    pub(super) fn format(&self) -> &Format {
        &self.format
    }

    pub(super) fn latency(&self) -> gst::ClockTime {
        let latency_ns = self.format.duration_ns(self.normalizer.latency_frames());
        gst::ClockTime::from_nseconds(latency_ns)
    }

    pub(super) fn set_settings(
        &mut self,
        settings: NormalizerSettings,
    ) -> Result<(), NormalizeError> {
        self.normalizer.set_settings(settings)
    }

    pub(super) fn state(&self) -> NormalizerState {
        self.normalizer.state()
    }

    pub(super) fn forget_limiter(&mut self) {
        self.normalizer.forget_limiter();
    }

    /// Returns the time of the next output.
    pub(super) fn time_out(&mut self) -> Option<gst::ClockTime> {
        let time_ns = self.timeline.time_of(&self.format, self.frames_out)?;
        Some(gst::ClockTime::from_nseconds(time_ns))
    }

    pub(super) fn frames_in_ns(&self, ns: u64) -> u64 {
        self.format.frames_in(ns)
    }

    /// Compares the time of an arriving item with the expected one.
    pub(super) fn arrive(&mut self, pts: Option<gst::ClockTime>) -> Arrival {
        match pts {
            Some(pts) => (self.timeline).arrive(&self.format, self.frames_in, pts.nseconds()),
            None => Arrival::Follows,
        }
    }

    /// Returns the number of frames between the input so far and `until`.
    pub(super) fn frames_until(&self, until: gst::ClockTime) -> u64 {
        let expected = self.timeline.expected(&self.format, self.frames_in);
        let ns = expected.map_or(0, |expected| until.nseconds().saturating_sub(expected));
        self.format.frames_in(ns)
    }

    /// Notes the time at which filled silence ends.
    pub(super) fn anchor(&mut self, pts: gst::ClockTime) {
        self.timeline.set(self.frames_in, pts.nseconds());
    }

    pub(super) fn feed(&mut self, buffer: gst::Buffer) -> Result<Feed, Refused> {
        let frames = self.format.frames_of(&buffer)? as u64;
        let is_gap = buffer.flags().contains(gst::BufferFlags::GAP);
        let ms = u64::from(self.format.rate_hz).div_ceil(1_000);
        self.piece_frames = frames.clamp(ms * PIECE_MS_MIN, ms * PIECE_MS_MAX);
        Ok(Feed {
            sound: if is_gap {
                Sound::Silence
            } else {
                Sound::Of(buffer)
            },
            frames,
            done: 0,
        })
    }

    /// Adds as many frames as fit. The remaining frames fit after all output items have been taken.
    pub(super) fn add(&mut self, feed: &mut Feed) -> Result<(), Refused> {
        let before = feed.done;
        match &feed.sound {
            Sound::Silence => {
                let frames = usize::try_from(feed.frames - feed.done).unwrap_or(usize::MAX);
                feed.done += self.normalizer.add_silence(frames) as u64;
                self.counts.frames_filled += feed.done - before;
            }
            Sound::Of(buffer) => {
                let (normalizer, from) = (&mut self.normalizer, feed.done as usize);
                let read = |frames: Frames<'_>| with_typed_frames!(frames, typed => add(normalizer, &typed, from));
                let taken = self.format.read(buffer, &mut self.scratch, read)?;
                // The number of channels is that of the caps.
                feed.done += taken.unwrap_or(feed.frames as usize - from) as u64;
            }
        }
        self.frames_in += feed.done - before;
        self.counts.frames_in += feed.done - before;
        Ok(())
    }

    /// Queues an event after the input so far. If nothing is queued, returns the event, to be pushed at once. If the queue is
    /// full, returns the oldest event.
    pub(super) fn hold(&mut self, event: gst::Event) -> Option<gst::Event> {
        if self.frames_in == self.frames_out && self.events.is_empty() {
            return Some(event);
        }
        let oldest = match self.events.len() {
            EVENTS_MAX => self.events.pop_front().map(|(_, event)| event),
            _ => None,
        };
        self.events.push_back((self.frames_in, event));
        oldest
    }

    /// Returns the next output item. `spare` is a buffer to use for it.
    pub(super) fn next(
        &mut self,
        spare: Option<gst::Buffer>,
    ) -> Result<Option<Item>, gst::glib::BoolError> {
        let event_at = self.events.front().map(|(frame, _)| *frame);
        if event_at.is_some_and(|frame| frame <= self.frames_out) {
            return Ok(self.events.pop_front().map(|(_, event)| Item::Event(event)));
        }
        let time_ns = self.timeline.time_of(&self.format, self.frames_out);
        let until = |frame: Option<u64>| frame.map_or(u64::MAX, |frame| frame - self.frames_out);
        let frames = (self.normalizer.ready())
            .min(self.piece_frames.max(1))
            .min(until(event_at))
            .min(until(self.timeline.next_mark(self.frames_out)));
        if frames == 0 {
            return Ok(None);
        }
        let shape = (&self.format, &self.info);
        let mut buffer = output::take(&mut self.normalizer, shape, frames as usize, spare)?;
        let end_ns = time_ns.map(|ns| ns + self.format.duration_ns(frames));
        self.frames_out += frames;
        self.counts.frames_out += frames;
        // The end is the start of the next buffer, so that rounding loses nothing.
        let next_ns = self.timeline.time_of(&self.format, self.frames_out);
        let duration_ns = match (time_ns, next_ns.filter(|next| Some(*next) >= time_ns)) {
            (Some(time), Some(next)) if Some(next) <= end_ns.map(|end| end + 1) => next - time,
            _ => self.format.duration_ns(frames),
        };
        let made = buffer.make_mut();
        made.set_pts(time_ns.map(gst::ClockTime::from_nseconds));
        made.set_dts(gst::ClockTime::NONE);
        made.set_duration(gst::ClockTime::from_nseconds(duration_ns));
        if std::mem::take(&mut self.is_jump) {
            made.set_flags(gst::BufferFlags::DISCONT);
        }
        Ok(Some(Item::Buffer(buffer)))
    }

    /// Makes all queued audio available.
    pub(super) fn drain(&mut self) {
        self.normalizer.drain();
    }

    /// Restarts after everything has been taken. The next audio does not continue the previous one, but has the same loudness.
    pub(super) fn restart(&mut self) {
        self.normalizer.restart();
        self.begin();
    }

    /// Drops everything except events that downstream needs.
    pub(super) fn flush(&mut self, src_pad: &gst::Pad) {
        for (_, event) in self.events.drain(..) {
            if event.is_sticky() {
                let _ = src_pad.store_sticky_event(&event);
            }
        }
        self.normalizer.reset();
        self.begin();
    }

    fn begin(&mut self) {
        self.timeline.clear();
        (self.frames_in, self.frames_out) = (0, 0);
        self.is_jump = true;
    }
}

/// Adds the frames from `from` on, as many as fit.
fn add<T: threadbare_loudness::Sample + bytemuck::Pod>(
    normalizer: &mut Normalizer,
    typed: &Typed<'_, T>,
    from: usize,
) -> Result<usize, InputError> {
    match typed {
        Typed::Interleaved(samples, channels) => {
            normalizer.add_interleaved(&samples[from * channels..])
        }
        Typed::Planar(planes) if from == 0 => normalizer.add_planar(planes.slices()),
        Typed::Planar(planes) => normalizer.add_planar(planes.sub(&(from..typed.len())).slices()),
    }
}
