//! Options of an offer or answer outside its SDP.

use std::net::IpAddr;

use threadbare_rtp_types::learn::{Learn, Method, Once};
use threadbare_rtp_types::side::Side;
use threadbare_rtp_types::srtp::Suite;

use super::action::Recording;
use super::attributes::Edits;
use super::ports::{Family, InterfaceName};
use super::spec::Fallback;
use super::transport::Transport;
use crate::codec::Rules;
use crate::ng::{Refusal, Request, Value};

/// The media options of a request.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct Options {
    pub(super) rules: Rules,
    /// Transport of the outgoing description, from `transport-protocol`.
    pub(super) transport: Option<Transport>,
    /// Whether `transport-protocol` is `accept`.
    pub(super) accepts_transport: bool,
    /// Whether `transport-protocol` is `transparent`: RTP is forwarded unchanged, and the parties agree on keys themselves.
    pub(super) is_transparent: bool,
    /// `OSRTP`: whether keys in an offer of plain RTP are accepted.
    pub(super) accepts_osrtp: bool,
    /// `OSRTP`: whether plain RTP is offered with keys.
    pub(super) offers_osrtp: bool,
    /// Kinds of media that `sdp-media-remove` names.
    #[serde(rename = "removed_media")]
    pub(super) removes: Vec<String>,
    /// Whether a line is rejected if the codec rules leave no audio codec. Otherwise, those rules do not apply to the line.
    pub(super) allows_no_codec: bool,
    #[serde(rename = "rtcp_mux")]
    pub(super) mux: MuxOptions,
    pub(super) replace: Replace,
    /// The interface for the author, and the one for the other side.
    pub(super) interfaces: [Option<InterfaceName>; 2],
    pub(super) family: Option<Family>,
    /// An address that replaces the one in the SDP.
    pub(super) address: Option<IpAddr>,
    pub(super) learning: Learning,
    pub(super) tos: Tos,
    pub(super) sdes: SdesOptions,
    pub(super) single_codec: bool,
    pub(super) reuse_codecs: bool,
    pub(super) loop_protect: bool,
    pub(super) no_rtcp_attribute: bool,
    pub(super) full_rtcp_attribute: bool,
    pub(super) original_sendrecv: bool,
    pub(super) generate_mid: bool,
    pub(super) strip_extmap: bool,
    #[serde(rename = "waits_for_nat")]
    pub(super) nat_wait: bool,
    /// `drop-traffic`: whether it starts or ends. `None`: the request does not have it.
    pub(super) drops_traffic: Option<bool>,
    /// `media-echo`: the party that hears itself.
    pub(super) echo: Option<EchoWay>,
    pub(super) record: Option<bool>,
    pub(super) label: Option<String>,
    /// Whether DTMF is blocked: the flag `block-DTMF` in combination with `DTMF-security`.
    #[serde(rename = "blocks_dtmf")]
    pub(super) blocks_keys: Option<bool>,
    pub(super) recording: Recording,
    #[serde(rename = "attribute_edits")]
    pub(super) edits: Edits,
    /// `fallback`. `None`: the request does not have it.
    pub(super) fallback: Option<Fallback>,
}

/// The values of `rtcp-mux`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct MuxOptions {
    pub(super) offer: bool,
    pub(super) require: bool,
    pub(super) demux: bool,
    pub(super) reject: bool,
}

/// The values of `replace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct Replace {
    pub(super) origin: bool,
    /// Whether the whole `o=` line is replaced.
    pub(super) origin_full: bool,
    pub(super) username: bool,
    pub(super) session_name: bool,
    pub(super) sdp_version: bool,
    pub(super) force_increment: bool,
    pub(super) zero_address: bool,
}

/// The request's options about learning the address that a party sends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct Learning {
    /// Whether the author sends from another address than it receives at.
    pub(super) is_asymmetric: bool,
    pub(super) is_strict: bool,
    #[serde(rename = "follows_source")]
    pub(super) follows: bool,
    /// The value of `endpoint-learning`.
    #[serde(rename = "method")]
    pub(super) way: Option<Way>,
}

