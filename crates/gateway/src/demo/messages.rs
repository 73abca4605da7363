//! What the two processes of the demo say to each other.

use serde::{Deserialize, Serialize};

use super::ledger::Counters;
use super::network::Harm;
use super::rtcp::RtcpCounters;

/// From the gateway's process to the callers and listeners.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "to_peer", rename_all = "snake_case")]
pub(super) enum ToPeer {
    /// The gateway is ready: call now.
    Start(Call),
    /// The gateway has stopped: it says nothing any more.
    Stopped,
}

/// How to call, and what to expect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// Where the gateway listens: stream n at this port plus n times `port_step`.
    pub(super) first_port: u16,
    pub(super) port_step: u16,
    /// How much above its RTP the gateway's RTCP is; without, it has none.
    pub(super) rtcp_offset: Option<u16>,
    /// How long each stream sends.
    pub(super) seconds: u32,
    /// SSRC of what comes back from stream 0; the others follow.
    pub(super) first_ssrc: u32,
    /// Payload type of what comes back.
    pub(super) payload_type: u8,
    /// The network between callers and gateway.
    pub(super) harm: Harm,
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
    Progress(Standing),
    /// All is sent, and all has come or been waited for.
    Done {
        /// Where things stand in the end.
        standing: Standing,
        /// How many packets took from n to n + 1 ms.
        packets_by_ms: Vec<u64>,
    },
    /// The gateway has said its last word, or should have: RTCP as it stands then.
    Parted(RtcpCounters),
    /// It cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Where things stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) packets: Counters,
    pub(super) rtcp: RtcpCounters,
}

impl Call {
    /// Where a stream's RTCP goes.
    pub(super) fn rtcp_port(&self, stream: usize) -> u16 {
        self.first_port + stream as u16 * self.port_step + self.rtcp_offset.unwrap_or(0)
    }
}
