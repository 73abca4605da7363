//! Accepts TCP connections on one thread, up to a limit in total and per host.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use threadbare_process::places::{Limits, Place, Places};

/// Handle to the accepting thread.
pub(super) struct Acceptor {
    stop: watch::Sender<bool>,
    name: &'static str,
    thread: JoinHandle<()>,
}

/// Shows a connection whether the process is stopping.
#[derive(Clone)]
pub(super) struct Stopped(watch::Receiver<bool>);

impl Stopped {
    /// Waits until the process is stopping.
    pub(super) async fn wait(&mut self) {
        let _ = self.0.wait_for(|stops| *stops).await;
    }
}

impl Acceptor {
    /// Starts a thread called `name` that serves connections, within these limits.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or descriptors.
    pub(super) fn start<S, F>(
        name: &'static str,
        listener: std::net::TcpListener,
        limits: Limits,
        serve: S,
    ) -> io::Result<Acceptor>
    where
        S: Fn(TcpStream, SocketAddr, Arc<Place>, Stopped) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(READERS)
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, stopped) = watch::channel(false);
        let stopped = Stopped(stopped);
        let run = move || runtime.block_on(accept(name, listener, limits, serve, stopped));
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)?;
        Ok(Acceptor { stop, name, thread })
    }

    /// Stops accepting connections. Open connections get [`END_TIME_MAX`] to finish.
    pub(super) fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the thread '{}' has panicked", self.name);
        }
    }
}

async fn accept<S, F>(
    name: &'static str,
    listener: TcpListener,
    limits: Limits,
    serve: S,
    mut stopped: Stopped,
) where
    S: Fn(TcpStream, SocketAddr, Arc<Place>, Stopped) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let places = Places::new(limits);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stopped.wait() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = places.enter(peer.ip()).map(Arc::new) else {
                    tracing::debug!(name, %peer, "closed a connection, because the limit of connections is reached");
                    continue;
                };
                prepare(&stream);
                let connection = serve(stream, peer, place.clone(), stopped.clone());
                place.is_of(connections.spawn(connection));
                // Lets a request that has already arrived start before another connection takes its place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                // For example, descriptors may have run out. Other connections may close during the pause.
                tracing::debug!(name, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(END_TIME_MAX, all).await;
}

fn prepare(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    // Without these limits, a client that does not read its replies, or whose machine is gone, would keep its place for ever.
    let keepalive = socket2::TcpKeepalive::new().with_time(SILENCE);
    let set = socket
        .set_tcp_user_timeout(Some(UNREAD_TIME_MAX))
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        // Keep events current. The kernel would otherwise buffer megabytes for a slow reader.
        .and_then(|()| socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
    if let Err(error) = set {
        tracing::debug!(%error, "cannot set time-outs on a connection");
    }
    let _ = stream.set_nodelay(true);
}

/// Maximum time that sent data may stay unacknowledged.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum number of unsent bytes of a connection in the kernel.
const UNSENT_BYTES_MAX: u32 = 64 * 1024;
/// After a silence of this length, keep-alive probes check whether the client's machine still exists.
const SILENCE: Duration = Duration::from_secs(60);
/// Time limit for the last replies when the process stops.
const END_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum number of threads that read files for replies.
const READERS: usize = 2;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