/// A value of `endpoint-learning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Way {
    Off,
    Immediate,
    Delayed,
    Heuristic,
}

impl Learning {
    /// Returns the rule for the author of the message, or else for the side that the message goes to.
    ///
    /// After rtpengine has learned an address, it still accepts packets from any address, unless `strict-source` is given. Here unknown
    /// sources are always refused then, and `strict-source` also refuses a new port of the same NAT.
    pub(super) fn learn(self, is_author: bool) -> Learn {
        let is_strict = self.is_strict && !self.follows;
        let method = match self.way {
            Some(Way::Off) if is_strict => return Learn::Never,
            Some(Way::Off) => return Learn::Anyone,
            Some(Way::Immediate) => Method::Immediate,
            Some(Way::Delayed) => Method::Delayed,
            Some(Way::Heuristic) | None => Method::Heuristic,
        };
        match (is_author && self.is_asymmetric, self.follows) {
            (true, _) if is_strict => Learn::Never,
            (true, _) => Learn::Anyone,
            (false, true) => Learn::Follow {
                silence_ms: HANDOVER_SILENCE_MS,
            },
            (false, false) => Learn::Once(Once {
                method,
                fixed_ms: is_strict.then_some(LEARN_WINDOW_MS),
            }),
        }
    }

    /// Combines both messages of an exchange into the settings for one side.
    pub(super) fn with(self, other: Learning) -> Learning {
        Learning {
            is_asymmetric: self.is_asymmetric,
            is_strict: self.is_strict || other.is_strict,
            follows: self.follows || other.follows,
            way: self.way.or(other.way),
        }
    }
}

/// How long a `strict-source` address is learned. rtpengine learns "during the first few seconds after signalling".
const LEARN_WINDOW_MS: u32 = 3_000;
/// `media-handover`: silence after which another address takes over. It is longer than jitter or a gap of lost packets.
const HANDOVER_SILENCE_MS: u32 = 500;

/// The value of `TOS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) enum Tos {
    /// The usual type of service, "If this key is not present or its value is too large".
    #[default]
    #[serde(rename = "Default")]
    Usual,
    /// "If a negative value is used, the previously used TOS value is left unchanged."
    Unchanged,
    #[serde(rename = "Value")]
    To(u8),
}

impl Tos {
    /// Returns the type of service after this message. `before` is the one that was in use.
    pub(super) fn after(self, before: Option<u8>) -> Option<u8> {
        match self {
            Tos::Usual => None,
            Tos::Unchanged => before,
            Tos::To(tos) => Some(tos),
        }
    }
}

/// The values of `SDES`.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct SdesOptions {
    pub(super) is_off: bool,
    #[serde(rename = "pads_keys")]
    pub(super) pads: bool,
    pub(super) has_lifetime: bool,
    pub(super) is_static: bool,
    #[serde(rename = "adds_no_suites")]
    pub(super) adds_none: bool,
    #[serde(rename = "excluded_suites", with = "crate::mirror")]
    pub(super) without: Vec<Suite>,
    /// The only allowed suites. `None`: all are allowed. If none of the named suites is known, no suite is allowed.
    #[serde(rename = "only_suites", with = "crate::mirror")]
    pub(super) only: Option<Vec<Suite>>,
    #[serde(rename = "suite_order", with = "crate::mirror")]
    pub(super) order: Vec<Suite>,
    #[serde(rename = "preferred_suites", with = "crate::mirror")]
    pub(super) preferred: Vec<Suite>,
}

