//! Connections (TCP): accepted on one thread, a bounded number at a time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// The thread.
pub(super) struct Acceptor {
    stop: watch::Sender<bool>,
    name: &'static str,
    thread: JoinHandle<()>,
}

/// Tells a connection that the process ends.
#[derive(Clone)]
pub(super) struct Stopped(watch::Receiver<bool>);

impl Stopped {
    /// Waits for it.
    pub(super) async fn wait(&mut self) {
        let _ = self.0.wait_for(|stops| *stops).await;
    }
}

impl Acceptor {
    /// Serves up to `connections_max` connections at a time on a thread of its own, called `name`. More of them wait in the kernel.
    ///
    /// # Errors
    /// Threads or descriptors run out.
    pub(super) fn start<S, F>(
        name: &'static str,
        listener: std::net::TcpListener,
        connections_max: usize,
        serve: S,
    ) -> io::Result<Acceptor>
    where
        S: Fn(TcpStream, SocketAddr, Stopped) -> F + Send + 'static,
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
        let run = move || runtime.block_on(accept(name, listener, connections_max, serve, stopped));
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)?;
        Ok(Acceptor { stop, name, thread })
    }

    /// Accepts no more. Connections have a moment to come to their end.
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
    connections_max: usize,
    serve: S,
    mut stopped: Stopped,
) where
    S: Fn(TcpStream, SocketAddr, Stopped) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let next = async {
            // It is never closed.
            let place = places.clone().acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = stopped.wait() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                prepare(&stream);
                let connection = serve(stream, peer, stopped.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Such as no more descriptors: others may be closed meanwhile.
                tracing::debug!(name, %error, "a connection is not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let all = places.acquire_many(connections_max as u32);
    let _ = tokio::time::timeout(END_TIME_MAX, all).await;
}

fn prepare(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    // A client that takes nothing of what it asked for keeps its place otherwise, and so does one whose machine has gone.
    let keepalive = socket2::TcpKeepalive::new().with_time(SILENCE);
    let set = socket
        .set_tcp_user_timeout(Some(UNREAD_TIME_MAX))
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        // What is told is of now: the kernel would keep megabytes for a client that reads slowly.
        .and_then(|()| socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
    if let Err(error) = set {
        tracing::debug!(%error, "a connection without time-outs");
    }
    let _ = stream.set_nodelay(true);
}

/// Of an answer that the client's machine does not take.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Of a connection, in the kernel, beside what is under way: some turns of the widest answer there is.
const UNSENT_BYTES_MAX: u32 = 64 * 1024;
/// After it, the client's machine is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(60);
/// Of the last answers, when the process ends.
const END_TIME_MAX: Duration = Duration::from_secs(1);
/// Threads that read files for answers.
const READERS: usize = 2;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
