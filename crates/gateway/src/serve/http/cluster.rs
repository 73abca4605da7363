//! `/v1/cluster`: who carries which stream, as this node sees it; and what an operator wants of it.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::{App, Json, within};
use super::problem::Problem;
use crate::cluster::{ClusterView, NotAnswered, NotMoved, Status};

/// Where a stream is to be carried.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Move {
    /// The stream.
    stream: String,
    /// The node; nothing: the one that the cluster takes by itself.
    node: Option<String>,
}

/// Whether the node gives away what it carries.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct NodeDrain {
    /// It does, and takes nothing.
    draining: bool,
}

/// How the cluster is
///
/// As this node sees it: the nodes that live, and the streams with who carries them.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", responses(
    (status = 200, body = Status),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "This gateway is in no cluster")))]
pub(super) async fn show(State(app): State<App>) -> Result<axum::Json<Status>, Problem> {
    let status = within(cluster(&app)?.status()).await??;
    Ok(axum::Json(status))
}

/// Give away all streams of this node
///
/// One after the other, without a gap. The node takes none until this is undone, or it is started again.
#[utoipa::path(post, path = "/v1/cluster/drain", tag = "cluster", responses(
    (status = 200, body = NodeDrain),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "This gateway is in no cluster")))]
pub(super) async fn drain(State(app): State<App>) -> Result<axum::Json<NodeDrain>, Problem> {
    set(&app, true).await
}

/// Take streams again
#[utoipa::path(delete, path = "/v1/cluster/drain", tag = "cluster", responses(
    (status = 200, body = NodeDrain),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "This gateway is in no cluster")))]
pub(super) async fn undrain(State(app): State<App>) -> Result<axum::Json<NodeDrain>, Problem> {
    set(&app, false).await
}

/// Have a stream carried by a node
///
/// As long as that node lives and takes streams, whatever the stream's labels say.
#[utoipa::path(post, path = "/v1/cluster/move", tag = "cluster", request_body = Move, responses(
    (status = 204, description = "It is on its way"),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "No such stream or node, or no cluster"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The stream was declared anew just now"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "etcd does not answer")))]
pub(super) async fn move_to(
    State(app): State<App>,
    Json(asked): Json<Move>,
) -> Result<StatusCode, Problem> {
    let Move { stream, node } = asked;
    within(cluster(&app)?.move_to(&stream, node.as_deref())).await??;
    tracing::info!(stream, node, "moving the stream");
    Ok(StatusCode::NO_CONTENT)
}

async fn set(app: &App, draining: bool) -> Result<axum::Json<NodeDrain>, Problem> {
    within(cluster(app)?.drain(draining)).await??;
    Ok(axum::Json(NodeDrain { draining }))
}

fn cluster(app: &App) -> Result<&ClusterView, Problem> {
    let none = || Problem::new(StatusCode::NOT_FOUND, "this gateway is in no cluster");
    app.cluster.as_ref().ok_or_else(none)
}

impl From<NotAnswered> for Problem {
    fn from(error: NotAnswered) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<NotMoved> for Problem {
    fn from(error: NotMoved) -> Problem {
        let status = match error {
            NotMoved::Stream(_) | NotMoved::Node(_) => StatusCode::NOT_FOUND,
            NotMoved::Calls(_) | NotMoved::Declared(_) => StatusCode::CONFLICT,
            NotMoved::Store | NotMoved::NotAnswered(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Problem::new(status, error.to_string())
    }
}
