//! A session's statistics as GStreamer structures.

use gst::glib::value::ToSendValue;
use threadbare_rtp::session::{SessionStats, SourceStats};

/// Returns the counters of a session and its sources. `strangers` is the number of refused packets.
pub(crate) fn structure<'a>(
    stats: &SessionStats,
    sources: impl Iterator<Item = SourceStats<'a>>,
    strangers: u64,
) -> gst::structure::Builder {
    let sources = sources.map(|source| self::source(&source).to_send_value());
    let structure = gst::Structure::builder("application/x-ts-rtp-session-stats")
        .field("ssrc", stats.ssrc.0)
        .field("packets-sent", stats.packets_sent)
        .field("octets-sent", stats.octets_sent)
        .field("rtcp-sent", stats.rtcp_sent)
        .field("rtcp-received", stats.rtcp_received)
        .field("rtcp-errors", stats.rtcp_errors.total())
        .field("members", stats.members)
        .field("senders", stats.senders)
        .field("strangers", strangers)
        .field("conflicts", stats.conflicts)
        .field("collisions", stats.collisions)
        .field("looped", stats.looped)
        .field("sent-nack-count", stats.feedback_sent.nacks)
        .field("sent-pli-count", stats.feedback_sent.plis)
        .field("sent-fir-count", stats.feedback_sent.firs)
        .field("recv-nack-count", stats.feedback_received.nacks)
        .field("recv-pli-count", stats.feedback_received.plis)
        .field("recv-fir-count", stats.feedback_received.firs)
        .field("feedback-dropped", stats.feedback_dropped)
        .field("sources", gst::Array::from_values(sources));
    match stats.rtt_ns {
        Some(rtt_ns) => structure.field("round-trip-time", rtt_ns),
        None => structure,
    }
}

fn source(source: &SourceStats<'_>) -> gst::Structure {
    let structure = gst::Structure::builder("application/x-ts-rtp-source-stats")
        .field("ssrc", source.ssrc.0)
        .field("validated", source.is_valid)
        .field("is-sender", source.is_sender)
        .field("packets-received", source.packets)
        .field("packets-lost", source.lost)
        .field("fraction-lost", u32::from(source.fraction_lost))
        .field("jitter", source.jitter_units)
        .field("jitter-ns", source.jitter_ns)
        .field("highest-sequence", source.highest);
    let structure = match source.cname {
        Some(cname) => structure.field("cname", cname),
        None => structure,
    };
    let structure = match source.rtp_from {
        Some(address) => structure.field("rtp-from", address.to_string()),
        None => structure,
    };
    let structure = match source.rtcp_from {
        Some(address) => structure.field("rtcp-from", address.to_string()),
        None => structure,
    };
    match source.remote {
        // This is the source's report on our packets.
        Some(remote) => structure
            .field("rb-fraction-lost", u32::from(remote.fraction_lost))
            .field("rb-packets-lost", i64::from(remote.cumulative_lost))
            .field("rb-jitter", remote.jitter_units)
            .build(),
        None => structure.build(),
    }
}
