//! `/metrics`, for Prometheus.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use threadbare_control::calls::EndReason;

use super::app::App;
use super::problem::Problem;
use crate::metrics::Snapshot;
use crate::service::Service;

/// Counters, gauges and histograms in the text format of OpenMetrics
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn show(State(app): State<App>) -> Result<impl IntoResponse, Problem> {
    let mut snapshot = app.ask(snapshot).await?;
    snapshot.recordings = app.recorder.counted();
    let text = app.metrics.render(&snapshot);
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text))
}

fn snapshot(service: &mut Service) -> Snapshot {
    let [streams, transcoded] = service.calls.streams();
    let totals = service.calls.totals();
    Snapshot {
        calls: service.calls.len() as u64,
        streams: streams as u64,
        transcoded: transcoded as u64,
        is_draining: service.calls.is_draining(),
        offered: totals.calls,
        refused: totals.refused,
        errors: totals.errors,
        ended: EndReason::ALL
            .map(|reason| (reason, totals.ended(reason)))
            .into(),
        threads: service.threads(),
        ..Snapshot::default()
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
