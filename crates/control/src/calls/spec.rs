//! Specification of a stream for the media plane. A stream is one `m=` line between two parties.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use threadbare_rtp_types::learn::Learn;
use threadbare_rtp_types::payload_map::PayloadMap;
use threadbare_rtp_types::side::Side;
use threadbare_rtp_types::srtp::MasterKey;

use super::id::StreamId;
use crate::mirror::Mirror;
use crate::saved::SavedKey;

/// The specification of a stream. After each change, the media plane gets it as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSpec {
    /// How deeply the relay parses the packets.
    pub kind: StreamKind,
    /// The parties. [`Side::A`](threadbare_rtp_types::side::Side::A), whose offer began the dialog, comes first.
    pub sides: [SideSpec; 2],
    /// The type-of-service field in the IP header of packets to either party, 0 to 255. `None`: the default.
    pub tos: Option<u8>,
    /// Whether each party hears itself instead of the other party. If its media are dropped, it hears nothing.
    pub echoes: bool,
    /// The stream that side A copies. `Some` means that side A is not a party.
    pub copies: Option<Copied>,
    /// The sound that a party hears while the other party sends nothing.
    pub fallback: Fallback,
}

/// The sound that a party hears while the other party sends nothing: the key `fallback`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Fallback {
    /// That of the configuration, if there is one.
    #[default]
    Default,
    /// No sound.
    Off,
    /// The audio file of this name, again and again.
    File(Arc<str>),
}

/// The original of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// The original stream.
    pub stream: StreamId,
    /// The side of the original stream whose media are copied.
    #[serde(with = "crate::mirror::SideName")]
    pub side: Side,
}

/// How deeply the packets of a stream are parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StreamKind {
    /// RTP audio: a `Call` of two legs (`threadbare-rtp`).
    Audio,
    /// Datagrams of other media, relayed unchanged. They have no payload maps, keys or packet times.
    Packets,
}

/// One party of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct SideSpec {
    /// The address at which the party receives RTP, from its description. `None`: there is none, or it is unknown.
    pub rtp: Option<SocketAddr>,
    /// The address at which the party receives RTCP, from its description. With [`mux`](Self::mux), it is that of RTP.
    pub rtcp: Option<SocketAddr>,
    /// Whether the party's packets may come from another address. With [`Learn::Anyone`], packets from any address are accepted, and the
    /// party gets packets at its described address.
    pub learn: Learn,
    /// Whether RTP and RTCP share a port (RFC 5761), on both ends.
    pub mux: bool,
    /// Whether RTCP feedback is allowed (RFC 4585), because the party's profile is AVPF or SAVPF.
    pub has_feedback: bool,
    /// The SRTP keys. `None`: the party uses plain RTP.
    pub srtp: Option<SrtpKeys>,
    /// The codec of the audio that is sent to the party, as in `rtpmap`, for display. A codec that is only forwarded has its name only
    /// here.
    pub codec: Option<Arc<str>>,
    /// The payload types that the party may send.
    pub sends: Option<Arc<PayloadMap>>,
    /// The payload types that the party accepts, the preferred one first.
    pub takes: Option<Arc<PayloadMap>>,
    /// Duration of the audio in a packet to this party, ms. `None`: as in the other party's packets.
    pub packet_ms: Option<u32>,
    /// Bit rate of the encoder for this party, bits per second. `None`: the encoder's choice.
    pub bitrate_bps: Option<u32>,
    /// Highest bit rate of Opus that the party accepts, bits per second.
    pub bitrate_bps_max: Option<u32>,
    /// Whether DTMF tones in this party's audio become telephone events for the other party.
    pub detects_keys: bool,
    /// Whether this party's audio is decoded and encoded again even if the other party accepts its codec.
    pub makes_anew: bool,
    /// Whether the party sends media, by its description. Otherwise nothing is forwarded from it.
    pub may_send: bool,
    /// Whether the party receives media, by its description. Otherwise nothing is sent to it.
    pub may_receive: bool,
    /// Whether nothing is sent to the party before its first packet arrives.
    pub waits_for_nat: bool,
    /// Whether the party's media are dropped. Its telephone events are still forwarded.
    pub is_blocked: bool,
    /// Whether the other party hears silence instead of this party's audio.
    pub is_silenced: bool,
    /// Whether the party's telephone events are dropped.
    pub blocks_keys: bool,
}

