//! Requests to all nodes of a cluster (`?cluster=1`) or to a named node (`?node=NAME`), and endless replies of other nodes.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::sleep;

use super::app::within;
use super::calls::{limit_of, list_path};
use super::id::CALLS;
use super::problem::Problem;
use crate::call_name::decode;
use threadbare_cluster::{Back, ClusterView, HttpRequest, Passed, Piece};
use threadbare_process::system::random_number;

/// Returns path and query without `cluster=1`. `None`: the request is not for all nodes.
pub(super) fn of_all(method: &Method, uri: &Uri) -> Option<String> {
    let query = uri.query()?;
    let is_asked = |pair: &&str| *pair == "cluster=1";
    let is_all = query.split('&').any(|pair| is_asked(&pair));
    let is_list = matches!(uri.path(), CALLS | EVENTS | WALL) && *method == Method::GET;
    (is_all && is_list).then(|| without(uri, query, is_asked))
}

/// Returns the node in `node=NAME`, and path and query without it. `None`: the request is not about a stream of a node.
pub(super) fn of_node(uri: &Uri) -> Option<(String, String)> {
    let query = uri.query().filter(|_| uri.path().starts_with(STREAM))?;
    let name_in = |pair: &&str| pair.strip_prefix("node=").map(str::to_owned);
    let name = query.split('&').find_map(|pair| name_in(&pair))?;
    let target = without(uri, query, |pair| name_in(pair).is_some());
    Some((decode(&name).to_string(), target))
}

fn without(uri: &Uri, query: &str, is_it: impl Fn(&&str) -> bool) -> String {
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_it(pair)).collect();
    if rest.is_empty() {
        uri.path().to_owned()
    } else {
        format!("{}?{}", uri.path(), rest.join("&"))
    }
}

