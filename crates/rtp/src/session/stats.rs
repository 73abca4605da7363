//! Counters of a session, as plain values.

use std::net::SocketAddr;

use crate::id::Ssrc;

use super::source::{LastReport, RemoteView, Source, flag};
use super::wire::RtcpError;

/// Numbers of RTCP packets that were refused, by cause: see [`RtcpError`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RtcpErrors {
    /// Packets that ended early.
    pub truncated: u64,
    /// Packets of another version.
    pub version: u64,
    /// Packets that did not begin with a report.
    pub first_packet: u64,
    /// Packets with misplaced or impossible padding.
    pub padding: u64,
    /// Packets that were too short for the counts that they contain.
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

/// Numbers of feedback messages: those that we sent, or those that we received about our own stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FeedbackCounts {
    /// Number of packets that were requested again (RFC 4585, section 6.2.1). Repeated requests count.
    pub nacks: u64,
    /// Number of pictures that were reported as lost (RFC 4585, section 6.3.1).
    pub plis: u64,
    /// Number of full pictures that were requested (RFC 5104, section 4.3.1). Repetitions of received requests do not count.
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
    /// The loop that was last reported.
    pub(super) loop_told: Option<(Ssrc, SocketAddr)>,
}

/// The statistics of our side of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStats {
    /// Our SSRC.
    pub ssrc: Ssrc,
    /// Number of RTP packets that were sent with this SSRC.
    pub packets_sent: u64,
    /// Number of payload bytes in these packets.
    pub octets_sent: u64,
    /// Number of RTCP packets that were sent. A compound counts once.
    pub rtcp_sent: u64,
    /// Number of RTCP packets that were accepted. A compound counts once.
    pub rtcp_received: u64,
    /// Numbers of RTCP packets that were refused.
    pub rtcp_errors: RtcpErrors,
    /// Number of members of the group, including ourselves.
    pub members: u32,
    /// Number of members that send RTP, including ourselves.
    pub senders: u32,
    /// The last round-trip time that was computed from a report.
    pub rtt_ns: Option<u64>,
    /// Number of reports whose round-trip time would have been negative or absurdly long.
    pub rtt_refused: u64,
    /// Number of packets that were dropped because their source currently sends from another address.
    pub conflicts: u64,
    /// Number of extended reports with a block that ends early or has a wrong length. The blocks before it are used.
    pub extended_malformed: u64,
    /// Number of times that another sender used our SSRC.
    pub collisions: u64,
    /// Number of our own packets that came back.
    pub looped: u64,
    /// Number of sources that were forgotten because there were too many.
    pub evictions: u64,
    /// Number of events that were not drained in time.
    pub events_dropped: u64,
    /// Number of feedback requests that were dropped, because the queue was full or it was too late.
    pub feedback_dropped: u64,
    /// Feedback that was sent.
    pub feedback_sent: FeedbackCounts,
    /// Feedback that was received, about our own stream.
    pub feedback_received: FeedbackCounts,
}

/// The statistics of one remote source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStats<'a> {
    /// The source's SSRC.
    pub ssrc: Ssrc,
    /// The source's canonical name, if it was received.
    pub cname: Option<&'a str>,
    /// Whether the source has passed probation with RTP.
    pub is_valid: bool,
    /// Whether the source sends RTP at present.
    pub is_sender: bool,
    /// Source address of the source's RTP.
    pub rtp_from: Option<SocketAddr>,
    /// Source address of the source's RTCP.
    pub rtcp_from: Option<SocketAddr>,
    /// Number of RTP packets received since the source began or restarted, including duplicates and late packets.
    pub packets: u64,
    /// Number of RTP packets lost since then. Negative if there are more duplicates than losses.
    pub lost: i64,
    /// Packets lost in the interval of our last report, in 256ths.
    pub fraction_lost: u8,
    /// Interarrival jitter, in units of the source's timestamps.
    pub jitter_units: u32,
    /// Interarrival jitter, ns.
    pub jitter_ns: u64,
    /// Highest sequence number, as in a report, with the number of wrap-arounds in the upper 16 bits.
    pub highest: u32,
    /// Number of times that the source restarted its numbers.
    pub restarts: u32,
    /// Number of RTP packets with the source's SSRC from another address.
    pub conflicts: u64,
    /// The source's last sender report.
    pub report: Option<LastReport>,
    /// The source's last report on our packets.
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
