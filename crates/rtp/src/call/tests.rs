use std::f64::consts::TAU;

use proptest::prelude::*;

use super::direction::Direction;
use super::test_bed::{Bed, LEVEL, MS, TONE_HZ, address, format, leg, with_keys};
use super::*;
use crate::codec::{Decoder, Encoder, Encoding};
use crate::jitter::{self};
use crate::leg::LegConfig;
use crate::leg::{Payload, PayloadMap};

/// Returns common formats, one of each kind.
fn formats() -> Vec<Format> {
    vec![
        format(Encoding::Pcmu, 8000, 1),
        format(Encoding::Pcma, 8000, 1),
        format(Encoding::G722, 16_000, 1),
        format(Encoding::L16, 8000, 1),
        format(Encoding::L16, 16_000, 1),
        format(Encoding::L16, 44_100, 1),
        format(Encoding::L16, 44_100, 2),
        format(Encoding::L16, 48_000, 2),
        format(Encoding::L24, 48_000, 1),
        format(Encoding::L24, 48_000, 2),
        format(Encoding::L24, 48_000, 8),
        format(Encoding::Opus, 48_000, 2),
        format(Encoding::Opus, 16_000, 1),
    ]
}

/// Returns the amplitude that a signal has at this frequency, from its discrete Fourier transform with a Hann window.
pub(super) fn amplitude_at(signal: &[f64], rate_hz: f64, hz: f64) -> f64 {
    let length = signal.len() as f64;
    let (mut re, mut im) = (0.0, 0.0);
    for (n, sample) in signal.iter().enumerate() {
        let n = n as f64;
        let windowed = sample * (1.0 - (TAU * n / length).cos());
        let phase = TAU * hz * n / rate_hz;
        re += windowed * phase.cos();
        im += windowed * phase.sin();
    }
    2.0 * re.hypot(im) / length
}

/// Measures the tone in each channel. Returns the frequency of the greatest amplitude near the tone, and the level in dB relative to the
/// sent tone.
fn measure(pcm: &[f32], to: Format) -> Vec<(f64, f64)> {
    let rate_hz = f64::from(to.sample_rate_hz);
    (0..usize::from(to.channels))
        .map(|channel| {
            let samples = pcm.iter().skip(channel).step_by(usize::from(to.channels));
            let samples: Vec<f64> = samples.map(|sample| f64::from(*sample)).collect();
            // Leave out the start and the end.
            let quarter = samples.len() / 4;
            let middle = &samples[quarter..samples.len() - quarter];
            let at = |hz: f64| amplitude_at(middle, rate_hz, hz);
            let candidates = (-8..=8).map(|step| TONE_HZ + f64::from(step) * 0.25);
            let amplitudes = candidates.map(|hz| (hz, at(hz)));
            let (hz, amplitude) = amplitudes.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            (hz, 20.0 * (amplitude / LEVEL).log10())
        })
        .collect()
}

/// Returns the longest packet time in ms that fits a datagram: 4 ms for eight channels of L24.
fn packet_ms(format: Format) -> u64 {
    let most = format.max_frames_for(1440).unwrap_or(usize::MAX);
    let fits = |ms: &u64| {
        let frames = (u64::from(format.sample_rate_hz) * ms / 1000) as usize;
        frames <= most && format.allows_frames(frames)
    };
    [20, 10, 4, 1].into_iter().find(fits).unwrap()
}

#[test]
fn every_pair_of_formats_keeps_frequency_level_and_time() {
    for from in formats() {
        for to in formats() {
            let name = format!("{from} to {to}");
            let mut bed = Bed::between(from, to);
            bed.tone(from, packet_ms(from), 1000, |_| false);
            bed.assert_continuous(to, &name);
            let heard_ms = bed.heard_ms(to);
            assert!(
                (979.0..=1000.5).contains(&heard_ms),
                "{name}: {heard_ms} ms"
            );
            let largest = bed.heard.iter().map(|heard| heard.payload.len()).max();
            assert!(largest <= Some(1440), "{name}: {largest:?} bytes");
            for (hz, db) in measure(&bed.decoded(to), to) {
                assert!((hz - TONE_HZ).abs() <= 0.25, "{name}: {hz} Hz");
                // G.711 and Opus are not exact.
                assert!(db.abs() < 0.5, "{name}: {db} dB");
            }
        }
    }
}

