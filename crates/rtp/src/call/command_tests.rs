//! Changes by the owner of a running call: settings, other codecs and hold, in any order.

use proptest::prelude::*;

use super::digit_tests::{assert_one_stream, digit, listeners, pcmu, speakers};
use super::direction::units_of;
use super::test_bed::{Bed, MS, address, format, with_keys};
use super::*;
use crate::codec::Encoding;
use crate::leg::PayloadMap;
use crate::leg::{AdmissionConfig, Destination, Payload};

#[test]
fn the_packet_time_changes_live() {
    for to in [
        pcmu(),
        format(Encoding::Pcma, 8000, 1),
        format(Encoding::Opus, 48_000, 2),
    ] {
        let mut bed = Bed::between(pcmu(), to);
        bed.tone(pcmu(), 20, 200, |_| false);
        for (packet_ns, ms) in [(40 * MS, 40), (10 * MS, 10), (0, 20)] {
            bed.call.set_packet_ns(Side::A, packet_ns).unwrap();
            let before = bed.heard.len();
            bed.tone(pcmu(), 20, 400, |_| false);
            // The audio that was gathered before leaves in one packet. After that, all packets have the new length.
            let new = &bed.heard[before + 2..];
            let unit = i64::from(to.clock_rate_hz) / 1000;
            assert!(new.len() >= 6, "{to} {ms}: {}", new.len());
            for pair in new.windows(2) {
                assert_eq!(
                    pair[1].time.distance_from(pair[0].time),
                    ms * unit,
                    "{to} {ms}"
                );
            }
            assert_one_stream(&bed, &to.to_string());
        }
    }
    let mut bed = Bed::between(pcmu(), format(Encoding::L16, 44_100, 2));
    let refused = bed
        .call
        .set_packet_ns(Side::A, 20 * MS)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("20000 µs"), "{refused}");
}

/// By a re-INVITE, B takes other codecs from now on. B still hears one continuous stream.
#[test]
fn changed_codec_continues_the_stream() {
    for from in speakers() {
        for first in listeners() {
            for second in listeners() {
                let name = format!("{from} to {first}, then {second}");
                let mut bed = Bed::between(from, first);
                bed.tone(from, 20, 410, |_| false);
                let before = bed.heard.len();
                let end = bed.heard[before - 1].time;
                let takes = Arc::new(PayloadMap::new(&[Payload::audio(111, second)]).unwrap());
                bed.call.set_payloads(Side::B, takes.clone(), takes);
                bed.tone(from, 20, 400, |_| false);
                assert_one_stream(&bed, &name);
                let after = &bed.heard[before..];
                assert!(
                    after.iter().all(|heard| heard.payload_type == 111),
                    "{name}"
                );
                assert!(after.len() >= 18, "{name}: {}", after.len());
                assert!(after[0].marker, "{name}");
                // The new codec's audio starts one packet time later, after the audio that was gathered for the old codec.
                let step = after[0].time.distance_from(end);
                let first_ms = step as f64 * 1000.0 / f64::from(first.clock_rate_hz);
                let second_ms = step as f64 * 1000.0 / f64::from(second.clock_rate_hz);
                assert!(
                    first_ms.min(second_ms) <= 45.0,
                    "{name}: {first_ms} {second_ms}"
                );
                let span = after[after.len() - 1].time.distance_from(after[0].time) as f64;
                let span_ms = span * 1000.0 / f64::from(second.clock_rate_hz);
                assert!((339.0..=400.0).contains(&span_ms), "{name}: {span_ms} ms");
            }
        }
    }
}

