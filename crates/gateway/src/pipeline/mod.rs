//! One stream's GStreamer pipeline: source, codec elements where needed, sink.
//!
//! ```text
//!   ts-rtpsrc ! ts-rtpg711 ! ts-rtpsink                          PCMU, PCMA, L16/8000/1: one hop, meter inside
//!   ts-rtpsrc ! (codec elements, see `chain`) ! ts-rtpsink       everything else
//!   ts-rtpsrc ! ts-rtpsink                                       unchanged
//! ```
//!
//! Source and sink share a session: its sockets, and its RTCP. Only if packets go out unchanged do they have one each:
//! in a shared session, they would take the sender's SSRC, which goes out again, for their own.
//!
//! Each stream has its own pipeline: thousands of streams in one `GstPipeline` make start-up quadratic. They share the
//! system clock and one bus, so that a pipeline owns no file descriptor and no thread. Elements are made from their
//! factories and linked without the checks that `gst_parse_launch` needs for arbitrary pipelines.

mod chain;
mod guard;

use std::collections::BTreeSet;

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::payload::{COMFORT_NOISE, PayloadTypes};

use self::chain::{insert, is_fused, takes_any_type};
use self::guard::{keep_to_codec, keep_to_what_came, payload_type};
use crate::codec::{Codec, CodecIn};
use crate::config::{Contexts, Destination, Jitter, Rtcp, StreamSpec};

/// The elements that receive and send.
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
    /// GStreamer's own elements do not support it.
    #[error("{0} needs Threadbare's own elements: run without --stock")]
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
    elements: Elements,
    /// The bus of all pipelines.
    bus: gst::Bus,
    /// The clock of all pipelines.
    clock: gst::Clock,
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

    /// Checks that all elements for these streams are installed.
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
        // The bus is shared; a pipeline that stops must not flush it.
        pipeline.set_auto_flush_bus(false);
        pipeline.use_clock(Some(&self.clock));

        let spec = &with_ssrc(spec);
        let context = contexts.name_for(index);
        let source = self.source(spec, contexts, &context)?;
        let sink = self.sink(spec, contexts, &context)?;
        pipeline.add(&source)?;
        pipeline.add(&sink)?;
        match (spec.is_passthrough(), spec.codec_in) {
            (true, _) => link(&source, &sink)?,
            (false, CodecIn::Known(codec_in)) => {
                let parts = self.elements.chain(codec_in, spec);
                guard(self.elements, &source, &sink, codec_in, spec);
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
                // It is unused, and costs an allocation per packet.
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
        // Live packets are sent on arrival; there is no preroll.
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

/// Settings of a `ts-rtpsrc`.
fn rtp_source(source: &gst::Element, spec: &StreamSpec) {
    let Jitter {
        latency_ms,
        adaptive,
        drop_on_latency,
        clock_skew,
    } = spec.jitter;
    if let CodecIn::Known(codec) = spec.codec_in {
        // Without caps, it uses the static payload types.
        let caps = match takes_any_type(codec, spec) {
            true => codec.rtp_caps_of_any_type(),
            false => codec.rtp_caps(),
        };
        source.set_property("caps", caps);
    } else if let Some(rate_hz) = spec.clock_rate_hz {
        // Sufficient for the jitter buffer.
        let caps = gst::Caps::builder("application/x-rtp")
            .field("media", "audio")
            .field("clock-rate", rate_hz as i32);
        source.set_property("caps", caps.build());
    }
    source.set_property("payload-types", accepted(spec.codec_in, spec).to_string());
    source.set_property("mtu", packet_bytes_max(spec.codec_in));
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

/// Settings of a `ts-rtpsink`.
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

/// Name of the session that source and sink share; empty if packets go out unchanged, as each has its own then. The
/// listening address is unique in the process, and free again when a stream is restarted.
fn session_name(spec: &StreamSpec) -> String {
    match spec.is_passthrough() {
        true => String::new(),
        false => spec.listen.to_string(),
    }
}

/// One SSRC from the first packet on, RTP or RTCP: a listener that sees a second one may take the first for gone.
/// Packets that go out unchanged keep their sender's.
fn with_ssrc(spec: &StreamSpec) -> StreamSpec {
    let ssrc = match spec.is_passthrough() {
        true => None,
        false => spec.ssrc.or_else(|| Some(glib::random_int())),
    };
    StreamSpec {
        ssrc,
        ..spec.clone()
    }
}

/// The payload types that a stream accepts: those of its codec, telephone events and comfort noise.
fn accepted(codec_in: CodecIn, spec: &StreamSpec) -> PayloadTypes {
    let own: Vec<u8> = match codec_in {
        // Of the configured clock rate, or static: nothing is decoded.
        CodecIn::Auto if spec.is_passthrough() => return PayloadTypes::ALL,
        CodecIn::Auto => Codec::with_static_payload_types()
            .map(Codec::default_payload_type)
            .collect(),
        CodecIn::Known(codec) => match spec.payload_type_in {
            Some(named) => vec![named],
            None => codec.usual_payload_types().collect(),
        },
    };
    with_events(own, spec)
}

/// These payload types, and those of telephone events and comfort noise.
fn with_events(own: impl IntoIterator<Item = u8>, spec: &StreamSpec) -> PayloadTypes {
    let own = own.into_iter().map(PayloadType);
    own.chain([PayloadType(spec.dtmf_payload_type), COMFORT_NOISE])
        .collect()
}

/// Bytes of the largest packet accepted: 20 ms of linear audio may exceed an Ethernet frame, and arrive in fragments.
fn packet_bytes_max(codec_in: CodecIn) -> u32 {
    let codecs = match codec_in {
        CodecIn::Known(codec) => vec![codec],
        CodecIn::Auto => Codec::with_static_payload_types().collect(),
    };
    let linear = codecs
        .into_iter()
        .filter_map(|codec| codec.payload_bytes(20));
    (linear.max().unwrap_or(0) + RTP_HEADER_BYTES_MAX).max(FRAME_BYTES)
}

/// Keeps undecodable packets from the decoder, and excess audio from the network.
fn guard(
    elements: Elements,
    source: &gst::Element,
    sink: &gst::Element,
    codec_in: Codec,
    spec: &StreamSpec,
) {
    // `ts-rtpg711` knows the difference, and forwards other packets than audio.
    if elements == Elements::Threadbare && is_fused(codec_in, spec) {
        return;
    }
    keep_to_codec(source, spec);
    if elements == Elements::Threadbare {
        keep_to_what_came(source, sink, codec_in, spec);
    }
}

/// Waits for the first packet with a static payload type, then builds the chain for it.
///
/// The source's pad stays unlinked until then. A probe on the streaming thread builds the chain before the packet goes
/// on, so nothing is lost. Packets with an unknown codec are dropped.
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
            return gst::PadProbeReturn::Handled;
        };
        let Some(codec) = payload_type(buffer).and_then(Codec::from_static_payload_type) else {
            if !warned {
                warned = true;
                tracing::warn!(
                    stream = spec.name,
                    "dropping packets: their payload type does not identify the codec; set `codec` for this stream"
                );
            }
            return gst::PadProbeReturn::Handled;
        };
        tracing::info!(stream = spec.name, %codec, "learnt the codec from the first packet");
        if let Err(error) = use_codec(elements, &pipeline, pad, &source, &sink, codec, &spec) {
            gst::element_error!(source, gst::CoreError::Negotiation, ["{error}"]);
            return gst::PadProbeReturn::Handled;
        }
        gst::PadProbeReturn::Remove
    });
    pad.add_probe(
        gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST,
        move |pad, info| {
            let Ok(mut learn) = learn.lock() else {
                return gst::PadProbeReturn::Handled;
            };
            match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => learn(pad, buffer),
                Some(gst::PadProbeData::BufferList(list)) => list
                    .get(0)
                    .map_or(gst::PadProbeReturn::Handled, |buffer| learn(pad, buffer)),
                _ => gst::PadProbeReturn::Ok,
            }
        },
    );
    Ok(())
}

