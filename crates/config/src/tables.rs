//! Checks the tables of calls: `[ng]`, `[http]`, `[interfaces.NAME]`, `[limits]`, `[timeouts]`, `[calls]`.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use threadbare_rtp::leg::Network;
use threadbare_xdp::Settings as XdpSettings;
use toml::Spanned;

use super::call_fallback;
use super::checker::Checker;
use super::raw::{RawCalls, RawHttp, RawInterface, RawMedia, RawServing, RawTimeouts};
use super::record;
use super::recording_format::RecordingFormat;
use super::service::ServiceAddress;
use super::serving::{
    HttpSpec, InterfaceSpec, Limits, MediaRules, PORTS_ALLOWED, PortSpan, Refusal, Serving,
    Setting, StateLocation, Timeouts,
};

fn path(raw: Option<&Spanned<String>>) -> Option<PathBuf> {
    raw.map(|raw| PathBuf::from(raw.get_ref()))
}

pub(super) fn serving(
    checker: &mut Checker<'_>,
    raw: &RawServing,
    service_addresses: Vec<ServiceAddress>,
) -> Serving {
    let default = Serving::default();
    let mut interfaces = Vec::new();
    let mut places = Vec::new();
    for (name, raw) in &raw.interfaces {
        let before = interfaces.len();
        interface(checker, name, raw, &mut interfaces);
        places.extend((before..interfaces.len()).map(|_| raw.span()));
    }
    if raw.interfaces.is_empty() {
        interfaces = default.interfaces;
    }
    let serving = Serving {
        ng: address(checker, raw.ng.listen.as_ref(), "listen", "2223").unwrap_or(default.ng),
        ng_tcp: address(checker, raw.ng.tcp.as_ref(), "tcp", "2223"),
        allow: allow(checker, raw.ng.allow.as_ref()),
        http: raw.http.as_ref().and_then(|raw| http(checker, raw)),
        interfaces,
        service_addresses,
        limits: limits(checker, raw),
        timeouts: timeouts(checker, &raw.timeouts),
        threads: or(checker, raw.calls.threads.as_ref(), "threads", THREADS, 0),
        latency_ms: checker
            .number(raw.calls.latency.as_ref(), "latency", LATENCY_MS)
            .map(|latency_ms| latency_ms as u32),
        meter: raw
            .calls
            .meter
            .as_ref()
            .is_some_and(|meter| *meter.get_ref()),
        fallback: call_fallback::check(checker, raw.calls.fallback.as_ref()),
        media: media_rules(checker, raw.calls.media.as_ref()),
        xdp: xdp(checker, &raw.calls),
        recording_dir: path(raw.calls.recording_dir.as_ref()),
        recording_format: recording_format(checker, raw.calls.recording_format.as_ref()),
        record: record::check(checker, raw.calls.record.as_ref()),
        state: kept(checker, raw.calls.state.as_ref(), "state", "file"),
        records: path(raw.calls.records.as_ref()),
    };
    let mut refused = serving.refused();
    if let Some(machine) = checker.machine {
        refused.extend(serving.refused_by(machine));
    }
    for one in refused {
        refuse_setting(checker, raw, &places, &one);
    }
    serving
}

fn limits(checker: &mut Checker<'_>, raw: &RawServing) -> Limits {
    let raw = &raw.limits;
    let (sessions, late, cpu) = (&raw.max_sessions, &raw.lateness_limit, &raw.cpu_limit);
    let default = Limits::default();
    let mut read = |value: &Option<Spanned<i64>>, key, range, default| {
        or(checker, value.as_ref(), key, range, default)
    };
    Limits {
        max_sessions: read(sessions, "max-sessions", SESSIONS, default.max_sessions),
        lateness_ms: read(late, "lateness-limit", LATENESS_MS, default.lateness_ms),
        cpu_percent: read(cpu, "cpu-limit", PERCENT, default.cpu_percent),
    }
}

fn refuse_setting(
    checker: &mut Checker<'_>,
    raw: &RawServing,
    places: &[Range<usize>],
    refused: &Refusal,
) {
    let of = |key: Option<&Spanned<String>>| key.map_or(0..0, Spanned::span);
    let (key, place) = match refused.setting {
        Setting::Ng => ("listen", of(raw.ng.listen.as_ref())),
        Setting::NgTcp => ("tcp", of(raw.ng.tcp.as_ref())),
        Setting::Http => {
            let raw = raw.http.as_ref().map(Spanned::get_ref);
            ("listen", of(raw.and_then(|raw| raw.listen.as_ref())))
        }
        Setting::Interface(at) => ("address", places.get(at).cloned().unwrap_or(0..0)),
        Setting::RecordingDir => ("recording-dir", of(raw.calls.recording_dir.as_ref())),
        Setting::Xdp => ("xdp", raw.calls.xdp.as_ref().map_or(0..0, Spanned::span)),
    };
    let message = format!("`{key}` cannot be {:?}: {}", refused.value, refused.reason);
    checker
        .problems
        .add(message, refused.help, &[(place, "this value")]);
}

