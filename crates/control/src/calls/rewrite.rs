//! Rewrites one side's description for the other side.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::dialog::{Local, Origin, Remote, SentVersion};
use super::options::Options;
use crate::sdp::{Codec, Direction, MediaOutline, Sdp, Section};

/// How an `m=` line is rewritten.
#[derive(Debug)]
pub(super) enum Line<'a> {
    /// The port becomes 0. The rest of the `m=` line is that of the offer.
    Rejected(&'a MediaOutline),
    /// The parties connect to each other. The line stays, with its author's address.
    Direct,
    /// The line's datagrams are relayed.
    Packets {
        local: &'a Local,
        remote: &'a Remote,
        /// Whether lines about keys stay, because the parties agree on keys themselves.
        keeps_keys: bool,
    },
    /// The relay reads the line's packets.
    Audio(AudioLine<'a>),
}

/// An `m=` line of audio for the receiver of the description.
#[derive(Debug)]
pub(super) struct AudioLine<'a> {
    pub(super) local: &'a Local,
    pub(super) remote: &'a Remote,
    pub(super) protocol: &'a str,
    pub(super) codecs: Vec<Codec>,
    pub(super) mux: bool,
    /// Whether RTCP uses the port of RTP whatever the receiver answers.
    pub(super) shares_port: bool,
    /// The values of `a=crypto`.
    pub(super) cryptos: Vec<String>,
    /// The packet time to write, ms. `None`: it stays.
    pub(super) ptime_ms: Option<u32>,
}

/// Rewrites a description by the options of its request. `origin` is what earlier descriptions for the same receiver had in common. Returns
/// the origin for the next description.
pub(super) fn rewrite(
    sdp: &mut Sdp,
    lines: &[Line<'_>],
    options: &Options,
    origin: &Origin,
) -> Origin {
    let keeps_keys = |line: &Line<'_>| {
        matches!(
            line,
            Line::Packets {
                keeps_keys: true,
                ..
            }
        )
    };
    strip(&mut sdp.session, lines.iter().any(keeps_keys));
    let own = lines.iter().find_map(|line| connection(line, options));
    let of_author = sdp.session.text_of(b'c').map(str::to_owned);
    let of_author = of_author.filter(|_| own.is_some());
    if let (Some(own), true) = (own, has_connection(&sdp.session)) {
        sdp.session.set_connection(own);
    }
    let of_session = own.filter(|_| has_connection(&sdp.session));
    for (place, (media, line)) in sdp.media.iter_mut().zip(lines).enumerate() {
        let needs_own = |own: IpAddr| has_connection(media) || of_session != Some(own);
        let address = match line {
            // A malformed or internal address of a rejected line is replaced, because it is of no use to the receiver.
            Line::Rejected(_) => own.filter(|_| has_connection(media) || of_session.is_none()),
            Line::Direct => None,
            _ => connection(line, options).filter(|own| needs_own(*own)),
        };
        if let Some(address) = address {
            media.set_connection(address);
        }
        match line {
            Line::Rejected(outline) => {
                strip(media, false);
                media.reject(outline);
            }
            Line::Direct => {
                if let (Some(of_author), false) = (&of_author, has_connection(media)) {
                    media.add_connection(of_author);
                }
            }
            Line::Packets {
                local,
                remote,
                keeps_keys,
            } => {
                strip(media, *keeps_keys);
                write_packets(media, local, remote, options);
            }
            Line::Audio(audio) => write_audio(media, audio, options),
        }
        if options.generate_mid && media.attribute("mid").is_none() {
            media.add_attribute("mid", &(place + 1).to_string());
        }
    }
    options.edits.apply(sdp);
    write_origin(sdp, own, options, origin)
}

/// Removes lines about features that end at the relay: ICE, bundles and, unless `keeps_keys` is set, DTLS.
fn strip(section: &mut Section, keeps_keys: bool) {
    section.remove_attributes(|name, value| {
        let is_bundle = name == "group" && value.split(' ').next() == Some("BUNDLE");
        let is_dtls = OF_DTLS.contains(&name) && !keeps_keys;
        is_bundle || OF_ICE.contains(&name) || is_dtls || name == "bundle-only"
    });
}

/// Attributes of ICE (RFC 8839, section 5; RFC 8840, section 4).
const OF_ICE: &[&str] = &[
    "candidate",
    "end-of-candidates",
    "ice-lite",
    "ice-mismatch",
    "ice-options",
    "ice-pacing",
    "ice-pwd",
    "ice-ufrag",
    "remote-candidates",
];
/// Attributes of DTLS (RFC 8122, section 5; RFC 4145, section 4; RFC 8842, section 4).
const OF_DTLS: &[&str] = &["fingerprint", "setup", "tls-id"];
/// Attributes that the relay writes itself for each side of audio, because feedback and the sources' names (RFC 5576) are its own.
const OF_AUDIO: &[&str] = &[
    "crypto",
    "rtcp",
    "rtcp-mux",
    "rtcp-mux-only",
    "rtcp-fb",
    "ssrc",
    "ssrc-group",
    "msid",
];

fn has_connection(section: &Section) -> bool {
    section.value_of(b'c').is_some()
}

