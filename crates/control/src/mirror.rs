//! Serialisation of values whose types belong to another crate, or hold keys. Such types have no serialisation themselves, so
//! that no log and no reply shows them by accident.
//!
//! Use on a field: `#[serde(with = "crate::mirror")]`.

use std::sync::Arc;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use threadbare_rtp_types::format::{Encoding, Format};
use threadbare_rtp_types::id::PayloadType;
use threadbare_rtp_types::learn::{Learn, Method, Once};
use threadbare_rtp_types::payload_map::{Carries, OpaqueCodec, Payload, PayloadMap};
use threadbare_rtp_types::side::Side;
use threadbare_rtp_types::srtp::{Crypto, MasterKey, Mki, Suite};

/// A type with a form for the saved state.
pub(crate) trait Mirror: Sized {
    type Saved: Serialize + DeserializeOwned;

    fn save(&self) -> Self::Saved;

    /// Reads the saved form. `Err`: the reason why it is invalid.
    fn load(saved: Self::Saved) -> Result<Self, &'static str>;
}

pub(crate) fn serialize<T: Mirror, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.save().serialize(to)
}

pub(crate) fn deserialize<'de, T: Mirror, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::load(T::Saved::deserialize(from)?).map_err(D::Error::custom)
}

impl<T: Mirror> Mirror for Option<T> {
    type Saved = Option<T::Saved>;

    fn save(&self) -> Self::Saved {
        self.as_ref().map(T::save)
    }

    fn load(saved: Self::Saved) -> Result<Self, &'static str> {
        saved.map(T::load).transpose()
    }
}

impl<T: Mirror> Mirror for Vec<T> {
    type Saved = Vec<T::Saved>;

    fn save(&self) -> Self::Saved {
        self.iter().map(T::save).collect()
    }

    fn load(saved: Self::Saved) -> Result<Self, &'static str> {
        saved.into_iter().map(T::load).collect()
    }
}

impl<T: Mirror> Mirror for [T; 2] {
    type Saved = [T::Saved; 2];

    fn save(&self) -> Self::Saved {
        [self[0].save(), self[1].save()]
    }

    fn load([a, b]: Self::Saved) -> Result<Self, &'static str> {
        Ok([T::load(a)?, T::load(b)?])
    }
}

impl<T: Mirror> Mirror for Box<T> {
    type Saved = T::Saved;

    fn save(&self) -> Self::Saved {
        T::save(self)
    }

    fn load(saved: Self::Saved) -> Result<Self, &'static str> {
        T::load(saved).map(Box::new)
    }
}

impl<T: Mirror> Mirror for Arc<T> {
    type Saved = T::Saved;

    fn save(&self) -> Self::Saved {
        T::save(self)
    }

    fn load(saved: Self::Saved) -> Result<Self, &'static str> {
        T::load(saved).map(Arc::new)
    }
}

impl Mirror for Side {
    type Saved = u8;

    fn save(&self) -> u8 {
        *self as u8
    }

    fn load(saved: u8) -> Result<Side, &'static str> {
        let side = Side::BOTH.into_iter().find(|side| *side as u8 == saved);
        side.ok_or("the side is neither A nor B")
    }
}

impl Mirror for PayloadType {
    type Saved = u8;

    fn save(&self) -> u8 {
        self.0
    }

    fn load(saved: u8) -> Result<PayloadType, &'static str> {
        match saved {
            ..128 => Ok(PayloadType(saved)),
            _ => Err("the payload type is above 127"),
        }
    }
}

impl Mirror for Suite {
    type Saved = String;

    fn save(&self) -> String {
        self.name().to_owned()
    }

    fn load(saved: String) -> Result<Suite, &'static str> {
        Suite::from_name(&saved).ok_or("the crypto suite is unknown")
    }
}

/// A word of a table: a kind of media, or the name of a suite. The alias keeps serde from borrowing it.
pub(crate) type Word = &'static str;

impl Mirror for Word {
    type Saved = String;

    fn save(&self) -> String {
        (*self).to_owned()
    }

