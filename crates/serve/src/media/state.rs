//! Serialises the states of streams for the store. The states contain SRTP keys.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use threadbare_control::saved::{Format, FormatError, Reader, SavedKey};
use threadbare_relay::{AudioState, ForwardState};
use threadbare_rtp::call::{DirectionState, LegId, Part, SessionState, TimeState};
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::leg::{GateState, LegState, SentState};
use threadbare_rtp::srtp::{Keys, PacketIndex, ProtectionState, SourceState};

use threadbare_process::system::unix_at_zero_ns;

/// The state of a stream, as its media thread returns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StreamState {
    /// Identifies the boot of the machine, with which the monotonic clock starts. `None`: unknown.
    pub(super) boot: Option<u128>,
    /// Time on the monotonic clock at which the state was taken.
    pub(super) taken_ns: u64,
    /// Wall-clock time at which the state was taken, since 1970.
    pub(super) taken_unix_ns: u64,
    /// When media of side A and B were last received, on the monotonic clock.
    #[serde(rename = "last_media_ns")]
    pub(super) heard_ns: [Option<u64>; 2],
    /// The files that side A and side B were hearing.
    #[serde(rename = "playbacks")]
    pub(super) plays: [Option<PlayState>; 2],
    pub(super) session: SavedState,
}

/// The part of a file that is still to be played.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlayState {
    pub(crate) file: Arc<str>,
    pub(crate) times: u32,
    pub(crate) start_frame: u64,
    pub(crate) duration_ns: Option<u64>,
}

impl PlayState {
    pub(crate) fn new(file: Arc<str>, times: u32, part: Part) -> PlayState {
        PlayState {
            file,
            times,
            start_frame: part.start_frame,
            duration_ns: part.duration_ns,
        }
    }

    pub(crate) fn part(&self) -> Part {
        Part {
            start_frame: self.start_frame,
            duration_ns: self.duration_ns,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "SavedMediaSession")]
pub(super) enum SavedState {
    Audio(AudioState),
    Forward(ForwardState),
}

/// Versions of saved streams. The documentation of [`threadbare_control::saved`] says which changes need a new version.
const FORMAT: Format = Format {
    version: 5,
    positional: Some(4),
};

impl StreamState {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        FORMAT.write(self)
    }

    /// Encodes the state for a node that takes over at once.
    pub(super) fn to_node_bytes(&self) -> Vec<u8> {
        FORMAT.write_for(Reader::Node, self)
    }

    /// Parses a state. The bytes may come from an untrusted source.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<StreamState, FormatError> {
        FORMAT.read(bytes)
    }
}

impl Serialize for SavedState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let saved = SavedMediaSession::of(self);
        let saved = saved.ok_or_else(|| S::Error::custom("not a session of two parties"))?;
        saved.serialize(serializer)
    }
}

impl StreamState {
    /// Converts the times in a state from another machine to this machine's clock. The state arrived at `came_ns`, and was taken `way_ns`
    /// earlier.
    pub(super) fn on_this_clock(
        self,
        came_ns: u64,
        way_ns: u64,
        boot: Option<u128>,
    ) -> StreamState {
        let taken_ns = came_ns.saturating_sub(way_ns);
        let moved = |at_ns: u64| taken_ns.saturating_sub(self.taken_ns.saturating_sub(at_ns));
        StreamState {
            boot,
            taken_ns,
            taken_unix_ns: taken_ns.saturating_add(unix_at_zero_ns()),
            heard_ns: self.heard_ns.map(|at_ns| at_ns.map(moved)),
            ..self
        }
    }
}

#[derive(Serialize, Deserialize)]
enum SavedMediaSession {
    Audio {
        legs: [SavedLeg; 2],
        directions: [SavedDirection; 2],
        protections: [Option<SavedProtection>; 2],
    },
    Forward {
        gates: [SavedGate; 2],
        protections: [Option<SavedProtection>; 2],
    },
}

