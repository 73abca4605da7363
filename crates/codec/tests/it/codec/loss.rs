//! Concealment of lost payloads, and the transition back to good audio.

use threadbare_codec::codec::{Encoder, EncoderSettings, Encoding, Format, Purpose};

use super::{decoder, encode, format, formats};
use crate::audio::{channel, noise, rms, tone};

/// Returns the number of frames in a packet of about 20 ms.
fn packet(format: Format) -> usize {
    format.frames_per_packet(20_000).expect("a packet time")
}

#[test]
fn lost_packet_of_a_tone_is_concealed() {
    for format in formats() {
        let channels = usize::from(format.channels);
        let frames = packet(format);
        let pcm = tone(format.sample_rate_hz, channels, 400.0, 0.3, frames * 30);
        let payloads = encode(format, &pcm, frames);
        let mut decoder = decoder(format);
        let mut audio = Vec::new();
        for (number, payload) in payloads.iter().enumerate() {
            if number == 20 {
                decoder.conceal(frames, &mut audio);
            } else {
                decoder.decode(payload, &mut audio).expect("it decodes");
            }
        }
        assert_eq!(audio.len(), pcm.len(), "{format}: time goes on");
        let steepest = tone(format.sample_rate_hz, 1, 400.0, 0.3, frames);
        let step = |audio: &[f32]| {
            let steps = audio.windows(2).map(|pair| (pair[1] - pair[0]).abs());
            steps.fold(0.0, f32::max)
        };
        for number in 0..channels {
            let one = channel(&audio, channels, number);
            let part = |from: usize, to: usize| &one[from * frames..to * frames];
            let (before, lost) = (rms(part(10, 19)), rms(part(20, 21)));
            assert!(
                lost > before * 0.7 && lost < before * 1.2,
                "{format}: {before}, {lost}"
            );
            // There is no click at either end of the gap: steps are at most twice the tone's own steps, plus some noise of the
            // coarser codecs.
            let (most, own) = (step(part(19, 23)), step(&steepest));
            assert!(most < 2.0 * own + 0.03, "{format}: {most}, {own}");
        }
    }
}

#[test]
fn after_a_long_loss_concealment_is_silent_and_decoding_resumes() {
    for format in formats() {
        let channels = usize::from(format.channels);
        let frames = packet(format);
        let pcm = tone(format.sample_rate_hz, channels, 400.0, 0.3, frames * 30);
        let payloads = encode(format, &pcm, frames);
        let mut decoder = decoder(format);
        let mut audio = Vec::new();
        for payload in &payloads {
            decoder.decode(payload, &mut audio).expect("it decodes");
        }
        // Any number of frames, not only whole packets.
        for _ in 0..60 {
            audio.clear();
            decoder.conceal(frames - 1, &mut audio);
            assert_eq!(audio.len(), (frames - 1) * channels);
        }
        // Opus's concealment ends in a noise like that of the background.
        let most = if format.encoding == Encoding::Opus {
            0.03
        } else {
            0.0
        };
        assert!(rms(&audio) <= most, "{format}: {}", rms(&audio));
        audio.clear();
        for payload in &payloads {
            decoder.decode(payload, &mut audio).expect("it decodes");
        }
        let end = &audio[frames * channels * 25..];
        assert!(
            (rms(end) / 0.212 - 1.0).abs() < 0.1,
            "{format}: {}",
            rms(end)
        );
    }
}

#[test]
fn samples_away_from_a_loss_are_exact() {
    let l24 = format(Encoding::L24, 48_000, 8);
    // Steps below 16 bits: 2^-20.
    let pcm: Vec<f32> = (0..48 * 8 * 100)
        .map(|n| (n % 997) as f32 / 1_048_576.0)
        .collect();
    let payloads = encode(l24, &pcm, 48);
    let mut decoder = decoder(l24);
    let mut audio = Vec::new();
    for (number, payload) in payloads.iter().enumerate() {
        if number == 10 {
            decoder.conceal(48, &mut audio);
        } else {
            decoder.decode(payload, &mut audio).expect("it decodes");
        }
    }
    let at = |packet: usize| packet * 48 * 8;
    assert!(audio[..at(10)] == pcm[..at(10)]);
    // Within 10 ms after the loss, the audio is again equal to the input.
    assert!(audio[at(21)..] == pcm[at(21)..]);
}

/// Measures the delay at which decoded noise is most similar to the input.
#[test]
fn the_actual_latency_equals_the_reported_latency() {
    for format in formats() {
        let channels = usize::from(format.channels);
        let frames = packet(format);
        let settings = EncoderSettings {
            bitrate_bps: Some(128_000),
            purpose: Purpose::Audio,
            ..EncoderSettings::default()
        };
        let mut encoder = Encoder::new(format, &settings).expect("an encoder");
        let mut decoder = decoder(format);
        let mono = noise(1, 0.3, frames * 25);
        let pcm: Vec<f32> = mono.iter().flat_map(|x| vec![*x; channels]).collect();
        let mut audio = Vec::new();
        for pcm in pcm.chunks_exact(frames * channels) {
            let mut payload = Vec::new();
            encoder.encode(pcm, &mut payload).expect("it encodes");
            decoder.decode(&payload, &mut audio).expect("it decodes");
        }
        let out = channel(&audio, channels, 0);
        let likeness = |delay: usize| -> f64 {
            let pairs = mono[frames..].iter().zip(&out[frames + delay..]);
            pairs.map(|(a, b)| f64::from(a * b)).sum()
        };
        let best = (0..frames).max_by(|a, b| likeness(*a).total_cmp(&likeness(*b)));
        let told = encoder.latency_frames();
        assert!(
            best.is_some_and(|best| best.abs_diff(told) <= 1),
            "{format}: {best:?}, told {told}"
        );
    }
}

#[test]
fn only_opus_recovers_lost_audio() {
    for format in formats() {
        if format.encoding == Encoding::Opus {
            continue;
        }
        let frames = packet(format);
        let pcm = vec![0.0; frames * usize::from(format.channels)];
        let payloads = encode(format, &pcm, frames);
        let mut audio = Vec::new();
        assert!(!decoder(format).recover(&payloads[0], frames, &mut audio));
        assert!(audio.is_empty());
    }
}
