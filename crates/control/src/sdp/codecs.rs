//! The payload types of a medium: `m=` formats with `rtpmap` and `fmtp`, or by RFC 3551's table.

use threadbare_rtp::id::PayloadType;
use threadbare_rtp::payload::static_payload;

use super::document::{Line, SdpError, Section};

/// A payload type and what its packets carry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Codec {
    /// The number in the packets. It belongs to the description that it stands in (RFC 3264, section 5.1).
    #[serde(with = "crate::mirror")]
    pub payload_type: PayloadType,
    /// As in `rtpmap`, such as "PCMU"; empty if the description does not say.
    pub name: String,
    /// Of the RTP timestamps; 0 if the description does not say.
    pub clock_rate_hz: u32,
    /// Of audio; 1 if the description does not say.
    pub channels: u32,
    /// Format parameters, as they are written.
    pub fmtp: Option<String>,
}

impl Codec {
    /// Whether both mean the same packets but for their number and parameters. Case does not count in names (RFC 4855, section 3).
    #[must_use]
    pub fn is_format_of(&self, other: &Codec) -> bool {
        !self.name.is_empty()
            && self.name.eq_ignore_ascii_case(&other.name)
            && self.clock_rate_hz == other.clock_rate_hz
            && self.channels == other.channels
    }

    /// Keys as telephone events (RFC 4733).
    #[must_use]
    pub fn is_telephone_event(&self) -> bool {
        self.name.eq_ignore_ascii_case("telephone-event")
    }

    /// Comfort noise (RFC 3389).
    #[must_use]
    pub fn is_comfort_noise(&self) -> bool {
        self.name.eq_ignore_ascii_case("CN")
    }

    /// Whether the packets are audio of their own, and not events or noise beside it.
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

    /// `NAME/RATE`, and `/CHANNELS` if there are more than one.
    #[must_use]
    pub fn rtpmap(&self) -> String {
        match self.channels {
            0 | 1 => format!("{}/{}", self.name, self.clock_rate_hz),
            channels => format!("{}/{}/{channels}", self.name, self.clock_rate_hz),
        }
    }
}

/// Attributes whose value begins with a payload type.
const OF_PAYLOAD_TYPES: &[&str] = &["rtpmap", "fmtp", "rtcp-fb"];

impl Section {
    /// The codecs in the order of the `m=` line, which is that of preference (RFC 3264, section 5.1). A number that comes again is passed over.
    ///
    /// # Errors
    /// The `m=` line is malformed, a format is no payload type, or an `rtpmap` of one is malformed.
    pub fn codecs(&self) -> Result<Vec<Codec>, SdpError> {
        let media = self.media_line()?;
        let mut codecs: Vec<Codec> = Vec::new();
        for format in media.formats {
            let number = format.parse::<u8>().ok().filter(|number| *number < 128);
            let number = number.ok_or_else(|| {
                let text = self.lines().first().map_or(&b""[..], Line::text);
                SdpError::line(text, "payload types from 0 to 127")
            })?;
            if codecs.iter().all(|one| one.payload_type.0 != number) {
                codecs.push(self.codec(PayloadType(number))?);
            }
        }
        Ok(codecs)
    }

    fn codec(&self, payload_type: PayloadType) -> Result<Codec, SdpError> {
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
        let Some(rtpmap) = value("rtpmap") else {
            return Ok(codec);
        };
        let malformed = || {
            let line = format!("a=rtpmap:{} {rtpmap}", payload_type.0);
            SdpError::line(
                line.as_bytes(),
                "a=rtpmap:NUMBER NAME/RATE or NAME/RATE/CHANNELS",
            )
        };
        let mut parts = rtpmap.trim().split('/');
        codec.name = parts.next().unwrap_or_default().to_owned();
        let rate = parts.next().and_then(|rate| rate.parse().ok());
        codec.clock_rate_hz = rate.ok_or_else(malformed)?;
        let channels = parts.next().map_or(Ok(1), str::parse);
        codec.channels = channels.map_err(|_| malformed())?;
        match codec.name.is_empty() || codec.clock_rate_hz == 0 || codec.channels == 0 {
            true => Err(malformed()),
            false => Ok(codec),
        }
    }