/// Losses neither shift nor stretch the audio. A twentieth of the packets is lost, one at a time. The same holds if there is no time to
/// conceal them. In that case, the far side sees a gap in the numbers for each.
#[test]
fn losses_neither_shorten_nor_lengthen_the_audio() {
    for from in formats() {
        for (to, spare) in formats()
            .into_iter()
            .flat_map(|to| [(to, u32::MAX), (to, 0)])
        {
            let name = format!("{from} to {to}, {spare}");
            let mut bed = Bed::between(from, to);
            bed.scratch.set_spare(spare);
            let packet_ms = packet_ms(from);
            bed.tone(from, packet_ms, 4000, |number| number % 20 == 7);
            bed.wait_ms(500);
            let heard_ms = bed.heard_ms(to);
            assert!(
                (3979.0..=4000.5).contains(&heard_ms),
                "{name}: {heard_ms} ms"
            );
            let pcm = bed.decoded(to);
            let frames = pcm.len() / usize::from(to.channels);
            let decoded_ms = frames as f64 * 1000.0 / f64::from(to.sample_rate_hz);
            assert!(
                (3979.0..=4000.5).contains(&decoded_ms),
                "{name}: {decoded_ms} ms"
            );
            // Packets are either missing or concealed.
            let stats = bed.call.stats().directions[0];
            let lost = 4000 / packet_ms / 20;
            assert_eq!(stats.lost, lost, "{name}");
            let is_passed = from == to;
            let left = if spare == 0 && !is_passed { lost } else { 0 };
            assert_eq!(stats.left_to_conceal, left, "{name}");
            assert_eq!(stats.concealed_ns > 0, left == 0 && !is_passed, "{name}");
            let gaps = bed.heard.windows(2);
            let gaps = gaps
                .filter(|pair| pair[1].seq != pair[0].seq.plus(1))
                .count();
            let expected = if is_passed { lost } else { left };
            // If only a part of a packet is lost, there is a gap within the packet.
            if packet_ms == 20 || is_passed {
                assert_eq!(gaps as u64, expected, "{name}");
            }
        }
    }
}

/// Losses are concealed until the budget is used up. By definition, each loss costs one unit. Later losses need a new budget.
#[test]
fn concealment_is_bounded_by_the_elapsed_time() {
    let (pcmu, pcma) = (
        format(Encoding::Pcmu, 8000, 1),
        format(Encoding::Pcma, 8000, 1),
    );
    let mut bed = Bed::between(pcmu, pcma);
    for slice in 1..=3 {
        bed.scratch.set_spare(4);
        bed.tone(pcmu, 20, 2000, |number| number % 10 == 7);
        let stats = bed.call.stats().directions[0];
        assert_eq!(bed.scratch.spare(), 0);
        assert_eq!(stats.concealed_ns, slice * 4 * 20 * MS);
        assert_eq!(stats.left_to_conceal, slice * 6);
    }
}

/// The requirement is: "PCMU in, PCMU out at another packet time must be byte-exact".
#[test]
fn another_packet_time_changes_no_byte() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    for (in_ms, out_ms) in [(20, 10), (20, 30), (30, 20), (10, 60), (60, 20), (20, 20)] {
        let direction = DirectionConfig {
            packet_ns: out_ms * MS,
            ..DirectionConfig::default()
        };
        let payloads = [Payload::audio(0, pcmu)];
        let mut bed = Bed::new(&payloads, &payloads, direction);
        let mut said = Vec::new();
        for number in 0..1200 / in_ms {
            let payload: Vec<u8> = (0..8 * in_ms)
                .map(|n| (n * 7 + number * 31) as u8)
                .collect();
            bed.speak(0, &payload);
            said.extend(payload);
            bed.time = bed.time.wrapping_add(8 * in_ms as u32);
            bed.wait_ms(in_ms);
        }
        let heard: Vec<u8> = bed
            .heard
            .iter()
            .flat_map(|heard| heard.payload.clone())
            .collect();
        assert_eq!(heard, said, "{in_ms} to {out_ms}");
        bed.assert_continuous(pcmu, "repacked");
        assert!(
            bed.heard
                .iter()
                .all(|heard| heard.payload.len() == 8 * out_ms as usize)
        );
    }
}

