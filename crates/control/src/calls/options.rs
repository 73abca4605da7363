//! What an offer or answer says beside its SDP.

use std::net::IpAddr;

use threadbare_rtp::leg::Learn;
use threadbare_rtp::srtp::Suite;

use super::action::Recording;
use super::attributes::Edits;
use super::ports::{Family, InterfaceName};
use super::transport::Transport;
use crate::codec::Rules;
use crate::ng::{Refusal, Request, Value};

/// What a request says of the media, read once.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Options {
    pub(super) rules: Rules,
    /// Of what goes out: `transport-protocol`.
    pub(super) transport: Option<Transport>,
    /// `transport-protocol` is `accept`.
    pub(super) accepts_transport: bool,
    /// `transport-protocol` is `transparent`: RTP passes as it is, with keys that the parties agree on.
    pub(super) is_transparent: bool,
    /// `OSRTP`: keys in an offer of plain RTP are accepted.
    pub(super) accepts_osrtp: bool,
    /// `OSRTP`: plain RTP is offered with keys.
    pub(super) offers_osrtp: bool,
    /// Kinds of media that `sdp-media-remove` names.
    pub(super) removes: Vec<String>,
    /// A line that the codec rules leave without codecs is rejected.
    pub(super) allows_no_codec: bool,
    pub(super) mux: MuxOptions,
    pub(super) replace: Replace,
    /// Of the author, and of the other side.
    pub(super) interfaces: [Option<InterfaceName>; 2],
    pub(super) family: Option<Family>,
    /// In place of the address in the SDP.
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
    pub(super) nat_wait: bool,
    /// `drop-traffic`, or `media-echo` as a black hole: to begin or to end.
    pub(super) drops_traffic: Option<bool>,
    pub(super) record: Option<bool>,
    pub(super) label: Option<String>,
    /// The flag `block-DTMF`, with what `DTMF-security` makes of it.
    pub(super) blocks_keys: Option<bool>,
    pub(super) recording: Recording,
    pub(super) edits: Edits,
}

/// `rtcp-mux`.
#[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct MuxOptions {
    pub(super) offer: bool,
    pub(super) require: bool,
    pub(super) demux: bool,
    pub(super) reject: bool,
}

/// `replace`.
#[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Replace {
    pub(super) origin: bool,
    /// The whole line.
    pub(super) origin_full: bool,
    pub(super) username: bool,
    pub(super) session_name: bool,
    pub(super) sdp_version: bool,
    pub(super) force_increment: bool,
    pub(super) zero_address: bool,
}

/// How the places are learned that packets come from.
#[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Learning {
    /// The author sends from elsewhere than it receives at.
    pub(super) is_asymmetric: bool,
    pub(super) is_strict: bool,
    pub(super) follows: bool,
    pub(super) is_off: bool,
}

impl Learning {
    /// Of the author of the message, or of the side that it goes to.
    ///
    /// By the protocol's documentation, packets are taken from anywhere once a place is learned, and answered there only. Here, a peer is
    /// followed when the place that was learned has fallen silent, so that nobody can put words into a call that is heard.
    pub(super) fn learn(self, is_author: bool) -> Learn {
        let fixed = self.is_off || is_author && self.is_asymmetric;
        match (fixed, self.is_strict && !self.follows) {
            (true, true) => Learn::Never,
            (true, false) => Learn::Anyone,
            (false, true) => Learn::Once {
                window_ns: LEARN_WINDOW_NS,
            },
            (false, false) => Learn::Follow,
        }
    }

    /// Both messages of an exchange may say something of a side.
    pub(super) fn with(self, other: Learning) -> Learning {
        Learning {
            is_asymmetric: self.is_asymmetric,
            is_strict: self.is_strict || other.is_strict,
            follows: self.follows || other.follows,
            is_off: self.is_off || other.is_off,
        }
    }
}

/// "attempts to learn the correct endpoint address for every stream during the first few seconds after signalling".
const LEARN_WINDOW_NS: u64 = 3_000_000_000;

/// `TOS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) enum Tos {
    /// "If this key is not present or its value is too large".
    #[default]
    Usual,
    /// "If a negative value is used, the previously used TOS value is left unchanged."
    Unchanged,
    To(u8),
}

impl Tos {
    /// Behind what was used before.
    pub(super) fn after(self, before: Option<u8>) -> Option<u8> {
        match self {
            Tos::Usual => None,
            Tos::Unchanged => before,
            Tos::To(tos) => Some(tos),
        }
    }
}

