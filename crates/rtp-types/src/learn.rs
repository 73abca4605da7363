//! Rules for learning a party's address.

/// How a leg learns the address of its peer (symmetric RTP, RFC 4961). The module `leg` of `threadbare-rtp` documents the exact
/// rules in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learn {
    /// No address is learned: only the signalled address counts.
    Never,
    /// One address is learned, unless packets come from the signalled address. The learned address changes with a new offer or
    /// answer, with the port of a NAT, or with authenticated packets.
    Once(Once),
    /// Acts as [`Once`](Learn::Once), and also accepts another host when the present one has been silent for this long. This is
    /// for media servers that take over, and for sources that are restarted elsewhere.
    Follow {
        /// The required silence, ms.
        silence_ms: u32,
    },
    /// Packets from any address are accepted, but the signalled address has priority. The peer is the sender with the current
    /// SSRC. When that sender is overdue, another SSRC may take its place. This is for groups, and for closed networks. Nothing
    /// is sent to an address that is learned in this way.
    Anyone,
}

/// Settings of [`Learn::Once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Once {
    /// Method of choosing the address.
    pub method: Method,
    /// Time after which the address is fixed, in ms, counted from the first packet of the party. `None`: the address is never
    /// fixed, because a NAT may change the port at any time.
    pub fixed_ms: Option<u32>,
}

/// Choice of an address that was not signalled: rtpengine's `endpoint-learning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Accepts an address with its second packet.
    Immediate,
    /// Accepts an address with its fifth packet. If this address falls silent within three seconds, another one may replace it.
    Delayed,
    /// Accepts an address with its fifth packet. Within three seconds, an address that is more similar to the signalled address
    /// may replace it.
    #[default]
    Heuristic,
}

impl Learn {
    /// For streams without signalling: another host is accepted after three seconds of silence.
    pub const FOLLOW: Learn = Learn::Follow {
        silence_ms: OTHER_HOST_SILENCE_MS,
    };
}

/// Silence after which another host counts as the source of a stream without signalling.
const OTHER_HOST_SILENCE_MS: u32 = 3_000;
