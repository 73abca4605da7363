//! Serves HTTP connections. No connection blocks another one, and an idle connection is soon closed.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::acceptor::{Acceptor, Stopped};
use threadbare_process::places::{Limits, Place};

/// The address of the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Serves connections on a separate thread. If the server is stopped, it still answers current requests, provided that the clients read the
/// replies soon.
///
/// # Errors
/// Fails if the system cannot provide the threads or descriptors.
pub(super) fn start(listener: std::net::TcpListener, router: Router) -> io::Result<Acceptor> {
    Acceptor::start(
        "http",
        listener,
        LIMITS,
        move |stream, peer, place, stopped| serve(stream, peer, place, router.clone(), stopped),
    )
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    place: Arc<Place>,
    router: Router,
    mut stopped: Stopped,
) {
    let answer = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(place.clone());
        let (router, busy) = (router.clone(), place.begin());
        async move {
            let answered = router.oneshot(request).await;
            drop(busy);
            answered
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "an HTTP connection");
    }
}

/// Limits of connections. They are enough for monitors, operators and programs with a few connections each. A connection takes up to 300
/// KiB for buffers.
const LIMITS: Limits = Limits {
    total: 256,
    per_host: 128,
    extra: 32,
};
/// Time limit for the header of a request. It counts from the end of the previous request.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum size of a connection's read buffer. Headers of browsers have some 2 KiB.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
