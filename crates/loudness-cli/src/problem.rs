//! Reasons why a file cannot be measured or tagged, with advice.

use std::io;
use std::path::{Path, PathBuf};

use miette::Diagnostic;
use thiserror::Error;

/// The problem of one file.
#[derive(Debug, Error, Diagnostic)]
pub(super) enum Problem {
    #[error("{}: no such file", path.display())]
    #[diagnostic(help("file names with spaces or special characters need quotes in a shell"))]
    NoFile { path: PathBuf },
    #[error("{} is a directory", path.display())]
    #[diagnostic(help("name the files in it, for example {}/*", path.display()))]
    Directory { path: PathBuf },
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} has no audio that could be recognised", path.display())]
    #[diagnostic(help("`file {}` may show its format", path.display()))]
    NoAudio { path: PathBuf },
    #[error("{} needs a decoder that is not installed: {what}", path.display())]
    #[diagnostic(help(
        "Debian has most decoders in gstreamer1.0-plugins-good, gstreamer1.0-plugins-ugly and gstreamer1.0-libav"
    ))]
    NoDecoder { path: PathBuf, what: String },
    #[error("{} cannot be decoded: {reason}", path.display())]
    #[diagnostic(help("the file may be damaged or incomplete"))]
    Broken { path: PathBuf, reason: String },
    #[error("{} cannot be tagged: {reason}", path.display())]
    #[diagnostic(help("no file has been written"))]
    Untaggable { path: PathBuf, reason: String },
    #[error("{} was not tagged: {reason}", path.display())]
    #[diagnostic(help("the file is unchanged"))]
    Tag { path: PathBuf, reason: String },
    #[error(
        "no file was tagged: the album is incomplete, because one of its files could not be measured"
    )]
    #[diagnostic(help("leave out that file, or leave out --album"))]
    Album,
    #[error("cannot write the picture {}: {error}", path.display())]
    Plot { path: PathBuf, error: io::Error },
}

impl Problem {
    /// Checks the file before a decoder is tried, to report errors of the file system.
    pub(super) fn of_file(path: &Path) -> Result<(), Problem> {
        let path = path.to_owned();
        let found = std::fs::metadata(&path).and_then(|metadata| {
            if metadata.is_file() {
                std::fs::File::open(&path).map(|_| metadata)
            } else {
                Ok(metadata)
            }
        });
        match found {
            Ok(metadata) if metadata.is_dir() => Err(Problem::Directory { path }),
            Ok(metadata) if metadata.is_file() => Ok(()),
            Ok(_) => Err(Problem::Unreadable {
                path,
                error: io::Error::other("it is not a regular file"),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Problem::NoFile { path }),
            Err(error) => Err(Problem::Unreadable { path, error }),
        }
    }

    pub(super) fn broken(path: &Path, reason: impl ToString) -> Problem {
        Problem::Broken {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// Returns the problem of a failed pipeline. `missing`: the decoder that was missing.
    pub(super) fn of_error(
        path: &Path,
        error: &gst::message::Error,
        missing: Option<String>,
    ) -> Problem {
        let path = path.to_owned();
        if let Some(what) = missing {
            return Problem::NoDecoder { path, what };
        }
        let error = error.error();
        // The last two errors mean that the file has only pictures, whose decoder is missing.
        let has_no_audio = matches!(
            error.kind::<gst::StreamError>(),
            Some(
                gst::StreamError::TypeNotFound
                    | gst::StreamError::WrongType
                    | gst::StreamError::CodecNotFound
            )
        ) || error.matches(gst::CoreError::MissingPlugin);
        if has_no_audio {
            Problem::NoAudio { path }
        } else {
            Problem::broken(&path, error)
        }
    }

    /// Returns the short form for a table cell.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Problem::NoFile { .. } => "no such file",
            Problem::Directory { .. } => "a directory",
            Problem::Unreadable { .. } => "unreadable",
            Problem::NoAudio { .. } => "no audio",
            Problem::NoDecoder { .. } => "no decoder",
            Problem::Broken { .. } => "damaged",
            Problem::Untaggable { .. } | Problem::Tag { .. } | Problem::Album => "not tagged",
            Problem::Plot { .. } => "no picture",
        }
    }
}
