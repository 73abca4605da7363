//! The HTTP side. `GET /clients/ID` opens a WebSocket, and `GET /statistics` returns JSON.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::StreamExt;
use serde::Serialize;
use threadbare_demux::{Guard, Handle, Service, Statistics, Target};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use crate::client::{self, Deliveries, Outlet};
use crate::feed::Broker;

/// Maximum length of a client's ID. In AMQP 0-9-1, routing keys have at most 255 bytes, so a longer ID would get no messages.
const ID_BYTES_MAX: usize = 255;

/// Maximum size of a client's frame. Clients send only control frames.
const FRAME_BYTES_MAX: usize = 4096;

type Subscription = Guard<Arc<str>, Outlet>;

/// State that all requests share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) handle: Handle<Arc<str>, Outlet>,
    pub(crate) service: Service,
    pub(crate) patience: Duration,
    pub(crate) broker: Arc<Broker>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/clients/{id}", get(subscribe))
        .route("/statistics", get(statistics))
        .with_state(shared)
}

/// The connections, by number. The client's ID cannot be the key, because a client's old connection may end after its next one has started.
pub(crate) struct Clients {
    most: usize,
    connected: Mutex<Connected>,
}

#[derive(Default)]
struct Connected {
    next: u64,
    subscriptions: BTreeMap<u64, (Arc<str>, Subscription)>,
}

impl Clients {
    pub(crate) fn new(most: usize) -> Self {
        Clients {
            most,
            connected: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connected> {
        // No code panics while it holds this lock, so the lock cannot be poisoned.
        self.connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn statistics(&self) -> Vec<ClientStatistics> {
        let connected = self.lock();
        let each = connected.subscriptions.values();
        each.map(|(id, guard)| {
            let counts = guard.statistics();
            ClientStatistics {
                client: id.to_string(),
                delivered: counts.delivered,
                limited: counts.limited,
                overflowed: counts.overflowed,
            }
        })
        .collect()
    }
}

/// A connection's entry in [`Clients`]. Dropping it ends the subscription.
struct Registered {
    clients: Arc<Clients>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let ended = self.clients.lock().subscriptions.remove(&self.number);
        // The drop sends an order to the demultiplexer, which must not happen under the lock.
        drop(ended);
    }
}

impl Shared {
    /// Registers a client. Call this before the answer to the handshake is sent, so that the client gets all messages that come after that
    /// answer.
    fn register(&self, id: &Arc<str>) -> Result<(Registered, Deliveries), &'static str> {
        let mut connected = self.clients.lock();
        if connected.subscriptions.len() >= self.clients.most {
            return Err("too many clients are connected\n");
        }
        let (outlet, deliveries) = client::outlet();
        let target = Target::Key(id.clone());
        let guard = (self.handle.subscribe(target, outlet, self.service))
            .map_err(|_| "the server is shutting down\n")?;
        let number = connected.next;
        connected.next += 1;
        connected.subscriptions.insert(number, (id.clone(), guard));
        let clients = self.clients.clone();
        Ok((Registered { clients, number }, deliveries))
    }

    async fn serve(
        self,
        id: Arc<str>,
        socket: WebSocket,
        registered: Registered,
        mut deliveries: Deliveries,
    ) {
        debug!(client = %id, "connected");
        let mut socket = socket.split();
        let over = client::serve(&mut socket, &mut deliveries, self.patience).await;
        info!(client = %id, ?over, "disconnected");
        // The subscription ends before the closing handshake, which takes some time. So no more messages wait for this connection.
        drop((deliveries, registered));
        client::close(socket, over, self.stop.is_cancelled()).await;
    }
}

async fn subscribe(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if id.len() > ID_BYTES_MAX {
        let text = format!(
            "the ID has {} bytes: expected at most {ID_BYTES_MAX}\n",
            id.len()
        );
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    let id: Arc<str> = id.into();
    let (registered, deliveries) = match shared.register(&id) {
        Ok(registered) => registered,
        Err(reason) => return (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
    };
    let token = shared.tasks.token();
    upgrade
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .on_upgrade(async move |socket| {
            shared.serve(id, socket, registered, deliveries).await;
            drop(token);
        })
}

async fn statistics(State(shared): State<Shared>) -> Json<Snapshot> {
    Json(Snapshot {
        broker: BrokerStatistics {
            connected: shared.broker.is_connected(),
            connections: shared.broker.connections(),
            dropped: shared.broker.messages_dropped(),
        },
        messages: Messages::from(shared.handle.statistics()),
        clients: shared.clients.statistics(),
    })
}

/// The reply to `GET /statistics`.
#[derive(Serialize)]
struct Snapshot {
    broker: BrokerStatistics,
    messages: Messages,
    clients: Vec<ClientStatistics>,
}

#[derive(Serialize)]
struct BrokerStatistics {
    /// Whether there is a connection to the broker, so that messages can come.
    connected: bool,
    /// Number of connections to the broker since the start of the program.
    connections: u64,
    /// Number of messages that the broker's client library dropped before this program could count them.
    dropped: u64,
}

/// Counts of messages. `received` is the sum of the other counts.
#[derive(Serialize)]
pub(crate) struct Messages {
    received: u64,
    delivered: u64,
    unmatched: u64,
    limited: u64,
    overflowed: u64,
    errored: u64,
    abandoned: u64,
    waiting: u64,
}

impl From<Statistics> for Messages {
    fn from(of: Statistics) -> Self {
        Messages {
            received: of.received,
            delivered: of.delivered,
            unmatched: of.unmatched,
            limited: of.limited,
            overflowed: of.overflowed,
            errored: of.errored,
            abandoned: of.abandoned,
            waiting: of.waiting,
        }
    }
}

#[derive(Serialize)]
struct ClientStatistics {
    client: String,
    delivered: u64,
    limited: u64,
    overflowed: u64,
}
