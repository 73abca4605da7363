//! Counters of a session, as plain values.

use std::net::SocketAddr;

use crate::id::Ssrc;

use super::source::{LastReport, RemoteView, Source, flag};
use super::wire::RtcpError;

/// RTCP packets refused, by cause. See [`RtcpError`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RtcpErrors {
    /// Ended early.
    pub truncated: u64,
    /// Packets of another version.
    pub version: u64,
    /// Did not begin with a report.
    pub first_packet: u64,
    /// Packets with misplaced or impossible padding.
    pub padding: u64,
    /// Packets too short for their counts.
    pub malformed: u64,
}

impl RtcpErrors {
    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.truncated + self.version + self.first_packet + self.padding + self.malformed
    }

    pub(super) fn count(&mut self, error: &RtcpError) {
        *match error {
            RtcpError::Truncated { .. } => &mut self.truncated,
            RtcpError::Version(_) => &mut self.version,
            RtcpError::FirstPacket(_) => &mut self.first_packet,
            RtcpError::Padding(_) => &mut self.padding,
            RtcpError::Malformed { .. } => &mut self.malformed,
        } += 1;
    }
}

/// Feedback that we sent, or received about our own stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FeedbackCounts {
    /// Packets requested again (RFC 4585, section 6.2.1); each request counts.
    pub nacks: u64,
    /// Pictures reported lost (RFC 4585, section 6.3.1).
    pub plis: u64,
    /// Full pictures requested (RFC 5104, section 4.3.1). Repetitions of received requests do not count.
    pub firs: u64,
}

/// Counters that are copied unchanged into the statistics.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rtcp_sent: u64,
    pub(super) rtcp_received: u64,
    pub(super) errors: RtcpErrors,
    pub(super) conflicts: u64,
    pub(super) collisions: u64,
    pub(super) looped: u64,
    pub(super) rtt_refused: u64,
    pub(super) events_dropped: u64,
    pub(super) feedback_dropped: u64,
    pub(super) feedback_sent: FeedbackCounts,
    pub(super) feedback_received: FeedbackCounts,
    pub(super) rtt_ns: Option<u64>,
    /// The loop reported last.
    pub(super) loop_told: Option<(Ssrc, SocketAddr)>,
}

/// Our side of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStats {
    /// Our SSRC.
    pub ssrc: Ssrc,
    /// RTP packets sent with it.
    pub packets_sent: u64,
    /// Bytes of payload in them.
    pub octets_sent: u64,
    /// RTCP packets sent, each compound one.
    pub rtcp_sent: u64,
    /// RTCP packets accepted, each compound one.
    pub rtcp_received: u64,
    /// RTCP packets refused.
    pub rtcp_errors: RtcpErrors,
    /// Members of the group, ourselves included.
    pub members: u32,
    /// Members that send RTP, ourselves included.
    pub senders: u32,
    /// The last round trip computed from a report.
    pub rtt_ns: Option<u64>,
    /// Reports whose round trip would have been negative or absurdly long.
    pub rtt_refused: u64,
    /// Packets dropped because their source currently sends from another address.
    pub conflicts: u64,
    /// Extended reports with a block that ends early or has a wrong length. Blocks before it count.
    pub extended_malformed: u64,
    /// Number of times that another sender used our SSRC.
    pub collisions: u64,
    /// Our own packets that were returned.
    pub looped: u64,
    /// Sources forgotten because there were too many.
    pub evictions: u64,
    /// Events that were not drained in time.
    pub events_dropped: u64,
    /// Feedback requests dropped because the queue was full or it was too late.
    pub feedback_dropped: u64,
    /// Feedback that was sent.
    pub feedback_sent: FeedbackCounts,
    /// Feedback that was received, about our own stream.
    pub feedback_received: FeedbackCounts,
}

/// One remote source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStats<'a> {
    /// Its SSRC.
    pub ssrc: Ssrc,
    /// Its canonical name, if received.
    pub cname: Option<&'a str>,
    /// Whether it passed probation with RTP.
    pub is_valid: bool,
    /// Whether it sends RTP at present.
    pub is_sender: bool,
    /// Source address of its RTP.
    pub rtp_from: Option<SocketAddr>,
    /// Source address of its RTCP.
    pub rtcp_from: Option<SocketAddr>,
    /// RTP packets received since it began or restarted, duplicates and late ones included.
    pub packets: u64,
    /// RTP packets lost since then. Negative when duplicates outnumber losses.
    pub lost: i64,
    /// Lost in the interval of our last report, in 256ths.
    pub fraction_lost: u8,
    /// Interarrival jitter, units of its timestamps.
    pub jitter_units: u32,
    /// Interarrival jitter.
    pub jitter_ns: u64,
    /// Highest sequence number, as in a report: wrap-arounds in the upper 16 bits.
    pub highest: u32,
    /// Number of restarts of its numbering.
    pub restarts: u32,
    /// Number of RTP packets with its SSRC from another address.
    pub conflicts: u64,
    /// Its last sender report.
    pub report: Option<LastReport>,
    /// Its last report on our packets.
    pub remote: Option<RemoteView>,
}

pub(super) fn source_stats(source: &Source) -> SourceStats<'_> {
    let reception = &source.reception;
    SourceStats {
        ssrc: source.ssrc,
        cname: source.cname.as_deref(),
        is_valid: source.has(flag::VALID),
        is_sender: source.has(flag::SENDER),
        rtp_from: source.has_rtp.then_some(source.rtp_from),
        rtcp_from: source.rtcp_from,
        packets: reception.received(),
        lost: reception.lost(),
        fraction_lost: source.fraction_lost,
        jitter_units: reception.jitter_units(),
        jitter_ns: reception.jitter_ns(),
        highest: reception.highest_reported(),
        restarts: reception.resyncs(),
        conflicts: source.conflicts,
        report: source.report,
        remote: source.remote,
    }
}
