//! From the answer of the other side to the answer for the offerer, and what is done with the packets of each side.

use threadbare_rtp::id::PayloadType;
use threadbare_rtp::payload::static_payload;

use crate::sdp::Codec;

use super::offer::{Offer, Offered, is_supported};

/// What is done with the packets of a codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// They leave as they are, with this number.
    Pass(PayloadType),
    /// Their audio is made anew in this codec; telephone events, with this one's clock.
    Transcode(Codec),
    /// Their keys are heard as tones: the receiver takes no telephone events.
    Tones,
    /// They are of no use to the receiver.
    Drop,
}

/// A codec that one side may send, and what is done with its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// With the number that arrives.
    pub received: Codec,
    /// What leaves.
    pub then: Then,
}

/// The answer for the offerer, and the routes of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// In order of preference, with the offerer's numbers.
    pub to_offerer: Vec<Codec>,
    /// What the offerer may send; the first one is what it should.
    pub from_offerer: Vec<Route>,
    /// What the other side may send.
    pub from_answerer: Vec<Route>,
    /// Whether keys in the audio become telephone events: of the offerer, and of the other side.
    pub detects_keys: [bool; 2],
}

/// The sides have no audio codec in common, and transcoding does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer has no audio codec that was offered")]
pub struct NoCommonCodec;

/// A codec of the answer, and the offered one that it stands for.
struct Common<'a> {
    theirs: Codec,
    offered: &'a Offered,
}

/// The answer for the offerer to `answered`, with `single_codec` one of one audio codec: "will leave only the first listed codec in place and
/// will remove all others". Telephone events and comfort noise, which go with a codec, stay.
///
/// # Errors
/// Nobody would hear anything.
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
    let has_events = [
        to_offerer.iter().any(Codec::is_telephone_event),
        common.iter().any(|one| one.theirs.is_telephone_event()),
    ];
    Ok(Answer {
        from_offerer: from_offerer.collect(),
        from_answerer: from_answerer.collect(),
        detects_keys: [
            offer.is_engaged && !has_events[0] && has_events[1],
            offer.is_engaged && has_events[0] && !has_events[1],
        ],
        to_offerer,
    })
}

/// What the offerer is told to be taken, audio first.
fn to_offerer(offer: &Offer, common: &[Common<'_>]) -> Vec<Codec> {
    let mut to_offerer: Vec<Codec> = Vec::new();
    let passed = common.iter().filter(|one| !one.offered.is_added);
    for one in passed {
        // A number that only the answer names is named to the offerer, too.
        let named = if one.offered.codec.name.is_empty() {
            &one.theirs
        } else {
            &one.offered.codec
        };
        push_new(
            &mut to_offerer,
            Codec {
                payload_type: one.offered.codec.payload_type,
                // The parameters are those of the receiver.
                fmtp: one.theirs.fmtp.clone(),
                ..named.clone()
            },
        );
    }
    if !offer.accepted.is_empty() {
        let accepted = offer.accepted.iter().map(taken);
        accepted.for_each(|codec| push_new(&mut to_offerer, codec));
        // What is taken for the offerer's sake is what it prefers.
        to_offerer.sort_by_key(|codec| offer.rank(codec.payload_type));
    }
    if !to_offerer.iter().any(Codec::is_audio) {
        let first = offer.fallback.iter().find(|codec| codec.is_audio());
        to_offerer.extend(first.map(taken));
    }
    // Events on a clock that the offerer does not have.
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
    // Audio first: nobody prefers keys.
    to_offerer.sort_by_key(|codec| !codec.is_audio());
    to_offerer
}

/// Which offered codec `theirs` stands for. An answer may have numbers of its own (RFC 3264, section 6.1).
fn common<'a>(offer: &'a Offer, theirs: &Codec) -> Option<Common<'a>> {
    let all = || offer.outgoing.iter();
    let same_number = |one: &&Offered| one.codec.payload_type == theirs.payload_type;
    let same_format = |one: &&Offered| one.codec.is_format_of(theirs);
    // A static number has one meaning, however its name is written (RFC 3551, section 6).
    let same_static =
        |one: &&Offered| same_number(one) && static_payload(theirs.payload_type).is_some();
    // Events on another clock are the same DTMF digits: their durations are converted.
    let same_events =
        |one: &&Offered| one.codec.is_telephone_event() && theirs.is_telephone_event();
    let found = match theirs.name.is_empty() || all().any(|one| is_unnamed_twin(one, theirs)) {
        // A number without a name means what was offered.
        true => all().find(same_number),
        false => all()
            .find(|one| same_number(one) && same_format(one))
            .or_else(|| all().find(|one| same_format(one) && one.codec.fmtp == theirs.fmtp))
            .or_else(|| all().find(same_format))
            .or_else(|| all().find(same_static))
            .or_else(|| all().find(same_events)),
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

/// Whether the offer has this number without a name: the answerer knows what it means, or repeats it.
fn is_unnamed_twin(offered: &Offered, theirs: &Codec) -> bool {
    offered.codec.name.is_empty() && offered.codec.payload_type == theirs.payload_type
}

/// A codec of the offerer as its answer has it: its parameters say what it takes itself, but for the range of keys.
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

/// What the offerer offered, it takes, whether or not its answer names it (RFC 3264, section 5.1).
fn from_answerer(offer: &Offer, to_offerer: &[Codec], one: &Common<'_>) -> Route {
    let same = (!one.offered.is_added).then_some(&one.offered.codec);
    Route {
        received: one.theirs.clone(),
        then: then(&one.theirs, same, to_offerer.iter(), offer.makes_anew[1]),
    }
}

/// What is done with packets of `received`, if the receiver takes `same`, which is the same codec, and `others`.
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
