//! Which payload type carries what, as agreed on with a peer.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use thiserror::Error;

use crate::codec::Format;
use crate::id::PayloadType;
use crate::payload::{COMFORT_NOISE, static_payload};

/// Content of a payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Audio that can be decoded.
    Audio(Format),
    /// Audio that is only passed on, as it is: a codec that is not in this crate.
    Opaque(OpaqueCodec),
    /// Key presses (RFC 4733).
    TelephoneEvent,
    /// Comfort noise (RFC 3389).
    ComfortNoise,
}

/// Tells codecs apart that are only passed on: the same in the maps of both sides means the same packets. Who makes the maps chooses the
/// numbers, as names do not suffice: AMR is packed in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpaqueCodec(pub u32);

/// One payload type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Its number.
    pub payload_type: PayloadType,
    /// What it carries.
    pub carries: Carries,
    /// Units of its timestamps per second.
    pub clock_rate_hz: u32,
}

impl Payload {
    /// Audio of this format.
    #[must_use]
    pub fn audio(payload_type: u8, format: Format) -> Payload {
        Payload {
            payload_type: PayloadType(payload_type),
            carries: Carries::Audio(format),
            clock_rate_hz: format.clock_rate_hz,
        }
    }

    /// Key presses.
    #[must_use]
    pub fn telephone_event(payload_type: u8, clock_rate_hz: u32) -> Payload {
        Payload {
            payload_type: PayloadType(payload_type),
            carries: Carries::TelephoneEvent,
            clock_rate_hz,
        }
    }

    /// Comfort noise.
    #[must_use]
    pub fn comfort_noise(payload_type: u8, clock_rate_hz: u32) -> Payload {
        Payload {
            payload_type: PayloadType(payload_type),
            carries: Carries::ComfortNoise,
            clock_rate_hz,
        }
    }
}

/// A map that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PayloadMapError {
    /// No payload type carries audio.
    #[error("no payload type carries audio: at least one must")]
    NoAudio,
    /// Outside 0..=127, or a number that RFC 5761, section 4, leaves to RTCP on one port with RTP.
    #[error("payload type {0}, allowed are 0 to 63 and 96 to 127")]
    Number(u8),
    /// Two entries have the same number.
    #[error("payload type {0} occurs twice")]
    Twice(PayloadType),
    /// A clock rate of 0, or above the limit of the jitter buffer.
    #[error("payload type {payload_type}: clock rate {rate_hz} Hz, allowed is 1 to {CLOCK_RATE_HZ_MAX}", CLOCK_RATE_HZ_MAX = crate::jitter::CLOCK_RATE_HZ_MAX)]
    ClockRate {
        /// The payload type.
        payload_type: PayloadType,
        /// The rate given.
        rate_hz: u32,
    },
}

/// All payload types of a leg, the preferred audio first. One look-up per packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadMap {
    entries: Box<[Payload]>,
    /// Entry of each payload type, plus 1; 0: none.
    places: [u8; 128],
    /// What has no entry is taken to count the audio's units.
    is_open: bool,
}

impl PayloadMap {
    /// A map of these entries, the preferred audio before other audio.
    ///
    /// # Errors
    /// See [`PayloadMapError`].
    pub fn new(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let mut numbers = entries.iter().map(|entry| entry.payload_type.0);
        match numbers.find(|number| RTCP_NUMBERS.contains(number)) {
            Some(number) => Err(PayloadMapError::Number(number)),
            None => PayloadMap::without_mux(entries),
        }
    }

