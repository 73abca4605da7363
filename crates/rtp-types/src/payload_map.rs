//! The meaning of payload types that was agreed on with a peer.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use thiserror::Error;

use crate::format::Format;
use crate::id::{CLOCK_RATE_HZ_MAX, PayloadType};
use crate::payload::{COMFORT_NOISE, static_payload};

/// The content of packets of a payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Audio that can be decoded.
    Audio(Format),
    /// Audio that is forwarded unchanged, because `threadbare-rtp` does not have the codec.
    Opaque(OpaqueCodec),
    /// DTMF digits (RFC 4733).
    TelephoneEvent,
    /// Comfort noise (RFC 3389).
    ComfortNoise,
}

/// Identifies a codec whose packets are only forwarded. The same number in the maps of both sides means the same packets. The
/// creator of the maps chooses the numbers, because names are ambiguous: for example, AMR has two packet formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpaqueCodec(pub u32);

/// One payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// The number of the payload type.
    pub payload_type: PayloadType,
    /// The content of its packets.
    pub carries: Carries,
    /// Units of its timestamps per second.
    pub clock_rate_hz: u32,
}

impl Payload {
    /// Returns audio of this format.
    #[must_use]
    pub fn audio(payload_type: u8, format: Format) -> Payload {
        Payload {
            payload_type: PayloadType(payload_type),
            carries: Carries::Audio(format),
            clock_rate_hz: format.clock_rate_hz,
        }
    }

    /// Returns telephone events.
    #[must_use]
    pub fn telephone_event(payload_type: u8, clock_rate_hz: u32) -> Payload {
        Payload {
            payload_type: PayloadType(payload_type),
            carries: Carries::TelephoneEvent,
            clock_rate_hz,
        }
    }

    /// Returns comfort noise.
    #[must_use]
    pub fn comfort_noise(payload_type: u8, clock_rate_hz: u32) -> Payload {
        Payload {
            payload_type: PayloadType(payload_type),
            carries: Carries::ComfortNoise,
            clock_rate_hz,
        }
    }
}

/// Why a map is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PayloadMapError {
    /// No payload type carries audio.
    #[error("no payload type carries audio: at least one is needed")]
    NoAudio,
    /// The number is outside of 0..=127, or RFC 5761, section 4, reserves it for RTCP on a port shared with RTP.
    #[error("payload type {0}, must be 0 to 63 or 96 to 127")]
    Number(u8),
    /// Two entries have the same number.
    #[error("payload type {0} occurs twice")]
    Twice(PayloadType),
    /// The clock rate is 0, or above the limit of the jitter buffer.
    #[error(
        "payload type {payload_type}: clock rate {rate_hz} Hz, must be 1 to {CLOCK_RATE_HZ_MAX}"
    )]
    ClockRate {
        /// The payload type.
        payload_type: PayloadType,
        /// The given rate.
        rate_hz: u32,
    },
}

/// All payload types of a leg, with the preferred audio first. Each packet needs one look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadMap {
    entries: Box<[Payload]>,
    /// Index of each payload type's entry, plus 1; 0: none.
    places: [u8; 128],
    /// Whether types without an entry are assumed to have the audio's clock rate.
    is_open: bool,
}

impl PayloadMap {
    /// Creates a map of these entries, with the preferred audio first.
    ///
    /// # Errors
    /// Fails with the reason if the entries are not a valid map ([`PayloadMapError`]).
    pub fn new(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let mut numbers = entries.iter().map(|entry| entry.payload_type.0);
        match numbers.find(|number| RTCP_NUMBERS.contains(number)) {
            Some(number) => Err(PayloadMapError::Number(number)),
            None => PayloadMap::without_mux(entries),
        }
    }

    /// Acts as [`new`](Self::new), for a leg whose RTCP has a separate port. On such a leg, 64 to 95 are ordinary numbers.
    ///
    /// # Errors
    /// Fails with the reason if the entries are not a valid map ([`PayloadMapError`]).
    pub fn without_mux(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let mut places = [0; 128];
        for (place, entry) in entries.iter().enumerate() {
            let number = entry.payload_type;
            match places.get_mut(usize::from(number.0)) {
                Some(0) => {}
                Some(_) => return Err(PayloadMapError::Twice(number)),
                None => return Err(PayloadMapError::Number(number.0)),
            }
            if !(1..=CLOCK_RATE_HZ_MAX).contains(&entry.clock_rate_hz) {
                return Err(PayloadMapError::ClockRate {
                    payload_type: number,
                    rate_hz: entry.clock_rate_hz,
                });
            }
            places[usize::from(number.0)] = place as u8 + 1;
        }
        let map = PayloadMap {
            entries: entries.into(),
            places,
            is_open: false,
        };
        if map.entries.iter().any(Payload::is_audio) {
            Ok(map)
        } else {
            Err(PayloadMapError::NoAudio)
        }
    }

    /// Acts as [`new`](Self::new), for the payload types that a side accepts. Several formats may have the same number, because
    /// only one of them is sent.
    ///
    /// # Errors
    /// Fails with the reason if the entries are not a valid map ([`PayloadMapError`]).
    pub fn to_send(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let mut once: Vec<Payload> = Vec::new();
        for entry in entries {
            if !once
                .iter()
                .any(|known| known.payload_type == entry.payload_type)
            {
                once.push(*entry);
            }
        }
        let mut map = PayloadMap::new(&once)?;
        map.entries = entries.into();
        map.places = [0; 128];
        for (place, entry) in entries.iter().enumerate() {
            map.places[usize::from(entry.payload_type.0)] = place as u8 + 1;
        }
        Ok(map)
    }

