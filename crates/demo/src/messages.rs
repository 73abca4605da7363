//! Messages between the two processes of the demo.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::Counters;
use super::network::Harm;
use super::parties::other_party;
use super::rtcp::RtcpCounters;

/// A message from the gateway's process to the parties.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "to_peer", rename_all = "snake_case")]
pub(super) enum ToPeer {
    /// The gateway is ready, so the parties start to send.
    Start(Call),
    /// The gateway has stopped and sends nothing more.
    Stopped,
}

/// Settings of the calls, and the expected results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// The gateway's first port. Party n sends to this port plus n times `port_step`.
    pub(super) first_port: u16,
    pub(super) port_step: u16,
    /// Distance of the gateway's RTCP ports above its RTP ports. `None`: there is no RTCP.
    pub(super) rtcp_offset: Option<u16>,
    /// Duration of each stream.
    pub(super) seconds: u32,
    /// SSRC of the gateway's packets of stream 0. The SSRCs of the other streams follow.
    pub(super) first_ssrc: u32,
    /// Whether a party receives the gateway's packets from the port to which the party sends.
    pub(super) is_symmetric: bool,
    /// The network between parties and gateway.
    pub(super) harm: Harm,
}

/// A message from the parties to the gateway's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from_peer", rename_all = "snake_case")]
pub(super) enum FromPeer {
    /// The parties' sockets are bound.
    Ready {
        /// Ports of the sockets. Each socket serves [`PARTIES_PER_SOCKET`](super::parties::PARTIES_PER_SOCKET) consecutive
        /// parties.
        ports: Vec<u16>,
        /// Notes for the user.
        notes: Vec<String>,
    },
    /// The counts so far.
    Progress(Standing),
    /// All packets were sent, and the parties no longer wait for packets.
    Done {
        /// The final counts.
        standing: Standing,
        /// The parties' time without a CPU while they talked.
        starved: Duration,
        /// Number of packets for each millisecond of delay. Entry n is for delays from n to n + 1 ms.
        packets_by_ms: Vec<u64>,
    },
    /// The gateway has sent its last RTCP packets, or they did not come in time. The message contains the final RTCP counts.
    Parted(RtcpCounters),
    /// The parties cannot continue.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// The counts at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) packets: Counters,
    pub(super) rtcp: RtcpCounters,
}

impl Call {
    /// Returns the gateway's port for a party's media.
    pub(super) fn port(&self, party: usize) -> u16 {
        let distance = (party as u16).wrapping_mul(self.port_step);
        self.first_port.wrapping_add(distance)
    }

    /// Whether a stream's packets come from the port to which the receiving party sends. `from` is the port from which they come.
    pub(super) fn is_from_own_port(&self, stream: usize, from: u16, is_rtcp: bool) -> bool {
        if !self.is_symmetric {
            return true;
        }
        let party = other_party(stream);
        let port = if is_rtcp {
            self.rtcp_port(party)
        } else {
            self.port(party)
        };
        port == from
    }

    /// Returns the gateway's port for a party's RTCP.
    pub(super) fn rtcp_port(&self, party: usize) -> u16 {
        self.port(party).wrapping_add(self.rtcp_offset.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Party 2, which sends to ports 10,004 and 10,005, receives stream 3.
    #[test]
    fn a_party_sends_to_its_own_port_of_the_gateway() {
        let call = Call {
            first_port: 10_000,
            port_step: 2,
            rtcp_offset: Some(1),
            seconds: 1,
            first_ssrc: 0,
            is_symmetric: true,
            harm: Harm::default(),
        };
        for port in 9_990..10_020 {
            assert_eq!(call.is_from_own_port(3, port, false), port == 10_004);
            assert_eq!(call.is_from_own_port(3, port, true), port == 10_005);
        }
        let elsewhere = Call {
            is_symmetric: false,
            ..call
        };
        assert!(elsewhere.is_from_own_port(3, 1, false));
        // An unknown SSRC must not cause a panic.
        assert!(!call.is_from_own_port(usize::MAX, 1, false));
    }
}
