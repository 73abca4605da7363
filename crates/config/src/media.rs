//! Checks the media settings of a stream: codecs, jitter buffer, RTCP.

use std::ops::RangeInclusive;

use threadbare_process::{HAS_GSTREAMER, NO_GSTREAMER};
use threadbare_rtp::leg::Network;
use toml::Spanned;

use super::checker::Checker;
use super::raw::{RawDefaults, RawStream};
use super::record::{self, RecordSpec};
use super::{ClockSkew, Destination, Jitter, LATCHED, RecordingFormat, Rtcp, StreamSpec};
use crate::codec::{ALLOWED_CODECS, Codec, CodecIn, DYNAMIC_PAYLOAD_TYPE, PAYLOAD_TYPES};

/// The checked media settings of a range of streams. Ports are those of its first stream.
pub(super) struct Media {
    pub(super) codec_in: CodecIn,
    pub(super) payload_type_in: Option<u8>,
    pub(super) codec_out: Option<Codec>,
    pub(super) ptime_ms: Option<u32>,
    pub(super) jitter: Jitter,
    pub(super) rtcp: Rtcp,
    pub(super) cname: Option<String>,
    pub(super) latch: bool,
    pub(super) latch_window_s: Option<u32>,
    pub(super) sources: Vec<Network>,
    pub(super) dtmf_payload_type: u8,
    pub(super) payload_type: Option<u8>,
    pub(super) ssrc: Option<u32>,
    pub(super) clock_rate_hz: Option<u32>,
    pub(super) loudness_target_lufs: Option<f64>,
    pub(super) meter: bool,
    pub(super) loudness_resets: Vec<u16>,
    pub(super) pipeline: Option<String>,
    pub(super) record: Option<RecordSpec>,
}

/// Returns the value of a stream's key. If the key is absent, returns the value of `[defaults]`.
macro_rules! either {
    ($stream:expr, $defaults:expr, $key:ident) => {
        $stream.$key.as_ref().or($defaults.$key.as_ref())
    };
}

