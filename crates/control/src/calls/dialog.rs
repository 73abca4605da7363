//! A dialog: two parties of a call, and what they have agreed on.

use std::net::{IpAddr, SocketAddr};

use threadbare_rtp_types::side::Side;
use threadbare_rtp_types::srtp::Crypto;

use super::id::StreamId;
use super::names::Tags;
use super::options::Options;
use super::ports::{Family, InterfaceName, PortRequest, PortUse};
use super::record::EndReason;
use super::sdes::{Accepted, Own};
use super::settings::Timeouts;
use super::spec::{Copied, Fallback, StreamKind, StreamSpec};
use super::transport::Transport;
use crate::codec;
use crate::sdp::{Direction, MediaOutline};

/// A SIP tag or branch, which may be any bytes.
pub(super) type Tag = Box<[u8]>;

/// Two parties of a call: side A offered first, and side B answers.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Dialog<P> {
    #[serde(with = "crate::mirror")]
    pub(super) branch: Option<Tag>,
    pub(super) parties: [Party; 2],
    /// One entry per `m=` line.
    #[serde(rename = "media")]
    pub(super) slots: Vec<Option<Slot<P>>>,
    /// The last offer. It is kept after its answer, because more answers may come: early ones, a final one, and those of other parties.
    pub(super) offer: Option<Exchange<P>>,
    pub(super) is_answered: bool,
    /// Time of the last unanswered offer.
    pub(super) offered_ns: u64,
    /// Time at which the dialog ends because of a `delete` with a delay.
    #[serde(rename = "delete_at_ns")]
    pub(super) delete_ns: Option<u64>,
    pub(super) tos: Option<u8>,
    /// `media-echo`: whether side A and side B each hear their own media. In that case neither hears the other party. `None`: the parties
    /// hear each other.
    #[serde(rename = "hears_itself")]
    pub(super) echo: Option<[bool; 2]>,
    /// The streams that a subscription copies, one entry per `m=` line. It is empty in a dialog between two parties.
    #[serde(rename = "copied_streams")]
    pub(super) copies: Vec<Copied>,
    /// Whether the dialog is a publication: side A sends media to its subscribers, and side B is absent.
    pub(super) is_publication: bool,
    /// The sound that a party hears while the other party sends nothing.
    #[serde(default)]
    pub(super) fallback: Fallback,
}

/// One of the parties.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Party {
    /// The party's tag. `None`: still unknown.
    #[serde(with = "crate::mirror")]
    pub(super) tag: Option<Tag>,
    /// Tags of parties that answered the same offer before. This happens if a later proxy forked the call.
    #[serde(with = "crate::mirror")]
    pub(super) earlier_tags: Vec<Tag>,
    pub(super) label: Option<String>,
    pub(super) created_ns: u64,
    pub(super) place: Place,
    pub(super) origin: Origin,
    pub(super) mutes: Mutes,
}

/// The interface and address family that a side uses.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Place {
    pub(super) interface: InterfaceName,
    pub(super) family: Family,
}

/// The mutes of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Mutes {
    pub(super) is_blocked: bool,
    pub(super) is_silenced: bool,
    #[serde(rename = "blocks_dtmf")]
    pub(super) blocks_keys: bool,
}

/// The parts that all descriptions to a party have in common.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Origin {
    /// The `o=` line of the first description.
    #[serde(rename = "origin_line")]
    pub(super) line: Option<String>,
    pub(super) username: Option<String>,
    pub(super) session_name: Option<String>,
    pub(super) address: Option<IpAddr>,
    #[serde(rename = "sent_version")]
    pub(super) version: Option<SentVersion>,
}

/// The version that the last description to a party had in its `o=` line.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(super) struct SentVersion {
    pub(super) number: u64,
    /// Digest of the rest of the last description.
    pub(super) digest: u64,
}

/// The ports for one `m=` line.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Slot<P> {
    pub(super) stream: StreamId,
    pub(super) kind: StreamKind,
    /// The kind of media, for example `audio`.
    pub(super) media: String,
    #[serde(rename = "local_addresses")]
    pub(super) local: [Local; 2],
    /// The open ports. When the stream starts, its `Create` action takes them.
    #[serde(skip)]
    pub(super) ports: Option<[P; 2]>,
    /// The specification of the stream, after it has started.
    #[serde(rename = "spec", with = "crate::mirror")]
    pub(super) running: Option<Box<StreamSpec>>,
}

