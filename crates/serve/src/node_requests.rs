//! Answers requests of other nodes of the cluster for this node's calls.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName};
use threadbare_member::CallName;
use tokio::sync::oneshot;
use tower::ServiceExt;

use super::asker::{ReplyTo, Unreplied};
use super::call_name::decode;
use super::feeds::Feeds;
use super::http::{PassedOn, Peer};
use super::orders::{Control, NotDone};
use super::service::{Scope, Service};
use threadbare_cluster::{
    Back, CallService, Claimed, HttpRequest, Left, Origin, Passed, Preparing, Taking,
};

/// The handle through which the cluster's thread reaches the control thread.
pub(super) struct NodeRequests {
    control: Control<Service>,
    /// The HTTP routes without access control, because the sending node has already checked the client.
    http: Router,
    feeds: Feeds,
}

impl fmt::Debug for NodeRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeRequests")
    }
}

impl NodeRequests {
    /// Creates the handle. `node` is the name of this node.
    pub(super) fn new(control: Control<Service>, http: Router, node: &str) -> NodeRequests {
        let feeds = Feeds::new(node);
        NodeRequests {
            control,
            http,
            feeds,
        }
    }
}

impl CallService for NodeRequests {
    fn answer(
        &self,
        call: Option<CallName>,
        passed: Passed,
    ) -> Pin<Box<dyn Future<Output = Back> + Send>> {
        let (control, http, feeds) = (self.control.clone(), self.http.clone(), self.feeds.clone());
        Box::pin(async move {
            let is_http = matches!(passed, Passed::Http(_) | Passed::Piece { .. });
            if is_http && !is_here(&control, call.as_ref()).await {
                return Back::Moved;
            }
            match passed {
                Passed::Ng { from, message } => answer_message(control, call, from, message).await,
                Passed::Http(request) => answer_http(http, request).await,
                Passed::Piece { reader, request } => match built(request) {
                    Some(request) => feeds.piece(http, reader, request).await,
                    None => unreadable(),
                },
                // The cluster's thread handles these messages itself.
                Passed::Copies(_)
                | Passed::LatePackets(_)
                | Passed::Released(..)
                | Passed::Handed(_) => Back::Kept,
            }
        })
    }

    fn claimed(&self, call: &CallName, claimed: Claimed) {
        let call = call.clone();
        // The result must not be lost, because other nodes wait for it.
        self.control
            .order_surely(move |service: &mut Service| service.handle_claimed(&call, claimed));
    }

    fn prepare(&self, preparing: Preparing, done: Box<dyn FnOnce() + Send>) {
        self.control.order_surely(move |service: &mut Service| {
            service.prepare(preparing);
            done();
        });
    }

    fn unprepare(&self, name: &str) {
        let name = name.to_owned();
        self.control
            .order_surely(move |service: &mut Service| service.unprepare(&name));
    }

    fn take(&self, taking: Taking, done: Box<dyn FnOnce() + Send>) {
        self.control.order_surely(move |service: &mut Service| {
            service.take(taking);
            done();
        });
    }

    fn leave(&self, name: &str, most: usize, left: Left) {
        let name = name.to_owned();
        self.control
            .order_surely(move |service: &mut Service| left(service.leave(&name, most)));
    }

    fn close(&self, name: &str) {
        let name = name.to_owned();
        self.control
            .order_surely(move |service: &mut Service| service.close(&name));
    }

    fn deliver(&self) {
        self.control
            .order_surely(|service: &mut Service| service.deliver_late_packets());
    }
}

/// Whether this node has the call. Returns `true` for a request that is not about a call.
async fn is_here(control: &Control<Service>, call: Option<&CallName>) -> bool {
    let Some(call) = call else { return true };
    let id = decode(&call.0);
    let asked = control.ask(move |service| service.calls.has(&id));
    // If the control thread does not answer, this node accepts the request, and the reply states the problem.
    asked.await.unwrap_or(true)
}

async fn answer_message(
    control: Control<Service>,
    call: Option<CallName>,
    from: Origin,
    message: Vec<u8>,
) -> Back {
    let (tell, told) = oneshot::channel();
    let ordered = control.order(move |service: &mut Service| {
        let scope = match call {
            Some(call) => Scope::Known(decode(&call.0)),
            None => Scope::Node,
        };
        service.handle_message(from.into(), ReplyTo::Waiting(tell), &message, scope);
    });
    if let Err(error) = ordered {
        return Back::Unable(error.to_string());
    }
    match told.await {
        Ok(Ok(reply)) => Back::Ng(reply),
        Ok(Err(Unreplied::InHand)) => Back::InHand,
        Ok(Err(Unreplied::Moved)) => Back::Moved,
        Ok(Err(Unreplied::NoMessage(why))) => Back::Unable(why.to_string()),
        Err(_) => Back::Unable(NotDone::Gone.to_string()),
    }
}

/// Converts a forwarded request to one for this node's routes.
fn built(request: HttpRequest) -> Option<Request> {
    let HttpRequest {
        method,
        target,
        content_type,
        body,
    } = request;
    let mut built = Request::builder().method(method.as_str()).uri(target);
    if let Some(content_type) = content_type {
        built = built.header(CONTENT_TYPE, content_type);
    }
    let mut request = built.body(Body::from(body)).ok()?;
    // The sending node has checked the client's address, so it is not checked again.
    let peer = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    request.extensions_mut().insert(Peer(peer));
    request.extensions_mut().insert(PassedOn);
    Some(request)
}

fn unreadable() -> Back {
    Back::Unable("the node cannot read the request, because it runs another version".to_owned())
}

async fn answer_http(http: Router, request: HttpRequest) -> Back {
    let Some(request) = built(request) else {
        return unreadable();
    };
    let Ok(response) = http.oneshot(request).await;
    let (head, body) = response.into_parts();
    let text = |headers: &HeaderMap, name: HeaderName| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    match to_bytes(body, ANSWER_BYTES_MAX).await {
        Ok(body) => Back::Http {
            status: head.status.as_u16(),
            content_type: text(&head.headers, CONTENT_TYPE),
            location: text(&head.headers, LOCATION),
            body: body.into(),
        },
        Err(_) => Back::Unable(format!("the reply has more than {ANSWER_BYTES_MAX} bytes")),
    }
}

/// Maximum size of an answer. A message between nodes must be smaller than 1 MiB.
const ANSWER_BYTES_MAX: usize = 1_000_000;
