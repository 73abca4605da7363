//! What happens to streams, for the thread that keeps them running.

use std::net::SocketAddr;

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
    /// The name of a destination was looked up.
    Resolved {
        /// Of the stream of this number.
        index: usize,
        /// For its how-manieth run.
        run: u64,
        /// Its address, or the reason why there is none.
        address: Result<SocketAddr, String>,
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
