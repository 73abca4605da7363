//! Decodes a file to samples. WAV is decoded directly, and all other formats with GStreamer's decoders.
//!
//! The pipeline is `uridecodebin ! audioconvert ! fakesink`, and runs at full speed. The samples are measured on the decoding
//! thread; the calling thread only waits for the end. Video in the file is not decoded. This module also decodes MP3 files that
//! GStreamer refuses because of their tags.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gstthreadbare::loudness::frames::Format;

use super::measure::{Measured, Measurement};
use super::problem::Problem;
use threadbare_audio_file::wav::{Wav, WavError};

/// Measures a file. `progress` is called regularly with the completed share.
pub(super) fn measure(
    path: &Path,
    is_plotted: bool,
    progress: impl Fn(f64),
) -> Result<Measured, Problem> {
    Problem::of_file(path)?;
    if let Some(measured) = measure_wav(path, is_plotted, &progress)? {
        return Ok(measured);
    }
    match measure_any(path, is_plotted, &progress) {
        Ok(measured) => Ok(measured),
        Err(problem) => measure_mp3(path, is_plotted).ok_or(problem),
    }
}

/// Measures a WAV file. `None`: the file is not WAV, or has a codec.
fn measure_wav(
    path: &Path,
    is_plotted: bool,
    progress: &impl Fn(f64),
) -> Result<Option<Measured>, Problem> {
    let broken = |error: &dyn ToString| Problem::broken(path, error.to_string());
    let file = File::open(path).map_err(|error| broken(&error))?;
    let mut wav = match Wav::open(BufReader::with_capacity(FILE_BYTES, file)) {
        Ok(wav) => wav,
        Err(WavError::Other) => return Ok(None),
        Err(error) => return Err(broken(&error)),
    };
    let format = wav.format();
    let mut measurement = Measurement::new(is_plotted);
    let layout = Format::of_wave(format.rate_hz, format.channels, format.mask);
    measurement.set_format(layout.map_err(|error| broken(&error))?);
    let (mut samples, all) = (Vec::new(), wav.frames());
    loop {
        samples.clear();
        let read = wav.read(BLOCK_FRAMES, &mut samples);
        if read.map_err(|error| broken(&error))? == 0 {
            return finish(path, measurement).map(Some);
        }
        measurement.add_samples(&samples);
        progress(1.0 - wav.frames() as f64 / all as f64);
    }
}

/// Measures an MP3 file. `None`: the file is not MP3, or is damaged.
fn measure_mp3(path: &Path, is_plotted: bool) -> Option<Measured> {
    let mut file = BufReader::with_capacity(FILE_BYTES, File::open(path).ok()?);
    if !nanomp3::detect_reader(&mut file).ok()? {
        return None;
    }
    file.rewind().ok()?;
    let options = nanomp3::Options::default().skip_scan(true);
    let mut reader = nanomp3::Reader::with_options(file, options).ok()?;
    let channels = reader.channels()?.num();
    let format = Format::of_wave(reader.sample_rate(), channels.into(), None);
    let mut measurement = Measurement::new(is_plotted);
    measurement.set_format(format.ok()?);
    while let Some(samples) = reader.read_frame().ok()? {
        let samples: &[f32] = samples;
        measurement.add_samples(samples);
    }
    finish(path, measurement).ok()
}

fn finish(path: &Path, measurement: Measurement) -> Result<Measured, Problem> {
    match measurement.finish() {
        Ok(Some(measured)) => Ok(measured),
        Ok(None) => Err(Problem::NoAudio {
            path: path.to_owned(),
        }),
        Err(reason) => Err(Problem::broken(path, reason)),
    }
}

fn measure_any(
    path: &Path,
    is_plotted: bool,
    progress: &impl Fn(f64),
) -> Result<Measured, Problem> {
    let measurement = Arc::new(Mutex::new(Measurement::new(is_plotted)));
    let running =
        Running(pipeline(path, &measurement).map_err(|error| Problem::broken(path, error))?);
    let ended = run(path, &running.0, &measurement, progress);
    drop(running);
    ended?;
    let mut measurement = measurement.lock().unwrap_or_else(PoisonError::into_inner);
    finish(
        path,
        std::mem::replace(&mut *measurement, Measurement::new(false)),
    )
}

/// A running pipeline. It is set to state NULL when it is dropped, which GStreamer requires.
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
    source.connect_pad_added(move |source, pad| {
        // Refuse more channels: GStreamer's conversion of them would fail, and end the process.
        let channels = pad.current_caps().and_then(|caps| {
            let caps = caps.structure(0)?;
            caps.get::<i32>("channels").ok()
        });
        if let Some(channels) = channels.filter(|channels| *channels > CONVERTED_MAX) {
            gst::element_error!(
                source,
                gst::StreamError::Format,
                ["the audio has {channels} channels; expected 1 to {CONVERTED_MAX} in this format"]
            );
            return;
        }
        if let Some(into) = into.as_ref().filter(|into| !into.is_linked()) {
            // If this fails, the stream posts an error message.
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

/// Returns the formats that the meter accepts. The conversion to them is lossless.
fn measurable() -> gst::Caps {
    let native = |name: &str| {
        if cfg!(target_endian = "big") {
            format!("{name}BE")
        } else {
            format!("{name}LE")
        }
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

/// Runs a pipeline until the end of the file, or until no more data comes.
fn run(
    path: &Path,
    pipeline: &gst::Pipeline,
    measurement: &Mutex<Measurement>,
    progress: impl Fn(f64),
) -> Result<(), Problem> {
    let frames = || {
        let measurement = measurement.lock();
        measurement.unwrap_or_else(PoisonError::into_inner).frames()
    };
    let mut last = (frames(), Instant::now());
    let bus = pipeline
        .bus()
        .ok_or_else(|| Problem::broken(path, "the pipeline has no bus"))?;
    // If an element fails, it posts a message with the reason, which is read below.
    let started = pipeline.set_state(gst::State::Playing);
    let mut missing = None;
    loop {
        let message = match started {
            Err(_) => bus.timed_pop(gst::ClockTime::ZERO),
            Ok(_) => bus.timed_pop(LOOK_EVERY),
        };
        let Some(message) = message else {
            if started.is_err() {
                return Err(Problem::broken(
                    path,
                    "an element of the pipeline refuses to start",
                ));
            }
            if let Some(share) = share(pipeline) {
                progress(share);
            }
            let now = frames();
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > STILL_MAX {
                let reason = format!(
                    "the decoder has output no samples for {} s",
                    STILL_MAX.as_secs()
                );
                return Err(Problem::broken(path, reason));
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

/// Returns the description of the decoder that `uridecodebin` could not find. `None`: the decoder is for pictures.
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
    // Names of containers with audio may also look like those of pictures.
    (!is_picture || name.contains("demuxer")).then_some(name)
}

fn share(pipeline: &gst::Pipeline) -> Option<f64> {
    let position = pipeline.query_position::<gst::ClockTime>()?;
    let duration = pipeline.query_duration::<gst::ClockTime>()?;
    Some(position.nseconds() as f64 / duration.nseconds().max(1) as f64)
}

/// Maximum time without output of a decoder. Even a large file on a slow disk takes less.
const STILL_MAX: Duration = Duration::from_secs(30);
/// Maximum number of channels of audioconvert.
const CONVERTED_MAX: i32 = 63;
const FILE_BYTES: usize = 1 << 18;
const BLOCK_FRAMES: usize = 1 << 14;
const LOOK_EVERY: gst::ClockTime = gst::ClockTime::from_mseconds(100);
