//! What reports of RTCP say of both directions, as programs and people are told.

use serde::Serialize;
use threadbare_relay::{ListenerView, SenderView};
use utoipa::ToSchema;

/// How the sender is heard (RFC 3550, section 6.4.1). What was lost on the way; packets that came too late are in `packets_late`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SenderReport {
    /// Since it began; negative when duplicates outnumber losses.
    packets_lost: i64,
    /// In the interval of our last report. Absent: there is no RTCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_percent: Option<f64>,
    jitter_ms: f64,
}

/// How a listener says that it hears the stream (RFC 3550, section 6.4.1).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListenerReport {
    /// Who says so.
    ssrc: u32,
    /// Since it began; negative when duplicates outnumber losses.
    packets_lost: i32,
    /// Since its report before.
    loss_percent: f64,
    /// Absent: the clock rate of what is sent is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ms: Option<f64>,
    /// Absent: it has not heard a report of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
}

impl SenderReport {
    pub(super) fn new(view: &SenderView, has_reports: bool) -> SenderReport {
        SenderReport {
            packets_lost: view.lost,
            loss_percent: has_reports.then(|| percent(view.fraction_lost)),
            jitter_ms: tenths(view.jitter_ns as f64 / NS_PER_MS),
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
            round_trip_ms: report.rtt_ns.map(|ns| tenths(ns as f64 / NS_PER_MS)),
        }
    }
}

/// RFC 3550, section 6.4.1: "expressed as a fixed point number with the binary point at the left edge of the field."
fn percent(fraction_lost: u8) -> f64 {
    tenths(f64::from(fraction_lost) * 100.0 / 256.0)
}

/// One digit behind the point: more is not meant.
pub(super) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

const NS_PER_MS: f64 = 1e6;
