//! While codecs, conversion, tones and noise run, they do not allocate, neither for packets nor for losses.

#[path = "../it/audio.rs"]
mod audio;
#[path = "../../../../tests/counting.rs"]
mod counting;

use audio::tone;
use counting::allocations;
use threadbare_codec::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format};
use threadbare_codec::comfort::{ComfortAnalyser, ComfortGenerator, ComfortNoise};
use threadbare_codec::convert::Converter;
use threadbare_codec::dtmf::Key;
use threadbare_codec::tone::{DtmfDetector, Tone, ToneGenerator};

#[test]
fn a_running_codec_allocates_nothing() {
    for (encoding, rate_hz, channels) in [
        (Encoding::Pcmu, 8_000, 1),
        (Encoding::Pcma, 8_000, 2),
        (Encoding::G722, 16_000, 1),
        (Encoding::L16, 44_100, 2),
        (Encoding::L24, 48_000, 8),
        (Encoding::Opus, 48_000, 1),
    ] {
        if encoding == Encoding::Opus && cfg!(not(feature = "opus")) {
            continue;
        }
        let format = Format::new(encoding, rate_hz, channels).expect("a format");
        let mut decoder = Decoder::new(format).expect("a decoder");
        let mut encoder = Encoder::new(format, &EncoderSettings::default()).expect("an encoder");
        let frames = format.frames_per_packet(20_000).expect("a packet time");
        let mut pcm = vec![0.0; frames * usize::from(channels)];
        let (mut payload, mut audio) = (Vec::new(), Vec::new());
        let mut before = 0;
        for number in 0..300_u32 {
            for (at, sample) in pcm.iter_mut().enumerate() {
                *sample = (at as f32 * 0.01 + number as f32).sin();
            }
            payload.clear();
            audio.clear();
            encoder.encode(&pcm, &mut payload).expect("it encodes");
            if number % 10 == 9 {
                decoder.conceal(frames, &mut audio);
            } else {
                decoder.decode(&payload, &mut audio).expect("it decodes");
            }
            if number == 20 {
                before = allocations();
            }
        }
        assert!(before > 0, "allocations are counted");
        assert_eq!(allocations() - before, 0, "{format}");
    }
}

#[test]
fn running_tones_and_noise_allocate_nothing() {
    let mut generator = ToneGenerator::new(8_000).expect("a rate");
    let mut detector = DtmfDetector::new(8_000).expect("a rate");
    let mut noise = ComfortGenerator::new(ComfortNoise::white(50), 1);
    let mut analyser = ComfortAnalyser::new(8_000, 10);
    let (mut audio, mut events, mut payload) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before, mut count) = (0, 0);
    for number in 0..400_u32 {
        audio.clear();
        events.clear();
        payload.clear();
        if number % 10 == 0 {
            let key = Key::new((number / 10 % 16) as u8).expect("0 to 15");
            generator.start(Tone::key(key, 10, 100));
        }
        generator.generate(160, &mut audio);
        detector.feed(&audio, &mut events);
        count += events.len();
        audio.clear();
        noise.generate(160, &mut audio);
        analyser.feed(&audio);
        let found = analyser.noise();
        found.write(&mut payload);
        noise.set(ComfortNoise::parse(&payload).expect("a payload"));
        if number == 100 {
            before = allocations();
        }
    }
    assert!(before > 0, "allocations are counted");
    assert_eq!(allocations() - before, 0);
    assert_eq!(count, 80, "each key went down and up");
}

#[test]
fn converting_a_packet_allocates_nothing() {
    for (from, to, channels) in [(8_000, 48_000, 2), (44_100, 48_000, 1), (48_000, 8_000, 8)] {
        let mut converter = Converter::new(from, 1, to, channels).expect("supported");
        let packet = tone(from, 1, 440.0, 0.5, from as usize / 50);
        let mut out = Vec::new();
        let mut before = 0;
        for number in 0..200 {
            out.clear();
            converter.process(&packet, &mut out);
            if number == 100 {
                before = allocations();
            }
        }
        assert!(before > 0, "allocations are counted");
        assert_eq!(allocations() - before, 0, "{from} to {to}");
    }
}
