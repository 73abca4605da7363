//! A stream as a pipeline of GStreamer's own elements.
//!
//! ```text
//!   udpsrc ! [rtpjitterbuffer !] (codec elements, see `chain`) ! udpsink
//! ```
//!
//! Each stream has its own pipeline, because the time to start one `GstPipeline` with thousands of streams grows with the square of their
//! number. The pipelines share the system clock, and their buses store no messages, so a pipeline owns no file descriptor and no thread.
//! Elements are created from their factories, and linked without the checks that `gst_parse_launch` needs for arbitrary pipelines.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use gst::glib;
use gst::prelude::*;
use rtp_types::RtpPacket;

use super::chain::{StockError, chain, insert, link, make, rtp_caps};
use crate::bus::Reports;
use crate::event::{Event, RunId};
use threadbare_config::codec::{Codec, CodecIn};
use threadbare_config::{Destination, StreamSpec};

/// A running stream. It stops when this value is dropped.
#[derive(Debug)]
pub struct RunningPipeline(gst::Pipeline);

/// Starts streams of GStreamer's own elements.
#[derive(Debug)]
pub struct Stock {
    /// The clock of all pipelines.
    clock: gst::Clock,
    events: Sender<Event>,
}

/// Loads the plugins by building one unused pipeline, so that the memory for their code does not count as that of a stream.
///
/// # Errors
/// Fails if elements are missing, or if they do not support a setting of the first stream.
pub fn load(streams: &[StreamSpec]) -> Result<(), StockError> {
    let (events, _) = channel();
    let stock = Stock::new(streams, events)?;
    if let Some(first) = streams.first() {
        let nobody = RunId {
            stream: 0,
            number: 0,
        };
        stock.build(
            first,
            &Reports::new(&first.name, nobody, stock.events.clone()),
        )?;
    }
    Ok(())
}

impl Stock {
    /// Prepares to carry streams. The ends and errors of their pipelines are sent to `events`.
    ///
    /// # Errors
    /// Fails if elements for these streams are not installed.
    pub fn new(streams: &[StreamSpec], events: Sender<Event>) -> Result<Stock, StockError> {
        check(streams)?;
        Ok(Stock {
            clock: gst::SystemClock::obtain(),
            events,
        })
    }

    /// Starts a run of a stream.
    ///
    /// # Errors
    /// Fails if an element is missing, refuses to start, or does not support a setting of the stream.
    pub fn start(&self, spec: &StreamSpec, run: RunId) -> Result<RunningPipeline, StockError> {
        let reports = Reports::new(&spec.name, run, self.events.clone());
        let pipeline = RunningPipeline(self.build(spec, &reports)?);
        if pipeline.0.set_state(gst::State::Playing).is_err() {
            let reason = reports.first_error();
            let reason = reason.unwrap_or_else(|| "an element refused to start".to_owned());
            return Err(StockError::Refused(reason));
        }
        Ok(pipeline)
    }

    /// Builds a pipeline in state NULL, named after the stream.
    fn build(
        &self,
        spec: &StreamSpec,
        reports: &Arc<Reports>,
    ) -> Result<gst::Pipeline, StockError> {
        if !spec.fallbacks.is_empty() {
            return Err(StockError::Stock("a fallback"));
        }
        if spec.pipeline.is_some() {
            return Err(StockError::Stock("a `pipeline`"));
        }
        let pipeline = gst::Pipeline::with_name(&spec.name);
        pipeline.set_bus(Some(&reports.bus()));
        pipeline.use_clock(Some(&self.clock));
        let (source, sink) = (source(spec)?, sink(spec)?);
        pipeline.add(&source)?;
        pipeline.add(&sink)?;
        match (spec.is_passthrough(), spec.codec_in) {
            (true, _) => link(&source, &sink)?,
            (false, CodecIn::Known(codec_in)) => {
                insert(&pipeline, &source, &sink, chain(codec_in, spec)?)?;
            }
            (false, CodecIn::Auto) => learn_codec(&pipeline, &source, &sink, spec)?,
        }
        Ok(pipeline)
    }
}

/// Checks that all elements for these streams are installed.
fn check(streams: &[StreamSpec]) -> Result<(), StockError> {
    let mut factories = BTreeSet::from([SOURCE_FACTORY, SINK_FACTORY]);
    for spec in streams.iter().filter(|spec| !spec.is_passthrough()) {
        let codecs_in = match spec.codec_in {
            CodecIn::Known(codec) => vec![codec],
            CodecIn::Auto => Codec::with_static_payload_types().collect(),
        };
        let parts = codecs_in
            .into_iter()
            .filter_map(|codec| chain(codec, spec).ok())
            .flatten();
        factories.extend(parts.map(|part| part.factory));
    }
    let missing = factories
        .into_iter()
        .filter(|name| gst::ElementFactory::find(name).is_none())
        .collect::<Vec<_>>();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(StockError::Uninstalled(missing))
    }
}

