//! Sounds that replace a silent party of a call.

use std::f64::consts::TAU;

use proptest::prelude::*;

use super::digit_tests::{assert_one_stream, listeners, pcmu};
use super::test_bed::{Bed, LEVEL, MS, TONE_HZ};
use super::tests::amplitude_at;
use super::*;
use crate::codec::Decoder;
use crate::jitter;
use crate::leg::{Destination, LegConfig, Payload};

/// Frequency of the substitute, which is longer than the clip of a play.
const SUBSTITUTE_HZ: f64 = 440.0;
const PLAYED_HZ: f64 = 1500.0;
const AFTER_MS: u64 = 500;

/// Returns a second of a tone.
fn clip(hz: f64, times: u32) -> Clip {
    let sample = |n: u32| ((TAU * hz * f64::from(n) / 16_000.0).sin() * LEVEL) as f32;
    Clip {
        pcm: (0..16_000).map(sample).collect(),
        rate_hz: 16_000,
        channels: 1,
        times,
    }
}

fn substitute() -> Option<Arc<Substitute>> {
    Some(Arc::new(Substitute {
        after_ns: AFTER_MS * MS,
        sound: Sound::Clip(clip(SUBSTITUTE_HZ, 0)),
    }))
}

fn on(is_on: bool) -> SessionEvent {
    SessionEvent::Substitute(LegId::A, is_on)
}

impl Bed {
    /// Returns the session's events about the substitute since the last call.
    fn changes(&mut self) -> Vec<SessionEvent> {
        let events = self.events.drain(..);
        let is_change = |event: &SessionEvent| matches!(event, SessionEvent::Substitute(..));
        events.filter(is_change).collect()
    }

    /// Asserts which tone, if any, B has heard since packet `first`.
    fn assert_heard(&self, to: Format, first: usize, expected_hz: Option<f64>) {
        let mut decoder = Decoder::new(to).unwrap();
        let mut pcm = Vec::new();
        for heard in &self.heard[first..] {
            decoder.decode(&heard.payload, &mut pcm).unwrap();
        }
        let mono: Vec<f64> = pcm
            .chunks(usize::from(to.channels))
            .map(|frame| f64::from(frame[0]))
            .collect();
        // The first packets may still have audio of before.
        let mono = &mono[mono.len() / 4..];
        for hz in [TONE_HZ, SUBSTITUTE_HZ, PLAYED_HZ] {
            let db = 20.0 * (amplitude_at(mono, f64::from(to.sample_rate_hz), hz) / LEVEL).log10();
            if Some(hz) == expected_hz {
                assert!(db.abs() < 0.5, "{to}: {hz} Hz at {db} dB");
            } else {
                assert!(db < -40.0, "{to}: {hz} Hz at {db} dB, not {expected_hz:?}");
            }
        }
    }
}

