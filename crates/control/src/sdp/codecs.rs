//! Payload types of a medium. The formats of `m=` are described by `rtpmap` and `fmtp`, or else by the table of RFC 3551.

use threadbare_rtp_types::format::Format;
use threadbare_rtp_types::id::PayloadType;
use threadbare_rtp_types::payload::static_payload;

use super::document::{Line, SdpError, Section};

/// A payload type and the content of its packets.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Codec {
    /// The payload type number in the packets. It is valid for the side whose description has it (RFC 3264, section 5.1).
    #[serde(with = "crate::mirror")]
    pub payload_type: PayloadType,
    /// The name in `rtpmap`, for example "PCMU". Empty: the description does not name it.
    pub name: String,
    /// Clock rate of the RTP timestamps. 0: the description does not state it.
    pub clock_rate_hz: u32,
    /// Number of audio channels. 1 if the description does not state it.
    pub channels: u32,
    /// Format parameters, unchanged.
    pub fmtp: Option<String>,
}

impl Codec {
    /// Whether both codecs describe the same packets, apart from payload types and parameters. Case does not matter in names (RFC 4855,
    /// section 3). Known mistakes of phones are accepted: see [`clock_and_channels`](Self::clock_and_channels).
    #[must_use]
    pub fn is_format_of(&self, other: &Codec) -> bool {
        !self.name.is_empty()
            && self.name.eq_ignore_ascii_case(&other.name)
            && self.clock_and_channels() == other.clock_and_channels()
    }

    /// Returns the clock rate and the channels that the codec's RFC requires. Some phones write the sampling rate, `G722/16000`, although
    /// the clock rate is 8000 (RFC 3551, section 4.5.2). Some write `opus/48000`, although Opus always has two channels (RFC 7587, section
    /// 7).
    #[must_use]
    pub fn clock_and_channels(&self) -> (u32, u32) {
        if self.name.eq_ignore_ascii_case("G722") {
            (8000, self.channels)
        } else if self.name.eq_ignore_ascii_case("opus") {
            (48_000, 2)
        } else {
            (self.clock_rate_hz, self.channels)
        }
    }

    /// Returns the audio format. `None`: this program cannot decode and encode it.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        let (clock_rate_hz, channels) = self.clock_and_channels();
        let rtpmap = format!("{}/{clock_rate_hz}/{channels}", self.name);
        Format::from_rtpmap(&rtpmap).ok()
    }

    /// Whether the packets are telephone events (RFC 4733).
    #[must_use]
    pub fn is_telephone_event(&self) -> bool {
        self.name.eq_ignore_ascii_case("telephone-event")
    }

    /// Whether the packets are comfort noise (RFC 3389).
    #[must_use]
    pub fn is_comfort_noise(&self) -> bool {
        self.name.eq_ignore_ascii_case("CN")
    }

    /// Whether the packets are audio. Events and noise accompany audio, and do not count.
    #[must_use]
    pub fn is_audio(&self) -> bool {
        let beside = [
            "telephone-event",
            "CN",
            "tone",
            "red",
            "ulpfec",
            "parityfec",
            "flexfec",
        ];
        !beside
            .iter()
            .any(|name| self.name.eq_ignore_ascii_case(name))
    }

    /// Returns the value of `rtpmap`: `NAME/RATE`, with `/CHANNELS` if there are several channels.
    #[must_use]
    pub fn rtpmap(&self) -> String {
        match self.channels {
            0 | 1 => format!("{}/{}", self.name, self.clock_rate_hz),
            channels => format!("{}/{}/{channels}", self.name, self.clock_rate_hz),
        }
    }
}

/// Attributes whose value begins with a payload type.
pub(crate) const OF_PAYLOAD_TYPES: &[&str] = &["rtpmap", "fmtp", "rtcp-fb"];

/// Numbers that RTCP packets have in the place of the payload type (RFC 5761, section 4). If RTP and RTCP share a port, codecs may not use
/// them.
pub(crate) const RTCP_NUMBERS: std::ops::RangeInclusive<u8> = 64..=95;

impl Section {
    /// Returns the codecs in the order of the `m=` line, which is the order of preference (RFC 3264, section 5.1). Repeated numbers,
    /// formats that are not payload types, and malformed attributes are skipped: see [`faults`](Self::faults).
    #[must_use]
    pub fn codecs(&self) -> Vec<Codec> {
        let mut codecs: Vec<Codec> = Vec::new();
        for number in self.formats().filter_map(payload_type) {
            if codecs.iter().all(|one| one.payload_type != number) {
                codecs.push(self.codec(number));
            }
        }
        codecs
    }

