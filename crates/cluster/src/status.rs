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
    /// Moves a stream to a node, or to the best one.
    Move {
        /// The stream.
        stream: String,
        /// The node.
        node: Option<String>,
        /// Receives the result.
        tell: oneshot::Sender<Result<(), NotMoved>>,
    },
    /// Hands this node's streams over, or accepts streams again.
    Drain(bool, oneshot::Sender<()>),
    /// Hands this node's streams over; notifies when nothing is left that another node could take.
    Leave(oneshot::Sender<()>),
    /// A request that another node may have to answer.
    Errand(Errand),
    /// Sends a request to each other live node; returns the replies.
    AskOthers(Passed, oneshot::Sender<Vec<(String, Option<Back>)>>),
    /// Sends a request to a node.
    AskNode(String, Passed, oneshot::Sender<Option<Back>>),
    /// This node has a call; with its service, and its state for the next node of that service.
    Claim(CallName, Option<(String, Opaque)>),
    /// The state of a call has changed.
    Keep(CallName, (String, Opaque)),
    /// A call of this node has ended.
    Release(CallName),
    /// Sets the owner of this node's calls.
    CallService(Arc<dyn CallService>),
    /// The addresses of this node's calls.
    Service(ServiceSpec),
    /// The states of this process's streams, to be copied to other nodes; `None`: one has ended.
    Copies(Vec<(u64, Option<Opaque>)>),
    /// The same from another process.
    Copied(Copies),
    /// Late packets for streams that the sender has given up. The reply: whether nothing should go to it any more.
    LatePackets(LatePackets, oneshot::Sender<bool>),
    /// A stream has stopped at another node, at this position.
    Released(Release, Vec<u8>),
    /// Calls that another node has given up.
    Handed(Handed),
    /// Nothing is sent any more: others may take everything.
    End,
}

/// A node's room for more calls.
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
    /// Whether it may carry streams: etcd has confirmed in time that it lives.
    pub is_live: bool,
    /// Whether it sees the changes in etcd.
    pub is_synced: bool,
    /// The current error of etcd; absent: it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_error: Option<String>,
    /// etcd's replies to this node.
    pub etcd_answers: u64,
    /// Failures and time-outs of requests to etcd.
    pub etcd_failures: u64,
    /// The live nodes.
    pub nodes: Vec<NodeStatus>,
    /// The streams, by name.
    pub streams: Vec<StreamStatus>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Its share of the streams, relative to other nodes.
    pub weight: f64,
    /// Its labels.
    pub labels: Vec<String>,
    /// Whether it hands its streams over.
    pub draining: bool,
    /// Its room for more calls, in percent of the limit; absent: it accepts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<u8>,
    /// Streams that it carries.
    pub streams: usize,
    /// Whether this node is connected to it, so that the end of its process is seen at once.
    pub linked: bool,
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct StreamStatus {
    /// Its name.
    pub stream: String,
    /// Its owner; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Number of owners so far.
    pub epoch: u64,
    /// The node that will take it over.
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
    /// Whether the node may carry streams: 0 or 1.
    pub is_live: AtomicU64,
    /// Number of live nodes.
    pub nodes: AtomicU64,
    /// Streams that are carried here, or prepared.
    pub streams: AtomicU64,
    /// Number of this node's calls.
    pub calls: AtomicU64,
    /// Requests sent to other nodes.
    pub passed: AtomicU64,
    /// Replies of etcd.
    pub answers: AtomicU64,
    /// Failures and time-outs of etcd.
    pub failures: AtomicU64,
}

/// Why a stream was not moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMoved {
    /// The cluster has no such stream.
    #[error("the cluster has no stream {0:?}")]
    Stream(String),
    /// The node does not live.
    #[error("the cluster has no node {0:?}")]
    Node(String),
    /// The node could not carry the calls of a service.
    #[error("node {0:?} takes no calls")]
    Calls(String),
    /// The stream was declared again meanwhile.
    #[error("stream {0:?} was just declared again; try again")]
    Declared(String),
    /// The declaration cannot be stored.
    #[error("etcd does not answer")]
    Store,
    /// The thread does not answer.
    #[error(transparent)]
    NotAnswered(#[from] NotAnswered),
}

