//! From the file as written to a [`Config`], or to a list of everything that is wrong with it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;

use super::problem::{ConfigError, Problems};
use super::raw::{RawConfig, RawContexts, RawDefaults, RawRestart, RawStream};
use super::{Config, Contexts, Destination, Restart, StreamSpec};
use crate::codec::{ALLOWED_CODECS, Codec, CodecIn, DYNAMIC_PAYLOAD_TYPE};

pub(super) fn check(path: &str, text: &str) -> Result<Config, ConfigError> {
    let mut checker = Checker {
        problems: Problems::new(path, text),
        seen: Seen::default(),
    };
    let raw = match toml::from_str::<RawConfig>(text) {
        Ok(raw) => raw,
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            checker.problems.add(error.message(), "", &[(span, "here")]);
            return checker
                .problems
                .into_result(())
                .map(|()| unreachable!("a problem was added"));
        }
    };
    let contexts = checker.contexts(&raw.contexts);
    let restart = checker.restart(&raw.restart);
    let mut streams = Vec::new();
    for stream in &raw.stream {
        checker.stream(stream, &raw.defaults, &mut streams);
    }
    if raw.stream.is_empty() {
        let end = text.len();
        checker.problems.add(
            "there is no [[stream]]",
            "add at least one: [[stream]] with name, listen and destination",
            &[(end..end, "the file ends without one")],
        );
    }
    checker.problems.into_result(Config {
        contexts,
        restart,
        streams,
    })
}

struct Checker {
    problems: Problems,
    seen: Seen,
}

/// What must not come twice, with the place where it came first.
#[derive(Default)]
struct Seen {
    names: HashMap<String, Range<usize>>,
    ports: HashMap<u16, Vec<(IpAddr, Range<usize>)>>,
    streams: usize,
}

/// A range of streams, counted out from its first.
struct Series {
    count: u16,
    step: u16,
    destination_step: u16,
}

impl Checker {
    fn contexts(&mut self, raw: &RawContexts) -> Contexts {
        let prefix = raw
            .prefix
            .as_ref()
            .map_or("gateway", |prefix| prefix.get_ref());
        if prefix.is_empty() {
            self.refuse(raw.prefix.as_ref(), "prefix", "a name that is not empty");
        }
        let count = match raw.count.as_ref().map(|count| count.get_ref()) {
            None => 1,
            Some(toml::Value::String(text)) if text == "auto" => cores(),
            Some(toml::Value::Integer(count)) if CONTEXTS.contains(count) => *count as u32,
            Some(_) => {
                let allowed = format!(
                    "\"auto\" (one per core) or a number from {}",
                    shown(&CONTEXTS)
                );
                self.refuse(raw.count.as_ref(), "count", &allowed);
                1
            }
        };
        let wait_ms = self
            .number(raw.wait.as_ref(), "wait", WAIT_MS)
            .unwrap_or(20) as u32;
        Contexts {
            prefix: prefix.to_owned(),
            count,
            wait_ms,
        }
    }

    fn restart(&mut self, raw: &RawRestart) -> Restart {
        let default = Restart::default();
        let millis = |value: Option<i64>, default: Duration| {
            value.map_or(default, |ms| Duration::from_millis(ms.unsigned_abs()))
        };
        let first = millis(
            self.number(raw.first.as_ref(), "first", RESTART_MS),
            default.first,
        );
        let max = millis(
            self.number(raw.max.as_ref(), "max", RESTART_MS),
            default.max,
        );
        if let Some(key) = raw.max.as_ref().filter(|_| max < first) {
            let allowed = format!("at least `first`, which is {} ms", first.as_millis());
            self.refuse(Some(key), "max", &allowed);
        }
        Restart {
            first,
            max: max.max(first),
        }
    }

    fn stream(
        &mut self,
        raw: &Spanned<RawStream>,
        defaults: &RawDefaults,
        streams: &mut Vec<StreamSpec>,
    ) {
        let place = raw.span();
        let raw = raw.get_ref();
        let series = self.series(raw);
        let listen = self.listen(&raw.listen);
        let destination = self.destination(&raw.destination);
        let first = self.media(raw, defaults);
        if raw.name.get_ref().is_empty() {
            self.refuse(Some(&raw.name), "name", "a name that is not empty");
        }
        let (Some(series), Some(listen), Some(destination)) = (series, listen, destination) else {
            return;
        };
        let fits = last_port(listen.port(), series.count, series.step)
            && last_port(destination.port, series.count, series.destination_step);
        if !fits {
            self.problems.add(
                format!("a range of {} streams runs past port 65535", series.count),
                "lower `count`, `step`, `destination-step` or the first port",
                &[(
                    raw.count.as_ref().map_or(place, |count| count.span()),
                    "from here on",
                )],
            );
            return;
        }
        self.seen.streams += usize::from(series.count);
        if self.seen.streams > STREAMS_MAX {
            self.problems.add(
                format!("more than {STREAMS_MAX} streams"),
                "one process has no more ports than that",
                &[(place, "with this one")],
            );
            return;
        }
        for index in 0..series.count {
            let spec = nth(raw, &first, &series, listen, &destination, index);
            if !self.is_new(&spec, raw) {
                return;
            }
            streams.push(spec);
        }
    }