/// Returns the address to write in `c=`. "the zero address in the SDP is passed through", unless the request replaces it.
fn connection(line: &Line<'_>, options: &Options) -> Option<IpAddr> {
    let (local, remote) = match line {
        Line::Rejected(_) | Line::Direct => return None,
        Line::Packets { local, remote, .. } => (local, remote),
        Line::Audio(audio) => (&audio.local, &audio.remote),
    };
    let own = local.rtp.ip();
    Some(
        match (remote.is_zero && !options.replace.zero_address, own) {
            (false, own) => own,
            (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        },
    )
}

fn write_packets(media: &mut Section, local: &Local, remote: &Remote, options: &Options) {
    media.set_port(local.rtp.port());
    match (local.rtcp, remote.has_mux) {
        (Some(_), false) if media.attribute("rtcp").is_some() => {
            write_rtcp(media, local, false, options);
        }
        _ => media.remove_attributes(|name, _| name == "rtcp"),
    }
    write_direction(media, remote, options);
}

fn write_audio(media: &mut Section, audio: &AudioLine<'_>, options: &Options) {
    strip(media, false);
    media.set_port(audio.local.rtp.port());
    media.set_protocol(audio.protocol);
    media.set_codecs(&audio.codecs);
    media.repair_formats();
    if media.packet_time_ms("ptime").is_none() {
        media.remove_attributes(|name, _| name == "ptime");
    }
    media.remove_attributes(|name, _| OF_AUDIO.contains(&name));
    if options.strip_extmap {
        media.remove_attributes(|name, _| matches!(name, "extmap" | "extmap-allow-mixed"));
    }
    if let Some(ms) = audio.ptime_ms {
        media.set_attribute("ptime", &ms.to_string());
    }
    write_direction(media, audio.remote, options);
    write_rtcp(media, audio.local, audio.shares_port, options);
    if audio.mux {
        media.add_attribute("rtcp-mux", "");
    }
    for value in &audio.cryptos {
        media.add_attribute("crypto", value);
    }
}

/// Writes `a=rtcp` (RFC 3605).
fn write_rtcp(media: &mut Section, local: &Local, shares_port: bool, options: &Options) {
    let rtcp = match (shares_port, local.rtcp) {
        (false, Some(rtcp)) => rtcp,
        _ => local.rtp,
    };
    if options.no_rtcp_attribute {
        return media.remove_attributes(|name, _| name == "rtcp");
    }
    let family = super::ports::Family::of(rtcp.ip()).name();
    let value = if options.full_rtcp_attribute {
        format!("{} IN {family} {}", rtcp.port(), rtcp.ip())
    } else {
        rtcp.port().to_string()
    };
    media.set_attribute("rtcp", &value);
}

/// Writes the direction. Otherwise "a media section with a zero IP address would come out as `sendonly` or `inactive`".
fn write_direction(media: &mut Section, remote: &Remote, options: &Options) {
    if remote.is_zero && !options.original_sendrecv {
        media.set_direction(if remote.direction.sends() {
            Direction::SendOnly
        } else {
            Direction::Inactive
        });
    }
}

/// Writes `o=` and `s=`.
fn write_origin(sdp: &mut Sdp, own: Option<IpAddr>, options: &Options, origin: &Origin) -> Origin {
    let replace = &options.replace;
    let received = |number: usize| {
        let line = sdp.session.text_of(b'o').unwrap_or_default();
        line.split_whitespace()
            .nth(number)
            .unwrap_or_default()
            .to_owned()
    };
    let (username, version) = (received(0), received(2));
    let name = sdp.session.text_of(b's').unwrap_or_default().to_owned();
    let line = sdp.session.text_of(b'o').map(str::to_owned);
    let mut next = Origin {
        line: origin.line.clone().or(line),
        username: origin.username.clone().or(Some(username)),
        session_name: origin.session_name.clone().or(Some(name)),
        address: origin.address.or(own.filter(|own| !own.is_unspecified())),
        version: None,
    };
    if let (true, Some(first)) = (replace.origin_full, &next.line)
        && let Some(line) = sdp.session.line_mut(b'o')
    {
        line.set_text(&format!("o={first}"));
    }
    if let (true, Some(address)) = (replace.origin, next.address) {
        sdp.set_origin_address(address);
    }
    if let (true, Some(username)) = (replace.username, &next.username) {
        sdp.set_origin_username(username);
    }
    if let (true, Some(name)) = (replace.session_name, &next.session_name)
        && let Some(line) = sdp.session.line_mut(b's')
    {
        line.set_text(&format!("s={name}"));
    }
    if replace.sdp_version || replace.force_increment {
        let next_version = next_version(sdp, &version, origin.version, replace.force_increment);
        sdp.set_origin_version(next_version.number);
        next.version = Some(next_version);
    }
    next
}

/// Returns the next version, with the digest of the description. The option asks to "make sure it's increased every time the SDP changes,
/// and left unchanged if the SDP is the same".
fn next_version(
    sdp: &Sdp,
    received: &str,
    before: Option<SentVersion>,
    is_forced: bool,
) -> SentVersion {
    let mut without = sdp.clone();
    without.set_origin_version(0);
    let mut hasher = DefaultHasher::new();
    without.to_bytes().hash(&mut hasher);
    let digest = hasher.finish();
    let number = match before {
        Some(before) if before.digest == digest && !is_forced => before.number,
        Some(before) => before.number.saturating_add(1),
        None => received.parse().unwrap_or(0),
    };
    SentVersion { number, digest }
}
