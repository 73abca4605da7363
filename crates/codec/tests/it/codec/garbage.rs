//! Codecs must handle any data, because anything may arrive from a network.

use proptest::collection::vec;
use proptest::prelude::*;
use threadbare_codec::codec::{
    DecodeError, EncodeError, Encoder, EncoderSettings, Encoding, Format,
};

use super::{decoder, encoder, format, formats};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_decoder_survives_any_payload(
        which in 0_usize..64,
        payloads in vec((0_u8..8, vec(any::<u8>(), 0..300), 1_usize..2_000), 1..20),
    ) {
        let formats = formats();
        let format = formats[which % formats.len()];
        let channels = usize::from(format.channels);
        let mut decoder = decoder(format);
        let mut audio = Vec::new();
        for (action, payload, frames) in payloads {
            let before = audio.len();
            let added = match action {
                0 => {
                    decoder.conceal(frames, &mut audio);
                    frames
                }
                1 => if decoder.recover(&payload, frames, &mut audio) { frames } else { 0 },
                _ => {
                    let told = decoder.frames_in(&payload);
                    let decoded = decoder.decode(&payload, &mut audio);
                    prop_assert!(told == decoded.ok() || decoded == Err(DecodeError::Malformed));
                    decoded.unwrap_or(0)
                }
            };
            prop_assert_eq!(audio.len() - before, added * channels);
            // Opus exceeds full scale. For garbage, it would exceed full scale by far if there were no limit.
            prop_assert!(audio[before..].iter().all(|x| x.abs() <= 4.0), "{}", format);
        }
    }

    #[test]
    fn every_encoder_accepts_any_audio(which in 0_usize..64, pcm in vec(any::<f32>(), 0..4_000)) {
        let formats = formats();
        let format = formats[which % formats.len()];
        let mut payload = Vec::new();
        let frames = format.frames_per_packet(20_000).expect("a packet time");
        let samples = frames * usize::from(format.channels);
        let mut encoder = encoder(format);
        for pcm in pcm.chunks(samples) {
            payload.clear();
            match encoder.encode(pcm, &mut payload) {
                Ok(encoded) => prop_assert_eq!(encoded.bytes, payload.len()),
                Err(_) => prop_assert!(payload.is_empty()),
            }
        }
    }
}

#[test]
fn refusals_state_the_reason() {
    let l16 = format(Encoding::L16, 44_100, 2);
    let mut audio = Vec::new();
    let refused = |payload: &[u8]| decoder(l16).decode(payload, &mut Vec::new());
    assert_eq!(refused(&[]), Err(DecodeError::Empty));
    assert_eq!(refused(&[0; 5]), Err(DecodeError::Length(5)));
    let hour = vec![0; 44_100 * 4 + 4];
    assert_eq!(refused(&hour), Err(DecodeError::Length(hour.len())));
    assert_eq!(decoder(l16).decode(&[0; 8], &mut audio), Ok(2));

    let mut payload = Vec::new();
    let error = encoder(l16).encode(&[0.0; 3], &mut payload);
    assert_eq!(
        error,
        Err(EncodeError::Length {
            samples: 3,
            channels: 2
        })
    );
    let g722 = format(Encoding::G722, 16_000, 1);
    assert!(encoder(g722).encode(&[0.0; 3], &mut payload).is_err());

    // The fields are public, so they may be inconsistent. Such formats are rejected.
    let mut odd = g722;
    odd.clock_rate_hz = 16_000;
    let error = Encoder::new(odd, &EncoderSettings::default()).expect_err("a wrong clock");
    assert_eq!(error.to_string(), "G722: clock rate 16000 Hz, must be 8000");
    assert!(Format::of_static(threadbare_rtp_types::id::PayloadType(9)) == Some(g722));

    for (settings, expected) in [
        (
            EncoderSettings {
                bitrate_bps: Some(5_999),
                ..EncoderSettings::default()
            },
            "bitrate 5999, must be 6000 to 510000",
        ),
        (
            EncoderSettings {
                complexity: 11,
                ..EncoderSettings::default()
            },
            "complexity 11, must be 0 to 10",
        ),
        (
            EncoderSettings {
                expected_loss_percent: 101,
                ..EncoderSettings::default()
            },
            "expected loss percent 101, must be 0 to 100",
        ),
        (
            EncoderSettings {
                payload_bytes_max: 1,
                ..EncoderSettings::default()
            },
            "longest payload 1, must be 2 to 7680",
        ),
    ] {
        let error = Encoder::new(l16, &settings).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}
