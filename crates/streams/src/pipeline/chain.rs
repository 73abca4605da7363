//! The elements between a stream's source and its sink. They decode and encode the audio.
//!
//! ```text
//!   [rtpjitterbuffer !] depayload ! decode ! audioconvert ! audioresample ! encode ! payload
//! ```

use gst::glib;
use gst::prelude::*;

use threadbare_config::StreamSpec;
use threadbare_config::codec::Codec;

/// The reason why streams of GStreamer's own elements do not start.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// An element is not installed.
    #[error("the GStreamer element {0} is not installed; `threadbare doctor` names its package")]
    Missing(&'static str),
    /// GStreamer's own elements do not support a setting of the stream.
    #[error("GStreamer's own elements do not support {0}: run without --stock")]
    Stock(&'static str),
    /// Elements are not installed.
    #[error("GStreamer elements are not installed: {}. `threadbare doctor` names their packages", .0.join(", "))]
    Uninstalled(Vec<&'static str>),
    /// An element refused to start.
    #[error("{0}")]
    Refused(String),
    /// An element could not be created, added or linked.
    #[error("{0}")]
    Failed(#[from] glib::BoolError),
}

/// An element of the chain, with the name of its factory and its properties.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) factory: &'static str,
    properties: Vec<(&'static str, Setting)>,
}

/// The value of an element's property.
#[derive(Clone, Debug)]
enum Setting {
    Uint(u32),
    Int64(i64),
    Flag(bool),
    Caps(gst::Caps),
    /// The value of an enumeration, as its number.
    Enum(u32),
}

/// Returns the elements between source and sink that convert `codec_in` to the output of `spec`.
///
/// # Errors
/// Fails if GStreamer's own elements do not support a setting of the stream.
pub(super) fn chain(codec_in: Codec, spec: &StreamSpec) -> Result<Vec<Part>, StockError> {
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    if spec.loudness_target_lufs.is_some() {
        return Err(StockError::Stock("loudness-target"));
    }
    let mut parts = Vec::new();
    if spec.jitter.latency_ms > 0 {
        let latency = Setting::Uint(spec.jitter.latency_ms);
        parts.push(part("rtpjitterbuffer").with("latency", latency));
    }
    parts.push(part(match codec_in {
        Codec::Pcmu => "rtppcmudepay",
        Codec::Pcma => "rtppcmadepay",
        Codec::L16 { .. } => "rtpL16depay",
        Codec::Opus => "rtpopusdepay",
        Codec::G722 => return Err(StockError::Stock("G722")),
        Codec::L24 { .. } => return Err(StockError::Stock("L24")),
    }));
    // The payloader sets the packet time. For Opus, the encoder sets it.
    let recode = codec_in != codec_out || (codec_out == Codec::Opus && spec.ptime_ms.is_some());
    if recode {
        parts.extend(decoder(codec_in, codec_out));
        parts.extend(converters(codec_in, codec_out));
        parts.extend(encoder(codec_out, spec));
    }
    parts.push(payloader(codec_out, spec)?);
    Ok(parts)
}

/// Returns the caps of an RTP source for a codec.
pub(super) fn rtp_caps(codec: Codec) -> gst::Caps {
    let encoding_name = match codec {
        Codec::Pcmu => "PCMU",
        Codec::Pcma => "PCMA",
        Codec::G722 => "G722",
        Codec::L16 { .. } => "L16",
        Codec::L24 { .. } => "L24",
        Codec::Opus => "OPUS",
    };
    let caps = gst::Caps::builder("application/x-rtp")
        .field("media", "audio")
        .field("clock-rate", codec.clock_rate_hz() as i32)
        .field("encoding-name", encoding_name)
        // Depayloaders need a payload type in the caps, although they accept packets of any payload type.
        .field("payload", i32::from(codec.default_payload_type()));
    match codec {
        Codec::L16 { channels, .. } | Codec::L24 { channels, .. } => caps
            .field("encoding-params", channels.to_string())
            .field("channels", channels as i32)
            .build(),
        _ => caps.build(),
    }
}

fn payload_type_out(codec_out: Codec, spec: &StreamSpec) -> u8 {
    spec.payload_type
        .unwrap_or_else(|| codec_out.default_payload_type())
}

fn decoder(codec_in: Codec, codec_out: Codec) -> Vec<Part> {
    let channels = |channels: i32| {
        let raw = gst::Caps::builder("audio/x-raw").field("channels", channels);
        filter(raw.build())
    };
    match codec_in {
        Codec::Pcmu => vec![part("mulawdec")],
        Codec::Pcma => vec![part("alawdec")],
        Codec::L16 { .. } | Codec::L24 { .. } | Codec::G722 => Vec::new(),
        Codec::Opus => {
            let decoder = part("opusdec").with("plc", Setting::Flag(true));
            // Two channels are requested, because with one channel the decoder would drop the right channel instead of mixing both.
            let mut parts = vec![decoder, channels(2)];
            if !matches!(codec_out, Codec::Opus | Codec::L16 { channels: 2, .. }) {
                parts.extend([part("audioconvert"), channels(1)]);
            }
            parts
        }
    }
}

fn encoder(codec: Codec, spec: &StreamSpec) -> Option<Part> {
    match codec {
        Codec::Pcmu => Some(part("mulawenc")),
        Codec::Pcma => Some(part("alawenc")),
        Codec::L16 { .. } | Codec::L24 { .. } | Codec::G722 => None,
        Codec::Opus => {
            let encoder = part("opusenc");
            Some(match spec.ptime_ms {
                // The numbers of this enumeration are milliseconds.
                Some(ptime_ms) => encoder.with("frame-size", Setting::Enum(ptime_ms)),
                None => encoder,
            })
        }
    }
}

/// Returns the elements that convert the raw audio of one codec to the raw audio of the other codec.
fn converters(codec_in: Codec, codec_out: Codec) -> Vec<Part> {
    let is_g711 = |codec| matches!(codec, Codec::Pcmu | Codec::Pcma);
    let mut parts = match (codec_in, codec_out) {
        _ if is_g711(codec_in) && is_g711(codec_out) => Vec::new(),
        // No conversion is needed, because opusenc and opusdec also work at 8000 Hz in native byte order.
        (Codec::Opus, other) | (other, Codec::Opus) if is_g711(other) => Vec::new(),
        _ => vec![part("audioconvert"), part("audioresample")],
    };
    if let Codec::L16 { rate_hz, channels } = codec_out {
        // The caps are needed, because the payloader would accept any format.
        let caps = gst::Caps::builder("audio/x-raw")
            .field("format", "S16BE")
            .field("rate", rate_hz as i32)
            .field("channels", channels as i32);
        parts.push(filter(caps.build()));
    }
    parts
}

fn filter(caps: gst::Caps) -> Part {
    part("capsfilter").with("caps", Setting::Caps(caps))
}

fn payloader(codec: Codec, spec: &StreamSpec) -> Result<Part, StockError> {
    let name = match codec {
        Codec::Pcmu => "rtppcmupay",
        Codec::Pcma => "rtppcmapay",
        Codec::L16 { .. } => "rtpL16pay",
        Codec::Opus => "rtpopuspay",
        Codec::G722 => return Err(StockError::Stock("G722")),
        Codec::L24 { .. } => return Err(StockError::Stock("L24")),
    };
    let payload_type = payload_type_out(codec, spec);
    let mut part = part(name).with("pt", Setting::Uint(payload_type.into()));
    if let Some(ssrc) = spec.ssrc {
        part = part.with("ssrc", Setting::Uint(ssrc));
    }
    Ok(match spec.ptime_ms {
        Some(ptime_ms) if codec != Codec::Opus => {
            let ptime_ns = Setting::Int64(i64::from(ptime_ms) * 1_000_000);
            part.with("min-ptime", ptime_ns.clone())
                .with("max-ptime", ptime_ns)
        }
        _ => part,
    })
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

    fn make(self) -> Result<gst::Element, StockError> {
        let element = make(self.factory)?;
        for (name, value) in self.properties {
            match value {
                Setting::Uint(value) => element.set_property(name, value),
                Setting::Int64(value) => element.set_property(name, value),
                Setting::Flag(value) => element.set_property(name, value),
                Setting::Caps(value) => element.set_property(name, value),
                Setting::Enum(value) => element.set_property_from_str(name, &value.to_string()),
            }
        }
        Ok(element)
    }
}

/// Creates the elements of `parts` and adds them to a pipeline that may be running. Then links the source to the sink through them.
pub(super) fn insert(
    pipeline: &gst::Pipeline,
    source: &gst::Element,
    sink: &gst::Element,
    parts: Vec<Part>,
) -> Result<(), StockError> {
    let mut chain = Vec::with_capacity(parts.len());
    for part in parts {
        let element = part.make()?;
        pipeline.add(&element)?;
        chain.push(element);
    }
    // The loop starts at the sink, so that each element pushes to an element that already runs.
    let mut next = sink;
    for element in chain.iter().rev() {
        link(element, next)?;
        element.sync_state_with_parent()?;
        next = element;
    }
    link(source, next)
}

pub(super) fn make(factory: &'static str) -> Result<gst::Element, StockError> {
    let found = gst::ElementFactory::find(factory).ok_or(StockError::Missing(factory))?;
    Ok(found.create().build()?)
}

/// Links two elements whose pads always exist and have compatible caps.
pub(super) fn link(from: &gst::Element, to: &gst::Element) -> Result<(), StockError> {
    Ok(from.link_pads_full(Some("src"), to, Some("sink"), gst::PadLinkCheck::empty())?)
}