fn or(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<i64>>,
    key: &str,
    allowed: RangeInclusive<i64>,
    default: u32,
) -> u32 {
    let value = checker.number(raw, key, allowed);
    value.map_or(default, |value| value as u32)
}

/// Checks an address to listen on. Port 0 means any free port, whose number is logged.
fn address(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<String>>,
    key: &str,
    port: &str,
) -> Option<SocketAddr> {
    let address = raw?.get_ref().parse();
    if address.is_err() {
        let allowed = format!("ADDRESS:PORT, for example \"127.0.0.1:{port}\" or \"[::1]:{port}\"");
        checker.refuse(raw, key, &allowed);
    }
    address.ok()
}

fn http(checker: &mut Checker<'_>, raw: &Spanned<RawHttp>) -> Option<HttpSpec> {
    let place = raw.span();
    let raw = raw.get_ref();
    if raw.listen.is_none() && !raw.is_partial {
        let help = "add an address to listen on, such as listen = \"127.0.0.1:8080\"";
        checker
            .problems
            .add_missing("[http] without `listen`", help, place);
    }
    let token_file = raw.token_file.as_ref();
    Some(HttpSpec {
        listen: address(checker, raw.listen.as_ref(), "listen", "8080")?,
        token_file: path(token_file),
    })
}

fn allow(checker: &mut Checker<'_>, raw: Option<&Spanned<Vec<String>>>) -> Vec<Network> {
    let texts = raw.map(Spanned::get_ref);
    let networks = texts.into_iter().flatten().map(|text| text.parse());
    networks.collect::<Result<_, _>>().unwrap_or_else(|error| {
        checker.refuse(raw, "allow", &format!("networks and addresses; {error}"));
        Vec::new()
    })
}

fn media_rules(checker: &mut Checker<'_>, raw: Option<&Spanned<RawMedia>>) -> MediaRules {
    let Some(raw) = raw else {
        return MediaRules::default();
    };
    let networks = |texts: &[String]| {
        let networks = texts.iter().map(|text| text.parse::<Network>());
        networks.collect::<Result<Vec<_>, _>>()
    };
    let RawMedia { deny, allow } = raw.get_ref();
    match (networks(deny), networks(allow)) {
        (Ok(deny), Ok(allow)) => MediaRules { deny, allow },
        (Err(error), _) | (_, Err(error)) => {
            let message = format!("`media` cannot be used: {error}");
            let help = "deny and allow are lists of networks and addresses";
            let places = [(raw.span(), "this value")];
            checker.problems.add(message, help, &places);
            MediaRules::default()
        }
    }
}

fn xdp(checker: &mut Checker<'_>, raw: &RawCalls) -> Option<XdpSettings> {
    let devices = raw.xdp.as_ref().map(Spanned::get_ref);
    let mut settings = XdpSettings::new(devices.cloned().unwrap_or_default());
    if let Some(text) = &raw.xdp_mode {
        match text.get_ref().parse() {
            Ok(mode) => settings.mode = mode,
            Err(_) => checker.refuse(Some(text), "xdp-mode", XDP_MODES),
        }
    }
    let frames = checker.number(raw.xdp_frames.as_ref(), "xdp-frames", XDP_FRAMES);
    if let Some(frames) = frames.map(|frames| frames as u32) {
        settings.frames = frames;
        if !frames.is_power_of_two() {
            let allowed = "powers of two from 64 to 65536";
            checker.refuse(raw.xdp_frames.as_ref(), "xdp-frames", allowed);
        }
    }
    (!settings.devices.is_empty()).then_some(settings)
}

fn recording_format(checker: &mut Checker<'_>, raw: Option<&Spanned<String>>) -> RecordingFormat {
    let Some(text) = raw.map(|raw| raw.get_ref().as_str()) else {
        return RecordingFormat::default();
    };
    let mut all = RecordingFormat::ALL.into_iter();
    let found = all.find(|format| format.name() == text);
    found.unwrap_or_else(|| {
        let names = RecordingFormat::ALL.map(|format| format!("\"{}\"", format.name()));
        checker.refuse(raw, "recording-format", &names.join(", "));
        RecordingFormat::default()
    })
}

/// Checks the place where data are saved. `what` is the word "file" or "folder".
pub(super) fn kept(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<toml::Value>>,
    key: &str,
    what: &str,
) -> StateLocation {
    match raw.map(Spanned::get_ref) {
        None => StateLocation::OfSystemd,
        Some(toml::Value::Boolean(false)) => StateLocation::Off,
        Some(toml::Value::String(path)) if !path.is_empty() => StateLocation::At(path.into()),
        Some(_) => {
            checker.refuse(raw, key, &format!("the name of a {what}, or false"));
            StateLocation::OfSystemd
        }
    }
}

