//! What happens to streams, for the thread that keeps them running.

use std::net::SocketAddr;

use threadbare_rtp::call::Clip;

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
        /// Of the stream of this number.
        index: usize,
        /// Its how-manieth run.
        run: u64,
    },
    /// The name of a destination was looked up, and files were read.
    Prepared {
        /// Of the stream of this number.
        index: usize,
        /// For its how-manieth run.
        run: u64,
        /// What it needs, or the reason why it does not get that.
        answer: Result<Prepared, String>,
    },
    /// A pipeline cannot go on.
    Failed {
        /// Its stream.
        pipeline: gst::Object,
        /// The elements' message.
        reason: String,
    },
    /// A pipeline has reached its end.
    Ended {
        /// Its stream.
        pipeline: gst::Object,
    },
    /// The user requests statistics.
    Report,
    /// The user stops the gateway.
    Stop {
        /// The cause, such as "SIGTERM".
        cause: &'static str,
    },
}
