//! `/v1/drain`: the relay refuses new calls, and current calls continue.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::{App, Json};
use super::problem::Problem;
use crate::service::Service;

/// Options of a drain.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainRequest {
    /// Whether the process ends after the last call.
    #[serde(default)]
    exit: bool,
}

/// Whether the relay is being drained.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct Drain {
    /// Whether new calls are refused.
    draining: bool,
    /// Whether the process ends after the last call.
    exit: bool,
    /// Number of current calls.
    calls: usize,
}

/// Refuse new calls
#[utoipa::path(post, path = "/v1/drain", tag = "relay", request_body = DrainRequest, responses(
    (status = 200, body = Drain),
    (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn begin(
    State(app): State<App>,
    Json(asked): Json<DrainRequest>,
) -> Result<axum::Json<Drain>, Problem> {
    set(app, true, asked.exit).await
}

/// Accept new calls again
#[utoipa::path(delete, path = "/v1/drain", tag = "relay", responses((status = 200, body = Drain)))]
pub(super) async fn end(State(app): State<App>) -> Result<axum::Json<Drain>, Problem> {
    set(app, false, false).await
}

async fn set(app: App, draining: bool, exit: bool) -> Result<axum::Json<Drain>, Problem> {
    let calls = app.ask(move |service: &mut Service| {
        service.drain(draining, exit);
        service.calls.len()
    });
    let calls = calls.await?;
    tracing::info!(draining, exit, calls, "drain");
    Ok(axum::Json(Drain {
        draining,
        exit,
        calls,
    }))
}
