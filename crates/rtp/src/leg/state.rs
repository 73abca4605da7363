//! The saved state of a leg. If another process continues from it, the peer notices only a gap.

use std::net::SocketAddr;

use crate::id::{NS_PER_S, SeqNum, Ssrc};

/// The time between a snapshot and its restoration, in which a party was not served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outage {
    /// Time from the snapshot to the restoration, ns.
    pub elapsed_ns: u64,
    /// Time after the snapshot in which packets may have left, ns. It is the interval of snapshots, plus the time to store one. The numbers
    /// of those packets are not used again.
    pub unsaved_ns: u64,
}

impl Outage {
    /// Returns the number of sequence numbers to skip for packets of `packet_ns`.
    ///
    /// The result is twice the number of packets in [`unsaved_ns`](Self::unsaved_ns), to allow for digits and their repeated ends, plus a
    /// slice. It is at most [`SKIPPED_PACKETS_MAX`], and 0 if no packet can have left after the snapshot.
    #[must_use]
    pub fn skipped_packets(&self, packet_ns: u64) -> u16 {
        if self.unsaved_ns == 0 {
            return 0;
        }
        let packets = 2 * (self.unsaved_ns / packet_ns.max(1)) + SLICE_PACKETS;
        packets.min(u64::from(SKIPPED_PACKETS_MAX)) as u16
    }

    /// Returns the number of RTCP packets that may have left.
    #[must_use]
    pub fn rtcp_packets(&self) -> u32 {
        let packets = self.unsaved_ns / NS_PER_S * RTCP_PER_S + RTCP_PER_S;
        u32::try_from(packets).unwrap_or(u32::MAX)
    }
}

/// The state of a [`Leg`](super::Leg): our own stream and the peer's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegState {
    /// The stream that the leg sends.
    pub sent: SentState,
    /// The current source, with the number of its last packet.
    pub source: Option<(SocketAddr, Ssrc, SeqNum)>,
    /// Source address of the current source's RTCP.
    pub rtcp_from: Option<SocketAddr>,
    /// Whether the time for learning addresses has passed.
    pub is_fixed: bool,
}

/// The state of the stream that a [`Leg`](super::Leg) sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentState {
    /// Our SSRC.
    pub ssrc: Ssrc,
    /// The number of the next packet.
    pub next_seq: SeqNum,
    /// Number of RTP packets that were sent, for sender reports.
    pub packets_sent: u64,
    /// Number of bytes in the payloads of those packets.
    pub octets_sent: u64,
}

/// Maximum number of skipped sequence numbers. It is half of the range in which an SRTP receiver can detect that a packet is newer (RFC
/// 3711, section 3.3.1).
pub const SKIPPED_PACKETS_MAX: u16 = 1 << 14;
/// Number of packets that leave at once.
const SLICE_PACKETS: u64 = 16;
/// Maximum rate of RTCP packets, with early feedback. A party that speaks sends one every few seconds. SRTCP has 2^31 indices, so the
/// excess does not matter.
const RTCP_PER_S: u64 = 100;
