//! Checks a parsed file. Returns a [`Config`], or a list of all mistakes.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;

use super::checker::{Checker, Seen, Taken, Use, range_text};
use super::machine::Machine;
use super::media::Media;
use super::problem::{ConfigError, Problems};
use super::raw::{RawConfig, RawContexts, RawDefaults, RawRestart, RawStream};
use super::{
    Config, Contexts, Destination, FallbackSpec, InputSpec, LATCHED, Placement, Restart, Rtcp,
    SrtpSpec, StreamSpec,
};
use super::{alarms, cluster, fallback, route, srtp, store, tables};

pub(super) fn check(
    path: &str,
    text: &str,
    machine: Option<&dyn Machine>,
) -> Result<Config, ConfigError> {
    let mut checker = Checker {
        problems: Problems::new(path, text),
        seen: Seen::default(),
        machine,
        store: None,
        is_shared: false,
    };
    let raw = RawConfig::read(text, &mut checker.problems);
    checker.is_shared = raw.cluster.is_some();
    checker.store = raw
        .store
        .as_ref()
        .and_then(|raw| store::check(&mut checker, raw));
    let contexts = checker.contexts(&raw.contexts);
    let cluster = raw
        .cluster
        .as_ref()
        .map(|raw| cluster::check(&mut checker, raw));
    // Even if [cluster] has mistakes, the file has a cluster, so keys of streams about the cluster are not refused.
    let on_isolation = cluster.as_ref().map(|cluster| {
        cluster
            .as_ref()
            .map(|cluster| cluster.on_isolation)
            .unwrap_or_default()
    });
    let cluster = cluster.flatten();
    let restart = checker.restart(&raw.restart);
    let positions = tables::kept(&mut checker, raw.restart.state.as_ref(), "state", "file");
    let mut streams = Vec::new();
    for stream in &raw.stream {
        let first = streams.len();
        checker.stream(stream, &raw.defaults, contexts.wait_ms, &mut streams);
        let placement = cluster::placement(&mut checker, stream.get_ref(), on_isolation);
        for spec in &mut streams[first..] {
            spec.placement = placement.clone();
        }
    }
    route::runs_in_no_circle(&mut checker);
    checker.meters_something(&raw.defaults, &streams);
    let alarms = alarms::check(&mut checker, &raw.alarms);
    let history = tables::kept(&mut checker, raw.history.dir.as_ref(), "dir", "folder");
    let moved = cluster.as_ref().map(|one| one.service_addresses.clone());
    let moved = moved.unwrap_or_default();
    let serving = raw
        .serving
        .as_ref()
        .map(|raw| tables::serving(&mut checker, raw, moved));
    if raw.stream.is_empty() && serving.is_none() && raw.cluster.is_none() {
        checker.has_nothing_to_do(text.len());
    }
    let store = checker.store.take();
    checker.problems.into_result(Config {
        contexts,
        restart,
        positions,
        streams,
        alarms,
        history,
        store,
        cluster,
        serving,
    })
}

/// The number of streams in a range, and the distances of their ports.
struct Series {
    count: u16,
    step: u16,
    destination_step: u16,
}

