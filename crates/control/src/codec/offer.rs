//! Converts one side's offered codecs to the offer for the other side.

use threadbare_rtp_types::id::PayloadType;
use threadbare_rtp_types::payload::static_payload;

use crate::sdp::Codec;

use super::rules::{Everything, Rules, is_listed};
use super::spec::Spec;

/// A codec in the list for the other side.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Offered {
    /// The codec, as offered to the other side.
    pub codec: Codec,
    /// Whether the relay added the codec. The offerer does not have it, so its packets are transcoded.
    pub is_added: bool,
}

/// The offer for the other side, with all that its answer needs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Offer {
    /// The payload types that the offerer listed, in its order.
    #[serde(rename = "offered_payload_types", with = "crate::mirror")]
    offered: Vec<PayloadType>,
    /// The codecs in order of preference. The offerer's codecs keep their numbers.
    pub outgoing: Vec<Offered>,
    /// The offerer's codecs that the relay accepts even if the other side refuses them.
    pub accepted: Vec<Codec>,
    /// If the other side accepts none of the offerer's audio codecs, the relay accepts the first of these codecs.
    pub fallback: Vec<Codec>,
    /// Whether transcoding is possible.
    #[serde(rename = "can_transcode")]
    pub is_engaged: bool,
    /// Whether even codecs that both sides accept are encoded again: for packets of the offerer, and for those of the other side.
    #[serde(rename = "reencodes")]
    pub makes_anew: [bool; 2],
    /// Requested codecs that cannot be transcoded.
    pub unsupported: Vec<Spec>,
    /// Whether the rules would have left no codec, in which case "the original list of codecs will be left unchanged".
    pub is_unchanged: bool,
}

impl Offer {
    /// Returns the position of a payload type in the offerer's list.
    pub(crate) fn rank(&self, number: PayloadType) -> usize {
        let place = self.offered.iter().position(|one| *one == number);
        place.unwrap_or(self.offered.len())
    }

    /// Returns the codecs for the other side.
    pub fn codecs(&self) -> impl Iterator<Item = &Codec> {
        self.outgoing.iter().map(|offered| &offered.codec)
    }
}

/// Whether `codec` can be both decoded and encoded.
#[must_use]
pub fn is_supported(codec: &Codec) -> bool {
    let beside_audio = codec.is_telephone_event() || codec.is_comfort_noise();
    beside_audio || codec.format().is_some()
}

/// What happens to an offered codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    /// It is not offered, but accepted from the offerer.
    Masked,
    Stripped,
}