impl Options {
    /// Reads the options of a request. All words of the request must be known.
    ///
    /// # Errors
    /// Fails if a value is invalid.
    pub(super) fn of_request(request: &Request) -> Result<Options, Refusal> {
        let (transport, way) = transport(request)?;
        let osrtp = request.texts("OSRTP")?;
        let kinds = request.texts("sdp-media-remove")?;
        let flag = |name: &str| request.has_flag(name);
        let label = request.text("label")?.or(request.text("from-label")?);
        Ok(Options {
            rules: Rules::of_request(request)?,
            transport,
            accepts_transport: way == Some(TransportWay::Accept),
            is_transparent: way == Some(TransportWay::Transparent),
            // The older form, which uses two `m=` lines for one medium, is read as two media.
            accepts_osrtp: osrtp
                .iter()
                .any(|one| matches!(*one, "accept" | "accept-RFC")),
            offers_osrtp: osrtp.iter().any(|one| one.starts_with("offer")),
            removes: kinds
                .into_iter()
                .take(REMOVES_MAX)
                .map(str::to_owned)
                .collect(),
            allows_no_codec: flag("allow-no-codec-media"),
            mux: mux(request)?,
            replace: replace(request)?,
            interfaces: interfaces(request)?,
            family: request.one_of("address-family", FAMILIES)?,
            address: address(request)?,
            learning: learning(request)?,
            tos: tos(request)?,
            sdes: sdes(request)?,
            single_codec: flag("single-codec"),
            reuse_codecs: flag("reuse-codecs") || flag("no-codec-renegotiation"),
            loop_protect: flag("loop-protect"),
            no_rtcp_attribute: flag("no-rtcp-attribute"),
            full_rtcp_attribute: flag("full-rtcp-attribute"),
            original_sendrecv: flag("original-sendrecv"),
            generate_mid: flag("generate-mid"),
            strip_extmap: flag("strip-extmap"),
            nat_wait: flag("NAT-wait"),
            drops_traffic: request.one_of("drop-traffic", &[("start", true), ("stop", false)])?,
            echo: request.one_of("media-echo", ECHO_WAYS)?,
            record: request.one_of("record-call", ON_OFF)?,
            label: label.map(str::to_owned),
            blocks_keys: if flag("block-DTMF") {
                Some(blocks_keys(request)?)
            } else {
                None
            },
            recording: recording(request)?,
            edits: Edits::of(request)?,
            fallback: fallback(request)?,
        })
    }
}

/// Reads `fallback`, which is not in the documentation of other relays.
fn fallback(request: &Request) -> Result<Option<Fallback>, Refusal> {
    Ok(match request.text("fallback")? {
        None => None,
        Some("default") => Some(Fallback::Default),
        Some("off") => Some(Fallback::Off),
        Some(file) if (1..=FILE_NAME_BYTES_MAX).contains(&file.len()) => {
            Some(Fallback::File(file.into()))
        }
        Some(other) => {
            let allowed = format!(
                "off, default, or the name of an audio file of 1 to {FILE_NAME_BYTES_MAX} bytes"
            );
            return Err(Refusal::value("fallback", &Value::text(other), allowed));
        }
    })
}

/// Maximum length of a file name. It is PATH_MAX.
const FILE_NAME_BYTES_MAX: usize = 4096;

const FAMILIES: &[(&str, Family)] = &[("IP4", Family::V4), ("IP6", Family::V6)];

/// The party that hears itself (`media-echo`). Then neither party hears the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum EchoWay {
    #[serde(rename = "Neither")]
    Nobody,
    /// The party that gets the message.
    Receiver,
    Author,
    Both,
}

impl EchoWay {
    /// Whether side A and side B hear themselves, if this option is in a message of `author`.
    pub(super) fn sides(self, author: Side) -> [bool; 2] {
        let hears = |side: Side| match self {
            EchoWay::Nobody => false,
            EchoWay::Receiver => side != author,
            EchoWay::Author => side == author,
            EchoWay::Both => true,
        };
        Side::BOTH.map(hears)
    }
}