    /// Creates a map of all payload types, for packets that are only forwarded. Static types have their own clock rates (RFC
    /// 3551, section 6). The other types have `clock_rate_hz`, if it is given. Static types with a [`Format`] can have listeners.
    ///
    /// # Errors
    /// Fails if the clock rate is out of range.
    pub fn any(clock_rate_hz: Option<u32>) -> Result<PayloadMap, PayloadMapError> {
        let numbers = (0..128).filter(|number| !RTCP_NUMBERS.contains(number));
        let entries: Vec<Payload> = numbers
            .filter_map(|number| {
                let payload_type = PayloadType(number);
                let fixed = static_payload(payload_type);
                let carries = match Format::of_static(payload_type) {
                    Some(format) => Carries::Audio(format),
                    None if payload_type == COMFORT_NOISE => Carries::ComfortNoise,
                    // A static number has a fixed meaning. Both sides have agreed on the meaning of the other numbers.
                    None if fixed.is_some() => Carries::Opaque(OpaqueCodec(u32::from(number) + 1)),
                    None => Carries::Opaque(OpaqueCodec::default()),
                };
                Some(Payload {
                    payload_type,
                    carries,
                    clock_rate_hz: fixed.map(|fixed| fixed.clock_rate_hz).or(clock_rate_hz)?,
                })
            })
            .collect();
        PayloadMap::open(&entries)
    }

    /// Acts as [`new`](Self::new), for packets that are only forwarded. Types without an entry are assumed to have the audio's
    /// clock rate.
    ///
    /// # Errors
    /// Fails with the reason if the entries are not a valid map ([`PayloadMapError`]).
    pub fn open(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let map = PayloadMap::new(entries)?;
        Ok(PayloadMap {
            is_open: true,
            ..map
        })
    }

    /// Returns a map that all users with the same contents share, so that thousands of legs use the same cache lines.
    #[must_use]
    pub fn shared(self) -> Arc<PayloadMap> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut living = known.iter().filter_map(Weak::upgrade);
        if let Some(same) = living.find(|map| **map == self) {
            return same;
        }
        drop(living);
        let map = Arc::new(self);
        known.retain(|known| known.strong_count() > 0);
        if known.len() < KNOWN_MAX {
            known.push(Arc::downgrade(&map));
        }
        map
    }

    /// Returns the map for a port's packets. With mux, the numbers that RTCP uses have no entry.
    #[must_use]
    pub fn received(map: Arc<PayloadMap>, mux: bool) -> Arc<PayloadMap> {
        let numbers = usize::from(*RTCP_NUMBERS.start())..=usize::from(*RTCP_NUMBERS.end());
        if !mux || map.places[numbers.clone()].iter().all(|place| *place == 0) {
            return map;
        }
        let mut map = PayloadMap::clone(&map);
        map.places[numbers].fill(0);
        map.shared()
    }

    /// Returns the clock rate of this payload type in a stream with audio of `audio_hz`, if it is known.
    #[must_use]
    pub fn clock_rate_hz(&self, payload_type: PayloadType, audio_hz: u32) -> Option<u32> {
        match self.get(payload_type) {
            Some(payload) => Some(payload.clock_rate_hz),
            None => self.is_open.then_some(audio_hz),
        }
    }

    /// Returns the entry of this payload type, if it was agreed on.
    #[inline]
    #[must_use]
    pub fn get(&self, payload_type: PayloadType) -> Option<&Payload> {
        let place = *self.places.get(usize::from(payload_type.0))?;
        self.entries.get(usize::from(place).wrapping_sub(1))
    }

    /// Returns the audio to send.
    #[must_use]
    pub fn audio(&self) -> &Payload {
        let audio = self.entries.iter().find(|entry| entry.is_audio());
        audio.unwrap_or(&self.entries[0])
    }

    /// Returns the telephone events for audio of this clock rate. If there are none, returns those of another rate.
    #[must_use]
    pub fn telephone_event(&self, clock_rate_hz: u32) -> Option<&Payload> {
        self.beside(Carries::TelephoneEvent, clock_rate_hz)
    }

    /// Returns the comfort noise for audio of this clock rate. RFC 3389, section 4: "The RTP clock rate [...] is the same as that
    /// of the codec".
    #[must_use]
    pub fn comfort_noise(&self, clock_rate_hz: u32) -> Option<&Payload> {
        self.beside(Carries::ComfortNoise, clock_rate_hz)
            .filter(|noise| noise.clock_rate_hz == clock_rate_hz)
    }

    fn beside(&self, carries: Carries, clock_rate_hz: u32) -> Option<&Payload> {
        let of_kind = || self.entries.iter().filter(|entry| entry.carries == carries);
        of_kind()
            .find(|entry| entry.clock_rate_hz == clock_rate_hz)
            .or_else(|| of_kind().next())
    }

    /// Returns all entries.
    pub fn iter(&self) -> impl Iterator<Item = &Payload> {
        self.entries.iter()
    }
}

impl Payload {
    /// Whether the packets contain audio, decoded or only forwarded.
    #[must_use]
    pub fn is_audio(&self) -> bool {
        matches!(self.carries, Carries::Audio(_) | Carries::Opaque(_))
    }
}

/// RFC 5761, section 4, of RTP and RTCP on one port: "payload types in the range 64-95 MUST NOT be used".
const RTCP_NUMBERS: std::ops::RangeInclusive<u8> = 64..=95;

/// The shared maps that are in use.
static KNOWN: Mutex<Vec<Weak<PayloadMap>>> = Mutex::new(Vec::new());
/// Maximum number of shared maps. Each new map is compared with all of them. A gateway needs only a few; if there are more than
/// this, the others are not shared.
const KNOWN_MAX: usize = 64;
