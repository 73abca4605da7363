//! Edits the tags of each format with the crate lofty. A file with content that the crate cannot keep unchanged is refused.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use lofty::TextEncoding;
use lofty::config::{ParseOptions, ParsingMode, WriteOptions};
use lofty::file::{AudioFile, FileType};
use lofty::flac::FlacFile;
use lofty::id3::v2::{ExtendedTextFrame, Frame, Id3v2Tag, Id3v2Version};
use lofty::mpeg::MpegFile;
use lofty::ogg::tag::VorbisComments;
use lofty::ogg::{OpusFile, VorbisFile};
use lofty::probe::Probe;
use lofty::tag::TagExt;

use super::audio::id3_bytes;
use super::{Format, Tags};

/// Returns the format of a file. It depends on the content, not on the name.
pub(super) fn format_of(path: &Path) -> std::io::Result<Option<Format>> {
    let mut file = BufReader::new(File::open(path)?);
    let probe = Probe::new(&mut file).guess_file_type()?;
    Ok(match probe.file_type() {
        Some(FileType::Flac) => Some(Format::Flac),
        Some(FileType::Vorbis) => Some(Format::Vorbis),
        Some(FileType::Opus) => Some(Format::Opus),
        // The crate only guesses, because other data may also have the bits of a frame header.
        Some(FileType::Mpeg) => is_mp3(&mut file)?.then_some(Format::Mp3),
        _ => None,
    })
}

/// Whether the file consists of frames of layer III, after any ID3v2 tags. In another file, a tag could destroy data.
fn is_mp3(file: &mut (impl Read + Seek)) -> std::io::Result<bool> {
    let mut at = 0;
    let mut header = [0; 10];
    loop {
        file.seek(SeekFrom::Start(at))?;
        if file.read_exact(&mut header).is_err() {
            return Ok(false);
        }
        match id3_bytes(header) {
            Some(bytes) => at += bytes,
            None => break,
        }
    }
    for frame in 0..FRAMES_MIN {
        file.seek(SeekFrom::Start(at))?;
        let mut header = [0; 4];
        match file.read_exact(&mut header) {
            Ok(()) => {}
            // A very short file may end here.
            Err(_) => return Ok(frame > 0),
        }
        match frame_bytes(header) {
            Some(bytes) => at += bytes,
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns the length of a frame with this header (ISO/IEC 11172-3, section 2.4.1.3, and 13818-3). The header has 11 bits of
/// synchronisation (10 in version 2.5), version, layer, bit rate and sample rate.
fn frame_bytes([sync, kind, rates, _]: [u8; 4]) -> Option<u64> {
    const KBPS: [u64; 14] = [
        32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
    ];
    const KBPS_LOW: [u64; 14] = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
    const HZ: [u64; 3] = [44_100, 48_000, 32_000];
    let (version, layer) = (kind >> 3 & 3, kind >> 1 & 3);
    if sync != 0xff || kind & 0xe0 != 0xe0 || version == 1 || layer != 1 {
        return None;
    }
    let hz = HZ.get(usize::from(rates >> 2 & 3))?;
    let rate = usize::from(rates >> 4).checked_sub(1)?;
    let padding = u64::from(rates >> 1 & 1);
    Some(
        padding
            + match version {
                3 => 144_000 * KBPS.get(rate)? / hz,
                2 => 72_000 * KBPS_LOW.get(rate)? / (hz / 2),
                _ => 72_000 * KBPS_LOW.get(rate)? / (hz / 4),
            },
    )
}

/// Sets these tags in the file, and keeps the others.
pub(super) fn edit(file: &mut File, format: Format, tags: &Tags) -> Result<(), String> {
    match format {
        Format::Flac => edit_flac(file, tags),
        Format::Vorbis => {
            let mut read = VorbisFile::read_from(file, parsing()).map_err(told)?;
            set_comments(read.vorbis_comments_mut(), tags);
            save(&read, file)
        }
        Format::Opus => {
            let mut read = OpusFile::read_from(file, parsing()).map_err(told)?;
            set_comments(read.vorbis_comments_mut(), tags);
            save(&read, file)
        }
        Format::Mp3 => edit_mp3(file, tags),
    }
}

fn edit_flac(file: &mut File, tags: &Tags) -> Result<(), String> {
    let mut read = FlacFile::read_from(file, parsing()).map_err(told)?;
    if read.id3v2().is_some() {
        return Err("the file starts with an ID3 tag, which FLAC files must not have".to_owned());
    }
    match read.vorbis_comments_mut() {
        Some(comments) => set_comments(comments, tags),
        None => {
            let mut comments = VorbisComments::default();
            set_comments(&mut comments, tags);
            read.set_vorbis_comments(comments);
        }
    }
    save(&read, file)
}

fn save(read: &impl AudioFile, file: &mut File) -> Result<(), String> {
    file.rewind().map_err(told)?;
    read.save_to(file, WriteOptions::new().remove_others(false))
        .map_err(told)
}

/// Sets comments. Their names are not case-sensitive (Vorbis I, section 5.2.2).
fn set_comments(comments: &mut VorbisComments, tags: &Tags) {
    for (name, value) in tags {
        comments.insert((*name).to_owned(), value.clone());
    }
}

/// Edits an ID3v2 tag in its existing version. The file's other tags (ID3v1, APE) stay unchanged.
fn edit_mp3(file: &mut File, tags: &Tags) -> Result<(), String> {
    // An ID3v1 tag at the end is not read, and stays where it is.
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(told)?;
    let end = bytes.len().saturating_sub(ID3V1_BYTES);
    if bytes[end..].starts_with(b"TAG") {
        bytes.truncate(end);
    }
    let mut read = MpegFile::read_from(&mut Cursor::new(bytes), parsing()).map_err(told)?;
    let mut tag = read.remove_id3v2().unwrap_or_else(Id3v2Tag::new);
    let version = tag.original_version();
    if version == Id3v2Version::V2 {
        return Err(
            "the ID3 tag of the file has version 2.2, which cannot be preserved".to_owned(),
        );
    }
    // Also remove names in lower case, which some programs write. For ID3, they are different names.
    tag.retain(|frame| match frame {
        Frame::UserText(text) => {
            let is_ours = |name: &str| name.eq_ignore_ascii_case(&text.description);
            !tags.iter().any(|(name, _)| is_ours(name))
        }
        _ => true,
    });
    for (name, value) in tags {
        let text = ExtendedTextFrame::new(TextEncoding::Latin1, *name, value.clone());
        tag.insert(Frame::UserText(text));
    }
    let mut options = WriteOptions::new().remove_others(false);
    options.use_id3v23(version == Id3v2Version::V3);
    file.rewind().map_err(told)?;
    tag.save_to(file, options).map_err(told)
}

const ID3V1_BYTES: usize = 128;
/// Number of frames that must follow one another. Other data is unlikely to have so many consecutive headers.
const FRAMES_MIN: usize = 4;

/// Returns strict options for parsing, because content that is not understood would be lost when the tags are written.
fn parsing() -> ParseOptions {
    let mut options = ParseOptions::new();
    options.read_properties(false);
    options.parsing_mode(ParsingMode::Strict);
    options.implicit_conversions(false);
    options
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}
