//! The state of the DTMF digits that a party sends as telephone events (RFC 4733), and the reports about them to the owner.

use std::collections::VecDeque;

use crate::call::keys::{Key, KeyEvent, KeyPayload, KeyPhase};
use crate::leg::{MediaPacket, Payload};

/// The digits that a party sends as events: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The pressed digit, or the last one.
    pub(super) key: Option<Key>,
    /// Reports that the owner has not taken yet.
    pub(super) reports: VecDeque<KeyEvent>,
    /// Whether a digit is pressed, as far as the packets show.
    pub(super) is_pressed: bool,
    /// Time at which the pressed digit ends if no more packets of it arrive.
    pub(super) over_ns: u64,
    /// Time at which a packet of the digit last added to the budget for its tone.
    pub(super) paid_ns: u64,
    /// Whether the party's digits are blocked.
    pub(super) is_blocked: bool,
    /// Whether the party's digits pass in every mode.
    pub(super) passes_always: bool,
}

impl Keys {
    /// Reports each press and release to the owner once. Returns whether the digit is a new one. `from_hz` is the clock rate of the
    /// incoming audio.
    pub(super) fn note(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        from_hz: u32,
    ) -> bool {
        let own_time = packet.own_time;
        let mut is_new = false;
        match &mut self.key {
            Some(key) if key.own_time == own_time => {}
            Some(key) if key.goes_on(own_time, told.event) => {
                key.own_time = own_time;
                key.before = key.units;
            }
            _ => {
                self.release();
                self.key = Some(Key::begin(own_time, payload.clock_rate_hz, told.event));
                self.report(told.event, KeyPhase::Pressed);
                is_new = true;
            }
        }
        if let Some(key) = &mut self.key
            && !key.is_ended
        {
            key.units = key.units.max(key.before + u64::from(told.duration));
            let units = key.ns() / 1000 * u64::from(from_hz) / 1_000_000;
            key.until = packet.time.plus(units as u32);
            self.is_pressed = true;
        }
        if told.is_end {
            self.release();
        }
        is_new
    }

    /// Releases the pressed digit, because it has ended or all packets with its end were lost.
    pub(super) fn release(&mut self) {
        self.is_pressed = false;
        let Some(key) = &mut self.key else { return };
        if !std::mem::replace(&mut key.is_ended, true) {
            let (event, duration_ms) = (key.event, (key.ns() / 1_000_000) as u32);
            self.report(event, KeyPhase::Released { duration_ms });
        }
    }

    pub(super) fn report(&mut self, event: u8, phase: KeyPhase) {
        if self.reports.len() < KEY_EVENTS_MAX {
            self.reports.push_back(KeyEvent { event, phase });
        }
    }
}

/// Maximum number of presses and releases that are queued for the owner.
const KEY_EVENTS_MAX: usize = 32;
/// Time without a packet after which a digit ends. Three updates would have arrived in it. RFC 4733, section 2.5.2.2, leaves this time to
/// the receiver.
pub(super) const KEY_OVER_NS: u64 = 200_000_000;
/// Distance from the known end of a digit at which its tone no longer replaces audio. It allows for two missing packets, which usually come
/// every 50 ms.
pub(super) const KEY_SILENCE_NS: u64 = 110_000_000;
