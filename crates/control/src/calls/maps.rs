//! From the codecs that two sides agreed on to the payload maps of the media plane.
//!
//! The plane passes a packet where the receiver's map has the same content at the same clock rate, and makes audio anew in the receiver's
//! first format otherwise. So a side's maps name what the rules of the request leave it, and nothing else.

use std::sync::Arc;

use threadbare_rtp::id::PayloadType;
use threadbare_rtp::leg::{Carries, OpaqueCodec, Payload, PayloadMap};

use crate::codec::{Answer, Offer, Then};
use crate::sdp::{Codec, RTCP_NUMBERS};

/// What a side sends, and what it takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Maps {
    pub(super) sends: Arc<PayloadMap>,
    pub(super) takes: Arc<PayloadMap>,
}

/// The maps of the offerer and of the answerer, which multiplex or not. `None`: a side has no audio that can be named.
pub(super) fn maps(offer: &Offer, answer: &Answer, mux: [bool; 2]) -> Option<[Maps; 2]> {
    let own = |codec: &Codec| entry(codec, codec.payload_type);
    let mut offerer_takes: Vec<Payload> = answer.to_offerer.iter().map(own).collect();
    let mut answerer_takes = Vec::new();
    let mut aliases = Vec::new();
    for route in &answer.from_answerer {
        let theirs = &route.received;
        // What passes is one codec, with a number on each side.
        let offered = match route.then {
            Then::Pass(number) if !theirs.is_telephone_event() => Some(number),
            _ => None,
        };
        let alone = PayloadType(theirs.payload_type.0 | ALONE);
        let payload = entry(theirs, offered.unwrap_or(alone));
        answerer_takes.push(payload);
        let alias = offered.or_else(|| {
            let mut all = offer.codecs();
            all.find(|one| one.is_format_of(theirs))
                .map(|one| one.payload_type)
        });
        aliases.extend(alias.map(|payload_type| Payload {
            payload_type,
            ..payload
        }));
        // What was offered is taken, whatever the answer names: "It MUST be prepared to send and receive media for any sendrecv streams"
        // (RFC 3264, section 5.1).
        offerer_takes.extend(offered.map(|payload_type| Payload {
            payload_type,
            ..payload
        }));
    }
    // An answerer may send with the numbers of the offer though it gave others (RFC 3264, section 6.1).
    let answerer_sends = answerer_takes.iter().copied().chain(aliases);
    let offerer_sends = answer.from_offerer.iter().map(|one| own(&one.received));
    let offerer = Maps {
        sends: map(offerer_sends, mux[0])?,
        takes: map(offerer_takes.into_iter(), mux[0])?,
    };
    let answerer = Maps {
        sends: map(answerer_sends, mux[1])?,
        takes: map(answerer_takes.iter().copied(), mux[1])?,
    };
    Some([offerer, answerer])
}

/// In the place of an offerer's number: a codec of the answerer that does not pass.
const ALONE: u8 = 128;

/// A payload type; of several codecs that are only passed on, `shared` tells which one it is, as names do not suffice: AMR is packed in two
/// ways.
fn entry(codec: &Codec, shared: PayloadType) -> Payload {
    let carries = if codec.is_telephone_event() {
        Carries::TelephoneEvent
    } else if codec.is_comfort_noise() {
        Carries::ComfortNoise
    } else {
        match codec.format() {
            Some(format) => Carries::Audio(format),
            None => Carries::Opaque(OpaqueCodec(u32::from(shared.0) + 1)),
        }
    };
    let (clock_rate_hz, _) = codec.clock_and_channels();
    Payload {
        payload_type: codec.payload_type,
        carries,
        clock_rate_hz: if clock_rate_hz == 0 {
            UNNAMED_HZ
        } else {
            clock_rate_hz
        },
    }
}

/// Skips numbers that come again and, with mux, those that look like RTCP.
fn map(entries: impl Iterator<Item = Payload>, mux: bool) -> Option<Arc<PayloadMap>> {
    let mut once: Vec<Payload> = Vec::new();
    for entry in entries {
        let number = entry.payload_type;
        let is_new = once.iter().all(|one| one.payload_type != number);
        let is_rtcp = mux && RTCP_NUMBERS.contains(&number.0);
        if is_new && !is_rtcp {
            once.push(entry);
        }
    }
    PayloadMap::without_mux(&once).ok().map(Arc::new)
}

/// Clock rate of a number that the description does not name: that of telephony's audio and events.
const UNNAMED_HZ: u32 = 8000;
