//! The meanings of lines: addresses, ports, directions, packet times and encryption, of the session or of a medium.

use std::fmt;
use std::net::IpAddr;

use super::codecs::OF_PAYLOAD_TYPES;
use super::document::{Line, Sdp, SdpError, Section};

/// An `m=` line: `m=KIND PORT[/COUNT] PROTOCOL FORMAT ...` (RFC 8866, section 5.14).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaLine<'a> {
    /// The kind of media, for example `audio`.
    pub kind: &'a str,
    /// The port. 0 means that the medium is rejected (RFC 3264, section 6), or only offered (section 5.1).
    pub port: u16,
    /// The number of ports, which is rarely present.
    pub count: Option<u16>,
    /// The protocol, for example `RTP/AVP`.
    pub protocol: &'a str,
    /// The formats. For RTP, these are payload types.
    pub formats: Vec<&'a str>,
}

impl MediaLine<'_> {
    /// Whether the medium is audio in RTP packets, encrypted or not.
    #[must_use]
    pub fn is_rtp_audio(&self) -> bool {
        let mut parts = self.protocol.split('/');
        self.kind == "audio" && parts.any(|part| part.eq_ignore_ascii_case("RTP"))
    }
}

/// The parts that an `m=` line keeps when it is rejected: all except its port. "Any media formats listed are ignored. At least one MUST be
/// present, as specified by SDP" (RFC 3264, section 6).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MediaOutline {
    /// The kind of media, for example `audio`.
    pub kind: String,
    /// The protocol, for example `RTP/AVP`.
    pub protocol: String,
    /// The formats, at least one.
    pub formats: Vec<String>,
}

impl MediaOutline {
    /// Returns the `m=` line with port 0.
    pub(crate) fn rejected(&self) -> String {
        let formats = self.formats.join(" ");
        format!("m={} 0 {} {formats}", self.kind, self.protocol)
    }
}

/// Maximum number of formats of a line. RTP has 128 payload types.
const FORMATS_MAX: usize = 128;

/// The destination for media: `c=IN IP4 192.0.2.1` (RFC 8866, section 5.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address. The TTL and the count of a multicast address are left out.
    Ip(IpAddr),
    /// A host name.
    Name(String),
}

impl Address {
    /// Whether the address is `0.0.0.0` or `::`, to which nothing is sent. Clients of RFC 2543 put a call on hold with it (RFC 3264,
    /// section 8.4).
    #[must_use]
    pub fn is_hold(&self) -> bool {
        matches!(self, Address::Ip(ip) if ip.is_unspecified())
    }
}

/// The direction of media, from the author's view (RFC 8866, section 6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Direction {
    /// The author sends and receives. "If none of the attributes [...] is present, "sendrecv" SHOULD be assumed".
    #[default]
    SendRecv,
    /// The author only sends.
    SendOnly,
    /// The author only receives.
    RecvOnly,
    /// The author neither sends nor receives.
    Inactive,
}

impl Direction {
    const ALL: [Direction; 4] = [
        Direction::SendRecv,
        Direction::SendOnly,
        Direction::RecvOnly,
        Direction::Inactive,
    ];