    fn formats(&self) -> impl Iterator<Item = &str> {
        let line = self.media_line().ok();
        line.into_iter().flat_map(|line| line.formats)
    }

    fn codec(&self, payload_type: PayloadType) -> Codec {
        let value = |name: &str| {
            let mut values = self.attributes().filter(|(found, _)| *found == name);
            values.find_map(|(_, value)| behind(value, payload_type))
        };
        let fixed = static_payload(payload_type);
        let mut codec = Codec {
            payload_type,
            name: fixed.map_or_else(String::new, |one| one.encoding_name.to_owned()),
            clock_rate_hz: fixed.map_or(0, |one| one.clock_rate_hz),
            channels: fixed.map_or(1, |one| one.channels.max(1)),
            fmtp: value("fmtp").map(str::to_owned),
        };
        let mut parts = value("rtpmap").unwrap_or_default().split('/');
        let name = parts.next().map(str::trim).unwrap_or_default();
        if name.is_empty() {
            return codec;
        }
        let positive = |text: Option<&str>| text?.trim().parse().ok().filter(|number| *number > 0);
        let known = fixed.filter(|one| one.encoding_name.eq_ignore_ascii_case(name));
        let is_opus = name.eq_ignore_ascii_case("opus");
        let usual = known.map_or(if is_opus { 48_000 } else { 8000 }, |one| one.clock_rate_hz);
        codec.clock_rate_hz = positive(parts.next()).unwrap_or(usual);
        codec.channels = positive(parts.next()).unwrap_or(1);
        codec.name = name.to_owned();
        codec
    }

    /// Returns those of the [`faults`](Self::faults) that concern formats and their attributes.
    pub(crate) fn format_faults(&self, mux: bool) -> Vec<SdpError> {
        let mut faults = Vec::new();
        let mut fault =
            |text: &str, expected| faults.push(SdpError::line(text.as_bytes(), expected));
        for format in self.formats() {
            match payload_type(format) {
                None => fault(format, "payload types from 0 to 127"),
                Some(number) if mux && RTCP_NUMBERS.contains(&number.0) => {
                    fault(
                        &format!("payload type {format}"),
                        "a number outside of 64 to 95, because RTCP uses these on the RTP port; packets of this type are not relayed",
                    );
                }
                Some(number) if self.codec(number).name.is_empty() => {
                    fault(
                        &format!("payload type {format}"),
                        "an a=rtpmap line for this payload type",
                    );
                }
                Some(_) => {}
            }
        }
        for (name, value) in self.attributes().filter(|one| is_broken(*one)) {
            let expected = if name == "fmtp" {
                "a=fmtp:NUMBER PARAMETERS"
            } else {
                "a=rtpmap:NUMBER NAME/RATE or NAME/RATE/CHANNELS"
            };
            fault(&format!("a={name}:{value}"), expected);
        }
        faults
    }

    /// Removes malformed lines about formats, and completes those that lack a clock rate, because other parsers may refuse them.
    pub(crate) fn repair_formats(&mut self) {
        let codecs = self.codecs();
        self.edit_lines(|line| {
            let text = line.text_of(b'a').unwrap_or_default();
            let Some(value) = text.strip_prefix("rtpmap:") else {
                return;
            };
            let found = codecs.iter().find(|one| is_of(value, one.payload_type));
            if let Some(codec) = found
                && is_broken(("rtpmap", value))
                && behind(value, codec.payload_type).is_some()
            {
                let rtpmap = format!("a=rtpmap:{} {}", codec.payload_type.0, codec.rtpmap());
                line.set_text(&rtpmap);
            }
        });
        self.remove_attributes(|name, value| is_broken((name, value)));
    }

