//! A filter made of GStreamer elements, which processes the audio of a stream of the relay.
//!
//! ```text
//!   Line ─ pad ! audioconvert ! audioresample ! DESCRIPTION ! audioconvert ! audioresample ! capsfilter ! pad ─ Line
//! ```
//!
//! The pipeline has no source and no sink, so it has no thread. Audio that is pushed into the first pad leaves the last pad in the same
//! call, unless the description contains a queue. The converters cost nothing if the description accepts the format.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::call::Filter;
use threadbare_rtp::codec::Format;

use crate::bus::Reports;

pub(super) struct PipelineFilter {
    pipeline: gst::Pipeline,
    into: gst::Pad,
    /// The pad that receives the output. It is stored because a link does not keep it alive.
    _out_of: gst::Pad,
    done: Arc<Mutex<Done>>,
    format: Format,
    frames_in: u64,
    frames_out: u64,
    reports: Arc<Reports>,
    has_failed: bool,
}

/// The output of the elements that the stream has not taken yet.
#[derive(Default)]
struct Done {
    samples: VecDeque<f32>,
    samples_max: usize,
    dropped: u64,
}

impl PipelineFilter {
    pub(super) fn new(
        filter: &gst::Element,
        stream: &str,
        format: Format,
        reports: &Arc<Reports>,
    ) -> Result<PipelineFilter, glib::BoolError> {
        let pipeline = gst::Pipeline::with_name(stream);
        pipeline.set_bus(Some(&reports.bus()));
        pipeline.use_clock(Some(&gst::SystemClock::obtain()));
        let caps = caps(format);
        let end = gst::ElementFactory::make("capsfilter")
            .property("caps", &caps)
            .build()?;
        let convert = || gst::ElementFactory::make("audioconvert").build();
        let resample = || gst::ElementFactory::make("audioresample").build();
        let [before, rate_before] = [convert()?, resample()?];
        let [after, rate_after] = [convert()?, resample()?];
        let all = [&before, &rate_before, filter, &after, &rate_after, &end];
        pipeline.add_many(all)?;
        gst::Element::link_many(all)?;

        let done = Arc::new(Mutex::new(Done {
            samples_max: format.sample_rate_hz as usize * usize::from(format.channels),
            ..Done::default()
        }));
        let into = entry(&before)?;
        let out_of = exit(&end, done.clone())?;
        pipeline
            .set_state(gst::State::Playing)
            .map_err(|_| glib::bool_error!("an element refused to start"))?;
        let made = PipelineFilter {
            pipeline,
            into,
            _out_of: out_of,
            done,
            format,
            frames_in: 0,
            frames_out: 0,
            reports: reports.clone(),
            has_failed: false,
        };
        let is_begun = made.into.push_event(gst::event::StreamStart::new(stream))
            && made.into.push_event(gst::event::Caps::new(&caps))
            && made
                .into
                .push_event(gst::event::Segment::new(&gst::FormattedSegment::<
                    gst::ClockTime,
                >::new()));
        if is_begun {
            Ok(made)
        } else {
            Err(glib::bool_error!("the elements do not accept {caps}"))
        }
    }

    /// Pushes audio into the elements.
    fn push(&mut self, pcm: &[f32]) {
        let frames = (pcm.len() / usize::from(self.format.channels)) as u64;
        let at = |frames: u64| {
            let ns = u128::from(frames) * 1_000_000_000 / u128::from(self.format.sample_rate_hz);
            gst::ClockTime::from_nseconds(ns as u64)
        };
        let mut buffer = gst::Buffer::from_slice(bytemuck::cast_slice::<f32, u8>(pcm).to_vec());
        if let Some(buffer) = buffer.get_mut() {
            let (begin, end) = (at(self.frames_in), at(self.frames_in + frames));
            buffer.set_pts(begin);
            buffer.set_duration(end - begin);
            buffer.set_offset(self.frames_in);
        }
        self.frames_in += frames;
        match self.into.push(buffer) {
            Ok(_) | Err(gst::FlowError::Eos) => {}
            Err(error) => {
                self.has_failed = true;
                // This reason counts only if no element has posted one.
                self.reports.fail(&format!(
                    "the elements of `pipeline` refuse the audio: {error}"
                ));
            }
        }
    }

