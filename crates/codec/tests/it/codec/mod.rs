//! Codecs: comparison with other implementations, losses, garbage.

mod garbage;
mod loss;
#[cfg(feature = "opus")]
mod opus;
mod peers;

use threadbare_codec::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format};

fn format(encoding: Encoding, sample_rate_hz: u32, channels: u8) -> Format {
    Format::new(encoding, sample_rate_hz, channels).expect("a valid format")
}

/// Returns the formats to test: each encoding at its limits, and the formats of AES67.
fn formats() -> Vec<Format> {
    let mut formats = vec![
        format(Encoding::Pcmu, 8_000, 1),
        format(Encoding::Pcma, 8_000, 2),
        format(Encoding::Pcma, 16_000, 1),
        format(Encoding::G722, 16_000, 1),
        format(Encoding::L16, 11_025, 1),
        format(Encoding::L16, 44_100, 2),
        format(Encoding::L24, 48_000, 8),
        format(Encoding::L24, 96_000, 5),
    ];
    if cfg!(feature = "opus") {
        let rates = Encoding::Opus.sample_rates_hz().iter();
        formats.extend(rates.flat_map(|rate| [1, 2].map(|n| format(Encoding::Opus, *rate, n))));
    }
    formats
}

fn decoder(format: Format) -> Decoder {
    Decoder::new(format).expect("a decoder")
}

fn encoder(format: Format) -> Encoder {
    Encoder::new(format, &EncoderSettings::default()).expect("an encoder")
}

/// Encodes `pcm` to payloads of `frames` each. A remainder is dropped.
fn encode(format: Format, pcm: &[f32], frames: usize) -> Vec<Vec<u8>> {
    let mut encoder = encoder(format);
    let samples = frames * usize::from(format.channels);
    let one = |pcm: &[f32]| {
        let mut payload = Vec::new();
        let encoded = encoder.encode(pcm, &mut payload).expect("it encodes");
        assert_eq!(encoded.bytes, payload.len());
        payload
    };
    pcm.chunks_exact(samples).map(one).collect()
}

fn decode(format: Format, payloads: &[Vec<u8>]) -> Vec<f32> {
    let mut decoder = decoder(format);
    let mut audio = Vec::new();
    for payload in payloads {
        let expected = decoder.frames_in(payload);
        let frames = decoder.decode(payload, &mut audio).expect("it decodes");
        assert_eq!(expected, Some(frames));
    }
    audio
}