    /// Replaces the codecs. The lines of unchanged codecs stay, those of removed codecs go, and those of new codecs are added after them.
    pub fn set_codecs(&mut self, codecs: &[Codec]) {
        let before = self.codecs();
        let is_ours = |value: &str| {
            before
                .iter()
                .chain(codecs)
                .any(|one| is_of(value, one.payload_type))
        };
        let staying = codecs.iter().filter(|one| before.contains(one));
        let staying: Vec<PayloadType> = staying.map(|one| one.payload_type).collect();
        self.remove_attributes(|name, value| {
            let stays = || staying.iter().any(|one| is_of(value, *one));
            OF_PAYLOAD_TYPES.contains(&name) && is_ours(value) && !stays()
        });
        let is_map = |line: &Line| {
            let text = line.text_of(b'a').unwrap_or_default();
            text.starts_with("rtpmap:") || text.starts_with("fmtp:")
        };
        let is_head = |line: &Line| b"micbk".iter().any(|kind| line.value_of(*kind).is_some());
        let mut place = match self.place_behind(is_map) {
            0 => self.place_behind(is_head),
            place => place,
        };
        for new in codecs.iter().filter(|one| !before.contains(one)) {
            let number = new.payload_type.0;
            let fmtp = new.fmtp.iter();
            let mut lines: Vec<String> =
                fmtp.map(|fmtp| format!("a=fmtp:{number} {fmtp}")).collect();
            // A codec without a name is described by its payload type only.
            if !new.name.is_empty() {
                lines.insert(0, format!("a=rtpmap:{number} {}", new.rtpmap()));
            }
            for line in lines {
                self.insert(place, &line);
                place += 1;
            }
        }
        let numbers: Vec<String> = codecs
            .iter()
            .map(|one| one.payload_type.0.to_string())
            .collect();
        self.set_formats(&numbers);
    }
}

fn payload_type(format: &str) -> Option<PayloadType> {
    let number = format.parse::<u8>().ok().filter(|number| *number < 128);
    number.map(PayloadType)
}

/// Whether an attribute about a format is malformed.
fn is_broken((name, value): (&str, &str)) -> bool {
    let mut parts = value.trim_start().splitn(2, [' ', '\t']);
    let number = parts.next().and_then(payload_type);
    let rest = parts.next().unwrap_or_default().trim();
    match name {
        "fmtp" => number.is_none() || rest.is_empty(),
        "rtpmap" => {
            let mut parts = rest.split('/');
            let has_name = parts.next().is_some_and(|name| !name.is_empty());
            let is_positive = |text: &str| text.parse().is_ok_and(|number: u32| number > 0);
            number.is_none()
                || !has_name
                || !parts.next().is_some_and(is_positive)
                || !parts.all(is_positive)
        }
        _ => false,
    }
}

/// Returns the part of an attribute's value after the payload type.
fn behind(value: &str, payload_type: PayloadType) -> Option<&str> {
    let (number, rest) = value.trim_start().split_once([' ', '\t'])?;
    (number.parse() == Ok(payload_type.0)).then(|| rest.trim())
}

fn is_of(value: &str, payload_type: PayloadType) -> bool {
    let number = value.trim_start().split([' ', '\t']).next();
    number.map(str::parse) == Some(Ok(payload_type.0))
}

#[cfg(test)]
mod tests {
    use super::super::Sdp;
    use super::*;

    fn media(lines: &str) -> Sdp {
        Sdp::parse(format!("v=0\n{lines}").as_bytes()).expect(lines)
    }

    fn shown(codecs: &[Codec]) -> Vec<String> {
        let one = |codec: &Codec| {
            let fmtp = codec.fmtp.as_deref().unwrap_or_default();
            format!("{} {} {fmtp}", codec.payload_type.0, codec.rtpmap())
        };
        codecs
            .iter()
            .map(|codec| one(codec).trim_end().to_owned())
            .collect()
    }

    #[test]
    fn codecs_come_from_rtpmap_or_the_table() {
        // The lines are examples of RFC 4317, section 2.1 (0, 8, 97), RFC 7587, section 7.1 (opus), and RFC 4733, section 7.1.1 (events).
        let sdp = media(
            "m=audio 49170 RTP/AVP 0 8 97 101 96 18 96 110\na=rtpmap:0 PCMU/8000\na=rtpmap:8 PCMA/8000\na=rtpmap:97 iLBC/8000\n\
             a=rtpmap:101 opus/48000/2\na=fmtp:101 maxplaybackrate=16000; sprop-maxcapturerate=16000\n\
             a=rtpmap:96 telephone-event/8000\na=fmtp:96 0-15,66,70\n",
        );
        let codecs = sdp.media[0].codecs();
        assert_eq!(
            shown(&codecs),
            [
                "0 PCMU/8000",
                "8 PCMA/8000",
                "97 iLBC/8000",
                "101 opus/48000/2 maxplaybackrate=16000; sprop-maxcapturerate=16000",
                "96 telephone-event/8000 0-15,66,70",
                "18 G729/8000",
                "110 /0",
            ]
        );
        assert!(codecs[4].is_telephone_event() && !codecs[4].is_audio() && codecs[3].is_audio());
    }

