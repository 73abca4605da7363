//! Formats of audio in RTP packets: encoding, rates, channels, and the resulting sizes.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::id::PayloadType;

/// Encoding of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// ITU-T G.711, µ-law (RFC 3551, section 4.5.14).
    Pcmu,
    /// ITU-T G.711, A-law (RFC 3551, section 4.5.14).
    Pcma,
    /// ITU-T G.722 at 64 kbit/s (RFC 3551, section 4.5.2).
    G722,
    /// Linear, 16 bits (RFC 3551, section 4.5.11).
    L16,
    /// Linear, 24 bits (RFC 3190, section 4).
    L24,
    /// Opus (RFC 6716, RFC 7587).
    Opus,
}

impl Encoding {
    /// Every encoding.
    pub const ALL: [Encoding; 6] = [
        Encoding::Pcmu,
        Encoding::Pcma,
        Encoding::G722,
        Encoding::L16,
        Encoding::L24,
        Encoding::Opus,
    ];

    /// Returns the name as in an SDP `rtpmap`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Pcmu => "PCMU",
            Encoding::Pcma => "PCMA",
            Encoding::G722 => "G722",
            Encoding::L16 => "L16",
            Encoding::L24 => "L24",
            Encoding::Opus => "opus",
        }
    }

    /// Returns the sample rates of this encoding, in Hz.
    #[must_use]
    pub fn sample_rates_hz(self) -> &'static [u32] {
        match self {
            Encoding::G722 => &[16_000],
            Encoding::Opus => &[8_000, 12_000, 16_000, 24_000, 48_000],
            _ => &SAMPLE_RATES_HZ,
        }
    }

    fn channels_max(self) -> u8 {
        match self {
            Encoding::G722 => 1,
            Encoding::Opus => 2,
            _ => CHANNELS_MAX,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encoding {
    type Err = FormatError;

    /// Ignores case, because the names are media subtypes (RFC 4855, section 3).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |encoding: &Encoding| encoding.name().eq_ignore_ascii_case(text);
        let found = Encoding::ALL.into_iter().find(named);
        found.ok_or_else(|| FormatError::Encoding(text.to_owned()))
    }
}

/// An audio format of RTP packets. [`Format::new`] and [`Format::from_rtpmap`] make only valid ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Format {
    /// Encoding of the samples.
    pub encoding: Encoding,
    /// Units of the RTP timestamps per second. It differs from the sample rate for G.722 ("the RTP clock rate for the G722
    /// payload format is 8,000 Hz", RFC 3551, section 4.5.2) and Opus (48,000 always: RFC 7587, section 4.1).
    pub clock_rate_hz: u32,
    /// Frames per second of the decoded audio.
    pub sample_rate_hz: u32,
    /// Channels of the decoded audio, interleaved.
    pub channels: u8,
}

/// Why a format, a packet time or an `rtpmap` is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatError {
    /// No encoding has this name.
    #[error("encoding \"{0}\": expected PCMU, PCMA, G722, L16, L24 or opus")]
    Encoding(String),
    /// The encoding does not sample at this rate.
    #[error("{encoding}: sample rate {rate_hz} Hz, must be one of {:?}", encoding.sample_rates_hz())]
    Rate {
        /// The encoding.
        encoding: Encoding,
        /// The requested rate.
        rate_hz: u32,
    },
    /// The clock of this encoding has another rate.
    #[error("{encoding}: clock rate {rate_hz} Hz, must be {allowed_hz}")]
    Clock {
        /// The encoding.
        encoding: Encoding,
        /// The requested rate.
        rate_hz: u32,
        /// The only valid rate.
        allowed_hz: u32,
    },
    /// The encoding does not support this number of channels.
    #[error("{encoding}: {channels} channels, must be {}", allowed_channels(*encoding))]
    Channels {
        /// The encoding.
        encoding: Encoding,
        /// The requested number.
        channels: u8,
    },
    /// The text is not an `rtpmap`.
    #[error("rtpmap \"{0}\": expected ENCODING/CLOCK-RATE or ENCODING/CLOCK-RATE/CHANNELS")]
    Rtpmap(String),
    /// Packets of this encoding cannot last that long.
    #[error("{format}: packet time {us} µs, must be {}", allowed_times(format))]
    PacketTime {
        /// The format.
        format: Format,
        /// The requested time.
        us: u32,
    },
}

