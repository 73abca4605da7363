//! The header of a WAV file. This module produces bytes, and uses no file or clock.
//!
//! The format is RIFF WAVE (Multimedia Programming Interface and Data Specifications 1.0). It has the broadcast extension of EBU Tech 3285,
//! version 2, which contains fields for the loudness. The length of the header is constant, so that the header can be rewritten at the end.

use super::loudness::FileLoudness;
use super::sound::{Coding, Sound};

/// Values of a header other than the audio format.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    /// The recorded stream or call.
    pub(super) title: String,
    /// Start time, such as `2026-11-25T21:36:00Z`.
    pub(super) began: String,
    /// Number of frames from midnight (UTC) to the start.
    pub(super) time_reference: u64,
    /// Loudness of the file. `None`: it is not known yet, or the audio is too quiet.
    pub(super) loudness: Option<FileLoudness>,
}

/// Returns the header of a file with this many bytes of audio.
pub(super) fn head(sound: Sound, notes: &Notes, data_bytes: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES_USUAL);
    head.extend(b"RIFF");
    head.extend([0; 4]);
    head.extend(b"WAVE");
    chunk(&mut head, b"fmt ", &format(sound));
    if sound.coding != Coding::Linear {
        let frames = data_bytes / u64::from(sound.frame_bytes());
        chunk(&mut head, b"fact", &size(frames).to_le_bytes());
    }
    chunk(&mut head, b"bext", &broadcast(sound, notes));
    let mut list = b"INFO".to_vec();
    chunk(&mut list, b"INAM", &fixed::<TEXT_BYTES>(&notes.title));
    let comment = notes.loudness.map_or(String::new(), |one| one.to_string());
    chunk(&mut list, b"ICMT", &fixed::<TEXT_BYTES>(&comment));
    chunk(&mut head, b"LIST", &list);
    head.extend(b"data");
    head.extend(size(data_bytes).to_le_bytes());
    // This is the size of everything that follows, with the padding byte.
    let riff = head.len() as u64 - 8 + data_bytes + data_bytes % 2;
    head[4..8].copy_from_slice(&size(riff).to_le_bytes());
    head
}

