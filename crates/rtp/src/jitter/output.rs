//! What goes into a jitter buffer, and what comes out of it.

use crate::id::{RtpTime, SeqNum, Ssrc};

/// A received packet, for [`JitterBuffer::handle_packet`](super::JitterBuffer::handle_packet).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<T> {
    /// Who sent it.
    pub ssrc: Ssrc,
    /// Its sequence number.
    pub seq: SeqNum,
    /// Its timestamp.
    pub time: RtpTime,
    /// Its marker bit.
    pub marker: bool,
    /// When it arrived, in ns on the clock of `now_ns`, where that is known better than by the time at which it is
    /// handed in: packets of one slice are handled together. A time later than now is taken as now.
    pub arrival_ns: Option<u64>,
    /// The caller's handle of it.
    pub packet: T,
}

/// What comes out of a jitter buffer.
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
        /// Its send time on the local clock, in ns: when it would have arrived with the least delay that was seen. Its
        /// playout deadline is this plus the latency. Never less than in an output before.
        play_ns: u64,
        /// It does not follow on what came out before: the first packet, or one after a loss, a drop or a resync.
        discont: bool,
    },
    /// Packets that did not come in time: a whole gap, at the deadline of its first packet, so that what is lost together is
    /// concealed together. Those of it that come yet will be late. Only what a later packet has followed is missing: a
    /// stream that stops has lost nothing.
    Lost {
        /// The first of them.
        first: SeqNum,
        /// How many.
        packets: u32,
        /// The send time of the first, as in [`Output::Packet`].
        play_ns: u64,
        /// How much audio they carried, in ns, as far as their neighbours tell. 0 within packets of one timestamp. A
        /// silence around them is not counted.
        duration_ns: u64,
    },
    /// What follows is numbered anew. Packets before this were given out to the last; the play times go on.
    Resync {
        /// Why.
        cause: ResyncCause,
        /// The source that is received now.
        ssrc: Ssrc,
    },
    /// A packet that is not for playing.
    Dropped {
        /// The handle that was handed in.
        packet: T,
        /// Why.
        reason: DropReason,
    },
}

/// Why the numbers of a stream begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResyncCause {
    /// Two consecutive packets of another SSRC.
    NewSource,
    /// Two consecutive packets of the same SSRC whose sequence numbers or timestamps do not go on from those before
    /// (RFC 3550, appendix A.1).
    Restart,
}

/// Why a packet is not played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// Its deadline has passed: it has been declared lost, or a later one has been given out.
    Late,
    /// A packet of this number came already. Of the last 64 before the next one due this is certain; one of longer ago
    /// counts as [`DropReason::Late`].
    Duplicate,
    /// More than the latency was held, and [`Config::drop_on_latency`](super::Config::drop_on_latency) is set.
    Latency,
    /// No place is left because outputs were not drained.
    Full,
    /// [`JitterBuffer::flush`](super::JitterBuffer::flush).
    Flushed,
    /// It did not fit the stream, and no consecutive one followed: garbage, forged, or from a source that stayed silent.
    Unconfirmed,
    /// From the SSRC before the present one, while the present one is sending.
    OldSource,
}

/// How many reasons there are, to count by.
pub(super) const DROP_REASONS: usize = DropReason::OldSource as usize + 1;
