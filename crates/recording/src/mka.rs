//! Matroska files with audio only: the header and the clusters (RFC 9559, and RFC 8794 for EBML). This module produces bytes,
//! and uses no file or clock.
//!
//! While the file grows, its segment has no size. Each cluster is complete when it is written, so a truncated file can be played up to its
//! last complete cluster. The length of the header is constant, because placeholders fill the space of the duration and the tags until they
//! are known.

use super::sound::{Coding, Sound};
use super::wav::Notes;

/// Returns the header of a file. The channels are divided among `tracks` tracks. For a complete file, `end` contains the number of frames
/// and the number of bytes after the header.
pub(super) fn head(sound: Sound, tracks: u8, notes: &Notes, end: Option<(u64, u64)>) -> Vec<u8> {
    let mut head = Vec::new();
    let mut ebml = Vec::new();
    for (id, value) in [(0x4286, 1), (0x42f7, 1), (0x42f2, 4), (0x42f3, 8)] {
        number(&mut ebml, id, value);
    }
    element(&mut ebml, 0x4282, b"matroska");
    number(&mut ebml, 0x4287, 4);
    number(&mut ebml, 0x4285, 2);
    element(&mut head, EBML, &ebml);
    id(&mut head, SEGMENT);
    let size_at = head.len();
    head.extend(UNKNOWN_SIZE);
    let begin = head.len();
    element(
        &mut head,
        0x1549_a966,
        &info(sound, notes, end.map(|(frames, _)| frames)),
    );
    let own = Sound {
        channels: sound.channels / tracks.max(1),
        ..sound
    };
    let mut entries = Vec::new();
    for track in 1..=tracks {
        element(&mut entries, 0xae, &entry(own, track, tracks));
    }
    element(&mut head, 0x1654_ae6b, &entries);
    tags(&mut head, notes);
    if let Some((_, behind)) = end {
        let size = (head.len() - begin) as u64 + behind;
        let size = size | 1 << 56;
        head[size_at..begin].copy_from_slice(&size.to_be_bytes());
    }
    head
}

fn info(sound: Sound, notes: &Notes, frames: Option<u64>) -> Vec<u8> {
    let mut info = Vec::new();
    // Times are in units of 1 ms.
    number(&mut info, 0x002a_d7b1, 1_000_000);
    match frames {
        Some(frames) => {
            let ms = frames as f64 * 1000.0 / f64::from(sound.rate_hz);
            element(&mut info, 0x4489, &ms.to_be_bytes());
        }
        // This is a placeholder of the same length.
        None => element(&mut info, VOID, &[0; 9]),
    }
    element(&mut info, 0x4d80, b"threadbare");
    element(&mut info, 0x5741, b"threadbare");
    element(&mut info, 0x7ba9, notes.title.as_bytes());
    info
}

fn entry(sound: Sound, track: u8, tracks: u8) -> Vec<u8> {
    let mut entry = Vec::new();
    number(&mut entry, 0xd7, track.into());
    number(&mut entry, 0x73c5, track.into());
    // The type of the track is audio.
    number(&mut entry, 0x83, 2);
    // The track uses no lacing.
    number(&mut entry, 0x9c, 0);
    if tracks > 1 {
        let name = [b'A' + track - 1];
        element(&mut entry, 0x536e, &name);
    }
    match sound.coding {
        Coding::Linear => element(&mut entry, 0x86, b"A_PCM/INT/LIT"),
        Coding::ALaw | Coding::ULaw => {
            element(&mut entry, 0x86, b"A_MS/ACM");
            element(&mut entry, 0x63a2, &wave_format(sound));
        }
    }
    let mut audio = Vec::new();
    element(&mut audio, 0xb5, &f64::from(sound.rate_hz).to_be_bytes());
    number(&mut audio, 0x9f, sound.channels.into());
    number(&mut audio, 0x6264, sound.coding.sample_bytes() as u64 * 8);
    element(&mut entry, 0xe1, &audio);
    entry
}

/// Returns a `WAVEFORMATEX` for the audio.
fn wave_format(sound: Sound) -> Vec<u8> {
    let tag: u16 = if sound.coding == Coding::ALaw { 6 } else { 7 };
    let mut format = Vec::new();
    format.extend(tag.to_le_bytes());
    format.extend(u16::from(sound.channels).to_le_bytes());
    format.extend(sound.rate_hz.to_le_bytes());
    format.extend((sound.rate_hz * sound.frame_bytes()).to_le_bytes());
    format.extend((sound.frame_bytes() as u16).to_le_bytes());
    format.extend(8_u16.to_le_bytes());
    format.extend([0, 0]);
    format
}

