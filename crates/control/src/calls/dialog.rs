//! Two parties, and what is agreed on between them.

use std::net::{IpAddr, SocketAddr};

use threadbare_rtp::call::Side;
use threadbare_rtp::srtp::Crypto;

use super::id::StreamId;
use super::options::Options;
use super::ports::{Family, InterfaceName, PortRequest, PortUse};
use super::sdes::{Accepted, Own};
use super::spec::{Copied, StreamKind, StreamSpec};
use super::transport::Transport;
use crate::codec;
use crate::sdp::{Direction, MediaOutline};

/// A SIP tag or branch. Any bytes.
pub(super) type Tag = Box<[u8]>;

/// Two parties of a call: one that offered first, side A, and one that answers.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Dialog<P> {
    pub(super) branch: Option<Tag>,
    pub(super) parties: [Party; 2],
    /// By `m=` line.
    pub(super) slots: Vec<Option<Slot<P>>>,
    /// The last offer. It stays after its answer, as an answer comes more than once: early, final, and from several parties.
    pub(super) offer: Option<Exchange<P>>,
    pub(super) is_answered: bool,
    /// When the last offer came that is not answered yet.
    pub(super) offered_ns: u64,
    /// When the dialog ends as `delete` asked for.
    pub(super) delete_ns: Option<u64>,
    pub(super) tos: Option<u8>,
    /// By `m=` line: what a subscription copies. None of a dialog between two parties.
    pub(super) copies: Vec<Copied>,
    /// Side A sends to whoever subscribes, and nobody is side B.
    pub(super) is_publication: bool,
}

/// One of the parties.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Party {
    /// `None`: not known yet.
    pub(super) tag: Option<Tag>,
    /// Of others that have answered before: a proxy behind has forked.
    pub(super) earlier_tags: Vec<Tag>,
    pub(super) label: Option<String>,
    pub(super) created_ns: u64,
    pub(super) place: Place,
    pub(super) origin: Origin,
    pub(super) mutes: Mutes,
}

/// A side's interface and family.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Place {
    pub(super) interface: InterfaceName,
    pub(super) family: Family,
}

/// What commands have taken from a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Mutes {
    pub(super) is_blocked: bool,
    pub(super) is_silenced: bool,
    pub(super) blocks_keys: bool,
}

/// What the descriptions that a party gets have in common.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Origin {
    /// The first one's `o=`.
    pub(super) line: Option<String>,
    pub(super) username: Option<String>,
    pub(super) session_name: Option<String>,
    pub(super) address: Option<IpAddr>,
    /// The version sent last, and a digest of the rest of that description.
    pub(super) version: Option<(u64, u64)>,
}

/// The ports for one `m=` line.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Slot<P> {
    pub(super) stream: StreamId,
    pub(super) kind: StreamKind,
    /// Such as `audio`.
    pub(super) media: String,
    pub(super) local: [Local; 2],
    /// Until the stream begins.
    #[serde(skip)]
    pub(super) ports: Option<[P; 2]>,
    /// Of the stream, once it has begun.
    #[serde(with = "crate::mirror")]
    pub(super) running: Option<Box<StreamSpec>>,
}

impl<P> Slot<P> {
    /// Whether the stream can be carried by these ports.
    pub(super) fn fits(&self, kind: StreamKind, wanted: &[PortRequest; 2]) -> bool {
        let one = |(local, wanted): (&Local, &PortRequest)| {
            let has = &local.request;
            has.interface == wanted.interface
                && has.family == wanted.family
                && (has.port_use == wanted.port_use || has.port_use == PortUse::Pair)
        };
        self.kind == kind && self.local.iter().zip(wanted).all(one)
    }
}

/// What a party is told of its ports.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Local {
    pub(super) request: PortRequest,
    pub(super) rtp: SocketAddr,
    pub(super) rtcp: Option<SocketAddr>,
}

/// An offer, and what its answer needs of it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Exchange<P> {
    #[serde(with = "crate::mirror")]
    pub(super) author: Side,
    pub(super) branch: Option<Tag>,
    pub(super) options: Options,
    pub(super) media: Vec<Offered>,
    /// By `m=` line: ports that take the place of the slot's when the answer comes.
    pub(super) fresh: Vec<Option<Slot<P>>>,
    /// Of side A and side B, from the answer on.
    pub(super) places: [Place; 2],
    pub(super) is_answered: bool,
}

/// An `m=` line of an offer.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Offered {
    /// As the author wrote it.
    pub(super) outline: MediaOutline,
    pub(super) remote: Remote,
    pub(super) plan: Plan,
}

/// What is done with it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) enum Plan {
    /// By its author, or because it is not carried.
    Rejected,
    /// Datagrams.
    Packets,
    /// Audio.
    Audio(Box<AudioOffer>),
}

