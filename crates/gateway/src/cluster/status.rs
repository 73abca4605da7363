//! What others ask of the `cluster` thread, and how the cluster is.

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
use threadbare_control::cluster::{CallName, Release};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::passing::{Back, CallDesk, Errand, Passed, Way};
use super::service::{Copies, Handed, Opaque, ServiceSpec, Strays, service_of};
use crate::config::StreamSpec;

/// For the `cluster` thread.
#[derive(Debug)]
pub enum Input {
    /// These are the streams of this node's file.
    Declare(Vec<StreamSpec>),
    /// How is the cluster?
    Status(oneshot::Sender<Status>),
    /// Have a stream carried by a node, or by the one that is best.
    Move {
        /// The stream.
        stream: String,
        /// The node.
        node: Option<String>,
        /// What has become of it.
        tell: oneshot::Sender<Result<(), NotMoved>>,
    },
    /// Give away what this node carries, or take streams again.
    Drain(bool, oneshot::Sender<()>),
    /// Give away what it carries; tell when nothing is left that somebody else could take.
    Leave(oneshot::Sender<()>),
    /// A request that may belong to another node.
    Errand(Errand),
    /// Ask each other node that lives; what each has answered.
    AskOthers(Passed, oneshot::Sender<Vec<(String, Option<Back>)>>),
    /// Ask a node.
    AskNode(String, Passed, oneshot::Sender<Option<Back>>),
    /// This node has a call; the service that it belongs to, and its state for the next node that has that.
    Claim(CallName, Option<(String, Opaque)>),
    /// Its state is another one.
    Keep(CallName, (String, Opaque)),
    /// It has it no more.
    Release(CallName),
    /// Who has this node's calls.
    Desk(Arc<dyn CallDesk>),
    /// The addresses of this node's calls.
    Service(ServiceSpec),
    /// The states of streams of this process, for others to go on with; `None`: one has ended.
    Copies(Vec<(u64, Option<Opaque>)>),
    /// The same of another process.
    Copied(Copies),
    /// Datagrams for streams that the sender has left. Told: whether nothing should go to it any more.
    Strays(Strays, oneshot::Sender<bool>),
    /// A stream has stopped at another node, and where.
    Released(Release, Vec<u8>),
    /// Calls that another node has left.
    Handed(Handed),
    /// Nothing is sent any more. Others may take all of it.
    End,
}

/// How many more calls a node could take.
#[derive(Debug, Default)]
pub struct Room(AtomicU64);

impl Room {
    /// In percent of what it may. `None`: it takes none.
    pub fn set(&self, percent: Option<u8>) {
        self.0
            .store(percent.map_or(0, |one| u64::from(one) + 1), Relaxed);
    }

    /// The same.
    #[must_use]
    pub fn get(&self) -> Option<u8> {
        let value = self.0.load(Relaxed);
        value.checked_sub(1).and_then(|one| one.try_into().ok())
    }
}

