//! Requests to the `cluster` thread, and the state of the cluster.

use std::fmt::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;
use threadbare_member::{CallName, Release};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::passing::{Back, CallService, Errand, Passed, Way};
use super::service::{Copies, Handed, LatePackets, Opaque, ServiceSpec, service_of};
use threadbare_config::StreamSpec;

/// An input of the `cluster` thread.
#[derive(Debug)]
pub enum Input {
    /// The streams of this node's file.
    Declare(Vec<StreamSpec>),
    /// Requests the state of the cluster.
    Status(oneshot::Sender<Status>),
    /// Moves a stream to a node.
    Move {
        /// The stream.
        stream: String,
        /// The node; `None`: the cluster chooses.
        node: Option<String>,
        /// Receives the result.
        tell: oneshot::Sender<Result<(), NotMoved>>,
    },
    /// Starts or ends a drain, in which this node hands over its streams and accepts none.
    Drain(bool, oneshot::Sender<()>),
    /// Hands over this node's streams. The sender is notified when nothing is left that another node could take.
    Leave(oneshot::Sender<()>),
    /// A request that another node may have to answer.
    Errand(Errand),
    /// Sends a request to all other live nodes, and returns their replies.
    AskOthers(Passed, oneshot::Sender<Vec<(String, Option<Back>)>>),
    /// Sends a request to a node, and returns its reply.
    AskNode(String, Passed, oneshot::Sender<Option<Back>>),
    /// Writes to the store that this node owns a call. Contains the call's service, and the state for the next node of that service.
    Claim(CallName, Option<(String, Opaque)>),
    /// The state of a call has changed.
    Keep(CallName, (String, Opaque)),
    /// A call of this node has ended.
    Release(CallName),
    /// Sets the call service, which owns this node's calls.
    CallService(Arc<dyn CallService>),
    /// Sets the declaration of this node's own service.
    Service(ServiceSpec),
    /// Copies states of this process's streams to other nodes; `None`: the stream has ended.
    Copies(Vec<(u64, Option<Opaque>)>),
    /// States that another process has copied to this one.
    Copied(Copies),
    /// Late packets for streams that another node has given up. The reply is whether all calls have arrived here, so that the
    /// other node can remove the service's addresses.
    LatePackets(LatePackets, oneshot::Sender<bool>),
    /// A stream has stopped at another node. The bytes are its position.
    Released(Release, Vec<u8>),
    /// Calls that another node has given up.
    Handed(Handed),
    /// Ends the thread. Nothing is sent any more, so other nodes may take everything.
    End,
}

/// A node's room for more calls, in percent of its limit.
#[derive(Debug, Default)]
pub struct Room(AtomicU64);

impl Room {
    /// Sets the room in percent of the limit. `None`: it accepts no calls.
    pub fn set(&self, percent: Option<u8>) {
        self.0
            .store(percent.map_or(0, |one| u64::from(one) + 1), Relaxed);
    }

    /// Returns the room.
    #[must_use]
    pub fn get(&self) -> Option<u8> {
        let value = self.0.load(Relaxed);
        value.checked_sub(1).and_then(|one| one.try_into().ok())
    }
}