impl Checker<'_> {
    pub(super) fn media(
        &mut self,
        raw: &RawStream,
        defaults: &RawDefaults,
        destination: Option<&Destination>,
    ) -> Media {
        let codec_in = match either!(raw, defaults, codec) {
            None => CodecIn::Auto,
            Some(name) if name.get_ref().eq_ignore_ascii_case("auto") => CodecIn::Auto,
            Some(name) => self
                .codec(name, "codec", &format!("auto, {ALLOWED_CODECS}"))
                .map_or(CodecIn::Auto, CodecIn::Known),
        };
        let codec_out = either!(raw, defaults, codec_out);
        let codec_out = codec_out.and_then(|name| self.codec(name, "codec-out", ALLOWED_CODECS));
        let sent = match (codec_out, codec_in) {
            (Some(codec), _) | (None, CodecIn::Known(codec)) => Some(codec),
            (None, CodecIn::Auto) => None,
        };
        let payload_type = self.payload_type(either!(raw, defaults, payload_type), sent);
        let dtmf_payload_type = self.dtmf(raw, defaults, payload_type);
        let payload_type_in = either!(raw, defaults, payload_type_in);
        let media = Media {
            codec_in,
            payload_type_in: self.payload_type_in(payload_type_in, codec_in, dtmf_payload_type),
            codec_out,
            ptime_ms: self.ptime(either!(raw, defaults, ptime), sent),
            jitter: self.jitter(raw, defaults),
            rtcp: self.rtcp(raw, defaults, destination),
            cname: self.cname(either!(raw, defaults, cname)),
            latch: self.latch(either!(raw, defaults, latch), destination),
            latch_window_s: self.latch_window(raw, defaults),
            sources: self.sources(either!(raw, defaults, sources)),
            dtmf_payload_type,
            payload_type,
            ssrc: self
                .number(raw.ssrc.as_ref(), "ssrc", SSRC)
                .map(|ssrc| ssrc as u32),
            clock_rate_hz: self
                .number(raw.clock_rate.as_ref(), "clock-rate", CLOCK_RATE_HZ)
                .map(|rate_hz| rate_hz as u32),
            loudness_target_lufs: self.loudness_target(raw, defaults),
            meter: either!(raw, defaults, meter).is_none_or(|meter| *meter.get_ref()),
            loudness_resets: self.loudness_resets(either!(raw, defaults, loudness_reset)),
            pipeline: pipeline(self, raw.pipeline.as_ref()),
            record: record::check(self, either!(raw, defaults, record)),
        };
        // `clock-rate` is only for a stream that is forwarded unchanged. A known codec has its own clock rate, and a stream of an unknown
        // codec cannot be converted.
        let is_known = codec_in != CodecIn::Auto;
        let is_changed = media.codec_out.is_some()
            || media.ptime_ms.is_some()
            || media.payload_type.is_some()
            || media.ssrc.is_some()
            || destination == Some(&Destination::Latched)
            || !raw.fallback.is_empty()
            || media.pipeline.is_some();
        pipeline_goes_with(self, raw, defaults, &media, destination);
        if (is_known || is_changed) && !raw.is_partial && !defaults.is_partial {
            let with = if is_known {
                "a `codec` other than \"auto\": a codec has its own clock rate"
            } else {
                "a stream whose packets are changed: with `clock-rate`, packets are forwarded unchanged"
            };
            let help = "remove `clock-rate`; or set `codec = \"auto\"` and remove `codec-out`, `ptime`, `payload-type`, \
                        `ssrc` and `destination = \"latched\"`";
            self.conflict(raw.clock_rate.as_ref(), "clock-rate", with, help);
        }
        media
    }

    fn loudness_target(&mut self, raw: &RawStream, defaults: &RawDefaults) -> Option<f64> {
        let target = either!(raw, defaults, loudness_target);
        let lufs = match target?.get_ref() {
            toml::Value::Boolean(false) => return None,
            toml::Value::Integer(lufs) => *lufs as f64,
            toml::Value::Float(lufs) => *lufs,
            _ => f64::NAN,
        };
        if !LOUDNESS_TARGET_LUFS.contains(&lufs) {
            let allowed = format!(
                "a number of LUFS from {} to {}, or false (stream \"{}\")",
                LOUDNESS_TARGET_LUFS.start(),
                LOUDNESS_TARGET_LUFS.end(),
                raw.name.get_ref()
            );
            self.refuse(target, "loudness-target", &allowed);
            return None;
        }
        Some(lufs)
    }

    /// Parses times of day.
    fn loudness_resets(&mut self, raw: Option<&Spanned<Vec<String>>>) -> Vec<u16> {
        let texts = raw.map(Spanned::get_ref);
        let minutes = texts.into_iter().flatten().map(|text| minute_of_day(text));
        minutes.collect::<Option<_>>().unwrap_or_else(|| {
            let allowed = "times of day, \"00:00\" to \"23:59\", such as [\"06:00\", \"20:15\"]";
            self.refuse(raw, "loudness-reset", allowed);
            Vec::new()
        })
    }

    /// Refuses loudness settings for a stream that is forwarded unchanged, because such a stream is not decoded.
    pub(super) fn loudness_needs_audio(
        &mut self,
        raw: &RawStream,
        defaults: &RawDefaults,
        spec: &StreamSpec,
    ) {
        // If a key could not be read, it is not known whether the stream is decoded.
        if !spec.is_passthrough() || raw.is_partial || defaults.is_partial {
            return;
        }
        let codec_out = match spec.codec_out {
            Some(codec) => format!("`codec-out = \"{codec}\"`"),
            None => "no `codec-out`".to_owned(),
        };
        let with = format!(
            "`codec = \"{}\"` and {codec_out}: stream \"{}\" is forwarded without decoding",
            spec.codec_in, spec.name
        );
        let make_it_decode =
            "set a `codec-out` other than `codec`, or a `ptime`, `payload-type` or `ssrc`";
        if spec.loudness_target_lufs.is_some() {
            let help =
                format!("{make_it_decode}; or set `loudness-target = false` for this stream");
            let target = either!(raw, defaults, loudness_target);
            self.conflict(target, "loudness-target", &with, &help);
        }
        let is_metered = |meter: &&Spanned<bool>| *meter.get_ref();
        let help = format!("{make_it_decode}; or remove `meter`");
        self.conflict(raw.meter.as_ref().filter(is_metered), "meter", &with, &help);
        let help = format!("{make_it_decode}; or remove `loudness-reset`");
        self.conflict(raw.loudness_reset.as_ref(), "loudness-reset", &with, &help);
    }

    /// Refuses to record a stream that is not decoded.
    pub(super) fn recording_needs_audio(
        &mut self,
        raw: &RawStream,
        defaults: &RawDefaults,
        spec: &StreamSpec,
    ) {
        let Some(record) = &spec.record else { return };
        let key = either!(raw, defaults, record);
        let place = key.map_or(0..0, Spanned::span);
        let is_audio = record.format != RecordingFormat::Pcap;
        if is_audio && spec.codec_in == CodecIn::Auto && spec.is_passthrough() {
            let message = format!(
                "`record` cannot be combined with `codec = \"auto\"`: stream \"{}\" is forwarded without decoding",
                spec.name
            );
            let help = "name the `codec`; or record packets with `format = \"pcap\"`; or set `record = false` for this stream";
            self.problems.add(message, help, &[(place, "this value")]);
        }
    }

    /// Checks `meter = true` in `[defaults]`. It has no effect on streams that are not decoded, so at least one stream must be decoded.
    pub(super) fn meters_something(&mut self, defaults: &RawDefaults, streams: &[StreamSpec]) {
        let is_metered = |meter: &&Spanned<bool>| *meter.get_ref();
        let is_idle = !streams.is_empty() && streams.iter().all(StreamSpec::is_passthrough);
        // If there are other mistakes, `streams` is incomplete, and a missing stream might be decoded.
        if is_idle && !defaults.is_partial && self.problems.is_empty() {
            self.conflict(
                defaults.meter.as_ref().filter(is_metered),
                "meter",
                "these streams: all are forwarded without decoding",
                "set a `codec-out` other than `codec`, or a `ptime`, `payload-type` or `ssrc`; or remove `meter`",
            );
        }
    }

    fn jitter(&mut self, raw: &RawStream, defaults: &RawDefaults) -> Jitter {
        let latency = either!(raw, defaults, latency);
        let latency_ms = self.number(latency, "latency", LATENCY_MS);
        let latency_ms = latency_ms.unwrap_or(LATENCY_MS_DEFAULT) as u32;
        let adaptive = either!(raw, defaults, adaptive);
        let is_adaptive = adaptive.is_some_and(|adaptive| *adaptive.get_ref());
        if is_adaptive && latency_ms == 0 {
            let help =
                "set a `latency` above 0: the longest delay to adapt to; or remove `adaptive`";
            self.conflict(adaptive, "adaptive", "`latency = 0`", help);
        }
        let skew = either!(raw, defaults, clock_skew);
        let clock_skew = match skew.map(|skew| skew.get_ref().as_str()) {
            None | Some("window") => ClockSkew::Window,
            Some("none") => ClockSkew::None,
            Some(_) => {
                let allowed = "\"window\" (follow the sender's clock) or \"none\" (sender and gateway share a clock)";
                self.refuse(skew, "clock-skew", allowed);
                ClockSkew::Window
            }
        };
        Jitter {
            latency_ms,
            adaptive: is_adaptive,
            drop_on_latency: either!(raw, defaults, drop_on_latency)
                .is_some_and(|drop| *drop.get_ref()),
            clock_skew,
        }
    }

    fn rtcp(
        &mut self,
        raw: &RawStream,
        defaults: &RawDefaults,
        destination: Option<&Destination>,
    ) -> Rtcp {
        let switch = either!(raw, defaults, rtcp);
        let rtcp_port = raw.rtcp_port.as_ref();
        let destination_port = raw.destination_rtcp_port.as_ref();
        let listen = self.number(rtcp_port, "rtcp-port", PORT);
        let to = self.number(destination_port, "destination-rtcp-port", PORT);
        let port = |port: Option<i64>| port.and_then(|port| u16::try_from(port).ok());
        let rtcp = match switch.map(|switch| switch.get_ref()) {
            None | Some(toml::Value::Boolean(true)) => Rtcp::Ports {
                listen: port(listen),
                destination: port(to),
            },
            Some(toml::Value::Boolean(false)) => Rtcp::Off,
            Some(toml::Value::String(text)) if text == "mux" => Rtcp::Mux,
            Some(_) => {
                let allowed = "true (on the port above the RTP one), \"mux\" (on the RTP port) or false (none)";
                self.refuse(switch, "rtcp", allowed);
                Rtcp::Off
            }
        };
        if let Rtcp::Off | Rtcp::Mux = rtcp {
            let with = match rtcp {
                Rtcp::Mux => "`rtcp = \"mux\"`: RTCP uses the RTP port",
                _ => "`rtcp = false`: RTCP is off",
            };
            let help = |key| format!("remove `{key}`, or set `rtcp = true`");
            self.conflict(rtcp_port, "rtcp-port", with, &help("rtcp-port"));
            let key = "destination-rtcp-port";
            self.conflict(destination_port, key, with, &help(key));
        } else if destination == Some(&Destination::Latched) {
            let with = format!(
                "`destination = \"{LATCHED}\"`: RTCP goes to the address that the peer's RTCP comes from"
            );
            let help = "remove `destination-rtcp-port`, or name a destination";
            self.conflict(destination_port, "destination-rtcp-port", &with, help);
        }
        rtcp
    }

    fn cname(&mut self, raw: Option<&Spanned<String>>) -> Option<String> {
        let cname = raw?.get_ref();
        if cname.is_empty() || cname.len() > CNAME_BYTES_MAX {
            let allowed = format!("1 to {CNAME_BYTES_MAX} bytes of text");
            self.refuse(raw, "cname", &allowed);
        }
        Some(cname.clone())
    }

    fn latch(&mut self, raw: Option<&Spanned<bool>>, destination: Option<&Destination>) -> bool {
        let latch = raw.is_none_or(|latch| *latch.get_ref());
        if !latch && destination == Some(&Destination::Latched) {
            let with =
                format!("`destination = \"{LATCHED}\"`, which needs to learn the peer's address");
            self.conflict(raw, "latch", &with, "remove `latch`, or name a destination");
        }
        latch
    }

    /// Checks `latch-window`.
    fn latch_window(&mut self, raw: &RawStream, defaults: &RawDefaults) -> Option<u32> {
        let window = either!(raw, defaults, latch_window);
        let learns = either!(raw, defaults, latch).is_none_or(|latch| *latch.get_ref());
        if !learns {
            let help = "remove one of the two keys: without `latch`, no address is fixed";
            self.conflict(window, "latch-window", "`latch = false`", help);
        }
        self.number(window, "latch-window", LATCH_WINDOW_S)
            .map(|seconds| seconds as u32)
    }

    /// Checks `sources`.
    fn sources(&mut self, raw: Option<&Spanned<Vec<String>>>) -> Vec<Network> {
        let Some(texts) = raw.map(Spanned::get_ref) else {
            return Vec::new();
        };
        let parsed: Result<Vec<Network>, _> = texts.iter().map(|text| text.parse()).collect();
        match parsed {
            Ok(networks) if !networks.is_empty() => networks,
            Ok(_) => {
                self.refuse(
                    raw,
                    "sources",
                    "at least one network; without the key, any host may send",
                );
                Vec::new()
            }
            Err(error) => {
                self.refuse(raw, "sources", &format!("networks and addresses; {error}"));
                Vec::new()
            }
        }
    }

    fn dtmf(&mut self, raw: &RawStream, defaults: &RawDefaults, sent: Option<u8>) -> u8 {
        let dtmf = either!(raw, defaults, dtmf_payload_type);
        let range = i64::from(DYNAMIC_PAYLOAD_TYPE)..=i64::from(*DYNAMIC_PAYLOAD_TYPES.end());
        let value = self.number(dtmf, "dtmf-payload-type", range);
        let value = value.unwrap_or(DTMF_DEFAULT) as u8;
        if sent == Some(value) {
            let with = format!(
                "`dtmf-payload-type = {value}`{}",
                if dtmf.is_none() { ", the default" } else { "" }
            );
            let payload_type = either!(raw, defaults, payload_type);
            let help = "set another number for one of the two keys";
            self.conflict(payload_type, "payload-type", &with, help);
        }
        value
    }

    /// Checks `payload-type-in`.
    pub(super) fn payload_type_in(
        &mut self,
        raw: Option<&Spanned<i64>>,
        codec_in: CodecIn,
        dtmf: u8,
    ) -> Option<u8> {
        let value = u8::try_from(*raw?.get_ref()).ok();
        if codec_in == CodecIn::Auto {
            let with = "`codec = \"auto\"`: the payload type selects the codec";
            let help = "set a `codec`, or remove `payload-type-in`";
            self.conflict(raw, "payload-type-in", with, help);
            return None;
        }
        if value == Some(dtmf) {
            let with = format!("`dtmf-payload-type = {dtmf}`");
            let help = "set another number for one of the two keys";
            self.conflict(raw, "payload-type-in", &with, help);
            return None;
        }
        let allowed = if value.is_none_or(|value| value >= PAYLOAD_TYPES) {
            "a number from 0 to 127".to_owned()
        } else if RTCP_CONFLICTS.contains(&value.unwrap_or(0)) {
            "not 64 to 95, which RTCP on the same port uses (RFC 5761)".to_owned()
        } else {
            return value;
        };
        self.refuse(raw, "payload-type-in", &allowed);
        None
    }

    pub(super) fn codec(
        &mut self,
        raw: &Spanned<String>,
        key: &str,
        allowed: &str,
    ) -> Option<Codec> {
        let codec = raw.get_ref().parse().ok();
        if codec.is_none() {
            self.refuse(Some(raw), key, allowed);
        }
        codec
    }

    fn ptime(&mut self, raw: Option<&Spanned<i64>>, sent: Option<Codec>) -> Option<u32> {
        let raw = raw?;
        let codec = sent.unwrap_or(Codec::Pcmu);
        let ptime_ms = u32::try_from(*raw.get_ref())
            .ok()
            .filter(|ms| codec.ptimes_ms().contains(ms));
        let Some(ptime_ms) = ptime_ms else {
            let allowed = codec
                .ptimes_ms()
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            self.refuse(
                Some(raw),
                "ptime",
                &format!("one of {allowed} (milliseconds, for {codec})"),
            );
            return None;
        };
        let bytes = codec.payload_bytes(ptime_ms).unwrap_or(0);
        if bytes > PAYLOAD_BYTES_MAX {
            let allowed = format!(
                "so short that a packet of {codec} has at most {PAYLOAD_BYTES_MAX} bytes; this has {bytes}"
            );
            self.refuse(Some(raw), "ptime", &allowed);
        }
        Some(ptime_ms)
    }

    fn payload_type(&mut self, raw: Option<&Spanned<i64>>, sent: Option<Codec>) -> Option<u8> {
        let raw = raw?;
        let own = sent.map(Codec::default_payload_type);
        let value = u8::try_from(*raw.get_ref()).ok();
        let allowed =
            value.filter(|value| DYNAMIC_PAYLOAD_TYPES.contains(value) || own == Some(*value));
        if allowed.is_none() {
            let own = match (sent, own) {
                (Some(codec), Some(own)) if own < DYNAMIC_PAYLOAD_TYPE => {
                    format!(", or {own} for {codec}")
                }
                _ => String::new(),
            };
            self.refuse(
                Some(raw),
                "payload-type",
                &format!("a dynamic type from 96 to 127{own}"),
            );
        }
        allowed
    }
}

