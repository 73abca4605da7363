use super::direction::Direction;
use super::test_bed::{Bed, Heard, MS, format, with_keys};
use super::*;
use crate::codec::{Encoder, Encoding};
use crate::dtmf::Key;
use crate::id::SeqNum;
use crate::leg::{Payload, PayloadMap};
use crate::tone::{self, DtmfDetector, Tone, ToneGenerator};

/// Returns the formats of the side that hears digits in the audio.
fn listeners() -> Vec<Format> {
    vec![
        format(Encoding::Pcmu, 8000, 1),
        format(Encoding::G722, 16_000, 1),
        format(Encoding::L16, 48_000, 1),
        format(Encoding::L16, 44_100, 2),
        format(Encoding::Opus, 48_000, 2),
        format(Encoding::Opus, 16_000, 1),
    ]
}

/// Creates a call from a party with telephone events to a party without them.
fn to_audio_only(from: Format, to: Format, packet_ns: u64) -> Bed {
    let direction = DirectionConfig {
        packet_ns,
        ..DirectionConfig::default()
    };
    let b = [Payload::audio(97, to)];
    Bed::new(&with_keys(from, 101, from.clock_rate_hz), &b, direction)
}

impl Bed {
    /// Lets A press a digit for `steps` updates of 50 ms. The last update is the end, which is sent three times (RFC 4733, section
    /// 2.5.1.4). The packets whose numbers are in `lost` do not arrive.
    fn press(&mut self, from: Format, event: u8, steps: u32, lost: &[u32]) {
        let unit = from.clock_rate_hz / 20;
        for number in 0..steps + 2 {
            let step = (number + 1).min(steps);
            let [_, _, high, low] = (step * unit).to_be_bytes();
            let is_end = step == steps;
            let payload = [event, u8::from(is_end) << 7 | 10, high, low];
            if number < steps {
                self.wait_ms(50);
            }
            let bytes = self.packet(101, number == 0, &payload);
            if !lost.contains(&number) {
                self.hand_in(&bytes);
            }
        }
        self.time = self.time.wrapping_add(steps * unit);
    }

    /// Lets A send silence for this long, in packets of 20 ms.
    fn silence(&mut self, from: Format, ms: u64) {
        let mut encoder = Encoder::new(from, &EncoderSettings::default()).unwrap();
        let frames = from.sample_rate_hz as usize / 50;
        for _ in 0..ms / 20 {
            let mut payload = Vec::new();
            let pcm = vec![0.0; frames * usize::from(from.channels)];
            encoder.encode(&pcm, &mut payload).unwrap();
            self.speak(96, &payload);
            self.time = self.time.wrapping_add(from.clock_units(frames as u32));
            self.wait_ms(20);
        }
    }

    /// Returns the DTMF digits that B hears, each with its length in ms.
    fn keys_heard(&self, to: Format) -> Vec<(u8, u64)> {
        let pcm = self.decoded(to);
        let first = pcm.iter().step_by(usize::from(to.channels)).copied();
        let mono: Vec<f32> = first.chain(std::iter::repeat_n(0.0, 4800)).collect();
        let mut detector = DtmfDetector::new(to.sample_rate_hz).unwrap();
        let mut events = Vec::new();
        detector.feed(&mono, &mut events);
        let mut keys: Vec<(u8, u64)> = Vec::new();
        let mut began = 0;
        for event in events {
            match event {
                tone::KeyEvent::Down { key, at_frame, .. } => {
                    keys.push((key.number(), 0));
                    began = at_frame;
                }
                tone::KeyEvent::Up { at_frame, .. } => {
                    let ms = (at_frame - began) * 1000 / u64::from(to.sample_rate_hz);
                    keys.last_mut().unwrap().1 = ms;
                }
            }
        }
        keys
    }