/// How the cluster is, as this node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Status {
    /// This node.
    pub node: String,
    /// Whether it may carry streams: etcd has confirmed in time that it lives.
    pub is_live: bool,
    /// Whether it sees what changes in etcd.
    pub is_synced: bool,
    /// What is wrong with etcd; nothing: it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_error: Option<String>,
    /// Answers of etcd to what this node asked.
    pub etcd_answers: u64,
    /// Failures and time-outs of the same.
    pub etcd_failures: u64,
    /// The nodes that live.
    pub nodes: Vec<NodeStatus>,
    /// The streams, by name.
    pub streams: Vec<StreamStatus>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Its share of the streams, against that of others.
    pub weight: f64,
    /// Where it is.
    pub labels: Vec<String>,
    /// It gives away what it carries.
    pub draining: bool,
    /// How many more calls it could take, in percent of what it may; nothing: it takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<u8>,
    /// Streams that it carries.
    pub streams: usize,
    /// This node is connected to it: its process cannot end unseen.
    pub linked: bool,
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct StreamStatus {
    /// Its name.
    pub stream: String,
    /// Who carries it; nothing: nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many owners it has had.
    pub epoch: u64,
    /// Who is to take it over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Asks the `cluster` thread, from any thread.
#[derive(Debug, Clone)]
pub struct ClusterView {
    node: Arc<str>,
    inputs: UnboundedSender<Input>,
    totals: Arc<Totals>,
    /// `None`: calls are each node's own.
    room: Option<Arc<Room>>,
    listens_at: Option<SocketAddr>,
}

/// What is looked up without asking. One writer: the `cluster` thread.
#[derive(Debug, Default)]
pub struct Totals {
    /// Whether the node may carry streams: 0 or 1.
    pub is_live: AtomicU64,
    /// Nodes that live.
    pub nodes: AtomicU64,
    /// Streams that are carried here, or prepared.
    pub streams: AtomicU64,
    /// Calls of this node.
    pub calls: AtomicU64,
    /// Requests that were sent to other nodes.
    pub passed: AtomicU64,
    /// Answers of etcd.
    pub answers: AtomicU64,
    /// Failures and time-outs of etcd.
    pub failures: AtomicU64,
}

/// Why a stream is not moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMoved {
    /// It is none of the cluster.
    #[error("the cluster has no stream {0:?}")]
    Stream(String),
    /// It does not live.
    #[error("the cluster has no node {0:?}")]
    Node(String),
    /// It could not carry the calls of a service.
    #[error("node {0:?} takes no calls")]
    Calls(String),
    /// A file, or somebody else, has declared it anew meanwhile.
    #[error("stream {0:?} was declared anew just now; try again")]
    Declared(String),
    /// It cannot be written down.
    #[error("etcd does not answer")]
    Store,
    /// Nobody answers.
    #[error(transparent)]
    NotAnswered(#[from] NotAnswered),
}

/// The thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cluster's thread has ended")]
pub struct NotAnswered;

/// An answer that comes.
pub type Asked<T> = oneshot::Receiver<T>;

impl ClusterView {
    /// Of the thread that takes these.
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

    /// Asks each other node that lives. The answer: what each has answered; `None`: it has not.
    #[must_use]
    pub fn ask_others(&self, passed: Passed) -> Asked<Vec<(String, Option<Back>)>> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::AskOthers(passed, tell));
        told
    }

    /// Asks a node.
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

    /// Calls are answered for by this desk from now on.
    pub fn open_desk(&self, desk: Arc<dyn CallDesk>) {
        self.tell(Input::Desk(desk));
    }

    /// How many more calls this node could take, in percent of what it may. `None`: it takes none.
    pub fn set_room(&self, percent: Option<u8>) {
        if let Some(room) = &self.room {
            room.set(percent);
        }
    }

    /// Finds out where a request belongs, and has it answered there. `call`: `None`, if it has no name yet; `makes`: it makes the call, if nobody has it.
    /// `tell` is called by the cluster's thread.
    pub fn pass(
        &self,
        call: Option<CallName>,
        makes: bool,
        passed: Passed,
        tell: impl FnOnce(Way) + Send + 'static,
    ) {
        self.tell(Input::Errand(Errand::new(call, makes, passed, tell)));
    }

    /// This node has a call: the desk is told whether it is its own. `kept`: its service, and its state for the next node that has that.
    pub fn claim(&self, call: CallName, kept: Option<(String, Opaque)>) {
        self.tell(Input::Claim(call, kept));
    }

    /// The state of a call that was claimed is another one.
    pub fn keep(&self, call: CallName, kept: (String, Opaque)) {
        self.tell(Input::Keep(call, kept));
    }

    /// The states of streams of this process, for the nodes that would go on with them; `None`: one has ended.
    pub fn copy(&self, streams: Vec<(u64, Option<Opaque>)>) {
        self.tell(Input::Copies(streams));
    }

    /// These are the addresses of this node's calls, and its interfaces.
    pub fn set_service(&self, spec: ServiceSpec) {
        self.tell(Input::Service(spec));
    }

    /// A call of this node has ended.
    pub fn release(&self, call: CallName) {
        self.tell(Input::Release(call));
    }

    /// Tells the thread something. As many wait as HTTP has connections, and a few of the main thread.
    pub fn tell(&self, input: Input) {
        // It has ended: who waits for an answer sees that.
        let _ = self.inputs.send(input);
    }

    /// How the cluster is.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn status(&self) -> Result<Status, NotAnswered> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Status(tell));
        told.await.map_err(|_| NotAnswered)
    }

    /// Has a stream carried by a node, or by the one that is best.
    ///
    /// # Errors
    /// There is no such stream or node, or etcd does not answer.
    pub async fn move_to(&self, stream: &str, node: Option<&str>) -> Result<(), NotMoved> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Move {
            stream: stream.to_owned(),
            node: node.map(str::to_owned),
            tell,
        });
        told.await.map_err(|_| NotAnswered)?
    }

    /// Has the node give away what it carries, or take streams again.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn drain(&self, is_on: bool) -> Result<(), NotAnswered> {
        let (tell, told) = oneshot::channel();
        self.tell(Input::Drain(is_on, tell));
        told.await.map_err(|_| NotAnswered)
    }
}

/// For Prometheus.
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
                "Answers of etcd, and what it told of changes",
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
