//! Input and output of a jitter buffer.

use crate::id::{RtpTime, SeqNum, Ssrc};

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
    /// When it arrived, in ns on the clock of `now_ns`, if known more exactly than the time of the call: packets of one
    /// slice are handled together. A time later than now is taken as now.
    pub arrival_ns: Option<u64>,
    /// The caller's handle of the packet.
    pub packet: T,
}

/// Output of a jitter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<T> {
    /// The next packet in order.
    Packet {
        /// The handle that was handed in.
        packet: T,
        /// Its sequence number.
        seq: SeqNum,
        /// Its timestamp.
        time: RtpTime,
        /// Its marker bit.
        marker: bool,
        /// Its send time on the local clock, in ns: its arrival time had it had the least delay seen. Its playout
        /// deadline is this plus the latency. Never less than in an earlier output.
        play_ns: u64,
        /// The packet is discontinuous: the first one, or one after a loss, a drop or a resync.
        discont: bool,
    },
    /// Packets that missed their deadline: a whole gap, at the deadline of its first packet, so that it is concealed as
    /// one. Those that still arrive will be late. A packet is missing only if a later one has arrived: a stream that
    /// stops has lost nothing.
    Lost {
        /// The first of them.
        first: SeqNum,
        /// How many.
        packets: u32,
        /// The timestamp of the first, estimated as its duration is.
        time: RtpTime,
        /// The send time of the first, as in [`Output::Packet`].
        play_ns: u64,
        /// Duration of their audio, in ns, estimated from their neighbours. 0 within packets of one timestamp. Excludes
        /// a silence around them.
        duration_ns: u64,
    },
    /// The numbers restart. All earlier packets have been output; play times continue.
    Resync {
        /// Why.
        cause: ResyncCause,
        /// The source that is received now.
        ssrc: Ssrc,
    },
    /// A packet not to be played.
    Dropped {
        /// The handle that was handed in.
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
    /// Two consecutive packets of the same SSRC whose sequence numbers or timestamps do not continue the previous ones
    /// (RFC 3550, appendix A.1).
    Restart,
}

/// Why a packet is not played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// Its deadline has passed: it was declared lost, or a later one has been given out.
    Late,
    /// A packet of this number came already. Certain for the last 64 before the next one due; an older one counts as
    /// [`DropReason::Late`].
    Duplicate,
    /// The buffer held more than the latency, and [`Config::drop_on_latency`](super::Config::drop_on_latency) is set.
    Latency,
    /// No place is left because outputs were not drained.
    Full,
    /// [`JitterBuffer::flush`](super::JitterBuffer::flush).
    Flushed,
    /// It did not fit the stream, and no consecutive one followed: garbage, forged, or from a source that stopped.
    Unconfirmed,
    /// From the previous SSRC, while the present one is sending.
    OldSource,
}

/// Number of reasons.
pub(super) const DROP_REASONS: usize = DropReason::OldSource as usize + 1;