fn timeouts(checker: &mut Checker<'_>, raw: &RawTimeouts) -> Timeouts {
    let default = Timeouts::default();
    let mut seconds = |raw: &Option<Spanned<i64>>, key: &str, default: u32| {
        or(checker, raw.as_ref(), key, SECONDS, default)
    };
    Timeouts {
        media_s: seconds(&raw.timeout, "timeout", default.media_s),
        silent_s: seconds(&raw.silent_timeout, "silent-timeout", default.silent_s),
        final_s: seconds(&raw.final_timeout, "final-timeout", default.final_s),
        offer_s: seconds(&raw.offer_timeout, "offer-timeout", default.offer_s),
        delete_delay_s: seconds(&raw.delete_delay, "delete-delay", default.delete_delay_s),
    }
}

/// Checks an interface. It has one address, or an IPv4 address and an IPv6 address.
fn interface(
    checker: &mut Checker<'_>,
    name: &str,
    raw: &Spanned<RawInterface>,
    interfaces: &mut Vec<InterfaceSpec>,
) {
    let place = raw.span();
    let raw = raw.get_ref();
    if name.is_empty() {
        let help = "give the interface a name, such as [interfaces.outside]";
        checker.problems.add(
            "an interface without a name",
            help,
            &[(place, "this table")],
        );
        return;
    }
    if raw.address.is_none() && raw.address_v6.is_none() && !raw.is_partial {
        checker.problems.add_missing(
            format!("[interfaces.{name}] without `address`"),
            "every interface needs an address of this machine",
            place,
        );
    }
    let ports = match &raw.ports {
        None => PortSpan::default(),
        Some(text) => text.get_ref().parse().unwrap_or_else(|_| {
            checker.refuse(Some(text), "ports", PORTS_ALLOWED);
            PortSpan::default()
        }),
    };
    let pairs = [
        (["address", "advertised"], &raw.address, &raw.advertised),
        (
            ["address-v6", "advertised-v6"],
            &raw.address_v6,
            &raw.advertised_v6,
        ),
    ];
    for (keys, address, advertised) in pairs {
        let [own, told] = keys;
        if let (None, Some(alone)) = (address, advertised) {
            let help = format!("add `{own}`: the address at which this machine receives");
            checker.problems.add(
                format!("`{told}` without `{own}`"),
                &help,
                &[(alone.span(), "this address is only advertised")],
            );
        }
        let Some(address) = ip(checker, address.as_ref(), own) else {
            continue;
        };
        let advertised = match advertised {
            None => Some(address),
            Some(_) => ip(checker, advertised.as_ref(), told),
        };
        let Some(advertised) = advertised else {
            continue;
        };
        interfaces.push(InterfaceSpec {
            name: name.to_owned(),
            address,
            advertised,
            ports,
        });
    }
    of_one_family(checker, raw);
}

/// Checks that each advertised address has the family of its local address.
fn of_one_family(checker: &mut Checker<'_>, raw: &RawInterface) {
    let is_v6 = |key: &Option<Spanned<String>>| {
        let ip = key.as_ref()?.get_ref().parse::<IpAddr>().ok()?;
        Some(ip.is_ipv6())
    };
    let checks = [
        (&raw.advertised, "advertised", is_v6(&raw.address)),
        (&raw.advertised_v6, "advertised-v6", Some(true)),
        (&raw.address_v6, "address-v6", Some(true)),
    ];
    for (key, name, expected) in checks {
        let (Some(found), Some(expected)) = (is_v6(key), expected) else {
            continue;
        };
        if found != expected {
            let allowed = if expected {
                "an IPv6 address"
            } else {
                "an IPv4 address, as `address` is one"
            };
            checker.refuse(key.as_ref(), name, allowed);
        }
    }
}

fn ip(checker: &mut Checker<'_>, raw: Option<&Spanned<String>>, key: &str) -> Option<IpAddr> {
    let ip = raw?.get_ref().parse::<IpAddr>().ok();
    let ip = ip.filter(|ip| !ip.is_unspecified());
    if ip.is_none() {
        let allowed = "an address that can be advertised to a party, such as \"192.0.2.1\"";
        checker.refuse(raw, key, allowed);
    }
    ip
}

const SESSIONS: RangeInclusive<i64> = 1..=1_000_000;
const LATENESS_MS: RangeInclusive<i64> = 0..=60_000;
const PERCENT: RangeInclusive<i64> = 0..=100;
const THREADS: RangeInclusive<i64> = 0..=1024;
const XDP_MODES: &str = "\"auto\", \"generic\", \"native\"";
const XDP_FRAMES: RangeInclusive<i64> = 64..=65_536;
const LATENCY_MS: RangeInclusive<i64> = 0..=10_000;
/// Allowed time-outs. The maximum is about a month.
const SECONDS: RangeInclusive<i64> = 0..=2_678_400;