fn allowed_channels(encoding: Encoding) -> String {
    match encoding.channels_max() {
        1 => "1".to_owned(),
        most => format!("1 to {most}"),
    }
}

fn allowed_times(format: &Format) -> String {
    match format.encoding {
        Encoding::Opus => format!("one of {OPUS_TIMES_US:?}"),
        _ => format!("{PACKET_US_MIN} to {PACKET_US_MAX}"),
    }
}

impl Format {
    /// Returns the format of audio of `sample_rate_hz` in this encoding, which determines the clock rate. `channels` of Opus are
    /// those of the decoded audio.
    ///
    /// # Errors
    /// Fails if the encoding does not support this rate or number of channels.
    pub fn new(
        encoding: Encoding,
        sample_rate_hz: u32,
        channels: u8,
    ) -> Result<Format, FormatError> {
        if !encoding.sample_rates_hz().contains(&sample_rate_hz) {
            return Err(FormatError::Rate {
                encoding,
                rate_hz: sample_rate_hz,
            });
        }
        if !(1..=encoding.channels_max()).contains(&channels) {
            return Err(FormatError::Channels { encoding, channels });
        }
        let clock_rate_hz = match encoding {
            Encoding::G722 => G722_CLOCK_HZ,
            Encoding::Opus => OPUS_CLOCK_HZ,
            _ => sample_rate_hz,
        };
        Ok(Format {
            encoding,
            clock_rate_hz,
            sample_rate_hz,
            channels,
        })
    }

    /// Parses the format of an SDP `rtpmap`, such as "L24/48000/8" (RFC 8866, section 6.6). Opus is decoded at 48 kHz, to two
    /// channels.
    ///
    /// # Errors
    /// Fails if the text is not an `rtpmap`, or if its format is not supported.
    pub fn from_rtpmap(text: &str) -> Result<Format, FormatError> {
        let malformed = || FormatError::Rtpmap(text.to_owned());
        let mut parts = text.trim().split('/');
        let encoding: Encoding = parts.next().unwrap_or_default().parse()?;
        let clock = parts.next().ok_or_else(malformed)?;
        let rate_hz: u32 = clock.parse().map_err(|_| malformed())?;
        let channels = parts.next().map(str::parse).transpose();
        let channels: Option<u8> = channels.map_err(|_| malformed())?;
        if parts.next().is_some() {
            return Err(malformed());
        }
        let (fixed_hz, channels) = match encoding {
            Encoding::G722 => (Some(G722_CLOCK_HZ), channels.unwrap_or(1)),
            // "The number of channels MUST be 2" (RFC 7587, section 7). Some senders omit the number.
            Encoding::Opus => match channels.unwrap_or(2) {
                2 => (Some(OPUS_CLOCK_HZ), 2),
                channels => return Err(FormatError::Channels { encoding, channels }),
            },
            _ => (None, channels.unwrap_or(1)),
        };
        let sample_rate_hz = match fixed_hz {
            Some(allowed_hz) if allowed_hz != rate_hz => {
                return Err(FormatError::Clock {
                    encoding,
                    rate_hz,
                    allowed_hz,
                });
            }
            Some(_) if encoding == Encoding::G722 => 16_000,
            _ => rate_hz,
        };
        Format::new(encoding, sample_rate_hz, channels)
    }

    /// Returns the format of a static payload type (RFC 3551, section 6, table 4), if it has an [`Encoding`].
    #[must_use]
    pub fn of_static(payload_type: PayloadType) -> Option<Format> {
        let (encoding, sample_rate_hz, channels) = match payload_type.0 {
            0 => (Encoding::Pcmu, 8_000, 1),
            8 => (Encoding::Pcma, 8_000, 1),
            9 => (Encoding::G722, 16_000, 1),
            10 => (Encoding::L16, 44_100, 2),
            11 => (Encoding::L16, 44_100, 1),
            _ => return None,
        };
        Format::new(encoding, sample_rate_hz, channels).ok()
    }

