//! Counters of a stream's elements.

use std::time::Duration;

use gst::prelude::*;

use crate::pipeline::{CONVERTER, METER, SINK, SOURCE};

/// A stream's figures since it started. Sums, if source and sink have separate RTCP sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamStats {
    /// RTP packets that arrived.
    pub received: u64,
    /// Since the last packet of the peer; `None`: none has come. Jitter, losses and loudness are as old.
    pub since_packet: Option<Duration>,
    /// Datagrams that are neither RTP nor RTCP.
    pub malformed: u64,
    /// Datagrams larger than expected.
    pub truncated: u64,
    /// Packets from another address than the peer's.
    pub strangers: u64,
    /// Packets of a payload type that the stream does not accept.
    pub other_payload_types: u64,
    /// Packets that missed their deadline.
    pub lost: u64,
    /// Packets that arrived after their deadline.
    pub late: u64,
    /// Interarrival jitter (RFC 3550, A.8), milliseconds.
    pub jitter_ms: f64,
    /// Milliseconds of audio made up for missing packets.
    pub concealed_ms: u64,
    /// RTP packets sent.
    pub sent: u64,
    /// RTP packets that could not be sent.
    pub send_errors: u64,
    /// RTCP packets sent.
    pub rtcp_sent: u64,
    /// RTCP packets that arrived.
    pub rtcp_received: u64,
    /// Unreadable RTCP packets.
    pub rtcp_errors: u64,
    /// Loudness of the output; `None`: it is not measured.
    pub loudness: Option<Loudness>,
}

/// The loudness of a stream (EBU R128). Minus infinity for silence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loudness {
    /// Of the last 400 ms.
    pub momentary_lufs: f64,
    /// Of the last 3 s.
    pub short_term_lufs: f64,
    /// Since the stream started.
    pub integrated_lufs: f64,
    /// Since the stream started.
    pub range_lu: f64,
    /// Of the loudest channel, since the stream started.
    pub true_peak_dbtp: f64,
}

impl Loudness {
    /// From an element's measurements, if any.
    fn of(stats: &gst::StructureRef) -> Option<Loudness> {
        let level = |name: &str| {
            let lufs = stats.get::<f64>(name).ok()?;
            // Filters fade slowly: a value of -958 LUFS helps no reader.
            Some(if lufs < SILENCE_LUFS {
                f64::NEG_INFINITY
            } else {
                lufs
            })
        };
        let peaks = stats.get::<gst::ArrayRef<'_>>("true-peak").ok()?;
        let peaks = peaks
            .as_slice()
            .iter()
            .filter_map(|peak| peak.get::<f64>().ok());
        Some(Loudness {
            momentary_lufs: level("momentary-loudness")?,
            short_term_lufs: level("shortterm-loudness")?,
            integrated_lufs: level("global-loudness")?,
            range_lu: level("loudness-range")?,
            true_peak_dbtp: 20.0 * peaks.fold(0.0, f64::max).log10(),
        })
    }
}

impl StreamStats {
    /// Queries the elements of a pipeline. `None`: they are GStreamer's own, without such statistics.
    pub fn of(pipeline: &gst::Pipeline) -> Option<StreamStats> {
        let mut stats = StreamStats::default();
        let mut sessions = Vec::new();
        for name in [SOURCE, CONVERTER, METER, SINK] {
            let Some(counted) = pipeline.by_name(name).and_then(|element| counted(&element)) else {
                continue;
            };
            let count = |name: &str| counted.get::<u64>(name).unwrap_or(0);
            match name {
                SOURCE => {
                    stats.received = count("packets-received");
                    let since_ns = counted.get::<u64>("since-last-packet").ok();
                    stats.since_packet = since_ns.map(Duration::from_nanos);
                    stats.malformed = count("malformed");
                    stats.truncated = count("truncated");
                    stats.other_payload_types = count("unknown-payload-type");
                    stats.lost = count("num-lost");
                    stats.late = count("num-late");
                    stats.jitter_ms = count("avg-jitter") as f64 / 1e6;
                }
                CONVERTER => {
                    stats.concealed_ms = count("concealed-ms");
                    stats.loudness = Loudness::of(&counted);
                }
                METER => stats.loudness = Loudness::of(&counted),
                _ => {
                    stats.sent = count("packets-sent");
                    stats.send_errors = count("send-errors");
                }
            }
            sessions.extend(counted.get::<gst::Structure>("rtcp"));
        }
        // A shared session appears in both.
        sessions.dedup_by_key(|session| session.get::<u32>("ssrc").ok());
        for session in &sessions {
            let count = |name: &str| session.get::<u64>(name).unwrap_or(0);
            stats.strangers += count("strangers");
            stats.rtcp_sent += count("rtcp-sent");
            stats.rtcp_received += count("rtcp-received");
            stats.rtcp_errors += count("rtcp-errors");
        }
        (!sessions.is_empty()).then_some(stats)
    }

    /// Writes the figures to the log.
    pub fn log(&self, stream: &str) {
        let level = |of: fn(&Loudness) -> f64| self.loudness.map(|loudness| tenths(of(&loudness)));
        tracing::info!(
            stream,
            received = self.received,
            since_packet_ms = self.since_packet.map(|since| since.as_millis() as u64),
            malformed = self.malformed,
            truncated = self.truncated,
            strangers = self.strangers,
            other_payload_types = self.other_payload_types,
            lost = self.lost,
            late = self.late,
            jitter_ms = tenths(self.jitter_ms),
            concealed_ms = self.concealed_ms,
            sent = self.sent,
            send_errors = self.send_errors,
            rtcp_sent = self.rtcp_sent,
            rtcp_received = self.rtcp_received,
            rtcp_errors = self.rtcp_errors,
            momentary_lufs = level(|loudness| loudness.momentary_lufs),
            short_term_lufs = level(|loudness| loudness.short_term_lufs),
            integrated_lufs = level(|loudness| loudness.integrated_lufs),
            range_lu = level(|loudness| loudness.range_lu),
            true_peak_dbtp = level(|loudness| loudness.true_peak_dbtp),
            "statistics"
        );
    }
}

/// Less than one step of 16 bits in any channel, by far.
const SILENCE_LUFS: f64 = -120.0;

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// An element's `stats`, if it has any.
fn counted(element: &gst::Element) -> Option<gst::Structure> {
    element
        .has_property("stats")
        .then(|| element.property::<gst::Structure>("stats"))
}