    /// Lets A send 400 ms of silence, a digit's tone for `ms`, and 400 ms of silence. Packets have 20 ms, and those in `lost` do not
    /// arrive.
    fn play_key(&mut self, encoder: &mut Encoder, event: u8, ms: u32, lost: &[u64]) {
        let from = encoder.format();
        let mut generator = ToneGenerator::new(from.sample_rate_hz).unwrap();
        let frames = from.sample_rate_hz as usize / 50;
        for number in 0..u64::from(ms) / 20 + 40 {
            if number == 20 {
                generator.start(Tone::key(Key::new(event).unwrap(), 10, ms));
            }
            let mut mono = Vec::new();
            generator.generate(frames, &mut mono);
            let channels = usize::from(from.channels);
            let each = mono.iter();
            let each = each.flat_map(|sample| std::iter::repeat_n(*sample, channels));
            let pcm: Vec<f32> = each.collect();
            let mut payload = Vec::new();
            encoder.encode(&pcm, &mut payload).unwrap();
            let bytes = self.packet(96, false, &payload);
            if !lost.contains(&number) {
                self.hand_in(&bytes);
            }
            self.time = self.time.wrapping_add(from.clock_units(frames as u32));
            self.wait_ms(20);
        }
    }

    fn keys_told(&self) -> Vec<KeyEvent> {
        let keys = self.events.iter().filter_map(|event| match event {
            SessionEvent::Key(LegId::A, key) => Some(*key),
            _ => None,
        });
        keys.collect()
    }
}

#[test]
fn side_without_events_gets_each_digit_as_one_tone() {
    // The columns are the name, the lost packets out of six, and how much shorter the digit may be because a lost update is unknown.
    let cases: [(&str, &[u32], u64); 6] = [
        ("all", &[], 40),
        ("the first lost", &[0], 40),
        ("two in the middle lost", &[1, 2], 40),
        ("an end lost", &[3], 40),
        ("two ends lost", &[3, 4], 40),
        ("all ends lost", &[3, 4, 5], 50 + 40),
    ];
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let opus = format(Encoding::Opus, 48_000, 1);
    for (from, packet_ns) in [(pcmu, 0), (pcmu, 20 * MS), (opus, 0)] {
        for to in listeners() {
            for (name, lost, short_ms) in cases {
                let name = format!("{from} to {to}, {packet_ns} ns: {name}");
                if Direction::new(
                    DirectionConfig {
                        packet_ns,
                        ..DirectionConfig::default()
                    },
                    &PayloadMap::new(&[Payload::audio(97, to)]).unwrap(),
                )
                .is_err()
                {
                    continue; // 20 ms in this format do not fit a datagram
                }
                let mut bed = to_audio_only(from, to, packet_ns);
                let keys = [5_u8, 11, 0];
                bed.silence(from, 400);
                for key in keys {
                    bed.press(from, key, 4, lost);
                    bed.silence(from, 400);
                }
                bed.wait_ms(500);
                let heard = bed.keys_heard(to);
                let numbers: Vec<u8> = heard.iter().map(|(key, _)| *key).collect();
                assert_eq!(numbers, keys, "{name}");
                for (key, ms) in heard {
                    assert!(
                        (200 - short_ms..=240).contains(&ms),
                        "{name}: {key} for {ms} ms"
                    );
                }
                // Numbers and timestamps of its packets are consecutive.
                for pair in bed.heard.windows(2) {
                    assert!(pair[1].time.distance_from(pair[0].time) > 0, "{name}");
                    assert_eq!(pair[1].payload_type, 97, "{name}");
                }
                assert_eq!(bed.keys_told().len(), 6, "{name}");
            }
        }
    }
}

/// Some senders continue their audio during a digit.
#[test]
fn the_tone_of_a_digit_replaces_the_audio() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    for to in listeners() {
        let mut bed = to_audio_only(pcmu, to, 0);
        bed.silence(pcmu, 200);
        let began = bed.time;
        for step in 1..=4_u32 {
            let [_, _, high, low] = (step * 400).to_be_bytes();
            let payload = [1, u8::from(step == 4) << 7 | 10, high, low];
            let time = std::mem::replace(&mut bed.time, began);
            bed.speak(101, &payload);
            bed.time = time;
            // This noise is so loud that it would hide the digit.
            for _ in 0..5 {
                let noise: Vec<u8> = (0..80_u32).map(|n| (n * 37 % 251) as u8).collect();
                if step < 4 {
                    bed.speak(96, &noise);
                    bed.time = bed.time.wrapping_add(80);
                    bed.wait_ms(10);
                }
            }
        }
        bed.time = began.wrapping_add(1600);
        bed.silence(pcmu, 400);
        bed.wait_ms(500);
        let heard = bed.keys_heard(to);
        assert_eq!(heard.len(), 1, "{to}: {heard:?}");
        assert!(
            heard[0].0 == 1 && (160..=240).contains(&heard[0].1),
            "{to}: {heard:?}"
        );
    }
}

