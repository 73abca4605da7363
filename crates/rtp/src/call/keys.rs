//! Key presses (RFC 4733): read, and given the far side's numbers and clock rate.

use crate::id::RtpTime;

/// A party's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyEvent {
    /// The event's number: 0 to 9, 10 for `*`, 11 for `#`, 12 to 15 for A to D (RFC 4733, table 3).
    pub event: u8,
    /// Whether it is pressed or released.
    pub phase: KeyPhase,
}

/// What became of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPhase {
    /// It is pressed.
    Pressed,
    /// It was released after this long.
    Released {
        /// In ms.
        duration_ms: u32,
    },
}

/// The payload of an event's packet (RFC 4733, section 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyPayload {
    pub(super) event: u8,
    pub(super) is_end: bool,
    /// Power level, dBm0 with the sign dropped.
    pub(super) volume: u8,
    /// In timestamp units.
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

    /// Counted at another clock rate.
    pub(super) fn at_rate(self, from_hz: u32, to_hz: u32) -> KeyPayload {
        let duration = u64::from(self.duration) * u64::from(to_hz) / u64::from(from_hz.max(1));
        KeyPayload {
            duration: duration.min(u64::from(u16::MAX)) as u16,
            ..self
        }
    }
}

/// A key that is being pressed, or was last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// As the party has it: the same in all packets of the event.
    pub(super) own_time: RtpTime,
    /// As the far side has it.
    pub(super) time: RtpTime,
    pub(super) event: u8,
    pub(super) is_ended: bool,
    /// Of its tone, what has been made.
    pub(super) toned_ns: u64,
}
