//! A session that was changed to a specification behaves like one that was created with it.

use proptest::prelude::*;

use super::test_bed::{MS, TONE_HZ, address, format, leg, with_keys};
use super::*;
use crate::codec::{Encoder, EncoderSettings, Encoding};
use crate::leg::{AdmissionConfig, Destination, Learn, LegConfig, PayloadMap};
use crate::session::Profile;

/// The settings of one party in a specification. Its identity is always the same.
#[derive(Debug, Clone)]
struct Party {
    codec: usize,
    has_events: bool,
    mux: bool,
    has_feedback: bool,
    learns: bool,
    is_moved: bool,
    mode: Mode,
    flags: [bool; 5],
    packet_ms: u64,
}

fn party() -> impl Strategy<Value = Party> {
    let media = (0..4_usize, any::<bool>(), any::<bool>(), any::<bool>());
    let rest = (
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(Mode::Pass), Just(Mode::Mute), Just(Mode::Hold)],
        any::<[bool; 5]>(),
        prop_oneof![Just(0_u64), Just(10), Just(20), Just(40)],
    );
    (media, rest).prop_map(|(media, rest)| {
        let (codec, has_events, mux, has_feedback) = media;
        let (learns, is_moved, mode, flags, packet_ms) = rest;
        Party {
            codec,
            has_events,
            mux,
            has_feedback,
            learns,
            is_moved,
            mode,
            flags,
            packet_ms,
        }
    })
}

impl Party {
    fn format(&self) -> Format {
        match self.codec {
            0 => format(Encoding::Pcmu, 8000, 1),
            1 => format(Encoding::Pcma, 8000, 1),
            2 => format(Encoding::G722, 16_000, 1),
            _ => format(Encoding::L16, 16_000, 1),
        }
    }

    fn leg(&self, side: Side) -> LegConfig {
        let mut payloads = with_keys(self.format(), 101, self.format().clock_rate_hz);
        if !self.has_events {
            payloads.truncate(1);
        }
        let host = address(side);
        let peer = if self.is_moved {
            SocketAddr::new(host.ip(), host.port() + 2)
        } else {
            host
        };
        let profile = Profile::Avpf {
            regular_interval_ns: 5_000 * MS,
            feedback_delay_ns_max: 1_000 * MS,
        };
        let usual = leg(side, &payloads);
        // The jitter buffer belongs to the creation.
        LegConfig {
            payloads: Arc::new(PayloadMap::new(&payloads).expect("a map")),
            admission: AdmissionConfig {
                peer: Some(peer),
                learn: if self.learns {
                    Learn::FOLLOW
                } else {
                    Learn::Never
                },
                ..AdmissionConfig::default()
            },
            destination: Destination::Peer,
            mux: self.mux,
            profile: if self.has_feedback {
                profile
            } else {
                Profile::Avp
            },
            ..usual
        }
    }

    fn direction(&self, to: &Party) -> DirectionConfig {
        let [detect_keys, makes_anew, blocks_keys, passes_keys, _] = self.flags;
        DirectionConfig {
            packet_ns: to.packet_ms * MS,
            mode: self.mode,
            detect_keys,
            makes_anew,
            blocks_keys,
            passes_keys,
            holds_receiver: to.flags[4],
            encoder: EncoderSettings::default(),
            ..DirectionConfig::default()
        }
    }
}

fn spec(parties: &[Party; 2], echoes: bool) -> SessionSpec {
    let [a, b] = parties;
    SessionSpec::call(
        [a.leg(Side::A), b.leg(Side::B)],
        [a.direction(b), b.direction(a)],
    )
    .with_echo(echoes)
}

/// A packet with its time, its ports and its destination.
type Sent = (u64, u8, SocketAddr, Vec<u8>);

fn assert_same(one: &[Sent], other: &[Sent]) -> Result<(), TestCaseError> {
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    if let Some(at) = differs {
        prop_assert_eq!(&one[at], &other[at], "packet {}", at);
    }
    prop_assert_eq!(one.len(), other.len());
    Ok(())
}