    /// Returns the number of frames in a payload of `bytes`. `None`: the number depends on the contents (Opus), or the payload
    /// ends within a frame.
    #[must_use]
    pub fn payload_samples(&self, bytes: usize) -> Option<u32> {
        let frames = match self.encoding {
            Encoding::Opus => return None,
            Encoding::G722 => bytes.checked_mul(2)?,
            _ => {
                let frame_bytes = self.frame_bytes()?;
                if !bytes.is_multiple_of(frame_bytes) {
                    return None;
                }
                bytes / frame_bytes
            }
        };
        u32::try_from(frames).ok()
    }

    /// Returns the number of bytes of a payload of `frames`. `None`: the encoder decides (Opus), or the frames do not fill whole
    /// bytes (G.722).
    #[must_use]
    pub fn payload_bytes(&self, frames: usize) -> Option<usize> {
        match self.encoding {
            Encoding::G722 => frames.is_multiple_of(2).then_some(frames / 2),
            _ => self.frame_bytes()?.checked_mul(frames),
        }
    }

    /// Returns the longest payload, in frames, that fits into `payload_bytes` (the MTU without headers). `None` for Opus: its
    /// encoder gets the limit instead (`EncoderSettings::payload_bytes_max` of its codec).
    #[must_use]
    pub fn max_frames_for(&self, payload_bytes: usize) -> Option<usize> {
        let longest =
            (u64::from(PACKET_US_MAX) * u64::from(self.sample_rate_hz) / 1_000_000) as usize;
        let fitting = match self.encoding {
            Encoding::G722 => payload_bytes.saturating_mul(2),
            _ => payload_bytes / self.frame_bytes()?,
        };
        Some(fitting.min(longest))
    }

    /// Returns the number of frames of a packet of `us` microseconds, rounded to the nearest frame. For example, AES67 calls
    /// packets of 48 frames at 44.1 kHz "1 ms".
    ///
    /// # Errors
    /// Fails if packets cannot last that long. The range is 0.125 to 120 ms; for Opus, it is a frame (2.5, 5, 10, 20, 40 or 60
    /// ms) or 80, 100, 120 ms.
    pub fn frames_per_packet(&self, us: u32) -> Result<usize, FormatError> {
        let scaled = u64::from(us) * u64::from(self.sample_rate_hz);
        let mut frames = (scaled + 500_000) / 1_000_000;
        if self.encoding == Encoding::G722 {
            frames = frames.next_multiple_of(2);
        }
        let is_allowed = match self.encoding {
            Encoding::Opus => OPUS_TIMES_US.contains(&us),
            _ => (PACKET_US_MIN..=PACKET_US_MAX).contains(&us),
        };
        if is_allowed {
            Ok(frames as usize)
        } else {
            Err(FormatError::PacketTime { format: *self, us })
        }
    }

    /// Whether an encoder supports packets of this many frames.
    #[must_use]
    pub fn allows_frames(&self, frames: usize) -> bool {
        let us = frames as u64 * 1_000_000;
        let rate_hz = u64::from(self.sample_rate_hz);
        match self.encoding {
            Encoding::Opus => OPUS_TIMES_US
                .iter()
                .any(|time| u64::from(*time) * rate_hz == us),
            Encoding::G722 => {
                frames > 0 && frames.is_multiple_of(2) && us <= u64::from(PACKET_US_MAX) * rate_hz
            }
            _ => frames > 0 && us <= u64::from(PACKET_US_MAX) * rate_hz,
        }
    }

    /// Returns by how much RTP timestamps increase over `frames`.
    #[must_use]
    pub fn clock_units(&self, frames: u32) -> u32 {
        (u64::from(frames) * u64::from(self.clock_rate_hz) / u64::from(self.sample_rate_hz)) as u32
    }

    /// Returns the number of frames within `units` of RTP time.
    #[must_use]
    pub fn frames_of_units(&self, units: u32) -> u64 {
        u64::from(units) * u64::from(self.sample_rate_hz) / u64::from(self.clock_rate_hz)
    }

