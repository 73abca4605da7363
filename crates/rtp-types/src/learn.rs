//! Rules for learning a party's address.

/// How a leg learns the address of its peer (symmetric RTP, RFC 4961). The module `leg` of `threadbare-rtp` documents the exact
/// rules in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learn {
    /// Never: only the signalled address counts.
    Never,
    /// One address is learned unless the signalled address sends. It changes with a new offer or answer, with the port of a NAT,
    /// or by authenticated packets.
    Once(Once),
    /// Like [`Once`](Learn::Once). In addition, another host is accepted when the present one has been silent for this long.
    /// This is for media servers that take over, and for sources that are restarted elsewhere.
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
    /// Time after which the address is fixed, counted from the first packet of the party, ms; `None`: a NAT may move its port at
    /// any time.
    pub fixed_ms: Option<u32>,
}

/// Choice of an address that was not signalled: rtpengine's `endpoint-learning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Accepts an address with its second packet.
    Immediate,
    /// Accepts an address with its fifth packet. Another one may follow within three seconds, when the first one falls silent.
    Delayed,
    /// Accepts an address with its fifth packet. One that is more similar to the signalled address may follow within three
    /// seconds.
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