    /// Returns the attribute's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Direction::SendRecv => "sendrecv",
            Direction::SendOnly => "sendonly",
            Direction::RecvOnly => "recvonly",
            Direction::Inactive => "inactive",
        }
    }

    fn of(name: &str) -> Option<Direction> {
        Direction::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns the direction as the other side sees it.
    #[must_use]
    pub fn reversed(self) -> Direction {
        match self {
            Direction::SendOnly => Direction::RecvOnly,
            Direction::RecvOnly => Direction::SendOnly,
            both => both,
        }
    }

    /// Whether the author sends.
    #[must_use]
    pub fn sends(self) -> bool {
        matches!(self, Direction::SendRecv | Direction::SendOnly)
    }

    /// Whether the author receives.
    #[must_use]
    pub fn receives(self) -> bool {
        matches!(self, Direction::SendRecv | Direction::RecvOnly)
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `a=rtcp:PORT [IN IP4 ADDRESS]` (RFC 3605, section 2.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RtcpAttribute {
    /// The port that receives RTCP.
    pub port: u16,
    /// The address, if it differs from that of the medium.
    pub address: Option<Address>,
}

impl Section {
    /// Returns the `m=` line.
    ///
    /// # Errors
    /// Fails if the line is missing or malformed.
    pub fn media_line(&self) -> Result<MediaLine<'_>, SdpError> {
        let value = self.text_of(b'm').unwrap_or_default();
        let malformed = || {
            let text = self.lines().first().map_or(&b""[..], Line::text);
            SdpError::line(
                text,
                "m=KIND PORT PROTOCOL FORMAT ..., with a port from 0 to 65535",
            )
        };
        let mut fields = value.split([' ', '\t']).filter(|field| !field.is_empty());
        let mut next = || fields.next().ok_or_else(malformed);
        let (kind, ports, protocol) = (next()?, next()?, next()?);
        let (port, count) = match ports.split_once('/') {
            Some((port, count)) => (port, Some(count.parse().map_err(|_| malformed())?)),
            None => (ports, None),
        };
        Ok(MediaLine {
            kind,
            port: port.parse().map_err(|_| malformed())?,
            count,
            protocol,
            formats: fields.collect(),
        })
    }

    /// Returns kind, protocol and formats of the `m=` line. If the line is malformed, missing parts are filled in as for plain audio.
    #[must_use]
    pub fn outline(&self) -> MediaOutline {
        let value = self.text_of(b'm').unwrap_or_default();
        let mut fields = value.split_ascii_whitespace();
        let mut next = |usual: &str| fields.next().unwrap_or(usual).to_owned();
        let (kind, _, protocol) = (next("audio"), next("0"), next("RTP/AVP"));
        let mut formats: Vec<String> = fields.take(FORMATS_MAX).map(str::to_owned).collect();
        if formats.is_empty() {
            formats.push("0".to_owned());
        }
        MediaOutline {
            kind,
            protocol,
            formats,
        }
    }

    /// Rejects the medium: its `m=` line gets port 0 and the parts of `outline` (RFC 3264, section 6). Attributes about keys, and about
    /// formats that were replaced, are removed.
    pub fn reject(&mut self, outline: &MediaOutline) {
        let is_same = self.media_line().is_ok() && self.outline() == *outline;
        if is_same {
            self.set_port(0);
        } else {
            if let Some(line) = self.line_mut(b'm') {
                line.set_text(&outline.rejected());
            }
            self.remove_attributes(|name, _| OF_PAYLOAD_TYPES.contains(&name));
        }
        self.remove_attributes(|name, _| name == "crypto");
    }

    /// Replaces the port. If the line has a port count, removes it.
    pub fn set_port(&mut self, port: u16) {
        self.set_media_field(1, &port.to_string());
    }

    /// Replaces the protocol.
    pub fn set_protocol(&mut self, protocol: &str) {
        self.set_media_field(2, protocol);
    }

    fn set_media_field(&mut self, number: usize, field: &str) {
        if let Some(line) = self.line_mut(b'm') {
            line.set_field(number, field);
        }
    }

    /// Replaces the formats.
    pub fn set_formats(&mut self, formats: &[String]) {
        let same = self.media_line().is_ok_and(|line| line.formats == formats);
        if let Some(line) = self.line_mut(b'm')
            && !same
        {
            line.set_fields_from(3, &formats.join(" "));
        }
    }

    /// Returns the address of this section's own `c=` line.
    ///
    /// # Errors
    /// Fails if the line is malformed.
    pub fn connection(&self) -> Result<Option<Address>, SdpError> {
        let Some(value) = self.text_of(b'c') else {
            return Ok(None);
        };
        let address = address(value);
        address.map(Some).ok_or_else(|| {
            SdpError::line(
                format!("c={value}").as_bytes(),
                "c=IN IP4 or IP6 and an address",
            )
        })
    }

    /// Replaces the address of this section's `c=` line. If the section has none, adds one at the right place, which is after `m=` and `i=`
    /// in a medium (RFC 8866, section 9).
    pub fn set_connection(&mut self, address: IpAddr) {
        let (family, address) = (family(address), address.to_string());
        if let Some(line) = self.line_mut(b'c') {
            if !(line.set_field(1, family) && line.set_field(2, &address)) {
                line.set_text(&format!("c=IN {family} {address}"));
            }
            return;
        }
        self.add_connection(&format!("IN {family} {address}"));
    }

    /// Adds a `c=` line with this value at the right place.
    pub(crate) fn add_connection(&mut self, value: &str) {
        let kinds: &[u8] = match self.value_of(b'm') {
            Some(_) => b"mi",
            None => b"vosiuep",
        };
        let place =
            self.place_behind(|line| kinds.iter().any(|kind| line.value_of(*kind).is_some()));
        self.insert(place, &format!("c={value}"));
    }

    /// Returns this section's own direction. If there are several, returns the last one.
    #[must_use]
    pub fn own_direction(&self) -> Option<Direction> {
        let directions = self
            .attributes()
            .filter_map(|(name, _)| Direction::of(name));
        directions.last()
    }

    /// Replaces the direction.
    pub fn set_direction(&mut self, direction: Direction) {
        if self.own_direction() == Some(direction) {
            return;
        }
        let mut is_new = true;
        self.edit_lines(|line| {
            let name = line.text_of(b'a').and_then(|text| text.split(':').next());
            if name.and_then(Direction::of).is_some() {
                line.set_text(&format!("a={direction}"));
                is_new = false;
            }
        });
        if is_new {
            self.add_attribute(direction.name(), "");
        }
    }

    /// Returns the milliseconds of media in a packet, from the attribute `ptime` or `maxptime` (RFC 8866, sections 6.4 and 6.5). `None`:
    /// the attribute is missing or invalid.
    #[must_use]
    pub fn packet_time_ms(&self, name: &str) -> Option<u32> {
        let value = self.attribute(name)?.trim();
        // The value need not be whole, because AES67 uses fractions.
        let ms: f64 = value.parse().ok()?;
        (1.0..=PTIME_MS_MAX)
            .contains(&ms)
            .then_some(ms.round() as u32)
    }

    /// Returns the address for RTCP, if the description has one. A malformed attribute counts as absent: see [`faults`](Self::faults).
    #[must_use]
    pub fn rtcp(&self) -> Option<RtcpAttribute> {
        let value = self.attribute("rtcp")?.trim();
        let (port, rest) = value.split_once(' ').unwrap_or((value, ""));
        let address = match rest.trim() {
            "" => None,
            rest => Some(address(rest)?),
        };
        let port = port.parse().ok()?;
        Some(RtcpAttribute { port, address })
    }

    /// Returns the parts that count as absent: malformed attributes and, in RTP audio, formats that are not payload types. The description
    /// can be used without them. `mux` means that RTP and RTCP share a port.
    #[must_use]
    pub fn faults(&self, mux: bool) -> Vec<SdpError> {
        let mut faults = Vec::new();
        let mut attribute = |name: &str, is_fine: bool, expected: &'static str| {
            if let Some(value) = self.attribute(name).filter(|_| !is_fine) {
                let line = format!("a={name}:{value}");
                faults.push(SdpError::line(line.as_bytes(), expected));
            }
        };
        let expected = "a=rtcp:PORT, or a=rtcp:PORT IN IP4 ADDRESS";
        attribute("rtcp", self.rtcp().is_some(), expected);
        let is_time = self.packet_time_ms("ptime").is_some();
        attribute("ptime", is_time, "a=ptime:MILLISECONDS");
        if self.media_line().is_ok_and(|line| line.is_rtp_audio()) {
            faults.extend(self.format_faults(mux));
        }
        faults
    }

    /// Whether RTP and RTCP may share a port (RFC 5761, section 5.1.1).
    #[must_use]
    pub fn has_rtcp_mux(&self) -> bool {
        self.attribute("rtcp-mux").is_some()
    }
}

/// Maximum packet time, ms. No application uses longer packets.
const PTIME_MS_MAX: f64 = 1000.0;

impl Sdp {
    /// Returns the address of the medium with this index: from its own `c=` line, or else from the session's (RFC 8866, section 5.7).
    ///
    /// # Errors
    /// Fails if both lines are missing, or the line is malformed.
    pub fn address(&self, index: usize) -> Result<Address, SdpError> {
        let media = self.media.get(index);
        let own = media.map_or(Ok(None), Section::connection)?;
        own.map_or_else(|| self.session.connection(), |own| Ok(Some(own)))?
            .ok_or_else(|| SdpError::line(b"", "a c= line in the session, or in each medium"))
    }

    /// Returns the direction of the medium with this index, or that of the session if the medium has none.
    #[must_use]
    pub fn direction(&self, index: usize) -> Direction {
        let own = self.media.get(index).and_then(Section::own_direction);
        own.or(self.session.own_direction()).unwrap_or_default()
    }

    /// Returns an attribute of the medium with this index, such as `setup`, `fingerprint` or `ice-ufrag`, or that of the session if the
    /// medium has none.
    #[must_use]
    pub fn attribute(&self, index: usize, name: &str) -> Option<&str> {
        let own = self
            .media
            .get(index)
            .and_then(|media| media.attribute(name));
        own.or_else(|| self.session.attribute(name))
    }

    /// Whether ICE is offered or answered for the medium with this index (RFC 8839, section 5.4).
    #[must_use]
    pub fn has_ice(&self, index: usize) -> bool {
        self.attribute(index, "ice-ufrag").is_some()
    }

    /// Whether DTLS is offered or answered for the medium with this index (RFC 8122, section 5).
    #[must_use]
    pub fn has_dtls(&self, index: usize) -> bool {
        self.attribute(index, "fingerprint").is_some()
    }

    /// Adds a rejected medium after the other media.
    pub(crate) fn add_rejected(&mut self, outline: &MediaOutline) {
        self.add_media(&outline.rejected());
    }

    /// Replaces the address of the `o=` line.
    pub fn set_origin_address(&mut self, address: IpAddr) {
        self.set_origin_field(4, family(address));
        self.set_origin_field(5, &address.to_string());
    }

    /// Replaces the user name of the `o=` line.
    pub fn set_origin_username(&mut self, username: &str) {
        self.set_origin_field(0, username);
    }

    /// Replaces the session's version in the `o=` line.
    pub fn set_origin_version(&mut self, version: u64) {
        self.set_origin_field(2, &version.to_string());
    }

    /// Replaces a field of `o=USERNAME ID VERSION IN IP4 ADDRESS` (RFC 8866, section 5.2).
    fn set_origin_field(&mut self, number: usize, field: &str) {
        if let Some(line) = self.session.line_mut(b'o') {
            line.set_field(number, field);
        }
    }
}

fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IP4",
        IpAddr::V6(_) => "IP6",
    }
}

