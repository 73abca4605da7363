//! Payload types: the static types of RFC 3551, section 6, tables 4 and 5, and sets of types.

use std::fmt;
use std::str::FromStr;

use crate::id::PayloadType;

/// The meaning of a static payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticPayload {
    /// "audio" or "video".
    pub media: &'static str,
    /// Name as in an SDP `rtpmap`, in upper case.
    pub encoding_name: &'static str,
    /// Clock rate of the RTP timestamps.
    pub clock_rate_hz: u32,
    /// Audio channels; 0 for video.
    pub channels: u32,
}

/// Returns the meaning of `payload_type`; `None` for dynamic, reserved and unassigned types.
#[must_use]
pub fn static_payload(payload_type: PayloadType) -> Option<StaticPayload> {
    let (media, encoding_name, clock_rate_hz, channels) = match payload_type.0 {
        0 => ("audio", "PCMU", 8000, 1),
        3 => ("audio", "GSM", 8000, 1),
        4 => ("audio", "G723", 8000, 1),
        5 => ("audio", "DVI4", 8000, 1),
        6 => ("audio", "DVI4", 16_000, 1),
        7 => ("audio", "LPC", 8000, 1),
        8 => ("audio", "PCMA", 8000, 1),
        // "Even though the actual sampling rate for G.722 audio is 16,000 Hz, the RTP clock rate for the G722 payload
        // format is 8,000 Hz" (section 4.5.2).
        9 => ("audio", "G722", 8000, 1),
        10 => ("audio", "L16", 44_100, 2),
        11 => ("audio", "L16", 44_100, 1),
        12 => ("audio", "QCELP", 8000, 1),
        13 => ("audio", "CN", 8000, 1),
        14 => ("audio", "MPA", 90_000, 1),
        15 => ("audio", "G728", 8000, 1),
        16 => ("audio", "DVI4", 11_025, 1),
        17 => ("audio", "DVI4", 22_050, 1),
        18 => ("audio", "G729", 8000, 1),
        25 => ("video", "CELB", 90_000, 0),
        26 => ("video", "JPEG", 90_000, 0),
        28 => ("video", "NV", 90_000, 0),
        31 => ("video", "H261", 90_000, 0),
        32 => ("video", "MPV", 90_000, 0),
        33 => ("video", "MP2T", 90_000, 0),
        34 => ("video", "H263", 90_000, 0),
        _ => return None,
    };
    Some(StaticPayload {
        media,
        encoding_name,
        clock_rate_hz,
        channels,
    })
}

/// Comfort noise (RFC 3389). It appears among packets of another type, and does not change the type of the stream.
pub const COMFORT_NOISE: PayloadType = PayloadType(13);

/// A set of payload types. As text: numbers from 0 to 127 separated by commas; an empty text is the set of all types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadTypes(u128);

impl PayloadTypes {
    /// Every payload type.
    pub const ALL: PayloadTypes = PayloadTypes(u128::MAX);

    /// Whether `payload_type` is in the set.
    #[must_use]
    pub fn contains(self, payload_type: PayloadType) -> bool {
        payload_type.0 < 128 && self.0 & 1 << payload_type.0 != 0
    }
}

impl FromIterator<PayloadType> for PayloadTypes {
    /// Ignores types of 128 and above, which do not exist.
    fn from_iter<I: IntoIterator<Item = PayloadType>>(payload_types: I) -> Self {
        let valid = payload_types.into_iter().filter(|one| one.0 < 128);
        PayloadTypes(valid.fold(0, |set, one| set | 1 << one.0))
    }
}

/// The text is not the number of a payload type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("payload type \"{0}\": expected a number from 0 to 127, several with commas in between")]
pub struct PayloadTypeError(String);

impl FromStr for PayloadTypes {
    type Err = PayloadTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(PayloadTypes::ALL);
        }
        let one = |text: &str| match text.trim().parse() {
            Ok(number) if number < 128 => Ok(PayloadType(number)),
            _ => Err(PayloadTypeError(text.trim().to_owned())),
        };
        text.split(',').map(one).collect()
    }
}

impl fmt::Display for PayloadTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == PayloadTypes::ALL {
            return Ok(());
        }
        let numbers = (0..128).filter(|n| self.contains(PayloadType(*n)));
        let numbers = numbers.map(|n| n.to_string()).collect::<Vec<_>>();
        f.write_str(&numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_payload_types_round_trip() {
        for (text, shown) in [
            ("", ""),
            ("0", "0"),
            (" 101, 8,0,8", "0,8,101"),
            ("127", "127"),
        ] {
            let set = text.parse::<PayloadTypes>();
            assert_eq!(set.map(|set| set.to_string()).as_deref(), Ok(shown));
        }
        let set = "0,101".parse::<PayloadTypes>().expect("two numbers");
        let contained = (0..=255).filter(|n| set.contains(PayloadType(*n)));
        assert_eq!(contained.collect::<Vec<_>>(), [0, 101]);
        for text in ["128", "-1", "x", "0,,1", "0 1"] {
            assert!(text.parse::<PayloadTypes>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_static_payload_types_are_those_of_rfc_3551() {
        // RFC 3551, tables 4 and 5: 1, 2 and 19 are reserved, 20 to 24, 27, 29 and 30 unassigned, from 35 on unassigned,
        // reserved against confusion with RTCP, or dynamic.
        for n in 0..=127 {
            let free = matches!(n, 1 | 2 | 19..=24 | 27 | 29 | 30 | 35..);
            assert_eq!(static_payload(PayloadType(n)).is_none(), free, "{n}");
        }
    }
}