/// Builds the chain for a codec that was learnt, behind the source's pad.
fn use_codec(
    elements: Elements,
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
    if elements == Elements::Threadbare {
        let types = compatible(codec, &known);
        source.set_property("payload-types", types.to_string());
    }
    // The caps event is sent again, with what is now known, when the pad is linked.
    let caps = gst::event::Caps::new(&codec.rtp_caps());
    pad.store_sticky_event(&caps)
        .map_err(|_| glib::bool_error!("the source is stopping"))?;
    guard(elements, source, sink, codec, &known);
    insert(pipeline, source, sink, elements.chain(codec, &known))
}

/// The payload types that the elements made for `codec` can handle.
fn compatible(codec: Codec, spec: &StreamSpec) -> PayloadTypes {
    let own = match codec {
        Codec::Pcmu | Codec::Pcma => vec![Codec::Pcmu, Codec::Pcma],
        other => vec![other],
    };
    with_events(own.into_iter().map(Codec::default_payload_type), spec)
}

/// Places an element on a context, if it supports that.
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

/// Links two always-pads with compatible caps.
fn link(from: &gst::Element, to: &gst::Element) -> Result<(), BuildError> {
    Ok(from.link_pads_full(Some("src"), to, Some("sink"), gst::PadLinkCheck::empty())?)
}

/// Name of a pipeline's source.
pub const SOURCE: &str = "source";
/// Name of the element that converts in one hop, if any.
pub const CONVERTER: &str = "converter";
/// Name of a pipeline's sink.
pub const SINK: &str = "sink";

/// Name of the element that measures, if any.
pub const METER: &str = "meter";

/// An Ethernet frame's payload less some tunnel headers: what sources expect by default.
const FRAME_BYTES: u32 = 1492;
/// RFC 3550, section 5.1: the fixed header and 15 contributing sources; and some extension.
const RTP_HEADER_BYTES_MAX: u32 = 12 + 15 * 4 + 64;