    /// As [`new`](Self::new), for a leg whose RTCP has its own port: 64 to 95 are numbers like others there.
    ///
    /// # Errors
    /// See [`PayloadMapError`].
    pub fn without_mux(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let mut places = [0; 128];
        for (place, entry) in entries.iter().enumerate() {
            let number = entry.payload_type;
            match places.get_mut(usize::from(number.0)) {
                Some(0) => {}
                Some(_) => return Err(PayloadMapError::Twice(number)),
                None => return Err(PayloadMapError::Number(number.0)),
            }
            if !(1..=crate::jitter::CLOCK_RATE_HZ_MAX).contains(&entry.clock_rate_hz) {
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
        match map.entries.iter().any(Payload::is_audio) {
            true => Ok(map),
            false => Err(PayloadMapError::NoAudio),
        }
    }

    /// As [`new`](Self::new), for a side that is only sent to: several formats may have one number, as one of them is sent.
    ///
    /// # Errors
    /// See [`PayloadMapError`].
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

    /// All payload types, for packets that are only passed on: the static ones with their clock rates (RFC 3551, section 6), the
    /// others with this one, or not at all. Where this crate has the codec of a static one, it can be listened to.
    ///
    /// # Errors
    /// A clock rate out of range.
    pub fn any(clock_rate_hz: Option<u32>) -> Result<PayloadMap, PayloadMapError> {
        let numbers = (0..128).filter(|number| !RTCP_NUMBERS.contains(number));
        let entries: Vec<Payload> = numbers
            .filter_map(|number| {
                let payload_type = PayloadType(number);
                let fixed = static_payload(payload_type);
                let carries = match Format::of_static(payload_type) {
                    Some(format) => Carries::Audio(format),
                    None if payload_type == COMFORT_NOISE => Carries::ComfortNoise,
                    // A static number always means the same, others whatever both sides agreed on.
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

    /// As [`new`](Self::new), for packets that are only passed on: those with other numbers are taken to count the audio's units.
    ///
    /// # Errors
    /// See [`PayloadMapError`].
    pub fn open(entries: &[Payload]) -> Result<PayloadMap, PayloadMapError> {
        let map = PayloadMap::new(entries)?;
        Ok(PayloadMap {
            is_open: true,
            ..map
        })
    }

    /// The one map for all who have the same: thousands of legs then look into the same cache lines.
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

    /// The map for packets of a port: with mux, none of the numbers that RTCP uses has an entry.
    pub(super) fn received(map: Arc<PayloadMap>, mux: bool) -> Arc<PayloadMap> {
        let numbers = usize::from(*RTCP_NUMBERS.start())..=usize::from(*RTCP_NUMBERS.end());
        if !mux || map.places[numbers.clone()].iter().all(|place| *place == 0) {
            return map;
        }
        let mut map = PayloadMap::clone(&map);
        map.places[numbers].fill(0);
        map.shared()
    }

    /// Units per second of this payload type beside audio of `audio_hz`, if they are known.
    pub(super) fn clock_rate_hz(&self, payload_type: PayloadType, audio_hz: u32) -> Option<u32> {
        match self.get(payload_type) {
            Some(payload) => Some(payload.clock_rate_hz),
            None => self.is_open.then_some(audio_hz),
        }
    }

    /// What this payload type carries, if it was agreed on.
    #[inline]
    #[must_use]
    pub fn get(&self, payload_type: PayloadType) -> Option<&Payload> {
        let place = *self.places.get(usize::from(payload_type.0))?;
        self.entries.get(usize::from(place).wrapping_sub(1))
    }

    /// The audio to send.
    #[must_use]
    pub fn audio(&self) -> &Payload {
        let audio = self.entries.iter().find(|entry| entry.is_audio());
        audio.unwrap_or(&self.entries[0])
    }

    /// The telephone events that go with audio of this clock rate; with another rate, if there are no others.
    #[must_use]
    pub fn telephone_event(&self, clock_rate_hz: u32) -> Option<&Payload> {
        self.beside(Carries::TelephoneEvent, clock_rate_hz)
    }

    /// The comfort noise that goes with audio of this clock rate. RFC 3389, section 4: "The RTP clock rate [...] is the same
    /// as that of the codec".
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

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Payload> {
        self.entries.iter()
    }
}

impl Payload {
    pub(crate) fn is_audio(&self) -> bool {
        matches!(self.carries, Carries::Audio(_) | Carries::Opaque(_))
    }
}

/// RFC 5761, section 4, of RTP and RTCP on one port: "payload types in the range 64-95 MUST NOT be used".
const RTCP_NUMBERS: std::ops::RangeInclusive<u8> = 64..=95;

/// Maps that are in use somewhere.
static KNOWN: Mutex<Vec<Weak<PayloadMap>>> = Mutex::new(Vec::new());
/// Looked through for each new one. A gateway has some; more than that are not shared.
const KNOWN_MAX: usize = 64;