/// The sender repeats a tiny packet after a gap. The output has no more packets and bytes than the input plus a tail.
#[test]
fn gaps_in_sequence_numbers_cause_no_amplification() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    for to in formats() {
        for packet_ns in [0, 20 * MS] {
            for gap in [2_u16, 9, 50, 1000] {
                let direction = DirectionConfig {
                    packet_ns,
                    ..DirectionConfig::default()
                };
                let (a, b) = ([Payload::audio(96, pcmu)], [Payload::audio(97, to)]);
                if Direction::new(direction, &PayloadMap::new(&b).unwrap()).is_err() {
                    continue; // 20 ms in this format do not fit a datagram
                }
                let config = Bed::new(&a, &[Payload::audio(97, to)], DirectionConfig::default());
                drop(config);
                let Ok(_) = Direction::new(
                    direction,
                    &PayloadMap::new(&[Payload::audio(97, to)]).unwrap(),
                ) else {
                    continue; // 20 ms in this format do not fit a datagram
                };
                let mut bed = Bed::new(&a, &b, direction);
                for _ in 0..500 {
                    bed.speak(96, &[0x55]);
                    bed.seq = bed.seq.wrapping_add(gap - 1);
                    bed.time = bed.time.wrapping_add(u32::from(gap) * 160);
                    bed.wait_ms(20);
                }
                bed.wait_ms(1000);
                let tail = (TAIL_NS_MAX / MS) as usize; // packets with 1 ms each
                let name = format!("{to}, {gap}, {packet_ns}");
                assert!(
                    bed.heard.len() <= bed.sent + tail,
                    "{name}: {} packets",
                    bed.heard.len()
                );
                let concealed_ns = bed.call.stats().directions[0].concealed_ns;
                assert!(
                    concealed_ns <= TAIL_NS_MAX + 500 * 125_000,
                    "{name}: {concealed_ns}"
                );
            }
        }
    }
}

#[test]
fn digits_get_the_far_sides_number_and_rate() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let opus = format(Encoding::Opus, 48_000, 2);
    for (from, to) in [(pcmu, pcmu), (pcmu, opus), (opus, pcmu)] {
        let (from_hz, to_hz) = (from.clock_rate_hz, to.clock_rate_hz);
        let mut bed = Bed::new(
            &with_keys(from, 101, from_hz),
            &with_keys(to, 110, to_hz),
            DirectionConfig::default(),
        );
        bed.tone(from, 20, 400, |_| false);
        let audio = bed.heard.len();
        let end = &bed.heard[audio - 1];
        let began = end.time.plus(to_hz / 50);
        // The sender presses digit 5 for 150 ms, sends its end three times (RFC 4733, section 2.5.1.4), and stops its timestamps meanwhile.
        for step in 1..=6_u32 {
            let is_end = step >= 4;
            let units = step.min(3) * from_hz / 20;
            let [_, _, high, low] = units.to_be_bytes();
            let bytes = [5, u8::from(is_end) << 7 | 10, high, low];
            bed.speak(101, &bytes);
            bed.wait_ms(50);
        }
        bed.time = bed.time.wrapping_add(from_hz * 3 / 10);
        bed.tone(from, 20, 400, |_| false);
        let keys: Vec<_> = bed
            .heard
            .iter()
            .filter(|heard| heard.payload_type == 110)
            .collect();
        assert_eq!(keys.len(), 6);
        for (index, key) in keys.iter().enumerate() {
            let units = (index as u32 + 1).min(3) * to_hz / 20;
            let told = u32::from(u16::from_be_bytes([key.payload[2], key.payload[3]]));
            assert_eq!((key.payload[0], told), (5, units), "{to}");
            assert_eq!(key.payload[1], if index >= 3 { 0x8a } else { 10 });
            assert_eq!(key.marker, index == 0, "{to}");
            assert_eq!(key.time, keys[0].time);
        }
        // The event begins at the end of the audio, apart from the delay of the codecs.
        let off_ms = keys[0].time.distance_from(began) * 1000 / i64::from(to_hz);
        assert!((-20..=20).contains(&off_ms), "{from} to {to}: {off_ms} ms");
        assert_eq!(
            bed.events
                .iter()
                .filter(|event| matches!(event, SessionEvent::Key(..)))
                .collect::<Vec<_>>(),
            [
                &SessionEvent::Key(
                    LegId::A,
                    KeyEvent {
                        event: 5,
                        phase: KeyPhase::Pressed
                    }
                ),
                &SessionEvent::Key(
                    LegId::A,
                    KeyEvent {
                        event: 5,
                        phase: KeyPhase::Released { duration_ms: 150 }
                    }
                ),
            ]
        );
        // Numbers are consecutive, and the next talkspurt is 300 ms after the previous one.
        for pair in bed.heard.windows(2) {
            assert_eq!(pair[1].seq, pair[0].seq.plus(1));
        }
        let after = bed
            .heard
            .iter()
            .skip(audio)
            .find(|heard| heard.payload_type != 110)
            .unwrap();
        let pause_ms = after.time.distance_from(began) * 1000 / i64::from(to_hz);
        assert!(
            (280..=300).contains(&pause_ms),
            "{from} to {to}: {pause_ms} ms"
        );
    }
}

