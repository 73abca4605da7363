//! Messages between nodes about calls, and the interface to the owner of a node's calls.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use threadbare_member::{CallName, Release};

use super::service::{Copies, Handed, LatePackets, Leaving, Preparing, Taking};

/// A message from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passed {
    /// A message of the ng protocol.
    Ng {
        /// The original sender.
        from: Origin,
        /// The message with its cookie.
        message: Vec<u8>,
    },
    /// An HTTP request.
    Http(HttpRequest),
    /// A request for the next piece of an endless HTTP reply.
    Piece {
        /// Random number that identifies the reader.
        reader: u64,
        /// The request, repeated with each piece.
        request: HttpRequest,
    },
    /// Copies of stream states, for the case that the sending node ends; not a request.
    Copies(Copies),
    /// Late packets that arrived at the sender; not a request.
    LatePackets(LatePackets),
    /// A stream has stopped at the sending node, at this position; not a request.
    Released(Release, Vec<u8>),
    /// Calls that the sending node has given up; not a request.
    Handed(Handed),
}

/// The sender of an ng message. Cookies of different senders are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The source address of a datagram.
    Udp(SocketAddr),
    /// The host of a TCP or HTTP client.
    Host(IpAddr),
}

/// An HTTP request whose client was authorised by the node that received it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// The method, for example `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Content type of the body.
    pub content_type: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// The reply of another node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// The reply to an ng message.
    Ng(Vec<u8>),
    /// The same message is still being processed. The reply to it is also the reply to this one.
    InHand,
    /// An HTTP reply.
    Http {
        /// The status code, for example 200.
        status: u16,
        /// Content type of the body.
        content_type: Option<String>,
        /// Path of the call that the request has created (the header `Location`).
        location: Option<String>,
        /// The body.
        body: Vec<u8>,
    },
    /// A piece of an endless HTTP reply.
    Piece(Piece),
    /// Another node owns the call, or is about to own it.
    Moved,
    /// The other node has received a message that is not a request.
    Kept,
    /// The next node has received late packets, and all calls of the service have arrived there. So the previous node can remove
    /// the service's addresses.
    Arrived,
    /// The node accepts no requests from other nodes, or cannot read this request.
    Unable(String),
}

/// The part of a reply since the previous piece.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Name of the answering node.
    pub node: String,
    /// The status code, for example 200.
    pub status: u16,
    /// Content type of the body.
    pub content_type: Option<String>,
    /// The data; may be empty.
    pub body: Vec<u8>,
    /// Whether it is the last piece.
    pub is_over: bool,
}

impl Back {
    /// Whether it is a piece of a successful reply.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        matches!(self, Back::Piece(Piece { status: 200, .. }))
    }
}

// Bodies are not shown, because they contain SRTP keys.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)
    }
}

impl fmt::Debug for Back {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Back::Ng(_) => f.write_str("Ng"),
            Back::InHand => f.write_str("InHand"),
            Back::Http { status, .. } => write!(f, "Http {status}"),
            Back::Piece(piece) => write!(f, "Piece {}", piece.status),
            Back::Moved => f.write_str("Moved"),
            Back::Kept => f.write_str("Kept"),
            Back::Arrived => f.write_str("Arrived"),
            Back::Unable(reason) => write!(f, "Unable {reason}"),
        }
    }
}

/// The node that answers a request.
#[derive(Debug)]
pub enum Way {
    /// This node answers, because it has the call.
    Here,
    /// Another node has answered, with this reply.
    Answered(Back),
    /// No node answers, for this reason.
    Refused(String),
}

/// A request that another node may have to answer.
#[cfg_attr(
    not(feature = "etcd"),
    expect(dead_code, reason = "unused without the feature `etcd`")
)]
pub struct Errand {
    /// The call. `None`: it has no name yet.
    pub(super) call: Option<CallName>,
    /// Whether the request makes a call that does not exist yet.
    pub(super) makes: bool,
    pub(super) passed: Passed,
    /// How often the request was sent to a node.
    pub(super) tries: u32,
    /// How often the request has waited for a call in transit.
    pub(super) waits: u32,
    tell: Box<dyn FnOnce(Way) + Send>,
}

impl Errand {
    /// Creates the request. The cluster's thread calls `tell` with the result.
    pub(super) fn new(
        call: Option<CallName>,
        makes: bool,
        passed: Passed,
        tell: impl FnOnce(Way) + Send + 'static,
    ) -> Errand {
        Errand {
            call,
            makes,
            passed,
            tries: 0,
            waits: 0,
            tell: Box::new(tell),
        }
    }

    #[cfg(feature = "etcd")]
    pub(super) fn end(self, way: Way) {
        (self.tell)(way);
    }
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} tries", self.call, self.tries)
    }
}

/// The result of a claim for a call that this node has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// This node owns the call.
    Ours,
    /// Another node owns a call of this name.
    Taken {
        /// Name of that node.
        by: String,
    },
    /// etcd does not answer, and the configuration allows new calls in this case.
    Alone,
    /// etcd does not answer, and the configuration forbids new calls in this case.
    Refused,
}

/// A callback that gets the states of calls that were given up.
pub type Left = Box<dyn FnOnce(Leaving) + Send>;

/// The owner of this node's calls.
pub trait CallService: Send + Sync + fmt::Debug {
    /// Answers a request that another node has forwarded. Called on the cluster's runtime.
    ///
    /// `call`: the call that this node owns according to etcd. If this node does not have it, the call is in transit, or has
    /// just ended, and the answer is [`Back::Moved`].
    fn answer(
        &self,
        call: Option<CallName>,
        passed: Passed,
    ) -> Pin<Box<dyn Future<Output = Back> + Send>>;

    /// Reports the result of a call's claim.
    fn claimed(&self, call: &CallName, claimed: Claimed);

    /// Opens the ports of a service's calls in advance, and then calls `done`.
    fn prepare(&self, preparing: Preparing, done: Box<dyn FnOnce() + Send>);

    /// Closes the ports that [`prepare`](Self::prepare) opened, because the service does not come.
    fn unprepare(&self, service: &str);

    /// Takes over calls of a service, and then calls `done`.
    fn take(&self, taking: Taking, done: Box<dyn FnOnce() + Send>);

    /// Gives up at most `most` calls of a service, and passes their states to `left`. Their ports stay open.
    fn leave(&self, service: &str, most: usize, left: Left);

    /// Closes the ports of a service's calls that were given up.
    fn close(&self, service: &str);

    /// Reports that there are new packets in the [`LatePacketBox`](super::LatePacketBox) that came with the calls.
    fn deliver(&self);
}
