//! Portions of audio for listeners, in the form of bytes in a ring.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 7 | time of its end, ns |
//! | 8 to 11 | number of samples, all channels |
//! | 12 to 15 | from the lowest bit: rate (20 bits), channels (4), encoding (3), side (1), kind (2) |
//! | from 16 | one byte per code, two per sample, none for silence |
//!
//! Numbers have the processor's byte order, because a ring stays within the process.

use threadbare_base::NS_PER_S;
use threadbare_rtp::call::{Side, Tapped, TappedAudio};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::g711::{ALAW_TO_LINEAR, ULAW_TO_LINEAR};

/// The audio of one turn of the media session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion {
    /// Time at which the portion ends, ns of CLOCK_MONOTONIC.
    pub until_ns: u64,
    /// The side that speaks. For a stream, it is A.
    pub side: Side,
    /// Sample rate and channels of the audio, and the law of its codes.
    pub format: Format,
    pub(crate) samples: usize,
    kind: Kind,
}

/// The audio of a portion, interleaved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortionAudio<'a> {
    /// Unchanged G.711 in the law of the portion's format, one byte per sample.
    Codes(&'a [u8]),
    /// Samples of 16 bits.
    Samples(&'a [i16]),
    /// Silence of this many samples, of all channels.
    Silence(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Codes,
    Samples,
    Silence,
}

impl Portion {
    /// Whether samples of both portions can follow one another in one stream.
    #[must_use]
    pub fn is_like(&self, other: &Portion) -> bool {
        let [own, others] = [self.format, other.format];
        (own.sample_rate_hz, own.channels) == (others.sample_rate_hz, others.channels)
    }

    /// Returns the portion's duration, ns.
    pub(crate) fn duration_ns(&self) -> u64 {
        let per_s = u64::from(self.format.sample_rate_hz) * u64::from(self.format.channels);
        self.samples as u64 * NS_PER_S / per_s.max(1)
    }

    /// Appends tapped audio to `out`, and returns its description.
    pub(crate) fn write(
        until_ns: u64,
        side: Side,
        tapped: Tapped<'_>,
        out: &mut Vec<u8>,
    ) -> Portion {
        let portion = Portion {
            until_ns,
            side,
            format: tapped.format,
            samples: tapped.audio.len(),
            kind: match tapped.audio {
                TappedAudio::Codes(_) => Kind::Codes,
                TappedAudio::Samples(_) => Kind::Samples,
                TappedAudio::Silence(_) => Kind::Silence,
            },
        };
        out.extend_from_slice(&portion.head());
        match tapped.audio {
            TappedAudio::Codes(codes) => out.extend_from_slice(codes),
            TappedAudio::Samples(samples) => {
                let begin = out.len();
                out.resize(begin + 2 * samples.len(), 0);
                let (room, _) = out[begin..].as_chunks_mut::<2>();
                for (two, sample) in room.iter_mut().zip(samples) {
                    *two = sample_of(*sample).to_ne_bytes();
                }
            }
            TappedAudio::Silence(_) => {}
        }
        portion
    }

    fn head(&self) -> [u8; HEAD_BYTES] {
        let encoding = Encoding::ALL
            .iter()
            .position(|one| *one == self.format.encoding);
        let what = self.format.sample_rate_hz
            | u32::from(self.format.channels) << 20
            | (encoding.unwrap_or(0) as u32) << 24
            | (self.side as u32) << 27
            | (self.kind as u32) << 28;
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&self.until_ns.to_ne_bytes());
        head[8..12].copy_from_slice(&(self.samples as u32).to_ne_bytes());
        head[12..].copy_from_slice(&what.to_ne_bytes());
        head
    }

    /// Reads a head. Returns `None` if it is invalid.
    pub(crate) fn read(head: &[u8]) -> Option<Portion> {
        let (until_ns, rest) = head.split_first_chunk()?;
        let (samples, rest) = rest.split_first_chunk()?;
        let what = u32::from_ne_bytes(*rest.first_chunk()?);
        let encoding = *Encoding::ALL.get((what >> 24 & 7) as usize)?;
        let format = Format::new(encoding, what & 0xf_ffff, (what >> 20 & 15) as u8);
        Some(Portion {
            until_ns: u64::from_ne_bytes(*until_ns),
            side: Side::BOTH[(what >> 27 & 1) as usize],
            format: format.ok()?,
            samples: u32::from_ne_bytes(*samples) as usize,
            kind: match what >> 28 {
                0 => Kind::Codes,
                1 => Kind::Samples,
                _ => Kind::Silence,
            },
        })
    }

    /// Returns the number of bytes after the head.
    pub(crate) fn audio_bytes(&self) -> usize {
        match self.kind {
            Kind::Codes => self.samples,
            Kind::Samples => 2 * self.samples,
            Kind::Silence => 0,
        }
    }

    /// Returns the audio in these bytes.
    pub(crate) fn audio<'a>(&self, bytes: &'a [u8], room: &'a mut Vec<i16>) -> PortionAudio<'a> {
        match self.kind {
            Kind::Codes => PortionAudio::Codes(bytes),
            Kind::Samples => {
                let (samples, _) = bytes.as_chunks::<2>();
                room.clear();
                room.extend(samples.iter().map(|two| i16::from_ne_bytes(*two)));
                PortionAudio::Samples(room)
            }
            Kind::Silence => PortionAudio::Silence(self.samples),
        }
    }
}

impl PortionAudio<'_> {
    /// Returns the number of samples of all channels.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            PortionAudio::Codes(codes) => codes.len(),
            PortionAudio::Samples(samples) => samples.len(),
            PortionAudio::Silence(samples) => *samples,
        }
    }

    /// Whether there is no audio.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the audio after the first `samples` samples.
    #[must_use]
    pub fn behind(self, samples: usize) -> Self {
        let samples = samples.min(self.len());
        match self {
            PortionAudio::Codes(codes) => PortionAudio::Codes(&codes[samples..]),
            PortionAudio::Samples(all) => PortionAudio::Samples(&all[samples..]),
            PortionAudio::Silence(all) => PortionAudio::Silence(all - samples),
        }
    }

    /// Appends the samples to `out`. `format` is that of the portion.
    pub fn decode(&self, format: Format, out: &mut Vec<i16>) {
        match self {
            PortionAudio::Codes(codes) => {
                let table = match format.encoding {
                    Encoding::Pcma => &ALAW_TO_LINEAR,
                    _ => &ULAW_TO_LINEAR,
                };
                out.extend(codes.iter().map(|code| table[usize::from(*code)]));
            }
            PortionAudio::Samples(samples) => out.extend_from_slice(samples),
            PortionAudio::Silence(samples) => out.resize(out.len() + samples, 0),
        }
    }
}