/// Writes the tags, with the loudness if it is known. Then pads them to a constant length.
fn tags(head: &mut Vec<u8>, notes: &Notes) {
    let begin = head.len();
    if let Some(loudness) = notes.loudness {
        let mut tag = Vec::new();
        element(&mut tag, 0x63c0, &[]);
        let simple = |name: &str, value: String| {
            let mut simple = Vec::new();
            element(&mut simple, 0x45a3, name.as_bytes());
            element(&mut simple, 0x4487, value.as_bytes());
            simple
        };
        for (name, value) in [
            ("COMMENT", loudness.to_string()),
            ("DATE_RECORDED", notes.began.clone()),
            (
                "INTEGRATED_LOUDNESS",
                format!("{:.2} LUFS", loudness.integrated_lufs),
            ),
            ("LOUDNESS_RANGE", format!("{:.2} LU", loudness.range_lu)),
            ("TRUE_PEAK", format!("{:.2} dBTP", loudness.true_peak_dbtp)),
        ] {
            element(&mut tag, 0x67c8, &simple(name, value));
        }
        let mut all = Vec::new();
        element(&mut all, 0x7373, &tag);
        element(head, 0x1254_c367, &all);
    }
    // The size of the padding takes two bytes.
    let left = TAGS_BYTES - (head.len() - begin) - 3;
    id(head, VOID);
    head.extend(((left as u16) | 0x4000).to_be_bytes());
    head.resize(head.len() + left, 0);
}

/// Appends a cluster with one block for each track. `at` is the number of its first frame.
pub(super) fn cluster(sound: Sound, tracks: u8, at: u64, frames: &[u8], out: &mut Vec<u8>) {
    let tracks = usize::from(tracks.max(1));
    let ms = at * 1000 / u64::from(sound.rate_hz);
    let mut time = Vec::new();
    number(&mut time, 0xe7, ms);
    // The head of a block has four bytes: the number of the track, the time in the cluster, and the flags.
    let block = frames.len() / tracks + 4;
    let size = time.len() + tracks * (1 + 8 + block);
    id(out, CLUSTER);
    long_size(out, size as u64);
    out.extend(&time);
    for track in 0..tracks {
        id(out, 0xa3);
        long_size(out, block as u64);
        // The flags say that the block is a keyframe.
        out.extend([0x81 + track as u8, 0, 0, 0x80]);
        match (tracks, sound.frame_bytes() as usize / tracks) {
            (1, _) => out.extend_from_slice(frames),
            (_, 1) => pick::<1>(frames, tracks, track, out),
            (_, 2) => pick::<2>(frames, tracks, track, out),
            (_, own) => {
                let all = frames.chunks_exact(own).skip(track).step_by(tracks);
                all.for_each(|own| out.extend_from_slice(own));
            }
        }
    }
}

/// Appends each `every`-th piece of `BYTES` bytes, starting with piece number `first`.
fn pick<const BYTES: usize>(frames: &[u8], every: usize, first: usize, out: &mut Vec<u8>) {
    let (all, _) = frames.as_chunks::<BYTES>();
    let begin = out.len();
    out.resize(begin + frames.len() / every, 0);
    let (room, _) = out[begin..].as_chunks_mut::<BYTES>();
    let picked = all.iter().skip(first).step_by(every);
    room.iter_mut()
        .zip(picked)
        .for_each(|(place, own)| *place = *own);
}

/// Returns the end of the last complete cluster, and the number of frames in all complete clusters. `length` is the number of bytes after
/// the header. `peek` returns 16 of these bytes from a position on, padded with zeros.
pub(super) fn whole(
    sound: Sound,
    tracks: u8,
    length: u64,
    peek: &dyn Fn(u64) -> [u8; 16],
) -> (u64, u64) {
    let (mut end, mut frames) = (0, 0);
    while end + 12 <= length {
        let head = peek(end);
        let size = head[5..12]
            .iter()
            .fold(0, |size, byte| size << 8 | u64::from(*byte));
        let next = end + 12 + size;
        if head[..4] != CLUSTER.to_be_bytes() || head[4] != 1 || next > length {
            break;
        }
        let blocks = u64::from(tracks) * (1 + 8 + 4);
        // These are the identifier, the size, and the time of one to eight bytes.
        let time = 2 + u64::from(head[13] & 0x7f);
        frames += size.saturating_sub(blocks + time) / u64::from(sound.frame_bytes());
        end = next;
    }
    (end, frames)
}