    #[test]
    fn malformed_formats_are_ignored_and_reported() {
        for (lines, codecs, fault) in [
            ("m=audio 1 RTP/AVP 0 128", &["0 PCMU/8000"][..], "\"128\""),
            ("m=audio 1 RTP/AVP x", &[], "\"x\""),
            ("m=audio 1 RTP/AVP 72\na=rtpmap:72 a/1", &["72 a/1"], "72"),
            ("m=audio 1 RTP/AVP 96", &["96 /0"], "96"),
            ("m=audio 1 RTP/AVP 96\na=rtpmap:96", &["96 /0"], "96"),
            ("m=audio 1 RTP/AVP 96\na=rtpmap:96 /8000", &["96 /0"], "96"),
            (
                "m=audio 1 RTP/AVP 96\na=rtpmap:96 opus",
                &["96 opus/48000"],
                "a=rtpmap:96 opus",
            ),
            (
                "m=audio 1 RTP/AVP 96\na=rtpmap:96 iLBC/x",
                &["96 iLBC/8000"],
                "a=rtpmap:96 iLBC/x",
            ),
            (
                "m=audio 1 RTP/AVP 96\na=rtpmap:96 opus/48000/x",
                &["96 opus/48000"],
                "a=rtpmap:96 opus/48000/x",
            ),
            (
                "m=audio 1 RTP/AVP 5\na=rtpmap:5 DVI4/0",
                &["5 DVI4/8000"],
                "a=rtpmap:5 DVI4/0",
            ),
            (
                "m=audio 1 RTP/AVP 0\na=fmtp:0 ",
                &["0 PCMU/8000"],
                "a=fmtp:0",
            ),
        ] {
            let media = &media(lines).media[0];
            assert_eq!(shown(&media.codecs()), codecs, "{lines}");
            let faults: Vec<String> = media.faults(true).iter().map(ToString::to_string).collect();
            assert!(faults.iter().any(|one| one.contains(fault)), "{faults:?}");
        }
    }

    #[test]
    fn changed_codecs_replace_the_lines_about_the_old_ones() {
        let mut sdp = media(
            "m=audio 1 RTP/AVP 0 97 101\nc=IN IP4 192.0.2.1\na=rtpmap:0 PCMU/8000\na=mid:1\na=rtpmap:97 iLBC/8000\n\
             a=fmtp:97 mode=20\na=rtcp-fb:97 nack\na=rtcp-fb:* ccm\na=rtpmap:101 telephone-event/8000\na=x\n",
        );
        let mut codecs = sdp.media[0].codecs();
        codecs.remove(1);
        codecs.push(Codec {
            payload_type: PayloadType(96),
            name: "opus".to_owned(),
            clock_rate_hz: 48_000,
            channels: 2,
            fmtp: Some("useinbandfec=1".to_owned()),
        });
        sdp.media[0].set_codecs(&codecs);
        assert_eq!(
            String::from_utf8(sdp.to_bytes()).as_deref(),
            Ok(
                "v=0\nm=audio 1 RTP/AVP 0 101 96\nc=IN IP4 192.0.2.1\na=rtpmap:0 PCMU/8000\na=mid:1\na=rtcp-fb:* ccm\n\
                a=rtpmap:101 telephone-event/8000\na=rtpmap:96 opus/48000/2\na=fmtp:96 useinbandfec=1\na=x\n"
            )
        );
        assert_eq!(sdp.media[0].codecs(), codecs);
    }

    #[test]
    fn setting_the_same_codecs_changes_no_byte() {
        let mut sdp = media("m=audio 1  RTP/AVP 0 0 96\na=fmtp:96  x\na=rtpmap:96\topus\n");
        let before = sdp.to_bytes();
        let codecs = sdp.media[0].codecs();
        sdp.media[0].set_codecs(&codecs);
        // All lines stay, except for the repeated number.
        let after = String::from_utf8(sdp.to_bytes()).expect("a text");
        assert_eq!(after.replace("AVP 0 96", "AVP 0 0 96").as_bytes(), before);
    }
}