#[test]
fn silent_party_is_replaced_until_its_next_packet() {
    for to in listeners() {
        for passes_directly in [false, true] {
            let name = format!("{to} {passes_directly}");
            let direction = DirectionConfig {
                passes_directly,
                ..DirectionConfig::default()
            };
            let (a, b) = ([Payload::audio(96, pcmu())], [Payload::audio(97, to)]);
            let mut bed = Bed::new(&a, &b, direction);
            bed.call.set_substitute(Side::A, substitute());
            bed.tone(pcmu(), 20, 400, |_| false);
            bed.wait_ms(60);
            let (spoken, last_ns) = (bed.heard.len(), bed.heard.last().unwrap().at_ns);
            assert!(spoken >= 19 && bed.changes().is_empty(), "{name}");
            bed.wait_ms(AFTER_MS + 2500);
            assert_eq!(bed.changes(), [on(true)], "{name}");
            assert!(bed.call.direction_stats(Side::A).is_substituted);
            // An encoder whose packets have another length than the party's sends the rest of the party's audio first.
            let begun = (spoken..=spoken + 1)
                .find(|at| bed.heard[*at].marker)
                .expect(&name);
            let pause_ms = (bed.heard[begun].at_ns - last_ns) / MS;
            assert!(
                (AFTER_MS..=AFTER_MS + 40).contains(&pause_ms),
                "{name}: {pause_ms}"
            );
            bed.assert_heard(to, begun, Some(SUBSTITUTE_HZ));
            for pair in bed.heard[begun..].windows(2) {
                let step = pair[1].time.distance_from(pair[0].time);
                let mut decoder = Decoder::new(to).unwrap();
                let frames = decoder.decode(&pair[0].payload, &mut Vec::new()).unwrap();
                assert_eq!(step, i64::from(to.clock_units(frames as u32)), "{name}");
            }
            let step = bed.heard[begun]
                .time
                .distance_from(bed.heard[spoken - 1].time);
            let step_ms = step as u64 * 1000 / u64::from(to.clock_rate_hz);
            assert!(step_ms.abs_diff(pause_ms) <= 45, "{name}: {step_ms} ms");
            // The party returns. Its timestamps include the pause.
            bed.time = bed.time.wrapping_add(8 * 3060);
            let replaced = bed.heard.len();
            bed.tone(pcmu(), 20, 1000, |_| false);
            assert_eq!(bed.changes(), [on(false)], "{name}");
            assert!(!bed.call.direction_stats(Side::A).is_substituted);
            // Packets of the sound continue only as long as the jitter buffer holds the party's first packet.
            bed.assert_heard(to, replaced + 4, Some(TONE_HZ));
            assert!(bed.heard.len() - replaced >= 47, "{name}");
            assert_one_stream(&bed, &name);
            let played = SessionEvent::PlayEnded(LegId::B);
            assert!(!bed.events.contains(&played), "{name}");
        }
    }
}

#[test]
fn party_that_never_sends_is_replaced() {
    let mut bed = Bed::between(pcmu(), pcmu());
    bed.call.set_substitute(Side::A, substitute());
    bed.poll();
    bed.wait_ms(AFTER_MS - 1);
    assert!(bed.heard.is_empty());
    bed.wait_ms(1000);
    assert_eq!(bed.changes(), [on(true)]);
    bed.assert_heard(pcmu(), 0, Some(SUBSTITUTE_HZ));
}

/// Nothing is played until the time-out has passed after the end of the pause.
#[test]
fn substitute_is_silent_while_a_party_is_held_or_muted() {
    type Change = fn(&mut Session, bool);
    let changes: [Change; 4] = [
        |call, is_on| call.set_mode(Side::A, if is_on { Mode::Hold } else { Mode::Pass }),
        |call, is_on| call.set_mode(Side::A, if is_on { Mode::Mute } else { Mode::Pass }),
        |call, is_on| call.set_held(Side::B, is_on),
        |call, is_on| call.set_echo(is_on),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut bed = Bed::between(pcmu(), pcmu());
        bed.call.set_substitute(Side::A, substitute());
        bed.tone(pcmu(), 20, 200, |_| false);
        bed.wait_ms(1000);
        assert_eq!(bed.changes(), [on(true)], "{number}");
        change(&mut bed.call, true);
        bed.poll();
        assert_eq!(bed.changes(), [on(false)], "{number}");
        let before = bed.heard.len();
        bed.wait_ms(10_000);
        assert_eq!(bed.heard.len(), before, "{number}");
        change(&mut bed.call, false);
        bed.poll();
        bed.wait_ms(AFTER_MS - 1);
        assert_eq!((bed.changes().len(), bed.heard.len()), (0, before));
        bed.wait_ms(1000);
        assert_eq!(bed.changes(), [on(true)], "{number}");
        bed.assert_heard(pcmu(), before, Some(SUBSTITUTE_HZ));
        assert_one_stream(&bed, "after the pause");
    }
}