impl<P> Slot<P> {
    /// Whether these ports can carry a stream of this kind on the wanted ports.
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

/// The addresses that are advertised to a party for its ports.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Local {
    #[serde(rename = "port_request")]
    pub(super) request: PortRequest,
    pub(super) rtp: SocketAddr,
    pub(super) rtcp: Option<SocketAddr>,
}

/// An offer, and all that its answer needs.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Exchange<P> {
    #[serde(with = "crate::mirror::SideName")]
    pub(super) author: Side,
    #[serde(with = "crate::mirror")]
    pub(super) branch: Option<Tag>,
    pub(super) options: Options,
    pub(super) media: Vec<Offered>,
    /// Ports that replace those of the slot when the answer comes, one entry per `m=` line.
    #[serde(rename = "new_media")]
    pub(super) fresh: Vec<Option<Slot<P>>>,
    /// The interfaces and families of side A and side B after the answer.
    pub(super) places: [Place; 2],
    pub(super) is_answered: bool,
}

/// An `m=` line of an offer.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Offered {
    /// The line as its author wrote it.
    #[serde(rename = "line")]
    pub(super) outline: MediaOutline,
    /// Whether the author gave the line a name (`a=mid`, RFC 5888).
    pub(super) has_mid: bool,
    pub(super) remote: Remote,
    pub(super) plan: Plan,
}

/// How the relay handles an `m=` line.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) enum Plan {
    /// Rejected by its author, or not supported.
    Rejected,
    /// The parties connect to each other by TCP: the line is forwarded unchanged.
    Direct,
    /// Relayed as datagrams.
    Packets,
    /// Relayed as audio.
    Audio(Box<AudioOffer>),
}

/// An offer of audio.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct AudioOffer {
    pub(super) codecs: codec::Offer,
    /// The transport that the author uses, and the one that is offered to the other side.
    pub(super) transports: [Transport; 2],
    #[serde(rename = "accepted_key")]
    pub(super) accepted: Option<Accepted>,
    #[serde(rename = "offered_keys")]
    pub(super) own: Vec<Own>,
    /// Whether RTP and RTCP share a port: as the author described it, and as offered to the other side.
    #[serde(rename = "rtcp_mux")]
    pub(super) mux: [bool; 2],
    /// Whether the other side must let RTP and RTCP share a port.
    #[serde(rename = "requires_rtcp_mux")]
    pub(super) requires_mux: bool,
    /// Requested packet times, for packets to the author and to the other side, ms. `None`: the request sets none.
    #[serde(rename = "packet_times_ms")]
    pub(super) ptimes_ms: [Option<u32>; 2],
}

/// A party's addresses and settings from its description.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Remote {
    pub(super) rtp: Option<SocketAddr>,
    /// The separate address for RTCP. It is set even if `has_mux` is, because the other side may refuse to multiplex.
    pub(super) rtcp: Option<SocketAddr>,
    /// The family of the described address, even if that is a hold address. `None`: the description has a host name.
    pub(super) family: Option<Family>,
    /// The direction, regardless of a hold address.
    pub(super) direction: Direction,
    /// Whether the address is all zeros, which is the old form of hold.
    #[serde(rename = "has_zero_address")]
    pub(super) is_zero: bool,
    #[serde(rename = "has_rtcp_mux")]
    pub(super) has_mux: bool,
    #[serde(rename = "packet_time_ms")]
    pub(super) ptime_ms: Option<u32>,
    /// The highest bit rate of Opus that the party accepts.
    #[serde(rename = "opus_bitrate_bps_max")]
    pub(super) opus_bps_max: Option<u32>,
    #[serde(rename = "keys", with = "crate::mirror")]
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

    /// Sets the tag of the party that answered. If an earlier party had another tag, that tag is kept too.
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

