//! `/v1/reload`: reloads the configuration file.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::{App, within};
use super::problem::Problem;
use threadbare_streams::reload::NotReloaded;

/// The applied changes.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct Reloaded {
    /// Number of streams that were started.
    streams_added: usize,
    /// Number of streams that were ended.
    streams_removed: usize,
    /// Number of streams that were restarted, because their settings have changed.
    streams_restarted: usize,
    /// Whether settings of calls were changed.
    calls_changed: bool,
}

/// Reload the configuration file
///
/// Applies the changes in the file, as SIGHUP does. Streams and calls without changes continue undisturbed. If the file has
/// mistakes, or a change needs a restart, nothing is applied.
#[utoipa::path(post, path = "/v1/reload", tag = "relay", responses(
    (status = 200, body = Reloaded),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The process has no configuration file, or a \
    change needs a restart"),
    (status = 422, body = Problem, content_type = "application/problem+json", description = "The file has mistakes")))]
pub(super) async fn reload(State(app): State<App>) -> Result<axum::Json<Reloaded>, Problem> {
    let told = within(app.reloads.ask()).await?;
    let gone = |_| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the process is about to end",
        )
    };
    let done = told.map_err(gone)?.map_err(|refused| {
        let status = match refused {
            NotReloaded::NoFile | NotReloaded::NeedsRestart(_) => StatusCode::CONFLICT,
            NotReloaded::Mistakes(_) => StatusCode::UNPROCESSABLE_ENTITY,
            NotReloaded::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem::new(status, refused.to_string())
    })?;
    Ok(axum::Json(Reloaded {
        streams_added: done.streams_added,
        streams_removed: done.streams_removed,
        streams_restarted: done.streams_restarted,
        calls_changed: done.calls_changed,
    }))
}
