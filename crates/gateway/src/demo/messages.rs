//! Messages between the two processes of the demo.

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
    /// The gateway has stopped and sends nothing more.
    Stopped,
}

/// Settings of the calls, and the expected results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// The gateway's ports: stream n at this port plus n times `port_step`.
    pub(super) first_port: u16,
    pub(super) port_step: u16,
    /// Distance of the gateway's RTCP ports above its RTP; `None`: no RTCP.
    pub(super) rtcp_offset: Option<u16>,
    /// Duration of each stream.
    pub(super) seconds: u32,
    /// SSRC of returned packets of stream 0; the others follow.
    pub(super) first_ssrc: u32,
    /// Payload type of returned packets.
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
        /// A note for the user, if any.
        notes: Vec<String>,
    },
    /// The current counts.
    Progress(Standing),
    /// All packets are sent, and received or waited for.
    Done {
        /// The final counts.
        standing: Standing,
        /// Packets with a delay from n to n + 1 ms.
        packets_by_ms: Vec<u64>,
    },
    /// The gateway has sent its last RTCP, or should have: the final RTCP counts.
    Parted(RtcpCounters),
    /// It cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The current counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) packets: Counters,
    pub(super) rtcp: RtcpCounters,
}

impl Call {
    /// The destination of a stream's RTCP.
    pub(super) fn rtcp_port(&self, stream: usize) -> u16 {
        self.first_port + stream as u16 * self.port_step + self.rtcp_offset.unwrap_or(0)
    }
}
