//! Serialises the states of streams for the store. States include SRTP keys.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use threadbare_relay::{ForwardState, MediaCallState};
use threadbare_rtp::call::{CallState, DirectionState, Part, TimeState};
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::leg::{GateState, LegState};
use threadbare_rtp::srtp::{
    Keys, MasterKey, Mki, PacketIndex, ProtectionState, SourceState, Suite,
};

use threadbare_process::system::unix_at_zero_ns;

/// The state of a stream from its media thread.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StreamState {
    /// Identifies the boot of the monotonic clock; `None`: unknown.
    pub(super) boot: Option<u128>,
    /// Time on the monotonic clock at which the state was taken.
    pub(super) taken_ns: u64,
    /// Wall-clock time at which the state was taken, since 1970.
    pub(super) taken_unix_ns: u64,
    /// When media of side A and B were last received, on the monotonic clock.
    pub(super) heard_ns: [Option<u64>; 2],
    /// The files that side A and B were hearing.
    pub(super) plays: [Option<PlayState>; 2],
    pub(super) session: SessionState,
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

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SessionState {
    Audio(MediaCallState),
    Forward(ForwardState),
}

/// Why bytes are not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum StateError {
    #[error(
        "the state was saved in format version {found}, but this program reads version {VERSION}"
    )]
    Version { found: u8 },
    #[error("the saved state is damaged: {0}")]
    Damaged(String),
}

/// Version of the format. Increment it if a type below changes.
const VERSION: u8 = 4;

impl StreamState {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let session = match &self.session {
            SessionState::Audio(state) => SavedMediaSession::Audio {
                legs: [0, 1].map(|at: usize| SavedLeg::of(&state.call.legs[at])),
                directions: state.call.directions.map(SavedDirection::of),
                protections: [0, 1].map(|at: usize| {
                    let protection = state.protections[at].as_ref();
                    protection.map(SavedProtection::of)
                }),
            },
            SessionState::Forward(state) => SavedMediaSession::Forward {
                gates: state.gates.map(SavedGate::of),
                protections: [0, 1].map(|at: usize| {
                    let protection = state.protections[at].as_ref();
                    protection.map(SavedProtection::of)
                }),
            },
        };
        let head = (
            self.boot,
            self.taken_ns,
            self.taken_unix_ns,
            self.heard_ns,
            &self.plays,
        );
        // Writing to memory cannot fail: all lengths are known.
        postcard::to_allocvec(&(VERSION, head, session)).unwrap_or_default()
    }

    /// Parses untrusted bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<StreamState, StateError> {
        let damaged = |reason: &dyn ToString| StateError::Damaged(reason.to_string());
        let (&found, bytes) = bytes
            .split_first()
            .ok_or_else(|| damaged(&"it has no bytes"))?;
        if found != VERSION {
            return Err(StateError::Version { found });
        }
        type Head = (
            Option<u128>,
            u64,
            u64,
            [Option<u64>; 2],
            [Option<PlayState>; 2],
        );
        let read: Result<((Head, SavedMediaSession), &[u8]), _> = postcard::take_from_bytes(bytes);
        let ((head, session), left) = read.map_err(|error| damaged(&error))?;
        if !left.is_empty() {
            return Err(damaged(&"there are bytes after its end"));
        }
        let (boot, taken_ns, taken_unix_ns, heard_ns, plays) = head;
        let session = session.load().map_err(|reason| damaged(&reason))?;
        Ok(StreamState {
            boot,
            taken_ns,
            taken_unix_ns,
            heard_ns,
            plays,
            session,
        })
    }
}

