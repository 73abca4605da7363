//! Codec names in requests: `opus`, `opus/48000/2`, `opus/48000/2/32000`, `iLBC/8000/1///mode=30`.

use std::str::FromStr;

use crate::sdp::Codec;

/// A codec: `NAME[/RATE[/CHANNELS[/BITRATE[/PTIME[/FMTP[/OPTIONS]]]]]]`, or a payload type number. An empty part counts as
/// absent.
///
/// Case does not matter in names, as in SDP (RFC 4855, section 3). The protocol's documentation distinguishes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// The name, for example "PCMU".
    pub name: String,
    /// Clock rate of the RTP timestamps, Hz.
    pub clock_rate_hz: Option<u32>,
    /// Number of audio channels. If there is a rate, the default is 1: "`opus/48000` to specify Opus with 48 kHz sampling rate and one
    /// channel".
    pub channels: Option<u32>,
    /// Bit rate of the encoder, bits per second.
    pub bitrate_bps: Option<u32>,
    /// Packet time, ms.
    pub ptime_ms: Option<u32>,
    /// Format parameters of an added codec.
    pub fmtp: Option<String>,
    /// Options of the encoder.
    pub options: Option<String>,
}

/// The text does not describe a codec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "codec {0}: expected NAME or NAME/RATE/CHANNELS/BITRATE/PTIME/FMTP/OPTIONS, the numbers above 0"
)]
pub struct SpecError(String);

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let error = || SpecError(crate::text::shown(text.as_bytes()));
        // A part may contain `--` in place of `=`, because "it can be escaped by using two dashes instead".
        let mut parts = text.splitn(7, '/').map(|part| part.replace("--", "="));
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let name = next().ok_or_else(error)?;
        let mut number = || match next().map(|part| part.parse()) {
            None => Ok(None),
            Some(Ok(number)) if number > 0 => Ok(Some(number)),
            Some(_) => Err(error()),
        };
        let (clock_rate_hz, channels) = (number()?, number()?);
        let (bitrate_bps, ptime_ms) = (number()?, number()?);
        let (fmtp, options) = (next(), next());
        Ok(Spec {
            name,
            clock_rate_hz,
            channels: channels.or(clock_rate_hz.map(|_| 1)),
            bitrate_bps,
            ptime_ms,
            fmtp,
            options,
        })
    }
}

impl Spec {
    /// Whether the specification matches `codec`. Format parameters count only if the specification has some: "If any format parameters are
    /// specified, the codec will only be stripped if all of the format parameters match".
    #[must_use]
    pub fn matches(&self, codec: &Codec) -> bool {
        let is_name = self.name.eq_ignore_ascii_case(&codec.name);
        let is_number = self.name.parse() == Ok(codec.payload_type.0);
        let fits = |wanted: Option<u32>, is: u32| wanted.is_none_or(|wanted| wanted == is);
        let (clock_rate_hz, _) = codec.clock_and_channels();
        (is_name || is_number)
            && (fits(self.clock_rate_hz, codec.clock_rate_hz)
                || fits(self.clock_rate_hz, clock_rate_hz))
            && fits(self.channels, codec.channels)
    }

    /// Whether the specification is for telephone events.
    #[must_use]
    pub fn is_telephone_event(&self) -> bool {
        self.name.eq_ignore_ascii_case("telephone-event")
    }

    /// Returns the clock rate and the number of channels. "If no codec format parameters are specified [...] default values will be chosen
    /// for them".
    #[must_use]
    pub fn rate_and_channels(&self) -> (u32, u32) {
        let is_opus = self.name.eq_ignore_ascii_case("opus");
        // Opus has the defaults of RFC 7587. All other codecs have those of telephony, which include G.722's clock rate.
        let usual = if is_opus { (48_000, 2) } else { (8000, 1) };
        let rate = self.clock_rate_hz.unwrap_or(usual.0);
        (rate, self.channels.unwrap_or(usual.1))
    }
}

#[cfg(test)]
mod tests {
    use threadbare_rtp_types::id::PayloadType;

    use super::*;

    fn spec(text: &str) -> Spec {
        text.parse().expect(text)
    }

    #[test]
    fn documented_forms_of_codec_specifications_are_parsed() {
        let opus = spec("opus/48000/2/32000");
        assert_eq!(
            (opus.clock_rate_hz, opus.channels, opus.bitrate_bps),
            (Some(48_000), Some(2), Some(32_000))
        );
        for text in ["iLBC/8000/1///mode=30", "iLBC/8000/1///mode--30"] {
            let ilbc = spec(text);
            assert_eq!(
                (ilbc.name.as_str(), ilbc.fmtp.as_deref(), ilbc.bitrate_bps),
                ("iLBC", Some("mode=30"), None)
            );
        }
        let options = spec("opus/48000/2////compression_level=2");
        assert_eq!(
            (options.fmtp, options.options.as_deref()),
            (None, Some("compression_level=2"))
        );
        assert_eq!(spec("PCMU").rate_and_channels(), (8000, 1));
        assert_eq!(spec("opus").rate_and_channels(), (48_000, 2));
        assert_eq!(spec("opus/48000").rate_and_channels(), (48_000, 1));
        // Any part except the name may be empty.
        let options = spec("opus//2/16000////x");
        assert_eq!((options.clock_rate_hz, options.channels), (None, Some(2)));
        assert_eq!(spec("PCMA////40").fmtp.as_deref(), None);
        assert_eq!(spec("PCMA////40").ptime_ms, Some(40));
        for text in ["", "/8000", "a/x", "a/0", "a/-1", "a/8000/1/1.5"] {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
    }

    #[test]
    fn given_parameters_must_match() {
        let codec = Codec {
            payload_type: PayloadType(96),
            name: "opus".to_owned(),
            clock_rate_hz: 48_000,
            channels: 2,
            fmtp: None,
        };
        for text in ["opus", "OPUS", "opus/48000/2", "96"] {
            assert!(spec(text).matches(&codec), "{text}");
        }
        for text in ["opus/48000", "opus/48000/1", "opus/16000/2", "PCMU", "97"] {
            assert!(!spec(text).matches(&codec), "{text}");
        }
    }
}
