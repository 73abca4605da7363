//! The meaning of received payload types without negotiation.

use std::sync::Arc;

use threadbare_rtp::id::PayloadType;
use threadbare_rtp::leg::{Carries, OpaqueCodec, Payload, PayloadMap, PayloadMapError};
use threadbare_rtp::payload::PayloadTypes;

/// Returns the static payload types (RFC 3551, section 6).
pub(super) fn any() -> Result<Arc<PayloadMap>, PayloadMapError> {
    of(None, PayloadTypes::ALL)
}

/// Returns the accepted payload types, all with this clock rate. Without a clock rate, only their static ones are accepted,
/// because the clock rates of others are unknown.
pub(super) fn of(
    clock_rate_hz: Option<u32>,
    accepted: PayloadTypes,
) -> Result<Arc<PayloadMap>, PayloadMapError> {
    make(clock_rate_hz, accepted).map(PayloadMap::shared)
}

fn make(clock_rate_hz: Option<u32>, accepted: PayloadTypes) -> Result<PayloadMap, PayloadMapError> {
    let any = PayloadMap::any(clock_rate_hz)?;
    let entries = any
        .iter()
        .filter(|payload| accepted.contains(payload.payload_type))
        .map(|payload| of_rate(payload, clock_rate_hz))
        .collect::<Vec<_>>();
    match PayloadMap::open(&entries) {
        // No clock rate is known, so no packet is accepted until caps give one.
        Err(PayloadMapError::NoAudio) => PayloadMap::open(&[nothing()]),
        map => map,
    }
}

/// Replaces codec and clock rate of `payload` if caps give a clock rate. The user has set these caps, so they take precedence.
fn of_rate(payload: &Payload, clock_rate_hz: Option<u32>) -> Payload {
    match clock_rate_hz {
        Some(clock_rate_hz) => Payload {
            carries: Carries::Opaque(OpaqueCodec::default()),
            clock_rate_hz,
            ..*payload
        },
        None => *payload,
    }
}

/// Returns a payload type that no sender uses: it is reserved (RFC 3551, table 4).
fn nothing() -> Payload {
    Payload {
        payload_type: PayloadType(1),
        carries: Carries::Opaque(OpaqueCodec::default()),
        clock_rate_hz: 8000,
    }
}
