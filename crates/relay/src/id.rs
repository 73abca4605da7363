//! The names of a call's ports.

use threadbare_rtp::call::Channel;

/// A port of a call, by its role in the call. It does not depend on sockets and port numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortId {
    /// Index of the party in the ports that were passed to [`Engine::create`](crate::Engine::create), less than [`LEGS_MAX`].
    pub leg: u8,
    /// Whether the port is for RTP or RTCP.
    pub kind: PortKind,
}

impl PortId {
    /// Returns the RTP port of a leg.
    #[must_use]
    pub const fn rtp(leg: u8) -> PortId {
        PortId {
            leg,
            kind: PortKind::Rtp,
        }
    }

    /// Returns the RTCP port of a leg.
    #[must_use]
    pub const fn rtcp(leg: u8) -> PortId {
        PortId {
            leg,
            kind: PortKind::Rtcp,
        }
    }

    /// Returns the port's place in a table of [`CALL_PORTS_MAX`] ports.
    pub(crate) const fn place(self) -> Option<usize> {
        if self.leg as usize >= LEGS_MAX {
            return None;
        }
        Some(self.leg as usize * 2 + self.kind as usize)
    }
}

/// What a port is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// RTP, and with rtcp-mux (RFC 5761) also RTCP.
    Rtp = 0,
    /// RTCP on a separate port.
    Rtcp = 1,
}

impl PortKind {
    /// Returns the channel of the port. With mux, the RTP port has both: see [`Channel::carried`].
    pub(crate) const fn channel(self) -> Channel {
        match self {
            PortKind::Rtp => Channel::Rtp,
            PortKind::Rtcp => Channel::Rtcp,
        }
    }
}

/// Maximum number of parties of one call: two that talk, and two that get copies.
pub const LEGS_MAX: usize = 4;

/// Maximum number of ports of one call.
pub(crate) const CALL_PORTS_MAX: usize = 2 * LEGS_MAX;