#[test]
fn comfort_noise_is_passed_to_a_side_that_has_it() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let pcma = format(Encoding::Pcma, 8000, 1);
    for has_noise in [true, false] {
        let mut b = with_keys(pcma, 110, 8000);
        if !has_noise {
            b.pop();
        }
        let mut bed = Bed::new(&with_keys(pcmu, 101, 8000), &b, DirectionConfig::default());
        bed.tone(pcmu, 20, 400, |_| false);
        let before = bed.heard.len();
        bed.speak(13, &[70]);
        bed.time = bed.time.wrapping_add(8000);
        bed.wait_ms(1000);
        bed.tone(pcmu, 20, 400, |_| false);
        let noise: Vec<_> = bed
            .heard
            .iter()
            .filter(|heard| heard.payload_type == 13)
            .collect();
        assert_eq!(noise.len(), usize::from(has_noise));
        // The pause keeps its length.
        let last = &bed.heard[before - 1];
        let next = &bed.heard[before + usize::from(has_noise)];
        assert_eq!(next.time.distance_from(last.time), 160 + 8000);
        assert!(next.marker && next.seq == last.seq.plus(1 + u16::from(has_noise)));
    }
}

/// A party pauses by Opus's DTX. A side with comfort noise gets comfort noise with the level of the background (in dB below the power of
/// full scale, RFC 3389). A side without it hears a continuous stream.
#[cfg(feature = "opus")]
#[test]
fn opus_pause_becomes_comfort_noise_if_negotiated() {
    let opus = format(Encoding::Opus, 48_000, 1);
    for (to, has_noise) in [
        (format(Encoding::Pcmu, 8000, 1), true),
        (format(Encoding::L16, 16_000, 1), true),
        (format(Encoding::Pcmu, 8000, 1), false),
    ] {
        let name = format!("{to}, {has_noise}");
        let mut b = vec![Payload::audio(97, to)];
        if has_noise {
            b.push(Payload::comfort_noise(13, to.clock_rate_hz));
        }
        let mut bed = Bed::new(&[Payload::audio(96, opus)], &b, DirectionConfig::default());
        let settings = EncoderSettings {
            dtx: true,
            ..EncoderSettings::default()
        };
        let mut encoder = Encoder::new(opus, &settings).unwrap();
        let mut random = crate::rng::SplitMix(3);
        let (mut pauses, mut background) = (0, 0.0_f64);
        for number in 0..350_u32 {
            let is_speech = !(50..300).contains(&number);
            let pcm: Vec<f32> = (0..960)
                .map(|at| {
                    let noise = (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0;
                    let phase = TAU * TONE_HZ * f64::from(number * 960 + at) / 48_000.0;
                    noise * 0.002
                        + if is_speech {
                            (phase.sin() * LEVEL) as f32
                        } else {
                            0.0
                        }
                })
                .collect();
            let mut payload = Vec::new();
            encoder.encode(&pcm, &mut payload).unwrap();
            pauses += u32::from(payload.len() <= 2);
            // This is the background as the decoder outputs it before the pause.
            if !is_speech && pauses == 0 {
                let mut heard = Vec::new();
                let mut decoder = Decoder::new(to).unwrap();
                if let Some(last) = bed.heard.last() {
                    decoder.decode(&last.payload, &mut heard).unwrap();
                }
                let power =
                    heard.iter().map(|x| f64::from(x * x)).sum::<f64>() / heard.len() as f64;
                background = -10.0 * power.log10();
            }
            bed.speak(96, &payload);
            bed.time = bed.time.wrapping_add(960);
            bed.wait_ms(20);
        }
        assert!(pauses > 50, "{name}: {pauses} packets without audio");
        let heard = bed.heard.iter().enumerate();
        let noise: Vec<_> = heard
            .filter(|(_, heard)| heard.payload_type == 13)
            .collect();
        let made = bed.call.stats().directions[0].noise_made;
        assert_eq!(noise.len() as u64, made, "{name}");
        if !has_noise {
            bed.assert_continuous(to, &name);
            continue;
        }
        // From time to time, the encoder sends the background again.
        assert!(
            !noise.is_empty() && noise.len() <= 12,
            "{name}: {}",
            noise.len()
        );
        for (at, heard) in noise {
            let level = f64::from(heard.payload[0]);
            assert!(
                (level - background).abs() < 4.0,
                "{name}: {level}, not {background}"
            );
            let (before, next) = (&bed.heard[at - 1], &bed.heard[at + 1]);
            assert_eq!(
                (heard.seq, heard.marker),
                (before.seq.plus(1), false),
                "{name}"
            );
            assert_eq!((next.seq, next.marker), (heard.seq.plus(1), true), "{name}");
            let pause = next.time.distance_from(heard.time);
            assert!(pause >= i64::from(to.clock_rate_hz / 25), "{name}: {pause}");
        }
        // The pauses keep their lengths.
        let heard_ms = bed.heard_ms(to);
        assert!(
            (6960.0..=7001.0).contains(&heard_ms),
            "{name}: {heard_ms} ms"
        );
    }
}

#[test]
fn a_party_that_restarts_is_one_stream_to_the_other() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    for to in [pcmu, format(Encoding::L16, 16_000, 1)] {
        let mut bed = Bed::between(pcmu, to);
        bed.tone(pcmu, 20, 1000, |_| false);
        (bed.seq, bed.time, bed.ssrc) = (7, 99, 0xbeef);
        bed.wait_ms(500);
        bed.tone(pcmu, 20, 1000, |_| false);
        let heard_ms = bed.heard_ms(to);
        assert!((2480.0..=2501.0).contains(&heard_ms), "{to}: {heard_ms} ms");
        for pair in bed.heard.windows(2) {
            assert_eq!(pair[1].seq, pair[0].seq.plus(1), "{to}");
        }
        assert_eq!(bed.heard.iter().filter(|heard| heard.marker).count(), 2);
    }
}

