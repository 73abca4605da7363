//! A service: the addresses of a node's calls, and with them the calls. One node carries it at a time, its own as long as that lives.
//!
//! ```text
//!  driver: Start --> addresses.rs: puts them on their devices, tells the network
//!             |----> etcd: the states of its calls (seal.rs)  --Taking--> CallDesk: goes on with the calls
//!          Stop --> CallDesk: leaves the calls
//!
//!  a hand-over:   next: Prepare --> CallDesk: opens the ports of the calls, before the addresses are there; it claims the service
//!                 this: HandOver --> CallDesk: leaves some calls --Handed--> next: goes on with them; and so on with the others (driver/handover.rs)
//!                       what still comes to the ports --Strays--> next: as if it had come there, until it has the addresses
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use threadbare_control::cluster::Release;
use threadbare_relay::{Fence, PortId, PortKind, Stray};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

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

/// Calls of a service that this node carries from now on, some or all.
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
    /// What has come for them elsewhere, and still comes.
    pub strays: StrayBox,
    /// None have come before.
    pub is_first: bool,
    /// None come behind them.
    pub is_last: bool,
}

/// What has come for streams to the node that carried them before. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct StrayBox(Arc<Mutex<Boxed>>);

#[derive(Debug, Default)]
struct Boxed {
    /// By the process, and the number of the stream there.
    of: HashMap<(u64, u64), Vec<Stray>>,
    bytes: usize,
}

impl StrayBox {
    /// What there is no room for, is left out; what nobody has taken for long, too.
    pub fn put(&self, now_ns: u64, process: u64, strays: impl IntoIterator<Item = (u64, Stray)>) {
        let mut boxed = self.lock();
        let is_new = |stray: &Stray| now_ns.saturating_sub(stray.received_ns) < STRAY_NS_MAX;
        boxed
            .of
            .retain(|_, strays| strays.last().is_some_and(is_new));
        boxed.bytes = boxed.of.values().flatten().map(size).sum();
        for (stream, stray) in strays {
            let bytes = size(&stray);
            if boxed.bytes + bytes <= STRAY_BYTES_MAX {
                boxed.bytes += bytes;
                boxed.of.entry((process, stream)).or_default().push(stray);
            }
        }
    }

    /// Those of a stream.
    #[must_use]
    pub fn take(&self, process: u64, stream: u64) -> Vec<Stray> {
        let mut boxed = self.lock();
        let strays = boxed.of.remove(&(process, stream)).unwrap_or_default();
        boxed.bytes -= strays.iter().map(size).sum::<usize>();
        strays
    }

    /// Process and number of the streams that something has come for.
    #[must_use]
    pub fn streams(&self) -> Vec<(u64, u64)> {
        self.lock().of.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Boxed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(stray: &Stray) -> usize {
    stray.bytes.len() + STRAY_BYTES
}

impl Leaving {
    /// There are no calls.
    #[must_use]
    pub fn nothing() -> Leaving {
        Leaving {
            calls: Vec::new(),
            streams: Vec::new(),
            strays: Some(unbounded_channel().1),
            is_last: true,
        }
    }
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

/// A service that this node is about to carry.
#[derive(Debug)]
pub struct Preparing {
    /// Its name.
    pub service: String,
    /// Its interfaces.
    pub interfaces: Vec<InterfaceSpec>,
    /// The calls, as they are now.
    pub calls: Vec<Opaque>,
}

/// Calls that this node has left, some or all of a service.
#[derive(Debug)]
pub struct Leaving {
    /// What the next node needs for each.
    pub calls: Vec<Opaque>,
    /// The last state of each of their streams, by number.
    pub streams: Vec<(u64, Opaque)>,
    /// What still comes to their ports, and to those of the calls that are left behind them, by number of the stream, until
    /// [`CallDesk::close`](super::CallDesk::close). With the first calls.
    pub strays: Option<UnboundedReceiver<(u64, Stray)>>,
    /// The service has no more.
    pub is_last: bool,
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

/// Calls that a node has left, on their way to the owner of their service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// That nothing of them is sent any more.
    pub release: Release,
    /// The process whose numbers the streams have.
    pub process: u64,
    /// The calls.
    pub calls: Vec<Opaque>,
    /// The last state of each of their streams.
    pub streams: Vec<(u64, Opaque)>,
    /// No others come behind them.
    pub is_last: bool,
}

/// What has come to the ports of streams that another node goes on with, on its way there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strays {
    /// Their service.
    pub service: String,
    /// The process whose numbers these are.
    pub process: u64,
    /// By stream.
    pub datagrams: Vec<(u64, StrayOnWay)>,
}

/// A datagram on its way to another node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayOnWay {
    leg: u8,
    is_rtcp: bool,
    is_clear: bool,
    from: SocketAddr,
    age_ns: u64,
    bytes: Vec<u8>,
}

impl StrayOnWay {
    /// Sent now.
    #[must_use]
    pub fn new(stray: Stray, now_ns: u64) -> StrayOnWay {
        StrayOnWay {
            leg: stray.port.leg,
            is_rtcp: stray.port.kind == PortKind::Rtcp,
            is_clear: stray.is_clear,
            from: stray.from,
            age_ns: now_ns.saturating_sub(stray.received_ns),
            bytes: stray.bytes,
        }
    }

    /// Received now, by this machine's clock.
    #[must_use]
    pub fn arrived(self, now_ns: u64) -> Stray {
        Stray {
            port: match self.is_rtcp {
                true => PortId::rtcp(self.leg),
                false => PortId::rtp(self.leg),
            },
            from: self.from,
            received_ns: now_ns.saturating_sub(self.age_ns),
            is_clear: self.is_clear,
            bytes: self.bytes,
        }
    }
}

impl fmt::Debug for StrayOnWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.bytes.len(), self.from)
    }
}

/// Of all strays that wait: two seconds of 1000 calls.
const STRAY_BYTES_MAX: usize = 64 << 20;
/// Beside the datagram.
const STRAY_BYTES: usize = 64;
/// Nobody plays what is so late.
const STRAY_NS_MAX: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_wait_for_their_stream_in_order_and_within_bounds() {
        let stray = |received_ns: u64, len: usize| Stray {
            port: PortId::rtp(1),
            from: ([192, 0, 2, 1], 5000).into(),
            received_ns,
            is_clear: false,
            bytes: vec![0; len],
        };
        let strays = StrayBox::default();
        strays.put(
            9,
            7,
            [(1, stray(5, 10)), (2, stray(6, 20)), (1, stray(8, 30))],
        );
        strays.put(9, 8, [(1, stray(9, 40))]);
        let mut streams = strays.streams();
        streams.sort_unstable();
        assert_eq!(streams, [(7, 1), (7, 2), (8, 1)]);
        assert_eq!(strays.take(7, 1), [stray(5, 10), stray(8, 30)]);
        assert!(strays.take(7, 1).is_empty());
        strays.put(9 + STRAY_NS_MAX, 9, []);
        assert!(strays.streams().is_empty() && strays.lock().bytes == 0);
        strays.put(9, 7, (0..100).map(|stream| (stream, stray(9, 1 << 20))));
        assert!((60..=64).contains(&strays.streams().len()));
        // On its way, a datagram gets older by what it was.
        let way = StrayOnWay::new(stray(1000, 3), 1500);
        assert_eq!(way.arrived(9500), stray(9000, 3));
    }
}