const ECHO_WAYS: &[(&str, EchoWay)] = &[
    ("blackhole", EchoWay::Nobody),
    ("sinkhole", EchoWay::Nobody),
    ("forward", EchoWay::Receiver),
    ("fwd", EchoWay::Receiver),
    ("fw", EchoWay::Receiver),
    ("backwards", EchoWay::Author),
    ("backward", EchoWay::Author),
    ("bk", EchoWay::Author),
    ("both", EchoWay::Both),
];

const ON_OFF: &[(&str, bool)] = &[("on", true), ("yes", true), ("off", false), ("no", false)];

/// Limit of media kinds that a request removes. About five exist.
const REMOVES_MAX: usize = 16;

/// A value of `transport-protocol` that is not the name of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransportWay {
    Accept,
    Transparent,
}

fn transport(request: &Request) -> Result<(Option<Transport>, Option<TransportWay>), Refusal> {
    const KEY: &str = "transport-protocol";
    match request.text(KEY)? {
        None => Ok((None, None)),
        Some("accept") => Ok((None, Some(TransportWay::Accept))),
        Some("transparent") => Ok((None, Some(TransportWay::Transparent))),
        Some(name) => match Transport::of(name).filter(|one| !one.has_dtls) {
            Some(transport) => Ok((Some(transport), None)),
            None => {
                let allowed = "RTP/AVP, RTP/AVPF, RTP/SAVP, RTP/SAVPF, \"transparent\", or \"accept\" in an answer: keys come by SDES, not by DTLS";
                Err(Refusal::value(KEY, &Value::text(name), allowed))
            }
        },
    }
}

fn mux(request: &Request) -> Result<MuxOptions, Refusal> {
    let mut mux = MuxOptions::default();
    for word in request.texts("rtcp-mux")? {
        match word {
            "offer" => mux.offer = true,
            "require" => mux.require = true,
            "demux" => mux.demux = true,
            // This value changes nothing, because multiplexing is accepted and passed on in any case if it is offered.
            "accept" => {}
            "reject" => mux.reject = true,
            other => {
                let allowed = "offer, require, demux, accept or reject";
                return Err(Refusal::value("rtcp-mux", &Value::text(other), allowed));
            }
        }
    }
    Ok(mux)
}

fn replace(request: &Request) -> Result<Replace, Refusal> {
    let mut replace = Replace::default();
    for word in request.texts("replace")? {
        match word.replace(' ', "-").as_str() {
            "origin" => replace.origin = true,
            "origin-full" => {
                replace.origin = true;
                replace.origin_full = true;
            }
            "username" => replace.username = true,
            "session-name" => replace.session_name = true,
            "SDP-version" | "sdp-version" => replace.sdp_version = true,
            "force-increment-sdp-ver" => replace.force_increment = true,
            "zero-address" => replace.zero_address = true,
            // Other values change nothing, because the session's address is replaced in any case.
            _ => {}
        }
    }
    Ok(replace)
}

fn interfaces(request: &Request) -> Result<[Option<InterfaceName>; 2], Refusal> {
    let name = |text: &str| InterfaceName(text.into());
    let both = request.texts("direction")?;
    match both.as_slice() {
        [] => {
            let one = request.text("interface")?;
            let from = request.text("from-interface")?.or(one).map(name);
            let to = request.text("to-interface")?.or(one).map(name);
            Ok([from, to])
        }
        [from] => Ok([Some(name(from)), None]),
        [from, to] => Ok([Some(name(from)), Some(name(to))]),
        _ => {
            let value = Value::List(Vec::new());
            let allowed = "two names: the interface of the sender of the message, and the interface of the other side";
            Err(Refusal::value("direction", &value, allowed))
        }
    }
}

