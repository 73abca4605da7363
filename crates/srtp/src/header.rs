//! The parts of a packet's header that SRTP needs.
//!
//! An SRTP packet's header is unencrypted, but its padding is not: the checks of [`threadbare_rtp_types::packet`] are possible
//! only after decryption.

use threadbare_rtp_types::id::{SeqNum, Ssrc};
use threadbare_rtp_types::packet::PacketError;

/// Source and number of an RTP packet, and the length of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RtpHeader {
    pub(crate) ssrc: Ssrc,
    pub(crate) seq: SeqNum,
    /// Bytes of the header with its CSRC list and its extension, which are authenticated but not encrypted (RFC 3711, section
    /// 3.1).
    pub(crate) bytes: usize,
}

impl RtpHeader {
    /// Parses the header of a packet (RFC 3550, sections 5.1 and 5.3.1), after which at least `trailer` bytes must follow.
    pub(crate) fn parse(packet: &[u8], trailer: usize) -> Result<RtpHeader, PacketError> {
        let actual = packet.len();
        let require = |expected: usize| match expected + trailer {
            expected if expected > actual => Err(PacketError::Truncated { expected, actual }),
            _ => Ok(()),
        };
        require(RTP_FIXED_BYTES)?;
        check_version(packet[0])?;
        let mut bytes = RTP_FIXED_BYTES + 4 * usize::from(packet[0] & 0x0f);
        require(bytes)?;
        if packet[0] & 0x10 != 0 {
            require(bytes + 4)?;
            let words = u16::from_be_bytes([packet[bytes + 2], packet[bytes + 3]]);
            bytes += 4 + 4 * usize::from(words);
            require(bytes)?;
        }
        Ok(RtpHeader {
            ssrc: Ssrc(word(packet, 8)),
            seq: SeqNum(u16::from_be_bytes([packet[2], packet[3]])),
            bytes,
        })
    }
}

/// Returns the source of a compound RTCP packet: the sender of its first packet (RFC 3711, section 3.4). After its first 8 bytes,
/// which are not encrypted, at least `trailer` bytes must follow.
pub(crate) fn rtcp_ssrc(packet: &[u8], trailer: usize) -> Result<Ssrc, PacketError> {
    let (expected, actual) = (RTCP_CLEAR_BYTES + trailer, packet.len());
    if actual < expected {
        return Err(PacketError::Truncated { expected, actual });
    }
    check_version(packet[0])?;
    Ok(Ssrc(word(packet, 4)))
}

/// Returns the four bytes from `at`; the caller has checked that they exist.
pub(crate) fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}

fn check_version(first: u8) -> Result<(), PacketError> {
    match first >> 6 {
        2 => Ok(()),
        version => Err(PacketError::Version(version)),
    }
}

/// Bytes of an RTP header without CSRC list and extension (RFC 3550, section 5.1).
const RTP_FIXED_BYTES: usize = 12;

/// Bytes of an SRTCP packet that are not encrypted: the first header and its SSRC (RFC 3711, section 3.4).
pub(crate) const RTCP_CLEAR_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use threadbare_rtp_types::packet::Packet;

    proptest! {
        /// The twin parses the same packet after decryption.
        #[test]
        fn header_length_equals_that_of_the_parsed_packet(mut packet in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(first) = packet.first_mut() {
                *first = 0x80 | *first & 0x1f;
            }
            match (RtpHeader::parse(&packet, 0), Packet::parse(&packet)) {
                (Ok(header), Ok(twin)) => {
                    prop_assert_eq!(header.bytes, twin.payload_range().start);
                    prop_assert_eq!((header.ssrc, header.seq), (twin.ssrc(), twin.seq()));
                }
                (Err(PacketError::Truncated { .. }), Err(PacketError::Truncated { .. })) => {}
                (ours, twin) => prop_assert!(false, "{ours:?}, {twin:?}"),
            }
        }
    }

    #[test]
    fn room_for_the_trailer_is_required() {
        let packet = [0x80; 22];
        assert_eq!(RtpHeader::parse(&packet, 10).unwrap().bytes, 12);
        let truncated = PacketError::Truncated {
            expected: 23,
            actual: 22,
        };
        assert_eq!(RtpHeader::parse(&packet, 11), Err(truncated));
        assert_eq!(rtcp_ssrc(&packet, 14), Ok(Ssrc(0x8080_8080)));
        assert_eq!(rtcp_ssrc(&packet, 15), Err(truncated));
        assert_eq!(rtcp_ssrc(&[0x40; 22], 14), Err(PacketError::Version(1)));
    }
}
