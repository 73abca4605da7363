//! One stream's GStreamer pipeline: source, codec elements where needed, sink.
//!
//! ```text
//!   ts-rtpsrc ! ts-rtpg711 ! ts-rtpsink                          PCMU, PCMA, L16/8000/1: one hop, meter inside
//!   ts-rtpsrc ! depayload ! decode ! [audioloudnorm !] ebur128level ! encode ! payload ! ts-rtpsink     everything else
//!   ts-rtpsrc ! ts-rtpsink                                       as it comes
//! ```
//!
//! Source and sink share a session: its sockets, and its RTCP. Only where packets go on as they came do they
//! have one each, because they would take the sender's SSRC, which goes out again, for their own.
//!
//! Each stream has a pipeline of its own: thousands of streams in one `GstPipeline` make start-up
//! quadratic. They share the system clock and one bus, so that a pipeline owns no file descriptor
//! and no thread. Elements are made from their factories and linked without the checks that
//! `gst_parse_launch` does for pipelines it knows nothing of.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use gst::glib;
use gst::prelude::*;
use rtp_types::RtpPacket;

use crate::codec::{Codec, CodecIn};
use crate::config::{Contexts, Destination, Jitter, Rtcp, StreamSpec};

/// Which elements receive and send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Threadbare's own: jitter buffer and RTCP are in them.
    Threadbare,
    /// GStreamer's own, for comparison: a thread per stream, another two with a jitter buffer, and no RTCP.
    Stock,
}

impl Elements {
    /// Factory name of the source.
    pub fn source(self) -> &'static str {
        match self {
            Elements::Threadbare => "ts-rtpsrc",
            Elements::Stock => "udpsrc",
        }
    }

    /// Factory name of the sink.
    pub fn sink(self) -> &'static str {
        match self {
            Elements::Threadbare => "ts-rtpsink",
            Elements::Stock => "udpsink",
        }
    }
}

/// Why a pipeline could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An element is not installed.
    #[error("the GStreamer element {0} is not installed; `threadbare doctor` names its package")]
    Missing(&'static str),
    /// GStreamer's own elements cannot do it.
    #[error("{0} needs Threadbare's own elements: run without --stock")]
    Stock(&'static str),
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
    Int(i32),
    Int64(i64),
    Double(f64),
    Flag(bool),
    Text(&'static str),
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
        let mut factories = BTreeSet::from([self.elements.source(), self.elements.sink()]);
        for spec in streams.iter().filter(|spec| !spec.is_passthrough()) {
            let codecs_in = match spec.codec_in {
                CodecIn::Known(codec) => vec![codec],
                CodecIn::Auto => Codec::with_static_payload_types().collect(),
            };
            let parts = codecs_in
                .into_iter()
                .flat_map(|codec| self.elements.chain(codec, spec));
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
                let parts = self.elements.chain(codec_in, spec);
                keep_to_codec(self.elements, &source, codec_in, spec);
                insert(&pipeline, &source, &sink, parts)?
            }
            (false, CodecIn::Auto) => learn_codec(self.elements, &pipeline, &source, &sink, spec)?,
        }
        Ok(pipeline)
    }

    fn source(
        &self,
        spec: &StreamSpec,
        contexts: &Contexts,
        context: &str,
    ) -> Result<gst::Element, BuildError> {
        let source = make_named(self.elements.source(), SOURCE)?;
        source.set_property("address", spec.listen.ip().to_string());
        source.set_property("port", i32::from(spec.listen.port()));
        // Two processes on one port would silently take turns.
        source.set_property("reuse", false);
        match self.elements {
            Elements::Threadbare => rtp_source(&source, spec),
            Elements::Stock => {
                let caps = match spec.codec_in {
                    CodecIn::Known(codec) => codec.rtp_caps(),
                    CodecIn::Auto => gst::Caps::builder("application/x-rtp")
                        .field("media", "audio")
                        .build(),
                };
                source.set_property("caps", caps);
                // Nobody looks at it, and it costs an allocation per packet.
                source.set_property("retrieve-sender-address", false);
            }
        }
        share_thread(&source, contexts, context);
        Ok(source)
    }

    fn sink(
        &self,
        spec: &StreamSpec,
        contexts: &Contexts,
        context: &str,
    ) -> Result<gst::Element, BuildError> {
        let sink = make_named(self.elements.sink(), SINK)?;
        // Live packets go out as they come; nothing is prerolled.
        sink.set_property("sync", false);
        match (self.elements, &spec.destination) {
            (Elements::Threadbare, _) => rtp_sink(&sink, spec),
            (Elements::Stock, Destination::Fixed { host, port }) => {
                sink.set_property("clients", format!("{host}:{port}"));
                sink.set_property("async", false);
            }
            (Elements::Stock, Destination::Latched) => {
                return Err(BuildError::Stock("destination = \"latched\""));
            }
        }
        share_thread(&sink, contexts, context);
        Ok(sink)
    }
}

