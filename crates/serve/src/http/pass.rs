//! Forwards requests about calls and streams of other nodes in the cluster.

use axum::body::Body as Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use threadbare_control::calls::CallId;
use tokio::sync::oneshot;

use super::app::{App, Body, within};
use super::everywhere;
use super::id::CALLS;
use super::problem::Problem;
use crate::call_name::{decode, name_of};
use crate::orders::NotDone;
use crate::service::Service;
use threadbare_cluster::{Back, ClusterView, HttpRequest, Passed, Way};
use threadbare_process::system::random_number;

/// Marks a request that another node has forwarded. This node must answer it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassedOn;

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
enum About {
    /// A call that is to be made.
    New,
    Call(CallId),
    /// A call, with an endless reply.
    Endless(CallId),
    Other,
}

/// Middleware that forwards a request if another node must answer it.
pub(super) async fn pass(State(app): State<App>, request: Request, next: Next) -> Response {
    let is_ours = request.extensions().get::<PassedOn>().is_some();
    let has_calls = app.cluster.as_ref().is_some_and(|one| one.has_calls());
    let all = everywhere::of_all(request.method(), request.uri());
    if let (Some(target), Some(cluster), true, false) = (all, &app.cluster, has_calls, is_ours) {
        return everywhere::answer(cluster.clone(), request, target, next).await;
    }
    let of_node = everywhere::of_node(request.uri());
    if let (Some((node, target)), Some(cluster), true, false) =
        (of_node, &app.cluster, has_calls, is_ours)
    {
        return match at_node(cluster, &node, target, request).await {
            Ok(Found::Here(request)) => next.run(*request).await,
            Ok(Found::Answered(response)) => response,
            Err(problem) => problem.into_response(),
        };
    }
    let about = About::of(request.method(), request.uri().path());
    if is_ours || !has_calls || about == About::Other {
        return next.run(request).await;
    }
    match find_way(&app, about, request).await {
        Ok(Found::Here(request)) => next.run(*request).await,
        Ok(Found::Answered(response)) => response,
        Err(problem) => problem.into_response(),
    }
}

enum Found {
    Here(Box<Request>),
    Answered(Response),
}

/// Answers a request about a stream of `node`, or forwards it there. `target` is the path and query for that node.
async fn at_node(
    cluster: &ClusterView,
    node: &str,
    target: String,
    request: Request,
) -> Result<Found, Problem> {
    let (mut head, body) = request.into_parts();
    if node == cluster.node() {
        head.uri = target.parse().unwrap_or(head.uri);
        return Ok(Found::Here(Box::new(Request::from_parts(head, body))));
    }
    let Body(body) = Body::from_request(Request::from_parts(head.clone(), body), &()).await?;
    let is_endless = head.uri.path().ends_with("/listen");
    let asked = Asked::new(&head, target, &body, is_endless);
    let back = within(cluster.ask_node(node, asked.passed())).await?;
    match back.ok().flatten() {
        Some(back) => asked.answered(cluster, back),
        None => {
            let detail = format!("node {node:?} does not answer, or is not in the cluster");
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1))
        }
    }
}

/// A request that another node must answer.
struct Asked {
    request: HttpRequest,
    /// Identifies the reader of an endless reply. `None`: the reply is not endless.
    reader: Option<u64>,
}

impl Asked {
    fn new(head: &Parts, target: String, body: &[u8], is_endless: bool) -> Asked {
        let content_type = head.headers.get(CONTENT_TYPE);
        Asked {
            request: HttpRequest {
                method: head.method.to_string(),
                target,
                content_type: content_type.and_then(|value| Some(value.to_str().ok()?.to_owned())),
                body: body.to_vec(),
            },
            reader: is_endless.then(random_number),
        }
    }

    fn passed(&self) -> Passed {
        let request = self.request.clone();
        match self.reader {
            Some(reader) => Passed::Piece { reader, request },
            None => Passed::Http(request),
        }
    }

    fn answered(self, cluster: &ClusterView, back: Back) -> Result<Found, Problem> {
        match (back, self.reader) {
            (Back::Piece(first), Some(reader)) => {
                let response = everywhere::endless(cluster.clone(), reader, self.request, first);
                Ok(Found::Answered(response))
            }
            (back, _) => response(back).map(Found::Answered),
        }
    }
}

