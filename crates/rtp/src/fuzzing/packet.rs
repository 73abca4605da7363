//! Target `packet`: the bytes are one datagram.

use crate::packet::{Packet, is_rtcp};

/// Runs the target. Any packet that can be parsed lies within its own bytes.
pub fn packet(data: &[u8]) {
    let Ok(packet) = Packet::parse(data) else {
        return;
    };
    let range = packet.payload_range();
    assert!(range.start >= 12 + 4 * usize::from(packet.csrc_count()));
    assert!(range.start <= range.end && range.end <= data.len());
    assert_eq!(packet.payload(), &data[range]);
    assert!(packet.payload_type().0 < 128);
    // With rtcp-mux, only the second octet distinguishes RTP and RTCP.
    assert_eq!(is_rtcp(data), (192..=223).contains(&data[1]));
}