/// Limit of earlier tags of one dialog. Proxies ring about five phones at once.
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

    /// Whether none of the dialog's offers had a branch.
    pub(super) fn is_without_branch(&self) -> bool {
        let of_offer = self.offer.as_ref().and_then(|offer| offer.branch.as_ref());
        self.branch.is_none() && of_offer.is_none()
    }

    /// Returns the side whose tag is `from`, if `to` is the tag of the other side.
    pub(super) fn side_of_both(&self, from: &[u8], to: &[u8]) -> Option<Side> {
        let is_it =
            |side: &Side| self.party(*side).has_tag(from) && self.party(side.other()).has_tag(to);
        Side::BOTH.into_iter().find(is_it)
    }

    /// Returns the addresses at which a party receives media, from its descriptions.
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

    /// Returns the streams that have started.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Slot<P>> {
        self.slots
            .iter()
            .flatten()
            .filter(|slot| slot.running.is_some())
    }

    /// Ends the dialog at that time. A second request does not postpone it.
    pub(super) fn delete_at(&mut self, due_ns: u64) {
        let due_ns = self.delete_ns.map_or(due_ns, |before| before.min(due_ns));
        self.delete_ns = Some(due_ns);
    }

    /// Returns the first offer, if it has no answer and no stream has started.
    pub(super) fn unanswered(&self) -> Option<&Exchange<P>> {
        let offer = self.offer.as_ref()?;
        let is_new = !self.is_answered && self.streams().next().is_none();
        is_new.then_some(offer)
    }

    /// Returns the ports of an `m=` line's stream after the next answer.
    pub(super) fn slot_to_be(&self, index: usize) -> Option<&Slot<P>> {
        let offer = self.offer.as_ref();
        let fresh = offer.and_then(|offer| offer.fresh.get(index)?.as_ref());
        fresh.or_else(|| self.slots.get(index)?.as_ref())
    }

    /// Returns all slots: those of streams, and those of the last offer.
    pub(super) fn all_slots(&self) -> impl Iterator<Item = &Slot<P>> {
        let fresh = self.offer.iter().flat_map(|offer| &offer.fresh);
        self.slots.iter().chain(fresh).flatten()
    }

    pub(super) fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let locals = self.all_slots().flat_map(|slot| &slot.local);
        locals
            .flat_map(|local| [Some(local.rtp), local.rtcp])
            .flatten()
    }

    /// Creates a dialog.
    pub(super) fn begun(now_ns: u64, tags: &Tags<'_>, places: [Place; 2]) -> Dialog<P> {
        let party = |tag: Option<&[u8]>, place: Place| Party {
            tag: tag.map(Into::into),
            earlier_tags: Vec::new(),
            label: None,
            created_ns: now_ns,
            place,
            origin: Origin::default(),
            mutes: Mutes::default(),
        };
        let [a, b] = places;
        Dialog {
            branch: tags.branch.map(Into::into),
            parties: [party(Some(tags.from), a), party(tags.to, b)],
            slots: Vec::new(),
            offer: None,
            is_answered: false,
            offered_ns: now_ns,
            delete_ns: None,
            tos: None,
            copies: Vec::new(),
            echo: None,
            is_publication: false,
            fallback: Fallback::Default,
        }
    }

    /// Applies the options outside the SDP, from an offer or answer by `author`.
    pub(super) fn note(&mut self, author: Side, options: &Options) {
        // A party that still signals cancels a delayed `delete`.
        self.delete_ns = None;
        self.tos = options.tos.after(self.tos);
        self.echo = options.echo.map(|way| way.sides(author)).or(self.echo);
        if let Some(fallback) = &options.fallback {
            self.fallback = fallback.clone();
        }
        let party = &mut self.parties[author as usize];
        if let Some(label) = &options.label {
            party.label = Some(label.clone());
        }
        if let Some(blocks) = options.blocks_keys {
            party.mutes.blocks_keys = blocks;
        }
    }

    /// Whether the dialog is a subscription, which copies media.
    pub(super) fn is_copy(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Completes the specification of the stream of an `m=` line, if that is a copy or a publication.
    pub(super) fn finish_spec(&self, index: usize, spec: &mut StreamSpec) {
        if let Some(copied) = self.copies.get(index) {
            spec.copies = Some(*copied);
            spec.sides[0].forget_party();
        }
        if self.is_publication {
            spec.sides[1].forget_party();
        }
    }

    /// Returns the time at which the dialog ends by a time-out, and the reason.
    pub(super) fn end(&self, timeouts: &Timeouts) -> Option<(u64, EndReason)> {
        let deleted = self.delete_ns.map(|due_ns| (due_ns, EndReason::Deleted));
        let offer_ns = timeouts.offer_ns.filter(|_| !self.is_answered);
        let unanswered =
            offer_ns.map(|ns| (self.offered_ns.saturating_add(ns), EndReason::OfferTimeout));
        deleted
            .into_iter()
            .chain(unanswered)
            .min_by_key(|(due_ns, _)| *due_ns)
    }
}

impl Offered {
    /// Returns the transport protocol of a side.
    pub(super) fn protocol_of<P>(&self, side: Side, dialog: &Dialog<P>) -> String {
        let author = dialog.offer.as_ref().map(|offer| offer.author);
        match &self.plan {
            Plan::Audio(audio) if author != Some(side) => audio.transports[1].name().to_owned(),
            _ => self.outline.protocol.clone(),
        }
    }
}
