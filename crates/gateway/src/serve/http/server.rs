//! Connections: accepted on one thread, a bounded number at a time. None holds up another one, or keeps its place by standing still.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// The thread.
pub(super) struct Server {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Answers connections on a thread of its own.
    ///
    /// # Errors
    /// Threads or descriptors run out.
    pub(super) fn start(listener: std::net::TcpListener, router: Router) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || runtime.block_on(accept(listener, router, stopped)))?;
        Ok(Server { stop, thread })
    }

    /// Takes no more requests. Those that are in hand are answered, if their clients take the answers soon.
    pub(super) fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the thread of HTTP has panicked");
        }
    }
}

/// More connections than the bound wait in the kernel.
async fn accept(listener: TcpListener, router: Router, mut stopped: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let next = async {
            // It is never closed.
            let place = places.clone().acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = end(&mut stopped) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, stopped) = (router.clone(), stopped.clone());
                tokio::spawn(async move {
                    serve(stream, peer, router, stopped).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Such as no more descriptors: others may be closed meanwhile.
                tracing::debug!(%error, "an HTTP connection is not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let all = places.acquire_many(CONNECTIONS_MAX as u32);
    let _ = tokio::time::timeout(END_TIME_MAX, all).await;
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let socket = socket2::SockRef::from(&stream);
    // A client that takes nothing of what it asked for keeps its place otherwise.
    if let Err(error) = socket.set_tcp_user_timeout(Some(UNREAD_TIME_MAX)) {
        tracing::debug!(%error, "TCP_USER_TIMEOUT");
    }
    let _ = stream.set_nodelay(true);
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
        () = end(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "an HTTP connection");
    }
}

/// Waits until the server is to stop.
async fn end(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stops| *stops).await;
}

/// Monitoring, operators and programs that keep some connections each. One has up to 300 KiB of buffers.
const CONNECTIONS_MAX: usize = 256;
/// For a request's header, and between requests.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
/// Of an answer that the client's machine does not take.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Headers of browsers have some 2 KiB.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
/// Of the last answers, when the process ends.
const END_TIME_MAX: Duration = Duration::from_secs(1);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