/// The sender sends many events that claim to have lasted for seconds.
#[test]
fn forged_events_make_no_longer_tone_than_the_elapsed_time() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    for to in listeners() {
        for (is_new, ms) in [(true, 1), (false, 1), (true, 20), (false, 20)] {
            let mut bed = to_audio_only(pcmu, to, 0);
            for number in 0..500_u32 {
                if is_new {
                    bed.time = bed.time.wrapping_add(9);
                }
                bed.speak(101, &[(number % 16) as u8, 10, 0xff, 0xff]);
                bed.wait_ms(ms);
            }
            bed.wait_ms(1000);
            let decoded = bed.decoded(to).len() as u64;
            let per_ms = u64::from(to.sample_rate_hz) * u64::from(to.channels);
            let heard_ns = decoded * 1_000_000_000 / per_ms;
            // After a fade of 5 ms, the end of each digit is padded to the codec's granularity of 5 ms.
            let ends_ns = if is_new { 500 * 10 * MS } else { 10 * MS };
            let most_ns = 500 * ms * MS + TAIL_NS_MAX + 60 * MS;
            assert!(heard_ns <= most_ns + ends_ns, "{to}, {ms}: {heard_ns}");
        }
    }
}

/// At 48 kHz, the duration field holds at most 1.37 s (RFC 4733, section 2.5.1.3).
#[test]
fn long_digit_is_one_digit() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let opus = format(Encoding::Opus, 48_000, 1);
    for (from, to) in [(opus, pcmu), (pcmu, opus), (opus, opus)] {
        let mut bed = Bed::new(
            &with_keys(from, 101, from.clock_rate_hz),
            &with_keys(to, 110, to.clock_rate_hz),
            DirectionConfig::default(),
        );
        bed.silence(from, 200);
        let ends = u64::from(from.clock_rate_hz) * 3;
        let mut begun = 0_u64;
        let began = bed.time;
        for step in 1..=60 {
            let units = u64::from(from.clock_rate_hz) / 20 * step;
            while units - begun > 0xffff {
                bed.time = began.wrapping_add(begun as u32);
                bed.speak(101, &[7, 10, 0xff, 0xff]);
                begun += 0xffff;
            }
            bed.time = began.wrapping_add(begun as u32);
            let [high, low] = ((units - begun) as u16).to_be_bytes();
            bed.speak(101, &[7, u8::from(units == ends) << 7 | 10, high, low]);
            bed.wait_ms(50);
        }
        let keys = bed.heard.iter().filter(|heard| heard.payload_type == 110);
        let keys: Vec<_> = keys.collect();
        let ends: Vec<i64> = keys
            .iter()
            .map(|key| {
                let told = u16::from_be_bytes([key.payload[2], key.payload[3]]);
                key.time.distance_from(keys[0].time) + i64::from(told)
            })
            .collect();
        let last = i64::from(to.clock_rate_hz) * 3;
        assert_eq!(*ends.last().unwrap(), last, "{from} to {to}");
        assert!(ends.is_sorted(), "{from} to {to}");
        let marked = keys.iter().filter(|key| key.marker).count();
        let ended = keys.iter().filter(|key| key.payload[1] & 0x80 != 0).count();
        assert_eq!((marked, ended), (1, 1), "{from} to {to}");
        let phases: Vec<KeyPhase> = bed.keys_told().iter().map(|key| key.phase).collect();
        let released = KeyPhase::Released { duration_ms: 3000 };
        assert_eq!(phases, [KeyPhase::Pressed, released], "{from} to {to}");
    }
}

