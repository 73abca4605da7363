//! Counters of a stream.

use std::time::Duration;

use threadbare_relay::{AudioStats, CallStats};

/// The counters of a stream since it started. If source and sink have separate RTCP sessions, each counter is the sum of both sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamStats {
    /// Number of RTP packets that arrived.
    pub received: u64,
    /// Time since the last packet of the peer, at which jitter, losses and loudness were last measured. `None`: no packet has arrived.
    pub since_packet: Option<Duration>,
    /// Number of datagrams that are neither RTP nor RTCP.
    pub malformed: u64,
    /// Number of datagrams that are larger than expected.
    pub truncated: u64,
    /// Number of packets from other addresses than that of the peer.
    pub strangers: u64,
    /// Number of datagrams of the sender that SRTP refused because they were not authentic, or because they were replays.
    pub srtp_refused: u64,
    /// Number of packets with a payload type that the stream does not accept.
    pub other_payload_types: u64,
    /// Number of packets that missed their deadline.
    pub lost: u64,
    /// Number of packets that arrived after their deadline.
    pub late: u64,
    /// Interarrival jitter in milliseconds (RFC 3550, A.8).
    pub jitter_ms: f64,
    /// Duration of the concealed audio for missing packets, in milliseconds.
    pub concealed_ms: u64,
    /// Number of RTP packets that were sent.
    pub sent: u64,
    /// Number of RTP packets that could not be sent.
    pub send_errors: u64,
    /// Number of RTCP packets that were sent.
    pub rtcp_sent: u64,
    /// Number of RTCP packets that arrived.
    pub rtcp_received: u64,
    /// Number of RTCP packets that could not be parsed.
    pub rtcp_errors: u64,
    /// Name of the active input. `None`: the stream has only one input.
    pub active: Option<String>,
    /// Number of changes from one input to another.
    pub switches: u64,
    /// Loudness of the output. `None`: it is not measured.
    pub loudness: Option<Loudness>,
}

/// The loudness of a stream (EBU R128). Values are minus infinity for silence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loudness {
    /// Loudness of the last 400 ms.
    pub momentary_lufs: f64,
    /// Loudness of the last 3 s.
    pub short_term_lufs: f64,
    /// Loudness since the stream started.
    pub integrated_lufs: f64,
    /// Loudness range since the stream started.
    pub range_lu: f64,
    /// True peak of the loudest channel since the stream started.
    pub true_peak_dbtp: f64,
}

impl From<threadbare_relay::Loudness> for Loudness {
    fn from(measured: threadbare_relay::Loudness) -> Loudness {
        // Very low values, such as -958 LUFS, count as silence, because they come from filters that fade slowly.
        let level = |lufs: f64| {
            if lufs < SILENCE_LUFS {
                f64::NEG_INFINITY
            } else {
                lufs
            }
        };
        Loudness {
            momentary_lufs: level(measured.momentary_lufs),
            short_term_lufs: level(measured.short_term_lufs),
            integrated_lufs: level(measured.integrated_lufs),
            range_lu: measured.range_lu,
            true_peak_dbtp: measured.true_peak_dbtp,
        }
    }
}

impl StreamStats {
    /// Returns the statistics of a line of the relay and of its sockets at `now_ns`.
    pub fn of_line(media: &AudioStats, io: &CallStats, now_ns: u64) -> StreamStats {
        let (session, loudness) = (&media.session, media.loudness[0]);
        let (source, sender, direction) = (session.source(), session.target(), session.direction());
        let refused = &source.refused;
        let sessions = || {
            let other = (!std::ptr::eq(source, sender)).then_some(sender);
            std::iter::once(source).chain(other).map(|leg| &leg.session)
        };
        StreamStats {
            received: source.packets,
            since_packet: source
                .heard_ns
                .map(|heard_ns| Duration::from_nanos(now_ns.saturating_sub(heard_ns))),
            malformed: refused.malformed,
            truncated: io.truncated,
            strangers: refused.strangers + refused.other_sources + refused.not_allowed,
            srtp_refused: media.protections[0].map_or(0, |protection| protection.refused()),
            other_payload_types: refused.payload_types + direction.dropped,
            lost: direction.lost,
            late: source.jitter.late,
            jitter_ms: source.jitter.jitter_ns as f64 / 1e6,
            concealed_ms: direction.concealed_ns / 1_000_000,
            sent: sender.session.packets_sent,
            send_errors: io.stage_refused + sender.no_destination,
            rtcp_sent: sessions().map(|session| session.rtcp_sent).sum(),
            rtcp_received: sessions().map(|session| session.rtcp_received).sum(),
            rtcp_errors: sessions().map(|session| session.rtcp_errors.total()).sum(),
            active: None,
            switches: direction.switches,
            loudness: loudness.map(Loudness::from),
        }
    }

    /// Writes the counters to the log.
    pub fn log(&self, stream: &str) {
        let level = |of: fn(&Loudness) -> f64| self.loudness.map(|loudness| tenths(of(&loudness)));
        tracing::info!(
            stream,
            received = self.received,
            since_packet_ms = self.since_packet.map(|since| since.as_millis() as u64),
            malformed = self.malformed,
            truncated = self.truncated,
            strangers = self.strangers,
            srtp_refused = self.srtp_refused,
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
            active = self.active,
            switches = self.active.as_ref().map(|_| self.switches),
            momentary_lufs = level(|loudness| loudness.momentary_lufs),
            short_term_lufs = level(|loudness| loudness.short_term_lufs),
            integrated_lufs = level(|loudness| loudness.integrated_lufs),
            range_lu = level(|loudness| loudness.range_lu),
            true_peak_dbtp = level(|loudness| loudness.true_peak_dbtp),
            "statistics"
        );
    }
}

/// Loudness below which a value counts as silence. It is far below one step of 16 bits in any channel.
const SILENCE_LUFS: f64 = -120.0;

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