    /// Appends the output of the elements. The total output is not longer than the audio that was pushed.
    fn take(&mut self, pcm: &mut Vec<f32>) {
        let channels = usize::from(self.format.channels);
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let owed = (self.frames_in - self.frames_out) as usize;
        let frames = owed.min(done.samples.len() / channels);
        pcm.extend(done.samples.drain(..frames * channels));
        self.frames_out += frames as u64;
        if std::mem::take(&mut done.dropped) > 0 {
            self.reports.warn(
                "the elements of `pipeline` output more audio than they get; the excess is dropped",
            );
        }
    }
}

impl Filter for PipelineFilter {
    fn process(&mut self, format: Format, pcm: &mut Vec<f32>) {
        let is_known = (format.sample_rate_hz, format.channels)
            == (self.format.sample_rate_hz, self.format.channels);
        if !self.has_failed && is_known && !pcm.is_empty() {
            self.push(pcm);
        }
        pcm.clear();
        if !self.has_failed {
            self.take(pcm);
        }
    }

    fn finish(&mut self, _format: Format, pcm: &mut Vec<f32>) {
        if !self.has_failed {
            self.into.push_event(gst::event::Eos::new());
            self.take(pcm);
        }
    }
}

impl fmt::Debug for PipelineFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineFilter")
            .field("pipeline", &self.pipeline)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// A pipeline must be in the state NULL when it is dropped.
impl Drop for PipelineFilter {
    fn drop(&mut self) {
        // If the change to NULL fails, there is nothing left to do.
        let _ = self.pipeline.set_state(gst::State::Null);
        let _ = self.into.set_active(false);
        let _ = self._out_of.set_active(false);
    }
}

/// Creates the pad that pushes into the first element.
fn entry(first: &gst::Element) -> Result<gst::Pad, glib::BoolError> {
    let pad = gst::Pad::builder(gst::PadDirection::Src)
        .name("src")
        .query_function(|pad, parent, query| match query.view_mut() {
            gst::QueryViewMut::Latency(latency) => {
                latency.set(true, gst::ClockTime::ZERO, gst::ClockTime::NONE);
                true
            }
            _ => gst::Pad::query_default(pad, parent, query),
        })
        .build();
    let sink = first.static_pad("sink");
    let sink = sink.ok_or_else(|| glib::bool_error!("audioconvert has no sink pad"))?;
    pad.link(&sink)
        .map_err(|error| glib::bool_error!("cannot link the elements: {error}"))?;
    pad.set_active(true)?;
    Ok(pad)
}

/// Creates the pad that receives the output of the last element.
fn exit(last: &gst::Element, done: Arc<Mutex<Done>>) -> Result<gst::Pad, glib::BoolError> {
    let pad = gst::Pad::builder(gst::PadDirection::Sink)
        .name("sink")
        .event_function(|_, _, _| true)
        .chain_function(move |_, _, buffer| {
            let bytes = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
            let samples = bytes.chunks_exact(4);
            let samples =
                samples.map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.samples.extend(samples);
            let excess = done.samples.len().saturating_sub(done.samples_max);
            if excess > 0 {
                done.samples.drain(..excess);
                done.dropped += excess as u64;
            }
            Ok(gst::FlowSuccess::Ok)
        })
        .build();
    let src = last.static_pad("src");
    let src = src.ok_or_else(|| glib::bool_error!("capsfilter has no source pad"))?;
    pad.set_active(true)?;
    src.link(&pad)
        .map_err(|error| glib::bool_error!("cannot link the elements: {error}"))?;
    Ok(pad)
}

/// Returns caps for interleaved audio of 32-bit floating-point numbers in native byte order.
fn caps(format: Format) -> gst::Caps {
    let name = if cfg!(target_endian = "big") {
        "F32BE"
    } else {
        "F32LE"
    };
    let caps = gst::Caps::builder("audio/x-raw")
        .field("format", name)
        .field("layout", "interleaved")
        .field("rate", format.sample_rate_hz as i32)
        .field("channels", i32::from(format.channels));
    match format.channels {
        1 => caps.build(),
        // The channels are front left and front right.
        2 => caps.field("channel-mask", gst::Bitmask::new(3)).build(),
        // RTP does not define the positions of the channels.
        _ => caps.field("channel-mask", gst::Bitmask::new(0)).build(),
    }
}
