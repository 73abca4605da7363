//! One stream's GStreamer pipeline: source, codec elements where needed, sink.
//!
//! Each stream has a pipeline of its own: thousands of streams in one `GstPipeline` make start-up
//! quadratic. They share the system clock and one bus, so that a pipeline owns no file descriptor
//! and no thread. Elements are made from their factories and linked without the checks that
//! `gst_parse_launch` does for pipelines it knows nothing of.

use std::collections::BTreeSet;

use gst::glib;
use gst::prelude::*;
use rtp_types::RtpPacket;

use crate::codec::{Codec, CodecIn};
use crate::config::{Contexts, StreamSpec};

/// Which elements receive and send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Factory name of the source.
    pub source: &'static str,
    /// Factory name of the sink.
    pub sink: &'static str,
}

impl Elements {
    /// Threadbare's own.
    pub const THREADBARE: Elements = Elements {
        source: "ts-udpsrc",
        sink: "ts-udpsink",
    };
    /// GStreamer's own, with a thread per stream: for comparison.
    pub const STOCK: Elements = Elements {
        source: "udpsrc",
        sink: "udpsink",
    };
}

/// Why a pipeline could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An element is not installed.
    #[error("the GStreamer element {0} is not installed; `threadbare doctor` names its package")]
    Missing(&'static str),
    /// An element could not be made, added or linked.
    #[error("{0}")]
    Failed(#[from] glib::BoolError),
}

/// Elements that a configuration needs are not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GStreamer elements are not installed: {}. `threadbare doctor` names their packages", .0.join(", "))]
pub struct MissingElements(pub Vec<&'static str>);

/// Builds pipelines for streams.
#[derive(Clone, Debug)]
pub struct PipelineBuilder {
    elements: Elements,
    /// Where messages of all pipelines go.
    bus: gst::Bus,
    /// The clock of all pipelines.
    clock: gst::Clock,
}

/// A codec element of the chain: the name of its factory, and its properties.
#[derive(Debug)]
struct Part {
    factory: &'static str,
    properties: Vec<(&'static str, Setting)>,
}

/// The value of a codec element's property.
#[derive(Clone, Copy, Debug)]
enum Setting {
    Uint(u32),
    Int64(i64),
    /// An enumeration's value by its number.
    Enum(u32),
}

impl PipelineBuilder {
    /// Pipelines made of these elements, which post to this bus.
    pub fn new(elements: Elements, bus: gst::Bus) -> PipelineBuilder {
        PipelineBuilder {
            elements,
            bus,
            clock: gst::SystemClock::obtain(),
        }
    }

    /// Whether everything is there that these streams need.
    pub fn check(&self, streams: &[StreamSpec]) -> Result<(), MissingElements> {
        let mut factories = BTreeSet::from([self.elements.source, self.elements.sink]);
        for spec in streams.iter().filter(|spec| !spec.is_passthrough()) {
            let codecs_in = match spec.codec_in {
                CodecIn::Known(codec) => vec![codec],
                CodecIn::Auto => Codec::with_static_payload_types().collect(),
            };
            let parts = codecs_in.into_iter().flat_map(|codec| chain(codec, spec));
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

    /// A pipeline in state NULL for stream number `index`, named after the stream.
    pub fn build(
        &self,
        spec: &StreamSpec,
        contexts: &Contexts,
        index: usize,
    ) -> Result<gst::Pipeline, BuildError> {
        let pipeline = gst::Pipeline::with_name(&spec.name);
        pipeline.set_bus(Some(&self.bus));
        // The bus is everybody's; a pipeline that stops must not flush it.
        pipeline.set_auto_flush_bus(false);
        pipeline.use_clock(Some(&self.clock));

        let context = contexts.name_for(index);
        let source = self.source(spec, contexts, &context)?;
        let sink = self.sink(spec, contexts, &context)?;
        pipeline.add(&source)?;
        pipeline.add(&sink)?;
        match (spec.is_passthrough(), spec.codec_in) {
            (true, _) => link(&source, &sink)?,
            (false, CodecIn::Known(codec_in)) => {
                insert(&pipeline, &source, &sink, chain(codec_in, spec))?
            }
            (false, CodecIn::Auto) => learn_codec(&pipeline, &source, &sink, spec)?,
        }
        Ok(pipeline)
    }

    fn source(
        &self,
        spec: &StreamSpec,
        contexts: &Contexts,
        context: &str,
    ) -> Result<gst::Element, BuildError> {
        let caps = match spec.codec_in {
            CodecIn::Known(codec) => codec.rtp_caps(),
            CodecIn::Auto => gst::Caps::builder("application/x-rtp")
                .field("media", "audio")
                .build(),
        };
        let source = make(self.elements.source)?;
        source.set_property("address", spec.listen.ip().to_string());
        source.set_property("port", i32::from(spec.listen.port()));
        source.set_property("caps", caps);
        // Two processes on one port would silently take turns.
        source.set_property("reuse", false);
        // Nobody looks at it, and it costs an allocation per packet.
        source.set_property("retrieve-sender-address", false);
        share_thread(&source, contexts, context);
        Ok(source)
    }

    fn sink(
        &self,
        spec: &StreamSpec,
        contexts: &Contexts,
        context: &str,
    ) -> Result<gst::Element, BuildError> {
        let sink = make(self.elements.sink)?;
        sink.set_property(
            "clients",
            format!("{}:{}", spec.destination.host, spec.destination.port),
        );
        // Live packets go out as they come; nothing is prerolled.
        sink.set_property("sync", false);
        sink.set_property("async", false);
        share_thread(&sink, contexts, context);
        Ok(sink)
    }
}

/// Waits for the first packet with a static payload type, then builds the chain for it.
///
/// The source's pad stays unlinked until then. It happens in a probe on the streaming thread, before
/// the packet goes on, so nothing is lost. Packets that say nothing about their codec are dropped.
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
    let mut warned = false;
    let learn = std::sync::Mutex::new(move |pad: &gst::Pad, buffer: &gst::BufferRef| {
        let (Some(pipeline), Some(sink), Some(source)) =
            (pipeline.upgrade(), sink.upgrade(), pad.parent_element())
        else {
            return gst::PadProbeReturn::Drop;
        };
        let Some(codec) = payload_type(buffer).and_then(Codec::from_static_payload_type) else {
            if !warned {
                warned = true;
                tracing::warn!(
                    stream = spec.name,
                    "dropping packets whose payload type does not tell the codec; set `codec` for this stream"
                );
            }
            return gst::PadProbeReturn::Drop;
        };
        tracing::info!(stream = spec.name, %codec, "learnt the codec from the first packet");
        let known = StreamSpec {
            codec_in: CodecIn::Known(codec),
            ..spec.clone()
        };
        // The caps event is sent again, with what is now known, when the pad is linked.
        let caps = gst::event::Caps::new(&codec.rtp_caps());
        let linked = pad
            .store_sticky_event(&caps)
            .map_err(|_| glib::bool_error!("the source is stopping").into());
        let linked = linked.and_then(|_| match known.is_passthrough() {
            true => link(&source, &sink),
            false => insert(&pipeline, &source, &sink, chain(codec, &known)),
        });
        if let Err(error) = linked {
            gst::element_error!(source, gst::CoreError::Negotiation, ["{error}"]);
            return gst::PadProbeReturn::Drop;
        }
        gst::PadProbeReturn::Remove
    });
    pad.add_probe(
        gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST,
        move |pad, info| {
            let Ok(mut learn) = learn.lock() else {
                return gst::PadProbeReturn::Drop;
            };
            match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => learn(pad, buffer),
                Some(gst::PadProbeData::BufferList(list)) => list
                    .get(0)
                    .map_or(gst::PadProbeReturn::Drop, |buffer| learn(pad, buffer)),
                _ => gst::PadProbeReturn::Ok,
            }
        },
    );
    Ok(())
}

/// The payload type of a packet, if it is RTP.
fn payload_type(buffer: &gst::BufferRef) -> Option<u8> {
    let bytes = buffer.map_readable().ok()?;
    RtpPacket::parse(&bytes)
        .ok()
        .map(|packet| packet.payload_type())
}

/// The elements between source and sink that turn `codec_in` into what `spec` sends.
fn chain(codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    let mut parts = Vec::new();
    if spec.latency_ms > 0 {
        parts.push(part("rtpjitterbuffer").with("latency", Setting::Uint(spec.latency_ms)));
    }
    parts.push(part(match codec_in {
        Codec::Pcmu => "rtppcmudepay",
        Codec::Pcma => "rtppcmadepay",
        Codec::L16 { .. } => "rtpL16depay",
        Codec::Opus => "rtpopusdepay",
    }));
    // A payloader alone changes the packet time, except where it is a property of the encoding.
    let recode = codec_in != codec_out || (codec_out == Codec::Opus && spec.ptime_ms.is_some());
    if recode {
        parts.extend(decoder(codec_in).map(part));
        parts.extend(converters(codec_in, codec_out).iter().copied().map(part));
        parts.extend(encoder(codec_out, spec));
    }
    parts.push(payloader(codec_out, spec));
    parts
}

fn decoder(codec: Codec) -> Option<&'static str> {
    match codec {
        Codec::Pcmu => Some("mulawdec"),
        Codec::Pcma => Some("alawdec"),
        Codec::L16 { .. } => None,
        Codec::Opus => Some("opusdec"),
    }
}

fn encoder(codec: Codec, spec: &StreamSpec) -> Option<Part> {
    match codec {
        Codec::Pcmu => Some(part("mulawenc")),
        Codec::Pcma => Some(part("alawenc")),
        Codec::L16 { .. } => None,
        Codec::Opus => {
            let encoder = part("opusenc");
            Some(match spec.ptime_ms {
                // The enumeration's numbers are the milliseconds.
                Some(ptime_ms) => encoder.with("frame-size", Setting::Enum(ptime_ms)),
                None => encoder,
            })
        }
    }
}

/// What the raw audio of one codec needs to become that of the other.
fn converters(codec_in: Codec, codec_out: Codec) -> &'static [&'static str] {
    let is_g711 = |codec| matches!(codec, Codec::Pcmu | Codec::Pcma);
    match (codec_in, codec_out) {
        _ if is_g711(codec_in) && is_g711(codec_out) => &[],
        // opusenc and opusdec work at 8000 Hz, mono, native byte order.
        (Codec::Opus, other) | (other, Codec::Opus) if is_g711(other) => &[],
        _ => &["audioconvert", "audioresample"],
    }
}

fn payloader(codec: Codec, spec: &StreamSpec) -> Part {
    let name = match codec {
        Codec::Pcmu => "rtppcmupay",
        Codec::Pcma => "rtppcmapay",
        Codec::L16 { .. } => "rtpL16pay",
        Codec::Opus => "rtpopuspay",
    };
    let payload_type = spec
        .payload_type
        .unwrap_or_else(|| codec.default_payload_type());
    let mut part = part(name).with("pt", Setting::Uint(payload_type.into()));
    if let Some(ssrc) = spec.ssrc {
        part = part.with("ssrc", Setting::Uint(ssrc));
    }
    match spec.ptime_ms {
        Some(ptime_ms) if codec != Codec::Opus => {
            let ptime_ns = Setting::Int64(i64::from(ptime_ms) * 1_000_000);
            part.with("min-ptime", ptime_ns).with("max-ptime", ptime_ns)
        }
        _ => part,
    }
}

fn part(factory: &'static str) -> Part {
    Part {
        factory,
        properties: Vec::new(),
    }
}

impl Part {
    fn with(mut self, name: &'static str, value: Setting) -> Self {
        self.properties.push((name, value));
        self
    }
}

/// Makes `parts`, adds them to a pipeline that may be running, and links source to sink through them.
fn insert(
    pipeline: &gst::Pipeline,
    source: &gst::Element,
    sink: &gst::Element,
    parts: Vec<Part>,
) -> Result<(), BuildError> {
    let mut chain = Vec::with_capacity(parts.len());
    for part in parts {
        let element = make(part.factory)?;
        for (name, value) in part.properties {
            match value {
                Setting::Uint(value) => element.set_property(name, value),
                Setting::Int64(value) => element.set_property(name, value),
                Setting::Enum(value) => element.set_property_from_str(name, &value.to_string()),
            }
        }
        pipeline.add(&element)?;
        chain.push(element);
    }
    // From the sink up, so that each element has a running neighbour to push to.
    let mut next = sink;
    for element in chain.iter().rev() {
        link(element, next)?;
        element.sync_state_with_parent()?;
        next = element;
    }
    link(source, next)
}

/// Puts an element on a context, if it is one that can be.
fn share_thread(element: &gst::Element, contexts: &Contexts, context: &str) {
    if element.has_property("context") {
        element.set_property("context", context);
        element.set_property("context-wait", contexts.wait_ms);
    }
}

fn make(factory: &'static str) -> Result<gst::Element, BuildError> {
    let found = gst::ElementFactory::find(factory).ok_or(BuildError::Missing(factory))?;
    Ok(found.create().build()?)
}

/// Links two always-pads whose caps are known to fit.
fn link(from: &gst::Element, to: &gst::Element) -> Result<(), BuildError> {
    Ok(from.link_pads_full(Some("src"), to, Some("sink"), gst::PadLinkCheck::empty())?)
}
