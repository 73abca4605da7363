//! Connections of HTTP: none holds up another one, or keeps its place by standing still.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::serve::acceptor::{Acceptor, Stopped};

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(in crate::serve) struct Peer(pub(in crate::serve) SocketAddr);

/// Answers connections on a thread of its own. When it is stopped, what is in hand is answered, if the clients take the answers soon.
///
/// # Errors
/// Threads or descriptors run out.
pub(super) fn start(listener: std::net::TcpListener, router: Router) -> io::Result<Acceptor> {
    Acceptor::start(
        "http",
        listener,
        CONNECTIONS_MAX,
        move |stream, peer, stopped| serve(stream, peer, router.clone(), stopped),
    )
}

async fn serve(stream: TcpStream, peer: SocketAddr, router: Router, mut stopped: Stopped) {
    let answer = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request)
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

/// Monitoring, operators and programs that keep some connections each. One has up to 300 KiB of buffers.
const CONNECTIONS_MAX: usize = 256;
/// For a request's header, and between requests.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
/// Headers of browsers have some 2 KiB.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