/// Checks `pipeline`. If the configuration is checked for a machine, GStreamer checks the elements.
fn pipeline(checker: &mut Checker<'_>, raw: Option<&Spanned<String>>) -> Option<String> {
    let text = raw?.get_ref();
    let refusal = match checker.machine {
        _ if !HAS_GSTREAMER => Some(format!("none: {NO_GSTREAMER}")),
        _ if text.trim().is_empty() => Some("elements as for gst-launch-1.0".to_owned()),
        Some(machine) => machine.check_pipeline(text).err(),
        None => None,
    };
    if let Some(refusal) = refusal {
        let allowed = if HAS_GSTREAMER {
            format!("elements that GStreamer has, with one sink pad and one source pad; {refusal}")
        } else {
            refusal
        };
        checker.refuse(raw, "pipeline", &allowed);
    }
    Some(text.clone())
}

/// Refuses a `pipeline` for a stream that is not decoded. Also refuses settings that elements of the `pipeline` would replace.
fn pipeline_goes_with(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    defaults: &RawDefaults,
    media: &Media,
    destination: Option<&Destination>,
) {
    let key = raw.pipeline.as_ref();
    if destination == Some(&Destination::Nobody) {
        let help = "add a `destination`, or remove `pipeline`";
        checker.conflict(key, "pipeline", "a stream without `destination`", help);
    } else if (media.codec_in, media.codec_out) == (CodecIn::Auto, None)
        && !raw.is_partial
        && !defaults.is_partial
    {
        let help = "the elements get audio with the sent codec's rate and channels: set `codec-out`, or `codec`";
        let with = "`codec = \"auto\"` and no `codec-out`";
        checker.conflict(key, "pipeline", with, help);
    }
    if media.loudness_target_lufs.is_some() {
        let help = "set `loudness-target = false`, and add `audioloudnorm loudness-target=-23` to the `pipeline`";
        checker.conflict(key, "pipeline", "`loudness-target`", help);
    }
}