#[test]
fn mute_sends_silence_and_hold_sends_nothing() {
    for from in formats() {
        for to in [
            from,
            format(Encoding::Pcma, 8000, 1),
            format(Encoding::Opus, 48_000, 2),
        ] {
            let name = format!("{from} to {to}");
            let mut bed = Bed::between(from, to);
            bed.call.set_mode(Side::A, Mode::Mute);
            bed.tone(from, packet_ms(from), 400, |_| false);
            let loudest = bed
                .decoded(to)
                .into_iter()
                .fold(0.0, |most: f32, one| most.max(one.abs()));
            assert!(
                loudest < 0.001 && !bed.heard.is_empty(),
                "{name}: {loudest}"
            );
            bed.call.set_mode(Side::A, Mode::Hold);
            let before = bed.heard.len();
            bed.tone(from, packet_ms(from), 400, |_| false);
            assert!(
                bed.heard.len() <= before + 1,
                "{name}: at most what was gathered"
            );
            bed.call.set_mode(Side::A, Mode::Pass);
            bed.heard.clear();
            bed.tone(from, packet_ms(from), 1000, |_| false);
            bed.assert_continuous(to, &name);
            for (hz, db) in measure(&bed.decoded(to), to) {
                assert!(
                    (hz - TONE_HZ).abs() <= 0.25 && db.abs() < 0.5,
                    "{name}: {hz} {db}"
                );
            }
        }
    }
}

