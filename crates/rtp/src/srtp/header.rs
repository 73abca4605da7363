//! As much of a packet's header as SRTP needs.
//!
//! The header of an SRTP packet is in the clear, its padding is not: the checks of [`crate::packet`] cannot be made before
//! a packet is decrypted.

use crate::id::{SeqNum, Ssrc};
use crate::packet::PacketError;

/// Whom an RTP packet is from, which one it is, and where its header ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RtpHeader {
    pub(super) ssrc: Ssrc,
    pub(super) seq: SeqNum,
    /// Bytes of the header with its CSRC list and its extension: what is authenticated but not encrypted (RFC 3711,
    /// section 3.1).
    pub(super) bytes: usize,
}

impl RtpHeader {
    /// Reads the header of a packet (RFC 3550, sections 5.1 and 5.3.1), behind which `trailer` bytes are to be left.
    pub(super) fn parse(packet: &[u8], trailer: usize) -> Result<RtpHeader, PacketError> {
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

/// Whom a compound RTCP packet is from: the sender of its first packet (RFC 3711, section 3.4). Behind its first 8 bytes,
/// which are in the clear, `trailer` bytes are to be left.
pub(super) fn rtcp_ssrc(packet: &[u8], trailer: usize) -> Result<Ssrc, PacketError> {
    let (expected, actual) = (RTCP_CLEAR_BYTES + trailer, packet.len());
    if actual < expected {
        return Err(PacketError::Truncated { expected, actual });
    }
    check_version(packet[0])?;
    Ok(Ssrc(word(packet, 4)))
}

/// The four bytes from `at`, which the caller has checked to be there.
pub(super) fn word(packet: &[u8], at: usize) -> u32 {
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
pub(super) const RTCP_CLEAR_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::Packet;

    proptest! {
        /// The twin reads the same packet once it is in the clear.
        #[test]
        fn the_header_ends_where_the_whole_packet_says(mut packet in prop::collection::vec(any::<u8>(), 0..200)) {
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
