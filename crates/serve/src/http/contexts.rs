//! `/v1/contexts`: the load of the media threads.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::problem::Problem;
use crate::metrics::ThreadSnapshot;
use crate::service::Service;

/// The media threads.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Contexts {
    contexts: Vec<ContextThread>,
}

/// A media thread.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct ContextThread {
    /// Name of the thread.
    name: String,
    /// Number of streams that the thread carries.
    streams: u64,
    /// Share of the time since the thread's start in which it was not asleep.
    busy_percent: f64,
    /// Recent lateness of the thread's slices.
    lateness_ms: f64,
    packets_received: u64,
    packets_sent: u64,
    /// Datagrams that the system refused to send.
    send_errors: u64,
    /// Datagrams that the system dropped because a socket's buffer or a ring was full.
    kernel_drops: u64,
    /// Received datagrams that arrived through an XDP ring.
    ring_packets_received: u64,
    /// Sent datagrams that left through an XDP ring.
    ring_packets_sent: u64,
}

/// Load and lateness of the media threads
#[utoipa::path(get, path = "/v1/contexts", tag = "relay", responses((status = 200, body = Contexts)))]
pub(super) async fn list(State(app): State<App>) -> Result<axum::Json<Contexts>, Problem> {
    let threads = app.ask(|service: &mut Service| service.threads()).await?;
    let shown = |thread: ThreadSnapshot| ContextThread {
        busy_percent: thread.busy_ns as f64 / thread.alive_ns.max(1) as f64 * 100.0,
        lateness_ms: thread.lateness_ns as f64 / 1e6,
        name: thread.name,
        streams: thread.streams,
        packets_received: thread.packets_received,
        packets_sent: thread.packets_sent,
        send_errors: thread.send_errors,
        kernel_drops: thread.kernel_drops,
        ring_packets_received: thread.ring_packets[0],
        ring_packets_sent: thread.ring_packets[1],
    };
    let contexts = threads.into_iter().map(shown).collect();
    Ok(axum::Json(Contexts { contexts }))
}
