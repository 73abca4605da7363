//! Who sends requests of the ng protocol, and where the replies go.

use std::net::{IpAddr, SocketAddr};

use threadbare_control::ng::{Command, NoMessage, Reply, Ticket};
use tokio::sync::oneshot;

/// Tells senders apart: a cookie is one sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asker {
    /// A datagram's address.
    Udp(SocketAddr),
    /// A host: who asks again by TCP or HTTP may do so on another connection.
    Host(IpAddr),
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
}

/// Who is owed it.
#[derive(Debug)]
pub(super) enum OwedTo {
    /// Who sent a message.
    Message(Ticket<Asker>, ReplyTo),
    /// Another thread of this program.
    Program(oneshot::Sender<Reply>),
}