/// Answers a request with the merged replies of all nodes. `target` is the path and query for each node.
pub(super) async fn answer(
    cluster: ClusterView,
    mut request: Request,
    target: String,
    next: Next,
) -> Response {
    let Ok(uri) = target.parse::<Uri>() else {
        return next.run(request).await;
    };
    *request.uri_mut() = uri.clone();
    let own = next.run(request).await;
    if own.status() != StatusCode::OK {
        return own;
    }
    match uri.path() {
        EVENTS => return events(cluster, own, Uri::from_static(EVENTS)),
        WALL => return events(cluster, own, Uri::from_static(WALL)),
        _ => {}
    }
    match within(calls(&cluster, own, &uri)).await.flatten() {
        Ok(merged) => axum::Json(merged).into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// Returns a page of the calls of all nodes, in the order of their ids.
async fn calls(cluster: &ClusterView, own: Response, uri: &Uri) -> Result<Value, Problem> {
    let limit = limit_of(uri.query().unwrap_or_default())?;
    let unreadable = |_| Problem::new(StatusCode::BAD_GATEWAY, "an answer cannot be read");
    let own = to_bytes(own.into_body(), PAGE_BYTES_MAX).await;
    let own = own.map_err(unreadable)?;
    let asked = cluster.ask_others(Passed::Http(get(uri)));
    let others = asked.await.unwrap_or_default();
    let mut pages = vec![(cluster.node().to_owned(), Some(own.to_vec()))];
    pages.extend(others.into_iter().map(|(node, back)| match back {
        Some(Back::Http {
            status: 200, body, ..
        }) => (node, Some(body)),
        _ => (node, None),
    }));
    let (mut all, mut missing, mut has_more) = (Vec::new(), Vec::new(), false);
    for (node, page) in pages {
        let page = page.and_then(|page| serde_json::from_slice::<Value>(&page).ok());
        let Some(mut page) = page else {
            missing.push(node);
            continue;
        };
        has_more |= page.get("next").is_some_and(Value::is_string);
        let calls = page.get_mut("calls").and_then(Value::as_array_mut);
        for mut call in calls.map(std::mem::take).unwrap_or_default() {
            call["node"] = node.clone().into();
            let path = call["path"].as_str().unwrap_or_default();
            let id = decode(
                path.strip_prefix(CALLS)
                    .unwrap_or(path)
                    .trim_start_matches('/'),
            );
            all.push((id, call));
        }
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    has_more |= all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| has_more).map(|(id, _)| id);
    let next = last.map(|last| format!("{}&cluster=1", list_path(last, limit)));
    let calls: Vec<Value> = all.into_iter().map(|(_, call)| call).collect();
    Ok(serde_json::json!({ "calls": calls, "next": next, "missing": missing }))
}

/// Streams the events of all nodes, each with the node's name. On the wall, `left` reports that a node sends no more events.
fn events(cluster: ClusterView, own: Response, of: Uri) -> Response {
    let (tell, told) = channel(LINES_MAX);
    let name = cluster.node().to_owned();
    let mut body = own.into_body().into_data_stream();
    let own = tell.clone();
    tokio::spawn(async move {
        while let Some(Ok(lines)) = body.next().await {
            if own.send(with_node(&lines, &name)).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(follow_nodes(cluster, tell, of));
    let lines = futures_util::stream::unfold(told, |mut told| async move {
        Some((Ok::<_, Infallible>(told.recv().await?), told))
    });
    let kind = (CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    ([kind], Body::from_stream(lines)).into_response()
}

/// Reads the events of all other nodes, including those that join later, until the client has gone.
async fn follow_nodes(cluster: ClusterView, tell: Sender<Bytes>, of: Uri) {
    let mut read = tokio::task::JoinSet::new();
    let mut known = BTreeSet::new();
    loop {
        let nodes = cluster.status().await.map(|status| status.nodes);
        for node in nodes.unwrap_or_default() {
            let name = node.node;
            if name != cluster.node() && known.insert(name.clone()) {
                let (cluster, tell, of) = (cluster.clone(), tell.clone(), of.clone());
                read.spawn(async move {
                    read_events(&cluster, &name, &tell, &of).await;
                    if of.path() == WALL {
                        // Sending fails if the client has gone.
                        let left = with_node(b"event: left\ndata: {}\n\n", &name);
                        let _ = tell.send(left).await;
                    }
                    name
                });
            }
        }
        tokio::select! {
            () = tell.closed() => return,
            Some(Ok(name)) = read.join_next() => {
                known.remove(&name);
                sleep(AGAIN).await;
            }
            () = sleep(NODES_LOOK) => {}
        }
    }
}

async fn read_events(cluster: &ClusterView, node: &str, tell: &Sender<Bytes>, uri: &Uri) {
    let reader = random_number();
    loop {
        let piece = Passed::Piece {
            reader,
            request: get(uri),
        };
        let back = cluster.ask_node(node, piece).await.ok().flatten();
        let Some(Back::Piece(piece)) = back.filter(Back::is_fine) else {
            return;
        };
        let lines = with_node(&piece.body, node);
        if !lines.is_empty() && tell.send(lines).await.is_err() || piece.is_over {
            return;
        }
    }
}

/// Adds the name of the node to the data of server-sent events. Comments, which keep a connection alive, stay unchanged.
fn with_node(lines: &[u8], node: &str) -> Bytes {
    let text = String::from_utf8_lossy(lines);
    let with_node = |line: &str| {
        let data = line.strip_prefix("data:")?;
        let mut data: Value = serde_json::from_str(data.trim_start()).ok()?;
        data.as_object_mut()?.insert("node".to_owned(), node.into());
        Some(format!("data: {data}\n"))
    };
    let line = |line: &str| with_node(line.trim_end()).unwrap_or_else(|| line.to_owned());
    text.split_inclusive('\n')
        .map(line)
        .collect::<String>()
        .into()
}

/// Forwards an endless reply of another node. `first` is the piece that has already arrived.
pub(super) fn endless(
    cluster: ClusterView,
    reader: u64,
    request: HttpRequest,
    first: Piece,
) -> Response {
    let node = first.node;
    // The state is the first piece, or `Some(None)` if the next piece must be requested.
    let begin = Some(Some((first.body, first.is_over)));
    let pieces = futures_util::stream::unfold(begin, move |state| {
        let (cluster, node, request) = (cluster.clone(), node.clone(), request.clone());
        async move {
            let (body, is_over) = match state? {
                Some(first) => first,
                None => {
                    let piece = Passed::Piece { reader, request };
                    match cluster.ask_node(&node, piece).await.ok().flatten() {
                        Some(Back::Piece(next)) => (next.body, next.is_over),
                        // If the node does not answer, the reply ends.
                        _ => return None,
                    }
                }
            };
            let next = (!is_over).then_some(None);
            Some((Ok::<_, Infallible>(Bytes::from(body)), next))
        }
    });
    let status = StatusCode::from_u16(first.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = (status, Body::from_stream(pieces)).into_response();
    let kind = first.content_type.and_then(|kind| kind.parse().ok());
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

fn get(uri: &Uri) -> HttpRequest {
    HttpRequest {
        method: Method::GET.to_string(),
        target: uri.to_string(),
        content_type: None,
        body: Vec::new(),
    }
}

const EVENTS: &str = "/v1/events";
const WALL: &str = "/v1/wall";
const STREAM: &str = "/v1/streams/";
/// Maximum size of a node's page. It is enough for 200 calls of less than a kilobyte.
const PAGE_BYTES_MAX: usize = 1_000_000;
/// Maximum number of pieces that wait for the client. Beyond it, pieces wait at their nodes, within the limits there.
const LINES_MAX: usize = 64;
const NODES_LOOK: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_to_all_nodes_are_recognised() {
        let all = |method: Method, uri: &str| of_all(&method, &uri.parse().expect("a path"));
        let list = |uri| all(Method::GET, uri);
        assert_eq!(list("/v1/calls?cluster=1").as_deref(), Some("/v1/calls"));
        let rest = list("/v1/calls?limit=3&cluster=1&after=a");
        assert_eq!(rest.as_deref(), Some("/v1/calls?limit=3&after=a"));
        assert_eq!(list("/v1/events?cluster=1").as_deref(), Some(EVENTS));
        assert_eq!(list("/v1/calls?cluster=0"), None);
        assert_eq!(list("/v1/calls"), None);
        assert_eq!(list("/v1/calls/a?cluster=1"), None);
        assert_eq!(all(Method::POST, "/v1/calls?cluster=1"), None);
    }

    #[test]
    fn the_node_of_a_stream_request_is_recognised() {
        let at = |uri: &str| of_node(&uri.parse().expect("a path"));
        let at_node = |node: &str, target: &str| Some((node.to_owned(), target.to_owned()));
        assert_eq!(at("/v1/streams/a?node=n2"), at_node("n2", "/v1/streams/a"));
        assert_eq!(
            at("/v1/streams/a%20b/history?seconds=10&node=n%2D2&step=1"),
            at_node("n-2", "/v1/streams/a%20b/history?seconds=10&step=1")
        );
        assert_eq!(at("/v1/streams/a?nodes=n2"), None);
        assert_eq!(at("/v1/streams?node=n2"), None);
        assert_eq!(at("/v1/calls/a?node=n2"), None);
    }

    #[test]
    fn events_get_the_name_of_their_node() {
        let lines = "event: up\ndata: {\"id\":\"a\"}\n\n:\n\n";
        let due = "event: up\ndata: {\"id\":\"a\",\"node\":\"n2\"}\n\n:\n\n";
        assert_eq!(with_node(lines.as_bytes(), "n2"), due.as_bytes());
    }
}
