//! The ng protocol over TCP. A connection carries messages one after another. Each message is answered before the next one is read.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use miette::{Context, IntoDiagnostic};
use threadbare_control::ng::Framer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::acceptor::{Acceptor, Stopped};
use super::asker::{Asker, ReplyTo, Unreplied};
use super::orders::{Control, NotDone};
use super::service::{Scope, Service};
use threadbare_process::places::{Limits, Place};

/// Opens a listening socket.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(super) fn open(address: SocketAddr) -> miette::Result<TcpListener> {
    TcpListener::bind(address)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot receive ng requests by TCP at {address}"))
}

/// Serves connections on a separate thread.
///
/// # Errors
/// Fails if the system cannot provide the threads or descriptors.
pub(super) fn start(listener: TcpListener, control: Control<Service>) -> io::Result<Acceptor> {
    Acceptor::start(
        "ng-tcp",
        listener,
        LIMITS,
        move |stream, peer, place, stopped| {
            let control = control.clone();
            async move {
                if let Err(why) = talk(stream, peer, &place, &control, stopped).await {
                    tracing::debug!(%peer, %why, "a connection for ng requests ended");
                }
            }
        },
    )
}

/// The reason why this side closes a connection.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Frame(#[from] threadbare_control::ng::FrameError),
    #[error(transparent)]
    NoMessage(Unreplied),
    #[error(transparent)]
    NotDone(#[from] NotDone),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Late(&'static str),
}

async fn talk(
    mut stream: TcpStream,
    peer: SocketAddr,
    place: &Place,
    control: &Control<Service>,
    mut stopped: Stopped,
) -> Result<(), Ended> {
    // If the host of a connection is not in the list, the connection is closed at once.
    if !control.ask(move |service| service.allows(peer)).await? {
        return Ok(());
    }
    let mut framer = Framer::default();
    let mut room = vec![0; READ_BYTES];
    let mut until = Instant::now() + IDLE_TIME_MAX;
    loop {
        let read = tokio::select! {
            read = timeout_at(until, stream.read(&mut room)) => read,
            () = stopped.wait() => return Ok(()),
        };
        let count =
            read.map_err(|_| Ended::Late("the client did not send a complete request in time"))??;
        if count == 0 {
            return Ok(());
        }
        let was_within = framer.is_within();
        let mut answered = false;
        framer.handle_bytes(&room[..count]);
        while let Some(message) = framer.poll_message()? {
            answered = true;
            place.trust();
            let Some(reply) = exchange(control, peer, Asker::Host(peer.ip()), message).await?
            else {
                continue;
            };
            let written = timeout(WRITE_TIME_MAX, stream.write_all(&reply)).await;
            written.map_err(|_| Ended::Late("the client does not read its replies"))??;
        }
        match framer.is_within() {
            // The message had already begun, so its deadline stays. Otherwise, it could arrive for ever.
            true if was_within && !answered => {}
            true => until = Instant::now() + MESSAGE_TIME_MAX,
            false => until = Instant::now() + IDLE_TIME_MAX,
        }
    }
}

/// Sends a message to the control thread, and returns the reply. `None`: the message repeats a request, and the reply goes to the first
/// sender.
async fn exchange(
    control: &Control<Service>,
    peer: SocketAddr,
    asker: Asker,
    message: Vec<u8>,
) -> Result<Option<Vec<u8>>, Ended> {
    let (tell, told) = oneshot::channel();
    control.order(move |service: &mut Service| {
        // A reload may have changed the allowed hosts.
        if service.allows(peer) {
            service.handle_message(asker, ReplyTo::Waiting(tell), &message, Scope::Cluster);
        }
    })?;
    match told.await {
        Ok(Ok(reply)) => Ok(Some(reply)),
        Ok(Err(Unreplied::InHand)) => Ok(None),
        Ok(Err(why)) => Err(Ended::NoMessage(why)),
        Err(_) => Err(NotDone::Gone.into()),
    }
}

/// Limits for connections. A proxy has a connection for each of its processes.
const LIMITS: Limits = Limits {
    total: 256,
    per_host: 256,
    extra: 0,
};
/// Size of a read. Requests with an SDP have some 2 KiB.
const READ_BYTES: usize = 16 * 1024;
/// Time limit from the first byte of a request to its last one.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit between requests. Proxies keep connections open, even through a quiet night.
const IDLE_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);
