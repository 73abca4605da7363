//! A service: the addresses at which a node receives calls, and the calls that use them. One node carries a service at a time:
//! the node to which it belongs, as long as that node lives.
//!
//! ```text
//!  driver: Start --> addresses.rs: adds the addresses to their devices, announces them
//!             |----> etcd: the states of the calls (seal.rs)  --Taking--> CallService: continues the calls
//!          Stop --> CallService: gives up the calls
//!
//!  a hand-over:   next: Prepare --> CallService: opens the calls' ports before the addresses exist; claims the service
//!                 this: HandOver --> CallService: gives up some calls --Handed--> next: continues them; then the others follow
//!                       (driver/handover.rs)
//!                       late packets to the ports --LatePackets--> next: handles them as if they had arrived at its ports
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use threadbare_member::Release;
use threadbare_relay::{Fence, LatePacket, PortId, PortKind};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use threadbare_config::{InterfaceSpec, PortSpan, ServiceAddress};

/// The declaration of a service, which all nodes can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// The addresses that move.
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
    /// Creates the declaration for a node with these media interfaces.
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

    /// Returns the interfaces at which the calls' ports are opened.
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

/// Returns the name of a node's service. It cannot be the name of a stream.
pub(super) fn service_of(node: &str) -> String {
    format!("service:{node}")
}

/// Some or all calls of a service that this node takes over.
#[derive(Debug)]
pub struct Taking {
    /// Name of the service.
    pub service: String,
    /// Interfaces of the service.
    pub interfaces: Vec<InterfaceSpec>,
    /// Fence of all calls of the service.
    pub fence: Fence,
    /// The calls. For each, the process that saved the state, and the state.
    pub calls: Vec<(u64, Opaque)>,
    /// The last known states of the streams of these processes.
    pub shadows: HashMap<u64, Shadow>,
    /// Late packets for the calls' streams from the previous node.
    pub late_packets: LatePacketBox,
    /// Whether these are the first calls of the service.
    pub is_first: bool,
    /// Whether these are the last calls of the service.
    pub is_last: bool,
}

/// Late packets that arrived at the node that carried the streams before. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LatePacketBox(Arc<Mutex<Boxed>>);

#[derive(Debug, Default)]
struct Boxed {
    /// The packets, by process and by the stream's number in that process.
    of: HashMap<(u64, u64), Vec<LatePacket>>,
    bytes: usize,
}

impl LatePacketBox {
    /// Adds packets. Drops old packets, and new ones that do not fit.
    pub fn put(
        &self,
        now_ns: u64,
        process: u64,
        late_packets: impl IntoIterator<Item = (u64, LatePacket)>,
    ) {
        let mut boxed = self.lock();
        let is_new =
            |packet: &LatePacket| now_ns.saturating_sub(packet.received_ns) < LATE_PACKET_NS_MAX;
        boxed
            .of
            .retain(|_, late_packets| late_packets.last().is_some_and(is_new));
        boxed.bytes = boxed.of.values().flatten().map(size).sum();
        for (stream, packet) in late_packets {
            let bytes = size(&packet);
            if boxed.bytes + bytes <= LATE_PACKET_BYTES_MAX {
                boxed.bytes += bytes;
                boxed.of.entry((process, stream)).or_default().push(packet);
            }
        }
    }

    /// Takes the packets of a stream.
    #[must_use]
    pub fn take(&self, process: u64, stream: u64) -> Vec<LatePacket> {
        let mut boxed = self.lock();
        let late_packets = boxed.of.remove(&(process, stream)).unwrap_or_default();
        boxed.bytes -= late_packets.iter().map(size).sum::<usize>();
        late_packets
    }

