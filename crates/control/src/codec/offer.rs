//! From the codecs that one side offers to those that the other side is offered.

use threadbare_rtp::id::PayloadType;
use threadbare_rtp::payload::static_payload;

use crate::sdp::Codec;

use super::rules::{Everything, Rules, is_listed};
use super::spec::Spec;

/// A codec in the list for the other side.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Offered {
    /// As the other side sees it.
    pub codec: Codec,
    /// Not of the offerer: its packets are transcoded.
    pub is_added: bool,
}

/// What goes to the other side, and what is kept for its answer.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Offer {
    /// The offerer's numbers, in its order.
    #[serde(with = "crate::mirror")]
    offered: Vec<PayloadType>,
    /// In order of preference. Those of the offerer keep their numbers.
    pub outgoing: Vec<Offered>,
    /// Codecs of the offerer that are taken from it, whatever the other side takes.
    pub accepted: Vec<Codec>,
    /// Codecs of the offerer of which the first is taken from it if the other side takes none of its audio codecs.
    pub fallback: Vec<Codec>,
    /// Whether anything may be transcoded.
    pub is_engaged: bool,
    /// Whether codecs that both take are made anew, too: for packets of the offerer, and of the other side.
    pub makes_anew: [bool; 2],
    /// Codecs that were to be added, and cannot be transcoded.
    pub unsupported: Vec<Spec>,
    /// Nothing would have been left: "the original list of codecs will be left unchanged".
    pub is_unchanged: bool,
}

impl Offer {
    /// The place of a number in the offerer's order.
    pub(crate) fn rank(&self, number: PayloadType) -> usize {
        let place = self.offered.iter().position(|one| *one == number);
        place.unwrap_or(self.offered.len())
    }

    /// The codecs for the other side.
    pub fn codecs(&self) -> impl Iterator<Item = &Codec> {
        self.outgoing.iter().map(|offered| &offered.codec)
    }
}

/// Whether packets of `codec` can be both read and written.
#[must_use]
pub fn is_supported(codec: &Codec) -> bool {
    let beside_audio = codec.is_telephone_event() || codec.is_comfort_noise();
    beside_audio || codec.format().is_some()
}

/// What becomes of a codec that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    /// Not offered, but taken from the offerer.
    Masked,
    Stripped,
}

/// The codecs for the other side, by the rules of the request.
#[must_use]
pub fn offer(offered: &[Codec], rules: &Rules) -> Offer {
    let fates: Vec<Fate> = offered.iter().map(|codec| fate(codec, rules)).collect();
    let with = |wanted: Fate| {
        let all = offered.iter().zip(&fates);
        all.filter(move |(_, fate)| **fate == wanted)
            .map(|(codec, _)| codec)
    };
    let kept: Vec<&Codec> = with(Fate::Kept).collect();
    let mut unsupported = Vec::new();
    let added = added(offered, &kept, rules, &mut unsupported);
    let makes_anew =
        [rules.ptime_ms, rules.ptime_reverse_ms].map(|ms| ms.is_some() || rules.force_transcoding);
    // "Useful only in combination with `transcode`" (mask); "even if no other transcoding related options are given" (consume).
    let is_engaged = !added.is_empty()
        || makes_anew.contains(&true)
        || with(Fate::Masked).any(|codec| rules.consume.has(codec) || rules.accept.has(codec))
        || kept.iter().any(|codec| rules.accept.has(codec));
    // "With transcoding active for a call, all unsupported codecs will be removed from the SDP."
    let usable = |codec: &&Codec| !is_engaged || is_supported(codec);
    let own = ordered(kept.iter().copied().filter(usable), &rules.offer);
    let outgoing = joined(own, added);
    let has_audio = outgoing.iter().any(|one| one.codec.is_audio());
    if !has_audio && offered.iter().any(Codec::is_audio) {
        return unchanged(offered, unsupported);
    }
    let accepts = |codec: &Codec, fate: Fate| match fate {
        Fate::Kept => rules.accept.has(codec),
        Fate::Masked => rules.consume.has(codec) || rules.accept.has(codec),
        Fate::Stripped => false,
    };
    let taken = offered.iter().zip(&fates);
    let taken =
        taken.filter(|(codec, fate)| is_engaged && **fate != Fate::Stripped && is_supported(codec));
    let (accepted, fallback): (Vec<_>, Vec<_>) =
        taken.partition(|(codec, fate)| accepts(codec, **fate));
    let codecs =
        |all: Vec<(&Codec, &Fate)>| all.into_iter().map(|(codec, _)| codec.clone()).collect();
    Offer {
        offered: numbers(offered),
        outgoing,
        accepted: codecs(accepted),
        fallback: codecs(fallback),
        is_engaged,
        makes_anew,
        unsupported,
        is_unchanged: false,
    }
}

/// New audio codecs behind the others, before telephone events and comfort noise.
fn joined(own: Vec<&Codec>, added: Vec<Codec>) -> Vec<Offered> {
    let with = |is_added: bool| move |codec: Codec| Offered { codec, is_added };
    let mut all: Vec<Offered> = own.into_iter().cloned().map(with(false)).collect();
    let last = all.iter().rposition(|one| one.codec.is_audio());
    let mut place = last.map_or(0, |last| last + 1);
    for one in added.into_iter().map(with(true)) {
        if one.codec.is_audio() {
            all.insert(place, one);
            place += 1;
        } else {
            all.push(one);
        }
    }
    all
}

