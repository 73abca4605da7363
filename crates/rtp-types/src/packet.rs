//! A received RTP packet: the header's fields and the position of the payload.
//!
//! The checks are those of RFC 3550, appendix A.1, that concern a single packet: version 2; CSRC list, extension and padding
//! within the packet. Callers who know the stream check the payload type and the sequence number.

use std::ops::Range;

use rtp_types::{RtpPacket, RtpParseError};
use thiserror::Error;

use crate::id::{PayloadType, RtpTime, SeqNum, Ssrc};

/// Why a datagram is not an RTP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The version is not 2.
    #[error("RTP version {0}, expected 2")]
    Version(u8),
    /// The datagram ends before its header, its CSRC list, its extension or its padding does.
    #[error("the packet has {actual} bytes, but needs at least {expected}")]
    Truncated {
        /// Number of bytes needed, as far as the datagram was parsed.
        expected: usize,
        /// Bytes available.
        actual: usize,
    },
    /// The padding bit is set, but the last octet, which counts the padding, is not a possible count.
    #[error("padding of {0} bytes, expected at least 1")]
    Padding(u8),
}

impl From<RtpParseError> for PacketError {
    fn from(error: RtpParseError) -> Self {
        match error {
            RtpParseError::UnsupportedVersion(version) => PacketError::Version(version),
            RtpParseError::Truncated { expected, actual } => {
                PacketError::Truncated { expected, actual }
            }
            RtpParseError::PaddingInvalid(count) => PacketError::Padding(count),
        }
    }
}

/// A valid RTP packet, borrowed from its datagram. Nothing is copied or allocated.
#[derive(Debug)]
pub struct Packet<'a> {
    data: &'a [u8],
    fields: RtpPacket<'a>,
}

impl<'a> Packet<'a> {
    /// Checks `data`, a whole datagram, and reads it as an RTP packet.
    ///
    /// # Errors
    /// Fails if the datagram is not an RTP packet of version 2 (RFC 3550, section 5.1 and appendix A.1).
    pub fn parse(data: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        let fields = RtpPacket::parse(data)?;
        Ok(Packet { data, fields })
    }

    /// Returns the packet's source.
    #[must_use]
    pub fn ssrc(&self) -> Ssrc {
        Ssrc(self.fields.ssrc())
    }

    /// Returns the sequence number.
    #[must_use]
    pub fn seq(&self) -> SeqNum {
        SeqNum(self.fields.sequence_number())
    }

    /// Returns the timestamp, in units of the payload's clock rate.
    #[must_use]
    pub fn time(&self) -> RtpTime {
        RtpTime(self.fields.timestamp())
    }

    /// Returns the payload type.
    #[must_use]
    pub fn payload_type(&self) -> PayloadType {
        PayloadType(self.fields.payload_type())
    }

    /// Returns the marker bit. For audio, it marks the first packet after a silence (RFC 3551, section 4.1).
    #[must_use]
    pub fn marker(&self) -> bool {
        self.fields.marker_bit()
    }

    /// Returns the number of contributing sources, 0..=15.
    #[must_use]
    pub fn csrc_count(&self) -> u8 {
        self.fields.n_csrcs()
    }

    /// Returns the contributing sources.
    pub fn csrcs(&self) -> impl Iterator<Item = Ssrc> + '_ {
        self.fields.csrc().map(Ssrc)
    }

    /// Returns the position of the payload in the datagram, in bytes: after the header, the CSRC list and the extension, and
    /// without the padding. It may be empty.
    #[must_use]
    pub fn payload_range(&self) -> Range<usize> {
        let start = self.fields.payload_offset();
        start..start + self.fields.payload_len()
    }

    /// Returns the payload without padding.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.data[self.payload_range()]
    }
}

/// The kind of a datagram. It determines the port of a leg for the datagram. With mux, one port is for both kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Media.
    Rtp,
    /// Reports.
    Rtcp,
}

impl Channel {
    /// Returns the kind of `data`, which arrived on this port. With mux, the data itself determines the kind. Without mux, the
    /// port determines it, because RTP may then have payload types 64 to 95.
    #[inline]
    #[must_use]
    pub fn carried(self, mux: bool, data: &[u8]) -> Channel {
        if self == Channel::Rtp && mux && is_rtcp(data) {
            return Channel::Rtcp;
        }
        self
    }
}

