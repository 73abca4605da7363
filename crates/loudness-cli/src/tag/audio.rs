//! Compares the audio of two files, byte for byte, without their tags.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

use ogg::PacketReader;

use super::Format;

/// Whether the audio of two files is equal. Both files must be at their start.
pub(super) fn is_same(old: &mut File, new: &mut File, format: Format) -> Result<bool, String> {
    let told = |error: std::io::Error| error.to_string();
    match format {
        Format::Vorbis | Format::Opus => has_same_packets(old, new),
        Format::Flac | Format::Mp3 => {
            for file in [&mut *old, &mut *new] {
                let begins = match format {
                    Format::Flac => flac_frames(file),
                    _ => after_id3(file),
                };
                let begins = begins.map_err(told)?;
                file.seek(SeekFrom::Start(begins)).map_err(told)?;
            }
            has_same_rest(old, new).map_err(told)
        }
    }
}

/// Returns the start of the frames. Each metadata block has a header of four bytes, with the length of the block and a flag for
/// the last block (RFC 9639, section 8.1).
fn flac_frames(file: &mut File) -> std::io::Result<u64> {
    let mut at = after_id3(file)? + 4;
    loop {
        file.seek(SeekFrom::Start(at))?;
        let mut header = [0; 4];
        file.read_exact(&mut header)?;
        let [kind, length @ ..] = header;
        at += 4 + u64::from(u32::from_be_bytes([0, length[0], length[1], length[2]]));
        if kind & 0x80 != 0 {
            return Ok(at);
        }
    }
}

fn after_id3(file: &mut File) -> std::io::Result<u64> {
    let mut header = [0; 10];
    file.rewind()?;
    file.read_exact(&mut header)?;
    Ok(id3_bytes(header).unwrap_or(0))
}

/// Returns the length of a tag that begins with this header (ID3v2.4, section 3.1). The last four of its ten bytes are the
/// length of the rest, with seven bits in each byte. Flag 0x10 means that a footer of ten bytes follows.
pub(super) fn id3_bytes(header: [u8; 10]) -> Option<u64> {
    if !header.starts_with(b"ID3") {
        return None;
    }
    let length = header[6..]
        .iter()
        .fold(0, |length, byte| length << 7 | u64::from(*byte));
    let footer = if header[5] & 0x10 != 0 { 10 } else { 0 };
    Some(10 + length + footer)
}

fn has_same_rest(old: &File, new: &File) -> std::io::Result<bool> {
    let (mut old, mut new) = (BufReader::new(old), BufReader::new(new));
    let (mut before, mut after) = (Vec::new(), Vec::new());
    loop {
        before.clear();
        after.clear();
        old.by_ref().take(CHUNK_BYTES).read_to_end(&mut before)?;
        new.by_ref().take(CHUNK_BYTES).read_to_end(&mut after)?;
        if before != after {
            return Ok(false);
        }
        if before.is_empty() {
            return Ok(true);
        }
    }
}

const CHUNK_BYTES: u64 = 1 << 16;

/// Whether all packets except for the second, which has the comments, are equal in content, time and stream. Bytes outside of
/// pages are not compared, because a file with such bytes is not changed.
fn has_same_packets(old: &File, new: &File) -> Result<bool, String> {
    let broken = |error: ogg::OggReadError| error.to_string();
    let mut old = PacketReader::new(BufReader::new(old));
    let mut new = PacketReader::new(BufReader::new(new));
    for index in 0_u64.. {
        let (before, after) = (
            old.read_packet().map_err(broken)?,
            new.read_packet().map_err(broken)?,
        );
        let (before, after) = match (before, after) {
            (Some(before), Some(after)) => (before, after),
            (None, None) => break,
            _ => return Ok(false),
        };
        let key = |packet: &ogg::Packet| {
            (
                packet.stream_serial(),
                packet.absgp_page(),
                packet.last_in_stream(),
            )
        };
        if index != COMMENTS && (key(&before) != key(&after) || before.data != after.data) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Index of the packet with the comments (RFC 7845, section 5; Vorbis I, section 4.2).
const COMMENTS: u64 = 1;
