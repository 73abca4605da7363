//! State that all routes share: the connection to the control thread, and time limits.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::problem::Problem;
use crate::metrics::Metrics;
use crate::orders::Control;
use crate::service::Service;
use threadbare_cluster::ClusterView;
use threadbare_recording::Recorder;
use threadbare_streams::reload::Reloads;
use threadbare_watch::View;

/// The state that all routes share. It is cloned for each request.
#[derive(Clone)]
pub(crate) struct App {
    pub(super) control: Control<Service>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) recorder: Recorder,
    pub(super) reloads: Arc<Reloads>,
    /// The streams of the configuration file.
    pub(super) view: View,
    /// The cluster. `None`: this gateway is not in a cluster.
    pub(super) cluster: Option<ClusterView>,
    /// Permits for WebSocket connections.
    pub(super) sockets: Arc<Semaphore>,
    /// Permits for listeners.
    pub(super) listeners: Arc<Semaphore>,
}

impl App {
    /// Runs a closure on the control thread, and returns its result.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Service) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        Ok(within(self.control.ask(order)).await??)
    }
}

/// Waits for a future, for at most [`ANSWER_TIME_MAX`].
pub(super) async fn within<T>(future: impl Future<Output = T>) -> Result<T, Problem> {
    let done = timeout(ANSWER_TIME_MAX, future).await;
    done.map_err(|_| {
        let seconds = ANSWER_TIME_MAX.as_secs();
        let detail = format!("the request was not done within {seconds} s");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1)
    })
}

/// The bytes of a request's body.
pub(super) struct Body(pub(super) axum::body::Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Body, Problem> {
        // If `Content-Length` is too large, refuse without reading the body.
        if request.body().size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_long());
        }
        let read = timeout(
            BODY_TIME_MAX,
            axum::body::Bytes::from_request(request, state),
        );
        match read.await {
            Ok(Ok(bytes)) => Ok(Body(bytes)),
            Ok(Err(rejected)) if rejected.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(too_long())
            }
            Ok(Err(rejected)) => Err(Problem::new(rejected.status(), rejected.body_text())),
            Err(_) => {
                let seconds = BODY_TIME_MAX.as_secs();
                let detail = format!("the body did not arrive within {seconds} s");
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail))
            }
        }
    }
}

fn too_long() -> Problem {
    let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long");
    problem.about("body", format!("up to {BODY_BYTES_MAX} bytes"))
}

/// A parsed JSON body. An empty body counts as an empty object.
pub(super) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        let Body(bytes) = Body::from_request(request, state).await?;
        let bytes = match bytes.trim_ascii() {
            [] => b"{}",
            some => some,
        };
        let read = serde_json::from_slice(bytes);
        read.map(Json).map_err(|error| {
            let problem = Problem::new(
                StatusCode::BAD_REQUEST,
                format!("the body is not valid: {error}"),
            );
            problem.about("body", "JSON as in /openapi.json")
        })
    }
}

/// Maximum size of a body. It allows two SDPs of 64 KiB, which is the limit of the ng protocol, escaped as JSON.
pub(super) const BODY_BYTES_MAX: usize = 256 * 1024;
/// Time limit from the header to the end of a body. It is enough for slow connections.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for the control thread, which answers within milliseconds unless the machine is overloaded.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
