//! Who sends requests of the ng protocol, and where the replies go.

use std::net::{IpAddr, SocketAddr};

use threadbare_control::calls::CallId;
use threadbare_control::ng::{Command, NoMessage, Reply, Ticket};
use tokio::sync::oneshot;

use crate::cluster::{Origin, Passed};

/// Tells senders apart: a cookie is one sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Asker {
    /// A datagram's address.
    Udp(SocketAddr),
    /// A host: who asks again by TCP or HTTP may do so on another connection.
    Host(IpAddr),
}

impl Origin {
    /// Of a request that another node has sent on.
    pub(super) fn asker(self) -> Asker {
        match self {
            Origin::Udp(address) => Asker::Udp(address),
            Origin::Host(host) => Asker::Host(host),
        }
    }
}

impl Asker {
    /// For another node.
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
    /// In a datagram.
    Udp(SocketAddr),
    /// To who waits for it.
    Waiting(oneshot::Sender<Result<Vec<u8>, Unreplied>>),
}

/// A message without a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreplied {
    /// The same request is being carried out.
    #[error("the request with this cookie is in hand")]
    InHand,
    /// Another node of the cluster has the call.
    #[error("another node has the call")]
    Moved,
    /// It is no request.
    #[error(transparent)]
    NoMessage(#[from] NoMessage),
}

/// A request that is owed a reply.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) to: OwedTo,
    pub(super) command: Command,
    /// When it came.
    pub(super) begun_ns: u64,
    /// In a cluster: the call that it is about.
    pub(super) call: Option<CallId>,
    /// The message, which may belong to another node. `None`: it is answered here.
    pub(super) passed: Option<Passed>,
}

/// Who is owed it.
#[derive(Debug)]
pub(super) enum OwedTo {
    /// Who sent a message.
    Message(Ticket<Asker>, ReplyTo),
    /// Another thread of this program.
    Program(oneshot::Sender<Reply>),
}
