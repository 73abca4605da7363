//! Converts the other side's answer to the answer for the offerer, and decides what happens to each side's packets.

use threadbare_rtp_types::id::PayloadType;
use threadbare_rtp_types::payload::static_payload;

use crate::sdp::Codec;

use super::offer::{Offer, Offered, is_supported};

/// The treatment of the packets of a codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// The packets are forwarded unchanged, with this payload type.
    Pass(PayloadType),
    /// The audio of the packets is encoded again in this codec. Telephone events are converted to its clock rate.
    Transcode(Codec),
    /// The digits of telephone events are played as tones, because the receiver accepts no telephone events.
    Tones,
    /// The packets are dropped, because the receiver cannot use them.
    Drop,
}

/// A codec that one side may send, and what happens to its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The codec, with the number of the arriving packets.
    pub received: Codec,
    /// The treatment of the packets.
    pub then: Then,
}

/// The answer for the offerer, and the routes of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The codecs of the answer in order of preference, with the offerer's numbers.
    pub to_offerer: Vec<Codec>,
    /// Routes of the offerer's packets; the first one is preferred.
    pub from_offerer: Vec<Route>,
    /// Routes of the other side's packets.
    pub from_answerer: Vec<Route>,
    /// Whether DTMF tones in the audio become telephone events: in the audio for the offerer, and in that for the other side.
    pub detects_keys: [bool; 2],
}

/// The error if the sides have no audio codec in common, and transcoding does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer has none of the offered audio codecs")]
pub struct NoCommonCodec;

/// A codec of the answer, with the offered codec that it matches.
struct Common<'a> {
    theirs: Codec,
    offered: &'a Offered,
}

/// Creates the answer for the offerer from `answered`. With `single_codec`, only one audio codec remains: "will leave only the first listed
/// codec in place and will remove all others". Telephone events and comfort noise remain too, because they accompany a codec.
///
/// # Errors
/// Fails if no audio could be exchanged.
pub fn answer(
    offer: &Offer,
    answered: &[Codec],
    single_codec: bool,
) -> Result<Answer, NoCommonCodec> {
    let common: Vec<Common<'_>> = answered
        .iter()
        .filter_map(|theirs| common(offer, theirs))
        .collect();
    if !common.iter().any(|one| one.theirs.is_audio()) {
        return Err(NoCommonCodec);
    }
    let mut to_offerer = to_offerer(offer, &common);
    if !to_offerer.first().is_some_and(Codec::is_audio) {
        return Err(NoCommonCodec);
    }
    if single_codec {
        let first = to_offerer[0].payload_type;
        to_offerer.retain(|codec| codec.payload_type == first || !codec.is_audio());
    }
    let from_offerer = to_offerer
        .iter()
        .map(|codec| from_offerer(offer, &common, codec));
    let from_answerer = common
        .iter()
        .map(|one| from_answerer(offer, &to_offerer, one));
    let theirs = || common.iter().map(|one| &one.theirs);
    let has_events = [
        to_offerer.iter().any(Codec::is_telephone_event),
        theirs().any(Codec::is_telephone_event),
    ];
    let is_heard = |codec: &Codec| codec.is_audio() && is_supported(codec);
    Ok(Answer {
        from_offerer: from_offerer.collect(),
        from_answerer: from_answerer.collect(),
        detects_keys: [
            offer.is_engaged && !has_events[0] && has_events[1] && to_offerer.iter().any(is_heard),
            offer.is_engaged && has_events[0] && !has_events[1] && theirs().any(is_heard),
        ],
        to_offerer,
    })
}