#[test]
fn clip_plays_in_real_time_and_the_party_follows() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    for to in formats() {
        let mut bed = Bed::between(pcmu, to);
        bed.tone(pcmu, 20, 200, |_| false);
        let pcm: Vec<f32> = (0..16_000)
            .map(|n| ((TAU * TONE_HZ * f64::from(n) / 16_000.0).sin() * LEVEL) as f32)
            .collect();
        let clip = Clip {
            pcm: pcm.into(),
            rate_hz: 16_000,
            channels: 1,
            times: 2,
        };
        bed.heard.clear();
        bed.call.play(bed.now_ns, Side::B, clip).unwrap();
        let began_ns = bed.now_ns;
        while !bed.events.contains(&SessionEvent::PlayEnded(LegId::B)) {
            bed.speak(96, &[0xff; 160]);
            bed.time = bed.time.wrapping_add(160);
            bed.wait_ms(20);
            assert!(bed.now_ns < began_ns + 5000 * MS, "{to}");
        }
        let span_ns = bed.heard.last().unwrap().at_ns - began_ns;
        assert!(
            (1900 * MS..=2040 * MS).contains(&span_ns),
            "{to}: {span_ns} ns"
        );
        let heard_ms = bed.heard_ms(to);
        assert!((1990.0..=2025.0).contains(&heard_ms), "{to}: {heard_ms} ms");
        for (hz, db) in measure(&bed.decoded(to), to) {
            assert!(
                (hz - TONE_HZ).abs() <= 0.25 && db.abs() < 0.5,
                "{to}: {hz} {db}"
            );
        }
        bed.heard.clear();
        bed.tone(pcmu, 20, 1000, |_| false);
        for (hz, db) in measure(&bed.decoded(to), to) {
            assert!(
                (hz - TONE_HZ).abs() <= 0.25 && db.abs() < 0.5,
                "{to}: {hz} {db}"
            );
        }
    }
}

/// By definition, the part that was played and the rest make the whole clip, wherever it is cut.
#[test]
fn rest_of_a_clip_resumes_at_its_position() {
    let l16 = format(Encoding::L16, 8000, 1);
    let pcm: Vec<f32> = (0..960).map(|n| (n + 1) as f32 / 2048.0).collect();
    let clip = |times| Clip {
        pcm: pcm.clone().into(),
        rate_hz: 8000,
        channels: 1,
        times,
    };
    // All lengths are whole packets, because a packet that is not full is not sent.
    let part = Part {
        start_frame: 320,
        duration_ns: Some(250 * MS),
    };
    let heard = |bed: &Bed| {
        let all = if bed.heard.is_empty() {
            Vec::new()
        } else {
            bed.decoded(l16)
        };
        // The last packet is padded with silence.
        all.into_iter().filter(|sample| *sample != 0.0).collect()
    };
    for cut_ms in [0, 40, 100, 200, 220] {
        let mut bed = Bed::between(l16, l16);
        assert_eq!(bed.call.play_left(Side::B), None);
        bed.call
            .play_part(bed.now_ns, Side::B, clip(3), part)
            .unwrap();
        bed.wait_ms(cut_ms);
        let mut played: Vec<f32> = heard(&bed);
        let left = bed.call.play_left(Side::B).unwrap();
        let mut other = Bed::between(l16, l16);
        other
            .call
            .play_part(other.now_ns, Side::B, clip(left.times), left.part)
            .unwrap();
        other.wait_ms(1000);
        assert_eq!(other.call.play_left(Side::B), None);
        played.extend::<Vec<f32>>(heard(&other));
        let expected = pcm[320..].iter().chain(&pcm).chain(&pcm).take(2000);
        assert_eq!(played.len(), 2000, "{cut_ms} ms, {left:?}");
        let is_it = |(heard, sent): (&f32, &f32)| (heard - sent).abs() < 1e-3;
        assert!(played.iter().zip(expected).all(is_it), "{cut_ms} ms");
    }
}

