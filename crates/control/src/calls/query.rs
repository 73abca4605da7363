//! The report of a call in the replies to `query` and `delete`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use threadbare_base::NS_PER_S;

use threadbare_rtp_types::side::Side;

use super::Outcome;
use super::action::{Counts, Quality, SideStats, SourceStats, StreamStats};
use super::dialog::{Dialog, Party, Slot};
use super::id::StreamId;
use super::live::Live;
use super::ports::PortUse;
use super::spec::StreamKind;
use crate::ng::{Dictionary, Reply, Value};

/// A reply that waits for the counters of streams.
#[derive(Debug)]
#[must_use = "each request gets one reply"]
pub struct Pending {
    streams: Vec<StreamId>,
    created_ns: u64,
    signalled_ns: u64,
    parties: Vec<PartyReport>,
    unix_at_zero_ns: u64,
}

/// A party, with its side of each stream.
#[derive(Debug)]
struct PartyReport {
    tag: Vec<u8>,
    partner: Option<Vec<u8>>,
    label: Option<String>,
    created_ns: u64,
    media: Vec<MediaReport>,
}

#[derive(Debug)]
struct MediaReport {
    index: usize,
    kind: String,
    protocol: Option<String>,
    flags: Vec<&'static str>,
    stream: StreamId,
    has_begun: bool,
    side: Side,
    local: [Option<SocketAddr>; 2],
    signalled: [Option<SocketAddr>; 2],
    crypto_suite: Option<&'static str>,
}

impl Pending {
    /// Returns the report of the dialogs that `is_meant` selects.
    pub(super) fn of<P>(
        call: &Live<P>,
        is_meant: impl Fn(usize) -> bool,
        unix_at_zero_ns: u64,
    ) -> Pending {
        let mut parties: Vec<PartyReport> = Vec::new();
        let dialogs = call.dialogs.iter().enumerate();
        for (_, dialog) in dialogs.filter(|(at, _)| is_meant(*at)) {
            let parties_of = if !dialog.is_copy() {
                &Side::BOTH[..]
            } else {
                &[Side::B]
            };
            for side in parties_of {
                let new = report(dialog, *side);
                // A party whose call was forked has the same tag in several dialogs.
                match parties.iter_mut().find(|one| one.tag == new.tag) {
                    Some(known) => {
                        known.partner = new.partner.or(known.partner.take());
                        known.media.extend(new.media);
                    }
                    None => parties.push(new),
                }
            }
        }
        let mut streams: Vec<StreamId> = parties
            .iter()
            .flat_map(|one| &one.media)
            .filter(|media| media.has_begun)
            .map(|media| media.stream)
            .collect();
        streams.sort_unstable();
        streams.dedup();
        Pending {
            streams,
            created_ns: call.created_ns,
            signalled_ns: call.signalled_ns,
            parties,
            unix_at_zero_ns,
        }
    }

    /// Returns the reply, or a request for counters if the reply needs them.
    pub(super) fn into_outcome(self) -> Outcome {
        if self.streams.is_empty() {
            Outcome::Reply(self.finish(&BTreeMap::new()))
        } else {
            Outcome::Stats(self)
        }
    }

    /// Returns the streams whose counters are needed.
    #[must_use]
    pub fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// Creates the reply. Streams without counters get zeros.
    pub fn finish(self, stats: &BTreeMap<StreamId, StreamStats>) -> Reply {
        let none = SideStats::default();
        let of = |media: &MediaReport| {
            let stats = stats.get(&media.stream);
            stats.map_or(&none, |stats| &stats.sides[media.side as usize])
        };
        let mut tags = Dictionary::new();
        let mut totals = [Counts::default(); 2];
        let mut sources = Dictionary::new();
        for party in &self.parties {
            let mut media = Vec::with_capacity(party.media.len());
            for one in &party.media {
                let side = of(one);
                totals[0].add(side.rtp);
                totals[1].add(side.rtcp);
                media.push(Value::Dictionary(self.media(one, side)));
                for source in &side.sources {
                    sources.push(source.ssrc.to_string(), self.source(source));
                }
            }
            tags.push(party.tag.clone(), self.party(party, media));
        }
        let mut keys = Dictionary::new();
        keys.push("created", self.unix_s(self.created_ns));
        let created_us = self.unix_at_zero_ns.saturating_add(self.created_ns) % NS_PER_S / 1000;
        keys.push("created_us", created_us as i64);
        keys.push("last signal", self.unix_s(self.signalled_ns));
        keys.push("tags", tags);
        keys.push("SSRC", sources);
        let mut sums = Dictionary::new();
        sums.push("RTP", totals[0].to_dictionary());
        sums.push("RTCP", totals[1].to_dictionary());
        keys.push("totals", sums);
        Reply::Ok(keys)
    }

    /// Converts a time to the reply's form, "expressed as seconds since the UNIX epoch".
    fn unix_s(&self, at_ns: u64) -> i64 {
        let unix_ns = self.unix_at_zero_ns.saturating_add(at_ns);
        i64::try_from(unix_ns / NS_PER_S).unwrap_or(i64::MAX)
    }

    fn party(&self, party: &PartyReport, media: Vec<Value>) -> Dictionary {
        let mut out = Dictionary::new();
        out.push("tag", party.tag.clone());
        out.push("created", self.unix_s(party.created_ns));
        if let Some(label) = &party.label {
            out.push("label", label.clone());
        }
        if let Some(partner) = &party.partner {
            out.push("in dialogue with", partner.clone());
        }
        out.push("medias", Value::List(media));
        out
    }