#[test]
fn sound_of_the_owner_replaces_the_substitute() {
    for to in listeners() {
        let mut bed = Bed::between(pcmu(), to);
        bed.call.set_substitute(Side::A, substitute());
        bed.poll();
        bed.wait_ms(1000);
        assert_eq!(bed.changes(), [on(true)], "{to}");
        assert_eq!(bed.call.play_left(Side::B), None, "{to}");
        // The owner has started no sound, so this stops nothing.
        bed.call.stop_play(Side::B);
        let before = bed.heard.len();
        bed.wait_ms(500);
        assert!(bed.heard.len() >= before + 24, "{to}");
        let before = bed.heard.len();
        bed.call
            .play(bed.now_ns, Side::B, clip(PLAYED_HZ, 2))
            .unwrap();
        bed.poll();
        assert_eq!(bed.changes(), [on(false)], "{to}");
        bed.wait_ms(1900);
        assert!(bed.call.play_left(Side::B).is_some(), "{to}");
        bed.assert_heard(to, before + 2, Some(PLAYED_HZ));
        let before = bed.heard.len();
        bed.wait_ms(1000);
        assert!(bed.events.contains(&SessionEvent::PlayEnded(LegId::B)));
        assert_eq!(bed.changes(), [on(true)], "{to}");
        bed.wait_ms(500);
        bed.assert_heard(to, before + 10, Some(SUBSTITUTE_HZ));
        assert_one_stream(&bed, "after a play");
    }
}

/// A changed or removed substitute ends the sound. The owner hears of it.
#[test]
fn removed_substitute_ends() {
    let mut bed = Bed::between(pcmu(), pcmu());
    bed.call.set_substitute(Side::A, substitute());
    bed.poll();
    bed.wait_ms(1000);
    assert_eq!(bed.changes(), [on(true)]);
    bed.call.set_substitute(Side::A, None);
    bed.poll();
    assert_eq!(bed.changes(), [on(false)]);
    let before = bed.heard.len();
    bed.wait_ms(5000);
    assert_eq!(bed.heard.len(), before);
}

/// The sound waits until B's address is known. Nothing is due again and again meanwhile.
#[test]
fn substitute_waits_for_a_destination() {
    let mut bed = Bed::between(pcmu(), pcmu());
    let legs = [Side::A, Side::B].map(|side| LegConfig {
        jitter: jitter::Config::new(8000, 40 * MS),
        destination: Destination::Peer,
        admission: crate::leg::AdmissionConfig::default(),
        ..test_bed::leg(side, &[Payload::audio(96, pcmu())])
    });
    let config = SessionSpec::call(legs, [DirectionConfig::default(); 2]);
    bed.call = Session::new(0, config).unwrap();
    bed.call.set_substitute(Side::A, substitute());
    bed.poll();
    bed.wait_ms(5000);
    assert!(bed.heard.is_empty() && bed.changes().is_empty());
}

proptest! {
    /// The far side hears the sound exactly in the pauses that are longer than the time-out.
    #[test]
    fn substitute_is_heard_in_long_pauses_only(
        parts in prop::collection::vec((1_u64..30, 0_u64..1500), 1..20),
    ) {
        let mut bed = Bed::between(pcmu(), pcmu());
        bed.call.set_substitute(Side::A, substitute());
        let mut expected = Vec::new();
        for (packets, pause_ms) in parts {
            // The jitter buffer of 60 ms does not delay these packets.
            bed.tone(pcmu(), 20, 20 * packets, |_| false);
            bed.wait_ms(pause_ms);
            bed.time = bed.time.wrapping_add(8 * pause_ms as u32);
            // A packet is due at its arrival, and `tone` waits for 20 ms after the last one.
            if pause_ms + 20 >= AFTER_MS {
                expected.extend([on(true), on(false)]);
            }
        }
        bed.tone(pcmu(), 20, 20, |_| false);
        prop_assert_eq!(bed.changes(), expected);
        assert_one_stream(&bed, "pauses");
    }
}