fn chunk(out: &mut Vec<u8>, name: &[u8; 4], bytes: &[u8]) {
    out.extend(name);
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn size(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn format(sound: Sound) -> Vec<u8> {
    let frame_bytes = sound.frame_bytes();
    let mut format = Vec::new();
    // The format tags are those of RFC 2361.
    let tag: u16 = match sound.coding {
        Coding::Linear => 1,
        Coding::ALaw => 6,
        Coding::ULaw => 7,
    };
    format.extend(tag.to_le_bytes());
    format.extend(u16::from(sound.channels).to_le_bytes());
    format.extend(sound.rate_hz.to_le_bytes());
    format.extend((sound.rate_hz * frame_bytes).to_le_bytes());
    format.extend((frame_bytes as u16).to_le_bytes());
    format.extend((sound.coding.sample_bytes() as u16 * 8).to_le_bytes());
    if sound.coding != Coding::Linear {
        // The extension of the format is empty.
        format.extend([0, 0]);
    }
    format
}

/// Returns the broadcast extension (EBU Tech 3285, section 2.3).
fn broadcast(sound: Sound, notes: &Notes) -> Vec<u8> {
    let mut bext = Vec::with_capacity(BEXT_BYTES);
    bext.extend(fixed::<256>(&notes.title));
    bext.extend(fixed::<32>("threadbare"));
    bext.extend(fixed::<32>(""));
    let (date, time) = notes.began.split_once('T').unwrap_or_default();
    bext.extend(fixed::<10>(date));
    bext.extend(fixed::<8>(time.trim_end_matches('Z')));
    bext.extend(notes.time_reference.to_le_bytes());
    bext.extend(2_u16.to_le_bytes());
    // There is no UMID.
    bext.extend([0; 64]);
    let level = |value: Option<f64>| {
        let hundredths = value.filter(|value| value.is_finite());
        let hundredths = hundredths.map(|value| (value * 100.0).round() as i16);
        hundredths.unwrap_or(UNUSED).to_le_bytes()
    };
    let loudness = notes.loudness;
    bext.extend(level(loudness.map(|one| one.integrated_lufs)));
    bext.extend(level(loudness.map(|one| one.range_lu)));
    bext.extend(level(loudness.map(|one| one.true_peak_dbtp)));
    // The maximum momentary and short-term loudness are not known.
    bext.extend(level(None));
    bext.extend(level(None));
    bext.extend([0; 180]);
    let coding = match sound.coding {
        Coding::Linear => "A=PCM",
        Coding::ALaw => "A=ALAW",
        Coding::ULaw => "A=ULAW",
    };
    let rate_hz = sound.rate_hz;
    bext.extend(fixed::<32>(&format!("{coding},F={rate_hz}\r\n")));
    bext
}

/// Returns as many bytes of a text as fit, padded with zeros.
fn fixed<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    let mut room = [0; BYTES];
    let ascii = text.chars().map(|letter| match letter {
        ' '..='~' | '\r' | '\n' => letter as u8,
        _ => b'?',
    });
    for (place, letter) in room.iter_mut().zip(ascii) {
        *place = letter;
    }
    room
}

/// Maximum number of bytes of audio. It is limited because all sizes in a file have 32 bits.
pub(super) const DATA_BYTES_MAX: u64 = u32::MAX as u64 - HEAD_BYTES_MAX as u64;
/// A size that is larger than any header.
pub(super) const HEAD_BYTES_MAX: usize = 2048;
const HEAD_BYTES_USUAL: usize = 1024;
const BEXT_BYTES: usize = 602 + 32;
/// Number of bytes that a text in the list has.
const TEXT_BYTES: usize = 128;
/// The value that stands for an absent loudness (EBU Tech 3285).
const UNUSED: i16 = 0x7fff;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length of the header and the audio format of a file that starts with a header of this module. `begin` contains the first
    /// bytes of the file.
    fn read_head(begin: &[u8]) -> Option<(usize, Sound)> {
        if begin.get(..4)? != b"RIFF" || begin.get(8..12)? != b"WAVE" {
            return None;
        }
        let number = |at: usize, bytes: usize| {
            let bytes = begin.get(at..at + bytes)?.iter().rev();
            Some(bytes.fold(0_u32, |value, byte| value << 8 | u32::from(*byte)))
        };
        let (mut at, mut sound) = (12, None);
        loop {
            let name = begin.get(at..at + 4)?;
            let length = number(at + 4, 4)? as usize;
            let body = at + 8;
            match name {
                b"data" => return Some((body, sound?)),
                b"fmt " => {
                    sound = Some(Sound {
                        coding: match number(body, 2)? {
                            6 => Coding::ALaw,
                            7 => Coding::ULaw,
                            _ => Coding::Linear,
                        },
                        channels: number(body + 2, 2)?.clamp(1, 255) as u8,
                        rate_hz: number(body + 4, 4)?.max(1),
                    });
                }
                _ => {}
            }
            at = body.checked_add(length)?.checked_add(length % 2)?;
        }
    }

    #[test]
    fn the_header_keeps_its_length_and_can_be_parsed() {
        for coding in [Coding::Linear, Coding::ALaw, Coding::ULaw] {
            let sound = Sound {
                coding,
                channels: 2,
                rate_hz: 8000,
            };
            let mut notes = Notes {
                title: "call \u{e9}".to_owned(),
                began: "2026-11-25T21:36:00Z".to_owned(),
                ..Notes::default()
            };
            let begin = head(sound, &notes, 0);
            notes.loudness = Some(FileLoudness {
                integrated_lufs: -23.04,
                range_lu: 5.0,
                true_peak_dbtp: f64::NEG_INFINITY,
            });
            let end = head(sound, &notes, 4001);
            assert_eq!(begin.len(), end.len());
            assert!(end.len() < HEAD_BYTES_MAX);
            assert_eq!(read_head(&end), Some((end.len(), sound)));
            assert_eq!(end[end.len() - 4..], 4001_u32.to_le_bytes());
            // The 4001 bytes of audio are padded to an even number.
            let riff = (end.len() - 8 + 4002) as u32;
            assert_eq!(end[4..8], riff.to_le_bytes());
            for len in 0..end.len() {
                assert_eq!(read_head(&end[..len]), None);
            }
            let bext = end
                .windows(4)
                .position(|four| four == b"bext")
                .expect("it is there")
                + 8;
            // The loudness follows the texts, the time, the version and the UMID.
            let at = bext + 256 + 32 + 32 + 10 + 8 + 8 + 2 + 64;
            assert_eq!(end[at..at + 2], (-2304_i16).to_le_bytes());
            assert_eq!(end[at + 2..at + 4], 500_i16.to_le_bytes());
            assert_eq!(end[at + 4..at + 6], UNUSED.to_le_bytes());
        }
    }
}
