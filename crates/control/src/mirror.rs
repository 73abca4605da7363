//! Serialisation of values whose types belong to another crate, or contain keys. These types implement no serialisation themselves, so that
//! no log and no reply can reveal them by accident.
//!
//! To use it on a field, write `#[serde(with = "crate::mirror")]`.

use std::sync::Arc;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use threadbare_rtp_types::format::{Encoding, Format};
use threadbare_rtp_types::id::PayloadType;
use threadbare_rtp_types::learn::{Learn, Method, Once};
use threadbare_rtp_types::payload_map::{Carries, OpaqueCodec, Payload, PayloadMap};
use threadbare_rtp_types::side::Side;
use threadbare_rtp_types::srtp::{Crypto, MasterKey, Suite};

use crate::saved::{ByteString, SavedKey};

/// A type that is converted to another one for the saved state.
pub(crate) trait Mirror: Sized {
    type Saved: Serialize + DeserializeOwned;

    fn save(&self) -> Self::Saved;

    /// Converts the saved form back. `Err` contains the reason why it is invalid.
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

impl Mirror for Arc<[u8]> {
    type Saved = ByteString;

    fn save(&self) -> ByteString {
        self.to_vec().into()
    }

    fn load(saved: ByteString) -> Result<Arc<[u8]>, &'static str> {
        Ok(saved.0.as_slice().into())
    }
}

impl Mirror for Box<[u8]> {
    type Saved = ByteString;

    fn save(&self) -> ByteString {
        self.to_vec().into()
    }

    fn load(saved: ByteString) -> Result<Box<[u8]>, &'static str> {
        Ok(saved.0.as_slice().into())
    }
}

/// The saved names of sides, for `#[serde(with = "crate::mirror::SideName")]`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Side")]
pub(crate) enum SideName {
    A,
    B,
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

/// A word from a table, such as a kind of media or the name of a suite. Serde would borrow a field of type `&'static str`; the alias
/// prevents that.
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
    type Saved = SavedKey;

    fn save(&self) -> SavedKey {
        self.into()
    }

    fn load(saved: SavedKey) -> Result<MasterKey, &'static str> {
        saved.try_into()
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SavedCrypto {
    tag: u32,
    key: SavedKey,
    lifetime_packets: Option<u64>,
}

impl Mirror for Crypto {
    type Saved = SavedCrypto;

    fn save(&self) -> SavedCrypto {
        SavedCrypto {
            tag: self.tag,
            key: self.key.save(),
            lifetime_packets: self.lifetime_packets,
        }
    }

    fn load(saved: SavedCrypto) -> Result<Crypto, &'static str> {
        Ok(Crypto {
            tag: saved.tag,
            key: saved.key.try_into()?,
            lifetime_packets: saved.lifetime_packets,
        })
    }
}

/// The saved names of the rules for learning, for `#[serde(with = "crate::mirror::LearnRule")]`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Learn")]
pub(crate) enum LearnRule {
    Never,
    Once(#[serde(with = "OnceFields")] Once),
    Follow { silence_ms: u32 },
    Anyone,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Once")]
struct OnceFields {
    #[serde(with = "MethodName")]
    method: Method,
    fixed_ms: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Method")]
enum MethodName {
    Immediate,
    Delayed,
    Heuristic,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SavedPayload {
    payload_type: u8,
    carries: SavedCarries,
    clock_rate_hz: u32,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum SavedCarries {
    Audio {
        encoding: String,
        sample_rate_hz: u32,
        channels: u8,
    },
    Opaque(u32),
    TelephoneEvent,
    ComfortNoise,
}

impl Mirror for Carries {
    type Saved = SavedCarries;

    fn save(&self) -> SavedCarries {
        match self {
            Carries::Audio(format) => SavedCarries::Audio {
                encoding: format.encoding.name().to_owned(),
                sample_rate_hz: format.sample_rate_hz,
                channels: format.channels,
            },
            Carries::Opaque(codec) => SavedCarries::Opaque(codec.0),
            Carries::TelephoneEvent => SavedCarries::TelephoneEvent,
            Carries::ComfortNoise => SavedCarries::ComfortNoise,
        }
    }

    fn load(saved: SavedCarries) -> Result<Carries, &'static str> {
        Ok(match saved {
            SavedCarries::Audio {
                encoding,
                sample_rate_hz,
                channels,
            } => {
                let encoding: Result<Encoding, _> = encoding.parse();
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
    type Saved = Vec<SavedPayload>;

    fn save(&self) -> Self::Saved {
        let one = |payload: &Payload| SavedPayload {
            payload_type: payload.payload_type.save(),
            carries: payload.carries.save(),
            clock_rate_hz: payload.clock_rate_hz,
        };
        self.iter().map(one).collect()
    }

    fn load(saved: Self::Saved) -> Result<PayloadMap, &'static str> {
        let one = |saved: SavedPayload| {
            Ok(Payload {
                payload_type: PayloadType::load(saved.payload_type)?,
                carries: Carries::load(saved.carries)?,
                clock_rate_hz: saved.clock_rate_hz,
            })
        };
        let entries: Result<Vec<Payload>, &'static str> = saved.into_iter().map(one).collect();
        PayloadMap::without_mux(&entries?).map_err(|_| "the payload types are not a valid map")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use threadbare_rtp_types::srtp::Mki;

    use super::*;

    const FORMAT: crate::saved::Format = crate::saved::Format {
        version: 1,
        positional: None,
    };

    /// Checks that a value is equal after it has been saved and loaded.
    fn stays<T: Mirror + PartialEq + std::fmt::Debug>(value: &T) {
        let loaded = T::load(FORMAT.read(&FORMAT.write(&value.save())).unwrap());
        assert_eq!(loaded.as_ref(), Ok(value));
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Rule(#[serde(with = "LearnRule")] Learn);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Name(#[serde(with = "SideName")] Side);

    #[test]
    fn saved_state_round_trips() {
        for side in Side::BOTH.map(Name) {
            assert_eq!(FORMAT.read(&FORMAT.write(&side)), Ok(side));
        }
        stays(&Some(Arc::<[u8]>::from([0, 255])));
        stays(&vec![Box::<[u8]>::from([7; 3]), Box::default()]);
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
            let rule = Rule(learn);
            assert_eq!(FORMAT.read(&FORMAT.write(&rule)), Ok(rule));
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
        assert_eq!(PayloadType::load(128), Err("the payload type is above 127"));
        let key = |bytes: usize, mki: usize| {
            MasterKey::load(SavedKey {
                suite: "AES_CM_128_HMAC_SHA1_80".to_owned(),
                key_and_salt: vec![1; bytes].into(),
                mki: vec![1; mki].into(),
            })
        };
        assert_eq!(
            key(29, 0),
            Err("the length of a key does not fit its crypto suite")
        );
        assert_eq!(key(30, 17), Err("a key identifier (MKI) is too long"));
        let twice = || SavedPayload {
            payload_type: 0,
            carries: SavedCarries::TelephoneEvent,
            clock_rate_hz: 8000,
        };
        let map = PayloadMap::load(vec![twice(), twice()]);
        assert_eq!(map, Err("the payload types are not a valid map"));
    }
}
