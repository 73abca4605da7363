//! The packets that are sent. They are valid RTP, each with 20 ms of PCMU.

use crate::PACKET_BYTES;

const HEADER_BYTES: usize = 12;
const SAMPLES: u32 = (PACKET_BYTES - HEADER_BYTES) as u32;

/// Returns the first packet of a stream. SSRC and payload differ from stream to stream.
pub fn first_packet(stream: u32) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    packet[0] = 0x80;
    packet[8..12].copy_from_slice(&(stream + 1).to_be_bytes());
    for (place, sample) in packet[HEADER_BYTES..].iter_mut().enumerate() {
        *sample = (place as u32 * 7 + stream) as u8;
    }
    packet
}

/// Writes the sequence number and the timestamp of the packet with this number in its stream.
pub fn set_number(packet: &mut [u8; PACKET_BYTES], number: u32) {
    packet[2..4].copy_from_slice(&(number as u16).to_be_bytes());
    packet[4..8].copy_from_slice(&number.wrapping_mul(SAMPLES).to_be_bytes());
}

/// Returns a stream's sender report after this many packets, with a CNAME (RFC 3550, sections 6.4.1 and 6.5).
pub fn report(stream: u32, packets: u32) -> [u8; REPORT_BYTES] {
    let mut report = [0; REPORT_BYTES];
    let ssrc = (stream + 1).to_be_bytes();
    report[..4].copy_from_slice(&[0x80, 200, 0, 6]);
    report[4..8].copy_from_slice(&ssrc);
    // The NTP time is that of a clock that started at zero together with the stream.
    let ntp = (u64::from(packets) << 32) / crate::PACKETS_PER_SECOND;
    report[8..16].copy_from_slice(&ntp.to_be_bytes());
    report[16..20].copy_from_slice(&packets.wrapping_mul(SAMPLES).to_be_bytes());
    report[20..24].copy_from_slice(&packets.to_be_bytes());
    report[24..28].copy_from_slice(&packets.wrapping_mul(SAMPLES).to_be_bytes());
    // One chunk that contains the CNAME "b" and the end of the chunk.
    report[28..32].copy_from_slice(&[0x81, 202, 0, 2]);
    report[32..36].copy_from_slice(&ssrc);
    report[36..40].copy_from_slice(&[1, 1, b'b', 0]);
    report
}

const REPORT_BYTES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_have_the_offsets_of_rfc_3550() {
        let mut packet = first_packet(41);
        set_number(&mut packet, 0x1_0002);
        assert_eq!(packet[0] >> 6, 2, "version");
        assert_eq!(packet[1], 0, "PCMU");
        assert_eq!(packet[2..4], [0, 2], "the sequence number wraps");
        assert_eq!(packet[4..8], (0x1_0002 * 160u32).to_be_bytes());
        assert_eq!(packet[8..12], 42u32.to_be_bytes());
    }
}