/// What a `ts-rtpsrc` is to do.
fn rtp_source(source: &gst::Element, spec: &StreamSpec) {
    let Jitter {
        latency_ms,
        adaptive,
        drop_on_latency,
        clock_skew,
    } = spec.jitter;
    if let CodecIn::Known(codec) = spec.codec_in {
        // Without, it goes by the static payload types.
        let caps = match is_fused(codec, spec) {
            true => codec.rtp_caps_of_any_type(),
            false => codec.rtp_caps(),
        };
        source.set_property("caps", caps);
    } else if let Some(rate_hz) = spec.clock_rate_hz {
        // All that the jitter buffer has to know.
        let caps = gst::Caps::builder("application/x-rtp")
            .field("media", "audio")
            .field("clock-rate", rate_hz as i32);
        source.set_property("caps", caps.build());
    }
    source.set_property("latency", latency_ms);
    source.set_property("adaptive", adaptive);
    source.set_property("drop-on-latency", drop_on_latency);
    source.set_property_from_str("clock-skew", &clock_skew.to_string());
    source.set_property("latch", spec.latch);
    source.set_property("session", session_name(spec));
    match spec.rtcp {
        Rtcp::Off => source.set_property("rtcp", false),
        Rtcp::Mux => source.set_property("rtcp-mux", true),
        Rtcp::Ports { listen, .. } => {
            source.set_property("rtcp-port", listen.map_or(-1, i32::from));
        }
    }
}

/// What a `ts-rtpsink` is to do.
fn rtp_sink(sink: &gst::Element, spec: &StreamSpec) {
    if let Destination::Fixed { host, port } = &spec.destination {
        sink.set_property("host", host);
        sink.set_property("port", i32::from(*port));
    }
    sink.set_property("session", session_name(spec));
    sink.set_property("cname", &spec.cname);
    if let Some(ssrc) = spec.ssrc {
        sink.set_property("ssrc", ssrc);
    }
    match spec.rtcp {
        Rtcp::Off => sink.set_property("rtcp-port", 0),
        Rtcp::Mux => sink.set_property("rtcp-mux", true),
        Rtcp::Ports { destination, .. } => {
            sink.set_property("rtcp-port", destination.map_or(-1, i32::from));
        }
    }
}

/// What source and sink have in common; nothing, where packets go on as they came. The address is the process's only
/// one, and a stream that is started again finds it free.
fn session_name(spec: &StreamSpec) -> String {
    match spec.is_passthrough() {
        true => String::new(),
        false => spec.listen.to_string(),
    }
}

/// Whether one element does all of it: the pairs that are tables, and what keeps its samples.
fn is_fused(codec_in: Codec, spec: &StreamSpec) -> bool {
    if spec.loudness_target_lufs.is_some() {
        return false;
    }
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    let is_table = |codec| {
        matches!(
            codec,
            Codec::Pcmu
                | Codec::Pcma
                | Codec::L16 {
                    rate_hz: 8000,
                    channels: 1
                }
        )
    };
    let is_mono_l16 = |codec| matches!(codec, Codec::L16 { channels: 1, .. });
    is_table(codec_in) && is_table(codec_out) || codec_in == codec_out && is_mono_l16(codec_in)
}

/// Keeps from the decoder what is no audio: a depayloader takes packets of any type for its own. `ts-rtpg711` knows the
/// difference, and passes these packets on.
fn keep_to_codec(elements: Elements, source: &gst::Element, codec_in: Codec, spec: &StreamSpec) {
    if elements == Elements::Threadbare && is_fused(codec_in, spec) {
        return;
    }
    let Some(pad) = source.static_pad("src") else {
        return;
    };
    let (stream, dtmf) = (spec.name.clone(), spec.dtmf_payload_type);
    let has_warned = AtomicBool::new(false);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let Some(gst::PadProbeData::Buffer(buffer)) = &info.data else {
            return gst::PadProbeReturn::Ok;
        };
        match payload_type(buffer) {
            Some(payload_type) if payload_type == dtmf || payload_type == COMFORT_NOISE => {
                if !has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        stream,
                        payload_type,
                        "dropping telephone events and comfort noise: they pass between PCMU, PCMA and L16/8000/1 only"
                    );
                }
                gst::PadProbeReturn::Drop
            }
            _ => gst::PadProbeReturn::Ok,
        }
    });
}