    /// Checks that [`Format::new`] would accept this format. This is needed because the fields are public.
    ///
    /// # Errors
    /// Fails with the reason if the format is invalid.
    pub fn check(&self) -> Result<(), FormatError> {
        let valid = Format::new(self.encoding, self.sample_rate_hz, self.channels)?;
        if valid.clock_rate_hz == self.clock_rate_hz {
            return Ok(());
        }
        Err(FormatError::Clock {
            encoding: self.encoding,
            rate_hz: self.clock_rate_hz,
            allowed_hz: valid.clock_rate_hz,
        })
    }

    /// Returns the number of bytes per frame, for encodings with a fixed number.
    fn frame_bytes(&self) -> Option<usize> {
        let sample_bytes = match self.encoding {
            Encoding::Pcmu | Encoding::Pcma => 1,
            Encoding::L16 => 2,
            Encoding::L24 => 3,
            Encoding::G722 | Encoding::Opus => return None,
        };
        Some(sample_bytes * usize::from(self.channels))
    }
}

/// Formats as in an SDP `rtpmap`. Opus is "opus/48000/2" at any decoded rate and number of channels.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.encoding, self.clock_rate_hz)?;
        match (self.encoding, self.channels) {
            (Encoding::Opus, _) => f.write_str("/2"),
            (_, 1) => Ok(()),
            (_, channels) => write!(f, "/{channels}"),
        }
    }
}

/// Sample rates that are used for audio, in Hz: those of RFC 3551, section 4.5.11, 12 kHz for Opus, and 96 kHz for studios.
pub const SAMPLE_RATES_HZ: [u32; 13] = [
    8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 176_400,
    192_000,
];

/// Maximum number of channels: the number that AES67 requires.
pub const CHANNELS_MAX: u8 = 8;

/// RTP clock rate of Opus (RFC 7587, section 4.1). It is the same at any encoded rate.
pub const OPUS_CLOCK_HZ: u32 = 48_000;

/// See [`Format::clock_rate_hz`].
const G722_CLOCK_HZ: u32 = 8_000;

/// The shortest packet time of AES67, 6 frames at 48 kHz.
const PACKET_US_MIN: u32 = 125;

/// The longest packet time of Opus. It applies to all encodings, because longer packets are not suitable for a conversation.
const PACKET_US_MAX: u32 = 120_000;

