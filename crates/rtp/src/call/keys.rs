//! DTMF digits (RFC 4733). This module parses them, and maps them to the far side's payload type and clock rate.

use crate::id::{NS_PER_S, RtpTime};

/// A DTMF digit of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyEvent {
    /// The event's number: 0 to 9, 10 for `*`, 11 for `#`, 12 to 15 for A to D (RFC 4733, table 3).
    pub event: u8,
    /// Whether the digit is pressed or released.
    pub phase: KeyPhase,
}

/// Phase of a DTMF digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPhase {
    /// The digit is pressed.
    Pressed,
    /// The digit was released after this time.
    Released {
        /// How long the digit was pressed, ms.
        duration_ms: u32,
    },
}

/// The payload of an event's packet (RFC 4733, section 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyPayload {
    pub(super) event: u8,
    pub(super) is_end: bool,
    /// Power level in dBm0 without its minus sign.
    pub(super) volume: u8,
    /// Duration in timestamp units.
    pub(super) duration: u16,
}

impl KeyPayload {
    pub(super) fn parse(bytes: &[u8]) -> Option<KeyPayload> {
        let &[event, second, high, low] = bytes.first_chunk()?;
        Some(KeyPayload {
            event,
            is_end: second & 0x80 != 0,
            volume: second & 0x3f,
            duration: u16::from_be_bytes([high, low]),
        })
    }

    pub(super) fn write(self, out: &mut Vec<u8>) {
        let [high, low] = self.duration.to_be_bytes();
        let end = u8::from(self.is_end) << 7;
        out.extend([self.event, end | self.volume, high, low]);
    }
}

/// The DTMF digit that is being pressed, or the last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// The party's timestamp, which is the same in all packets of a segment.
    pub(super) own_time: RtpTime,
    /// The party's clock rate.
    pub(super) own_hz: u32,
    /// Length of the earlier segments, and of all segments as far as known, in the party's units.
    pub(super) before: u64,
    pub(super) units: u64,
    /// The far side's timestamp. `None`: no packet was sent to it yet.
    pub(super) time: Option<RtpTime>,
    /// The digit's end on the time line of the incoming audio, as far as known.
    pub(super) until: RtpTime,
    pub(super) event: u8,
    pub(super) is_ended: bool,
}

impl Key {
    pub(super) fn begin(own_time: RtpTime, own_hz: u32, event: u8) -> Key {
        Key {
            own_time,
            own_hz: own_hz.max(1),
            before: 0,
            units: 0,
            time: None,
            until: own_time,
            event,
            is_ended: false,
        }
    }

    /// Whether a packet with another timestamp continues this digit. An event that is longer than the duration field allows is sent in
    /// segments, and the timestamp of each is the end of the previous one (RFC 4733, section 2.5.1.3).
    pub(super) fn goes_on(&self, own_time: RtpTime, event: u8) -> bool {
        let told = self.units - self.before;
        !self.is_ended
            && event == self.event
            && told >= u64::from(u16::MAX) / 2
            && own_time == self.own_time.plus(told as u32)
    }

    /// Returns the digit's length so far, ns.
    pub(super) fn ns(&self) -> u64 {
        (u128::from(self.units) * u128::from(NS_PER_S) / u128::from(self.own_hz)) as u64
    }

    /// Returns the length at another clock rate as a segment: the units before the segment, and those in it.
    pub(super) fn segment(&self, to_hz: u32) -> (u32, u16) {
        let units = self.units * u64::from(to_hz) / u64::from(self.own_hz);
        let before = units.saturating_sub(1) / SEGMENT_UNITS_MAX * SEGMENT_UNITS_MAX;
        (before as u32, (units - before) as u16)
    }
}

/// The largest value of the duration field.
const SEGMENT_UNITS_MAX: u64 = u16::MAX as u64;
