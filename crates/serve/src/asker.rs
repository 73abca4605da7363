//! The senders of ng requests, and the destinations of replies.

use std::net::{IpAddr, SocketAddr};

use threadbare_control::calls::CallId;
use threadbare_control::ng::{Command, NoMessage, Reply, Ticket};
use tokio::sync::oneshot;

use threadbare_cluster::{Origin, Passed};

/// Identifies a sender of requests. Two senders may use the same cookie for different requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Asker {
    /// The source address of a datagram.
    Udp(SocketAddr),
    /// The host of a TCP or HTTP client. Its port does not count, because a repeated request may come on another connection.
    Host(IpAddr),
}

/// The original sender of a request that another node has forwarded.
impl From<Origin> for Asker {
    fn from(origin: Origin) -> Asker {
        match origin {
            Origin::Udp(address) => Asker::Udp(address),
            Origin::Host(host) => Asker::Host(host),
        }
    }
}

impl Asker {
    /// Converts the sender to the form that is sent to another node with the request.
    pub(super) fn origin(self) -> Origin {
        match self {
            Asker::Udp(address) => Origin::Udp(address),
            Asker::Host(host) => Origin::Host(host),
        }
    }
}

/// Where a reply goes.
#[derive(Debug)]
pub(super) enum ReplyTo {
    /// The reply is sent as a datagram.
    Udp(SocketAddr),
    /// A task waits for the reply.
    Waiting(oneshot::Sender<Result<Vec<u8>, Unreplied>>),
}

/// The reason why a message gets no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreplied {
    /// The same request is still being processed.
    #[error("the request with this cookie is still being processed")]
    InHand,
    /// Another node of the cluster owns the call.
    #[error("another node owns the call")]
    Moved,
    /// The message is not a request.
    #[error(transparent)]
    NoMessage(#[from] NoMessage),
}

/// A request that waits for its reply.
#[derive(Debug)]
pub(super) struct PendingReply {
    pub(super) to: ReplyTarget,
    pub(super) command: Command,
    /// Time at which the request arrived.
    pub(super) begun_ns: u64,
    /// The call of the request, if this node is in a cluster.
    pub(super) call: Option<CallId>,
    /// The message, in case it must be forwarded to the owner of the call. `None`: this node answers it in any case.
    pub(super) passed: Option<Passed>,
}

/// The receiver of a reply.
#[derive(Debug)]
pub(super) enum ReplyTarget {
    /// The sender of a message.
    Message(Ticket<Asker>, ReplyTo),
    /// Another thread of this program.
    Program(oneshot::Sender<Reply>),
}
