//! Counters of streams for replies of the ng protocol.

use threadbare_control::calls::{Counts, Quality, SideStats, SourceStats, StreamStats};
use threadbare_relay::{AudioStats, ForwardSideStats, MediaSession};
use threadbare_rtp::call::Side;
use threadbare_rtp::leg::LegStats;

/// Reads the counters of a stream. Runs on the stream's thread.
pub(super) fn stats_of(session: &mut MediaSession) -> StreamStats {
    match session {
        MediaSession::Audio(media) => audio_stats(&media.stats()),
        MediaSession::Forward(forward) => forward_stats(&forward.stats()),
        MediaSession::Diverted(_) => StreamStats::default(),
    }
}

/// Converts the counters of an audio session.
pub(super) fn audio_stats(stats: &AudioStats) -> StreamStats {
    let leg = |side: Side| stats.session.legs.get(side as usize);
    StreamStats {
        sides: Side::BOTH.map(|side| leg(side).map_or_else(SideStats::default, leg_stats)),
    }
}

/// Converts the counters of a session that forwards.
pub(super) fn forward_stats(sides: &[ForwardSideStats; 2]) -> StreamStats {
    StreamStats {
        sides: sides.each_ref().map(side_stats),
    }
}

fn leg_stats(leg: &LegStats) -> SideStats {
    SideStats {
        rtp: Counts {
            packets: leg.packets,
            bytes: leg.bytes,
            errors: leg.refused.total(),
        },
        rtcp: Counts {
            packets: leg.session.rtcp_received,
            ..Counts::default()
        },
        heard_ns: leg.heard_ns,
        rtp_to: leg.rtp_to,
        sources: source(leg).into_iter().collect(),
    }
}

fn source(leg: &LegStats) -> Option<SourceStats> {
    let (_, ssrc) = leg.source?;
    let quality = leg.end_to_end.unwrap_or_default();
    let measured = quality.mos.map(|mos| {
        let of = |pick: fn(&threadbare_rtp::quality::Range) -> f64| Quality {
            mos_tenths: (pick(&mos) * 10.0).round() as u32,
            jitter_ms: quality.jitter_ms.as_ref().map_or(0.0, pick).round() as u32,
            round_trip_us: (quality.round_trip_ms.as_ref().map_or(0.0, pick) * 1e3) as u32,
            loss_percent: quality.loss_percent.as_ref().map_or(0.0, pick).round() as u32,
        };
        (
            mos,
            of(|range| range.average),
            of(|range| range.lowest.value),
            of(|range| range.highest.value),
        )
    });
    Some(match measured {
        Some((mos, average, lowest, highest)) => SourceStats {
            ssrc: ssrc.0,
            samples: mos.samples.min(u64::from(u32::MAX)) as u32,
            average: Some(average),
            lowest: Some((mos.lowest.at_ns, lowest)),
            highest: Some((mos.highest.at_ns, highest)),
        },
        None => SourceStats {
            ssrc: ssrc.0,
            ..SourceStats::default()
        },
    })
}

fn side_stats(side: &ForwardSideStats) -> SideStats {
    let [rtp, rtcp] = side.received;
    SideStats {
        rtp: Counts {
            packets: rtp.packets,
            bytes: rtp.bytes,
            errors: side.refused.total(),
        },
        rtcp: Counts {
            packets: rtcp.packets,
            bytes: rtcp.bytes,
            errors: 0,
        },
        heard_ns: rtp.last_ns,
        rtp_to: side.to,
        sources: Vec::new(),
    }
}