/// The far side hears exactly the clip, repeated and cut as requested.
#[test]
fn a_part_of_a_clip_is_played() {
    let l16 = format(Encoding::L16, 8000, 1);
    let pcm: Vec<f32> = (0..1000).map(|n| n as f32 / 2048.0).collect();
    let clip = |times| Clip {
        pcm: pcm.clone().into(),
        rate_hz: 8000,
        channels: 1,
        times,
    };
    let part = |start_frame, duration_ms: Option<u64>| Part {
        start_frame,
        duration_ns: duration_ms.map(|ms| ms * MS),
    };
    // There are 8 frames in a millisecond.
    for (times, part, frames) in [
        (2, part(0, None), 2000),
        (2, part(300, None), 1700),
        (0, part(300, Some(200)), 1600),
        (3, part(0, Some(100)), 800),
        (1, part(0, Some(1000)), 1000),
        (2, part(5000, None), 1000),
        (1, part(u64::MAX, Some(10_000)), 0),
        (1, part(0, Some(0)), 0),
    ] {
        let mut bed = Bed::between(l16, l16);
        bed.call
            .play_part(bed.now_ns, Side::B, clip(times), part)
            .unwrap();
        bed.wait_ms(2000);
        assert!(bed.events.contains(&SessionEvent::PlayEnded(LegId::B)));
        let start = part.start_frame.min(1000) as usize;
        let repeated = pcm[start..].iter().chain(pcm.iter().cycle());
        let expected: Vec<f32> = repeated.take(frames).copied().collect();
        let heard = if bed.heard.is_empty() {
            Vec::new()
        } else {
            bed.decoded(l16)
        };
        // The last packet is padded with silence.
        let (begin, rest) = heard.split_at(frames);
        assert!(
            begin
                .iter()
                .zip(&expected)
                .all(|(heard, sent)| (heard - sent).abs() < 1e-3),
            "{part:?}"
        );
        assert!(
            rest.len() < 160 && rest.iter().all(|sample| *sample == 0.0),
            "{part:?}: {}",
            heard.len()
        );
    }
}

#[test]
fn tap_gets_audio_with_concealed_losses() {
    for from in formats() {
        // The tap gets the audio that the far side would get if it was re-encoded.
        let pcmu = format(Encoding::Pcmu, 8000, 1);
        let by_codes = [Encoding::Pcmu, Encoding::Pcma].contains(&from.encoding);
        let as_heard = if by_codes { from } else { pcmu };
        let mut bed = Bed::between(from, pcmu);
        bed.call.tap(Side::A, true);
        let mut pcm = Vec::new();
        let mut heard_as = None;
        for part in 0..20 {
            bed.tone(from, packet_ms(from), 100, |number| {
                part % 5 == 1 && number == 1
            });
            bed.call.take_tapped(Side::A, |tapped| {
                heard_as = Some(tapped.format);
                tapped.decode(&mut pcm);
            });
        }
        assert_eq!(heard_as, Some(as_heard));
        let ms = pcm.len() as u64 * 1000
            / (u64::from(as_heard.sample_rate_hz) * u64::from(as_heard.channels));
        assert!((1979..=2001).contains(&ms), "{from}: {ms} ms");
        // If nothing reads the tap, its length is bounded, and the audio that is dropped is counted.
        bed.tone(from, packet_ms(from), 3000, |_| false);
        pcm.clear();
        bed.call
            .take_tapped(Side::A, |tapped| tapped.decode(&mut pcm));
        let ns = pcm.len() as u64 * 1_000_000_000
            / (u64::from(as_heard.sample_rate_hz) * u64::from(as_heard.channels));
        assert!(ns <= TAP_NS_MAX, "{from}: {ns}");
        assert!(
            bed.call.stats().directions[0].tap_dropped_ns > 1900 * MS,
            "{from}"
        );
    }
}

