//! What the elements of a stream have counted.

use gst::prelude::*;

use crate::pipeline::{CONVERTER, SINK, SOURCE};

/// A stream's figures since it started. Sums, where source and sink have an RTCP session each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamStats {
    /// RTP packets that arrived.
    pub received: u64,
    /// Packets that were missing when their time had come.
    pub lost: u64,
    /// Packets that came after their time.
    pub late: u64,
    /// Interarrival jitter (RFC 3550, A.8), milliseconds.
    pub jitter_ms: f64,
    /// Milliseconds of audio that were made up for what was missing.
    pub concealed_ms: u64,
    /// RTP packets sent.
    pub sent: u64,
    /// RTCP packets sent.
    pub rtcp_sent: u64,
    /// RTCP packets that arrived.
    pub rtcp_received: u64,
    /// RTCP packets that could not be read.
    pub rtcp_errors: u64,
}

impl StreamStats {
    /// Asks the elements of a pipeline. `None`: they are GStreamer's own, which have nothing to say.
    pub fn of(pipeline: &gst::Pipeline) -> Option<StreamStats> {
        let mut stats = StreamStats::default();
        let mut sessions = Vec::new();
        for name in [SOURCE, CONVERTER, SINK] {
            let Some(counted) = pipeline.by_name(name).and_then(|element| counted(&element)) else {
                continue;
            };
            let count = |name: &str| counted.get::<u64>(name).unwrap_or(0);
            match name {
                SOURCE => {
                    stats.received = count("packets-received");
                    stats.lost = count("num-lost");
                    stats.late = count("num-late");
                    stats.jitter_ms = count("avg-jitter") as f64 / 1e6;
                }
                CONVERTER => stats.concealed_ms = count("concealed-ms"),
                _ => stats.sent = count("packets-sent"),
            }
            sessions.extend(counted.get::<gst::Structure>("rtcp"));
        }
        // A session that both share is in both.
        sessions.dedup_by_key(|session| session.get::<u32>("ssrc").ok());
        for session in &sessions {
            let count = |name: &str| session.get::<u64>(name).unwrap_or(0);
            stats.rtcp_sent += count("rtcp-sent");
            stats.rtcp_received += count("rtcp-received");
            stats.rtcp_errors += count("rtcp-errors");
        }
        (!sessions.is_empty()).then_some(stats)
    }

    /// Writes them to the log.
    pub fn log(&self, stream: &str) {
        tracing::info!(
            stream,
            received = self.received,
            lost = self.lost,
            late = self.late,
            jitter_ms = (self.jitter_ms * 10.0).round() / 10.0,
            concealed_ms = self.concealed_ms,
            sent = self.sent,
            rtcp_sent = self.rtcp_sent,
            rtcp_received = self.rtcp_received,
            rtcp_errors = self.rtcp_errors,
            "statistics"
        );
    }
}

/// What an element has counted, if it counts.
fn counted(element: &gst::Element) -> Option<gst::Structure> {
    element
        .has_property("stats")
        .then(|| element.property::<gst::Structure>("stats"))
}