/// An offer of audio.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct AudioOffer {
    pub(super) codecs: codec::Offer,
    /// Of the author, and of what went out.
    pub(super) transports: [Transport; 2],
    pub(super) accepted: Option<Accepted>,
    pub(super) own: Vec<Own>,
    /// Towards the author, and offered to the other side.
    pub(super) mux: [bool; 2],
    /// The other side is not asked.
    pub(super) requires_mux: bool,
    /// Milliseconds of audio in packets to the author, and to the other side; `None`: not by request.
    pub(super) ptimes_ms: [Option<u32>; 2],
}

/// What a description says of where its author is.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Remote {
    pub(super) rtp: Option<SocketAddr>,
    /// The separate address of RTCP, also if `has_mux`: the other side may refuse to multiplex.
    pub(super) rtcp: Option<SocketAddr>,
    /// Without an address of hold.
    pub(super) direction: Direction,
    /// The old way to hold: the address of all zeros.
    pub(super) is_zero: bool,
    pub(super) has_mux: bool,
    pub(super) ptime_ms: Option<u32>,
    /// The highest bit rate of Opus that it takes.
    pub(super) opus_bps_max: Option<u32>,
    #[serde(with = "crate::mirror")]
    pub(super) cryptos: Vec<Crypto>,
}

impl Remote {
    pub(super) fn may_send(&self) -> bool {
        self.direction.sends()
    }

    pub(super) fn may_receive(&self) -> bool {
        self.direction.receives() && !self.is_zero
    }
}

impl Party {
    pub(super) fn has_tag(&self, tag: &[u8]) -> bool {
        let earlier = self.earlier_tags.iter().any(|one| **one == *tag);
        self.tag.as_deref() == Some(tag) || earlier
    }

    /// The party that answered has this tag; one that answered before had another.
    pub(super) fn set_tag(&mut self, tag: &[u8]) {
        if self.tag.as_deref() == Some(tag) {
            return;
        }
        self.earlier_tags.retain(|one| **one != *tag);
        if let Some(earlier) = self.tag.replace(tag.into()) {
            if self.earlier_tags.len() >= EARLIER_TAGS_MAX {
                self.earlier_tags.remove(0);
            }
            self.earlier_tags.push(earlier);
        }
    }
}

/// Parties that have answered one offer: proxies ring some five phones at once.
const EARLIER_TAGS_MAX: usize = 16;

impl<P> Dialog<P> {
    pub(super) fn move_to(&mut self, places: &[Place; 2]) {
        for (party, place) in self.parties.iter_mut().zip(places) {
            party.place.clone_from(place);
        }
    }

    pub(super) fn party(&self, side: Side) -> &Party {
        &self.parties[side as usize]
    }

    pub(super) fn has_branch(&self, branch: &[u8]) -> bool {
        let of_offer = self
            .offer
            .as_ref()
            .and_then(|offer| offer.branch.as_deref());
        self.branch.as_deref() == Some(branch) || of_offer == Some(branch)
    }

    /// Whether none of its offers had a branch.
    pub(super) fn is_without_branch(&self) -> bool {
        let of_offer = self.offer.as_ref().and_then(|offer| offer.branch.as_ref());
        self.branch.is_none() && of_offer.is_none()
    }

    /// The side of `from` if these are the tags of the two.
    pub(super) fn side_of_both(&self, from: &[u8], to: &[u8]) -> Option<Side> {
        let is_it =
            |side: &Side| self.party(*side).has_tag(from) && self.party(side.other()).has_tag(to);
        Side::BOTH.into_iter().find(is_it)
    }

    /// Where a party has said that it receives media.
    pub(super) fn remote_ips(&self, side: Side) -> impl Iterator<Item = IpAddr> {
        let offer = self.offer.iter().filter(move |offer| offer.author == side);
        let offered = offer
            .flat_map(|offer| &offer.media)
            .filter_map(|one| one.remote.rtp);
        let specs = self
            .slots
            .iter()
            .flatten()
            .filter_map(|slot| slot.running.as_deref());
        let running = specs.filter_map(move |spec| spec.sides[side as usize].rtp);
        offered.chain(running).map(|address| address.ip())
    }

    /// Streams that have begun.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Slot<P>> {
        self.slots
            .iter()
            .flatten()
            .filter(|slot| slot.running.is_some())
    }
}

impl Offered {
    /// The protocol of a side.
    pub(super) fn protocol_of<P>(&self, side: Side, dialog: &Dialog<P>) -> String {
        let author = dialog.offer.as_ref().map(|offer| offer.author);
        match &self.plan {
            Plan::Audio(audio) if author != Some(side) => audio.transports[1].name().to_owned(),
            _ => self.outline.protocol.clone(),
        }
    }
}