#[test]
fn digits_in_the_audio_become_events() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let to_formats = [
        (pcmu, 0),
        (pcmu, 30 * MS),
        (format(Encoding::Pcma, 8000, 1), 0),
        (format(Encoding::Opus, 48_000, 1), 0),
        (format(Encoding::L16, 16_000, 1), 0),
    ];
    // 20 ms of two channels at 44.1 kHz do not fit a datagram.
    for from in listeners()
        .into_iter()
        .filter(|from| from.channels == 1 || from.encoding == Encoding::Opus)
    {
        for (to, packet_ns) in to_formats {
            // If the digit lasts only 80 ms, the part next to a lost packet may be too short to be a digit.
            for (lost, shortest_ms) in [(&[][..], 80), (&[22], 160)] {
                let keys = [(5_u8, shortest_ms), (5, 200), (12, 1000), (0, 160)];
                let name = format!("{from} to {to}, {packet_ns} ns, {lost:?}");
                let direction = DirectionConfig {
                    packet_ns,
                    detect_keys: true,
                    ..DirectionConfig::default()
                };
                let b = with_keys(to, 110, to.clock_rate_hz);
                let mut bed = Bed::new(&[Payload::audio(96, from)], &b, direction);
                let mut encoder = Encoder::new(from, &EncoderSettings::default()).unwrap();
                for (key, ms) in keys {
                    bed.play_key(&mut encoder, key, ms, lost);
                }
                bed.wait_ms(500);
                let told: Vec<u8> = bed
                    .keys_told()
                    .iter()
                    .filter(|key| key.phase == KeyPhase::Pressed)
                    .map(|key| key.event)
                    .collect();
                assert_eq!(told, keys.map(|(key, _)| key), "{name}");
                assert_eq!(bed.keys_told().len(), 8, "{name}");
                let (events, audio): (Vec<_>, Vec<_>) = std::mem::take(&mut bed.heard)
                    .into_iter()
                    .partition(|heard| heard.payload_type == 110);
                assert_events(&events, &keys, to, &name);
                for pair in audio.windows(2) {
                    assert!(pair[1].time.distance_from(pair[0].time) > 0, "{name}");
                }
                bed.heard = audio;
                // The audio that passed before the detection is shorter than a digit, which has at least 40 ms (ITU-T Q.24).
                for (number, heard) in bed.heard.iter_mut().enumerate() {
                    heard.seq = SeqNum(number as u16);
                }
                let heard = bed.keys_heard(to);
                assert!(heard.iter().all(|(_, ms)| *ms < 40), "{name}: {heard:?}");
            }
        }
    }
}

/// Asserts that each event starts with a marker, grows, and ends with three packets of its full length.
fn assert_events(events: &[Heard], keys: &[(u8, u32)], to: Format, name: &str) {
    let mut rest = events;
    for (key, ms) in keys {
        let time = rest[0].time;
        let count = rest.iter().take_while(|heard| heard.time == time).count();
        let (own, after) = rest.split_at(count);
        rest = after;
        let units: Vec<u64> = own
            .iter()
            .map(|heard| u64::from(u16::from_be_bytes([heard.payload[2], heard.payload[3]])))
            .collect();
        assert!(own.iter().all(|heard| heard.payload[0] == *key), "{name}");
        assert!(units.is_sorted(), "{name}: {units:?}");
        let ends = own.iter().filter(|heard| heard.payload[1] & 0x80 != 0);
        assert_eq!(ends.count(), 3, "{name}");
        let marked: Vec<bool> = own.iter().map(|heard| heard.marker).collect();
        assert!(marked[0] && !marked[1..].contains(&true), "{name}");
        let told_ms = units[count - 1] * 1000 / u64::from(to.clock_rate_hz);
        assert!(
            told_ms.abs_diff(u64::from(*ms)) <= 40,
            "{name}: {told_ms} {ms}"
        );
        // The steps are 50 ms, plus the part of a packet of audio that exceeds this.
        let steps = units.windows(2).map(|pair| pair[1] - pair[0]);
        let most = steps.max().unwrap_or(0) * 1000 / u64::from(to.clock_rate_hz);
        assert!(most <= 90, "{name}: {most} ms");
    }
    assert!(rest.is_empty(), "{name}: {} more", rest.len());
}

