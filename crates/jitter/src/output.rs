//! Input and output of a jitter buffer.

use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

/// A received packet, for [`JitterBuffer::handle_packet`](super::JitterBuffer::handle_packet).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<T> {
    /// The packet's source.
    pub ssrc: Ssrc,
    /// The packet's sequence number.
    pub seq: SeqNum,
    /// The packet's timestamp.
    pub time: RtpTime,
    /// The packet's marker bit.
    pub marker: bool,
    /// Arrival time in ns, on the clock of `now_ns`, if it is known more exactly than the time of the call. For example, packets
    /// of one slice are handled together. A time in the future counts as now.
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
        /// The packet's sequence number.
        seq: SeqNum,
        /// The packet's timestamp.
        time: RtpTime,
        /// The packet's marker bit.
        marker: bool,
        /// Send time on the local clock, in ns: the arrival time that the packet would have had with the least delay. The
        /// packet's playout deadline is this time plus the latency. The time never decreases from one output to the next.
        play_ns: u64,
        /// Whether the packet is discontinuous: it is the first one, or follows a loss, a drop or a resync.
        discont: bool,
    },
    /// Packets that missed their deadline. A whole gap is declared lost at the deadline of its first packet, so that it is
    /// concealed as one. If other packets of the gap arrive after that, they are late. A packet counts as missing only after a
    /// later one has arrived. So if a stream stops, nothing is lost.
    Lost {
        /// Sequence number of the first lost packet.
        first: SeqNum,
        /// Number of packets.
        packets: u32,
        /// The estimated timestamp of the first lost packet.
        time: RtpTime,
        /// The send time of the first lost packet, as in [`Output::Packet`].
        play_ns: u64,
        /// Estimated duration of the lost audio, in ns. A silence before or after it does not count. If the packets before and
        /// after have the same timestamp, it is 0.
        duration_ns: u64,
    },
    /// The numbers restart. All earlier packets have been output; play times continue.
    Resync {
        /// Why the numbers restart.
        cause: ResyncCause,
        /// SSRC of the present source.
        ssrc: Ssrc,
    },
    /// A packet that must not be played.
    Dropped {
        /// Handle of the packet.
        packet: T,
        /// Why the packet must not be played.
        reason: DropReason,
    },
}

/// Why the numbers of a stream restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResyncCause {
    /// Two consecutive packets had another SSRC.
    NewSource,
    /// Two consecutive packets of the same SSRC do not continue the previous sequence numbers or timestamps (RFC 3550, appendix
    /// A.1).
    Restart,
}

/// Why a packet is not played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The packet's deadline has passed: the packet was declared lost, or a later one has been output.
    Late,
    /// A packet with this number has already arrived. Only duplicates of the last 64 packets before the next one due are
    /// recognised; an older duplicate counts as [`DropReason::Late`].
    Duplicate,
    /// The buffer held more than the latency, and [`Config::drop_on_latency`](super::Config::drop_on_latency) is set.
    Latency,
    /// The buffer is full because outputs were not drained.
    Full,
    /// [`JitterBuffer::flush`](super::JitterBuffer::flush) was called.
    Flushed,
    /// The packet did not fit the stream, and no consecutive packet followed. It was garbage, forged, or from a source that
    /// stopped.
    Unconfirmed,
    /// The packet came from the previous SSRC while the present source is sending.
    OldSource,
}

/// Number of variants of [`DropReason`].
pub(crate) const DROP_REASONS: usize = DropReason::OldSource as usize + 1;