/// Reads `IN IP4 192.0.2.1`, which may be followed by the TTL or the count of a multicast address.
fn address(text: &str) -> Option<Address> {
    let mut fields = text.split_whitespace();
    let (Some("IN"), Some(family), Some(host), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return None;
    };
    let host = host.split('/').next().unwrap_or_default();
    let ip = host.parse::<IpAddr>();
    match (family, ip) {
        ("IP4", Ok(ip @ IpAddr::V4(_))) | ("IP6", Ok(ip @ IpAddr::V6(_))) => Some(Address::Ip(ip)),
        ("IP4" | "IP6", Err(_)) if is_host_name(host) => Some(Address::Name(host.to_owned())),
        _ => None,
    }
}

fn is_host_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !text.is_empty()
        && text.bytes().all(allowed)
        && text.contains(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: &str = "v=0\r\no=alice 2890844526 2890844526 IN IP4 host.atlanta.example.com\r\ns=\r\n\
        c=IN IP4 host.atlanta.example.com\r\nt=0 0\r\na=recvonly\r\nm=audio 49170 RTP/AVP 0 8 97\r\na=rtpmap:0 PCMU/8000\r\n\
        m=video 51372/2 RTP/AVP 31 32\r\nc=IN IP6 ff15::101/3\r\na=inactive\r\na=rtcp:53020 IN IP4 126.16.64.4\r\n";

    fn parse(text: &str) -> Sdp {
        Sdp::parse(text.as_bytes()).expect(text)
    }

    fn written(sdp: &Sdp) -> String {
        String::from_utf8(sdp.to_bytes()).expect("a text")
    }

    #[test]
    fn media_lines_addresses_and_directions_are_read() {
        // The description combines examples of RFC 4317, section 2.1, RFC 8866, section 5.7, and RFC 3605, section 2.1.
        let sdp = parse(OFFER);
        let audio = sdp.media[0].media_line().expect("m=");
        assert_eq!(
            (audio.kind, audio.port, audio.count, audio.protocol),
            ("audio", 49170, None, "RTP/AVP")
        );
        assert_eq!(audio.formats, ["0", "8", "97"]);
        assert!(audio.is_rtp_audio());
        let video = sdp.media[1].media_line().expect("m=");
        assert_eq!((video.port, video.count), (51372, Some(2)));
        let name = Address::Name("host.atlanta.example.com".to_owned());
        assert_eq!(sdp.address(0), Ok(name));
        assert_eq!(
            sdp.address(1),
            Ok(Address::Ip("ff15::101".parse().expect("an address")))
        );
        assert_eq!(
            (sdp.direction(0), sdp.direction(1)),
            (Direction::RecvOnly, Direction::Inactive)
        );
        let address = Some(Address::Ip("126.16.64.4".parse().expect("an address")));
        assert_eq!(
            sdp.media[1].rtcp(),
            Some(RtcpAttribute {
                port: 53020,
                address
            })
        );
        assert_eq!(sdp.media[0].rtcp(), None);
    }

    #[test]
    fn the_error_about_a_malformed_line_quotes_the_line() {
        for media in [
            "m=",
            "m=audio",
            "m=audio 1",
            "m=audio x RTP/AVP 0",
            "m=audio 65536 RTP/AVP 0",
            "m=audio 1/x RTP/AVP 0",
        ] {
            let sdp = parse(&format!("v=0\n{media}\n"));
            let error = sdp.media[0].media_line().expect_err(media).to_string();
            assert!(
                error.contains(media) && error.contains("expected"),
                "{error}"
            );
        }
        for line in [
            "c=",
            "c=IN IP4",
            "c=IN IP4 ::1",
            "c=IN IP6 192.0.2.1",
            "c=IN IP4 1.2.3",
            "c=OUT IP4 192.0.2.1",
            "c=IN IP4 a b",
        ] {
            let sdp = parse(&format!("v=0\n{line}\nm=audio 1 RTP/AVP 0\n"));
            assert!(sdp.address(0).is_err(), "{line}");
        }
        for value in ["", "x", "70000", "1 IN", "1 IN IP4 x y"] {
            let sdp = parse(&format!("v=0\nm=audio 1 RTP/AVP 0\na=rtcp:{value}\n"));
            assert_eq!(sdp.media[0].rtcp(), None, "{value}");
            let faults = sdp.media[0].faults(false);
            let line = format!("a=rtcp:{value}");
            assert!(faults[0].to_string().contains(&line), "{faults:?}");
        }
        assert!(parse("v=0\n").address(0).is_err());
    }

    #[test]
    fn edits_change_one_field() {
        let mut sdp = parse(OFFER);
        let new: IpAddr = "203.0.113.7".parse().expect("an address");
        sdp.media[0].set_port(30000);
        sdp.media[0].set_protocol("RTP/SAVP");
        sdp.media[0].set_formats(&["8".to_owned()]);
        sdp.media[0].set_connection(new);
        sdp.media[0].set_direction(Direction::SendOnly);
        sdp.media[1].set_port(0);
        sdp.media[1].set_connection(new);
        sdp.media[1].set_direction(Direction::SendRecv);
        sdp.session
            .set_connection("2001:db8::1".parse().expect("an address"));
        sdp.set_origin_address(new);
        sdp.set_origin_version(7);
        sdp.set_origin_username("-");
        assert_eq!(
            written(&sdp),
            "v=0\r\no=- 2890844526 7 IN IP4 203.0.113.7\r\ns=\r\nc=IN IP6 2001:db8::1\r\nt=0 0\r\na=recvonly\r\n\
             m=audio 30000 RTP/SAVP 8\r\nc=IN IP4 203.0.113.7\r\na=rtpmap:0 PCMU/8000\r\na=sendonly\r\n\
             m=video 0 RTP/AVP 31 32\r\nc=IN IP4 203.0.113.7\r\na=sendrecv\r\na=rtcp:53020 IN IP4 126.16.64.4\r\n"
        );
    }

    #[test]
    fn setting_an_equal_value_changes_nothing() {
        let text = "v=0\no=a  1 1 IN IP4 192.0.2.1\nm=audio\t5  RTP/AVP  0  8\nc=IN IP4  192.0.2.1 \na=sendonly\n";
        let mut sdp = parse(text);
        let address: IpAddr = "192.0.2.1".parse().expect("an address");
        sdp.set_origin_address(address);
        sdp.media[0].set_connection(address);
        sdp.media[0].set_port(5);
        sdp.media[0].set_formats(&["0".to_owned(), "8".to_owned()]);
        sdp.media[0].set_direction(Direction::SendOnly);
        assert_eq!(written(&sdp), text);
    }

    #[test]
    fn both_forms_of_hold_are_recognised() {
        // The examples are those of RFC 3264, section 8.4, and the older form that it mentions.
        let old = parse("v=0\nc=IN IP4 0.0.0.0\nm=audio 1 RTP/AVP 0\n");
        assert!(old.address(0).expect("an address").is_hold());
        let new = parse("v=0\nc=IN IP4 192.0.2.1\nm=audio 1 RTP/AVP 0\na=sendonly\n");
        assert!(!new.address(0).expect("an address").is_hold());
        assert!(!new.direction(0).receives() && new.direction(0).reversed() == Direction::RecvOnly);
        for direction in Direction::ALL {
            assert_eq!(direction.reversed().sends(), direction.receives());
        }
    }

    #[test]
    fn plausible_packet_times_are_read() {
        for (value, ms) in [
            ("20", Some(20)),
            (" 30 ", Some(30)),
            ("22.5", Some(23)),
            ("0", None),
            ("-1", None),
            ("x", None),
            ("1e9", None),
        ] {
            let sdp = parse(&format!("v=0\nm=audio 1 RTP/AVP 0\na=ptime:{value}\n"));
            assert_eq!(sdp.media[0].packet_time_ms("ptime"), ms, "{value}");
        }
    }

    #[test]
    fn dtls_ice_and_rtcp_mux_are_recognised() {
        let sdp = parse(
            "v=0\na=fingerprint:sha-256 AA:BB\na=ice-ufrag:x\nm=audio 1 UDP/TLS/RTP/SAVPF 0\na=rtcp-mux\na=setup:actpass\nm=audio 1 RTP/AVP 0\n",
        );
        assert!(sdp.has_dtls(0) && sdp.has_ice(1) && sdp.media[0].has_rtcp_mux());
        assert!(
            sdp.media[0]
                .media_line()
                .is_ok_and(|line| line.is_rtp_audio())
        );
        assert_eq!(sdp.attribute(0, "setup"), Some("actpass"));
        assert!(!sdp.media[1].has_rtcp_mux() && sdp.attribute(1, "setup").is_none());
    }
}
