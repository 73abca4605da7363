//! Decodes a file to samples, with any GStreamer decoder.
//!
//! `uridecodebin ! audioconvert ! fakesink`, at full speed. The samples are measured on the decoding thread; this
//! thread only waits for the end. Video in the file is not decoded.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gst::glib;
use gst::prelude::*;

use super::measure::{Measured, Measurement};
use super::problem::Problem;

/// Measures a file. `progress` regularly receives the share done.
pub(super) fn measure(
    path: &Path,
    is_plotted: bool,
    progress: impl Fn(f64),
) -> Result<Measured, Problem> {
    Problem::of_file(path)?;
    let measurement = Arc::new(Mutex::new(Measurement::new(is_plotted)));
    let running =
        Running(pipeline(path, &measurement).map_err(|error| Problem::broken(path, error))?);
    let ended = run(path, &running.0, progress);
    drop(running);
    ended?;
    let mut measurement = measurement.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::replace(&mut *measurement, Measurement::new(false)).finish() {
        Ok(Some(measured)) => Ok(measured),
        Ok(None) => Err(Problem::NoAudio {
            path: path.to_owned(),
        }),
        Err(reason) => Err(Problem::broken(path, reason)),
    }
}

/// A pipeline must not be dropped in any other state than NULL.
struct Running(gst::Pipeline);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

fn pipeline(
    path: &Path,
    measurement: &Arc<Mutex<Measurement>>,
) -> Result<gst::Pipeline, glib::Error> {
    let make = |factory: &str| {
        gst::ElementFactory::make(factory)
            .build()
            .map_err(|_| failed(&format!("the GStreamer element {factory} is not installed")))
    };
    let path = std::path::absolute(path).map_err(|error| failed(&error.to_string()))?;
    let raw = gst::Caps::new_empty_simple("audio/x-raw");
    let source = make("uridecodebin")?;
    source.set_property("uri", glib::filename_to_uri(path, None)?);
    source.set_property("caps", &raw);
    source.set_property("expose-all-streams", false);
    let (convert, filter, end) = (
        make("audioconvert")?,
        make("capsfilter")?,
        make("fakesink")?,
    );
    filter.set_property("caps", measurable());
    end.set_property("sync", false);
    let pipeline = gst::Pipeline::new();
    let all = [&source, &convert, &filter, &end];
    pipeline
        .add_many(all)
        .map_err(|error| failed(&error.message))?;
    gst::Element::link_many([&convert, &filter, &end]).map_err(|error| failed(&error.message))?;
    let into = convert.static_pad("sink");
    source.connect_pad_added(move |_, pad| {
        if let Some(into) = into.as_ref().filter(|into| !into.is_linked()) {
            // A stream that does not fit posts an error message.
            let _ = pad.link(into);
        }
    });
    if let Some(pad) = end.static_pad("sink") {
        listen(&pad, measurement.clone());
    }
    Ok(pipeline)
}

fn failed(message: &str) -> glib::Error {
    glib::Error::new(gst::CoreError::Failed, message)
}

/// The meter's formats; the conversion to them is lossless.
fn measurable() -> gst::Caps {
    let native = |name: &str| match cfg!(target_endian = "big") {
        true => format!("{name}BE"),
        false => format!("{name}LE"),
    };
    gst::Caps::builder("audio/x-raw")
        .field(
            "format",
            gst::List::new(["F32", "F64", "S16", "S32"].map(native)),
        )
        .field("layout", "interleaved")
        .build()
}

fn listen(pad: &gst::Pad, measurement: Arc<Mutex<Measurement>>) {
    let what = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM;
    pad.add_probe(what, move |_, info| {
        let mut measurement = measurement.lock().unwrap_or_else(PoisonError::into_inner);
        match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => measurement.add(buffer),
            Some(gst::PadProbeData::Event(event)) => {
                if let gst::EventView::Caps(caps) = event.view() {
                    measurement.set_caps(caps.caps());
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
}

/// Until the end of the file.
fn run(path: &Path, pipeline: &gst::Pipeline, progress: impl Fn(f64)) -> Result<(), Problem> {
    let bus = pipeline
        .bus()
        .ok_or_else(|| Problem::broken(path, "the pipeline has no bus"))?;
    // The element that fails gives the reason in a message, which is read below.
    let started = pipeline.set_state(gst::State::Playing);
    let mut missing = None;
    loop {
        let message = match started {
            Err(_) => bus.timed_pop(gst::ClockTime::ZERO),
            Ok(_) => bus.timed_pop(LOOK_EVERY),
        };
        let Some(message) = message else {
            if started.is_err() {
                return Err(Problem::broken(path, "an element refuses to start"));
            }
            if let Some(share) = share(pipeline) {
                progress(share);
            }
            continue;
        };
        match message.view() {
            gst::MessageView::Eos(_) => return Ok(()),
            gst::MessageView::Error(error) => {
                return Err(Problem::of_error(path, error, missing));
            }
            gst::MessageView::Element(element) => {
                missing = missing.or_else(|| missing_decoder(element.structure()?));
            }
            _ => {}
        }
    }
}

/// The decoder that `uridecodebin` missed, by its own description. Not a decoder for pictures.
fn missing_decoder(structure: &gst::StructureRef) -> Option<String> {
    if structure.name() != "missing-plugin" {
        return None;
    }
    let name = structure.get::<String>("name").ok()?;
    let caps = structure.get::<gst::Caps>("detail").ok();
    let kind = caps
        .as_ref()
        .and_then(|caps| caps.structure(0))
        .map(|caps| caps.name().as_str());
    let is_picture =
        kind.is_some_and(|kind| kind.starts_with("video/") || kind.starts_with("image/"));
    // Containers with audio have such names, too.
    (!is_picture || name.contains("demuxer")).then_some(name)
}

fn share(pipeline: &gst::Pipeline) -> Option<f64> {
    let position = pipeline.query_position::<gst::ClockTime>()?;
    let duration = pipeline.query_duration::<gst::ClockTime>()?;
    Some(position.nseconds() as f64 / duration.nseconds().max(1) as f64)
}

const LOOK_EVERY: gst::ClockTime = gst::ClockTime::from_mseconds(100);
