//! `/ng`: messages of the ng protocol in HTTP requests or on a WebSocket connection.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::app::{App, BODY_BYTES_MAX, Body, within};
use super::problem::Problem;
use super::server::Peer;
use crate::asker::{Asker, ReplyTo, Unreplied};
use crate::orders::NotDone;
use crate::service::{Scope, Service};

/// Send a message of the ng protocol: a cookie, a space, and a dictionary in bencode or JSON
///
/// The reply has the request's cookie, encoding and content type. If the same host has used the cookie in the last seconds, the
/// request is a repetition: it gets the same reply, and is not carried out again.
#[utoipa::path(post, path = "/ng", tag = "ng",
    request_body(content = String, content_type = "application/x-rtpengine-ng", example = "1 {\"command\":\"ping\"}"),
    responses((status = 200, description = "The reply, even if it is an `error`", body = String, content_type = "application/x-rtpengine-ng"),
    (status = "4XX", description = "The body is not a message of the protocol", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn ask(
    State(app): State<App>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    Body(message): Body,
) -> Result<impl IntoResponse, Problem> {
    let reply = exchange(&app, peer, message).await?;
    let reply = reply.map_err(|why| match why {
        Unreplied::InHand | Unreplied::Moved => {
            Problem::new(StatusCode::CONFLICT, why.to_string()).retry_after(1)
        }
        Unreplied::NoMessage(_) => Problem::new(StatusCode::BAD_REQUEST, why.to_string()).about(
            "body",
            "a cookie, a space, and a dictionary in bencode or JSON",
        ),
    })?;
    let usual = HeaderValue::from_static("application/x-rtpengine-ng");
    let kind = headers.get(CONTENT_TYPE).cloned().unwrap_or(usual);
    Ok(([(CONTENT_TYPE, kind)], reply))
}

/// The ng protocol by WebSocket
///
/// Each text or binary WebSocket message contains one message of the ng protocol. Replies are sent in the same way. The
/// subprotocol is `ng.rtpengine.com`. At most 64 connections at a time.
#[utoipa::path(get, path = "/ng", tag = "ng",
    responses((status = 101, description = "The connection now uses WebSocket"),
    (status = "4XX", description = "The request is not a WebSocket request", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The limit of connections is reached")))]
pub(super) async fn socket(
    State(app): State<App>,
    Extension(Peer(peer)): Extension<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|rejected| {
        let problem = Problem::new(StatusCode::UPGRADE_REQUIRED, rejected.body_text());
        problem.about("Upgrade", "websocket (RFC 6455)")
    })?;
    let place = app.sockets.clone().try_acquire_owned().map_err(|_| {
        let detail = "the limit of WebSocket connections is reached";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1)
    })?;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .max_message_size(BODY_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        talk(&app, peer, socket).await;
        drop(place);
    }))
}

/// Handles messages one after another, until one side closes the connection.
async fn talk(app: &App, peer: SocketAddr, mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        let (bytes, is_text) = match message {
            Message::Text(text) => (text.into(), true),
            Message::Binary(bytes) => (bytes, false),
            Message::Close(_) => return,
            // The library answers pings itself.
            Message::Ping(_) | Message::Pong(_) => continue,
        };
        let reply = match exchange(app, peer, bytes).await {
            Ok(Ok(reply)) => reply,
            // The message repeats a request whose reply is still to come.
            Ok(Err(Unreplied::InHand)) => continue,
            Ok(Err(Unreplied::Moved | Unreplied::NoMessage(_))) | Err(_) => return,
        };
        let reply = match String::from_utf8(reply) {
            Ok(text) if is_text => Message::Text(text.into()),
            Ok(text) => Message::Binary(text.into_bytes().into()),
            Err(bytes) => Message::Binary(bytes.into_bytes().into()),
        };
        // A client that does not read its replies is disconnected, to make room for others.
        if !matches!(timeout(SEND_TIME_MAX, socket.send(reply)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Sends a message to the control thread, and returns its reply.
async fn exchange(
    app: &App,
    peer: SocketAddr,
    message: Bytes,
) -> Result<Result<Vec<u8>, Unreplied>, Problem> {
    let (tell, told) = oneshot::channel();
    let asker = Asker::Host(peer.ip());
    app.control.order(move |service: &mut Service| {
        service.handle_message(asker, ReplyTo::Waiting(tell), &message, Scope::Cluster);
    })?;
    Ok(within(told).await?.map_err(|_| NotDone::Gone)?)
}

/// The subprotocol that the clients of rtpengine name.
const PROTOCOL: &str = "ng.rtpengine.com";
const SEND_TIME_MAX: Duration = Duration::from_secs(10);