impl Checker<'_> {
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
                    range_text(&CONTEXTS)
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
            rebalance: raw.rebalance.as_ref().is_none_or(|raw| *raw.get_ref()),
        }
    }

    fn has_nothing_to_do(&mut self, end: usize) {
        self.problems.add_missing(
            "the file has neither [[stream]] nor [ng], so there is nothing to do",
            "add a [[stream]] with name and listen, or [ng] for calls of a SIP proxy",
            end..end,
        );
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
            let with = format!("`first = {}`", first.as_millis());
            let help = "raise `max` to at least `first`, or lower `first` (both in milliseconds)";
            self.conflict(Some(key), "max", &with, help);
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
        wait_ms: u32,
        streams: &mut Vec<StreamSpec>,
    ) {
        let place = raw.span();
        let raw = raw.get_ref();
        let series = self.series(raw);
        let listen = self.listen(&raw.listen);
        let destination = match &raw.destination {
            Some(destination) => self.destination(destination),
            None => Some(Destination::Nobody),
        };
        let first = self.media(raw, defaults, destination.as_ref());
        let srtp = srtp::check(self, raw, destination.as_ref());
        let inputs = fallback::Inputs {
            media: &first,
            srtp: &srtp,
            destination: destination.as_ref(),
            wait_ms,
        };
        let fallbacks = fallback::check(self, raw, defaults, &inputs);
        if raw.name.get_ref().is_empty() {
            self.refuse(Some(&raw.name), "name", "a name that is not empty");
        }
        let (Some(series), Some(listen), Some(destination)) = (series, listen, destination) else {
            return;
        };
        if !self.rtcp_in_step(raw, &first, &series) {
            return;
        }
        let is_in_range = fits(&first, &series, listen, &destination)
            && fallbacks
                .iter()
                .all(|fallback| fallback_fits(fallback, &first, &series));
        if !is_in_range {
            return self.runs_past_the_ports(raw, &series, place);
        }
        if !self.has_room(series.count, place) {
            return;
        }
        let nth = |index| StreamSpec {
            fallbacks: fallbacks
                .iter()
                .map(|fallback| fallback.ahead(index * series.step))
                .collect(),
            srtp: srtp.clone(),
            ..nth(raw, &first, &series, listen, &destination, index)
        };
        let spec = nth(0);
        self.loudness_needs_audio(raw, defaults, &spec);
        self.recording_needs_audio(raw, defaults, &spec);
        route::machine_has(self, &raw.listen, spec.listen);
        let to = route::address_to(self, raw, &spec);
        for index in 0..series.count {
            let spec = nth(index);
            if !route::can_reach(self, raw, &spec, to) {
                return;
            }
            if !self.is_new(&spec, raw) || !fallback::are_new(self, &spec, raw) {
                return;
            }
            streams.push(spec);
        }
    }

    /// Refuses more streams than a process can have. `count`: the number of streams that are added.
    fn has_room(&mut self, count: u16, place: Range<usize>) -> bool {
        self.seen.streams += usize::from(count);
        let has_room = self.seen.streams <= STREAMS_MAX;
        if !has_room {
            self.problems.add(
                format!("more than {STREAMS_MAX} streams"),
                "a process cannot use more ports",
                &[(place, "this stream exceeds the limit")],
            );
        }
        has_room
    }

    fn runs_past_the_ports(&mut self, raw: &RawStream, series: &Series, place: Range<usize>) {
        self.problems.add(
            match series.count {
                1 => "RTCP would need port 65536".to_owned(),
                count => format!("a range of {count} streams runs past port 65535"),
            },
            "lower `count`, `step`, `destination-step` or the first port; RTCP needs the port above the RTP one, too",
            &[(
                raw.count.as_ref().map_or(place, |count| count.span()),
                "from here on",
            )],
        );
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

    /// Reports a common mistake in a range of ports, which is that the RTCP port of one stream is the RTP port of the next one. Returns
    /// `false` if the range has this mistake.
    fn rtcp_in_step(&mut self, raw: &RawStream, media: &Media, series: &Series) -> bool {
        let is_next = matches!(media.rtcp, Rtcp::Ports { listen: None, .. });
        let Some(step) = raw.step.as_ref() else {
            return true;
        };
        let is_free = !is_next || series.step > 1 || series.count == 1;
        if !is_free {
            self.problems.add(
                "`step` cannot be 1: each stream's RTCP takes the port above its RTP",
                "use `step = 2`, or `rtcp = \"mux\"` for RTCP on the RTP port, or `rtcp = false` for none",
                &[(step.span(), "this value")],
            );
        }
        is_free
    }

    pub(super) fn listen(&mut self, raw: &Spanned<String>) -> Option<SocketAddr> {
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
                "HOST:PORT with a port from 1 to 65535, for example \"192.0.2.7:6000\" or \"[2001:db8::7]:6000\"; \
                 or \"latched\" for the address of the stream's sender",
            );
        }
        parsed
    }

    /// Refuses a name or a listening port that another stream already has. Returns `true` if nothing was refused.
    fn is_new(&mut self, spec: &StreamSpec, raw: &RawStream) -> bool {
        if let Some(first) = self.seen.names.insert(spec.name.clone(), raw.name.span()) {
            self.problems.add(
                format!("`name` \"{}\" is taken", spec.name),
                "every stream needs a different name",
                &[(first, "first here"), (raw.name.span(), "and again here")],
            );
            return false;
        }
        let place = raw.rtcp_port.as_ref().map(Spanned::span);
        let rtcp_place = place.unwrap_or_else(|| raw.listen.span());
        let listen = spec.listen;
        let rtcp = spec.rtcp_port();
        let rtcp = rtcp.map(|port| SocketAddr::new(listen.ip(), port));
        self.take_port(spec, listen, Use::Rtp, raw.listen.span())
            && rtcp.is_none_or(|rtcp| self.take_port(spec, rtcp, Use::Rtcp, rtcp_place))
    }

    /// Refuses a port that has another use. Returns `true` if the port was free.
    pub(super) fn take_port(
        &mut self,
        spec: &StreamSpec,
        address: SocketAddr,
        by: Use,
        place: Range<usize>,
    ) -> bool {
        let (ip, port) = (address.ip(), address.port());
        let users = self.seen.ports.entry(port).or_default();
        if let Some(taken) = users.iter().find(|taken| overlap(taken.ip, ip)) {
            let is_rtcp = by == Use::Rtcp || taken.by == Use::Rtcp;
            let (key, use_) = match by {
                Use::Rtp => ("listen", ""),
                Use::Rtcp => ("rtcp-port", " for its RTCP"),
            };
            let help = if is_rtcp {
                "RTCP takes the port above the RTP one: leave it free (`step = 2`), name another with `rtcp-port`, \
                 or have RTCP on the RTP port (`rtcp = \"mux\"`) or none (`rtcp = false`)"
            } else {
                "every stream needs a different port; a range takes `count` ports, `step` apart"
            };
            let places = [
                (taken.place.clone(), "first here"),
                (place, "and again here"),
            ];
            self.problems.add(
                format!(
                    "`{key}` port {port} is taken: stream \"{}\" cannot use it too{use_}",
                    spec.name
                ),
                help,
                &places,
            );
            return false;
        }
        users.push(Taken { ip, by, place });
        true
    }
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
    let (ahead, destination_ahead) = (index * series.step, index * series.destination_step);
    StreamSpec {
        name,
        listen: SocketAddr::new(listen.ip(), listen.port() + ahead),
        codec_in: media.codec_in,
        payload_type_in: media.payload_type_in,
        codec_out: media.codec_out,
        destination: match destination {
            Destination::Fixed { host, port } => Destination::Fixed {
                host: host.clone(),
                port: port + destination_ahead,
            },
            other => other.clone(),
        },
        ptime_ms: media.ptime_ms,
        jitter: media.jitter,
        rtcp: match media.rtcp {
            Rtcp::Ports {
                listen,
                destination,
            } => Rtcp::Ports {
                listen: listen.map(|port| port + ahead),
                destination: destination.map(|port| port + destination_ahead),
            },
            other => other,
        },
        cname: media.cname.clone(),
        latch: media.latch,
        latch_window_s: media.latch_window_s,
        sources: media.sources.clone(),
        dtmf_payload_type: media.dtmf_payload_type,
        payload_type: media.payload_type,
        clock_rate_hz: media.clock_rate_hz,
        loudness_target_lufs: media.loudness_target_lufs,
        meter: media.meter,
        loudness_resets: media.loudness_resets.clone(),
        fallbacks: Vec::new(),
        srtp: SrtpSpec::default(),
        placement: Placement::default(),
        pipeline: media.pipeline.clone(),
        record: media.record.clone(),
        ssrc: media.ssrc.map(|ssrc| ssrc.wrapping_add(u32::from(index))),
    }
}

