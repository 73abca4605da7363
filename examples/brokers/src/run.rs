//! Runs a program from its start to its last report.

use std::hash::{BuildHasher, RandomState};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::serve::ListenerExt;
use serde::Serialize;
use socket2::SockRef;
use threadbare_demux::{
    Builder, ById, Demultiplexer, End, Handle, NoOrders, Report, Target, Verdict,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::client::{Gone, Outlet};
use crate::feed::{self, Feed, Input};
use crate::options::Options;
use crate::server::{self, Clients, Messages, Shared};

/// Writes the log to standard error, at the levels in `RUST_LOG`. Without `RUST_LOG`, the level is `info`.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

/// Runs until SIGTERM or SIGINT, or until `consume` ends. `consume` puts the broker's messages into the feed until the feed is stopped. The
/// first line of the program's output is its address, and the last line is the report.
///
/// # Errors
/// Fails if the program cannot listen on the address, or if `consume` fails.
pub async fn run<C, F>(options: Options, consume: C) -> Result<()>
where
    C: FnOnce(Feed) -> F,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let listener = (TcpListener::bind(options.listen).await)
        .with_context(|| format!("--listen {}: cannot be listened on", options.listen))?;
    let address = listener.local_addr()?;
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let broker = Arc::default();
    let (feed, input) = feed::feed(Arc::clone(&broker), stop.clone());
    let (handle, demultiplexer) = demultiplex(input, options.deadline);
    let shared = Shared {
        handle: handle.clone(),
        service: options.service(),
        patience: options.timeout,
        broker,
        clients: Arc::new(Clients::new(options.clients)),
        tasks: tasks.clone(),
        stop: stop.clone(),
    };
    let server = serve(listener, shared, options.socket_buffer);
    let mut consumer = tokio::spawn(consume(feed));
    println!("listens on {address}");
    let early = tokio::select! {
        result = signalled() => {
            result?;
            None
        }
        ended = &mut consumer => Some(ended),
    };
    info!("stopping");
    stop.cancel();
    let report = finish(demultiplexer, &handle, options.deadline).await?;
    tasks.close();
    if timeout(options.deadline, tasks.wait()).await.is_err() {
        warn!(connections = tasks.len(), "connections not closed in time");
    }
    server.abort();
    println!("{}", serde_json::to_string(&EndReport::from(report))?);
    let consumed = match early {
        Some(consumed) => consumed,
        None => consumer.await,
    };
    consumed.context("the broker's task has failed")?
}

fn serve(listener: TcpListener, shared: Shared, buffer: usize) -> JoinHandle<std::io::Result<()>> {
    let stop = shared.stop.clone();
    let listener = listener.tap_io(move |stream| set_up(stream, buffer));
    let server = axum::serve(listener, server::router(shared))
        .with_graceful_shutdown(async move { stop.cancelled().await });
    tokio::spawn(server.into_future())
}

fn set_up(stream: &TcpStream, buffer: usize) {
    // Nagle's algorithm would only delay the messages, because they are already flushed in batches.
    let done = stream
        .set_nodelay(true)
        .and_then(|()| SockRef::from(stream).set_send_buffer_size(buffer));
    if let Err(error) = done {
        warn!(%error, "a connection keeps the system's default socket options");
    }
}

type Judge = fn(&Target<Arc<str>>, Gone) -> Verdict;
type Running = JoinHandle<Report>;

fn demultiplex(input: Input, deadline: Duration) -> (Handle<Arc<str>, Outlet>, Running) {
    let start = Instant::now();
    // An error means that the connection has ended, so its sink is removed.
    let judge: Judge = |_, Gone| Verdict::Remove;
    let demultiplexer: Demultiplexer<Input, ById, NoOrders<_, Outlet>, Outlet, Judge> =
        Builder::new(ById, judge)
            .clock(move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
            .deadline(move || sleep(deadline))
            // Clients choose their IDs. The seed is random, so that clients cannot choose IDs whose hashes collide.
            .seed(RandomState::new().hash_one(0))
            .build(input);
    (demultiplexer.handle(), tokio::spawn(demultiplexer))
}

async fn signalled() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Waits for the demultiplexer's report. If it takes too long, aborts the demultiplexer. The demultiplexer's own deadline would not do,
/// because it starts at the end of the input, which a client with the policy `block` may delay.
async fn finish(
    mut running: Running,
    handle: &Handle<Arc<str>, Outlet>,
    deadline: Duration,
) -> Result<Report> {
    match timeout(3 * deadline, &mut running).await {
        Ok(report) => Ok(report?),
        Err(_) => {
            handle.abort();
            Ok(running.await?)
        }
    }
}

/// The last line of the program's output.
#[derive(Serialize)]
struct EndReport {
    end: &'static str,
    messages: Messages,
    /// Number of connections that took all their messages before they were closed.
    closed: u64,
    /// Number of connections that ended by themselves, or did not take all their messages in time.
    dropped: u64,
}

impl From<Report> for EndReport {
    fn from(report: Report) -> Self {
        EndReport {
            end: match report.end {
                End::Complete => "complete",
                End::Deadline => "deadline",
                End::Aborted => "aborted",
                End::Failed => "failed",
            },
            messages: report.statistics.into(),
            closed: report.closed,
            dropped: report.dropped,
        }
    }
}