/// Whether a datagram from a port with mux is RTCP (RFC 5761, section 4). For a port of any kind, see [`Channel::carried`].
///
/// The second octet of an RTCP packet is its type, in 192..=223. In an RTP packet, it is the marker bit and a payload type. RFC
/// 5761 forbids payload types 64..=95, so that the two cannot be confused. The rest of the packet is not examined.
#[must_use]
pub fn is_rtcp(data: &[u8]) -> bool {
    data.get(1)
        .is_some_and(|second| RTCP_TYPES.contains(second))
}

/// RFC 5761, section 4: payload types 64 to 95 with the marker bit set.
const RTCP_TYPES: std::ops::RangeInclusive<u8> = 192..=223;

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 2, padding, extension, one CSRC; marker and payload type 8.
    const FULL: [u8; 32] = [
        0xb1, 0x88, 0x12, 0x34, 0x00, 0x00, 0x00, 0xa0, 0xde, 0xad, 0xbe, 0xef, // header
        0x00, 0x00, 0x00, 0x07, // CSRC
        0xbe, 0xde, 0x00, 0x01, 0x10, 0xff, 0x00, 0x00, // extension, one word
        0xd5, 0x55, 0xd5, 0x55, 0x00, 0x00, 0x00, 0x04, // payload, padding
    ];

    #[test]
    fn every_field_is_read() {
        let packet = Packet::parse(&FULL).unwrap();
        assert_eq!(packet.ssrc(), Ssrc(0xdead_beef));
        assert_eq!(packet.seq(), SeqNum(0x1234));
        assert_eq!(packet.time(), RtpTime(160));
        assert_eq!(packet.payload_type(), PayloadType(8));
        assert!(packet.marker());
        assert_eq!(packet.csrc_count(), 1);
        assert_eq!(packet.csrcs().collect::<Vec<_>>(), [Ssrc(7)]);
        assert_eq!(packet.payload_range(), 24..28);
        assert_eq!(packet.payload(), [0xd5, 0x55, 0xd5, 0x55]);
    }

    #[test]
    fn a_packet_cut_short_anywhere_is_refused_or_stays_within_its_bytes() {
        for length in 0..FULL.len() {
            let cut = &FULL[..length];
            match Packet::parse(cut) {
                Ok(packet) => assert!(packet.payload_range().end <= length),
                Err(PacketError::Truncated { expected, actual }) => {
                    assert!(expected > actual && actual == length, "{length}");
                }
                Err(PacketError::Padding(0)) => {}
                Err(error) => panic!("{length}: {error}"),
            }
        }
    }

    #[test]
    fn impossible_header_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut data = FULL;
            data[at] = byte;
            Packet::parse(&data).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, 0x71), PacketError::Version(1));
        assert_eq!(with(31, 0), PacketError::Padding(0));
        // More padding than bytes after the extension: 24 + 9 bytes.
        let truncated = |expected| PacketError::Truncated {
            expected,
            actual: 32,
        };
        assert_eq!(with(31, 9), truncated(33));
        assert_eq!(with(19, 4), truncated(36));
        assert_eq!(with(0, 0xbf), truncated(72));
    }

    #[test]
    fn payload_may_be_only_padding() {
        let mut data = FULL;
        data[31] = 8;
        assert_eq!(Packet::parse(&data).unwrap().payload_range(), 24..24);
    }

    #[test]
    fn rtcp_is_recognised_by_its_type() {
        // SR, RR, SDES, BYE, APP, RTPFB, PSFB, XR (RFC 3550, 4585, 3611).
        for rtcp_type in 200..=207 {
            assert!(is_rtcp(&[0x80, rtcp_type, 0, 1]));
        }
        // PCMU and a dynamic type, with and without marker.
        for second in [0, 0x80, 96, 0x80 | 96, 127, 0xff] {
            assert!(!is_rtcp(&[0x80, second, 0, 1]), "{second}");
        }
        assert!(!is_rtcp(&[0x80]));
    }
}
