//! The HTTP API for calls and streams. The HTTP thread owns no calls: it sends orders to the control thread.

mod actions;
mod alarms;
mod app;
mod calls;
mod cluster;
mod contexts;
mod describe;
mod drain;
mod events;
mod everywhere;
mod guard;
mod health;
mod id;
mod listen;
mod make;
mod metrics;
mod ng;
mod page;
mod pass;
mod problem;
mod record;
mod recordings;
mod reload;
mod requests;
mod routes;
mod server;
mod stream_play;
mod streams;
mod wall;
mod way;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use miette::{Context, IntoDiagnostic};

pub(super) use self::app::App;
use self::guard::Guard;
pub(super) use self::pass::PassedOn;
pub(super) use self::server::Peer;
use super::acceptor::Acceptor;
use super::service::Service;
use threadbare_cluster::ClusterView;
use threadbare_config::HttpSpec;
use threadbare_recording::Recorder;
use threadbare_streams::reload::Reloads;
use threadbare_watch::View;
use tokio::sync::Semaphore;

/// A listening socket with its access control. Requests are not served yet.
pub(super) struct Http {
    listener: TcpListener,
    guard: Guard,
}

/// A running HTTP server.
pub(super) struct Running {
    /// The listening address.
    pub(super) address: SocketAddr,
    acceptor: Acceptor,
}

impl Running {
    /// Finishes current requests, and stops the server. Call this after the service has been dropped.
    pub(super) fn stop(self) {
        self.acceptor.stop();
    }
}

impl Http {
    /// Opens the socket, without serving requests yet.
    ///
    /// # Errors
    /// Fails if the token cannot be read, or the address cannot be bound.
    pub(super) fn open(spec: &HttpSpec) -> miette::Result<Http> {
        let guard = match &spec.token_file {
            Some(path) => Guard::read(path).into_diagnostic().wrap_err_with(|| {
                format!(
                    "cannot use the token in --http-token-file (token-file) {}",
                    path.display()
                )
            })?,
            None => Guard::Local,
        };
        let listener = TcpListener::bind(spec.listen)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot listen for HTTP at {}", spec.listen))?;
        Ok(Http { listener, guard })
    }

    /// Serves requests on a separate thread.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or descriptors.
    pub(super) fn start(self, app: App) -> std::io::Result<Running> {
        let address = self.listener.local_addr()?;
        let acceptor = server::start(self.listener, routes::router(app, self.guard))?;
        Ok(Running { address, acceptor })
    }
}

/// Creates the state of all routes.
pub(super) fn app(
    service: &Service,
    reloads: Arc<Reloads>,
    view: View,
    cluster: Option<ClusterView>,
    recorder: Recorder,
) -> App {
    App {
        recorder,
        control: service.control(),
        metrics: service.metrics(),
        reloads,
        view,
        cluster,
        sockets: Arc::new(Semaphore::new(SOCKETS_MAX)),
        listeners: Arc::new(Semaphore::new(listen::LISTENERS_MAX)),
    }
}

/// Creates the routes for programs without access control, for callers that are already authorised.
pub(super) fn open_router(app: App) -> Router {
    routes::open_router(app)
}

/// Maximum number of WebSocket connections. Each proxy keeps one connection open.
const SOCKETS_MAX: usize = 64;