/// Creates the offer for the other side by the rules of the request.
#[must_use]
pub fn offer(offered: &[Codec], rules: &Rules) -> Offer {
    let fates: Vec<Fate> = offered.iter().map(|codec| fate(codec, rules)).collect();
    let with = |wanted: Fate| {
        let all = offered.iter().zip(&fates);
        all.filter(move |(_, fate)| **fate == wanted)
            .map(|(codec, _)| codec)
    };
    let kept: Vec<&Codec> = with(Fate::Kept).collect();
    let mut convertible = with(Fate::Kept).chain(with(Fate::Masked));
    let can_convert = convertible.any(|codec| codec.is_audio() && is_supported(codec));
    let mut unsupported = Vec::new();
    // An added codec is useful only if the relay can convert one of the offerer's codecs to and from it. Otherwise the parties would not
    // hear each other.
    let added = if can_convert {
        added(offered, &kept, rules, &mut unsupported)
    } else {
        unsupported.extend(lacking(&kept, rules).cloned());
        Vec::new()
    };
    let makes_anew =
        [rules.ptime_ms, rules.ptime_reverse_ms].map(|ms| ms.is_some() || rules.force_transcoding);
    // The documentation says "Useful only in combination with `transcode`" for mask, and "even if no other transcoding related options are
    // given" for consume.
    let is_engaged = !added.is_empty()
        || makes_anew.contains(&true)
        || with(Fate::Masked).any(|codec| rules.consume.has(codec) || rules.accept.has(codec))
        || kept
            .iter()
            .any(|codec| rules.accept.has(codec) && is_supported(codec));
    // "With transcoding active for a call, all unsupported codecs will be removed from the SDP." If the rules only accept codecs that the
    // other side refuses, its answer decides, so codecs that can only be forwarded stay.
    let is_converted = !added.is_empty() || makes_anew.contains(&true) || rules.is_copy;
    let usable = |codec: &&Codec| !is_converted || is_supported(codec);
    let mut outgoing = joined(kept.iter().copied().filter(usable), added);
    order(&mut outgoing, rules);
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

/// Inserts new audio codecs after the offerer's audio, before telephone events and comfort noise.
fn joined<'a>(own: impl Iterator<Item = &'a Codec>, added: Vec<Codec>) -> Vec<Offered> {
    let with = |is_added: bool| move |codec: Codec| Offered { codec, is_added };
    let mut all: Vec<Offered> = own.cloned().map(with(false)).collect();
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

/// Orders the codecs. "the first codec listed in `offer` will be the primary (preferred) codec in the output SDP". Telephone events and
/// noise come after the audio.
///
/// After the codecs of `offer` come those that stay anyway. The last are the codecs of `transcode` in its order, whether they were added or
/// stay in spite of `all`.
fn order(codecs: &mut [Offered], rules: &Rules) {
    let first = rules.offer.len();
    let removes_all = [&rules.strip, &rules.mask, &rules.consume]
        .iter()
        .any(|one| one.everything.is_some());
    let place = |specs: &[Spec], codec: &Codec| specs.iter().position(|spec| spec.matches(codec));
    let rank = |one: &Offered| {
        let is_restored = removes_all && !is_listed(&rules.except, &one.codec);
        let transcode = place(&rules.transcode, &one.codec);
        let transcode = transcode.filter(|_| one.is_added || is_restored);
        let by_transcode = transcode.map_or(first, |place| first + 1 + place);
        place(&rules.offer, &one.codec).unwrap_or(by_transcode)
    };
    let mut audio: Vec<Offered> = codecs
        .iter()
        .filter(|one| one.codec.is_audio())
        .cloned()
        .collect();
    audio.sort_by_key(rank);
    let places = codecs.iter_mut().filter(|one| one.codec.is_audio());
    for (place, one) in places.zip(audio) {
        *place = one;
    }
}

/// Returns the codecs that are added. A codec that is kept is not added again: "If all codecs given in the `transcode` list were present in
/// the original list of offered codecs, then no transcoding will be done".
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
    let is_any_events = |spec: &&Spec| spec.is_telephone_event() && spec.clock_rate_hz.is_none();
    for spec in rules.transcode.iter().filter(|spec| !is_any_events(spec)) {
        add(spec, &mut added);
    }
    // Telephone events use the clock rate of their audio (RFC 4733). If the offerer has events, each new clock rate needs another codec of
    // events. If only the request asks for events, each clock rate needs one.
    let clocks = |codecs: &[&Codec]| {
        let audio = codecs
            .iter()
            .filter(|codec| codec.is_audio() && is_supported(codec));
        audio.map(|codec| codec.clock_rate_hz).collect::<Vec<u32>>()
    };
    let mut wanted = Vec::new();
    let has_events = kept.iter().any(|codec| codec.is_telephone_event());
    let asked = rules.transcode.iter().find(is_any_events);
    if asked.is_some() && !has_events {
        wanted = clocks(kept);
    }
    if asked.is_some() || has_events {
        wanted.extend(clocks(&added.iter().collect::<Vec<_>>()));
    }
    for clock_rate_hz in wanted {
        let spec = Spec {
            name: "telephone-event".to_owned(),
            clock_rate_hz: Some(clock_rate_hz),
            channels: Some(1),
            fmtp: asked.and_then(|spec| spec.fmtp.clone()),
            ..Spec::default()
        };
        add(&spec, &mut added);
    }
    added
}

/// Returns the codecs of `transcode` that the offerer does not have.
fn lacking<'a>(kept: &[&Codec], rules: &'a Rules) -> impl Iterator<Item = &'a Spec> {
    let is_kept = |spec: &Spec| kept.iter().any(|codec| spec.matches(codec));
    rules.transcode.iter().filter(move |spec| !is_kept(spec))
}

/// Creates a codec with a payload type for the other side. `None`: the codec does not exist, or no payload type is left.
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
        // These events are the DTMF digits (RFC 4733, section 7.1.1).
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
    // Dynamic payload types come first, then unassigned ones (RFC 3551, section 3).
    let dynamic = || (96..128).chain(35..64).find(|number| !taken(*number));
    codec.payload_type = PayloadType(own.or_else(dynamic)?);
    is_supported(&codec).then_some(codec)
}
