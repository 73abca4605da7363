//! The tags of each format, by the crate lofty. What it cannot keep as it is, it refuses.

use std::fs::File;
use std::io::{BufReader, Seek};
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

use super::{Format, Tags};

/// By what is in the file, not by its name.
pub(super) fn format_of(path: &Path) -> std::io::Result<Option<Format>> {
    let file = BufReader::new(File::open(path)?);
    let probe = Probe::new(file).guess_file_type()?;
    Ok(match probe.file_type() {
        Some(FileType::Flac) => Some(Format::Flac),
        Some(FileType::Vorbis) => Some(Format::Vorbis),
        Some(FileType::Opus) => Some(Format::Opus),
        Some(FileType::Mpeg) => Some(Format::Mp3),
        _ => None,
    })
}

/// Sets these tags in the file, and leaves the others.
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
        return Err("it begins with an ID3 tag, which FLAC does not have".to_owned());
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

/// Their names are not case-sensitive (Vorbis I, section 5.2.2).
fn set_comments(comments: &mut VorbisComments, tags: &Tags) {
    for (name, value) in tags {
        comments.insert((*name).to_owned(), value.clone());
    }
}

/// In an ID3v2 tag of the version that is there. The file's other tags (ID3v1, APE) are left alone.
fn edit_mp3(file: &mut File, tags: &Tags) -> Result<(), String> {
    let mut read = MpegFile::read_from(file, parsing()).map_err(told)?;
    let mut tag = read.remove_id3v2().unwrap_or_else(Id3v2Tag::new);
    let version = tag.original_version();
    if version == Id3v2Version::V2 {
        return Err("its ID3 tag is of version 2.2, which cannot be kept".to_owned());
    }
    // Some programs write the names in small letters, and ID3 takes those for others.
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

/// Strictly: what is not understood would be lost in writing.
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