/// Whether all ports of a range are valid, including those of RTCP.
fn fits(media: &Media, series: &Series, listen: SocketAddr, destination: &Destination) -> bool {
    let Series {
        count,
        step,
        destination_step,
    } = *series;
    let own = last_port(listen.port(), count, step);
    let theirs = match destination {
        Destination::Fixed { port, .. } => last_port(*port, count, destination_step),
        Destination::Latched | Destination::Nobody => Some(0),
    };
    let (Some(own), Some(theirs)) = (own, theirs) else {
        return false;
    };
    let rtcp_fits = |named: Option<u16>, last: u16, step: u16| match named {
        Some(port) => last_port(port, count, step).is_some(),
        None => last < u16::MAX,
    };
    match media.rtcp {
        Rtcp::Off | Rtcp::Mux => true,
        Rtcp::Ports {
            listen,
            destination,
        } => rtcp_fits(listen, own, step) && rtcp_fits(destination, theirs, destination_step),
    }
}

/// Whether all ports of a fallback are valid in the whole range.
fn fallback_fits(fallback: &FallbackSpec, media: &Media, series: &Series) -> bool {
    let InputSpec::Rtp { listen, .. } = &fallback.input else {
        return true;
    };
    let last = last_port(listen.port(), series.count, series.step);
    last.is_some_and(|last| !matches!(media.rtcp, Rtcp::Ports { .. }) || last < u16::MAX)
}

