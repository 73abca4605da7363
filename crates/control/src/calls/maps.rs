//! Converts the codecs that two sides agreed on to the media plane's payload maps.
//!
//! The media plane forwards a packet if the receiver's map has the same content at the same clock rate. Otherwise it encodes
//! the audio again in the receiver's first format. So a side's maps have only the codecs that the request's rules allow.

use std::sync::Arc;

use threadbare_rtp_types::id::PayloadType;
use threadbare_rtp_types::payload_map::{Carries, OpaqueCodec, Payload, PayloadMap};

use crate::codec::{Answer, Offer, Then};
use crate::sdp::{Codec, RTCP_NUMBERS};

/// The formats that a side sends and accepts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Maps {
    pub(super) sends: Arc<PayloadMap>,
    pub(super) takes: Arc<PayloadMap>,
}

/// Returns the maps of the offerer and of the answerer. `None`: a side has no audio codec that can be named.
pub(super) fn maps(offer: &Offer, answer: &Answer, mux: [bool; 2]) -> Option<[Maps; 2]> {
    let own = |codec: &Codec| entry(codec, codec.payload_type);
    let mut offerer_takes: Vec<Payload> = answer.to_offerer.iter().map(own).collect();
    let mut answerer_takes = Vec::new();
    let mut aliases = Vec::new();
    for route in &answer.from_answerer {
        let theirs = &route.received;
        // A forwarded codec has a number on each side.
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
        // All offered formats are accepted, whichever the answer names: "It MUST be prepared to send and receive media for any
        // sendrecv streams" (RFC 3264, section 5.1).
        offerer_takes.extend(offered.map(|payload_type| Payload {
            payload_type,
            ..payload
        }));
    }
    // An answerer may send with the offer's numbers even if it gave others (RFC 3264, section 6.1).
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

/// Placeholder for the offerer's number of an answerer's codec that is not forwarded.
const ALONE: u8 = 128;

/// Returns a payload type. `shared` identifies a codec that is only forwarded. Names do not suffice: AMR has two packings.
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

/// Skips repeated numbers and, with multiplexing, those that look like RTCP.
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

/// Clock rate of a number that the description does not name. It is the rate of telephony audio and events.
const UNNAMED_HZ: u32 = 8000;
