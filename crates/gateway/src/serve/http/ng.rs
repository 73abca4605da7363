//! `/ng`: messages of the ng protocol, as by UDP.

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use tokio::sync::oneshot;

use super::app::{App, Body, within};
use super::problem::Problem;
use super::server::Peer;
use crate::serve::asker::{Asker, ReplyTo, Unreplied};
use crate::serve::orders::NotDone;
use crate::serve::service::Service;

/// A message of the ng protocol: a cookie, a space, a dictionary in bencode or JSON
///
/// The reply has the request's cookie, encoding and content type. A cookie that the same host has used in the last seconds gets the same reply
/// again, and nothing is done twice.
#[utoipa::path(post, path = "/ng", tag = "ng",
    request_body(content = String, content_type = "application/x-rtpengine-ng", example = "1 {\"command\":\"ping\"}"),
    responses((status = 200, description = "The reply; also where it says `error`", body = String, content_type = "application/x-rtpengine-ng"),
    (status = "4XX", description = "No message", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn ask(
    State(app): State<App>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    Body(message): Body,
) -> Result<impl IntoResponse, Problem> {
    let (tell, told) = oneshot::channel();
    let asker = Asker::Http(peer.ip());
    app.control.order(move |service: &mut Service| {
        service.handle_message(asker, ReplyTo::Http(tell), &message);
    })?;
    let reply = within(told).await?.map_err(|_| NotDone::Gone)?;
    let reply = reply.map_err(|why| match why {
        Unreplied::InHand => Problem::new(StatusCode::CONFLICT, why.to_string()).retry_after(1),
        Unreplied::NoMessage(_) => Problem::new(StatusCode::BAD_REQUEST, why.to_string()).about(
            "body",
            "a cookie, a space, and a dictionary in bencode or JSON",
        ),
    })?;
    let usual = HeaderValue::from_static("application/x-rtpengine-ng");
    let kind = headers.get(CONTENT_TYPE).cloned().unwrap_or(usual);
    Ok(([(CONTENT_TYPE, kind)], reply))
}