/// Returns the address that replaces the one in the SDP, if the request has one. "Can be overridden through the `media address` key."
fn address(request: &Request) -> Result<Option<IpAddr>, Refusal> {
    if let Some(text) = request.text("media-address")? {
        let wrong = || {
            let allowed = "an IPv4 or IPv6 address";
            Refusal::value("media-address", &Value::text(text), allowed)
        };
        return text.parse().map(Some).map_err(|_| wrong());
    }
    if !request.has_flag("SIP-source-address") {
        return Ok(None);
    }
    let both = request.texts("received-from")?;
    let wrong = |text: &str| {
        let allowed = "IP4 or IP6, and the address from which the SIP message came";
        Refusal::value("received-from", &Value::text(text), allowed)
    };
    match both.as_slice() {
        [] => Ok(None),
        [_, text] => text.parse().map(Some).map_err(|_| wrong(text)),
        [text, ..] => Err(wrong(text)),
    }
}

fn learning(request: &Request) -> Result<Learning, Refusal> {
    let ways = &[
        ("off", Way::Off),
        ("immediate", Way::Immediate),
        ("delayed", Way::Delayed),
        ("heuristic", Way::Heuristic),
    ];
    Ok(Learning {
        is_asymmetric: request.has_flag("asymmetric"),
        is_strict: request.has_flag("strict-source"),
        follows: request.has_flag("media-handover"),
        way: request.one_of("endpoint-learning", ways)?,
    })
}

fn tos(request: &Request) -> Result<Tos, Refusal> {
    let value = request.integer("TOS", i64::MIN..=i64::MAX)?;
    Ok(match value {
        Some(..0) => Tos::Unchanged,
        Some(value) => u8::try_from(value).map_or(Tos::Usual, Tos::To),
        None => Tos::Usual,
    })
}

/// Whether blocking applies to DTMF events. "The default mode is `drop` which simply drops DTMF event packets [...] `off` to disable DTMF
/// blocking."
pub(super) fn blocks_keys(request: &Request) -> Result<bool, Refusal> {
    let mode = request.one_of("DTMF-security", &[("drop", true), ("off", false)])?;
    Ok(mode.unwrap_or(true))
}

/// Returns the recording settings of a request.
pub(super) fn recording(request: &Request) -> Result<Recording, Refusal> {
    let text = |key: &'static str| Ok::<_, Refusal>(request.text(key)?.map(str::to_owned));
    let file = text("recording-file")?;
    Ok(Recording {
        destination: file.or(text("output-destination")?),
        directory: text("recording-dir")?,
        metadata: text("metadata")?,
    })
}

/// Reads the options of `SDES`. "All options controlling SDES session parameters can be used either in all lower case or in all upper
/// case."
fn sdes(request: &Request) -> Result<SdesOptions, Refusal> {
    let mut sdes = SdesOptions::default();
    for word in request.texts("SDES")? {
        let suites = |names: &str| -> Vec<Suite> {
            // Unknown suites are skipped, because they cannot be offered, ordered or left out.
            let names = names.split([';', ',']).filter_map(Suite::from_name);
            names.collect()
        };
        match word.to_ascii_lowercase().as_str() {
            "off" | "no" | "disable" => sdes.is_off = true,
            "pad" => sdes.pads = true,
            "lifetime" => sdes.has_lifetime = true,
            "static" => sdes.is_static = true,
            "nonew" => sdes.adds_none = true,
            "prefer" => {}
            "on" | "yes" | "encrypted_srtp" | "encrypted_srtcp" | "authenticated_srtp" => {}
            other => match word.split_once(['-', ':']) {
                Some(("no", names)) => sdes.without.extend(suites(names)),
                Some(("only", names)) => {
                    sdes.only.get_or_insert_default().extend(suites(names));
                }
                Some(("order", names)) => sdes.order.extend(suites(names)),
                Some(("offerer_pref", names)) => sdes.preferred.extend(suites(names)),
                _ => {
                    let allowed = "off, pad, lifetime, static, nonew, no-SUITE, only-SUITE, order:SUITES or offerer_pref:SUITES; packets \
                    are always encrypted and authenticated";
                    return Err(Refusal::value("SDES", &Value::text(other), allowed));
                }
            },
        }
    }
    Ok(sdes)
}
