//! Codecs that are under way allocate nothing: not per packet, not per loss.

#[path = "../../../tests/counting.rs"]
mod counting;

use counting::allocations;
use threadbare_rtp::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format};

#[test]
fn each_codec_under_way_allocates_nothing() {
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
