//! What the two processes of the demo say to each other.

use serde::{Deserialize, Serialize};

use super::ledger::Counters;

/// From the gateway's process to the callers and listeners.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "to_peer", rename_all = "snake_case")]
pub(super) enum ToPeer {
    /// The gateway is ready: call now.
    Start {
        /// Where the gateway listens: stream n at this port plus n.
        first_port: u16,
        /// How long each stream sends.
        seconds: u32,
        /// SSRC of what comes back from stream 0; the others follow.
        first_ssrc: u32,
        /// Payload type of what comes back.
        payload_type: u8,
    },
}

/// From the callers and listeners to the gateway's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from_peer", rename_all = "snake_case")]
pub(super) enum FromPeer {
    /// The listeners are bound.
    Ready {
        /// Each takes [`STREAMS_PER_LISTENER`](super::listener::STREAMS_PER_LISTENER) streams, in order.
        ports: Vec<u16>,
        /// What the user should know, if anything.
        notes: Vec<String>,
    },
    /// Where things stand.
    Progress(Counters),
    /// All is sent, and all has come or been waited for.
    Done(Counters),
    /// It cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}