fn unchanged(offered: &[Codec], unsupported: Vec<Spec>) -> Offer {
    let own = |codec: &Codec| Offered {
        codec: codec.clone(),
        is_added: false,
    };
    Offer {
        offered: numbers(offered),
        outgoing: offered.iter().map(own).collect(),
        accepted: Vec::new(),
        fallback: Vec::new(),
        is_engaged: false,
        makes_anew: [false; 2],
        unsupported,
        is_unchanged: true,
    }
}

fn numbers(codecs: &[Codec]) -> Vec<PayloadType> {
    codecs.iter().map(|codec| codec.payload_type).collect()
}

fn fate(codec: &Codec, rules: &Rules) -> Fate {
    // `offer` restores a codec that other lists remove.
    if is_listed(&rules.offer, codec) {
        return Fate::Kept;
    }
    if rules.strip.names(codec) {
        return Fate::Stripped;
    }
    if rules.mask.names(codec) || rules.consume.names(codec) {
        return Fate::Masked;
    }
    let is_listed = |everything: Everything| {
        is_listed(&rules.except, codec)
            // "treat this codec the same as if it had been used with the `offer` option"
            || everything == Everything::All && is_listed(&rules.transcode, codec)
    };
    let takes = |everything: Option<Everything>| everything.is_some_and(|one| !is_listed(one));
    if takes(rules.strip.everything) {
        Fate::Stripped
    } else if takes(rules.mask.everything) || takes(rules.consume.everything) {
        Fate::Masked
    } else {
        Fate::Kept
    }
}

/// "the first codec listed in `offer` will be the primary (preferred) codec in the output SDP".
fn ordered<'a>(codecs: impl Iterator<Item = &'a Codec>, first: &[Spec]) -> Vec<&'a Codec> {
    let mut all: Vec<&Codec> = codecs.collect();
    let rank = |codec: &&Codec| first.iter().position(|spec| spec.matches(codec));
    all.sort_by_key(|codec| rank(codec).unwrap_or(first.len()));
    all
}

/// New codecs. "If all codecs given in the `transcode` list were present in the original list of offered codecs, then no transcoding will
/// be done": those that are kept are not added.
fn added(
    offered: &[Codec],
    kept: &[&Codec],
    rules: &Rules,
    unsupported: &mut Vec<Spec>,
) -> Vec<Codec> {
    let mut added: Vec<Codec> = Vec::new();
    let mut add = |spec: &Spec, added: &mut Vec<Codec>| {
        if kept
            .iter()
            .copied()
            .chain(added.iter())
            .any(|codec| spec.matches(codec))
        {
            return;
        }
        let taken = |number: u8| {
            let all = offered.iter().chain(added.iter());
            all.into_iter().any(|codec| codec.payload_type.0 == number)
        };
        match new_codec(spec, kept, taken) {
            Some(codec) => added.push(codec),
            None => unsupported.push(spec.clone()),
        }
    };
    for spec in &rules.transcode {
        add(spec, &mut added);
    }
    // Events are told on the clock of the audio that they are sent beside (RFC 4733): those of the offerer need one for each new clock.
    if kept.iter().any(|codec| codec.is_telephone_event()) {
        let audio = added.iter().filter(|codec| codec.is_audio());
        let clocks: Vec<u32> = audio.map(|codec| codec.clock_rate_hz).collect();
        for clock_rate_hz in clocks {
            let spec = Spec {
                name: "telephone-event".to_owned(),
                clock_rate_hz: Some(clock_rate_hz),
                channels: Some(1),
                ..Spec::default()
            };
            add(&spec, &mut added);
        }
    }
    added
}

/// A codec with a number of the other side; `None` if there is no such codec, or no number left.
fn new_codec(spec: &Spec, kept: &[&Codec], taken: impl Fn(u8) -> bool) -> Option<Codec> {
    let (clock_rate_hz, channels) = spec.rate_and_channels();
    let mut codec = Codec {
        payload_type: PayloadType(0),
        name: spec.name.clone(),
        clock_rate_hz,
        channels,
        fmtp: spec.fmtp.clone(),
    };
    if codec.is_telephone_event() && codec.fmtp.is_none() {
        // The keys of a telephone (RFC 4733, section 7.1.1).
        codec.fmtp = Some("0-15".to_owned());
    }
    let is_static = |number: &u8| {
        static_payload(PayloadType(*number)).is_some_and(|one| {
            one.encoding_name.eq_ignore_ascii_case(&codec.name)
                && (one.clock_rate_hz, one.channels) == (clock_rate_hz, channels)
        })
    };
    let is_kept = |number: u8| kept.iter().any(|one| one.payload_type.0 == number);
    let own = (0..96).find(is_static).filter(|number| !is_kept(*number));
    // RFC 3551, section 3: dynamic types; where they do not suffice, types that are unassigned.
    let dynamic = || (96..128).chain(35..64).find(|number| !taken(*number));
    codec.payload_type = PayloadType(own.or_else(dynamic)?);
    is_supported(&codec).then_some(codec)
}
