//! Parties that a request describes in plain words instead of an SDP. This module builds the SDP that such a party would send.

use std::fmt::Write;
use std::net::SocketAddr;

use serde::Deserialize;
use threadbare_control::sdp::{Address, Codec, Sdp};
use utoipa::ToSchema;

use super::problem::Problem;

/// A party in plain words.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PlainSide {
    /// The address at which the party receives RTP: `ADDRESS:PORT`. It receives RTCP on the next port.
    #[schema(example = "192.0.2.1:4000")]
    address: String,
    /// The codec that the party sends and accepts: `NAME/RATE` or `NAME/RATE/CHANNELS`.
    #[schema(example = "PCMU/8000")]
    codec: String,
    /// Whether the party sends and accepts DTMF as telephone events (RFC 4733).
    #[serde(default)]
    telephone_events: bool,
    /// Packet time of the packets sent to the party; default: unchanged.
    #[schema(minimum = 1, maximum = 1000)]
    packet_ms: Option<u32>,
    /// Name of the relay's interface that faces the party.
    pub(super) interface: Option<String>,
}

/// A parsed party.
#[derive(Debug, Clone)]
pub(super) struct Side {
    address: SocketAddr,
    name: String,
    clock_rate_hz: u32,
    channels: u32,
    telephone_events: bool,
    packet_ms: Option<u32>,
    pub(super) interface: Option<String>,
}

impl PlainSide {
    /// Parses the texts. `at` is the index of the party, for error texts.
    pub(super) fn read(&self, at: usize) -> Result<Side, Problem> {
        let field = |name: &str| format!("sides[{at}].{name}");
        let address: Option<SocketAddr> = self.address.parse().ok();
        let address = address.filter(|one| one.port() > 0 && !one.ip().is_unspecified());
        let allowed = "ADDRESS:PORT, such as 192.0.2.1:4000 or [2001:db8::1]:4000";
        let odd = || Problem::value(&field("address"), &self.address, allowed);
        let address = address.ok_or_else(odd)?;
        let allowed = "NAME/RATE or NAME/RATE/CHANNELS, such as PCMU/8000 or opus/48000/2";
        let odd = || Problem::value(&field("codec"), &self.codec, allowed);
        let (name, clock_rate_hz, channels) = codec(&self.codec).ok_or_else(odd)?;
        if let Some(ms) = self.packet_ms.filter(|ms| !(1..=1000).contains(ms)) {
            return Err(Problem::value(
                &field("packet_ms"),
                &ms.to_string(),
                "1 to 1000",
            ));
        }
        Ok(Side {
            address,
            name,
            clock_rate_hz,
            channels,
            telephone_events: self.telephone_events,
            packet_ms: self.packet_ms,
            interface: self.interface.clone(),
        })
    }
}

/// Parses a codec; each part must be a word of SDP.
fn codec(text: &str) -> Option<(String, u32, u32)> {
    let mut parts = text.split('/');
    let name = parts.next()?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let rate = parts.next()?.parse().ok()?;
    let channels = parts.next().map_or(Some(1), |text| text.parse().ok())?;
    let is_plain = (1..=32).contains(&name.len())
        && name.bytes().all(is_word)
        && (1..=384_000).contains(&rate)
        && (1..=8).contains(&channels)
        && parts.next().is_none();
    is_plain.then(|| (name.to_owned(), rate, channels))
}

impl Side {
    /// Whether both parties use the same codec.
    pub(super) fn has_codec_of(&self, other: &Side) -> bool {
        self.name.eq_ignore_ascii_case(&other.name)
            && self.clock_rate_hz == other.clock_rate_hz
            && self.channels == other.channels
    }

    /// Returns the codec's name in ng requests.
    pub(super) fn codec(&self) -> String {
        format!("{}/{}/{}", self.name, self.clock_rate_hz, self.channels)
    }

    /// Whether the party uses telephone events.
    pub(super) fn has_telephone_events(&self) -> bool {
        self.telephone_events
    }

    /// Returns the SDP that the party offers.
    pub(super) fn offer(&self, version: u64) -> String {
        self.sdp(version, self.usual_type(), EVENTS_TYPE)
    }

    /// Returns the SDP with which the party answers. `None`: the party's codec was not offered.
    pub(super) fn answer(&self, version: u64, offered: &[Codec]) -> Option<String> {
        let own = self.find(offered)?;
        let is_it =
            |one: &&Codec| one.is_telephone_event() && one.clock_rate_hz == self.clock_rate_hz;
        let events = offered.iter().find(is_it);
        let numbers = events.map_or(EVENTS_TYPE, |one| one.payload_type.0);
        let side = Side {
            telephone_events: self.telephone_events && events.is_some(),
            ..self.clone()
        };
        Some(side.sdp(version, own.payload_type.0, numbers))
    }

    /// Finds the party's codec in a list.
    pub(super) fn find<'a>(&self, codecs: &'a [Codec]) -> Option<&'a Codec> {
        let is_it = |one: &&Codec| {
            one.name.eq_ignore_ascii_case(&self.name)
                && one.clock_rate_hz == self.clock_rate_hz
                && one.channels == self.channels
        };
        codecs.iter().find(is_it)
    }

    /// Returns the static payload type of the codec (RFC 3551, section 6), or the first dynamic one.
    fn usual_type(&self) -> u8 {
        let fixed = [
            ("PCMU", 8_000, 0),
            ("PCMA", 8_000, 8),
            ("G722", 8_000, 9),
            ("L16", 44_100, 11),
        ];
        let is_it = |one: &&(&str, u32, u8)| {
            one.0.eq_ignore_ascii_case(&self.name)
                && one.1 == self.clock_rate_hz
                && self.channels == 1
        };
        fixed.iter().find(is_it).map_or(DYNAMIC_TYPE, |one| one.2)
    }

    fn sdp(&self, version: u64, number: u8, events: u8) -> String {
        let ip = self.address.ip();
        let family = if ip.is_ipv4() { "IP4" } else { "IP6" };
        let (rate, channels) = (self.clock_rate_hz, self.channels);
        let more = if channels > 1 {
            format!("/{channels}")
        } else {
            String::new()
        };
        let mut sdp = format!(
            "v=0\r\no=- 1 {version} IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\nm=audio {} RTP/AVP {number}",
            self.address.port()
        );
        // Writing to a String cannot fail.
        if self.telephone_events {
            let _ = write!(sdp, " {events}");
        }
        let _ = write!(sdp, "\r\na=rtpmap:{number} {}/{rate}{more}\r\n", self.name);
        if self.telephone_events {
            let _ = write!(
                sdp,
                "a=rtpmap:{events} telephone-event/{rate}\r\na=fmtp:{events} 0-15\r\n"
            );
        }
        if let Some(ms) = self.packet_ms {
            let _ = write!(sdp, "a=ptime:{ms}\r\n");
        }
        sdp
    }
}

/// Returns the codecs of a description's first audio line, and its address and port.
pub(super) fn audio(sdp: &[u8]) -> Option<(Vec<Codec>, SocketAddr)> {
    let sdp = Sdp::parse(sdp).ok()?;
    let media = sdp.media.first()?;
    let Ok(Address::Ip(ip)) = sdp.address(0) else {
        return None;
    };
    let line = media.media_line().ok()?;
    Some((media.codecs(), SocketAddr::new(ip, line.port)))
}

const DYNAMIC_TYPE: u8 = 96;
const EVENTS_TYPE: u8 = 101;