impl StreamState {
    /// Converts the times in a state of another machine to this machine's clock. The state arrived at `came_ns`, and was taken
    /// `way_ns` earlier.
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
    fn load(self) -> Result<SessionState, &'static str> {
        let protections = |[a, b]: [Option<SavedProtection>; 2]| {
            let one = |saved: Option<SavedProtection>| saved.map(SavedProtection::load).transpose();
            Ok::<_, &'static str>([one(a)?, one(b)?])
        };
        Ok(match self {
            SavedMediaSession::Audio {
                legs,
                directions,
                protections: saved,
            } => SessionState::Audio(MediaCallState {
                call: CallState {
                    legs: legs.map(SavedLeg::load),
                    directions: directions.map(SavedDirection::load),
                },
                protections: protections(saved)?,
            }),
            SavedMediaSession::Forward {
                gates,
                protections: saved,
            } => SessionState::Forward(ForwardState {
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
    source: Option<(SocketAddr, u32, u16)>,
    rtcp_from: Option<SocketAddr>,
    is_fixed: bool,
}

impl SavedLeg {
    fn of(state: &LegState) -> SavedLeg {
        SavedLeg {
            ssrc: state.ssrc.0,
            next_seq: state.next_seq.0,
            packets_sent: state.packets_sent,
            octets_sent: state.octets_sent,
            source: state.source.map(|(from, ssrc, seq)| (from, ssrc.0, seq.0)),
            rtcp_from: state.rtcp_from,
            is_fixed: state.is_fixed,
        }
    }

    fn load(self) -> LegState {
        let source = self.source;
        LegState {
            ssrc: Ssrc(self.ssrc),
            next_seq: SeqNum(self.next_seq),
            packets_sent: self.packets_sent,
            octets_sent: self.octets_sent,
            source: source.map(|(from, ssrc, seq)| (from, Ssrc(ssrc), SeqNum(seq))),
            rtcp_from: self.rtcp_from,
            is_fixed: self.is_fixed,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SavedDirection {
    /// RTP timestamp, its play time, and units per second.
    time: Option<(u32, i64, u32)>,
    packet_ns: u64,
}

impl SavedDirection {
    fn of(state: DirectionState) -> SavedDirection {
        let time = state.time;
        SavedDirection {
            time: time.map(|time| (time.end.0, time.end_in_ns, time.clock_rate_hz)),
            packet_ns: state.packet_ns,
        }
    }

    fn load(self) -> DirectionState {
        let time = self.time;
        DirectionState {
            time: time.map(|(end, end_in_ns, clock_rate_hz)| TimeState {
                end: RtpTime(end),
                end_in_ns,
                clock_rate_hz,
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
    received: Vec<SavedSource>,
    sent: Vec<SavedSource>,
}

/// Suite, key with salt, and the key identifier.
type SavedKey = (String, Vec<u8>, Vec<u8>);

/// SSRC; rollover counter and sequence number of the last packet; window of packets before it; index of the last RTCP packet.
type SavedSource = (u32, Option<(u32, u16)>, u128, Option<u32>);

impl SavedProtection {
    fn of(state: &ProtectionState) -> SavedProtection {
        let key = |key: &MasterKey| {
            let suite = key.suite().name().to_owned();
            let mki = key.mki().to_vec();
            (suite, key.expose_secret().to_vec(), mki)
        };
        let sources = |sources: &[SourceState]| {
            let one = |source: &SourceState| {
                let rtp = source.rtp.map(|rtp| (rtp.rollover(), rtp.seq().0));
                (source.ssrc.0, rtp, source.rtp_missing, source.rtcp)
            };
            sources.iter().map(one).collect()
        };
        SavedProtection {
            receive: key(&state.keys.receive),
            send: key(&state.keys.send),
            received: sources(&state.received),
            sent: sources(&state.sent),
        }
    }

    fn load(self) -> Result<ProtectionState, &'static str> {
        let key = |(suite, bytes, mki): SavedKey| {
            let suite = Suite::from_name(&suite).ok_or("the crypto suite is unknown")?;
            let key = MasterKey::new(suite, &bytes)
                .map_err(|_| "the length of a key does not fit its crypto suite")?;
            let mki = Mki::new(&mki).ok_or("a key identifier (MKI) is too long")?;
            Ok::<_, &'static str>(key.with_mki(mki))
        };
        let sources = |saved: Vec<SavedSource>| {
            let one = |(ssrc, rtp, rtp_missing, rtcp): SavedSource| SourceState {
                ssrc: Ssrc(ssrc),
                rtp: rtp.map(|(rollover, seq)| PacketIndex::new(rollover, SeqNum(seq))),
                rtp_missing,
                rtcp,
            };
            saved.into_iter().map(one).collect()
        };
        Ok(ProtectionState {
            keys: Keys {
                receive: key(self.receive)?,
                send: key(self.send)?,
            },
            received: sources(self.received),
            sent: sources(self.sent),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use threadbare_rtp::srtp::MASTER_KEY_BYTES_MAX;

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
            ssrc: Ssrc(ssrc),
            next_seq: SeqNum(9),
            packets_sent: 1 << 40,
            octets_sent: 5,
            source: from.map(|from| (from, Ssrc(8), SeqNum(3))),
            rtcp_from: from,
            is_fixed: ssrc == 1,
        };
        let time = TimeState {
            end: RtpTime(u32::MAX),
            end_in_ns: -5,
            clock_rate_hz: 48_000,
        };
        let direction = |time| DirectionState {
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
            session: SessionState::Audio(MediaCallState {
                call: CallState {
                    legs: [leg(1), leg(2)],
                    directions: [direction(None), direction(Some(time))],
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
            session: SessionState::Forward(ForwardState {
                gates: [gate, GateState::default()],
                protections: [Some(protection(Suite::AeadAes256Gcm)), None],
            }),
            ..audio(Suite::AeadAes128Gcm)
        };
        Suite::ALL.into_iter().map(audio).chain([forward]).collect()
    }

    /// A saved state is restored unchanged.
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
                "the state was saved in format version {}, but this program reads version {VERSION}",
                VERSION + 1
            )
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
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