/// `SDES`.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct SdesOptions {
    pub(super) is_off: bool,
    pub(super) pads: bool,
    pub(super) has_lifetime: bool,
    pub(super) is_static: bool,
    pub(super) adds_none: bool,
    #[serde(with = "crate::mirror")]
    pub(super) without: Vec<Suite>,
    /// `None`: all. Those that are not there leave none.
    #[serde(with = "crate::mirror")]
    pub(super) only: Option<Vec<Suite>>,
    #[serde(with = "crate::mirror")]
    pub(super) order: Vec<Suite>,
    #[serde(with = "crate::mirror")]
    pub(super) preferred: Vec<Suite>,
}

impl Options {
    /// Reads a request whose words are known to be ones that are done or ignored.
    ///
    /// # Errors
    /// A value makes no sense.
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
            // The older form, two `m=` lines for one medium, is read as two media.
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
            drops_traffic: drops_traffic(request)?,
            record: request.one_of("record-call", ON_OFF)?,
            label: label.map(str::to_owned),
            blocks_keys: match flag("block-DTMF") {
                true => Some(blocks_keys(request)?),
                false => None,
            },
            recording: recording(request)?,
            edits: Edits::of(request)?,
        })
    }
}

const FAMILIES: &[(&str, Family)] = &[("IP4", Family::V4), ("IP6", Family::V6)];

const ON_OFF: &[(&str, bool)] = &[("on", true), ("yes", true), ("off", false), ("no", false)];

/// Kinds of media that a request removes: there are some five.
const REMOVES_MAX: usize = 16;

/// A value of `transport-protocol` that names no protocol.
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
            // What is offered is accepted and passed on anyway.
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
            // Others are ignored: the address of the session is replaced anyway.
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
            let allowed = "the interface of the author and the one of the other side";
            Err(Refusal::value("direction", &value, allowed))
        }
    }
}

/// "Can be overridden through the `media address` key."
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
        let allowed = "IP4 or IP6 and the address that the SIP message came from";
        Refusal::value("received-from", &Value::text(text), allowed)
    };
    match both.as_slice() {
        [] => Ok(None),
        [_, text] => text.parse().map(Some).map_err(|_| wrong(text)),
        [text, ..] => Err(wrong(text)),
    }
}

fn learning(request: &Request) -> Result<Learning, Refusal> {
    let is_off = request.one_of(
        "endpoint-learning",
        &[
            ("off", true),
            ("immediate", false),
            ("delayed", false),
            ("heuristic", false),
        ],
    )?;
    Ok(Learning {
        is_asymmetric: request.has_flag("asymmetric"),
        is_strict: request.has_flag("strict-source"),
        follows: request.has_flag("media-handover"),
        is_off: is_off == Some(true),
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

fn drops_traffic(request: &Request) -> Result<Option<bool>, Refusal> {
    let dropped = request.one_of("drop-traffic", &[("start", true), ("stop", false)])?;
    let hole = &[("blackhole", true), ("sinkhole", true)];
    Ok(dropped.or(request.one_of("media-echo", hole)?))
}

/// "The default mode is `drop` which simply drops DTMF event packets [...] `off` to disable DTMF blocking."
pub(super) fn blocks_keys(request: &Request) -> Result<bool, Refusal> {
    let mode = request.one_of("DTMF-security", &[("drop", true), ("off", false)])?;
    Ok(mode.unwrap_or(true))
}

/// How a request wants a call to be recorded.
pub(super) fn recording(request: &Request) -> Result<Recording, Refusal> {
    let text = |key: &'static str| Ok::<_, Refusal>(request.text(key)?.map(str::to_owned));
    let file = text("recording-file")?;
    Ok(Recording {
        destination: file.or(text("output-destination")?),
        directory: text("recording-dir")?,
        metadata: text("metadata")?,
    })
}

/// "All options controlling SDES session parameters can be used either in all lower case or in all upper case."
fn sdes(request: &Request) -> Result<SdesOptions, Refusal> {
    let mut sdes = SdesOptions::default();
    for word in request.texts("SDES")? {
        let suites = |names: &str| -> Vec<Suite> {
            // Suites that are not there cannot be offered, ordered or left out.
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
                    let allowed = "off, pad, lifetime, static, nonew, no-SUITE, only-SUITE, order:SUITES or offerer_pref:SUITES; packets without encryption or authentication are not offered";
                    return Err(Refusal::value("SDES", &Value::text(other), allowed));
                }
            },
        }
    }
    Ok(sdes)
}