    fn media(&self, media: &MediaReport, stats: &SideStats) -> Dictionary {
        let mut out = Dictionary::new();
        out.push("index", media.index as i64);
        out.push("type", media.kind.clone());
        if let Some(protocol) = &media.protocol {
            out.push("protocol", protocol.clone());
        }
        out.push("flags", texts(&media.flags));
        let mut streams = vec![self.stream(media, 0, stats.rtp, stats)];
        if media.local[1].is_some() {
            streams.push(self.stream(media, 1, stats.rtcp, stats));
        }
        out.push("streams", Value::List(streams));
        out
    }

    /// Creates the report of a stream. `place` is 0 for RTP and 1 for RTCP.
    fn stream(
        &self,
        media: &MediaReport,
        place: usize,
        counts: Counts,
        stats: &SideStats,
    ) -> Value {
        let mut out = Dictionary::new();
        if let Some(local) = media.local[place] {
            out.push("local port", i64::from(local.port()));
        }
        let learned = stats.rtp_to.filter(|_| place == 0);
        if let Some(endpoint) = learned.or(media.signalled[place]) {
            out.push("endpoint", address(endpoint));
        }
        if let Some(signalled) = media.signalled[place] {
            out.push("advertised endpoint", address(signalled));
        }
        if let Some(suite) = media.crypto_suite {
            out.push("crypto suite", suite);
        }
        let heard_ns = stats.heard_ns.filter(|_| place == 0);
        out.push(
            "last packet",
            heard_ns.map_or(0, |at_ns| self.unix_s(at_ns)),
        );
        let mut flags = vec![["RTP", "RTCP"][place]];
        flags.extend(media.signalled[place].map(|_| "filled"));
        flags.extend(heard_ns.map(|_| "confirmed"));
        out.push("flags", texts(&flags));
        out.push("stats", counts.to_dictionary());
        Value::Dictionary(out)
    }

    fn source(&self, source: &SourceStats) -> Dictionary {
        let mut out = Dictionary::new();
        if let Some(average) = source.average {
            let mut average = quality(average);
            average.push("samples", i64::from(source.samples));
            out.push("average MOS", average);
        }
        for (name, one) in [
            ("lowest MOS", source.lowest),
            ("highest MOS", source.highest),
        ] {
            if let Some((at_ns, one)) = one {
                let mut one = quality(one);
                let since_ns = at_ns.saturating_sub(self.created_ns);
                one.push("reported at", (since_ns / NS_PER_S) as i64);
                out.push(name, one);
            }
        }
        out
    }
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.errors += other.errors;
    }

    fn to_dictionary(self) -> Dictionary {
        let mut out = Dictionary::new();
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        out.push("packets", number(self.packets));
        out.push("bytes", number(self.bytes));
        out.push("errors", number(self.errors));
        out
    }
}

fn quality(quality: Quality) -> Dictionary {
    let mut out = Dictionary::new();
    out.push("MOS", i64::from(quality.mos_tenths));
    out.push("jitter", i64::from(quality.jitter_ms));
    out.push("round-trip time", i64::from(quality.round_trip_us));
    out.push("packet loss", i64::from(quality.loss_percent));
    out
}

fn texts(words: &[&'static str]) -> Value {
    Value::List(words.iter().map(|word| Value::from(*word)).collect())
}

/// Creates the report of an address. "The `family` may be one of `IPv4` or `IPv6`."
fn address(address: SocketAddr) -> Dictionary {
    let mut out = Dictionary::new();
    let family = match address.ip() {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    };
    out.push("family", family);
    out.push("address", address.ip().to_string());
    out.push("port", i64::from(address.port()));
    out
}

fn report<P>(dialog: &Dialog<P>, side: Side) -> PartyReport {
    let tag = |party: &Party| party.tag.as_deref().map(<[u8]>::to_vec);
    let party = dialog.party(side);
    let fresh = dialog
        .offer
        .iter()
        .flat_map(|offer| offer.fresh.iter().enumerate());
    let slots = dialog.slots.iter().enumerate().chain(fresh);
    let mut media: Vec<MediaReport> = slots
        .filter_map(|(at, slot)| Some(media(dialog, at, slot.as_ref()?, side)))
        .collect();
    media.sort_by_key(|one| one.index);
    PartyReport {
        tag: tag(party).unwrap_or_default(),
        partner: tag(dialog.party(side.other())),
        label: party.label.clone(),
        created_ns: party.created_ns,
        media,
    }
}

fn media<P>(dialog: &Dialog<P>, at: usize, slot: &Slot<P>, side: Side) -> MediaReport {
    let spec = slot.running.as_deref();
    let own = spec.map(|spec| &spec.sides[side as usize]);
    let local = &slot.local[side as usize];
    let mut flags = Vec::new();
    flags.extend(spec.map(|_| "initialized"));
    flags.extend(own.filter(|own| own.mux).map(|_| "rtcp-mux"));
    flags.extend(own.and_then(|own| own.srtp.as_ref()).map(|_| "SDES"));
    let is_passed = spec.is_some_and(|spec| spec.kind == StreamKind::Packets);
    flags.extend(is_passed.then_some("passthrough"));
    let offered = dialog.offer.as_ref().and_then(|offer| offer.media.get(at));
    let rtcp = local
        .rtcp
        .filter(|_| local.request.port_use == PortUse::Pair);
    MediaReport {
        index: at + 1,
        kind: slot.media.clone(),
        protocol: offered.map(|one| one.protocol_of(side, dialog)),
        flags,
        stream: slot.stream,
        has_begun: spec.is_some(),
        side,
        local: [Some(local.rtp), rtcp],
        signalled: [own.and_then(|own| own.rtp), own.and_then(|own| own.rtcp)],
        crypto_suite: own
            .and_then(|own| own.srtp.as_ref())
            .map(|keys| keys.send.suite().name()),
    }
}
