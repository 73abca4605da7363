//! The encodings with a fixed number of bytes per sample (G.711, L16, L24): conversion to and from `f32` with full scale 1.

use super::Encoding;
use crate::g711::{ALAW_TO_LINEAR, ULAW_TO_LINEAR, linear_to_alaw, linear_to_ulaw};

/// Appends the samples of `payload`, without an incomplete last sample.
pub fn decode(encoding: Encoding, payload: &[u8], out: &mut Vec<f32>) {
    let from_table = |table: &'static [i16; 256]| {
        payload
            .iter()
            .map(|code| from_i16(table[usize::from(*code)]))
    };
    match encoding {
        Encoding::Pcmu => out.extend(from_table(&ULAW_TO_LINEAR)),
        Encoding::Pcma => out.extend(from_table(&ALAW_TO_LINEAR)),
        Encoding::L24 => out.extend(payload.chunks_exact(3).map(|bytes| {
            // The low byte is 0. The shift right restores the sign.
            let sample = i32::from_be_bytes([bytes[0], bytes[1], bytes[2], 0]) >> 8;
            sample as f32 / L24_FULL
        })),
        _ => out.extend(
            payload
                .chunks_exact(2)
                .map(|bytes| from_i16(i16::from_be_bytes([bytes[0], bytes[1]]))),
        ),
    }
}

/// Appends the bytes of `samples`. Samples beyond full scale are clipped, and NaN becomes silence.
pub(super) fn encode(encoding: Encoding, samples: &[f32], out: &mut Vec<u8>) {
    match encoding {
        Encoding::Pcmu => out.extend(samples.iter().map(|x| linear_to_ulaw(to_i16(*x)))),
        Encoding::Pcma => out.extend(samples.iter().map(|x| linear_to_alaw(to_i16(*x)))),
        Encoding::L24 => {
            for sample in samples {
                let scaled = (sample * L24_FULL).round().clamp(-L24_FULL, L24_FULL - 1.0);
                out.extend_from_slice(&(scaled as i32).to_be_bytes()[1..]);
            }
        }
        _ => {
            for sample in samples {
                out.extend_from_slice(&to_i16(*sample).to_be_bytes());
            }
        }
    }
}

/// Converts a sample to full scale 1.
pub(crate) fn from_i16(sample: i16) -> f32 {
    f32::from(sample) / L16_FULL
}

/// Converts a sample, rounded to the nearest value. Samples beyond full scale are clipped, and NaN becomes silence.
pub(crate) fn to_i16(sample: f32) -> i16 {
    // The cast saturates, and turns NaN into 0. Halves round away from zero; `round` is a function call on processors without SSE
    // 4.1.
    let scaled = sample * L16_FULL;
    (scaled + 0.5_f32.copysign(scaled)) as i16
}

const L16_FULL: f32 = 32_768.0;
const L24_FULL: f32 = 8_388_608.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all codes of one encoding. For L24, returns a selection that includes both ends.
    fn codes(encoding: Encoding) -> Vec<u8> {
        match encoding {
            Encoding::L16 => (0..=u16::MAX).flat_map(u16::to_be_bytes).collect(),
            Encoding::L24 => (-8_388_608..8_388_608_i32)
                .step_by(97)
                .chain([8_388_607, -1, 0, 1])
                .flat_map(|n| n.to_be_bytes().into_iter().skip(1))
                .collect(),
            _ => (0..=u8::MAX).collect(),
        }
    }

    #[test]
    fn every_code_round_trips() {
        for encoding in [Encoding::Pcmu, Encoding::Pcma, Encoding::L16, Encoding::L24] {
            let codes = codes(encoding);
            let (mut samples, mut back) = (Vec::new(), Vec::new());
            decode(encoding, &codes, &mut samples);
            encode(encoding, &samples, &mut back);
            for (at, (code, back)) in codes.iter().zip(&back).enumerate() {
                // µ-law has two zeros, and linear audio one (G.711, table 2b: 0x7f is minus 0).
                let is_zero = encoding == Encoding::Pcmu && *code == 0x7f;
                assert!(code == back || is_zero, "{encoding} at {at}");
            }
            assert_eq!(codes.len(), back.len());
        }
    }

    #[test]
    fn full_scale_is_one_and_louder_samples_are_clipped() {
        let mut samples = Vec::new();
        decode(Encoding::L16, &[0x80, 0, 0x40, 0], &mut samples);
        decode(Encoding::L24, &[0x80, 0, 0, 0x40, 0, 0, 0, 0], &mut samples);
        assert_eq!(samples, [-1.0, 0.5, -1.0, 0.5]);
        let odd = [1.0, 7.0, -7.0, f32::NAN, f32::INFINITY];
        let mut bytes = Vec::new();
        encode(Encoding::L16, &odd, &mut bytes);
        assert_eq!(bytes, [0x7f, 0xff, 0x7f, 0xff, 0x80, 0, 0, 0, 0x7f, 0xff]);
        bytes.clear();
        encode(Encoding::L24, &odd, &mut bytes);
        let expected = [
            0x7f, 0xff, 0xff, 0x7f, 0xff, 0xff, 0x80, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff,
        ];
        assert_eq!(bytes, expected);
    }
}