/// The thread has ended.
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

    /// This node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The address that other nodes connect to.
    #[must_use]
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listens_at
    }

    /// Sends a request to each other live node. Returns the reply of each; `None`: it did not answer.
    #[must_use]
    pub fn ask_others(&self, passed: Passed) -> Asked<Vec<(String, Option<Back>)>> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::AskOthers(passed, tell));
        told
    }

    /// Sends a request to a node.
    #[must_use]
    pub fn ask_node(&self, node: &str, passed: Passed) -> Asked<Option<Back>> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::AskNode(node.to_owned(), passed, tell));
        told
    }

    /// The name of this node's own service.
    #[must_use]
    pub fn own_service(&self) -> String {
        service_of(&self.node)
    }

    /// Whether requests for calls may go to any node.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.room.is_some()
    }

    /// Sets the owner of this node's calls.
    pub fn open_call_service(&self, call_service: Arc<dyn CallService>) {
        self.tell(Input::CallService(call_service));
    }

    /// Sets this node's room for more calls, in percent of the limit. `None`: it accepts none.
    pub fn set_room(&self, percent: Option<u8>) {
        if let Some(room) = &self.room {
            room.set(percent);
        }
    }

    /// Finds the owner of a request's call, and forwards the request to it. `call`: `None` if it has no name yet; `makes`: the
    /// request makes the call if it does not exist. The cluster's thread calls `tell`.
    pub fn pass(
        &self,
        call: Option<CallName>,
        makes: bool,
        passed: Passed,
        tell: impl FnOnce(Way) + Send + 'static,
    ) {
        self.tell(Input::Errand(Errand::new(call, makes, passed, tell)));
    }

    /// Claims a call of this node; the call service gets the result. `kept`: its service, and its state for the next node of
    /// that.
    pub fn claim(&self, call: CallName, kept: Option<(String, Opaque)>) {
        self.tell(Input::Claim(call, kept));
    }

    /// Updates the state of a claimed call.
    pub fn keep(&self, call: CallName, kept: (String, Opaque)) {
        self.tell(Input::Keep(call, kept));
    }

    /// Copies states of this process's streams to the next nodes; `None`: one has ended.
    pub fn copy(&self, streams: Vec<(u64, Option<Opaque>)>) {
        self.tell(Input::Copies(streams));
    }

    /// Sets the addresses of this node's calls, with its interfaces.
    pub fn set_service(&self, spec: ServiceSpec) {
        self.tell(Input::Service(spec));
    }

    /// Releases a call that has ended.
    pub fn release(&self, call: CallName) {
        self.tell(Input::Release(call));
    }

    /// Sends an input to the thread. At most as many wait as HTTP has connections, plus a few of the main thread.
    pub fn tell(&self, input: Input) {
        // If it has ended, the receiver of the reply sees that.
        let _ = self.inputs.send(input);
    }

    /// Requests the state of the cluster.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn status(&self) -> Result<Status, NotAnswered> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Status(tell));
        told.await.map_err(|_| NotAnswered)
    }

    /// Moves a stream to a node, or to the best one.
    ///
    /// # Errors
    /// The stream or node does not exist, or etcd does not answer.
    pub async fn move_to(&self, stream: &str, node: Option<&str>) -> Result<(), NotMoved> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Move {
            stream: stream.to_owned(),
            node: node.map(str::to_owned),
            tell,
        });
        told.await.map_err(|_| NotAnswered)?
    }

    /// Lets the node hand its streams over, or accept streams again.
    ///
    /// # Errors
    /// The thread has ended.
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
                "1: etcd has confirmed in time that this node lives, and it may carry streams",
                &totals.is_live,
            ),
            (
                "cluster_nodes",
                "Nodes of the cluster that live, as this one sees them",
                &totals.nodes,
            ),
            (
                "cluster_streams",
                "Streams of the cluster that this node carries, or is about to",
                &totals.streams,
            ),
            (
                "cluster_calls",
                "Calls of the cluster that this node has",
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
                "Requests for calls that this node has sent on to others",
                &totals.passed,
            ),
            (
                "cluster_etcd_answers",
                "Replies of etcd, and its watch events",
                &totals.answers,
            ),
            (
                "cluster_etcd_failures",
                "Failures and time-outs of etcd's members: another one was asked then",
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