/// Returns the codecs that the offerer's answer lists, audio first.
fn to_offerer(offer: &Offer, common: &[Common<'_>]) -> Vec<Codec> {
    let mut to_offerer: Vec<Codec> = Vec::new();
    let passed = common.iter().filter(|one| !one.offered.is_added);
    for one in passed {
        // If only the answer has a name for the number, the offerer gets this name too.
        let named = if one.offered.codec.name.is_empty() {
            &one.theirs
        } else {
            &one.offered.codec
        };
        push_new(
            &mut to_offerer,
            Codec {
                payload_type: one.offered.codec.payload_type,
                // The parameters are those of the side that receives the audio.
                fmtp: one.theirs.fmtp.clone(),
                ..named.clone()
            },
        );
    }
    // The relay accepts such a codec from the offerer, so it must be able to convert it for the other side.
    let converts = |one: &Common<'_>| one.theirs.is_audio() && is_supported(&one.theirs);
    if !offer.accepted.is_empty() && common.iter().any(converts) {
        let accepted = offer.accepted.iter().map(taken);
        accepted.for_each(|codec| push_new(&mut to_offerer, codec));
        // Codecs that only the relay accepts are in the offerer's order.
        to_offerer.sort_by_key(|codec| offer.rank(codec.payload_type));
    }
    if !to_offerer.iter().any(Codec::is_audio) {
        let first = offer.fallback.iter().find(|codec| codec.is_audio());
        to_offerer.extend(first.map(taken));
    }
    // These are telephone events with a clock rate that the offerer does not use.
    if common
        .iter()
        .any(|one| one.offered.is_added && one.theirs.is_telephone_event())
    {
        let events = offer
            .fallback
            .iter()
            .filter(|codec| codec.is_telephone_event());
        events.for_each(|codec| push_new(&mut to_offerer, taken(codec)));
    }
    // Audio comes before telephone events.
    to_offerer.sort_by_key(|codec| !codec.is_audio());
    to_offerer
}

/// Returns the offered codec that `theirs` matches. An answer may have different numbers (RFC 3264, section 6.1).
fn common<'a>(offer: &'a Offer, theirs: &Codec) -> Option<Common<'a>> {
    let all = || offer.outgoing.iter();
    let same_number = |one: &&Offered| one.codec.payload_type == theirs.payload_type;
    let same_format = |one: &&Offered| one.codec.is_format_of(theirs);
    // A static number has one meaning, however its name is spelt (RFC 3551, section 6).
    let same_static =
        |one: &&Offered| same_number(one) && static_payload(theirs.payload_type).is_some();
    // Events with another clock rate are the same DTMF digits, and only their durations are converted.
    let same_events =
        |one: &&Offered| one.codec.is_telephone_event() && theirs.is_telephone_event();
    let found = if theirs.name.is_empty() || all().any(|one| is_unnamed_twin(one, theirs)) {
        all().find(same_number)
    } else {
        all()
            .find(|one| same_number(one) && same_format(one))
            .or_else(|| all().find(|one| same_format(one) && one.codec.fmtp == theirs.fmtp))
            .or_else(|| all().find(same_format))
            .or_else(|| all().find(same_static))
            .or_else(|| all().find(same_events))
    };
    let offered = found?;
    let mut theirs = theirs.clone();
    if theirs.name.is_empty() {
        theirs.name.clone_from(&offered.codec.name);
        theirs.clock_rate_hz = offered.codec.clock_rate_hz;
        theirs.channels = offered.codec.channels;
    }
    Some(Common { theirs, offered })
}

/// Whether the offer has this number without a name. Then the answerer either knows its meaning or only repeats it.
fn is_unnamed_twin(offered: &Offered, theirs: &Codec) -> bool {
    offered.codec.name.is_empty() && offered.codec.payload_type == theirs.payload_type
}

/// Returns a codec of the offerer for the answer to it. The parameters are left out, because they state what the offerer itself accepts.
/// Only the range of DTMF digits stays.
fn taken(codec: &Codec) -> Codec {
    let fmtp = codec.fmtp.clone().filter(|_| codec.is_telephone_event());
    Codec {
        fmtp,
        ..codec.clone()
    }
}

fn push_new(codecs: &mut Vec<Codec>, codec: Codec) {
    if codecs
        .iter()
        .all(|one| one.payload_type != codec.payload_type)
    {
        codecs.push(codec);
    }
}

fn from_offerer(offer: &Offer, common: &[Common<'_>], codec: &Codec) -> Route {
    let same = common
        .iter()
        .find(|one| !one.offered.is_added && one.offered.codec.payload_type == codec.payload_type);
    let theirs = || common.iter().map(|one| &one.theirs);
    Route {
        received: codec.clone(),
        then: then(
            codec,
            same.map(|one| &one.theirs),
            theirs(),
            offer.makes_anew[0],
        ),
    }
}

/// Returns the route of an answerer's codec. The offerer accepts all formats that it offered, even those that its answer does not name (RFC
/// 3264, section 5.1).
fn from_answerer(offer: &Offer, to_offerer: &[Codec], one: &Common<'_>) -> Route {
    let same = (!one.offered.is_added).then_some(&one.offered.codec);
    Route {
        received: one.theirs.clone(),
        then: then(&one.theirs, same, to_offerer.iter(), offer.makes_anew[1]),
    }
}

/// Decides what happens to packets of `received`. `same` is the receiver's version of the same codec, if it accepts that, and `others` are
/// the other codecs that it accepts.
fn then<'a>(
    received: &Codec,
    same: Option<&Codec>,
    mut others: impl Iterator<Item = &'a Codec>,
    makes_anew: bool,
) -> Then {
    let can_be_made = is_supported(received) && received.is_audio();
    let other_clock = |same: &&Codec| {
        received.is_telephone_event() && same.clock_rate_hz != received.clock_rate_hz
    };
    match same {
        Some(same) if other_clock(&same) => Then::Transcode(same.clone()),
        Some(same) if makes_anew && can_be_made => Then::Transcode(same.clone()),
        Some(same) => Then::Pass(same.payload_type),
        None if received.is_telephone_event() => {
            let events: Vec<&Codec> = others.filter(|codec| codec.is_telephone_event()).collect();
            let same_clock = events
                .iter()
                .find(|event| event.clock_rate_hz == received.clock_rate_hz);
            match (same_clock, events.first()) {
                (Some(event), _) => Then::Pass(event.payload_type),
                (None, Some(event)) => Then::Transcode((*event).clone()),
                (None, None) => Then::Tones,
            }
        }
        None if can_be_made => {
            let audio = others.find(|codec| codec.is_audio() && is_supported(codec));
            audio.map_or(Then::Drop, |audio| Then::Transcode(audio.clone()))
        }
        None => Then::Drop,
    }
}
