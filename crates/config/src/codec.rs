//! The codecs that the gateway knows, with their names, RTP parameters and payload types.

use std::fmt;
use std::str::FromStr;

use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::opus;

/// An audio codec with its RTP parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// G.711 µ-law, 8000 Hz mono.
    Pcmu,
    /// G.711 A-law, 8000 Hz mono.
    Pcma,
    /// G.722 at 64 kbit/s, 16,000 Hz mono. Its RTP clock has 8000 Hz.
    G722,
    /// 24-bit linear audio in network byte order, interleaved (RFC 3190).
    L24 {
        /// Samples per second and channel.
        rate_hz: u32,
        /// Interleaved channels.
        channels: u32,
    },
    /// 16-bit linear audio in network byte order, interleaved.
    L16 {
        /// Samples per second and channel.
        rate_hz: u32,
        /// Interleaved channels.
        channels: u32,
    },
    /// Opus. Its RTP clock always has 48,000 Hz.
    Opus,
}

/// How the codec of a received stream is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecIn {
    /// The payload type of the first packet determines the codec (RFC 3551).
    Auto,
    /// The codec is configured.
    Known(Codec),
}

/// An unknown codec name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the codec is unknown")]
pub struct UnknownCodec;

/// Allowed codec names, for error messages.
pub const ALLOWED_CODECS: &str = "PCMU, PCMA, G722, Opus, L16 (44100 Hz mono), L16/RATE/CHANNELS or L24/RATE/CHANNELS, for example L16/16000/1";

impl Codec {
    /// Returns the codec of a static payload type (RFC 3551, section 6, table 4).
    pub fn from_static_payload_type(payload_type: u8) -> Option<Codec> {
        match payload_type {
            0 => Some(Codec::Pcmu),
            8 => Some(Codec::Pcma),
            9 => Some(Codec::G722),
            10 => Some(Codec::L16 {
                rate_hz: 44100,
                channels: 2,
            }),
            11 => Some(Codec::L16 {
                rate_hz: 44100,
                channels: 1,
            }),
            _ => None,
        }
    }

    /// Returns all codecs that have a static payload type.
    pub fn with_static_payload_types() -> impl Iterator<Item = Codec> {
        (0..STATIC_PAYLOAD_TYPES).filter_map(Codec::from_static_payload_type)
    }

    /// Returns the payload type of sent packets. It is the static one if it exists, else [`DYNAMIC_PAYLOAD_TYPE`].
    pub fn default_payload_type(self) -> u8 {
        (0..STATIC_PAYLOAD_TYPES)
            .find(|n| Codec::from_static_payload_type(*n) == Some(self))
            .unwrap_or(DYNAMIC_PAYLOAD_TYPE)
    }

    /// Returns the payload types of received packets that are accepted if none is configured. For PCMU, PCMA and G722, it is only the
    /// static type, because all senders use it. For other codecs, senders may also use any dynamic type.
    pub fn usual_payload_types(self) -> impl Iterator<Item = u8> {
        let dynamic = match self {
            Codec::Pcmu | Codec::Pcma | Codec::G722 => DYNAMIC_PAYLOAD_TYPE..DYNAMIC_PAYLOAD_TYPE,
            Codec::L16 { .. } | Codec::L24 { .. } | Codec::Opus => {
                DYNAMIC_PAYLOAD_TYPE..PAYLOAD_TYPES
            }
        };
        std::iter::once(self.default_payload_type()).chain(dynamic)
    }

    /// Returns the duration of a payload's audio, in units of the codec's RTP clock.
    pub fn audio_samples(self, payload: &[u8]) -> u32 {
        match self {
            Codec::Pcmu | Codec::Pcma | Codec::G722 => payload.len() as u32,
            Codec::L16 { channels, .. } => payload.len() as u32 / 2 / channels,
            Codec::L24 { channels, .. } => payload.len() as u32 / 3 / channels,
            Codec::Opus => opus::packet_samples(payload).unwrap_or(0),
        }
    }

    /// Returns the duration of a payload in microseconds.
    pub fn audio_us(self, payload: &[u8]) -> u64 {
        u64::from(self.audio_samples(payload)) * 1_000_000 / u64::from(self.clock_rate_hz())
    }

    /// Returns the format of the audio in packets.
    pub fn format(self) -> Format {
        let format = match self {
            Codec::Pcmu => Format::new(Encoding::Pcmu, 8000, 1),
            Codec::Pcma => Format::new(Encoding::Pcma, 8000, 1),
            Codec::G722 => Format::new(Encoding::G722, 16_000, 1),
            Codec::L16 { rate_hz, channels } => Format::new(Encoding::L16, rate_hz, channels as u8),
            Codec::L24 { rate_hz, channels } => Format::new(Encoding::L24, rate_hz, channels as u8),
            Codec::Opus => Format::new(Encoding::Opus, 48_000, 2),
        };
        format.expect("a codec is made from a format")
    }

