//! Opus: levels, packet times, redundancy, settings.

use threadbare_codec::codec::{CodecError, Encoder, EncoderSettings, Encoding, Purpose};

use super::{decode, decoder, encode, format};
use crate::audio::{Spectrum, db, rms, tone};

/// Returns synthetic speech, for which the encoder uses its SILK layer: syllables of a low tone with harmonics.
fn speech(rate_hz: u32, frames: usize) -> Vec<f32> {
    let parts = (1..12).map(|n| tone(rate_hz, 1, 130.0 * f64::from(n), 0.2 / f64::from(n), frames));
    let mut audio = vec![0.0; frames];
    for part in parts {
        for (sum, sample) in audio.iter_mut().zip(part) {
            *sum += sample;
        }
    }
    let syllable = tone(rate_hz, 1, 3.0, 1.0, frames);
    audio
        .iter()
        .zip(syllable)
        .map(|(x, s)| x * (0.5 + 0.5 * s))
        .collect()
}

#[test]
fn a_tone_arrives_at_its_level_at_all_rates() {
    for rate_hz in Encoding::Opus.sample_rates_hz() {
        for channels in [1, 2] {
            let opus = format(Encoding::Opus, *rate_hz, channels);
            for us in [
                2_500, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000,
            ] {
                let frames = opus.frames_per_packet(us).expect("a packet time");
                let pcm = tone(
                    *rate_hz,
                    usize::from(channels),
                    997.0,
                    0.25,
                    *rate_hz as usize,
                );
                let settings = EncoderSettings {
                    purpose: Purpose::Audio,
                    bitrate_bps: Some(128_000),
                    ..EncoderSettings::default()
                };
                let mut encoder = Encoder::new(opus, &settings).expect("an encoder");
                let coded = pcm.chunks_exact(frames * usize::from(channels)).map(|pcm| {
                    let mut payload = Vec::new();
                    encoder.encode(pcm, &mut payload).expect("it encodes");
                    assert!(payload.len() <= 1_440);
                    payload
                });
                let audio = decode(opus, &coded.collect::<Vec<_>>());
                let mono = crate::audio::channel(&audio, usize::from(channels), 0);
                let found = Spectrum::of(&mono[mono.len() / 4..], *rate_hz, 997.0);
                assert!(
                    db(found.level / 0.25).abs() < 0.5,
                    "{rate_hz} Hz, {us} µs: {found:?}"
                );
                assert!(
                    found.snr_db() > 15.0,
                    "{rate_hz} Hz, {us} µs: {} dB",
                    found.snr_db()
                );
            }
        }
    }
}

#[test]
fn redundancy_recovers_a_lost_packet() {
    for rate_hz in [8_000, 16_000, 48_000] {
        let opus = format(Encoding::Opus, rate_hz, 1);
        let settings = EncoderSettings {
            fec: true,
            expected_loss_percent: 20,
            bitrate_bps: Some(32_000),
            ..EncoderSettings::default()
        };
        let mut encoder = Encoder::new(opus, &settings).expect("an encoder");
        let frames = rate_hz as usize / 50;
        let pcm = speech(rate_hz, frames * 100);
        let coded = pcm.chunks_exact(frames).map(|pcm| {
            let mut payload = Vec::new();
            encoder.encode(pcm, &mut payload).expect("it encodes");
            payload
        });
        let payloads: Vec<_> = coded.collect();
        let whole = decode(opus, &payloads);
        let (mut recovered, mut concealed, mut count) = (Vec::new(), Vec::new(), 0);
        let (mut with, mut without) = (decoder(opus), decoder(opus));
        for (number, payload) in payloads.iter().enumerate() {
            if number % 10 == 5 {
                let next = &payloads[number + 1];
                if with.recover(next, frames, &mut recovered) {
                    count += 1;
                } else {
                    with.conceal(frames, &mut recovered);
                }
                without.conceal(frames, &mut concealed);
            } else {
                with.decode(payload, &mut recovered).expect("it decodes");
                without.decode(payload, &mut concealed).expect("it decodes");
            }
        }
        assert!(count >= 8, "{rate_hz} Hz: {count} of 10 have a copy");
        assert_eq!(
            (recovered.len(), concealed.len()),
            (whole.len(), whole.len())
        );
        let error = |audio: &[f32]| {
            let off: Vec<_> = audio.iter().zip(&whole).map(|(a, b)| a - b).collect();
            rms(&off)
        };
        let (with, without) = (error(&recovered), error(&concealed));
        assert!(with < without * 0.7, "{rate_hz} Hz: {with} {without}");
        // Nothing can be recovered from a packet that is shorter or longer than the loss, or from garbage.
        let mut audio = Vec::new();
        let mut decoder = decoder(opus);
        assert!(!decoder.recover(&payloads[50], frames / 2, &mut audio));
        assert!(!decoder.recover(&[], frames, &mut audio));
        assert!(audio.is_empty());
    }
}

#[test]
fn redundancy_helps_with_the_last_of_several_lost_packets() {
    let opus = format(Encoding::Opus, 16_000, 2);
    let settings = EncoderSettings {
        fec: true,
        expected_loss_percent: 20,
        bitrate_bps: Some(48_000),
        ..EncoderSettings::default()
    };
    let mut encoder = Encoder::new(opus, &settings).expect("an encoder");
    let mono = speech(16_000, 320 * 50);
    let pcm: Vec<f32> = mono.iter().flat_map(|x| [*x, 0.5 * x]).collect();
    let coded = pcm.chunks_exact(640).map(|pcm| {
        let mut payload = Vec::new();
        encoder.encode(pcm, &mut payload).expect("it encodes");
        payload
    });
    let payloads: Vec<_> = coded.collect();
    let mut decoder = decoder(opus);
    let mut audio = Vec::new();
    for payload in &payloads[..20] {
        decoder.decode(payload, &mut audio).expect("it decodes");
    }
    // The length is three packets, or an odd number of frames.
    for frames in [3 * 320, 333] {
        let before = audio.len();
        assert!(decoder.recover(&payloads[23], frames, &mut audio));
        assert_eq!(audio.len() - before, frames * 2);
    }
}

