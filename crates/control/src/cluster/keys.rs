//! What a cluster keeps in its store: a key for each node, for each stream that is declared, for each that is carried, and for each call.
//!
//! Keys are paths and values are JSON, so that an operator can read them with `etcdctl`:
//!
//! ```text
//!  /threadbare/nodes/relay-3        {"incarnation":7,"beat":41,"weight":1.0,"labels":["rack-2"],"draining":false}
//!  /threadbare/streams/programme-1  {"prefer":["rack-2"],"avoid":[],"on_isolation":"stop","spec":"..."}
//!  /threadbare/claims/programme-1   {"node":"relay-3","incarnation":7,"epoch":2}
//!  /threadbare-calls/a84b4c76e66710 {"node":"relay-3","incarnation":7,"service":"service:relay-3"}
//!  /threadbare-states/service:relay-3/a84b4c76e66710  (encrypted)
//! ```
//!
//! What is below `/threadbare/` is seen by all nodes; calls are looked up, and the states of a service's calls are read by the node that takes it over.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Name of a node, the same over restarts, unique in the cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeName(pub Arc<str>);

/// Name of a stream in the cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamName(pub Arc<str>);

/// A call: its Call-ID in percent-encoding, so that keys are text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallName(pub Arc<str>);

/// One life of a node: from one join to the end of its key. Random, so that no two lives have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// Counts the owners that a stream has had.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Of the next owner. Whoever writes the greatest number there is into the store ends the counting, and nothing else.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// A state of the whole store, as etcd counts them; of a key: that of its last change. 0: there is no such key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Of a key that does not exist.
    pub const ABSENT: Revision = Revision(0);
}

/// A key of the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// That a node lives.
    Node(NodeName),
    /// That a stream is to be carried.
    Stream(StreamName),
    /// Who carries it.
    Claim(StreamName),
    /// Who has a call.
    Call(CallName),
    /// What a node needs to go on with a call of a service.
    State(StreamName, CallName),
}

/// The value of a key, of the same kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of [`Key::Node`].
    Node(NodeRecord),
    /// Of [`Key::Stream`].
    Stream(Declaration),
    /// Of [`Key::Claim`].
    Claim(Claim),
    /// Of [`Key::Call`].
    Call(CallClaim),
    /// Of [`Key::State`]; opaque here.
    State(Arc<[u8]>),
}

/// A node that lives. Written anew with each beat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// This life of it.
    pub incarnation: Incarnation,
    /// Counts the renewals.
    pub beat: u64,
    /// Its share of the streams, against that of others. Above 0.
    pub weight: f64,
    /// Where it is: site, rack, network.
    #[serde(default)]
    pub labels: Vec<Arc<str>>,
    /// It gives away what it carries, and takes nothing.
    #[serde(default)]
    pub draining: bool,
    /// Where others see whether its process lives, and send requests for its calls; opaque here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// How many more calls it could take, in percent of what it may. `None`: it takes no calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u8>,
}

/// Where a process can be connected to, to see when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Of its machine.
    pub address: SocketAddr,
    /// Random: no two processes have the same.
    pub process: u64,
}

/// What one node carries under a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A stream.
    #[default]
    Stream,
    /// The addresses of a node's calls, and with them the calls.
    Service,
}

/// A stream, or a service, that is to be carried by one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declaration {
    /// Which of the two.
    #[serde(default, skip_serializing_if = "is_stream")]
    pub kind: Kind,
    /// Nodes with one of these labels come first.
    #[serde(default)]
    pub prefer: Vec<Arc<str>>,
    /// Nodes with one of these labels come last.
    #[serde(default)]
    pub avoid: Vec<Arc<str>>,
    /// What its node does when it cannot reach the store.
    #[serde(default)]
    pub on_isolation: OnIsolation,
    /// An operator wants it there, as long as that node takes streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<NodeName>,
    /// What the media plane needs to carry it; opaque here.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub spec: Arc<str>,
}

/// What a node does with a stream while another one may take it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnIsolation {
    /// Stops: there are never two senders.
    #[default]
    Stop,
    /// Goes on: there may be two senders, and never none.
    Continue,
}

/// Who carries a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The owner.
    #[serde(flatten)]
    pub owner: Life,
    /// One more for each owner.
    pub epoch: Epoch,
    /// The owner before, which carries it until it has told this one that it has stopped. `None`: there is none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deputy: Option<Life>,
    /// Who may be the next owner: it prepares, and makes the claim its own then, with this owner as its deputy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Life>,
    /// What the owner needs to go on where the one before it stopped; opaque here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<u8>,
}

/// Who has a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallClaim {
    /// The owner; of a call of a service, whoever carries that is the owner, and this is who was when it was written.
    #[serde(flatten)]
    pub owner: Life,
    /// The service whose addresses it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<StreamName>,
}

