//! What happens to streams, for the thread that keeps them running.

use std::net::SocketAddr;

use threadbare_rtp::call::Clip;

/// One run of a stream, from a start to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The stream's number, which no other one gets.
    pub stream: usize,
    /// Counts its starts.
    pub number: u64,
}

/// What a stream needs before it starts.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    /// Where it sends, unless that is its sender's address, or nowhere.
    pub to: Option<SocketAddr>,
    /// The files of its fallbacks, in order.
    pub clips: Vec<Clip>,
}

/// Messages for the gateway's thread.
#[derive(Debug)]
pub enum Event {
    /// A line has ended: it was stopped, or its state machine failed.
    LineEnded {
        /// Of this run.
        run: RunId,
    },
    /// The name of a destination was looked up, and files were read.
    Prepared {
        /// For this run.
        run: RunId,
        /// What it needs, or the reason why it does not get that.
        answer: Result<Prepared, String>,
    },
    /// A stream's elements cannot go on.
    Failed {
        /// Of this run.
        run: RunId,
        /// The elements' message.
        reason: String,
    },
    /// A pipeline has reached its end.
    Ended {
        /// Of this run.
        run: RunId,
    },
    /// A cluster has given one more [order](crate::order::Order).
    Ordered,
    /// A stream that is held hears its sender.
    Heard {
        /// In this run.
        run: RunId,
    },
    /// The user requests statistics.
    Report,
    /// The user has changed the configuration.
    Reload,
    /// The user stops the gateway.
    Stop {
        /// The cause, such as "SIGTERM".
        cause: &'static str,
    },
}