#[test]
fn digits_are_detected_only_without_negotiated_events() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let opus = format(Encoding::Opus, 48_000, 1);
    let direction = DirectionConfig {
        detect_keys: true,
        ..DirectionConfig::default()
    };
    for to in [pcmu, opus] {
        let b = [Payload::audio(97, to)];
        let mut bed = Bed::new(&[Payload::audio(96, pcmu)], &b, direction);
        let mut encoder = Encoder::new(pcmu, &EncoderSettings::default()).unwrap();
        bed.play_key(&mut encoder, 3, 200, &[]);
        bed.wait_ms(500);
        assert_eq!(bed.keys_told().len(), 2, "{to}");
        let heard = bed.keys_heard(to);
        assert!(
            heard.len() == 1 && heard[0].0 == 3 && (180..=220).contains(&heard[0].1),
            "{to}: {heard:?}"
        );
        let mut bed = Bed::new(&with_keys(pcmu, 101, 8000), &b, direction);
        let mut encoder = Encoder::new(pcmu, &EncoderSettings::default()).unwrap();
        bed.play_key(&mut encoder, 3, 200, &[]);
        assert_eq!(bed.keys_told(), [], "{to}");
    }
}

/// If a sender stops in the middle of a digit, the digit ends after a timeout. Otherwise an owner would wait for ever.
#[test]
fn digit_ends_when_its_sender_falls_silent() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    // The digits arrive as events, for a side with and for one without events, or in the audio.
    for (to_has_events, in_audio) in [(true, false), (false, false), (true, true)] {
        let name = format!("events at B: {to_has_events}, in the audio: {in_audio}");
        let direction = DirectionConfig {
            detect_keys: true,
            ..DirectionConfig::default()
        };
        let audio = [Payload::audio(96, pcmu)];
        let with = with_keys(pcmu, 101, 8000);
        let a = if in_audio { &audio[..] } else { &with[..] };
        let b = if to_has_events { &with[..] } else { &audio[..] };
        let mut bed = Bed::new(a, b, direction);
        bed.tone(pcmu, 20, 200, |_| false);
        if in_audio {
            let mut generator = ToneGenerator::new(8000).unwrap();
            generator.start(Tone::key(Key::new(5).unwrap(), 10, 0));
            let mut encoder = Encoder::new(pcmu, &EncoderSettings::default()).unwrap();
            for _ in 0..5 {
                let (mut pcm, mut payload) = (Vec::new(), Vec::new());
                generator.generate(160, &mut pcm);
                encoder.encode(&pcm, &mut payload).unwrap();
                bed.speak(96, &payload);
                bed.time = bed.time.wrapping_add(160);
                bed.wait_ms(20);
            }
        } else {
            bed.press(pcmu, 5, 20, &(10..22).collect::<Vec<_>>());
        }
        bed.wait_ms(1_000);
        let told = bed.keys_told();
        assert_eq!(told.len(), 2, "{name}: {told:?}");
        assert_eq!(told[0].phase, KeyPhase::Pressed, "{name}");
        let KeyPhase::Released { duration_ms } = told[1].phase else {
            panic!("{name}: {told:?}");
        };
        // Until then, ten updates of 50 ms or five packets of 20 ms have come.
        let known_ms = if in_audio { 100 } else { 500 };
        assert!(
            (known_ms - 30..=known_ms + 10).contains(&duration_ms),
            "{name}: {duration_ms} ms"
        );
        assert_eq!(bed.call.flows.first().direction.next_key(), None, "{name}");
    }
}

/// After new signalling without events, digits in the audio are detected again.
#[test]
fn digits_are_detected_again_without_negotiated_events() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let direction = DirectionConfig {
        detect_keys: true,
        ..DirectionConfig::default()
    };
    let with = with_keys(pcmu, 101, 8000);
    let mut bed = Bed::new(&with, &with, direction);
    let mut encoder = Encoder::new(pcmu, &EncoderSettings::default()).unwrap();
    bed.play_key(&mut encoder, 5, 100, &[]);
    bed.silence(pcmu, 200);
    assert_eq!(bed.keys_told(), []);
    let map = |payloads: &[Payload]| Arc::new(PayloadMap::new(payloads).unwrap());
    let audio = map(&[Payload::audio(96, pcmu)]);
    bed.call.set_payloads(Side::A, audio.clone(), audio);
    bed.play_key(&mut encoder, 6, 100, &[]);
    bed.silence(pcmu, 200);
    assert_eq!(bed.keys_told().len(), 2);
    // Once events are agreed on again, digits in the audio are not detected any more.
    bed.events.clear();
    bed.call.set_payloads(Side::A, map(&with), map(&with));
    bed.play_key(&mut encoder, 7, 100, &[]);
    bed.silence(pcmu, 200);
    assert_eq!(bed.keys_told(), []);
}