/// Returns the last of `count` ports that are `step` apart. `None`: this port would be above 65535.
fn last_port(first: u16, count: u16, step: u16) -> Option<u16> {
    let last = u32::from(first) + u32::from(count.saturating_sub(1)) * u32::from(step);
    u16::try_from(last).ok()
}

/// Whether sockets on these two addresses cannot have the same port. In Linux, a socket on `::` also receives IPv4.
fn overlap(a: IpAddr, b: IpAddr) -> bool {
    let everything = |ip: IpAddr| ip.is_ipv6() && ip.is_unspecified();
    a == b
        || everything(a)
        || everything(b)
        || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
}

fn parse_destination(text: &str) -> Option<Destination> {
    if text == LATCHED {
        return Some(Destination::Latched);
    }
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed
            .strip_suffix(']')
            .filter(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())?,
        None => host,
    };
    let bare_ipv6 = host.contains(':') && !text.starts_with('[');
    // A comma is refused, because it separates clients in the list of a sink's clients.
    let odd = host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == ',' || c == '/');
    (!bare_ipv6 && !odd).then(|| Destination::Fixed {
        host: host.to_owned(),
        port,
    })
}

fn cores() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |n| n.get() as u32)
        .min(*CONTEXTS.end() as u32)
}

/// Allowed number of contexts. A context is a thread, and more threads than this only compete for the cores.
const CONTEXTS: RangeInclusive<i64> = 1..=256;
/// The range of `context-wait`, in milliseconds.
const WAIT_MS: RangeInclusive<i64> = 0..=1000;
const RESTART_MS: RangeInclusive<i64> = 1..=3_600_000;
const COUNT: RangeInclusive<i64> = 1..=65535;
const STEP: RangeInclusive<i64> = 1..=65535;
/// Allowed step between destination ports. 0: all streams are sent to one port. The receiver must distinguish them by SSRC.
const DESTINATION_STEP: RangeInclusive<i64> = 0..=65535;
/// Maximum number of streams. It is the number of ports.
const STREAMS_MAX: usize = 65535;
