//! Streams that a cluster of gateways carries, each by one node, and calls, each at the node that made it. What is decided is in [`threadbare_control::cluster`]; here are etcd, the clock, and the
//! way to the streams.
//!
//! ```text
//!  etcd <--transactions, a watch--> `cluster` thread: Member --orders--> main thread (gateway.rs): lines
//!                                        |            ^--------answers--------'
//!                                        '--Fence--> sockets of the lines (relay: fence.rs)
//!                  requests for calls: driver/errands.rs, peers.rs
//!  other nodes <--connections on which nothing is said: their end is a sign (links.rs)
//! ```

#[cfg(feature = "cluster")]
mod addresses;
#[cfg(feature = "cluster")]
mod announce;
#[cfg(feature = "cluster")]
mod channel;
#[cfg(feature = "cluster")]
mod declare;
#[cfg(feature = "cluster")]
mod driver;
#[cfg(feature = "cluster")]
mod etcd;
#[cfg(feature = "cluster")]
mod key;
#[cfg(feature = "cluster")]
mod links;
#[cfg(feature = "cluster")]
mod name;
#[cfg(not(feature = "cluster"))]
#[path = "none.rs"]
mod node;
#[cfg(feature = "cluster")]
mod node;
mod passing;
#[cfg(feature = "cluster")]
mod peers;
#[cfg(feature = "cluster")]
mod resume;
#[cfg(feature = "cluster")]
mod seal;
mod service;
#[cfg(feature = "cluster")]
mod shadows;
mod status;
#[cfg(all(test, feature = "cluster"))]
mod testing;

pub use self::node::Cluster;
pub use self::passing::{Back, CallDesk, Claimed, HttpRequest, Left, Origin, Passed, Piece, Way};
pub use self::service::{
    Copies, Handed, Leaving, Opaque, Preparing, ServiceSpec, Shadow, StrayBox, StrayOnWay, Strays,
    StreamCopy, Taking,
};
pub use self::status::{
    Asked, ClusterView, Input, NodeStatus, NotAnswered, NotMoved, Status, StreamStatus, Totals,
};
