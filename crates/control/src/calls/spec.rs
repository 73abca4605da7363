//! What the media plane is to do with a stream: one `m=` line between two parties.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use threadbare_rtp::call::Side;
use threadbare_rtp::leg::{Learn, PayloadMap};
use threadbare_rtp::srtp::MasterKey;

use super::id::StreamId;
use crate::mirror::Mirror;

/// All that the media plane needs to know of a stream. It is told anew, whole, when anything changes.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSpec {
    /// How much of the packets is understood.
    pub kind: StreamKind,
    /// The parties, [`Side::A`](threadbare_rtp::call::Side::A) first: the one whose offer began the dialog.
    pub sides: [SideSpec; 2],
    /// The IP header's field of what is sent to either party, 0 to 255; `None`: the usual one.
    pub tos: Option<u8>,
    /// Side A is no party: what it sends is a copy of what another stream's side sends.
    pub copies: Option<Copied>,
}

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Of this stream.
    pub stream: StreamId,
    /// What this side sends.
    #[serde(with = "crate::mirror")]
    pub side: Side,
}

/// How much of a stream's packets is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StreamKind {
    /// RTP audio: a [`Call`](threadbare_rtp::call::Call) of two legs.
    Audio,
    /// Datagrams of other media, relayed as they are. Payload maps, keys and packet times are not there.
    Packets,
}

/// One party of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct SideSpec {
    /// Where it says that it receives RTP; `None`: nowhere, or not known.
    pub rtp: Option<SocketAddr>,
    /// Where it says that it receives RTCP; with [`mux`](Self::mux), the same.
    pub rtcp: Option<SocketAddr>,
    /// Whether its packets may come from elsewhere. With [`Learn::Anyone`], its packets are taken from wherever they come, and are sent to
    /// where it says.
    pub learn: Learn,
    /// RTP and RTCP share a port (RFC 5761), here and there.
    pub mux: bool,
    /// RTCP feedback is allowed (RFC 4585): its profile is AVPF or SAVPF.
    pub has_feedback: bool,
    /// SRTP; `None`: plain RTP.
    pub srtp: Option<SrtpKeys>,
    /// The audio that it is sent, as in `rtpmap`: for people. Codecs that are only passed on have no name elsewhere.
    pub codec: Option<Arc<str>>,
    /// The payload types that it may send.
    pub sends: Option<Arc<PayloadMap>>,
    /// The payload types that it takes, the one to send first.
    pub takes: Option<Arc<PayloadMap>>,
    /// Audio in a packet to this party, ms; `None`: as the other party sends it.
    pub packet_ms: Option<u32>,
    /// Of an encoder for this party, bits per second; `None`: the encoder's choice.
    pub bitrate_bps: Option<u32>,
    /// The party takes no more than this of Opus, bits per second.
    pub bitrate_bps_max: Option<u32>,
    /// Keys in the audio that this party sends become telephone events for the other one.
    pub detects_keys: bool,
    /// What this party sends is decoded and encoded even where the other one takes the same codec.
    pub makes_anew: bool,
    /// By its description, it sends media. Nothing passes to the other party otherwise.
    pub may_send: bool,
    /// By its description, it receives media. Nothing is sent to it otherwise.
    pub may_receive: bool,
    /// Nothing is sent to it before a packet has come from it.
    pub waits_for_nat: bool,
    /// Its media are dropped. Its telephone events pass.
    pub is_blocked: bool,
    /// The other party hears silence instead of its audio.
    pub is_silenced: bool,
    /// Its telephone events are dropped.
    pub blocks_keys: bool,
}

impl SideSpec {
    /// A party that nothing is known of.
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
    /// No party is there: nothing is sent to it or taken from it.
    pub(super) fn forget_party(&mut self) {
        self.rtp = None;
        self.rtcp = None;
        self.learn = Learn::Never;
        self.waits_for_nat = false;
    }
}

/// The keys of SRTP with a party. Their debug output has no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrtpKeys {
    /// Of what it sends.
    pub receive: MasterKey,
    /// Of what is sent to it.
    pub send: MasterKey,
}

/// As it is saved: beside the public type, so that keys have no public serialisation.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedSpec(#[serde(with = "SpecFields")] StreamSpec);

#[derive(Serialize, Deserialize)]
#[serde(remote = "StreamSpec")]
struct SpecFields {
    kind: StreamKind,
    #[serde(with = "crate::mirror")]
    sides: [SideSpec; 2],
    tos: Option<u8>,
    copies: Option<Copied>,
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
    #[serde(with = "crate::mirror")]
    learn: Learn,
    mux: bool,
    has_feedback: bool,
    #[serde(with = "crate::mirror")]
    srtp: Option<SrtpKeys>,
    codec: Option<Arc<str>>,
    #[serde(with = "crate::mirror")]
    sends: Option<Arc<PayloadMap>>,
    #[serde(with = "crate::mirror")]
    takes: Option<Arc<PayloadMap>>,
    packet_ms: Option<u32>,
    bitrate_bps: Option<u32>,
    bitrate_bps_max: Option<u32>,
    detects_keys: bool,
    makes_anew: bool,
    may_send: bool,
    may_receive: bool,
    waits_for_nat: bool,
    is_blocked: bool,
    is_silenced: bool,
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

impl Mirror for SrtpKeys {
    type Saved = [<MasterKey as Mirror>::Saved; 2];

    fn save(&self) -> Self::Saved {
        [self.receive.save(), self.send.save()]
    }

    fn load([receive, send]: Self::Saved) -> Result<SrtpKeys, &'static str> {
        Ok(SrtpKeys {
            receive: MasterKey::load(receive)?,
            send: MasterKey::load(send)?,
        })
    }
}
