//! RTCP reports of both directions, for programs and people.

use serde::Serialize;
use threadbare_base::NS_PER_MS;
use threadbare_relay::{ListenerView, SenderView};
use utoipa::ToSchema;

/// Our report on the sender (RFC 3550, section 6.4.1). Late packets do not count as lost here; `packets_late` counts them.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SenderReport {
    /// Packets lost since its start; negative if duplicates outnumber losses.
    packets_lost: i64,
    /// Loss in the interval of our last report. Absent without RTCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_percent: Option<f64>,
    jitter_ms: f64,
}

/// A listener's report on the stream (RFC 3550, section 6.4.1).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListenerReport {
    /// The reporter's SSRC.
    ssrc: u32,
    /// Packets lost since its start; negative if duplicates outnumber losses.
    packets_lost: i32,
    /// Loss since its previous report.
    loss_percent: f64,
    /// Interarrival jitter. Absent: the clock rate of the sent media is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ms: Option<f64>,
    /// Round-trip time. Absent: the listener has received no report of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
}

impl SenderReport {
    pub(super) fn new(view: &SenderView, has_reports: bool) -> SenderReport {
        SenderReport {
            packets_lost: view.lost,
            loss_percent: has_reports.then(|| percent(view.fraction_lost)),
            jitter_ms: tenths(view.jitter_ns as f64 / NS_PER_MS as f64),
        }
    }
}

impl ListenerReport {
    pub(super) fn new(listener: &ListenerView, clock_rate_hz: Option<u32>) -> ListenerReport {
        let report = &listener.report;
        let jitter_ms = |rate_hz: u32| f64::from(report.jitter_units) * 1000.0 / f64::from(rate_hz);
        ListenerReport {
            ssrc: listener.ssrc.0,
            packets_lost: report.cumulative_lost,
            loss_percent: percent(report.fraction_lost),
            jitter_ms: clock_rate_hz.map(jitter_ms).map(tenths),
            round_trip_ms: report.rtt_ns.map(|ns| tenths(ns as f64 / NS_PER_MS as f64)),
        }
    }
}

/// Converts a fraction to percent. It is "expressed as a fixed point number with the binary point at the left edge of the field" (RFC 3550,
/// section 6.4.1).
fn percent(fraction_lost: u8) -> f64 {
    tenths(f64::from(fraction_lost) * 100.0 / 256.0)
}

/// Rounds to one decimal. More decimals would suggest a precision that the value does not have.
pub(super) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