    /// Returns the RTP clock rate in Hz.
    pub fn clock_rate_hz(self) -> u32 {
        match self {
            Codec::Pcmu | Codec::Pcma | Codec::G722 => 8000,
            Codec::L16 { rate_hz, .. } | Codec::L24 { rate_hz, .. } => rate_hz,
            Codec::Opus => 48000,
        }
    }

    /// Returns allowed packet times for sending, in milliseconds.
    pub fn ptimes_ms(self) -> &'static [u32] {
        match self {
            // These are the frame sizes of opusenc. The frame size of 2.5 ms is left out, because it is not a whole number.
            Codec::Opus => &[5, 10, 20, 40, 60],
            Codec::L24 { .. } => &[1, 2, 3, 4, 5, 10, 20],
            Codec::Pcmu | Codec::Pcma | Codec::G722 | Codec::L16 { .. } => &[5, 10, 20, 30, 40, 60],
        }
    }

    /// Returns the number of payload bytes of a packet of `ptime_ms`, if the codec has a fixed bit rate.
    pub fn payload_bytes(self, ptime_ms: u32) -> Option<u32> {
        match self {
            Codec::Pcmu | Codec::Pcma | Codec::G722 => Some(8 * ptime_ms),
            Codec::L16 { rate_hz, channels } => Some(rate_hz * ptime_ms / 1000 * channels * 2),
            Codec::L24 { rate_hz, channels } => Some(rate_hz * ptime_ms / 1000 * channels * 3),
            Codec::Opus => None,
        }
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let name = parts.next().unwrap_or_default();
        let (rate, channels) = (parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(UnknownCodec);
        }
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        match (rate, channels) {
            (None, None) if is("pcmu") => Ok(Codec::Pcmu),
            (None, None) if is("pcma") => Ok(Codec::Pcma),
            (None, None) if is("opus") => Ok(Codec::Opus),
            (None, None) if is("l16") => Ok(Codec::L16 {
                rate_hz: 44100,
                channels: 1,
            }),
            (None, None) if is("g722") => Ok(Codec::G722),
            (Some(rate), channels) if is("l16") || is("l24") => {
                let rate_hz = rate.parse().map_err(|_| UnknownCodec)?;
                let channels: u8 = channels.unwrap_or("1").parse().map_err(|_| UnknownCodec)?;
                let encoding = if is("l16") {
                    Encoding::L16
                } else {
                    Encoding::L24
                };
                Format::new(encoding, rate_hz, channels).map_err(|_| UnknownCodec)?;
                let channels = channels.into();
                Ok(match encoding {
                    Encoding::L16 => Codec::L16 { rate_hz, channels },
                    _ => Codec::L24 { rate_hz, channels },
                })
            }
            _ => Err(UnknownCodec),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::Pcmu => f.write_str("PCMU"),
            Codec::Pcma => f.write_str("PCMA"),
            Codec::G722 => f.write_str("G722"),
            Codec::L16 { rate_hz, channels } => write!(f, "L16/{rate_hz}/{channels}"),
            Codec::L24 { rate_hz, channels } => write!(f, "L24/{rate_hz}/{channels}"),
            Codec::Opus => f.write_str("Opus"),
        }
    }
}

impl fmt::Display for CodecIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecIn::Auto => f.write_str("auto"),
            CodecIn::Known(codec) => codec.fmt(f),
        }
    }
}

/// First of the dynamic payload types (RFC 3551, section 3).
pub const DYNAMIC_PAYLOAD_TYPE: u8 = 96;

/// Number of payload types. A payload type has seven bits (RFC 3550, section 5.1).
pub const PAYLOAD_TYPES: u8 = 128;

/// Number of payload types that are static or reserved. They are the lowest ones (RFC 3551, section 6).
const STATIC_PAYLOAD_TYPES: u8 = 35;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["PCMU", "PCMA", "Opus", "L16/44100/1", "L16/8000/2"] {
            assert_eq!(
                name.parse::<Codec>()
                    .map(|codec| codec.to_string())
                    .as_deref(),
                Ok(name)
            );
        }
        assert_eq!(
            "l16".parse(),
            Ok(Codec::L16 {
                rate_hz: 44100,
                channels: 1
            })
        );
    }

    #[test]
    fn invalid_codec_is_refused() {
        for name in [
            "",
            "G729",
            "PCMU/8000",
            "L16/1/1",
            "L16/8000/9",
            "L16/x",
            "L16/8000/1/1",
        ] {
            assert_eq!(name.parse::<Codec>(), Err(UnknownCodec), "{name}");
        }
    }

    #[test]
    fn static_payload_types_are_used_to_send() {
        for (name, payload_type) in [
            ("PCMU", 0),
            ("PCMA", 8),
            ("L16/44100/2", 10),
            ("L16", 11),
            ("L16/8000/1", 96),
            ("Opus", 96),
        ] {
            let codec = name.parse::<Codec>().expect("a codec");
            assert_eq!(codec.default_payload_type(), payload_type, "{name}");
        }
    }
}
