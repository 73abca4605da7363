//! One stream's pipeline of GStreamer's own elements, for comparison: `--stock`.
//!
//! ```text
//!   udpsrc ! [rtpjitterbuffer !] (codec elements, see `chain`) ! udpsink
//! ```
//!
//! Each stream has its own pipeline: thousands of streams in one `GstPipeline` make start-up quadratic. They share the
//! system clock and one bus, so that a pipeline owns no file descriptor and no thread. Elements are made from their
//! factories and linked without the checks that `gst_parse_launch` needs for arbitrary pipelines.

mod chain;

use std::collections::BTreeSet;

use gst::glib;
use gst::prelude::*;
use rtp_types::RtpPacket;

use self::chain::{chain, insert};
use crate::codec::{Codec, CodecIn};
use crate::config::{Destination, StreamSpec};

/// What carries the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// The relay: no elements at all.
    Threadbare,
    /// GStreamer's own, for comparison: a thread per stream, another two with a jitter buffer, and no RTCP.
    Stock,
}

/// Why a pipeline could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An element is not installed.
    #[error("the GStreamer element {0} is not installed; `threadbare doctor` names its package")]
    Missing(&'static str),
    /// GStreamer's own elements do not support it.
    #[error("{0} is not for GStreamer's own elements: run without --stock")]
    Stock(&'static str),
    /// An element could not be made, added or linked.
    #[error("{0}")]
    Failed(#[from] glib::BoolError),
}

/// Missing elements that a configuration needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GStreamer elements are not installed: {}. `threadbare doctor` names their packages", .0.join(", "))]
pub struct MissingElements(pub Vec<&'static str>);

/// Builds pipelines for streams.
#[derive(Clone, Debug)]
pub struct PipelineBuilder {
    /// The bus of all pipelines.
    bus: gst::Bus,
    /// The clock of all pipelines.
    clock: gst::Clock,
}

impl PipelineBuilder {
    /// Pipelines that post to this bus.
    pub fn new(bus: gst::Bus) -> PipelineBuilder {
        PipelineBuilder {
            bus,
            clock: gst::SystemClock::obtain(),
        }
    }

    /// Checks that all elements for these streams are installed.
    ///
    /// # Errors
    /// Some are not.
    pub fn check(&self, streams: &[StreamSpec]) -> Result<(), MissingElements> {
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
        match missing.is_empty() {
            true => Ok(()),
            false => Err(MissingElements(missing)),
        }
    }

    /// A pipeline in state NULL, named after the stream.
    ///
    /// # Errors
    /// An element is missing, or the stream is not for GStreamer's own elements.
    pub fn build(&self, spec: &StreamSpec) -> Result<gst::Pipeline, BuildError> {
        let pipeline = gst::Pipeline::with_name(&spec.name);
        pipeline.set_bus(Some(&self.bus));
        // The bus is shared; a pipeline that stops must not flush it.
        pipeline.set_auto_flush_bus(false);
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

fn source(spec: &StreamSpec) -> Result<gst::Element, BuildError> {
    let source = make(SOURCE_FACTORY)?;
    source.set_property("address", spec.listen.ip().to_string());
    source.set_property("port", i32::from(spec.listen.port()));
    // Two processes on one port would silently take turns.
    source.set_property("reuse", false);
    let caps = match spec.codec_in {
        CodecIn::Known(codec) => codec.rtp_caps(),
        CodecIn::Auto => gst::Caps::builder("application/x-rtp")
            .field("media", "audio")
            .build(),
    };
    source.set_property("caps", caps);
    // It is unused, and costs an allocation per packet.
    source.set_property("retrieve-sender-address", false);
    Ok(source)
}

fn sink(spec: &StreamSpec) -> Result<gst::Element, BuildError> {
    let Destination::Fixed { host, port } = &spec.destination else {
        return Err(BuildError::Stock(
            "a stream without a destination of its own",
        ));
    };
    let sink = make(SINK_FACTORY)?;
    // Live packets are sent on arrival; there is no preroll.
    sink.set_property("sync", false);
    sink.set_property("clients", format!("{host}:{port}"));
    sink.set_property("async", false);
    Ok(sink)
}

/// Waits for the first packet with a static payload type, then builds the chain for it.
///
/// The source's pad stays unlinked until then. A probe on the streaming thread builds the chain before the packet goes
/// on, so nothing is lost. Packets with an unknown codec are dropped.
fn learn_codec(
    pipeline: &gst::Pipeline,
    source: &gst::Element,
    sink: &gst::Element,
    spec: &StreamSpec,
) -> Result<(), BuildError> {
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
                    // No sink is linked that would say so. Without a bus, nobody waits for it.
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
        tracing::info!(stream = spec.name, %codec, "learnt the codec from the first packet");
        if let Err(error) = use_codec(&pipeline, pad, &source, &sink, codec, &spec) {
            gst::element_error!(source, gst::CoreError::Negotiation, ["{error}"]);
            return gst::PadProbeReturn::Handled;
        }
        gst::PadProbeReturn::Remove
    });
    Ok(())
}

/// Builds the chain for a codec that was learnt, behind the source's pad.
fn use_codec(
    pipeline: &gst::Pipeline,
    pad: &gst::Pad,
    source: &gst::Element,
    sink: &gst::Element,
    codec: Codec,
    spec: &StreamSpec,
) -> Result<(), BuildError> {
    let known = StreamSpec {
        codec_in: CodecIn::Known(codec),
        ..spec.clone()
    };
    // The caps event is sent again, with what is now known, when the pad is linked.
    let caps = gst::event::Caps::new(&codec.rtp_caps());
    pad.store_sticky_event(&caps)
        .map_err(|_| glib::bool_error!("the source is stopping"))?;
    insert(pipeline, source, sink, chain(codec, &known)?)
}

/// The payload type of a packet, if it is RTP.
fn payload_type(buffer: &gst::BufferRef) -> Option<u8> {
    let bytes = buffer.map_readable().ok()?;
    RtpPacket::parse(&bytes)
        .ok()
        .map(|packet| packet.payload_type())
}

fn make(factory: &'static str) -> Result<gst::Element, BuildError> {
    let found = gst::ElementFactory::find(factory).ok_or(BuildError::Missing(factory))?;
    Ok(found.create().build()?)
}

/// Links two always-pads with compatible caps.
fn link(from: &gst::Element, to: &gst::Element) -> Result<(), BuildError> {
    Ok(from.link_pads_full(Some("src"), to, Some("sink"), gst::PadLinkCheck::empty())?)
}

const SOURCE_FACTORY: &str = "udpsrc";
const SINK_FACTORY: &str = "udpsink";