/// Lets both parties speak for half a second. Returns all RTP that leaves.
fn talk(session: &mut Session, parties: &[Party; 2]) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut scratch = Scratch::default();
    let mut encoders = parties
        .each_ref()
        .map(|party| Encoder::new(party.format(), &EncoderSettings::default()).expect("a codec"));
    for number in 0..25_u16 {
        let now_ns = u64::from(number) * 20 * MS;
        for side in Side::BOTH {
            let party = &parties[side as usize];
            let format = party.format();
            let frames = format.sample_rate_hz as usize / 50;
            let pcm: Vec<f32> = (0..frames)
                .map(|at| {
                    let time =
                        f64::from(number) / 50.0 + at as f64 / f64::from(format.sample_rate_hz);
                    ((std::f64::consts::TAU * TONE_HZ * time).sin() * 0.25) as f32
                })
                .collect();
            let mut bytes = vec![0x80, 96];
            bytes.extend(number.to_be_bytes());
            let time = u32::from(number) * (format.clock_rate_hz / 50);
            bytes.extend(time.to_be_bytes());
            bytes.extend([0, 0, 0, 1 + side as u8]);
            encoders[side as usize]
                .encode(&pcm, &mut bytes)
                .expect("room");
            let from = party.leg(side).admission.peer.expect("an address");
            session.handle_datagram(now_ns, now_ns, side as u8, Channel::Rtp, from, &bytes);
        }
        session.poll_transmit(now_ns, true, &mut scratch, &mut |outgoing| {
            // The times of reports are random.
            if outgoing.channel == Channel::Rtp {
                sent.push((now_ns, outgoing.ports, outgoing.to, outgoing.bytes.to_vec()));
            }
        });
        while session.poll_event().is_some() {}
    }
    sent
}

proptest! {
    #[test]
    fn changed_session_sends_what_a_new_one_sends(
        before in [party(), party()],
        after in [party(), party()],
        echoes in any::<[bool; 2]>(),
    ) {
        let mut created = Session::new(0, spec(&after, echoes[1])).expect("valid");
        let mut changed = Session::new(0, spec(&before, echoes[0])).expect("valid");
        changed.apply(0, spec(&after, echoes[1])).expect("the same legs");
        assert_same(&talk(&mut changed, &after), &talk(&mut created, &after))?;
    }

    #[test]
    fn a_specification_that_is_applied_again_changes_nothing(parties in [party(), party()], echoes in any::<bool>()) {
        let mut once = Session::new(0, spec(&parties, echoes)).expect("valid");
        let mut twice = Session::new(0, spec(&parties, echoes)).expect("valid");
        // The first half second brings sources, encoders and routes.
        assert_same(&talk(&mut once, &parties), &talk(&mut twice, &parties))?;
        twice.apply(500 * MS, spec(&parties, echoes)).expect("the same legs");
        assert_same(&talk(&mut once, &parties), &talk(&mut twice, &parties))?;
        prop_assert_eq!(once.stats(), twice.stats());
    }
}

#[test]
fn a_session_keeps_its_legs() {
    let payloads = with_keys(format(Encoding::Pcmu, 8000, 1), 101, 8000);
    let direction = DirectionConfig::default();
    let call = || {
        SessionSpec::call(
            [leg(Side::A, &payloads), leg(Side::B, &payloads)],
            [direction; 2],
        )
    };
    let stream = |target| SessionSpec::stream(leg(Side::A, &payloads), target, direction);
    let other = || Target::Other(Box::new(leg(Side::B, &payloads)));
    let all: [&dyn Fn() -> SessionSpec; 4] = [
        &call,
        &|| stream(Target::Same),
        &|| stream(Target::Nobody),
        &|| stream(other()),
    ];
    for (index, one) in all.iter().enumerate() {
        for (to, other) in all.iter().enumerate() {
            let mut session = Session::new(0, one()).expect("valid");
            let due = if index == to {
                Ok(())
            } else {
                Err(SessionError::Shape)
            };
            assert_eq!(session.apply(0, other()), due, "{index} {to}");
        }
    }
}