/// Frames of 2.5 to 60 ms, and packets of several frames that libopus produces (RFC 6716, sections 3.1 and 3.2).
const OPUS_TIMES_US: [u32; 9] = [
    2_500, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::static_payload;

    #[test]
    fn rtpmaps_round_trip() {
        // Text, sample rate, channels; the texts are those of RFC 3551, 3190 and 7587.
        for (text, sample_rate_hz, channels) in [
            ("PCMU/8000", 8_000, 1),
            ("PCMA/16000", 16_000, 1),
            ("G722/8000", 16_000, 1),
            ("L16/44100/2", 44_100, 2),
            ("L24/48000/8", 48_000, 8),
            ("L24/96000", 96_000, 1),
            ("opus/48000/2", 48_000, 2),
        ] {
            let format = Format::from_rtpmap(text).expect(text);
            assert_eq!(format.sample_rate_hz, sample_rate_hz, "{text}");
            assert_eq!(format.channels, channels, "{text}");
            assert_eq!(format.to_string(), text);
        }
        let lower = Format::from_rtpmap("l24/48000/8").expect("case does not matter");
        assert_eq!(lower.to_string(), "L24/48000/8");
        assert!(Format::from_rtpmap("PCMU/8000/1").is_ok());
    }

    #[test]
    fn refusals_state_the_value_and_the_allowed_values() {
        for (text, expected) in [
            (
                "GSM/8000",
                "encoding \"GSM\": expected PCMU, PCMA, G722, L16, L24 or opus",
            ),
            (
                "PCMU",
                "rtpmap \"PCMU\": expected ENCODING/CLOCK-RATE or ENCODING/CLOCK-RATE/CHANNELS",
            ),
            ("G722/16000", "G722: clock rate 16000 Hz, must be 8000"),
            ("G722/8000/2", "G722: 2 channels, must be 1"),
            ("L24/48000/9", "L24: 9 channels, must be 1 to 8"),
            ("L24/48000/0", "L24: 0 channels, must be 1 to 8"),
            ("opus/16000/2", "opus: clock rate 16000 Hz, must be 48000"),
        ] {
            let error = Format::from_rtpmap(text).expect_err(text);
            assert_eq!(error.to_string(), expected);
        }
        for text in [
            "L16/x",
            "L16/8000/1/1",
            "L16/8000/300",
            "L16/-8000",
            "",
            "/",
        ] {
            assert!(Format::from_rtpmap(text).is_err(), "{text}");
        }
        let error = Format::new(Encoding::L16, 7_000, 1).expect_err("no such rate");
        assert!(
            error
                .to_string()
                .contains("7000 Hz, must be one of [8000, ")
        );
        let opus = Format::from_rtpmap("opus/48000").expect("without channels");
        let error = opus.frames_per_packet(30_000).expect_err("no such frame");
        assert!(
            error
                .to_string()
                .contains("30000 µs, must be one of [2500, ")
        );
    }

    #[test]
    fn static_payload_types_equal_the_table_of_rfc_3551() {
        for number in 0..128 {
            let payload_type = PayloadType(number);
            let Some(format) = Format::of_static(payload_type) else {
                continue;
            };
            let entry = static_payload(payload_type).expect("in the table");
            assert_eq!(entry.encoding_name, format.encoding.name());
            assert_eq!(entry.clock_rate_hz, format.clock_rate_hz);
            assert_eq!(entry.channels, u32::from(format.channels));
        }
        let count = (0..128).filter(|n| Format::of_static(PayloadType(*n)).is_some());
        assert_eq!(count.count(), 5);
    }

    #[test]
    fn sizes_follow_from_the_format() {
        // Format, packet time, frames, bytes: by arithmetic.
        for (text, us, frames, bytes) in [
            ("PCMU/8000", 20_000, 160, 160),
            ("G722/8000", 20_000, 320, 160),
            ("L16/44100/2", 10_000, 441, 1_764),
            ("L24/48000/8", 125, 6, 144),
            ("L24/48000/8", 1_000, 48, 1_152),
            ("L24/48000/2", 4_000, 192, 1_152),
            ("L24/96000", 1_000, 96, 288),
        ] {
            let format = Format::from_rtpmap(text).expect(text);
            assert_eq!(format.frames_per_packet(us), Ok(frames), "{text}");
            assert_eq!(format.payload_bytes(frames), Some(bytes), "{text}");
            assert_eq!(format.payload_samples(bytes), Some(frames as u32), "{text}");
            assert!(format.allows_frames(frames));
            assert!(format.max_frames_for(bytes) >= Some(frames));
            for us in [0, 124, 120_001] {
                assert!(format.frames_per_packet(us).is_err());
            }
        }
        // RFC 3551, section 4.5.2: 8000 units a second for 16000 samples.
        let g722 = Format::from_rtpmap("G722/8000").expect("a format");
        assert_eq!(
            (g722.clock_units(320), g722.frames_of_units(160)),
            (160, 320)
        );
        assert_eq!(
            (g722.payload_bytes(3), g722.allows_frames(3)),
            (None, false)
        );
        let l24 = Format::from_rtpmap("L24/48000/8").expect("a format");
        assert_eq!(l24.payload_samples(145), None);
        // 1440 bytes are left of an Ethernet frame: 60 frames of 24 bytes.
        assert_eq!(l24.max_frames_for(1_440), Some(60));
        let opus = Format::new(Encoding::Opus, 8_000, 1).expect("a format");
        assert_eq!(
            (opus.clock_units(160), opus.frames_of_units(960)),
            (960, 160)
        );
        assert_eq!(
            (opus.payload_samples(100), opus.max_frames_for(1_440)),
            (None, None)
        );
        let lasts = (1..2_000).filter(|frames| opus.allows_frames(*frames));
        let expected = [20, 40, 80, 160, 320, 480, 640, 800, 960];
        assert_eq!(lasts.collect::<Vec<_>>(), expected);
    }
}