/// The state of the cluster, as this node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Status {
    /// Name of this node.
    pub node: String,
    /// Whether this node may carry streams, because etcd has confirmed in time that it lives.
    pub is_live: bool,
    /// Whether this node sees the changes in etcd.
    pub is_synced: bool,
    /// The current error of etcd. Absent: etcd answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_error: Option<String>,
    /// Number of replies from etcd.
    pub etcd_answers: u64,
    /// Number of failures and time-outs of requests to etcd.
    pub etcd_failures: u64,
    /// The live nodes.
    pub nodes: Vec<NodeStatus>,
    /// The streams, by name.
    pub streams: Vec<StreamStatus>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct NodeStatus {
    /// Name of the node.
    pub node: String,
    /// The node's share of the streams, relative to other nodes.
    pub weight: f64,
    /// The node's labels.
    pub labels: Vec<String>,
    /// Whether the node hands over its streams, and accepts none.
    pub draining: bool,
    /// Room for more calls, in percent of the limit. Absent: the node accepts no calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<u8>,
    /// Number of streams that the node carries.
    pub streams: usize,
    /// Whether this node has a connection to the node, and so notices at once when the node's process ends.
    pub linked: bool,
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct StreamStatus {
    /// Name of the stream.
    pub stream: String,
    /// The node that carries the stream. Absent: no node does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Number of owners so far.
    pub epoch: u64,
    /// The node that is about to take over the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Handle to the `cluster` thread, for any thread.
#[derive(Debug, Clone)]
pub struct ClusterView {
    node: Arc<str>,
    inputs: UnboundedSender<Input>,
    totals: Arc<Totals>,
    /// `None`: calls are not shared.
    room: Option<Arc<Room>>,
    listens_at: Option<SocketAddr>,
}

/// Values that can be read without a request. Only the `cluster` thread writes them.
#[derive(Debug, Default)]
pub struct Totals {
    /// 1 if this node may carry streams, else 0.
    pub is_live: AtomicU64,
    /// Number of live nodes.
    pub nodes: AtomicU64,
    /// Number of streams that are carried or prepared here.
    pub streams: AtomicU64,
    /// Number of this node's calls.
    pub calls: AtomicU64,
    /// Number of requests that were sent to other nodes.
    pub passed: AtomicU64,
    /// Number of replies from etcd.
    pub answers: AtomicU64,
    /// Number of failures and time-outs of requests to etcd.
    pub failures: AtomicU64,
}

/// Why a stream was not moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMoved {
    /// The cluster has no such stream.
    #[error("the cluster has no stream {0:?}")]
    Stream(String),
    /// A live node of this name does not exist.
    #[error("the cluster has no node {0:?}")]
    Node(String),
    /// The node accepts no calls, so it cannot carry a service.
    #[error("node {0:?} accepts no calls")]
    Calls(String),
    /// The declaration of the stream has changed in the meantime.
    #[error("stream {0:?} was redeclared during this request; repeat the request")]
    Declared(String),
    /// The declaration cannot be written to etcd.
    #[error("etcd does not answer")]
    Store,
    /// The cluster's thread does not answer.
    #[error(transparent)]
    NotAnswered(#[from] NotAnswered),
}

/// The cluster's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cluster's thread has ended")]
pub struct NotAnswered;

/// A pending reply.
pub type Asked<T> = oneshot::Receiver<T>;

impl ClusterView {
    /// Creates the handle to the thread that receives these inputs.
    #[must_use]
    pub fn new(
        node: Arc<str>,
        inputs: UnboundedSender<Input>,
        totals: Arc<Totals>,
        room: Option<Arc<Room>>,
        listens_at: Option<SocketAddr>,
    ) -> ClusterView {
        ClusterView {
            node,
            inputs,
            totals,
            room,
            listens_at,
        }
    }

    /// Returns the name of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the address to which other nodes connect.
    #[must_use]
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listens_at
    }

    /// Sends a request to all other live nodes. Returns the reply of each node; `None`: it did not answer.
    #[must_use]
    pub fn ask_others(&self, passed: Passed) -> Asked<Vec<(String, Option<Back>)>> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::AskOthers(passed, tell));
        told
    }

    /// Sends a request to a node. Returns its reply; `None`: it did not answer.
    #[must_use]
    pub fn ask_node(&self, node: &str, passed: Passed) -> Asked<Option<Back>> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::AskNode(node.to_owned(), passed, tell));
        told
    }

    /// Returns the name of this node's own service.
    #[must_use]
    pub fn own_service(&self) -> String {
        service_of(&self.node)
    }

    /// Whether requests for calls may go to any node.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.room.is_some()
    }

    /// Sets the call service, which owns this node's calls.
    pub fn open_call_service(&self, call_service: Arc<dyn CallService>) {
        self.tell(Input::CallService(call_service));
    }

    /// Sets this node's room for more calls, in percent of the limit. `None`: it accepts no calls.
    pub fn set_room(&self, percent: Option<u8>) {
        if let Some(room) = &self.room {
            room.set(percent);
        }
    }

    /// Finds the owner of a request's call, and forwards the request to the owner. `call`: `None` if the call has no name yet.
    /// `makes`: whether the request makes the call if it does not exist. The cluster's thread calls `tell` with the result.
    pub fn pass(
        &self,
        call: Option<CallName>,
        makes: bool,
        passed: Passed,
        tell: impl FnOnce(Way) + Send + 'static,
    ) {
        self.tell(Input::Errand(Errand::new(call, makes, passed, tell)));
    }

    /// Claims a call of this node. The call service gets the result. `kept`: the call's service, and the state for the next
    /// node of that service.
    pub fn claim(&self, call: CallName, kept: Option<(String, Opaque)>) {
        self.tell(Input::Claim(call, kept));
    }

    /// Updates the state of a claimed call.
    pub fn keep(&self, call: CallName, kept: (String, Opaque)) {
        self.tell(Input::Keep(call, kept));
    }

    /// Copies states of this process's streams to the nodes that would take them over. `None`: the stream has ended.
    pub fn copy(&self, streams: Vec<(u64, Option<Opaque>)>) {
        self.tell(Input::Copies(streams));
    }

    /// Sets the declaration of this node's own service.
    pub fn set_service(&self, spec: ServiceSpec) {
        self.tell(Input::Service(spec));
    }

    /// Releases a call that has ended.
    pub fn release(&self, call: CallName) {
        self.tell(Input::Release(call));
    }

    /// Sends an input to the thread. The queue cannot grow without limit: each HTTP connection has at most one request in it, and
    /// the main thread a few.
    pub fn tell(&self, input: Input) {
        // If the thread has ended, the receiver of the reply fails.
        let _ = self.inputs.send(input);
    }

    /// Requests the state of the cluster.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub async fn status(&self) -> Result<Status, NotAnswered> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Status(tell));
        told.await.map_err(|_| NotAnswered)
    }

    /// Moves a stream to a node. `None`: the cluster chooses the node.
    ///
    /// # Errors
    /// Fails if the stream or node does not exist, or if etcd does not answer.
    pub async fn move_to(&self, stream: &str, node: Option<&str>) -> Result<(), NotMoved> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Move {
            stream: stream.to_owned(),
            node: node.map(str::to_owned),
            tell,
        });
        told.await.map_err(|_| NotAnswered)?
    }

    /// Starts or ends a drain, in which this node hands over its streams and accepts none.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub async fn drain(&self, is_on: bool) -> Result<(), NotAnswered> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Drain(is_on, tell));
        told.await.map_err(|_| NotAnswered)
    }
}

/// The cluster's metrics for Prometheus.
impl Collector for ClusterView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let totals = &self.totals;
        let gauges = [
            (
                "cluster_live",
                "1 if this node may carry streams, because etcd has confirmed in time that it lives",
                &totals.is_live,
            ),
            (
                "cluster_nodes",
                "Live nodes of the cluster, as this node sees them",
                &totals.nodes,
            ),
            (
                "cluster_streams",
                "Streams of the cluster that this node carries or has prepared",
                &totals.streams,
            ),
            (
                "cluster_calls",
                "Calls of the cluster that this node owns",
                &totals.calls,
            ),
        ];
        for (name, help, value) in gauges {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value.load(Relaxed).cast_signed()).encode(family)?;
        }
        let counters = [
            (
                "cluster_requests_passed",
                "Requests for calls that this node has forwarded to other nodes",
                &totals.passed,
            ),
            (
                "cluster_etcd_answers",
                "Replies of etcd, and its watch events",
                &totals.answers,
            ),
            (
                "cluster_etcd_failures",
                "Failures and time-outs of etcd's members, after which another member was used",
                &totals.failures,
            ),
        ];
        for (name, help, value) in counters {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value.load(Relaxed)).encode(family)?;
        }
        Ok(())
    }
}