/// Waits for the first packet with a static payload type, then builds the chain for it.
///
/// The source's pad stays unlinked until then. It happens in a probe on the streaming thread, before
/// the packet goes on, so nothing is lost. Packets that say nothing about their codec are dropped.
fn learn_codec(
    elements: Elements,
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
        let as_it_comes = known.is_passthrough() && known.loudness_target_lufs.is_none();
        let linked = linked.and_then(|_| match as_it_comes {
            true => link(&source, &sink),
            false => {
                keep_to_codec(elements, &source, codec, &known);
                insert(&pipeline, &source, &sink, elements.chain(codec, &known))
            }
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

impl Elements {
    /// The elements between source and sink that turn `codec_in` into what `spec` sends.
    fn chain(self, codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
        match self {
            Elements::Threadbare if is_fused(codec_in, spec) => vec![converter(codec_in, spec)],
            Elements::Threadbare => chain(codec_in, spec),
            Elements::Stock => {
                let latency_ms = spec.jitter.latency_ms;
                let jitter_buffer =
                    part("rtpjitterbuffer").with("latency", Setting::Uint(latency_ms));
                // It stands for what others have, and these have no meter.
                let spec = StreamSpec {
                    meter: false,
                    ..spec.clone()
                };
                let mut parts = chain(codec_in, &spec);
                if latency_ms > 0 {
                    parts.insert(0, jitter_buffer);
                }
                parts
            }
        }
    }
}

/// All of it in one hop.
fn converter(codec_in: Codec, spec: &StreamSpec) -> Part {
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    let payload_type = payload_type_out(codec_out, spec);
    let mut part = part(CONVERTER_FACTORY)
        .with("encoding-name", Setting::Text(codec_out.encoding_name()))
        .with("ptime", Setting::Uint(spec.ptime_ms.unwrap_or(0)))
        .with("pt", Setting::Int(payload_type.into()))
        .with(
            "telephone-event-pt",
            Setting::Int(spec.dtmf_payload_type.into()),
        )
        .with("meter", Setting::Flag(spec.meter));
    if let Some(ssrc) = spec.ssrc {
        part = part.with("ssrc", Setting::Uint(ssrc));
    }
    part
}

/// The same with the ordinary elements.
fn chain(codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    let mut parts = vec![part(match codec_in {
        Codec::Pcmu => "rtppcmudepay",
        Codec::Pcma => "rtppcmadepay",
        Codec::L16 { .. } => "rtpL16depay",
        Codec::Opus => "rtpopusdepay",
    })];
    // A payloader alone changes the packet time, except where it is a property of the encoding.
    let recode = codec_in != codec_out
        || (codec_out == Codec::Opus && spec.ptime_ms.is_some())
        || spec.loudness_target_lufs.is_some();
    if recode {
        parts.extend(decoder(codec_in).map(part));
        parts.extend(loudness(codec_in, spec));
        parts.extend(converters(codec_in, codec_out).iter().copied().map(part));
        parts.extend(encoder(codec_out, spec));
    }
    parts.push(payloader(codec_out, spec));
    parts
}

/// Brings the audio to its loudness and measures it, before it is converted for the codec that goes out.
fn loudness(codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
    let mut parts = Vec::new();
    if let Some(target) = spec.loudness_target_lufs {
        parts.push(part("audioloudnorm").with("loudness-target", Setting::Double(target)));
    }
    if spec.meter {
        parts.push(part(METER_FACTORY).with("post-messages", Setting::Flag(false)));
    }
    // L16 comes in network byte order, which neither takes.
    if matches!(codec_in, Codec::L16 { .. }) && !parts.is_empty() {
        parts.insert(0, part("audioconvert"));
    }
    parts
}

fn payload_type_out(codec_out: Codec, spec: &StreamSpec) -> u8 {
    spec.payload_type
        .unwrap_or_else(|| codec_out.default_payload_type())
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
    let payload_type = payload_type_out(codec, spec);
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
        let element = match part.factory {
            CONVERTER_FACTORY => make_named(part.factory, CONVERTER)?,
            METER_FACTORY => make_named(part.factory, METER)?,
            factory => make(factory)?,
        };
        for (name, value) in part.properties {
            match value {
                Setting::Uint(value) => element.set_property(name, value),
                Setting::Int(value) => element.set_property(name, value),
                Setting::Int64(value) => element.set_property(name, value),
                Setting::Double(value) => element.set_property(name, value),
                Setting::Flag(value) => element.set_property(name, value),
                Setting::Text(value) => element.set_property(name, value),
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

fn make_named(factory: &'static str, name: &str) -> Result<gst::Element, BuildError> {
    let element = make(factory)?;
    element.set_property("name", name);
    Ok(element)
}

/// Links two always-pads whose caps are known to fit.
fn link(from: &gst::Element, to: &gst::Element) -> Result<(), BuildError> {
    Ok(from.link_pads_full(Some("src"), to, Some("sink"), gst::PadLinkCheck::empty())?)
}

/// Name of a pipeline's source.
pub const SOURCE: &str = "source";
/// Name of the element that converts in one hop, where there is one.
pub const CONVERTER: &str = "converter";
/// Name of a pipeline's sink.
pub const SINK: &str = "sink";

/// Name of the element that measures, where there is one.
pub const METER: &str = "meter";

const METER_FACTORY: &str = "ebur128level";
const CONVERTER_FACTORY: &str = "ts-rtpg711";
/// Static payload type of comfort noise (RFC 3551).
const COMFORT_NOISE: u8 = 13;