/// Parses a time of day. Returns the minutes after midnight, for example 390 for "06:30".
fn minute_of_day(text: &str) -> Option<u16> {
    let two_digits = |text: &str, below: u16| {
        let is_plain = text.len() == 2 && text.bytes().all(|one| one.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_plain);
        number.filter(|number: &u16| *number < below)
    };
    let (hour, minute) = text.split_once(':')?;
    Some(two_digits(hour, 24)? * 60 + two_digits(minute, 60)?)
}

/// Default latency. It is the duration of two packets of 20 ms, and it also covers the jitter that slices add.
const LATENCY_MS_DEFAULT: i64 = 40;
/// Allowed latencies. The jitter buffer has room for 256 packets, which usually have 20 ms each.
const LATENCY_MS: RangeInclusive<i64> = 0..=5000;
const PORT: RangeInclusive<i64> = 1..=65535;
/// Maximum length of the CNAME. The length of an RTCP item is stored in one byte (RFC 3550, section 6.5).
const CNAME_BYTES_MAX: usize = 255;
/// Default payload type of telephone events. It is common, although no payload type is assigned to them.
const DTMF_DEFAULT: i64 = 101;
/// Dynamic payload types (RFC 3551, section 6, table 5).
const DYNAMIC_PAYLOAD_TYPES: RangeInclusive<u8> = DYNAMIC_PAYLOAD_TYPE..=127;
/// Payload types that RTCP on the same port uses (RFC 5761, section 4).
const RTCP_CONFLICTS: RangeInclusive<u8> = 64..=95;
const CLOCK_RATE_HZ: RangeInclusive<i64> = 1..=threadbare_rtp::jitter::CLOCK_RATE_HZ_MAX as i64;
/// Allowed target loudness. The limits are those of `audioloudnorm`.
const LOUDNESS_TARGET_LUFS: RangeInclusive<f64> = -70.0..=-5.0;
/// Allowed values of `latch-window`. A call is set up in less time than the maximum.
const LATCH_WINDOW_S: RangeInclusive<i64> = 1..=3600;
const SSRC: RangeInclusive<i64> = 0..=u32::MAX as i64;
/// Maximum payload of a packet. It is the default MTU of GStreamer's payloaders, 1400, without the RTP header. Larger packets would be
/// split.
const PAYLOAD_BYTES_MAX: u32 = 1400 - 12;
