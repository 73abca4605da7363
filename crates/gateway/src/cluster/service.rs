//! A service: the addresses of a node's calls, and with them the calls. One node carries it at a time, its own as long as that lives.
//!
//! ```text
//!  driver: Start --> addresses.rs: puts them on their devices, tells the network
//!             |----> etcd: the states of its calls (seal.rs)  --Taking--> CallDesk: goes on with the calls
//!          Stop, HandOver --> CallDesk: leaves the calls  --Left--> the next carrier has where their media has stopped (shadows.rs)
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use threadbare_relay::Fence;

use crate::config::{InterfaceSpec, PortSpan, ServiceAddress};

/// What all nodes know of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// What moves.
    pub addresses: Vec<ServiceAddress>,
    interfaces: Vec<ServiceInterface>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ServiceInterface {
    name: String,
    address: IpAddr,
    advertised: IpAddr,
    first: u16,
    last: u16,
}

impl ServiceSpec {
    /// Of a node with these interfaces for media.
    #[must_use]
    pub fn new(addresses: Vec<ServiceAddress>, interfaces: &[InterfaceSpec]) -> ServiceSpec {
        let interface = |spec: &InterfaceSpec| ServiceInterface {
            name: spec.name.clone(),
            address: spec.address,
            advertised: spec.advertised,
            first: spec.ports.first,
            last: spec.ports.last,
        };
        ServiceSpec {
            addresses,
            interfaces: interfaces.iter().map(interface).collect(),
        }
    }

    /// Where the ports of its calls are.
    #[must_use]
    pub fn interfaces(&self) -> Vec<InterfaceSpec> {
        let spec = |interface: &ServiceInterface| InterfaceSpec {
            name: interface.name.clone(),
            address: interface.address,
            advertised: interface.advertised,
            ports: PortSpan {
                first: interface.first,
                last: interface.last,
            },
        };
        self.interfaces.iter().map(spec).collect()
    }
}

/// The name of a node's service, among those of streams.
pub(super) fn service_of(node: &str) -> String {
    format!("service:{node}")
}

/// A service that this node carries from now on.
#[derive(Debug)]
pub struct Taking {
    /// Its name.
    pub service: String,
    /// Its interfaces.
    pub interfaces: Vec<InterfaceSpec>,
    /// What its calls send passes this.
    pub fence: Fence,
    /// The calls: which process has written the state down, and that.
    pub calls: Vec<(u64, Opaque)>,
    /// Where the media of these processes' streams were last.
    pub shadows: HashMap<u64, Shadow>,
}

/// The states of a process's streams, by their numbers there.
pub type Shadow = HashMap<u64, StreamCopy>;

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamCopy {
    /// Nothing has left behind it.
    pub is_last: bool,
    /// When it came, or was made here: on this machine's monotonic clock.
    pub at_ns: u64,
    /// The state.
    pub state: Opaque,
}

/// Bytes with keys in them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opaque(pub Vec<u8>);

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The states of a process's streams on their way to the node that would go on with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// The process whose numbers these are.
    pub process: u64,
    /// Nothing leaves behind them.
    pub is_last: bool,
    /// `None`: the stream has ended.
    pub streams: Vec<(u64, Option<Opaque>)>,
}
