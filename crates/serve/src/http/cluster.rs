//! `/v1/cluster`: shows the owners of streams as this node sees them, moves streams, and drains this node.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::{App, Json, within};
use super::problem::Problem;
use threadbare_cluster::{ClusterView, NotAnswered, NotMoved, Status};

/// A request to move a stream to another node.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Move {
    /// The stream.
    stream: String,
    /// The node; absent: the cluster chooses.
    node: Option<String>,
}

/// Whether the node is drained.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct NodeDrain {
    /// Whether the node hands over its streams, and accepts no new ones.
    draining: bool,
}

/// The state of the cluster
///
/// Shows the live nodes, and the streams with their owners, as this node sees them.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", responses(
    (status = 200, body = Status),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "This gateway is not in a cluster")))]
pub(super) async fn show(State(app): State<App>) -> Result<axum::Json<Status>, Problem> {
    let status = within(cluster(&app)?.status()).await??;
    Ok(axum::Json(status))
}

/// Hand over all streams of this node
///
/// The streams move one after the other, without a gap. The node accepts no streams until the drain is ended, or the node
/// restarts.
#[utoipa::path(post, path = "/v1/cluster/drain", tag = "cluster", responses(
    (status = 200, body = NodeDrain),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "This gateway is not in a cluster")))]
pub(super) async fn drain(State(app): State<App>) -> Result<axum::Json<NodeDrain>, Problem> {
    set(&app, true).await
}

/// Accept streams again
#[utoipa::path(delete, path = "/v1/cluster/drain", tag = "cluster", responses(
    (status = 200, body = NodeDrain),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "This gateway is not in a cluster")))]
pub(super) async fn undrain(State(app): State<App>) -> Result<axum::Json<NodeDrain>, Problem> {
    set(&app, false).await
}

/// Move a stream to a node
///
/// It stays there as long as that node lives and accepts streams, regardless of the stream's labels.
#[utoipa::path(post, path = "/v1/cluster/move", tag = "cluster", request_body = Move, responses(
    (status = 204, description = "The stream moves to the node"),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "There is no such stream, node or cluster"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The stream was redeclared during this request"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "etcd does not answer")))]
pub(super) async fn move_to(
    State(app): State<App>,
    Json(asked): Json<Move>,
) -> Result<StatusCode, Problem> {
    let Move { stream, node } = asked;
    within(cluster(&app)?.move_to(&stream, node.as_deref())).await??;
    tracing::info!(stream, node, "a request moves the stream");
    Ok(StatusCode::NO_CONTENT)
}

async fn set(app: &App, draining: bool) -> Result<axum::Json<NodeDrain>, Problem> {
    within(cluster(app)?.drain(draining)).await??;
    Ok(axum::Json(NodeDrain { draining }))
}

fn cluster(app: &App) -> Result<&ClusterView, Problem> {
    let none = || Problem::new(StatusCode::NOT_FOUND, "this gateway is not in a cluster");
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
