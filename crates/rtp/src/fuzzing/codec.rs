//! Target `codec`: payloads of audio. For any input, decoders return as many frames as they report, and comfort noise has the level that it
//! claims.

use crate::codec::{Decoder, Encoding, Format};
use crate::comfort::{ComfortGenerator, ComfortNoise};

/// Runs the target. The first byte of the input chooses the format. The other bytes are actions. Each action is a byte for its kind and
/// length, and that many bytes.
pub fn codec(data: &[u8]) {
    let Some((choice, mut rest)) = data.split_first() else {
        return;
    };
    let Some(mut decoder) = chosen(*choice) else {
        return;
    };
    let channels = usize::from(decoder.format().channels);
    let mut audio = Vec::new();
    while let Some((head, after)) = rest.split_first() {
        let bytes = usize::from(head >> 2).min(after.len());
        let (payload, after) = after.split_at(bytes);
        rest = after;
        audio.clear();
        let frames = match head & 3 {
            0 => {
                decoder.conceal(bytes * 7, &mut audio);
                bytes * 7
            }
            1 if decoder.recover(payload, bytes * 40, &mut audio) => bytes * 40,
            1 => 0,
            2 => {
                comfort(payload);
                0
            }
            _ => {
                let told = decoder.frames_in(payload);
                let decoded = decoder.decode(payload, &mut audio).ok();
                assert!(decoded.is_none() || decoded == told);
                decoded.unwrap_or(0)
            }
        };
        assert_eq!(audio.len(), frames * channels);
        assert!(audio.iter().all(|sample| sample.is_finite()));
    }
}

fn chosen(choice: u8) -> Option<Decoder> {
    let encoding = Encoding::ALL[usize::from(choice) % Encoding::ALL.len()];
    let rates = encoding.sample_rates_hz();
    let rate_hz = rates[usize::from(choice >> 4) % rates.len()];
    let channels = 1 + (choice >> 3 & 1);
    let format = Format::new(encoding, rate_hz, channels);
    let format = format.or_else(|_| Format::new(encoding, rate_hz, 1));
    Decoder::new(format.ok()?).ok()
}

fn comfort(payload: &[u8]) {
    let Ok(noise) = ComfortNoise::parse(payload) else {
        assert!(payload.is_empty());
        return;
    };
    let mut again = Vec::new();
    noise.write(&mut again);
    assert_eq!(ComfortNoise::parse(&again), Ok(noise));
    let mut audio = Vec::new();
    ComfortGenerator::new(noise, 1).generate(100, &mut audio);
    assert!(audio.iter().all(|sample| sample.abs() < 10.0));
}