#[test]
fn a_packet_time_that_does_not_fit_is_refused() {
    let l16 = format(Encoding::L16, 44_100, 1);
    let to = PayloadMap::new(&[Payload::audio(11, l16)]).unwrap();
    let refused = |packet_ns: u64| {
        let config = DirectionConfig {
            packet_ns,
            ..DirectionConfig::default()
        };
        Direction::new(config, &to).unwrap_err().to_string()
    };
    // The packet would have 882 frames of two bytes.
    let error = refused(20 * MS);
    assert!(
        error.contains("20000 µs") && error.contains("1500 bytes"),
        "{error}"
    );
    assert!(refused(MS / 100).contains("µs"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// On no route do malformed packets cause a panic, or more output than there was input.
    #[test]
    fn any_input_causes_neither_panic_nor_amplification(
        from in 0_usize..13,
        to in 0_usize..13,
        packet_ns in prop_oneof![Just(0), Just(10 * MS)],
        steps in proptest::collection::vec(
            (prop_oneof![4 => Just(96_u8), 1 => Just(101), 1 => Just(13), 1 => 0_u8..128], 0_u16..12, 0_u32..4000,
             proptest::collection::vec(any::<u8>(), 0..400), 0_u64..40),
            0..120,
        ),
    ) {
        let (from, to) = (formats()[from], formats()[to]);
        let direction = DirectionConfig { packet_ns, ..DirectionConfig::default() };
        let payloads = PayloadMap::new(&[Payload::audio(97, to)]).unwrap();
        prop_assume!(Direction::new(direction, &payloads).is_ok());
        let mut bed = Bed::new(
            &with_keys(from, 101, from.clock_rate_hz),
            &with_keys(to, 110, to.clock_rate_hz),
            direction,
        );
        bed.call.tap(Side::A, true);
        let mut audio_ns = 0_u64;
        for (payload_type, skip, units, payload, ms) in steps {
            let frames = Decoder::new(from).unwrap().frames_in(&payload).unwrap_or(0);
            audio_ns += frames as u64 * 1_000_000_000 / u64::from(from.sample_rate_hz);
            bed.seq = bed.seq.wrapping_add(skip);
            bed.time = bed.time.wrapping_add(units);
            bed.speak(payload_type, &payload);
            bed.wait_ms(ms);
        }
        bed.wait_ms(2000);
        let heard_ns: u64 = bed
            .heard
            .iter()
            .filter(|heard| heard.payload_type == 96)
            .filter_map(|heard| Decoder::new(to).unwrap().frames_in(&heard.payload))
            .map(|frames| frames as u64 * 1_000_000_000 / u64::from(to.sample_rate_hz))
            .sum();
        // Each talkspurt may be padded to a whole packet.
        let rounding_ns = bed.sent as u64 * 20 * MS;
        prop_assert!(heard_ns <= 2 * audio_ns + TAIL_NS_MAX + rounding_ns, "{heard_ns} {audio_ns}");
    }
}

/// A jitter buffer of 40 ms covers 40 ms, as docs/tuning.md says. The owner polls in slices, half a slice ahead. It reads all datagrams
/// that have arrived, and polls after each.
#[test]
fn packet_within_the_latency_is_never_lost() {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let pcma = format(Encoding::Pcma, 8000, 1);
    for to in [pcmu, pcma] {
        let cases = [5, 10, 20].into_iter().flat_map(|slice_ms| {
            let phases = (0..slice_ms).step_by(3);
            phases
                .flat_map(move |phase_ms| (0..40).map(move |late_ms| (slice_ms, phase_ms, late_ms)))
        });
        for (slice_ms, phase_ms, late_ms) in cases {
            let name = format!("{to:?} slice {slice_ms} phase {phase_ms} late {late_ms}");
            let mut bed = Bed::between(pcmu, to);
            let leg = |side, format| LegConfig {
                jitter: jitter::Config::new(8000, 40 * MS),
                ..leg(side, &[Payload::audio(96, format)])
            };
            let config = SessionSpec::call(
                [leg(Side::A, pcmu), leg(Side::B, to)],
                [DirectionConfig::default(); 2],
            );
            bed.call = Session::new(0, config).unwrap();
            bed.call.set_ahead_ns(slice_ms * MS / 2);
            let mut arrivals: Vec<_> = (0..100)
                .map(|number| {
                    let bytes = bed.packet(96, false, &[number as u8; 160]);
                    bed.time = bed.time.wrapping_add(160);
                    let late_ns = if number % 20 == 10 { late_ms * MS } else { 0 };
                    (number * 20 * MS + late_ns, bytes)
                })
                .collect();
            arrivals.sort_by_key(|(at_ns, _)| *at_ns);
            let mut arrivals = arrivals.into_iter().peekable();
            bed.now_ns = phase_ms * MS;
            while bed.now_ns < 3000 * MS {
                let now_ns = bed.now_ns;
                while let Some((at_ns, bytes)) = arrivals.next_if(|(at_ns, _)| *at_ns <= now_ns) {
                    let from = address(Side::A);
                    bed.call.handle_datagram(
                        now_ns,
                        at_ns,
                        Side::A as u8,
                        Channel::Rtp,
                        from,
                        &bytes,
                    );
                    bed.poll_before_loss();
                }
                bed.poll();
                bed.now_ns += slice_ms * MS;
            }
            assert_eq!(bed.call.stats().legs[0].jitter.lost, 0, "{name}");
            assert_eq!(bed.heard.len(), 100, "{name}");
            let first = bed.heard[0].seq;
            let numbers = bed.heard.iter().map(|heard| heard.seq.distance_from(first));
            assert!(numbers.eq(0..100), "{name}");
        }
    }
}