#[test]
fn redundancy_is_reported_only_if_requested() {
    for channels in [1, 2] {
        let opus = format(Encoding::Opus, 16_000, channels);
        let mono = speech(16_000, 320 * 100);
        let pcm: Vec<f32> = mono
            .iter()
            .flat_map(|x| vec![*x; usize::from(channels)])
            .collect();
        for frames in [160, 320, 640, 960, 1_920] {
            let mut audio = Vec::new();
            for payload in encode(opus, &pcm, frames) {
                assert!(!decoder(opus).recover(&payload, frames, &mut audio));
            }
            assert!(audio.is_empty());
        }
    }
}

#[test]
fn music_has_no_redundancy() {
    let opus = format(Encoding::Opus, 48_000, 2);
    let payloads = encode(opus, &tone(48_000, 2, 5_000.0, 0.5, 48_000), 120);
    // Frames of 2.5 ms exist only in CELT.
    let mut audio = Vec::new();
    assert!(
        payloads
            .iter()
            .all(|payload| !decoder(opus).recover(payload, 120, &mut audio))
    );
}

#[test]
fn with_dtx_most_packets_of_silence_are_not_sent() {
    let opus = format(Encoding::Opus, 16_000, 1);
    let settings = EncoderSettings {
        dtx: true,
        ..EncoderSettings::default()
    };
    let mut encoder = Encoder::new(opus, &settings).expect("an encoder");
    let mut sent_of = |pcm: &[f32]| {
        let mut audio = Vec::new();
        let mut sent = 0;
        let mut decoder = decoder(opus);
        for pcm in pcm.chunks_exact(320) {
            let mut payload = Vec::new();
            let encoded = encoder.encode(pcm, &mut payload).expect("it encodes");
            sent += usize::from(!encoded.is_dtx);
            // A packet that would not be sent decodes, too.
            decoder.decode(&payload, &mut audio).expect("it decodes");
        }
        sent
    };
    assert_eq!(sent_of(&speech(16_000, 32_000)), 100);
    // libopus: after 200 ms, one packet in 400 ms.
    let sent = sent_of(&vec![0.0; 320 * 500]);
    assert!((25..60).contains(&sent), "{sent} of 500");
}

#[test]
fn the_bit_rate_matches_the_setting() {
    for bps in [6_000, 24_000, 96_000, 300_000] {
        let opus = format(Encoding::Opus, 48_000, 2);
        let settings = EncoderSettings {
            bitrate_bps: Some(bps),
            purpose: Purpose::Audio,
            ..EncoderSettings::default()
        };
        let mut encoder = Encoder::new(opus, &settings).expect("an encoder");
        let mut bytes = 0;
        for pcm in crate::audio::noise(1, 0.3, 48_000 * 2 * 2).chunks_exact(1_920) {
            let mut payload = Vec::new();
            bytes += encoder.encode(pcm, &mut payload).expect("it encodes").bytes;
        }
        let ratio = bytes as f64 * 8.0 / 2.0 / f64::from(bps);
        assert!((0.6..1.3).contains(&ratio), "{bps}: {ratio}");
    }
}

/// The mean packet size gives the actual bit rate. The encoder treats the requested bit rate as a target (RFC 6716, section
/// 2.1.1).
#[test]
fn bit_rate_changes_without_an_encoder_restart() {
    let opus = format(Encoding::Opus, 48_000, 2);
    let mut encoder = Encoder::new(opus, &EncoderSettings::default()).expect("an encoder");
    let pcm = speech(48_000, 960 * 2 * 100);
    let settings = |bitrate_bps, bitrate_bps_max| EncoderSettings {
        bitrate_bps,
        bitrate_bps_max,
        ..EncoderSettings::default()
    };
    let mut asked = |bitrate_bps, bitrate_bps_max| {
        encoder
            .set_bitrate(&settings(bitrate_bps, bitrate_bps_max))
            .expect("in range");
        let mut bytes = 0;
        for (number, pcm) in pcm.chunks_exact(960 * 2).enumerate() {
            let mut payload = Vec::new();
            encoder.encode(pcm, &mut payload).expect("it encodes");
            bytes += if number < 50 { 0 } else { payload.len() };
        }
        bytes * 8
    };
    let own_choice = asked(None, None);
    let around =
        |bps: usize, expected: usize| (expected * 7 / 10..expected * 12 / 10).contains(&bps);
    let slow = asked(Some(16_000), None);
    assert!(around(slow, 16_000), "{slow}");
    let limited = asked(None, Some(24_000));
    assert!(around(limited, 24_000), "{limited}");
    // A limit above the encoder's choice changes nothing.
    let free = asked(None, Some(510_000));
    assert!(around(free, own_choice), "{free}, {own_choice}");
    for (bps, most) in [(Some(5_999), None), (None, Some(510_001))] {
        let refused = encoder.set_bitrate(&settings(bps, most));
        assert!(matches!(refused, Err(CodecError::Setting { .. })));
    }
}
