//! The audio format of a file: rate, channels, and coding.

use serde::{Deserialize, Serialize};
use threadbare_relay::PortionAudio;
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::g711;

/// The coding of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coding {
    /// Linear samples of 16 bits, little endian.
    #[default]
    Linear,
    /// A-law codes (ITU-T G.711) of a byte each.
    ALaw,
    /// µ-law codes (ITU-T G.711) of a byte each.
    ULaw,
}

/// The audio of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sound {
    pub(super) coding: Coding,
    pub(super) channels: u8,
    pub(super) rate_hz: u32,
}

impl Coding {
    pub(super) fn sample_bytes(self) -> usize {
        match self {
            Coding::Linear => 2,
            Coding::ALaw | Coding::ULaw => 1,
        }
    }

    /// Returns the value of the bytes of silence.
    pub(super) fn silence(self) -> u8 {
        match self {
            Coding::Linear => 0,
            Coding::ALaw => g711::linear_to_alaw(0),
            Coding::ULaw => g711::linear_to_ulaw(0),
        }
    }

    /// Appends audio in this coding. Codes of the same law are copied unchanged. `format` is the format of the portion.
    pub fn write(self, format: Format, audio: PortionAudio<'_>, out: &mut Vec<u8>) {
        let is_alaw = format.encoding == Encoding::Pcma;
        match (audio, self) {
            (PortionAudio::Codes(codes), Coding::Linear) => {
                let table = if is_alaw {
                    &g711::ALAW_TO_LINEAR
                } else {
                    &g711::ULAW_TO_LINEAR
                };
                let begin = out.len();
                out.resize(begin + 2 * codes.len(), 0);
                let (room, _) = out[begin..].as_chunks_mut::<2>();
                for (two, code) in room.iter_mut().zip(codes) {
                    *two = table[usize::from(*code)].to_le_bytes();
                }
            }
            (PortionAudio::Codes(codes), _) if is_alaw == (self == Coding::ALaw) => {
                out.extend_from_slice(codes);
            }
            (PortionAudio::Codes(codes), _) => {
                let table = if is_alaw {
                    &g711::ALAW_TO_ULAW
                } else {
                    &g711::ULAW_TO_ALAW
                };
                out.extend(codes.iter().map(|code| table[usize::from(*code)]));
            }
            (PortionAudio::Samples(samples), _) => self.encode(samples, out),
            (PortionAudio::Silence(samples), _) => {
                let all = out.len() + samples * self.sample_bytes();
                out.resize(all, self.silence());
            }
        }
    }

    /// Appends samples in this coding.
    pub(super) fn encode(self, samples: &[i16], out: &mut Vec<u8>) {
        match self {
            Coding::Linear => {
                let begin = out.len();
                out.resize(begin + 2 * samples.len(), 0);
                let (room, _) = out[begin..].as_chunks_mut::<2>();
                for (two, sample) in room.iter_mut().zip(samples) {
                    *two = sample.to_le_bytes();
                }
            }
            Coding::ALaw => out.extend(samples.iter().map(|one| g711::linear_to_alaw(*one))),
            Coding::ULaw => out.extend(samples.iter().map(|one| g711::linear_to_ulaw(*one))),
        }
    }

    /// Decodes `bytes` to `samples`, until one of them ends.
    pub(super) fn decode(self, bytes: &[u8], samples: &mut [i16]) {
        let table = match self {
            Coding::Linear => {
                let (twos, _) = bytes.as_chunks::<2>();
                for (sample, two) in samples.iter_mut().zip(twos) {
                    *sample = i16::from_le_bytes(*two);
                }
                return;
            }
            Coding::ALaw => &g711::ALAW_TO_LINEAR,
            Coding::ULaw => &g711::ULAW_TO_LINEAR,
        };
        for (sample, code) in samples.iter_mut().zip(bytes) {
            *sample = table[usize::from(*code)];
        }
    }

    /// Mixes both sides, which have `channels` channels each. After this call, each frame has half as many samples.
    pub(super) fn mix(self, frames: &mut Vec<u8>, channels: usize) {
        let mut samples = vec![0; frames.len() / self.sample_bytes()];
        self.decode(frames, &mut samples);
        let pair = 2 * channels;
        let count = samples.len() / pair;
        for frame in 0..count {
            for channel in 0..channels {
                let at = frame * pair + channel;
                samples[frame * channels + channel] =
                    samples[at].saturating_add(samples[at + channels]);
            }
        }
        frames.clear();
        self.encode(&samples[..count * channels], frames);
    }
}

impl Sound {
    pub(super) fn frame_bytes(self) -> u32 {
        u32::from(self.channels) * self.coding.sample_bytes() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(coding: Coding, encoding: Encoding, audio: PortionAudio<'_>) -> Vec<u8> {
        let format = Format::new(encoding, 8000, 1).expect("a format");
        let mut out = Vec::new();
        coding.write(format, audio, &mut out);
        out
    }

    /// Decoding and encoding preserves each code of G.711, except for the negative zero of µ-law. If the file has the same law, the
    /// negative zero is preserved too.
    #[test]
    fn only_codes_of_another_law_are_converted() {
        let codes: Vec<u8> = (0..=255).collect();
        let laws = [
            (Coding::ALaw, Encoding::Pcma),
            (Coding::ULaw, Encoding::Pcmu),
        ];
        for (coding, encoding) in laws {
            let own = written(coding, encoding, PortionAudio::Codes(&codes));
            assert_eq!(own, codes);
            let mut samples = [0; 256];
            coding.decode(&codes, &mut samples);
            let linear = written(Coding::Linear, encoding, PortionAudio::Codes(&codes));
            let expected: Vec<u8> = samples.iter().flat_map(|one| one.to_le_bytes()).collect();
            assert_eq!(linear, expected);
            for (other, _) in laws {
                let by_samples = written(other, encoding, PortionAudio::Samples(&samples));
                let by_codes = written(other, encoding, PortionAudio::Codes(&codes));
                for code in 0..256 {
                    let is_minus_zero =
                        other == coding && encoding == Encoding::Pcmu && code == 0x7f;
                    assert!(by_codes[code] == by_samples[code] || is_minus_zero);
                }
            }
            let silence = written(coding, encoding, PortionAudio::Silence(3));
            let samples = PortionAudio::Samples(&[0; 3]);
            assert_eq!(silence, written(coding, encoding, samples));
        }
        let silence = written(Coding::Linear, Encoding::L16, PortionAudio::Silence(3));
        assert_eq!(silence, [0; 6]);
    }

    #[test]
    fn samples_of_both_sides_are_added() {
        let mixed = |coding: Coding, samples: &[i16], channels| {
            let mut frames = Vec::new();
            coding.encode(samples, &mut frames);
            coding.mix(&mut frames, channels);
            let mut mixed = vec![0; frames.len() / coding.sample_bytes()];
            coding.decode(&frames, &mut mixed);
            mixed
        };
        let mono = mixed(Coding::Linear, &[1, 2, 30_000, 30_000, -5, 5], 1);
        assert_eq!(mono, [3, i16::MAX, 0]);
        let stereo = mixed(Coding::Linear, &[1, 2, 10, 20, 3, 4, 30, 40], 2);
        assert_eq!(stereo, [11, 22, 33, 44]);
        // Table 2a of G.711 has the last step at four times 8031, and a step at four times 219.
        let coded = mixed(Coding::ULaw, &[32_124, 32_124, 0, 876], 1);
        assert_eq!(coded, [32_124, 876]);
    }
}
