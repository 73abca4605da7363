//! What received payload types mean, where nobody has negotiated them.

use std::sync::{Arc, LazyLock, Mutex, Weak};

use threadbare_rtp::id::PayloadType;
use threadbare_rtp::leg::{Carries, Payload, PayloadMap, PayloadMapError};
use threadbare_rtp::payload::PayloadTypes;

use crate::kit::lock;

/// Maps that are in use: thousands of sources have the same one.
type Known = Vec<(Option<u32>, PayloadTypes, Weak<PayloadMap>)>;
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The static payload types (RFC 3551, section 6).
pub(super) fn any() -> Result<Arc<PayloadMap>, PayloadMapError> {
    of(None, PayloadTypes::ALL)
}

/// The accepted payload types, all of this clock rate; without one, the static ones of them, as no other clock rate is known.
pub(super) fn of(
    clock_rate_hz: Option<u32>,
    accepted: PayloadTypes,
) -> Result<Arc<PayloadMap>, PayloadMapError> {
    let mut known = lock(&KNOWN);
    let same = known
        .iter()
        .find(|(rate_hz, types, _)| (*rate_hz, *types) == (clock_rate_hz, accepted));
    if let Some(map) = same.and_then(|(.., map)| map.upgrade()) {
        return Ok(map);
    }
    let map = Arc::new(make(clock_rate_hz, accepted)?);
    known.retain(|(.., map)| map.strong_count() > 0);
    known.push((clock_rate_hz, accepted, Arc::downgrade(&map)));
    Ok(map)
}

fn make(clock_rate_hz: Option<u32>, accepted: PayloadTypes) -> Result<PayloadMap, PayloadMapError> {
    let any = PayloadMap::any(clock_rate_hz)?;
    let entries = any
        .iter()
        .filter(|payload| accepted.contains(payload.payload_type))
        .map(|payload| of_rate(payload, clock_rate_hz))
        .collect::<Vec<_>>();
    match PayloadMap::open(&entries) {
        // None of them has a clock rate: nothing is accepted until caps give one.
        Err(PayloadMapError::NoAudio) => PayloadMap::open(&[nothing()]),
        map => map,
    }
}

/// With caps, the user says how packets are to be read.
fn of_rate(payload: &Payload, clock_rate_hz: Option<u32>) -> Payload {
    match clock_rate_hz {
        Some(clock_rate_hz) => Payload {
            carries: Carries::Opaque(""),
            clock_rate_hz,
            ..*payload
        },
        None => *payload,
    }
}

/// A number that no sender has: it is reserved (RFC 3551, table 4).
fn nothing() -> Payload {
    Payload {
        payload_type: PayloadType(1),
        carries: Carries::Opaque(""),
        clock_rate_hz: 8000,
    }
}