/// By a re-INVITE, the party that speaks takes other codecs from now on.
#[test]
fn changed_codec_of_the_speaker_continues_the_stream() {
    for first in speakers() {
        for second in speakers() {
            for to in listeners() {
                let name = format!("{first}, then {second}, to {to}");
                let mut bed = Bed::between(first, to);
                bed.tone(first, 20, 400, |_| false);
                let sends = Arc::new(PayloadMap::new(&[Payload::audio(96, second)]).unwrap());
                bed.call.set_payloads(Side::A, sends.clone(), sends);
                bed.tone(second, 20, 400, |_| false);
                assert_one_stream(&bed, &name);
                let ms = bed.heard_ms(to);
                assert!((740.0..=822.0).contains(&ms), "{name}: {ms} ms");
                assert!(
                    bed.heard.iter().all(|heard| heard.payload_type == 97),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn clip_continues_in_another_codec() {
    for first in listeners() {
        for second in listeners() {
            let name = format!("{first}, then {second}");
            let mut bed = Bed::between(pcmu(), first);
            let clip = Clip {
                pcm: vec![0.1; 16_000].into(),
                rate_hz: 8000,
                channels: 1,
                times: 1,
            };
            bed.call.play(0, Side::B, clip).unwrap();
            bed.wait_ms(500);
            let before = bed.heard.len();
            let takes = Arc::new(PayloadMap::new(&[Payload::audio(111, second)]).unwrap());
            bed.call.set_payloads(Side::B, takes.clone(), takes);
            bed.wait_ms(3000);
            assert!(
                bed.events.contains(&SessionEvent::PlayEnded(LegId::B)),
                "{name}"
            );
            assert_one_stream(&bed, &name);
            let after = &bed.heard[before..];
            assert!(
                after.iter().all(|heard| heard.payload_type == 111),
                "{name}"
            );
            assert!(after.len() >= 72, "{name}: {}", after.len());
        }
    }
}

/// A party is on hold for minutes, and resumes. In the meantime only reports are sent, and no audio is produced.
#[test]
fn held_party_gets_only_reports_and_resumes_in_one_stream() {
    for to in listeners() {
        for speaks in [true, false] {
            let name = format!("{to} {speaks}");
            let mut bed = Bed::between(pcmu(), to);
            bed.tone(pcmu(), 20, 400, |_| false);
            let before = bed.heard.len();
            bed.call.set_held(Side::B, true);
            let reports = bed.call.leg(Side::B).stats().session.rtcp_sent;
            bed.call.insert_dtmf(bed.now_ns, Side::A, digit(1)).unwrap();
            if speaks {
                bed.tone(pcmu(), 20, 60_000, |_| false)
            } else {
                bed.wait_ms(60_000);
                bed.time = bed.time.wrapping_add(60_000 * 8);
            }
            assert_eq!(bed.heard.len(), before, "{name}");
            let stats = bed.call.leg(Side::B).stats();
            assert!(stats.session.rtcp_sent >= reports + 5, "{name}");
            assert_eq!(stats.rtp_to, None);
            bed.call.set_held(Side::B, false);
            bed.tone(pcmu(), 20, 400, |_| false);
            assert_one_stream(&bed, &name);
            let after = &bed.heard[before..];
            assert!(
                after.len() >= 18 && after[0].marker,
                "{name}: {}",
                after.len()
            );
            let pause = after[0].time.distance_from(bed.heard[before - 1].time) as f64;
            let pause_ms = pause * 1000.0 / f64::from(to.clock_rate_hz);
            assert!(
                (59_960.0..=60_060.0).contains(&pause_ms),
                "{name}: {pause_ms}"
            );
        }
    }
}

/// The old form of hold is `c=IN IP4 0.0.0.0` (RFC 3264, section 8.4). The kernel would take this address for the machine itself.
#[test]
fn nothing_is_sent_to_an_unspecified_address() {
    let nowhere: SocketAddr = "0.0.0.0:6000".parse().unwrap();
    let mut bed = Bed::between(pcmu(), pcmu());
    bed.tone(pcmu(), 20, 200, |_| false);
    let before = bed.heard.len();
    for destination in [
        Destination::Peer,
        Destination::Fixed {
            rtp: nowhere,
            rtcp: None,
        },
    ] {
        let admission = AdmissionConfig {
            peer: Some(nowhere),
            ..AdmissionConfig::default()
        };
        let now_ns = bed.now_ns;
        bed.call
            .leg_mut(Side::B)
            .relearn(now_ns, admission, destination);
        bed.tone(pcmu(), 20, 200, |_| false);
        assert_eq!(bed.heard.len(), before);
        assert_eq!(bed.call.leg(Side::B).rtcp_to(), None);
    }
    let admission = AdmissionConfig {
        peer: Some(address(Side::B)),
        ..AdmissionConfig::default()
    };
    let now_ns = bed.now_ns;
    bed.call
        .leg_mut(Side::B)
        .relearn(now_ns, admission, Destination::Peer);
    bed.tone(pcmu(), 20, 200, |_| false);
    assert_one_stream(&bed, "back");
    assert!(bed.heard.len() >= before + 8);
}

/// A sender may stop its timestamps during a pause. A digit that is inserted during or after the pause replaces the audio for the length of
/// the digit, and not for the length of the pause.
#[test]
fn digit_after_a_pause_replaces_only_audio_of_its_own_length() {
    for to in listeners() {
        for (pause_ms, pauses_between) in [(0, false), (300, false), (3000, false), (3000, true)] {
            let name = format!("{to} {pause_ms} ms, again {pauses_between}");
            let b = with_keys(to, 110, to.clock_rate_hz);
            let mut bed = Bed::new(
                &[Payload::audio(96, pcmu())],
                &b,
                DirectionConfig::default(),
            );
            bed.tone(pcmu(), 20, 400, |_| false);
            bed.wait_ms(pause_ms);
            if pauses_between {
                bed.tone(pcmu(), 20, 400, |_| false);
            }
            bed.call.insert_dtmf(bed.now_ns, Side::A, digit(5)).unwrap();
            bed.tone(pcmu(), 20, 200, |_| false);
            let before = bed.heard.len();
            bed.tone(pcmu(), 20, 1000, |_| false);
            let audio = bed.heard[before..]
                .iter()
                .filter(|heard| heard.payload_type != 110);
            // The digit lasts 100 ms, and the jitter buffer delays it by 60 ms.
            let payload = Payload::audio(96, to);
            let units = audio.map(|heard| u64::from(units_of(&payload, &heard.payload)));
            let spoken_ms = units.sum::<u64>() * 1000 / u64::from(to.clock_rate_hz);
            assert!(spoken_ms >= 940, "{name}: {spoken_ms} ms of 1000");
            assert_one_stream(&bed, &name);
        }
    }
}

/// An action of the owner, or of A.
#[derive(Debug, Clone)]
enum Step {
    /// A speaks for this long in this format.
    Speak(u8),
    /// This number of packets from A is lost.
    Lose(u8),
    /// A sends nothing.
    Wait(u16),
    /// A restarts as another source.
    Restart,
    Digit(u8, u8),
    Block(bool),
    Detect(bool),
    Hold(bool),
    Mode(u8),
    PacketTime(u8),
    Codec(u8),
    Play(u16),
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..20_u8).prop_map(Step::Speak),
        1 => (1..4_u8).prop_map(Step::Lose),
        2 => (0..400_u16).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        3 => (0..16_u8, 0..200_u8).prop_map(|(key, ms)| Step::Digit(key, ms)),
        1 => any::<bool>().prop_map(Step::Block),
        1 => any::<bool>().prop_map(Step::Detect),
        2 => any::<bool>().prop_map(Step::Hold),
        1 => (0..3_u8).prop_map(Step::Mode),
        1 => (0..5_u8).prop_map(Step::PacketTime),
        2 => (0..5_u8).prop_map(Step::Codec),
        1 => (1..4000_u16).prop_map(Step::Play),
        1 => Just(Step::Stop),
    ]
}

impl Bed {
    fn take_step(&mut self, step: &Step, events: bool) {
        let now_ns = self.now_ns;
        match *step {
            Step::Speak(packets) => {
                for _ in 0..packets {
                    self.speak(96, &[0x23; 160]);
                    self.time = self.time.wrapping_add(160);
                    self.wait_ms(20);
                }
            }
            Step::Lose(packets) => {
                self.seq = self.seq.wrapping_add(u16::from(packets));
                self.time = self.time.wrapping_add(160 * u32::from(packets));
                self.wait_ms(20 * u64::from(packets));
            }
            Step::Wait(ms) => {
                self.time = self.time.wrapping_add(8 * u32::from(ms));
                self.wait_ms(ms.into());
            }
            Step::Restart => {
                (self.seq, self.time) = (self.seq.wrapping_mul(77), self.time.wrapping_mul(99));
                self.ssrc = self.ssrc.wrapping_add(1);
            }
            Step::Digit(key, ms) => {
                let digit = DtmfDigit {
                    duration_ns: (40 + u64::from(ms)) * MS,
                    pause_ns: 40 * MS,
                    ..digit(key)
                };
                let _ = self.call.insert_dtmf(now_ns, Side::A, digit);
            }
            Step::Block(blocks) => self.call.block_keys(Side::A, blocks),
            Step::Detect(detects) => self.call.set_detect_keys(Side::A, detects),
            Step::Hold(is_held) => self.call.set_held(Side::B, is_held),
            Step::Mode(mode) => {
                let modes = [Mode::Pass, Mode::Mute, Mode::Hold];
                self.call.set_mode(Side::A, modes[usize::from(mode)]);
            }
            Step::PacketTime(tens) => {
                let _ = self.call.set_packet_ns(Side::A, u64::from(tens) * 10 * MS);
            }
            Step::Codec(codec) => {
                let format = listeners()[usize::from(codec)];
                let takes = with_payload(100 + codec, format, events);
                self.call.set_payloads(Side::B, takes.clone(), takes);
            }
            Step::Play(samples) => {
                let clip = Clip {
                    pcm: vec![0.1; samples.into()].into(),
                    rate_hz: 8000,
                    channels: 1,
                    times: 1,
                };
                self.call.play(now_ns, Side::B, clip).unwrap();
            }
            Step::Stop => self.call.stop_play(Side::B),
        }
    }
}

fn with_payload(number: u8, audio: Format, events: bool) -> Arc<PayloadMap> {
    let mut payloads = vec![Payload::audio(number, audio)];
    if events {
        payloads.push(Payload::telephone_event(120, audio.clock_rate_hz));
    }
    Arc::new(PayloadMap::new(&payloads).unwrap())
}

/// A new answer arrives during a tone, and a loss is concealed. Audio that was gathered from the tone must not be sent afterwards.
#[test]
fn interrupted_tone_leaves_nothing_queued() {
    use Step::{Codec, Digit, Lose, PacketTime, Speak};
    let b = with_payload(97, pcmu(), false);
    let b: Vec<Payload> = b.iter().copied().collect();
    let mut bed = Bed::new(
        &[Payload::audio(96, pcmu())],
        &b,
        DirectionConfig::default(),
    );
    for step in [
        PacketTime(3),
        Codec(0),
        Speak(1),
        Digit(0, 41),
        Speak(1),
        Lose(2),
        Codec(0),
        Speak(1),
    ] {
        bed.take_step(&step, false);
    }
    bed.wait_ms(2000);
    assert!(bed.heard.len() > 5);
    for (at, pair) in bed.heard.windows(2).enumerate() {
        assert!(pair[1].time.distance_from(pair[0].time) > 0, "{at}");
    }
}

/// The audio that was gathered for 30 ms leaves before the first packet that is forwarded directly.
#[test]
fn numbers_are_unique_if_packets_are_forwarded_again_after_other_packet_times() {
    use Step::{PacketTime, Speak};
    for tens in [3, 4] {
        let b = with_payload(97, pcmu(), false);
        let b: Vec<Payload> = b.iter().copied().collect();
        let direction = DirectionConfig {
            passes_directly: true,
            ..DirectionConfig::default()
        };
        let mut bed = Bed::new(&[Payload::audio(96, pcmu())], &b, direction);
        for step in [PacketTime(tens), Speak(5), PacketTime(0), Speak(9)] {
            bed.take_step(&step, false);
        }
        bed.wait_ms(2000);
        assert!(bed.heard.len() > 10, "{}", bed.heard.len());
        for pair in bed.heard.windows(2) {
            assert_eq!(pair[1].seq.distance_from(pair[0].seq), 1, "{tens}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the owner changes, the far side gets one stream: no number repeats, no timestamp decreases, and the far side accepts the
    /// codec of every packet.
    #[test]
    fn far_side_has_one_stream_after_any_commands(
        events in any::<bool>(),
        passes_directly in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let a = [Payload::audio(96, pcmu())];
        let b = with_payload(97, pcmu(), events);
        let b: Vec<Payload> = b.iter().copied().collect();
        let direction = DirectionConfig {
            passes_directly,
            ..DirectionConfig::default()
        };
        let mut bed = Bed::new(&a, &b, direction);
        let mut is_held = false;
        for step in &steps {
            let before = bed.heard.len();
            bed.take_step(step, events);
            let takes = bed.call.leg(Side::B).takes().clone();
            for heard in &bed.heard[before..] {
                prop_assert!(takes.get(crate::id::PayloadType(heard.payload_type)).is_some());
            }
            if is_held {
                prop_assert_eq!(bed.heard.len(), before);
            }
            if let Step::Hold(held) = step {
                is_held = *held;
            }
        }
        bed.call.set_held(Side::B, false);
        bed.wait_ms(2000);
        for (at, pair) in bed.heard.windows(2).enumerate() {
            prop_assert!(pair[1].seq.distance_from(pair[0].seq) >= 1, "{at}");
            let step = pair[1].time.distance_from(pair[0].time);
            prop_assert!(step >= 0, "{}: {}", at, step);
        }
    }
}
