//! Input and output of a jitter buffer.

use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

/// A received packet, for [`JitterBuffer::handle_packet`](super::JitterBuffer::handle_packet).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<T> {
    /// Its source.
    pub ssrc: Ssrc,
    /// Its sequence number.
    pub seq: SeqNum,
    /// Its timestamp.
    pub time: RtpTime,
    /// Its marker bit.
    pub marker: bool,
    /// Arrival time, in ns on the clock of `now_ns`, if it is known more exactly than the time of the call. Packets of one slice
    /// are handled together. A time later than now counts as now.
    pub arrival_ns: Option<u64>,
    /// The caller's handle of the packet.
    pub packet: T,
}

/// Output of a jitter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<T> {
    /// The next packet in order.
    Packet {
        /// Handle of the packet.
        packet: T,
        /// Its sequence number.
        seq: SeqNum,
        /// Its timestamp.
        time: RtpTime,
        /// Its marker bit.
        marker: bool,
        /// Send time on the local clock, in ns: the arrival time that the packet would have had with the least delay. Its playout
        /// deadline is this plus the latency. It never decreases between outputs.
        play_ns: u64,
        /// Whether the packet is discontinuous: the first one, or one after a loss, a drop or a resync.
        discont: bool,
    },
    /// Packets that missed their deadline. A whole gap is declared lost at the deadline of its first packet, so that it is
    /// concealed as one. If other packets of the gap arrive after that, they are late. A packet is missing only if a later one
    /// has arrived: if a stream stops, nothing is lost.
    Lost {
        /// Sequence number of the first lost packet.
        first: SeqNum,
        /// Number of packets.
        packets: u32,
        /// The estimated timestamp of the first lost packet.
        time: RtpTime,
        /// The send time of the first lost packet, as in [`Output::Packet`].
        play_ns: u64,
        /// Estimated duration of their audio, in ns. It excludes a silence around them, and is 0 if the packets around them have
        /// the same timestamp.
        duration_ns: u64,
    },
    /// The numbers restart. All earlier packets have been output; play times continue.
    Resync {
        /// Why.
        cause: ResyncCause,
        /// SSRC of the source received now.
        ssrc: Ssrc,
    },
    /// A packet not to be played.
    Dropped {
        /// Handle of the packet.
        packet: T,
        /// Why.
        reason: DropReason,
    },
}

/// Why the numbers of a stream restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResyncCause {
    /// Two consecutive packets of another SSRC.
    NewSource,
    /// Two consecutive packets of the same SSRC do not continue the previous sequence numbers or timestamps (RFC 3550, appendix
    /// A.1).
    Restart,
}

/// Why a packet is not played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// Its deadline has passed: it was declared lost, or a later packet has been output.
    Late,
    /// A packet with this number has already arrived. This is certain for the last 64 before the next one due; an older duplicate
    /// counts as [`DropReason::Late`].
    Duplicate,
    /// The buffer held more than the latency, and [`Config::drop_on_latency`](super::Config::drop_on_latency) is set.
    Latency,
    /// The buffer is full because outputs were not drained.
    Full,
    /// [`JitterBuffer::flush`](super::JitterBuffer::flush).
    Flushed,
    /// It did not fit the stream, and no consecutive one followed: it was garbage, forged, or from a source that stopped.
    Unconfirmed,
    /// It came from the previous SSRC while the present one is sending.
    OldSource,
}

/// Number of reasons.
pub(crate) const DROP_REASONS: usize = DropReason::OldSource as usize + 1;
