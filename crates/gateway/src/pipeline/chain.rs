//! The codec elements between a stream's source and its sink.
//!
//! ```text
//!   PCMU, PCMA, mono L16:   ts-rtpg711 ! rtpL16depay !          losses are concealed, and the clock goes on
//!   stereo L16:             rtpL16depay !
//!   Opus:                   rtpopusdepay ! opusdec !            it conceals losses itself
//!   then                    [audioloudnorm !] [ebur128level !] audioconvert ! audioresample ! encode ! payload
//! ```

use gst::prelude::*;

use super::{BuildError, CONVERTER, Elements, METER, link, make, make_named};
use crate::codec::Codec;
use crate::config::StreamSpec;

/// A codec element: the name of its factory, and its properties.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) factory: &'static str,
    properties: Vec<(&'static str, Setting)>,
}

/// The value of a codec element's property.
#[derive(Clone, Debug)]
enum Setting {
    Uint(u32),
    Int(i32),
    Int64(i64),
    Double(f64),
    Flag(bool),
    Text(&'static str),
    Caps(gst::Caps),
    /// An enumeration's value by its number.
    Enum(u32),
}

impl Elements {
    /// The elements between source and sink that convert `codec_in` to the output of `spec`.
    pub(super) fn chain(self, codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
        let spec = StreamSpec {
            codec_out: Some(spec.codec_out.unwrap_or(codec_in)),
            // Stock elements serve for comparison, without a meter.
            meter: spec.meter && self == Elements::Threadbare,
            ..spec.clone()
        };
        if self == Elements::Stock {
            let mut parts = chain(codec_in, &spec);
            if spec.jitter.latency_ms > 0 {
                let latency = Setting::Uint(spec.jitter.latency_ms);
                parts.insert(0, part("rtpjitterbuffer").with("latency", latency));
            }
            return parts;
        }
        if is_fused(codec_in, &spec) {
            return vec![converter(codec_in, &spec)];
        }
        let Some(linear) = concealed(codec_in) else {
            return chain(codec_in, &spec);
        };
        let mut parts = vec![concealer(linear)];
        parts.extend(chain(linear, &spec));
        parts
    }
}

/// Whether one element does all of it: the pairs with tables, and unchanged samples.
pub(super) fn is_fused(codec_in: Codec, spec: &StreamSpec) -> bool {
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

/// Whether the first element takes packets of any payload type, and caps without one.
pub(super) fn takes_any_type(codec_in: Codec, spec: &StreamSpec) -> bool {
    is_fused(codec_in, spec) || concealed(codec_in).is_some()
}

/// The decoded format of a codec whose losses `ts-rtpg711` conceals.
fn concealed(codec_in: Codec) -> Option<Codec> {
    match codec_in {
        Codec::Pcmu | Codec::Pcma => Some(Codec::L16 {
            rate_hz: 8000,
            channels: 1,
        }),
        Codec::L16 { channels: 1, .. } => Some(codec_in),
        Codec::L16 { .. } | Codec::Opus => None,
    }
}

/// Conceals losses; takes any of its codecs, and outputs linear audio.
fn concealer(linear: Codec) -> Part {
    part(CONVERTER_FACTORY)
        .with("encoding-name", Setting::Text(linear.encoding_name()))
        .with("pt", Setting::Int(linear.default_payload_type().into()))
        // Telephone events do not come as far as here.
        .with("telephone-event-pt", Setting::Int(-1))
}

/// The whole conversion in one element.
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

/// The same with stock elements.
fn chain(codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    let mut parts = vec![part(match codec_in {
        Codec::Pcmu => "rtppcmudepay",
        Codec::Pcma => "rtppcmadepay",
        Codec::L16 { .. } => "rtpL16depay",
        Codec::Opus => "rtpopusdepay",
    })];
    // A payloader alone changes the packet time, except for encodings with a property for it.
    let recode = codec_in != codec_out
        || (codec_out == Codec::Opus && spec.ptime_ms.is_some())
        || spec.loudness_target_lufs.is_some();
    if recode {
        parts.extend(decoder(codec_in, codec_out));
        parts.extend(loudness(codec_in, spec));
        parts.extend(converters(codec_in, codec_out));
        parts.extend(encoder(codec_out, spec));
    }
    parts.push(payloader(codec_out, spec));
    parts
}

/// Normalises the audio's loudness and measures it, before the conversion for the output codec.
fn loudness(codec_in: Codec, spec: &StreamSpec) -> Vec<Part> {
    let mut parts = Vec::new();
    if let Some(target) = spec.loudness_target_lufs {
        parts.push(part("audioloudnorm").with("loudness-target", Setting::Double(target)));
    }
    if spec.meter {
        parts.push(part(METER_FACTORY).with("post-messages", Setting::Flag(false)));
    }
    // L16 is in network byte order, which neither accepts.
    if matches!(codec_in, Codec::L16 { .. }) && !parts.is_empty() {
        parts.insert(0, part("audioconvert"));
    }
    parts
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
        Codec::L16 { .. } => Vec::new(),
        Codec::Opus => {
            let decoder = part("opusdec").with("plc", Setting::Flag(true));
            // If one channel were requested, it would drop the right one instead of mixing both.
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

/// The conversion from one codec's raw audio to the other's.
fn converters(codec_in: Codec, codec_out: Codec) -> Vec<Part> {
    let is_g711 = |codec| matches!(codec, Codec::Pcmu | Codec::Pcma);
    let mut parts = match (codec_in, codec_out) {
        _ if is_g711(codec_in) && is_g711(codec_out) => Vec::new(),
        // opusenc and opusdec work at 8000 Hz in native byte order.
        (Codec::Opus, other) | (other, Codec::Opus) if is_g711(other) => Vec::new(),
        _ => vec![part("audioconvert"), part("audioresample")],
    };
    if let Codec::L16 { rate_hz, channels } = codec_out {
        // The payloader would accept any input.
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
            part.with("min-ptime", ptime_ns.clone())
                .with("max-ptime", ptime_ns)
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

    fn make(self) -> Result<gst::Element, BuildError> {
        let element = match self.factory {
            CONVERTER_FACTORY => make_named(self.factory, CONVERTER)?,
            METER_FACTORY => make_named(self.factory, METER)?,
            factory => make(factory)?,
        };
        for (name, value) in self.properties {
            match value {
                Setting::Uint(value) => element.set_property(name, value),
                Setting::Int(value) => element.set_property(name, value),
                Setting::Int64(value) => element.set_property(name, value),
                Setting::Double(value) => element.set_property(name, value),
                Setting::Flag(value) => element.set_property(name, value),
                Setting::Text(value) => element.set_property(name, value),
                Setting::Caps(value) => element.set_property(name, value),
                Setting::Enum(value) => element.set_property_from_str(name, &value.to_string()),
            }
        }
        Ok(element)
    }
}

/// Creates `parts`, adds them to a pipeline that may be running, and links source to sink through them.
pub(super) fn insert(
    pipeline: &gst::Pipeline,
    source: &gst::Element,
    sink: &gst::Element,
    parts: Vec<Part>,
) -> Result<(), BuildError> {
    let mut chain = Vec::with_capacity(parts.len());
    for part in parts {
        let element = part.make()?;
        pipeline.add(&element)?;
        chain.push(element);
    }
    // From the sink up, so that each element pushes to a running neighbour.
    let mut next = sink;
    for element in chain.iter().rev() {
        link(element, next)?;
        element.sync_state_with_parent()?;
        next = element;
    }
    link(source, next)
}

const METER_FACTORY: &str = "ebur128level";
const CONVERTER_FACTORY: &str = "ts-rtpg711";
