//! The static payload types of RFC 3551, section 6, tables 4 and 5.

use crate::id::PayloadType;

/// What a static payload type stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticPayload {
    /// "audio" or "video".
    pub media: &'static str,
    /// As in an SDP `rtpmap`, in upper case.
    pub encoding_name: &'static str,
    /// Of the RTP timestamps.
    pub clock_rate_hz: u32,
    /// Audio channels; 0 for video.
    pub channels: u32,
}

/// What `payload_type` stands for; `None` for dynamic, reserved and unassigned ones.
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

/// Comfort noise (RFC 3389): comes among packets of another type, and means no change of it.
pub const COMFORT_NOISE: PayloadType = PayloadType(13);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_static_or_not() {
        // RFC 3551, tables 4 and 5: 1, 2 and 19 are reserved, 20 to 24, 27, 29 and 30 unassigned, from 35 on unassigned,
        // reserved against confusion with RTCP, or dynamic.
        for n in 0..=127 {
            let free = matches!(n, 1 | 2 | 19..=24 | 27 | 29 | 30 | 35..);
            assert_eq!(static_payload(PayloadType(n)).is_none(), free, "{n}");
        }
    }
}