impl SavedMediaSession {
    /// Returns `None` if the session does not have two parties.
    fn of(state: &SavedState) -> Option<SavedMediaSession> {
        let protections = |states: &[Option<ProtectionState>; 2]| {
            [0, 1].map(|at: usize| states[at].as_ref().map(SavedProtection::of))
        };
        let audio = |state: &AudioState| {
            let [a, b] = state.session.legs[..] else {
                return None;
            };
            let [to_b, to_a] = state.session.directions[..] else {
                return None;
            };
            Some(SavedMediaSession::Audio {
                legs: [a, b].map(SavedLeg::of),
                directions: [to_b, to_a].map(SavedDirection::of),
                protections: protections(&state.protections),
            })
        };
        match state {
            SavedState::Audio(state) => audio(state),
            SavedState::Forward(state) => Some(SavedMediaSession::Forward {
                gates: state.gates.map(SavedGate::of),
                protections: protections(&state.protections),
            }),
        }
    }
}

impl TryFrom<SavedMediaSession> for SavedState {
    type Error = &'static str;

    fn try_from(saved: SavedMediaSession) -> Result<SavedState, &'static str> {
        let protections = |[a, b]: [Option<SavedProtection>; 2]| {
            let one = |saved: Option<SavedProtection>| saved.map(SavedProtection::load).transpose();
            Ok::<_, &'static str>([one(a)?, one(b)?])
        };
        Ok(match saved {
            SavedMediaSession::Audio {
                legs,
                directions,
                protections: saved,
            } => {
                let [to_b, to_a] = directions;
                SavedState::Audio(AudioState {
                    session: SessionState {
                        legs: legs.into_iter().map(SavedLeg::load).collect(),
                        directions: vec![to_b.load(LegId::B), to_a.load(LegId::A)],
                    },
                    protections: protections(saved)?,
                })
            }
            SavedMediaSession::Forward {
                gates,
                protections: saved,
            } => SavedState::Forward(ForwardState {
                gates: gates.map(SavedGate::load),
                protections: protections(saved)?,
            }),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct SavedLeg {
    ssrc: u32,
    next_seq: u16,
    packets_sent: u64,
    octets_sent: u64,
    source: Option<SavedSender>,
    rtcp_from: Option<SocketAddr>,
    is_fixed: bool,
}

#[derive(Serialize, Deserialize)]
struct SavedSender {
    address: SocketAddr,
    ssrc: u32,
    last_seq: u16,
}

impl SavedLeg {
    fn of(state: LegState) -> SavedLeg {
        SavedLeg {
            ssrc: state.sent.ssrc.0,
            next_seq: state.sent.next_seq.0,
            packets_sent: state.sent.packets_sent,
            octets_sent: state.sent.octets_sent,
            source: state.source.map(|(address, ssrc, seq)| SavedSender {
                address,
                ssrc: ssrc.0,
                last_seq: seq.0,
            }),
            rtcp_from: state.rtcp_from,
            is_fixed: state.is_fixed,
        }
    }

    fn load(self) -> LegState {
        let sender = |saved: SavedSender| (saved.address, Ssrc(saved.ssrc), SeqNum(saved.last_seq));
        LegState {
            sent: SentState {
                ssrc: Ssrc(self.ssrc),
                next_seq: SeqNum(self.next_seq),
                packets_sent: self.packets_sent,
                octets_sent: self.octets_sent,
            },
            source: self.source.map(sender),
            rtcp_from: self.rtcp_from,
            is_fixed: self.is_fixed,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SavedDirection {
    time: Option<SavedTime>,
    packet_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedTime {
    /// The end of the sent audio, as an RTP timestamp.
    end: u32,
    end_in_ns: i64,
    clock_rate_hz: u32,
}

impl SavedDirection {
    fn of(state: DirectionState) -> SavedDirection {
        SavedDirection {
            time: state.time.map(|time| SavedTime {
                end: time.end.0,
                end_in_ns: time.end_in_ns,
                clock_rate_hz: time.clock_rate_hz,
            }),
            packet_ns: state.packet_ns,
        }
    }

    fn load(self, to: LegId) -> DirectionState {
        DirectionState {
            to,
            passed: None,
            time: self.time.map(|saved| TimeState {
                end: RtpTime(saved.end),
                end_in_ns: saved.end_in_ns,
                clock_rate_hz: saved.clock_rate_hz,
            }),
            packet_ns: self.packet_ns,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SavedGate {
    address: Option<SocketAddr>,
    rtcp_from: Option<SocketAddr>,
    is_fixed: bool,
}

impl SavedGate {
    fn of(state: GateState) -> SavedGate {
        SavedGate {
            address: state.address,
            rtcp_from: state.rtcp_from,
            is_fixed: state.is_fixed,
        }
    }

    fn load(self) -> GateState {
        GateState {
            address: self.address,
            rtcp_from: self.rtcp_from,
            is_fixed: self.is_fixed,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SavedProtection {
    receive: SavedKey,
    send: SavedKey,
    /// The streams received with this protection.
    #[serde(rename = "received_streams")]
    received: Vec<SavedSource>,
    #[serde(rename = "sent_streams")]
    sent: Vec<SavedSource>,
}

/// The numbers of one source of packets.
#[derive(Serialize, Deserialize)]
struct SavedSource {
    ssrc: u32,
    last_rtp: Option<SavedIndex>,
    /// The packets that are missing before the last one, a bit for each.
    missing_rtp: u128,
    last_rtcp_index: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct SavedIndex {
    rollover: u32,
    seq: u16,
}

impl SavedProtection {
    fn of(state: &ProtectionState) -> SavedProtection {
        let sources = |sources: &[SourceState]| sources.iter().map(SavedSource::of).collect();
        SavedProtection {
            receive: (&state.keys.receive).into(),
            send: (&state.keys.send).into(),
            received: sources(&state.received),
            sent: sources(&state.sent),
        }
    }

    fn load(self) -> Result<ProtectionState, &'static str> {
        let sources = |saved: Vec<SavedSource>| saved.into_iter().map(SavedSource::load).collect();
        Ok(ProtectionState {
            keys: Keys {
                receive: self.receive.try_into()?,
                send: self.send.try_into()?,
            },
            received: sources(self.received),
            sent: sources(self.sent),
        })
    }
}

impl SavedSource {
    fn of(state: &SourceState) -> SavedSource {
        SavedSource {
            ssrc: state.ssrc.0,
            last_rtp: state.rtp.map(|index| SavedIndex {
                rollover: index.rollover(),
                seq: index.seq().0,
            }),
            missing_rtp: state.rtp_missing,
            last_rtcp_index: state.rtcp,
        }
    }

    fn load(self) -> SourceState {
        let index = |saved: SavedIndex| PacketIndex::new(saved.rollover, SeqNum(saved.seq));
        SourceState {
            ssrc: Ssrc(self.ssrc),
            rtp: self.last_rtp.map(index),
            rtp_missing: self.missing_rtp,
            rtcp: self.last_rtcp_index,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use threadbare_control::fuzzing::{with_unknown_fields, without_field};
    use threadbare_rtp::srtp::{MASTER_KEY_BYTES_MAX, MasterKey, Mki, Suite};

    use super::*;

    fn protection(suite: Suite) -> ProtectionState {
        let key = |first: u8| {
            let bytes: [u8; MASTER_KEY_BYTES_MAX] = std::array::from_fn(|at| at as u8 + first);
            MasterKey::from_random(suite, &bytes)
        };
        let source = |ssrc: u32| SourceState {
            ssrc: Ssrc(ssrc),
            rtp: Some(PacketIndex::new(3, SeqNum(65_535))),
            rtp_missing: 1 << 100 | 2,
            rtcp: Some(77),
        };
        ProtectionState {
            keys: Keys {
                receive: key(1),
                send: key(2),
            },
            received: vec![
                source(5),
                SourceState {
                    rtp: None,
                    ..source(6)
                },
            ],
            sent: vec![SourceState {
                rtcp: None,
                ..source(7)
            }],
        }
    }

    /// Returns the state of an audio stream whose side B uses SRTP.
    pub(in super::super) fn audio(suite: Suite) -> StreamState {
        let from = Some("[2001:db8::1]:4000".parse().expect("an address"));
        let leg = |ssrc: u32| LegState {
            sent: SentState {
                ssrc: Ssrc(ssrc),
                next_seq: SeqNum(9),
                packets_sent: 1 << 40,
                octets_sent: 5,
            },
            source: from.map(|from| (from, Ssrc(8), SeqNum(3))),
            rtcp_from: from,
            is_fixed: ssrc == 1,
        };
        let time = TimeState {
            end: RtpTime(u32::MAX),
            end_in_ns: -5,
            clock_rate_hz: 48_000,
        };
        let direction = |to, time| DirectionState {
            to,
            passed: None,
            time,
            packet_ns: 20_000_000,
        };
        StreamState {
            boot: Some(u128::MAX),
            taken_ns: 1 << 50,
            taken_unix_ns: 1 << 60,
            heard_ns: [None, Some(5)],
            plays: [
                None,
                Some(PlayState {
                    file: "/a.wav".into(),
                    times: 3,
                    start_frame: 1 << 40,
                    duration_ns: Some(7),
                }),
            ],
            session: SavedState::Audio(AudioState {
                session: SessionState {
                    legs: vec![leg(1), leg(2)],
                    directions: vec![direction(LegId::B, None), direction(LegId::A, Some(time))],
                },
                protections: [None, Some(protection(suite))],
            }),
        }
    }

    fn examples() -> Vec<StreamState> {
        let gate = GateState {
            address: "192.0.2.1:5".parse().ok(),
            rtcp_from: None,
            is_fixed: true,
        };
        let forward = StreamState {
            session: SavedState::Forward(ForwardState {
                gates: [gate, GateState::default()],
                protections: [Some(protection(Suite::AeadAes256Gcm)), None],
            }),
            ..audio(Suite::AeadAes128Gcm)
        };
        Suite::ALL.into_iter().map(audio).chain([forward]).collect()
    }

    /// A state that was saved and restored has not changed.
    #[test]
    fn saved_state_round_trips() {
        for state in examples() {
            let bytes = state.to_bytes();
            assert_eq!(StreamState::from_bytes(&bytes), Ok(state));
            for len in 0..bytes.len() {
                let error = StreamState::from_bytes(&bytes[..len]);
                assert!(error.is_err(), "{len} bytes");
            }
        }
        let mut newer = examples()[0].to_bytes();
        newer[0] += 1;
        let error = StreamState::from_bytes(&newer).expect_err("another version");
        assert_eq!(
            error.to_string(),
            format!(
                "the state was saved in format version {}, but this program reads version {}",
                FORMAT.version + 1,
                FORMAT.version
            )
        );
    }

    /// Returns a key with these bytes and this identifier.
    fn key(suite: Suite, first: u8, mki: &[u8]) -> MasterKey {
        let len = suite.key_bytes() + suite.salt_bytes();
        let bytes: Vec<u8> = (0..len).map(|at| first + at as u8).collect();
        let key = MasterKey::new(suite, &bytes).expect("the suite's length");
        key.with_mki(Mki::new(mki).expect("a short identifier"))
    }

    /// Returns the state in `tests/data/positional-audio.bin`: both sides use SRTP, and side A hears a file.
    fn audio_without_names() -> StreamState {
        let rtp = |rollover, seq| Some(PacketIndex::new(rollover, SeqNum(seq)));
        StreamState {
            boot: Some(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            taken_ns: 7_200_000_000_123,
            taken_unix_ns: 1_790_000_000_000_000_456,
            heard_ns: [Some(7_199_990_000_000), None],
            plays: [
                Some(PlayState {
                    file: "/srv/prompts/menu.wav".into(),
                    times: 3,
                    start_frame: 96_000,
                    duration_ns: Some(4_000_000_000),
                }),
                None,
            ],
            session: SavedState::Audio(AudioState {
                session: SessionState {
                    legs: vec![
                        LegState {
                            sent: SentState {
                                ssrc: Ssrc(0xdead_beef),
                                next_seq: SeqNum(65_535),
                                packets_sent: 5_000_000_000,
                                octets_sent: 800_000_000_000,
                            },
                            source: Some((
                                "198.51.100.1:4000".parse().expect("an address"),
                                Ssrc(17),
                                SeqNum(300),
                            )),
                            rtcp_from: "198.51.100.1:4001".parse().ok(),
                            is_fixed: true,
                        },
                        LegState {
                            sent: SentState {
                                ssrc: Ssrc(23),
                                next_seq: SeqNum(0),
                                packets_sent: 0,
                                octets_sent: 0,
                            },
                            source: None,
                            rtcp_from: "[2001:db8::2]:5001".parse().ok(),
                            is_fixed: false,
                        },
                    ],
                    directions: vec![
                        DirectionState {
                            to: LegId::B,
                            passed: None,
                            time: Some(TimeState {
                                end: RtpTime(4_000_000_000),
                                end_in_ns: -20_000_000,
                                clock_rate_hz: 48_000,
                            }),
                            packet_ns: 20_000_000,
                        },
                        DirectionState {
                            to: LegId::A,
                            passed: None,
                            time: None,
                            packet_ns: 30_000_000,
                        },
                    ],
                },
                protections: [
                    Some(ProtectionState {
                        keys: Keys {
                            receive: key(Suite::AesCm128HmacSha1_80, 1, &[]),
                            send: key(Suite::AesCm128HmacSha1_80, 50, &[0, 9]),
                        },
                        received: vec![SourceState {
                            ssrc: Ssrc(17),
                            rtp: rtp(2, 300),
                            rtp_missing: 1 << 127 | 5,
                            rtcp: Some(41),
                        }],
                        sent: vec![SourceState {
                            ssrc: Ssrc(0xdead_beef),
                            rtp: rtp(1, 65_534),
                            rtp_missing: 0,
                            rtcp: None,
                        }],
                    }),
                    Some(ProtectionState {
                        keys: Keys {
                            receive: key(Suite::AeadAes256Gcm, 100, &[7; 4]),
                            send: key(Suite::AeadAes256Gcm, 150, &[]),
                        },
                        received: Vec::new(),
                        sent: vec![SourceState {
                            ssrc: Ssrc(23),
                            rtp: None,
                            rtp_missing: 0,
                            rtcp: Some(0),
                        }],
                    }),
                ],
            }),
        }
    }

    /// Returns the state in `tests/data/positional-forward.bin`.
    fn forward_without_names() -> StreamState {
        StreamState {
            boot: None,
            taken_ns: 1,
            taken_unix_ns: 2,
            heard_ns: [None, Some(3)],
            plays: [None, None],
            session: SavedState::Forward(ForwardState {
                gates: [
                    GateState {
                        address: "198.51.100.1:4010".parse().ok(),
                        rtcp_from: None,
                        is_fixed: true,
                    },
                    GateState {
                        address: None,
                        rtcp_from: "[2001:db8::2]:5011".parse().ok(),
                        is_fixed: false,
                    },
                ],
                protections: [
                    None,
                    Some(ProtectionState {
                        keys: Keys {
                            receive: key(Suite::AeadAes128Gcm, 3, &[]),
                            send: key(Suite::AesCm128HmacSha1_80, 9, &[]),
                        },
                        received: Vec::new(),
                        sent: Vec::new(),
                    }),
                ],
            }),
        }
    }

    /// The files were written by a build before release 0.3.0.
    #[test]
    fn state_without_names_is_read() {
        let audio = include_bytes!("../../tests/data/positional-audio.bin");
        assert_eq!(StreamState::from_bytes(audio), Ok(audio_without_names()));
        let forward = include_bytes!("../../tests/data/positional-forward.bin");
        assert_eq!(
            StreamState::from_bytes(forward),
            Ok(forward_without_names())
        );
    }

    /// The files are those in which release 0.3.0 writes these states.
    #[test]
    fn states_of_release_0_3_0_are_read() {
        let audio = include_bytes!("../../tests/data/release-0.3.0-audio.bin");
        assert_eq!(StreamState::from_bytes(audio), Ok(audio_without_names()));
        let forward = include_bytes!("../../tests/data/release-0.3.0-forward.bin");
        assert_eq!(
            StreamState::from_bytes(forward),
            Ok(forward_without_names())
        );
    }

    /// A later release may add a field to each struct.
    #[test]
    fn unknown_fields_are_ignored() {
        for state in [audio_without_names(), forward_without_names()] {
            let later = with_unknown_fields(&state.to_bytes());
            assert_eq!(StreamState::from_bytes(&later), Ok(state));
        }
    }

    /// A state from an earlier release may lack optional fields. A state without its sequence numbers is refused, because no number may be
    /// used twice with one key.
    #[test]
    fn missing_optional_fields_have_defaults() {
        let bytes = audio_without_names().to_bytes();
        let state = StreamState::from_bytes(&without_field(&bytes, "rtcp_from"));
        let mut expected = audio_without_names();
        let SavedState::Audio(audio) = &mut expected.session else {
            panic!("it is audio");
        };
        audio.session.legs[0].rtcp_from = None;
        audio.session.legs[1].rtcp_from = None;
        assert_eq!(state, Ok(expected));
        let error = StreamState::from_bytes(&without_field(&bytes, "next_seq"));
        let reason = "missing field `next_seq`".to_owned();
        assert_eq!(error, Err(FormatError::Damaged(reason)));
    }

    /// Nesting up to the decoder's limit must not overflow the stack of a thread.
    #[test]
    fn deep_nesting_is_refused() {
        let nested = [&[FORMAT.version, 0xa1, 0x61, b'x'][..], &[0x81; 1 << 20]].concat();
        let reason = "it is nested too deeply".to_owned();
        let error = StreamState::from_bytes(&nested);
        assert_eq!(error, Err(FormatError::Damaged(reason)));
    }

    /// In this state, the name of the suite was replaced by that of a suite with longer keys.
    #[test]
    fn invalid_keys_are_refused_with_the_reason() {
        let state = StreamState {
            session: SavedState::Forward(ForwardState {
                gates: Default::default(),
                protections: [Some(protection(Suite::AeadAes128Gcm)), None],
            }),
            ..forward_without_names()
        };
        let mut bytes = state.to_bytes();
        let suite = b"AEAD_AES_128_GCM";
        let at = bytes.windows(suite.len()).position(|part| part == suite);
        let digit = at.expect("the name") + b"AEAD_AES_".len();
        bytes[digit..digit + 3].copy_from_slice(b"256");
        let error = StreamState::from_bytes(&bytes);
        let reason = "the length of a key does not fit its crypto suite".to_owned();
        assert_eq!(error, Err(FormatError::Damaged(reason)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            version in 3..7_u8, bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = StreamState::from_bytes(&bytes);
            let _ = StreamState::from_bytes(&[&[version], &bytes[..]].concat());
        }

        #[test]
        fn numbers_round_trip(
            times in any::<(Option<u128>, u64, u64, Option<u64>)>(), seq: u16, sent: u64, end: u32, end_in_ns: i64,
            rollover: u32, missing: u128, rtcp in any::<Option<u32>>(), file: String,
        ) {
            let mut state = audio_without_names();
            (state.boot, state.taken_ns, state.taken_unix_ns, state.heard_ns[0]) = times;
            if let Some(play) = &mut state.plays[0] {
                (play.file, play.duration_ns) = (file.into(), times.3);
            }
            let SavedState::Audio(audio) = &mut state.session else {
                panic!("it is audio");
            };
            (audio.session.legs[1].sent.next_seq, audio.session.legs[1].sent.octets_sent) = (SeqNum(seq), sent);
            if let Some(time) = &mut audio.session.directions[0].time {
                (time.end, time.end_in_ns) = (RtpTime(end), end_in_ns);
            }
            if let Some(protection) = &mut audio.protections[0] {
                protection.received = vec![SourceState {
                    ssrc: Ssrc(end),
                    rtp: Some(PacketIndex::new(rollover, SeqNum(seq))),
                    rtp_missing: missing,
                    rtcp,
                }];
            }
            prop_assert_eq!(&StreamState::from_bytes(&state.to_node_bytes()), &Ok(state.clone()));
            prop_assert_eq!(StreamState::from_bytes(&state.to_bytes()), Ok(state));
        }

        #[test]
        fn damaged_bytes_never_panic(
            example in 0..6_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = examples()[example].to_bytes();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = StreamState::from_bytes(&bytes);
        }
    }
}