    /// Replaces the codecs. Lines of those that stay as they were stay as they are; lines of others go; new ones get lines behind those.
    ///
    /// # Errors
    /// The codecs so far are malformed.
    pub fn set_codecs(&mut self, codecs: &[Codec]) -> Result<(), SdpError> {
        let before = self.codecs()?;
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
            let mut lines = vec![format!("a=rtpmap:{number} {}", new.rtpmap())];
            lines.extend(
                new.fmtp
                    .iter()
                    .map(|fmtp| format!("a=fmtp:{number} {fmtp}")),
            );
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
        Ok(())
    }
}

/// What stands behind the payload type in an attribute's value.
fn behind(value: &str, payload_type: PayloadType) -> Option<&str> {
    let (number, rest) = value.split_once(' ')?;
    (number.parse() == Ok(payload_type.0)).then(|| rest.trim_start())
}

fn is_of(value: &str, payload_type: PayloadType) -> bool {
    value.split(' ').next().map(str::parse) == Some(Ok(payload_type.0))
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
        // RFC 4317, section 2.1 (0, 8, 97), RFC 7587, section 7.1 (opus), RFC 4733, section 7.1.1 (events).
        let sdp = media(
            "m=audio 49170 RTP/AVP 0 8 97 101 96 18 96 110\na=rtpmap:0 PCMU/8000\na=rtpmap:8 PCMA/8000\na=rtpmap:97 iLBC/8000\n\
             a=rtpmap:101 opus/48000/2\na=fmtp:101 maxplaybackrate=16000; sprop-maxcapturerate=16000\n\
             a=rtpmap:96 telephone-event/8000\na=fmtp:96 0-15,66,70\n",
        );
        let codecs = sdp.media[0].codecs().expect("codecs");
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
    fn malformed_maps_are_named() {
        for lines in [
            "m=audio 1 RTP/AVP 128",
            "m=audio 1 RTP/AVP x",
            "m=audio 1 RTP/AVP 96\na=rtpmap:96 opus",
            "m=audio 1 RTP/AVP 96\na=rtpmap:96 /8000",
            "m=audio 1 RTP/AVP 96\na=rtpmap:96 opus/x",
            "m=audio 1 RTP/AVP 96\na=rtpmap:96 opus/48000/x",
            "m=audio 1 RTP/AVP 0\na=rtpmap:0 PCMU/0",
        ] {
            let error = media(lines).media[0].codecs().expect_err(lines);
            assert!(error.to_string().contains("expected"), "{error}");
        }
    }

    #[test]
    fn lines_follow_the_codecs() {
        let mut sdp = media(
            "m=audio 1 RTP/AVP 0 97 101\nc=IN IP4 192.0.2.1\na=rtpmap:0 PCMU/8000\na=mid:1\na=rtpmap:97 iLBC/8000\n\
             a=fmtp:97 mode=20\na=rtcp-fb:97 nack\na=rtcp-fb:* ccm\na=rtpmap:101 telephone-event/8000\na=x\n",
        );
        let mut codecs = sdp.media[0].codecs().expect("codecs");
        codecs.remove(1);
        codecs.push(Codec {
            payload_type: PayloadType(96),
            name: "opus".to_owned(),
            clock_rate_hz: 48_000,
            channels: 2,
            fmtp: Some("useinbandfec=1".to_owned()),
        });
        sdp.media[0].set_codecs(&codecs).expect("codecs");
        assert_eq!(
            String::from_utf8(sdp.to_bytes()).as_deref(),
            Ok(
                "v=0\nm=audio 1 RTP/AVP 0 101 96\nc=IN IP4 192.0.2.1\na=rtpmap:0 PCMU/8000\na=mid:1\na=rtcp-fb:* ccm\n\
                a=rtpmap:101 telephone-event/8000\na=rtpmap:96 opus/48000/2\na=fmtp:96 useinbandfec=1\na=x\n"
            )
        );
        assert_eq!(sdp.media[0].codecs(), Ok(codecs));
    }

    #[test]
    fn the_same_codecs_change_no_byte() {
        let mut sdp = media("m=audio 1  RTP/AVP 0 0 96\na=fmtp:96  x\na=rtpmap:96\topus\n");
        let before = sdp.to_bytes();
        let codecs = sdp.media[0].codecs().expect("codecs");
        sdp.media[0].set_codecs(&codecs).expect("codecs");
        // But for the number that came twice.
        let after = String::from_utf8(sdp.to_bytes()).expect("a text");
        assert_eq!(after.replace("AVP 0 96", "AVP 0 0 96").as_bytes(), before);
    }
}