impl SideSpec {
    /// Creates the specification of an unknown party, with no address and no codec.
    #[must_use]
    pub fn unknown(learn: Learn) -> SideSpec {
        SideSpec {
            rtp: None,
            rtcp: None,
            learn,
            mux: false,
            has_feedback: false,
            srtp: None,
            codec: None,
            sends: None,
            takes: None,
            packet_ms: None,
            bitrate_bps: None,
            bitrate_bps_max: None,
            detects_keys: false,
            makes_anew: false,
            may_send: true,
            may_receive: true,
            waits_for_nat: false,
            is_blocked: false,
            is_silenced: false,
            blocks_keys: false,
        }
    }
}

impl SideSpec {
    /// Whether there is such a party. Before the answer, a stream has one party, and a copy has only its receiver.
    #[must_use]
    pub fn has_party(&self) -> bool {
        self.rtp.is_some() || self.learn != Learn::Never
    }

    /// Removes the party, so that nothing is sent to it or accepted from it.
    pub(super) fn forget_party(&mut self) {
        self.rtp = None;
        self.rtcp = None;
        self.learn = Learn::Never;
        self.waits_for_nat = false;
    }
}

/// The SRTP keys for a party. Their debug output hides the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrtpKeys {
    /// The key of packets from the party.
    pub receive: MasterKey,
    /// The key of packets to the party.
    pub send: MasterKey,
}

/// The saved form of a specification. It is separate from the public type, so that keys cannot be serialised through the public API.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedSpec(#[serde(with = "SpecFields")] StreamSpec);

#[derive(Serialize, Deserialize)]
#[serde(remote = "StreamSpec")]
struct SpecFields {
    kind: StreamKind,
    #[serde(with = "crate::mirror")]
    sides: [SideSpec; 2],
    tos: Option<u8>,
    echoes: bool,
    #[serde(rename = "copied_stream")]
    copies: Option<Copied>,
    #[serde(default)]
    fallback: Fallback,
}

impl Mirror for StreamSpec {
    type Saved = SavedSpec;

    fn save(&self) -> SavedSpec {
        SavedSpec(self.clone())
    }

    fn load(saved: SavedSpec) -> Result<StreamSpec, &'static str> {
        Ok(saved.0)
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SavedSide(#[serde(with = "SideFields")] SideSpec);

#[derive(Serialize, Deserialize)]
#[serde(remote = "SideSpec")]
struct SideFields {
    rtp: Option<SocketAddr>,
    rtcp: Option<SocketAddr>,
    #[serde(with = "crate::mirror::LearnRule")]
    learn: Learn,
    #[serde(rename = "rtcp_mux")]
    mux: bool,
    #[serde(rename = "has_rtcp_feedback")]
    has_feedback: bool,
    #[serde(with = "crate::mirror")]
    srtp: Option<SrtpKeys>,
    codec: Option<Arc<str>>,
    #[serde(rename = "sent_payloads", with = "crate::mirror")]
    sends: Option<Arc<PayloadMap>>,
    #[serde(rename = "accepted_payloads", with = "crate::mirror")]
    takes: Option<Arc<PayloadMap>>,
    #[serde(rename = "packet_time_ms")]
    packet_ms: Option<u32>,
    bitrate_bps: Option<u32>,
    bitrate_bps_max: Option<u32>,
    #[serde(rename = "detects_dtmf")]
    detects_keys: bool,
    #[serde(rename = "reencodes")]
    makes_anew: bool,
    may_send: bool,
    may_receive: bool,
    waits_for_nat: bool,
    is_blocked: bool,
    is_silenced: bool,
    #[serde(rename = "blocks_dtmf")]
    blocks_keys: bool,
}

impl Mirror for SideSpec {
    type Saved = SavedSide;

    fn save(&self) -> SavedSide {
        SavedSide(self.clone())
    }

    fn load(saved: SavedSide) -> Result<SideSpec, &'static str> {
        Ok(saved.0)
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SavedKeys {
    receive: SavedKey,
    send: SavedKey,
}

impl Mirror for SrtpKeys {
    type Saved = SavedKeys;

    fn save(&self) -> SavedKeys {
        SavedKeys {
            receive: self.receive.save(),
            send: self.send.save(),
        }
    }

    fn load(saved: SavedKeys) -> Result<SrtpKeys, &'static str> {
        Ok(SrtpKeys {
            receive: saved.receive.try_into()?,
            send: saved.send.try_into()?,
        })
    }
}
