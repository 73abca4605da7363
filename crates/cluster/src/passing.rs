//! Requests for calls between nodes.

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
    /// Copies of stream states, in case the sender ends; not a request.
    Copies(Copies),
    /// Late packets that arrived at the sender; not a request.
    LatePackets(LatePackets),
    /// A stream has stopped at the sender at this position; not a request.
    Released(Release, Vec<u8>),
    /// Calls that the sender has given up; not a request.
    Handed(Handed),
}

/// The sender of an ng message, to which cookies belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The source address of a datagram.
    Udp(SocketAddr),
    /// A host, over TCP or HTTP.
    Host(IpAddr),
}

/// An HTTP request whose sender is authorised.
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

/// The reply of the node that owns the call.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// The reply to an ng message.
    Ng(Vec<u8>),
    /// The same message is still being processed: its reply answers this one.
    InHand,
    /// An HTTP reply.
    Http {
        /// The status code, for example 200.
        status: u16,
        /// Content type of the body.
        content_type: Option<String>,
        /// Path of a call that was made.
        location: Option<String>,
        /// The body.
        body: Vec<u8>,
    },
    /// A piece of an endless HTTP reply.
    Piece(Piece),
    /// Another node owns the call, or is about to.
    Moved,
    /// Copies or late packets were received.
    Kept,
    /// The same, and nothing should go to the previous node any more.
    Arrived,
    /// The node accepts no requests of other nodes, or cannot read this one.
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

// Bodies have SRTP keys.
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
    /// This node has the call.
    Here,
    /// Another node, with this reply.
    Answered(Back),
    /// No node, for this reason.
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
    /// Number of times that it was sent to a node.
    pub(super) tries: u32,
    /// Number of times that it has waited for a call in transit.
    pub(super) waits: u32,
    tell: Box<dyn FnOnce(Way) + Send>,
}

impl Errand {
    /// Another thread calls `tell`.
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
    /// This node owns it.
    Ours,
    /// Another node owns a call of this name.
    Taken {
        /// Name of that node.
        by: String,
    },
    /// etcd does not answer, and this node continues alone.
    Alone,
    /// etcd does not answer, and the configuration forbids new calls then.
    Refused,
}

/// Called with the state of calls that were given up.
pub type Left = Box<dyn FnOnce(Leaving) + Send>;

/// The owner of this node's calls.
pub trait CallService: Send + Sync + fmt::Debug {
    /// Answers a request that another node has forwarded. Called on the cluster's runtime.
    ///
    /// `call`: according to etcd, this node owns the call. If it is missing, it is in transit ([`Back::Moved`]), or has just
    /// ended.
    fn answer(
        &self,
        call: Option<CallName>,
        passed: Passed,
    ) -> Pin<Box<dyn Future<Output = Back> + Send>>;

    /// Reports the result of a call's claim.
    fn claimed(&self, call: &CallName, claimed: Claimed);

    /// Opens the ports of a service's calls in advance. `done` is called when that is finished.
    fn prepare(&self, preparing: Preparing, done: Box<dyn FnOnce() + Send>);

    /// Closes them again, because the service does not come.
    fn unprepare(&self, service: &str);

    /// Continues the calls of a service. `done` is called when all possible calls are here.
    fn take(&self, taking: Taking, done: Box<dyn FnOnce() + Send>);

    /// Gives up at most `most` calls of a service in their current state, for another node. Their ports stay open.
    fn leave(&self, service: &str, most: usize, left: Left);

    /// Closes the ports of a service's calls that were given up.
    fn close(&self, service: &str);

    /// Reports new packets in the [`LatePacketBox`](super::LatePacketBox) that came with the calls.
    fn deliver(&self);
}