async fn find_way(app: &App, about: About, request: Request) -> Result<Found, Problem> {
    let (head, body) = request.into_parts();
    let Body(body) = Body::from_request(Request::from_parts(head.clone(), body), &()).await?;
    let is_endless = matches!(about, About::Endless(_));
    let (call, makes) = match about {
        About::New => (asked_name(&body), true),
        About::Call(id) | About::Endless(id) => (Some(id), false),
        About::Other => (None, false),
    };
    let here = |head, body| Found::Here(Box::new(Request::from_parts(head, Bytes::from(body))));
    if let Some(id) = call.clone()
        && app
            .ask(move |service: &mut Service| service.calls.has(&id))
            .await?
    {
        return Ok(here(head, body));
    }
    let Some(cluster) = &app.cluster else {
        return Ok(here(head, body));
    };
    let name = call.as_ref().map(name_of).transpose();
    let name = name.map_err(|reason| Problem::new(StatusCode::BAD_REQUEST, reason))?;
    let target = head.uri.path_and_query().map(ToString::to_string);
    let asked = Asked::new(&head, target.unwrap_or_default(), &body, is_endless);
    let (tell, told) = oneshot::channel();
    cluster.pass(name, makes, asked.passed(), move |way| {
        // Sending fails if the receiver has gone.
        let _ = tell.send(way);
    });
    match within(told).await?.map_err(|_| NotDone::Gone)? {
        Way::Here => Ok(here(head, body)),
        Way::Answered(back) => asked.answered(cluster, back),
        Way::Refused(reason) => {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason).retry_after(1))
        }
    }
}

fn response(back: Back) -> Result<Response, Problem> {
    let bad = |detail: String| Problem::new(StatusCode::BAD_GATEWAY, detail);
    let Back::Http {
        status,
        content_type,
        location,
        body,
    } = back
    else {
        return Err(bad(format!(
            "another node sent an unexpected answer: {back:?}"
        )));
    };
    let mut built = Response::builder().status(status);
    for (name, value) in [(CONTENT_TYPE, content_type), (LOCATION, location)] {
        if let Some(value) = value {
            built = built.header(name, value);
        }
    }
    built
        .body(Bytes::from(body))
        .map_err(|error| bad(error.to_string()))
}

/// Returns the id of the call to be made, if the request contains one. An invalid request gives `None`, and is refused later.
fn asked_name(body: &[u8]) -> Option<CallId> {
    #[derive(Deserialize)]
    struct Named {
        id: Option<String>,
    }
    let named: Named = serde_json::from_slice(body).ok()?;
    Some(CallId::new(named.id?.as_bytes()))
}

impl About {
    fn of(method: &Method, path: &str) -> About {
        let Some(rest) = path.strip_prefix(CALLS) else {
            return About::Other;
        };
        if rest.is_empty() {
            return if *method == Method::POST {
                About::New
            } else {
                About::Other
            };
        }
        let mut parts = rest.split('/').skip(1);
        match (parts.next(), parts.next()) {
            (Some(""), _) | (None, _) => About::Other,
            (Some(name), Some("listen")) => About::Endless(decode(name)),
            (Some(name), _) => About::Call(decode(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_about_calls_are_recognised() {
        let call = |name: &str| About::Call(CallId::new(name.as_bytes()));
        for (method, path, due) in [
            (Method::POST, "/v1/calls", About::New),
            (Method::GET, "/v1/calls", About::Other),
            (Method::GET, "/v1/calls/a%20b", call("a b")),
            (Method::POST, "/v1/calls/a/hold", call("a")),
            (
                Method::GET,
                "/v1/calls/a/listen",
                About::Endless(CallId::new(b"a")),
            ),
            (Method::DELETE, "/v1/calls/", About::Other),
            (Method::GET, "/v1/callsigns", About::Other),
            (Method::GET, "/v1/streams/a", About::Other),
        ] {
            assert_eq!(About::of(&method, path), due, "{method} {path}");
        }
        assert_eq!(asked_name(br#"{"id":"a"}"#), Some(CallId::new(b"a")));
        assert_eq!(asked_name(br#"{"sides":[]}"#), None);
        assert_eq!(asked_name(b"no"), None);
    }
}
