//! HTTP: what a program or an operator asks of live calls. Its thread owns nothing: it asks the control thread.

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
use crate::cluster::ClusterView;
use crate::config::HttpSpec;
use crate::recording::Recorder;
use crate::reload::Reloads;
use crate::watch::View;
use tokio::sync::Semaphore;

/// A socket that listens, and who may ask there.
pub(super) struct Http {
    listener: TcpListener,
    guard: Guard,
}

/// HTTP that is answered.
pub(super) struct Running {
    /// Where.
    pub(super) address: SocketAddr,
    acceptor: Acceptor,
}

impl Running {
    /// Answers what is in hand, and nothing more. To be called when the service is gone.
    pub(super) fn stop(self) {
        self.acceptor.stop();
    }
}

impl Http {
    /// Listens, and answers nobody yet.
    ///
    /// # Errors
    /// The token cannot be read, or the address not be bound.
    pub(super) fn open(spec: &HttpSpec) -> miette::Result<Http> {
        let guard = match &spec.token_file {
            Some(path) => Guard::read(path)
                .into_diagnostic()
                .wrap_err_with(|| format!("--http-token-file (token-file) {}", path.display()))?,
            None => Guard::Local,
        };
        let listener = TcpListener::bind(spec.listen)
            .into_diagnostic()
            .wrap_err_with(|| format!("HTTP at {}: cannot be bound", spec.listen))?;
        Ok(Http { listener, guard })
    }

    /// Answers on a thread of its own.
    ///
    /// # Errors
    /// Threads or descriptors run out.
    pub(super) fn start(self, app: App) -> std::io::Result<Running> {
        let address = self.listener.local_addr()?;
        let acceptor = server::start(self.listener, routes::router(app, self.guard))?;
        Ok(Running { address, acceptor })
    }
}

/// What all routes have.
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

/// All routes for programs, without a guard: for those who may ask.
pub(super) fn open_router(app: App) -> Router {
    routes::open_router(app)
}

/// Proxies that keep a WebSocket connection open, each.
const SOCKETS_MAX: usize = 64;
