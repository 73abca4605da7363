//! `/healthz` and `/readyz`, for monitors.

use axum::extract::State;
use axum::http::StatusCode;

use super::app::App;
use super::problem::Problem;
use crate::service::Service;

/// Whether the relay answers.
#[utoipa::path(get, path = "/healthz", tag = "health", responses(
    (status = 200, description = "The relay answers", body = String, content_type = "text/plain"),
    (status = 503, description = "The relay does not answer", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn healthz(State(app): State<App>) -> Result<&'static str, Problem> {
    app.ask(|_| "ok\n").await
}

/// Whether new calls are accepted.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "New calls are accepted", body = String, content_type = "text/plain"),
    (status = 503, description = "New calls are refused: the relay is being drained, or its threads are late", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn readyz(State(app): State<App>) -> Result<&'static str, Problem> {
    match app.ask(|service: &mut Service| service.not_ready()).await? {
        None => Ok("ready\n"),
        Some(reason) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason)),
    }
}
