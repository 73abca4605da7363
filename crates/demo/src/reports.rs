//! Parses the gateway's compound RTCP packets with the crate `rtcp-types`, independently of the gateway's own parser.

use rtcp_types::{Compound, Packet, RtcpParseError};

/// Type of the SDES item CNAME (RFC 3550, section 12.2).
const CNAME: u8 = 1;

/// The contents of a compound packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) ssrc: u32,
    /// Number of packets and octets sent, if there is a sender report.
    pub(super) sent: Option<(u32, u32)>,
    pub(super) blocks: Vec<Block>,
    /// SSRCs in the BYE packet.
    pub(super) leaving: Vec<u32>,
}

/// A report block (RFC 3550, section 6.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) ssrc: u32,
    pub(super) fraction_lost: u8,
    pub(super) cumulative_lost: i32,
    pub(super) highest: u32,
    pub(super) jitter_units: u32,
    /// The middle 32 bits of the NTP time of the last sender report, or 0 if there was none.
    pub(super) lsr: u32,
    /// Age of that sender report, in 65536ths of a second.
    pub(super) dlsr: u32,
}

/// The reason why a packet violates RFC 3550, section 6.1.
#[derive(Debug)]
#[allow(dead_code, reason = "for debugging a test")]
pub(super) enum Malformed {
    Unreadable(RtcpParseError),
    NoReportFirst,
    NoCname,
}

impl From<RtcpParseError> for Malformed {
    fn from(error: RtcpParseError) -> Malformed {
        Malformed::Unreadable(error)
    }
}

/// Parses a compound packet.
pub(super) fn read(bytes: &[u8]) -> Result<Said, Malformed> {
    let mut said = None;
    let mut has_name = false;
    for packet in Compound::parse(bytes)? {
        match packet? {
            Packet::Sr(report) => {
                let said = said.get_or_insert_with(|| Said::of(report.ssrc()));
                said.sent = Some((report.packet_count(), report.octet_count()));
                said.blocks.extend(report.report_blocks().map(Block::of));
            }
            Packet::Rr(report) => {
                let said = said.get_or_insert_with(|| Said::of(report.ssrc()));
                said.blocks.extend(report.report_blocks().map(Block::of));
            }
            Packet::Sdes(names) => {
                let mut items = names.chunks().flat_map(|chunk| chunk.items());
                has_name |= items.any(|item| item.type_() == CNAME && !item.value().is_empty());
            }
            Packet::Bye(bye) => {
                let said = said.as_mut().ok_or(Malformed::NoReportFirst)?;
                said.leaving.extend(bye.ssrcs());
            }
            _ => {}
        }
    }
    let said = said.ok_or(Malformed::NoReportFirst)?;
    has_name.then_some(said).ok_or(Malformed::NoCname)
}

impl Said {
    fn of(ssrc: u32) -> Said {
        Said {
            ssrc,
            ..Said::default()
        }
    }
}

impl Block {
    fn of(block: rtcp_types::ReportBlock<'_>) -> Block {
        Block {
            ssrc: block.ssrc(),
            fraction_lost: block.fraction_lost(),
            // The field has 24 bits, and is signed.
            cumulative_lost: (block.cumulative_lost() << 8).cast_signed() >> 8,
            highest: block.extended_sequence_number(),
            jitter_units: block.interarrival_jitter(),
            lsr: block.last_sender_report_timestamp(),
            dlsr: block.delay_since_last_sender_report_timestamp(),
        }
    }
}

/// Returns the middle 32 bits of the NTP time of the sender report, if the compound packet begins with one.
pub(super) fn sender_report_time(bytes: &[u8]) -> Option<u32> {
    match Compound::parse(bytes).ok()?.next()?.ok()? {
        Packet::Sr(report) => Some((report.ntp_timestamp() >> 16) as u32),
        _ => None,
    }
}
