//! A cluster of gateways. One node carries each stream, and a call stays at the node that made it, as long as that node lives.
//! [`threadbare_member`] makes the decisions. This crate connects it to etcd, to the clock, to the streams and to other nodes.
//!
//! ```text
//!  etcd <--transactions, a watch--> `cluster` thread: Member --orders--> main thread (gateway.rs): lines
//!                                        |            ^--------answers--------'
//!                                        '--Fence--> sockets of the lines (relay: fence.rs)
//!                  requests for calls: driver/errands.rs, peers.rs
//!  other nodes <--idle connections whose end shows the end of a process (links.rs)
//! ```
//!
//! Part of the gateway `threadbare`; not a public interface.
#![forbid(unsafe_code)]

#[cfg(feature = "etcd")]
mod addresses;
#[cfg(feature = "etcd")]
mod announce;
#[cfg(feature = "etcd")]
mod channel;
#[cfg(feature = "etcd")]
mod declare;
#[cfg(feature = "etcd")]
mod driver;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
mod key;
#[cfg(feature = "etcd")]
mod links;
#[cfg(feature = "etcd")]
mod name;
#[cfg(not(feature = "etcd"))]
#[path = "none.rs"]
mod node;
#[cfg(feature = "etcd")]
mod node;
mod passing;
#[cfg(feature = "etcd")]
mod peers;
#[cfg(feature = "etcd")]
mod resume;
#[cfg(feature = "etcd")]
mod seal;
mod service;
#[cfg(feature = "etcd")]
mod shadows;
mod status;
#[cfg(all(test, feature = "etcd"))]
mod testing;

pub use self::node::Cluster;
pub use self::passing::{
    Back, CallService, Claimed, HttpRequest, Left, Origin, Passed, Piece, Way,
};
pub use self::service::{
    Copies, ForwardedPacket, Handed, LatePacketBox, LatePackets, Leaving, Opaque, Preparing,
    ServiceSpec, Shadow, StreamCopy, Taking,
};
pub use self::status::{
    Asked, ClusterView, Input, NodeStatus, NotAnswered, NotMoved, Status, StreamStatus, Totals,
};