    fn series(&mut self, raw: &RawStream) -> Option<Series> {
        let count = self.number(raw.count.as_ref(), "count", COUNT);
        let step = self.number(raw.step.as_ref(), "step", STEP);
        let destination_step = self.number(
            raw.destination_step.as_ref(),
            "destination-step",
            DESTINATION_STEP,
        );
        if raw.count.is_none() {
            for (key, value) in [
                ("step", &raw.step),
                ("destination-step", &raw.destination_step),
            ] {
                if let Some(value) = value {
                    self.problems.add(
                        format!("`{key}` without `count`"),
                        "add `count` to make this stream a range, or remove the key",
                        &[(value.span(), "this stream is not a range")],
                    );
                }
            }
        }
        let step = step.unwrap_or(2);
        Some(Series {
            count: u16::try_from(count.unwrap_or(1)).ok()?,
            step: u16::try_from(step).ok()?,
            destination_step: u16::try_from(destination_step.unwrap_or(step)).ok()?,
        })
    }

    fn listen(&mut self, raw: &Spanned<String>) -> Option<SocketAddr> {
        match raw.get_ref().parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Some(address),
            _ => {
                self.refuse(
                    Some(raw),
                    "listen",
                    "ADDRESS:PORT with a port from 1 to 65535, for example \"0.0.0.0:5004\" or \"[::]:5004\"",
                );
                None
            }
        }
    }

    fn destination(&mut self, raw: &Spanned<String>) -> Option<Destination> {
        let parsed = parse_destination(raw.get_ref());
        if parsed.is_none() {
            self.refuse(
                Some(raw),
                "destination",
                "HOST:PORT with a port from 1 to 65535, for example \"192.0.2.7:6000\" or \"[2001:db8::7]:6000\"",
            );
        }
        parsed
    }

    /// Everything about a stream that is the same for a whole range; name and addresses are left open.
    fn media(&mut self, raw: &RawStream, defaults: &RawDefaults) -> Media {
        let codec_in = match raw.codec.as_ref().or(defaults.codec.as_ref()) {
            None => CodecIn::Auto,
            Some(name) if name.get_ref().eq_ignore_ascii_case("auto") => CodecIn::Auto,
            Some(name) => self
                .codec(name, "codec", &format!("auto, {ALLOWED_CODECS}"))
                .map_or(CodecIn::Auto, CodecIn::Known),
        };
        let codec_out = raw.codec_out.as_ref().or(defaults.codec_out.as_ref());
        let codec_out = codec_out.and_then(|name| self.codec(name, "codec-out", ALLOWED_CODECS));
        let sent = match (codec_out, codec_in) {
            (Some(codec), _) | (None, CodecIn::Known(codec)) => Some(codec),
            (None, CodecIn::Auto) => None,
        };
        let latency = raw.latency.as_ref().or(defaults.latency.as_ref());
        let payload_type = raw.payload_type.as_ref().or(defaults.payload_type.as_ref());
        Media {
            codec_in,
            codec_out,
            ptime_ms: self.ptime(raw.ptime.as_ref().or(defaults.ptime.as_ref()), sent),
            latency_ms: self.number(latency, "latency", LATENCY_MS).unwrap_or(0) as u32,
            payload_type: self.payload_type(payload_type, sent),
            ssrc: self
                .number(raw.ssrc.as_ref(), "ssrc", SSRC)
                .map(|ssrc| ssrc as u32),
        }
    }

    fn codec(&mut self, raw: &Spanned<String>, key: &str, allowed: &str) -> Option<Codec> {
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

    /// Refuses a name or a listening port that another stream already has.
    fn is_new(&mut self, spec: &StreamSpec, raw: &RawStream) -> bool {
        if let Some(first) = self.seen.names.insert(spec.name.clone(), raw.name.span()) {
            self.problems.add(
                format!("`name` \"{}\" is taken", spec.name),
                "every stream needs a name of its own",
                &[(first, "first here"), (raw.name.span(), "and again here")],
            );
            return false;
        }
        let (ip, port) = (spec.listen.ip(), spec.listen.port());
        let users = self.seen.ports.entry(port).or_default();
        if let Some((_, first)) = users.iter().find(|(other, _)| overlap(*other, ip)) {
            self.problems.add(
                format!(
                    "`listen` port {port} is taken: stream \"{}\" cannot have it too",
                    spec.name
                ),
                "every stream needs a port of its own; a range takes `count` ports, `step` apart",
                &[
                    (first.clone(), "first here"),
                    (raw.listen.span(), "and again here"),
                ],
            );
            return false;
        }
        users.push((ip, raw.listen.span()));
        true
    }

    fn number(
        &mut self,
        raw: Option<&Spanned<i64>>,
        key: &str,
        allowed: RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = raw?;
        if allowed.contains(value.get_ref()) {
            return Some(*value.get_ref());
        }
        self.refuse(raw, key, &format!("a number from {}", shown(&allowed)));
        None
    }

    fn refuse<T: Shown>(&mut self, raw: Option<&Spanned<T>>, key: &str, allowed: &str) {
        let Some(raw) = raw else { return };
        let value = raw.get_ref().shown();
        self.problems.add(
            format!("`{key}` cannot be {value}"),
            &format!("allowed for `{key}`: {allowed}"),
            &[(raw.span(), "this value")],
        );
    }
}