/// Converts a sample to 16 bits. The cast saturates, and halves are rounded away from zero. [`round`](f32::round) is not used,
/// because it is a function call on processors without SSE 4.1, which the builds support.
#[inline]
fn sample_of(sample: f32) -> i16 {
    let scaled = sample * FULL_SCALE;
    (scaled + 0.5_f32.copysign(scaled)) as i16
}

/// Number of bytes that a portion takes in a ring, in addition to its audio.
pub const HEAD_BYTES: usize = 16;
/// Full scale of samples with 16 bits.
const FULL_SCALE: f32 = 32_768.0;

#[cfg(test)]
mod tests {
    use threadbare_rtp::codec::SAMPLE_RATES_HZ;

    use super::*;

    #[test]
    fn each_format_side_and_kind_round_trips() {
        let audio = [
            TappedAudio::Codes(&[1, 2, 3, 4]),
            TappedAudio::Samples(&[0.5, -0.5, 2.0, -2.0]),
            TappedAudio::Silence(4),
        ];
        let kept = [
            PortionAudio::Codes(&[1, 2, 3, 4]),
            PortionAudio::Samples(&[16_384, -16_384, 32_767, -32_768]),
            PortionAudio::Silence(4),
        ];
        let rates = SAMPLE_RATES_HZ.iter().copied();
        let formats = Encoding::ALL.into_iter().flat_map(|encoding| {
            let all = rates
                .clone()
                .flat_map(|rate_hz| [1, 2, 4, 8].map(|channels| (rate_hz, channels)));
            all.filter_map(move |(rate_hz, channels)| Format::new(encoding, rate_hz, channels).ok())
        });
        let mut count = 0;
        for format in formats {
            for side in Side::BOTH {
                for (audio, kept) in audio.iter().zip(kept) {
                    let tapped = Tapped {
                        format,
                        audio: *audio,
                        followed_ns: 0,
                    };
                    let (mut bytes, mut room) = (Vec::new(), Vec::new());
                    let written = Portion::write(u64::MAX - 1, side, tapped, &mut bytes);
                    let read = Portion::read(&bytes).expect("a portion");
                    assert_eq!(read, written);
                    let (head, rest) = bytes.split_at(HEAD_BYTES);
                    assert_eq!((head.len(), rest.len()), (16, read.audio_bytes()));
                    assert_eq!(read.audio(rest, &mut room), kept);
                    count += 1;
                }
            }
        }
        assert!(count > 6 * 100, "{count}");
    }
}