/// One life of one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Life {
    /// Its name.
    pub node: NodeName,
    /// The life.
    pub incarnation: Incarnation,
}

/// The word of a deputy: it has stopped, and the owner of the claim may send. It goes from node to node; what it says is in the claim soon behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// What has stopped.
    pub stream: StreamName,
    /// Of the claim.
    pub epoch: Epoch,
    /// The deputy.
    pub from: Life,
    /// The owner.
    pub to: Life,
}

/// Not one of ours, or of a version to come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct Unreadable {
    /// The key, as text.
    pub key: String,
    /// What is wrong.
    pub reason: String,
}

impl Key {
    /// The path in the store. A name may have any character: the path ends with it.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Key::Node(name) => format!("{NODES}{name}"),
            Key::Stream(name) => format!("{STREAMS}{name}"),
            Key::Claim(name) => format!("{CLAIMS}{name}"),
            Key::Call(name) => format!("{CALLS}{name}"),
            Key::State(service, name) => format!("{STATES}{service}/{name}"),
        }
    }

    /// The key of a path; `None`: it is none of ours.
    #[must_use]
    pub fn of_path(path: &[u8]) -> Option<Key> {
        let path = std::str::from_utf8(path).ok()?;
        let name = |prefix| path.strip_prefix(prefix).filter(|name| !name.is_empty());
        if let Some(name) = name(NODES) {
            return Some(Key::Node(NodeName(name.into())));
        }
        if let Some(name) = name(STREAMS) {
            return Some(Key::Stream(StreamName(name.into())));
        }
        if let Some(name) = name(CLAIMS) {
            return Some(Key::Claim(StreamName(name.into())));
        }
        if let Some(name) = name(CALLS) {
            return Some(Key::Call(CallName(name.into())));
        }
        let (service, name) = name(STATES)?.split_once('/')?;
        Some(Key::State(service.into(), name.into()))
    }

    /// The value of this key from its bytes: JSON, or what is opaque here.
    ///
    /// # Errors
    /// It is too long, no such JSON, or a weight is not above 0.
    pub fn read(&self, json: &[u8]) -> Result<Value, Unreadable> {
        let unreadable = |reason: String| Unreadable {
            key: self.path(),
            reason,
        };
        if json.len() > VALUE_BYTES_MAX {
            let reason = format!("{} bytes; allowed are {VALUE_BYTES_MAX}", json.len());
            return Err(unreadable(reason));
        }
        let value = match self {
            Key::Node(_) => serde_json::from_slice(json).map(Value::Node),
            Key::Stream(_) => serde_json::from_slice(json).map(Value::Stream),
            Key::Claim(_) => serde_json::from_slice(json).map(Value::Claim),
            Key::Call(_) => serde_json::from_slice(json).map(Value::Call),
            Key::State(..) => Ok(Value::State(json.into())),
        };
        match value {
            Ok(Value::Node(NodeRecord { weight, .. })) if !is_weight(weight) => {
                let reason = format!("weight {weight}; allowed are {WEIGHT_MIN} to {WEIGHT_MAX}");
                Err(unreadable(reason))
            }
            Ok(value) => Ok(value),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }
}

impl Value {
    /// As JSON, or as it is if it is opaque.
    ///
    /// # Errors
    /// A weight that is no number.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        match self {
            Value::Node(record) => serde_json::to_vec(record),
            Value::Stream(declaration) => serde_json::to_vec(declaration),
            Value::Claim(claim) => serde_json::to_vec(claim),
            Value::Call(claim) => serde_json::to_vec(claim),
            Value::State(sealed) => Ok(sealed.to_vec()),
        }
    }
}

/// Whether a node may have this weight.
#[must_use]
pub fn is_weight(weight: f64) -> bool {
    (WEIGHT_MIN..=WEIGHT_MAX).contains(&weight)
}

fn is_stream(kind: &Kind) -> bool {
    *kind == Kind::Stream
}

fn is_empty(text: &Arc<str>) -> bool {
    text.is_empty()
}

macro_rules! named {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> $name {
                $name(name.into())
            }
        }
    )*};
}

named!(NodeName StreamName CallName);

/// What all keys begin with that every node sees.
pub const PREFIX: &str = "/threadbare/";
/// What the keys of calls begin with.
pub const CALLS: &str = "/threadbare-calls/";
/// What the keys of the states of all services' calls begin with; the service's name and a slash follow.
pub const STATES: &str = "/threadbare-states/";
const NODES: &str = "/threadbare/nodes/";
const STREAMS: &str = "/threadbare/streams/";
const CLAIMS: &str = "/threadbare/claims/";
/// Of a node.
pub const WEIGHT_MIN: f64 = 0.001;
/// Of a node: a thousand times the usual.
pub const WEIGHT_MAX: f64 = 1000.0;
/// A claim with what its next owner needs, a call's state; larger things do not belong into the store.
pub const VALUE_BYTES_MAX: usize = 8192;