struct Media {
    codec_in: CodecIn,
    codec_out: Option<Codec>,
    ptime_ms: Option<u32>,
    latency_ms: u32,
    payload_type: Option<u8>,
    ssrc: Option<u32>,
}

fn nth(
    raw: &RawStream,
    media: &Media,
    series: &Series,
    listen: SocketAddr,
    destination: &Destination,
    index: u16,
) -> StreamSpec {
    let name = match &raw.count {
        Some(_) => format!("{}-{index}", raw.name.get_ref()),
        None => raw.name.get_ref().clone(),
    };
    StreamSpec {
        name,
        listen: SocketAddr::new(listen.ip(), listen.port() + index * series.step),
        codec_in: media.codec_in,
        codec_out: media.codec_out,
        destination: Destination {
            host: destination.host.clone(),
            port: destination.port + index * series.destination_step,
        },
        ptime_ms: media.ptime_ms,
        latency_ms: media.latency_ms,
        payload_type: media.payload_type,
        ssrc: media.ssrc.map(|ssrc| ssrc.wrapping_add(u32::from(index))),
    }
}

/// Whether the last of `count` ports, `step` apart, exists.
fn last_port(first: u16, count: u16, step: u16) -> bool {
    u32::from(first) + u32::from(count.saturating_sub(1)) * u32::from(step) <= u32::from(u16::MAX)
}

/// Whether both cannot be bound to the same port. `::` takes IPv4 along on Linux.
fn overlap(a: IpAddr, b: IpAddr) -> bool {
    let everything = |ip: IpAddr| ip.is_ipv6() && ip.is_unspecified();
    a == b
        || everything(a)
        || everything(b)
        || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
}

fn parse_destination(text: &str) -> Option<Destination> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed
            .strip_suffix(']')
            .filter(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())?,
        None => host,
    };
    let bare_ipv6 = host.contains(':') && !text.starts_with('[');
    // A comma would end this client in the sink's list of clients.
    let odd = host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == ',' || c == '/');
    (!bare_ipv6 && !odd).then(|| Destination {
        host: host.to_owned(),
        port,
    })
}

fn cores() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |n| n.get() as u32)
        .min(*CONTEXTS.end() as u32)
}

fn shown(range: &RangeInclusive<i64>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// How a value from the file is repeated in a message.
trait Shown {
    fn shown(&self) -> String;
}

impl Shown for String {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for toml::Value {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// A context is a thread; more than this many only fight for the cores.
const CONTEXTS: RangeInclusive<i64> = 1..=256;
/// The range of `context-wait`, in milliseconds.
const WAIT_MS: RangeInclusive<i64> = 0..=1000;
const RESTART_MS: RangeInclusive<i64> = 1..=3_600_000;
const COUNT: RangeInclusive<i64> = 1..=65535;
const STEP: RangeInclusive<i64> = 1..=65535;
/// 0: the whole range is sent to one port, told apart by SSRC.
const DESTINATION_STEP: RangeInclusive<i64> = 0..=65535;
const LATENCY_MS: RangeInclusive<i64> = 0..=10_000;
/// RFC 3551, section 6, table 5.
const DYNAMIC_PAYLOAD_TYPES: RangeInclusive<u8> = DYNAMIC_PAYLOAD_TYPE..=127;
const SSRC: RangeInclusive<i64> = 0..=u32::MAX as i64;
/// One per port.
const STREAMS_MAX: usize = 65535;
/// The payloaders' default MTU of 1400 less the RTP header; a longer packet would be split.
const PAYLOAD_BYTES_MAX: u32 = 1400 - 12;