    /// Returns process and number of the streams that have packets.
    #[must_use]
    pub fn streams(&self) -> Vec<(u64, u64)> {
        self.lock().of.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Boxed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(packet: &LatePacket) -> usize {
    packet.bytes.len() + LATE_PACKET_BYTES
}

impl Leaving {
    /// Returns an empty list: the service has no calls.
    #[must_use]
    pub fn nothing() -> Leaving {
        Leaving {
            calls: Vec::new(),
            streams: Vec::new(),
            late_packets: Some(unbounded_channel().1),
            is_last: true,
        }
    }
}

/// The states of the streams of a process, by their numbers in that process.
pub type Shadow = HashMap<u64, StreamCopy>;

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamCopy {
    /// Whether the stream has sent nothing after this state.
    pub is_last: bool,
    /// Time at which the state arrived or was created, on this machine's monotonic clock.
    pub at_ns: u64,
    /// The state.
    pub state: Opaque,
}

/// A service that this node is about to carry.
#[derive(Debug)]
pub struct Preparing {
    /// Name of the service.
    pub service: String,
    /// Interfaces of the service.
    pub interfaces: Vec<InterfaceSpec>,
    /// The current states of the calls.
    pub calls: Vec<Opaque>,
}

/// Some or all calls of a service that this node has given up.
#[derive(Debug)]
pub struct Leaving {
    /// The state of each call for the next node.
    pub calls: Vec<Opaque>,
    /// The last state of each stream of these calls, with the number of the stream.
    pub streams: Vec<(u64, Opaque)>,
    /// Receives late packets at the ports of the service's calls, with the number of the stream. It ends with
    /// [`CallService::close`](super::CallService::close). Present with the first calls that were given up.
    pub late_packets: Option<UnboundedReceiver<(u64, LatePacket)>>,
    /// Whether the service has no more calls.
    pub is_last: bool,
}

/// Bytes that include SRTP keys; hidden in debug output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opaque(pub Vec<u8>);

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The states of the streams of a process, which are sent to the next node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// The process to which the numbers belong.
    pub process: u64,
    /// Whether the streams have sent nothing after these states.
    pub is_last: bool,
    /// The numbers and states of the streams; `None`: the stream has ended.
    pub streams: Vec<(u64, Option<Opaque>)>,
}

/// Calls that a node has given up. They are sent to the next owner of their service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// Identifies the claim. The sending node no longer sends media of these calls.
    pub release: Release,
    /// The process to which the streams' numbers belong.
    pub process: u64,
    /// The calls.
    pub calls: Vec<Opaque>,
    /// The last state of each stream of these calls.
    pub streams: Vec<(u64, Opaque)>,
    /// Whether these are the last calls of the service.
    pub is_last: bool,
}

/// Late packets that arrived at the ports of streams that another node continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatePackets {
    /// The service of the streams.
    pub service: String,
    /// The process to which the numbers belong.
    pub process: u64,
    /// Datagrams, each with the number of its stream.
    pub datagrams: Vec<(u64, ForwardedPacket)>,
}

/// A datagram in transit to another node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedPacket {
    leg: u8,
    is_rtcp: bool,
    is_clear: bool,
    from: SocketAddr,
    age_ns: u64,
    bytes: Vec<u8>,
}

impl ForwardedPacket {
    /// Converts a packet that is sent to another node at `now_ns`.
    #[must_use]
    pub fn new(packet: LatePacket, now_ns: u64) -> ForwardedPacket {
        ForwardedPacket {
            leg: packet.port.leg,
            is_rtcp: packet.port.kind == PortKind::Rtcp,
            is_clear: packet.is_clear,
            from: packet.from,
            age_ns: now_ns.saturating_sub(packet.received_ns),
            bytes: packet.bytes,
        }
    }

    /// Converts a packet that arrived from another node at `now_ns`.
    #[must_use]
    pub fn arrived(self, now_ns: u64) -> LatePacket {
        LatePacket {
            port: if self.is_rtcp {
                PortId::rtcp(self.leg)
            } else {
                PortId::rtp(self.leg)
            },
            from: self.from,
            received_ns: now_ns.saturating_sub(self.age_ns),
            is_clear: self.is_clear,
            bytes: self.bytes,
        }
    }
}

impl fmt::Debug for ForwardedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.bytes.len(), self.from)
    }
}

/// Maximum bytes of all waiting packets: two seconds of 1000 calls.
const LATE_PACKET_BYTES_MAX: usize = 64 << 20;
/// Bytes that are counted for each packet in addition to the datagram.
const LATE_PACKET_BYTES: usize = 64;
/// Maximum age of a packet: older packets are useless.
const LATE_PACKET_NS_MAX: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_packets_wait_for_their_stream_in_order_and_within_bounds() {
        let packet = |received_ns: u64, len: usize| LatePacket {
            port: PortId::rtp(1),
            from: ([192, 0, 2, 1], 5000).into(),
            received_ns,
            is_clear: false,
            bytes: vec![0; len],
        };
        let late_packets = LatePacketBox::default();
        late_packets.put(
            9,
            7,
            [(1, packet(5, 10)), (2, packet(6, 20)), (1, packet(8, 30))],
        );
        late_packets.put(9, 8, [(1, packet(9, 40))]);
        let mut streams = late_packets.streams();
        streams.sort_unstable();
        assert_eq!(streams, [(7, 1), (7, 2), (8, 1)]);
        assert_eq!(late_packets.take(7, 1), [packet(5, 10), packet(8, 30)]);
        assert!(late_packets.take(7, 1).is_empty());
        late_packets.put(9 + LATE_PACKET_NS_MAX, 9, []);
        assert!(late_packets.streams().is_empty() && late_packets.lock().bytes == 0);
        late_packets.put(9, 7, (0..100).map(|stream| (stream, packet(9, 1 << 20))));
        assert!((60..=64).contains(&late_packets.streams().len()));
        // A datagram keeps its age when it is sent to another node.
        let way = ForwardedPacket::new(packet(1000, 3), 1500);
        assert_eq!(way.arrived(9500), packet(9000, 3));
    }
}