    fn load(saved: String) -> Result<Word, &'static str> {
        let suites = Suite::ALL.into_iter().map(Suite::name);
        let mut known = ["audio", "video"].into_iter().chain(suites);
        known
            .find(|word| *word == saved)
            .ok_or("a kind of media or crypto suite is unknown")
    }
}

impl Mirror for MasterKey {
    /// Suite, key with salt, identifier.
    type Saved = (String, Vec<u8>, Vec<u8>);

    fn save(&self) -> Self::Saved {
        let mki = self.mki().to_vec();
        (self.suite().save(), self.expose_secret().to_vec(), mki)
    }

    fn load((suite, bytes, mki): Self::Saved) -> Result<MasterKey, &'static str> {
        let key = MasterKey::new(Suite::load(suite)?, &bytes);
        let key = key.map_err(|_| "the length of a key does not fit its crypto suite")?;
        let mki = Mki::new(&mki).ok_or("a key identifier (MKI) is too long")?;
        Ok(key.with_mki(mki))
    }
}

impl Mirror for Crypto {
    type Saved = (u32, <MasterKey as Mirror>::Saved, Option<u64>);

    fn save(&self) -> Self::Saved {
        (self.tag, self.key.save(), self.lifetime_packets)
    }

    fn load((tag, key, lifetime_packets): Self::Saved) -> Result<Crypto, &'static str> {
        Ok(Crypto {
            tag,
            key: MasterKey::load(key)?,
            lifetime_packets,
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) enum SavedLearn {
    Never,
    Once(u8, Option<u32>),
    Follow(u32),
    Anyone,
}

impl Mirror for Learn {
    type Saved = SavedLearn;

    fn save(&self) -> SavedLearn {
        match *self {
            Learn::Never => SavedLearn::Never,
            Learn::Once(once) => SavedLearn::Once(
                match once.method {
                    Method::Immediate => 0,
                    Method::Delayed => 1,
                    Method::Heuristic => 2,
                },
                once.fixed_ms,
            ),
            Learn::Follow { silence_ms } => SavedLearn::Follow(silence_ms),
            Learn::Anyone => SavedLearn::Anyone,
        }
    }

    fn load(saved: SavedLearn) -> Result<Learn, &'static str> {
        Ok(match saved {
            SavedLearn::Never => Learn::Never,
            SavedLearn::Once(method, fixed_ms) => Learn::Once(Once {
                method: match method {
                    0 => Method::Immediate,
                    1 => Method::Delayed,
                    2 => Method::Heuristic,
                    _ => return Err("the method of learning addresses is unknown"),
                },
                fixed_ms,
            }),
            SavedLearn::Follow(silence_ms) => Learn::Follow { silence_ms },
            SavedLearn::Anyone => Learn::Anyone,
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) enum SavedCarries {
    /// Name, sample rate, channels.
    Audio(String, u32, u8),
    Opaque(u32),
    TelephoneEvent,
    ComfortNoise,
}

impl Mirror for Carries {
    type Saved = SavedCarries;

    fn save(&self) -> SavedCarries {
        match self {
            Carries::Audio(format) => SavedCarries::Audio(
                format.encoding.name().to_owned(),
                format.sample_rate_hz,
                format.channels,
            ),
            Carries::Opaque(codec) => SavedCarries::Opaque(codec.0),
            Carries::TelephoneEvent => SavedCarries::TelephoneEvent,
            Carries::ComfortNoise => SavedCarries::ComfortNoise,
        }
    }

    fn load(saved: SavedCarries) -> Result<Carries, &'static str> {
        Ok(match saved {
            SavedCarries::Audio(name, sample_rate_hz, channels) => {
                let encoding: Result<Encoding, _> = name.parse();
                let format =
                    encoding.and_then(|encoding| Format::new(encoding, sample_rate_hz, channels));
                Carries::Audio(format.map_err(|_| "the audio format is unknown")?)
            }
            SavedCarries::Opaque(codec) => Carries::Opaque(OpaqueCodec(codec)),
            SavedCarries::TelephoneEvent => Carries::TelephoneEvent,
            SavedCarries::ComfortNoise => Carries::ComfortNoise,
        })
    }
}

impl Mirror for PayloadMap {
    type Saved = Vec<(u8, SavedCarries, u32)>;

    fn save(&self) -> Self::Saved {
        let one = |payload: &Payload| {
            let number = payload.payload_type.save();
            (number, payload.carries.save(), payload.clock_rate_hz)
        };
        self.iter().map(one).collect()
    }

    fn load(saved: Self::Saved) -> Result<PayloadMap, &'static str> {
        let one = |(number, carries, clock_rate_hz)| {
            Ok(Payload {
                payload_type: PayloadType::load(number)?,
                carries: Carries::load(carries)?,
                clock_rate_hz,
            })
        };
        let entries: Result<Vec<Payload>, &'static str> = saved.into_iter().map(one).collect();
        PayloadMap::without_mux(&entries?).map_err(|_| "the payload types are not a valid map")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// By definition, a value that was saved and loaded is equal.
    fn stays<T: Mirror + PartialEq + std::fmt::Debug>(value: &T) {
        let bytes = postcard::to_allocvec(&value.save()).unwrap();
        let loaded = T::load(postcard::from_bytes(&bytes).unwrap());
        assert_eq!(loaded.as_ref(), Ok(value));
    }

    #[test]
    fn saved_state_round_trips() {
        stays(&[Side::A, Side::B]);
        for suite in Suite::ALL {
            stays(&suite);
            stays(&suite.name());
            let key = MasterKey::from_random(suite, &std::array::from_fn(|at| at as u8 + 1));
            stays(&key);
            stays(&key.clone().with_mki(Mki::new(&[0, 1]).unwrap()));
            for lifetime_packets in [None, Some(1 << 20)] {
                let key = key.clone();
                stays(&vec![Crypto {
                    tag: 7,
                    key,
                    lifetime_packets,
                }]);
            }
        }
        for learn in [
            Learn::Never,
            Learn::Once(Once {
                method: Method::Immediate,
                fixed_ms: Some(3),
            }),
            Learn::Once(Once {
                method: Method::Delayed,
                fixed_ms: None,
            }),
            Learn::Once(Once::default()),
            Learn::FOLLOW,
            Learn::Anyone,
        ] {
            stays(&learn);
        }
        let formats = [
            "PCMU/8000",
            "PCMA/16000",
            "G722/8000",
            "L16/44100/2",
            "L24/48000",
            "opus/48000/2",
        ];
        let audio = formats
            .iter()
            .enumerate()
            .map(|(at, text)| Payload::audio(96 + at as u8, Format::from_rtpmap(text).unwrap()));
        let opaque = Payload {
            payload_type: PayloadType(18),
            carries: Carries::Opaque(OpaqueCodec(300)),
            clock_rate_hz: 8000,
        };
        let others = [
            Payload::telephone_event(110, 8000),
            Payload::comfort_noise(13, 8000),
            opaque,
        ];
        let entries: Vec<Payload> = audio.chain(others).collect();
        stays(&Some(Arc::new(PayloadMap::new(&entries).unwrap())));
    }

    #[test]
    fn invalid_saved_values_are_refused_with_the_reason() {
        assert_eq!(Side::load(2), Err("the side is neither A nor B"));
        assert_eq!(PayloadType::load(128), Err("the payload type is above 127"));
        let key = |bytes: usize, mki: usize| {
            let suite = "AES_CM_128_HMAC_SHA1_80".to_owned();
            MasterKey::load((suite, vec![1; bytes], vec![1; mki]))
        };
        assert_eq!(
            key(29, 0),
            Err("the length of a key does not fit its crypto suite")
        );
        assert_eq!(key(30, 17), Err("a key identifier (MKI) is too long"));
        let twice = || (0, SavedCarries::Audio("PCMU".to_owned(), 8000, 1), 8000);
        let map = PayloadMap::load(vec![twice(), twice()]);
        assert_eq!(map, Err("the payload types are not a valid map"));
    }
}
