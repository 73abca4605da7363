//! Requests for calls on their way from node to node.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use threadbare_control::cluster::{CallName, Release};

use super::service::{Copies, Handed, Leaving, Preparing, Strays, Taking};

/// A request, as the node that it came to sends it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passed {
    /// A message of the ng protocol.
    Ng {
        /// Who asks.
        from: Origin,
        /// With its cookie.
        message: Vec<u8>,
    },
    /// A request by HTTP.
    Http(HttpRequest),
    /// The same, whose answer has no end: the next piece of that.
    Piece {
        /// Random: names the answer.
        reader: u64,
        /// The request, with each piece.
        request: HttpRequest,
    },
    /// No request: what the node would go on with, should the sender end.
    Copies(Copies),
    /// The same: what has come for it to the sender.
    Strays(Strays),
    /// The same: a stream has stopped at the sender, and where.
    Released(Release, Vec<u8>),
    /// The same: calls that the sender has left.
    Handed(Handed),
}

/// Who has sent a message of the ng protocol: what tells cookies apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A datagram's address.
    Udp(SocketAddr),
    /// A host, by TCP or HTTP.
    Host(IpAddr),
}

/// A request by HTTP whose sender may ask.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// Such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// What the body is.
    pub content_type: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// The answer of the node that has the call.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// The reply to a message of the ng protocol.
    Ng(Vec<u8>),
    /// The same message is being carried out: its reply answers this one.
    InHand,
    /// Of HTTP.
    Http {
        /// Such as 200.
        status: u16,
        /// What the body is.
        content_type: Option<String>,
        /// Where a call was made.
        location: Option<String>,
        /// The body.
        body: Vec<u8>,
    },
    /// Of an answer by HTTP without an end.
    Piece(Piece),
    /// Another node has the call, or is about to have it.
    Moved,
    /// Copies have come, or strays.
    Kept,
    /// The same, and nothing should go to the node before any more.
    Arrived,
    /// It takes no requests of other nodes, or cannot read this one.
    Unable(String),
}

/// What has come of an answer since the piece before.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Who answers.
    pub node: String,
    /// Such as 200.
    pub status: u16,
    /// What the body is.
    pub content_type: Option<String>,
    /// May be empty.
    pub body: Vec<u8>,
    /// Nothing comes behind it.
    pub is_over: bool,
}

impl Back {
    /// Whether it is a piece of what was asked for.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        matches!(self, Back::Piece(Piece { status: 200, .. }))
    }
}

// Keys of SRTP are in bodies.
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

/// Where a request is answered.
#[derive(Debug)]
pub enum Way {
    /// By this node.
    Here,
    /// It was answered by another one.
    Answered(Back),
    /// By nobody, for this reason.
    Refused(String),
}

/// A request that may belong to another node.
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "nobody takes it then")
)]
pub struct Errand {
    /// The call. `None`: one that has no name yet.
    pub(super) call: Option<CallName>,
    /// Whether it makes a call that nobody has.
    pub(super) makes: bool,
    pub(super) passed: Passed,
    /// How often it was sent to a node.
    pub(super) tries: u32,
    /// How often it has waited for a call that is on its way.
    pub(super) waits: u32,
    tell: Box<dyn FnOnce(Way) + Send>,
}

impl Errand {
    /// `tell` is called by another thread.
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

    #[cfg(feature = "cluster")]
    pub(super) fn end(self, way: Way) {
        (self.tell)(way);
    }
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} tries", self.call, self.tries)
    }
}

/// What has become of a call that this node has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// It is this node's.
    Ours,
    /// Another node has a call of this name.
    Taken {
        /// That one.
        by: String,
    },
    /// etcd does not answer, and this node goes on alone.
    Alone,
    /// etcd does not answer, and no calls are made then.
    Refused,
}

/// Is called with what is left of a service's calls.
pub type Left = Box<dyn FnOnce(Leaving) + Send>;

/// Who has the calls of this node.
pub trait CallDesk: Send + Sync + fmt::Debug {
    /// Answers a request that another node has sent on. Called on the cluster's runtime.
    ///
    /// `call`: etcd knows the call, and that it is at this node: if it is not, it is on its way ([`Back::Moved`]), or has just ended.
    fn answer(
        &self,
        call: Option<CallName>,
        passed: Passed,
    ) -> Pin<Box<dyn Future<Output = Back> + Send>>;

    /// What has become of a call.
    fn claimed(&self, call: &CallName, claimed: Claimed);

    /// Opens what the calls of a service will need. `done` is called when that is done.
    fn prepare(&self, preparing: Preparing, done: Box<dyn FnOnce() + Send>);

    /// A service that was prepared for does not come.
    fn unprepare(&self, service: &str);

    /// Goes on with the calls of a service. `done` is called when all are there that can be.
    fn take(&self, taking: Taking, done: Box<dyn FnOnce() + Send>);

    /// Leaves calls of a service as they are, for another node; at most so many. Their ports stay open.
    fn leave(&self, service: &str, most: usize, left: Left);

    /// Closes the ports of a service's calls that were left.
    fn close(&self, service: &str);

    /// Something more is in the [`StrayBox`](super::StrayBox) that came with the calls.
    fn deliver(&self);
}
