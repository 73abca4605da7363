//! Saved state of a leg: after a restart of the process its peer notices only a gap.

use std::net::SocketAddr;

use super::{Delivery, Keep, Leg, Media};
use crate::id::{NS_PER_S, SeqNum, Ssrc};
use crate::jitter::ResyncCause;

/// Time without service for a party, between a snapshot and its restoration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outage {
    /// Time from the snapshot to the restoration, ns.
    pub elapsed_ns: u64,
    /// Time after the snapshot in which packets may have left, ns: the interval of snapshots, plus the time to store one. Their
    /// numbers are not used again.
    pub unsaved_ns: u64,
}

impl Outage {
    /// Number of sequence numbers to skip for packets of `packet_ns`.
    ///
    /// The result is twice the packets of [`unsaved_ns`](Self::unsaved_ns), for digits and their repeated ends, plus a slice;
    /// at most [`SKIPPED_PACKETS_MAX`]. It is 0 if no packet can have left after the snapshot.
    #[must_use]
    pub fn skipped_packets(&self, packet_ns: u64) -> u16 {
        if self.unsaved_ns == 0 {
            return 0;
        }
        let packets = 2 * (self.unsaved_ns / packet_ns.max(1)) + SLICE_PACKETS;
        packets.min(u64::from(SKIPPED_PACKETS_MAX)) as u16
    }

    /// Number of RTCP packets that may have left.
    #[must_use]
    pub fn rtcp_packets(&self) -> u32 {
        let packets = self.unsaved_ns / NS_PER_S * RTCP_PER_S + RTCP_PER_S;
        u32::try_from(packets).unwrap_or(u32::MAX)
    }
}

/// The state of a [`Leg`]: our own stream and the peer's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegState {
    /// Our SSRC.
    pub ssrc: Ssrc,
    /// The number of the next packet.
    pub next_seq: SeqNum,
    /// RTP packets sent, for sender reports.
    pub packets_sent: u64,
    /// Bytes of their payloads.
    pub octets_sent: u64,
    /// The current source, with the number of its last packet.
    pub source: Option<(SocketAddr, Ssrc, SeqNum)>,
    /// Source address of its RTCP.
    pub rtcp_from: Option<SocketAddr>,
    /// The time for learning addresses has passed.
    pub is_fixed: bool,
}

/// Our own stream of a [`Leg`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentState {
    /// Our SSRC.
    pub ssrc: Ssrc,
    /// The number of the next packet.
    pub next_seq: SeqNum,
    /// RTP packets sent, for sender reports.
    pub packets_sent: u64,
    /// Bytes of their payloads.
    pub octets_sent: u64,
}

impl Leg {
    /// Hands over all received packets that were not played yet, in order, for another process. `give` gets the arrival time
    /// without jitter, the sender, and the packet. Nothing stays queued.
    pub fn give_up(&mut self, now_ns: u64, mut give: impl FnMut(u64, SocketAddr, &[u8])) {
        let Some((from, ..)) = self.admission.source() else {
            return;
        };
        self.release_all();
        while let Some(media) = self.poll_media(now_ns, true) {
            if let Media::Packet(packet) = media
                && packet.delivery != Delivery::Sent
            {
                give(packet.play_ns.min(now_ns), from, packet.whole);
            }
        }
    }
}

impl<K: Keep> Leg<K> {
    /// The state of the sent stream.
    #[must_use]
    pub fn sent_state(&self) -> SentState {
        let sent = self.session.stats();
        SentState {
            ssrc: sent.ssrc,
            next_seq: self.seq,
            packets_sent: sent.packets_sent,
            octets_sent: sent.octets_sent,
        }
    }

    /// Continues the stream of another process; packets sent here so far have reached no receiver.
    pub fn restore_sent(&mut self, state: &SentState) {
        self.session.set_ssrc(state.ssrc);
        self.session
            .restore_sent(state.packets_sent, state.octets_sent);
        self.seq = state.next_seq;
    }

    /// The state that another process needs to continue.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> LegState {
        let sent = self.session.stats();
        LegState {
            ssrc: sent.ssrc,
            next_seq: self.seq,
            packets_sent: sent.packets_sent,
            octets_sent: sent.octets_sent,
            source: self.admission.source(),
            rtcp_from: self.rtcp_from.map(|(address, _)| address),
            is_fixed: self.admission.is_fixed(now_ns),
        }
    }

    /// Continues where another process stopped, skipping [`Outage::skipped_packets`] numbers. For a leg that has neither sent nor
    /// received.
    pub fn restore(&mut self, now_ns: u64, state: &LegState, skipped_packets: u16) {
        self.session.set_ssrc(state.ssrc);
        self.session
            .restore_sent(state.packets_sent, state.octets_sent);
        self.seq = state.next_seq.plus(skipped_packets);
        self.admission.restore(now_ns, state.source, state.is_fixed);
        if let Some((address, ssrc, _)) = state.source {
            self.session
                .adopt(now_ns, ssrc, address, self.clock_rate_hz);
            self.jitter.announce_source(ResyncCause::NewSource);
            self.has_moved = true;
        }
        self.rtcp_from = state.rtcp_from.map(|address| (address, now_ns));
    }
}

/// Maximum number of skipped sequence numbers: half of the range in which an SRTP receiver can detect that a packet is newer (RFC
/// 3711, section 3.3.1).
pub const SKIPPED_PACKETS_MAX: u16 = 1 << 14;
/// Number of packets that leave at once.
const SLICE_PACKETS: u64 = 16;
/// Maximum rate of RTCP packets, early feedback included; a party that speaks sends one every few seconds. SRTCP has 2^31
/// indices.
const RTCP_PER_S: u64 = 100;