fn id(out: &mut Vec<u8>, id: u32) {
    let bytes = id.to_be_bytes();
    let begin = bytes.iter().position(|byte| *byte != 0).unwrap_or(3);
    out.extend(&bytes[begin..]);
}

fn long_size(out: &mut Vec<u8>, size: u64) {
    out.extend((size | 1 << 56).to_be_bytes());
}

fn element(out: &mut Vec<u8>, name: u32, bytes: &[u8]) {
    id(out, name);
    match bytes.len() {
        // A size with all bits set means an unknown size, so the size 127 needs the long form.
        size @ 0..0x7f => out.push(size as u8 | 0x80),
        size => long_size(out, size as u64),
    }
    out.extend(bytes);
}

fn number(out: &mut Vec<u8>, name: u32, value: u64) {
    let bytes = value.to_be_bytes();
    let begin = bytes.iter().position(|byte| *byte != 0).unwrap_or(7);
    element(out, name, &bytes[begin..]);
}

const EBML: u32 = 0x1a45_dfa3;
const SEGMENT: u32 = 0x1853_8067;
const CLUSTER: u32 = 0x1f43_b675;
const VOID: u32 = 0xec;
const UNKNOWN_SIZE: [u8; 8] = [1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
/// Constant length of the tags, with padding.
const TAGS_BYTES: usize = 768;

#[cfg(test)]
mod tests {
    use super::super::container::tests::peeks;
    use super::super::loudness::FileLoudness;
    use super::*;

    #[test]
    fn the_header_keeps_its_length_and_complete_clusters_are_found() {
        let sound = Sound {
            coding: Coding::Linear,
            channels: 2,
            rate_hz: 8000,
        };
        let mut notes = Notes {
            title: "x".repeat(300),
            ..Notes::default()
        };
        let begin = head(sound, 2, &notes, None);
        notes.loudness = Some(FileLoudness {
            integrated_lufs: -123.04,
            range_lu: 100.0,
            true_peak_dbtp: -100.0,
        });
        assert_eq!(begin.len(), head(sound, 2, &notes, Some((1, 1))).len());
        for coding in [Coding::Linear, Coding::ULaw] {
            let sound = Sound { coding, ..sound };
            let mut bytes = Vec::new();
            let frame_bytes = sound.frame_bytes() as usize;
            cluster(sound, 2, 0, &vec![7; 4000 * frame_bytes], &mut bytes);
            let first = bytes.len();
            cluster(sound, 2, 4000, &vec![7; 1000 * frame_bytes], &mut bytes);
            let whole_of = |bytes: &[u8]| whole(sound, 2, bytes.len() as u64, &peeks(bytes));
            assert_eq!(whole_of(&bytes), (bytes.len() as u64, 5000));
            for cut in [first, first + 5, bytes.len() - 1] {
                assert_eq!(whole_of(&bytes[..cut]), (first as u64, 4000));
            }
            assert_eq!(whole_of(&bytes[..first - 1]), (0, 0));
            assert_eq!(whole_of(b"no cluster, but long enough"), (0, 0));
        }
    }
    #[test]
    fn each_track_has_its_own_samples() {
        for (coding, channels, tracks) in [
            (Coding::Linear, 2, 2),
            (Coding::ALaw, 2, 2),
            (Coding::Linear, 4, 2),
            (Coding::ULaw, 2, 1),
        ] {
            let sound = Sound {
                coding,
                channels,
                rate_hz: 8000,
            };
            let frame_bytes = sound.frame_bytes() as u8;
            let frames: Vec<u8> = (0..3 * frame_bytes).collect();
            let mut bytes = Vec::new();
            cluster(sound, tracks, 0, &frames, &mut bytes);
            let own = frame_bytes / tracks;
            let mut due = Vec::new();
            for track in 0..tracks {
                // A block starts with its identifier, its size, the number of the track, the time, and the flags.
                due.extend([0xa3, 1, 0, 0, 0, 0, 0, 0, 4 + 3 * own]);
                due.extend([0x81 + track, 0, 0, 0x80]);
                let place = |byte: &&u8| **byte % frame_bytes / own == track;
                due.extend(frames.iter().filter(place));
            }
            assert!(bytes.ends_with(&due), "{coding:?} {channels} {tracks}");
        }
    }
}
