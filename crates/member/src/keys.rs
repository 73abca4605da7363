//! Keys and values of a cluster in its store: one key for each node, declared stream, claimed stream and call.
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
//! All nodes watch the keys below `/threadbare/`. The keys of calls are looked up when they are needed. The node that takes
//! over a service reads the states of the service's calls.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Name of a node: unique in the cluster, and the same after a restart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeName(pub Arc<str>);

/// Name of a stream in the cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamName(pub Arc<str>);

/// Name of a call: its Call-ID in percent-encoding, so that the key is plain text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallName(pub Arc<str>);

/// Number of a life of a node. A life lasts from a join until the node's key is deleted. The number is random, so that no two
/// lives have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// Counts the owners of a stream.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the number of the next owner. At the greatest number, it returns the same number again, which does no harm.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// A revision of etcd, which numbers the states of the whole store. The revision of a key is the store's revision at the last
/// change of this key. 0: the key does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of a key that does not exist.
    pub const ABSENT: Revision = Revision(0);
}

/// A key of the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The node is alive.
    Node(NodeName),
    /// The stream is declared.
    Stream(StreamName),
    /// The owner of the stream.
    Claim(StreamName),
    /// The owner of the call.
    Call(CallName),
    /// The state that the next node needs for a call of a service.
    State(StreamName, CallName),
}

/// The value of a key. The variant is that of the key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The value of [`Key::Node`].
    Node(NodeRecord),
    /// The value of [`Key::Stream`].
    Stream(Declaration),
    /// The value of [`Key::Claim`].
    Claim(Claim),
    /// The value of [`Key::Call`].
    Call(CallClaim),
    /// The value of [`Key::State`]; opaque here.
    State(Arc<[u8]>),
}

/// A node that is alive. The node writes this value again with each renewal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node's current life.
    pub incarnation: Incarnation,
    /// Counts the renewals.
    pub beat: u64,
    /// The node's share of the streams, relative to other nodes. Above 0.
    pub weight: f64,
    /// Labels of the node, such as its site, rack or network.
    #[serde(default)]
    pub labels: Vec<Arc<str>>,
    /// The node hands over its streams and takes none.
    #[serde(default)]
    pub draining: bool,
    /// The address to which other nodes connect, to see whether the process is alive, and to send requests for its calls.
    /// Opaque here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// How many more calls the node could accept, in percent of its limit. `None`: the node accepts no calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u8>,
}

/// Address of a process. A connection to it shows when the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Address and port on the process's machine.
    pub address: SocketAddr,
    /// A random number: no two processes share it.
    pub process: u64,
}

/// The kind of a declaration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A stream.
    #[default]
    Stream,
    /// A service: the addresses of a node's calls, and the calls.
    Service,
}

/// A stream or a service that one node must carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declaration {
    /// Stream or service.
    #[serde(default, skip_serializing_if = "is_stream")]
    pub kind: Kind,
    /// Nodes with one of these labels are chosen first.
    #[serde(default)]
    pub prefer: Vec<Arc<str>>,
    /// Nodes with one of these labels are chosen last.
    #[serde(default)]
    pub avoid: Vec<Arc<str>>,
    /// The behaviour of the owner while it cannot reach the store.
    #[serde(default)]
    pub on_isolation: OnIsolation,
    /// The node that an operator has chosen. This node is preferred while it accepts streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<NodeName>,
    /// The media plane's settings for the stream; opaque here.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub spec: Arc<str>,
}

/// The behaviour of an owner while it cannot reach the store. Another node may then take over the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnIsolation {
    /// The owner stops sending. There are never two senders.
    #[default]
    Stop,
    /// The owner keeps sending. There may be two senders, but there is always at least one.
    Continue,
}

/// The claim on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The owner.
    #[serde(flatten)]
    pub owner: Life,
    /// The number of this owner. The next owner's number is greater by one.
    pub epoch: Epoch,
    /// The previous owner, if it still carries the stream. It carries the stream until it has told the owner that it has
    /// stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deputy: Option<Life>,
    /// The node that prepares to be the next owner. When it is ready, it claims the stream, with the current owner as its deputy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Life>,
    /// The position from which the owner resumes after the previous owner; opaque here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<u8>,
}

/// The claim on a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallClaim {
    /// The node that owned the call when the key was written. If the call belongs to a service, its current owner is the node
    /// that carries the service.
    #[serde(flatten)]
    pub owner: Life,
    /// The service whose addresses the call uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<StreamName>,
}

/// One life of one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Life {
    /// The node's name.
    pub node: NodeName,
    /// The number of this life.
    pub incarnation: Incarnation,
}

/// A deputy's message that it has stopped, so that the owner of the claim may send. The deputy's node sends it directly to the
/// owner's node. Soon after that, the claim in the store has no deputy any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The stream that has stopped.
    pub stream: StreamName,
    /// The claim's number.
    pub epoch: Epoch,
    /// The deputy.
    pub from: Life,
    /// The owner.
    pub to: Life,
}

/// Error: a key or value is invalid, or was written by a later version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct Unreadable {
    /// The key, as text.
    pub key: String,
    /// Why the key or value is unreadable.
    pub reason: String,
}

impl Key {
    /// Returns the path in the store. A name is always at the end, because it may contain any characters.
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

    /// Parses a path. `None`: it is not the path of a key of the cluster.
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

    /// Reads the value of this key from its bytes: JSON, or opaque bytes.
    ///
    /// # Errors
    /// Fails if the value is too long or not valid JSON, or if a weight is not above 0.
    pub fn read(&self, json: &[u8]) -> Result<Value, Unreadable> {
        let unreadable = |reason: String| Unreadable {
            key: self.path(),
            reason,
        };
        if json.len() > VALUE_BYTES_MAX {
            let reason = format!(
                "the value has {} bytes; expected at most {VALUE_BYTES_MAX}",
                json.len()
            );
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
                let reason = format!("weight {weight}; expected {WEIGHT_MIN} to {WEIGHT_MAX}");
                Err(unreadable(reason))
            }
            Ok(value) => Ok(value),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }
}

impl Value {
    /// Returns the bytes of the value: JSON, or the opaque bytes themselves.
    ///
    /// # Errors
    /// Fails if the weight is not a number.
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

/// Whether the weight is valid for a node.
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

/// Prefix of all keys that every node watches.
pub const PREFIX: &str = "/threadbare/";
/// Prefix of the keys of calls.
pub const CALLS: &str = "/threadbare-calls/";
/// Prefix of the states of services' calls; the service's name and a slash follow.
pub const STATES: &str = "/threadbare-states/";
const NODES: &str = "/threadbare/nodes/";
const STREAMS: &str = "/threadbare/streams/";
const CLAIMS: &str = "/threadbare/claims/";
/// Smallest weight of a node.
pub const WEIGHT_MIN: f64 = 0.001;
/// Greatest weight of a node: a thousand times the default.
pub const WEIGHT_MAX: f64 = 1000.0;
/// Maximum length of a value other than the state of a call. A claim with a position is shorter. Longer data does not belong in
/// the store.
pub const VALUE_BYTES_MAX: usize = 8192;