fn source(spec: &StreamSpec) -> Result<gst::Element, StockError> {
    let source = make(SOURCE_FACTORY)?;
    source.set_property("address", spec.listen.ip().to_string());
    source.set_property("port", i32::from(spec.listen.port()));
    // With reuse, two processes could open the same port, and each process would get some of the packets.
    source.set_property("reuse", false);
    let caps = match spec.codec_in {
        CodecIn::Known(codec) => rtp_caps(codec),
        CodecIn::Auto => gst::Caps::builder("application/x-rtp")
            .field("media", "audio")
            .build(),
    };
    source.set_property("caps", caps);
    // The address of the sender is not needed, and its retrieval costs an allocation per packet.
    source.set_property("retrieve-sender-address", false);
    Ok(source)
}

fn sink(spec: &StreamSpec) -> Result<gst::Element, StockError> {
    let Destination::Fixed { host, port } = &spec.destination else {
        return Err(StockError::Stock("a stream without a destination"));
    };
    let sink = make(SINK_FACTORY)?;
    // Packets are sent when they arrive, without preroll.
    sink.set_property("sync", false);
    sink.set_property("clients", format!("{host}:{port}"));
    sink.set_property("async", false);
    Ok(sink)
}

/// Installs a probe that waits for the first packet with a static payload type, and then builds the chain for its codec.
///
/// Until then, the source's pad has no link. The probe runs on the streaming thread and builds the chain before the packet continues, so
/// this packet is not lost. Earlier packets with an unknown codec are dropped.
fn learn_codec(
    pipeline: &gst::Pipeline,
    source: &gst::Element,
    sink: &gst::Element,
    spec: &StreamSpec,
) -> Result<(), StockError> {
    let pad = source
        .static_pad("src")
        .ok_or_else(|| glib::bool_error!("the source has no src pad"))?;
    let (pipeline, sink) = (pipeline.downgrade(), sink.downgrade());
    let spec = spec.clone();
    let what = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM;
    pad.add_probe(what, move |pad, info| {
        let buffer = match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => buffer,
            Some(gst::PadProbeData::Event(event)) => {
                if let (gst::EventView::Eos(_), Some(pipeline)) = (event.view(), pipeline.upgrade())
                {
                    // The end of the stream is posted here, because a sink would post it but no sink is linked yet. If this fails, the
                    // pipeline has no bus, so nothing waits for the end.
                    let _ =
                        pipeline.post_message(gst::message::Eos::builder().src(&pipeline).build());
                }
                return gst::PadProbeReturn::Ok;
            }
            _ => return gst::PadProbeReturn::Ok,
        };
        let (Some(pipeline), Some(sink), Some(source)) =
            (pipeline.upgrade(), sink.upgrade(), pad.parent_element())
        else {
            return gst::PadProbeReturn::Handled;
        };
        let Some(codec) = payload_type(buffer).and_then(Codec::from_static_payload_type) else {
            return gst::PadProbeReturn::Handled;
        };
        tracing::info!(stream = spec.name, %codec, "learned the codec from the first packet");
        if let Err(error) = use_codec(&pipeline, pad, &source, &sink, codec, &spec) {
            gst::element_error!(source, gst::CoreError::Negotiation, ["{error}"]);
            return gst::PadProbeReturn::Handled;
        }
        gst::PadProbeReturn::Remove
    });
    Ok(())
}

/// Builds the chain for the learned codec, and links it to the source's pad.
fn use_codec(
    pipeline: &gst::Pipeline,
    pad: &gst::Pad,
    source: &gst::Element,
    sink: &gst::Element,
    codec: Codec,
    spec: &StreamSpec,
) -> Result<(), StockError> {
    let known = StreamSpec {
        codec_in: CodecIn::Known(codec),
        ..spec.clone()
    };
    // The stored caps contain the known codec. They are sent again when the pad is linked.
    let caps = gst::event::Caps::new(&rtp_caps(codec));
    pad.store_sticky_event(&caps)
        .map_err(|_| glib::bool_error!("the source is stopping"))?;
    insert(pipeline, source, sink, chain(codec, &known)?)
}

/// Returns the payload type of a packet. `None`: the packet is not RTP.
fn payload_type(buffer: &gst::BufferRef) -> Option<u8> {
    let bytes = buffer.map_readable().ok()?;
    RtpPacket::parse(&bytes)
        .ok()
        .map(|packet| packet.payload_type())
}

impl RunningPipeline {
    /// Sends an EOS, so that the elements pass on all received packets. Returns `false` if the EOS cannot be sent.
    pub fn drain(&self) -> bool {
        self.0.send_event(gst::event::Eos::new())
    }
}

/// A pipeline must be in the state NULL when it is dropped.
impl Drop for RunningPipeline {
    fn drop(&mut self) {
        // If the change to NULL fails, there is nothing left to do.
        let _ = self.0.set_state(gst::State::Null);
    }
}

const SOURCE_FACTORY: &str = "udpsrc";
const SINK_FACTORY: &str = "udpsink";
