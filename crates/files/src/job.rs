//! What a backend is asked to do, and what it answers.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::data::Piece;

/// An open file, for the operations on it.
pub(crate) type Fd = Arc<OwnedFd>;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For writing; the file is created, or made empty.
    Write,
    /// For writing behind what is there; the file is created if need be.
    Append,
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its length.
    pub bytes: u64,
    /// Has a length and positions: not a pipe, socket, terminal or directory.
    pub is_regular: bool,
}

/// One write operation.
pub(crate) struct Writing {
    pub(crate) pieces: Vec<Piece>,
    /// `None`: the file has no positions.
    pub(crate) at: Option<u64>,
    /// Bytes of it that an earlier operation has written.
    pub(crate) skip: usize,
}

impl Writing {
    /// What is left to write.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.skip;
        let mut slices = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let bytes = piece.bytes();
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            if skipped < bytes.len() {
                slices.push(IoSlice::new(&bytes[skipped..]));
            }
        }
        slices
    }

    pub(crate) fn left(&self) -> usize {
        self.slices().iter().map(|slice| slice.len()).sum()
    }
}

/// An operation.
pub(crate) enum Job {
    Open {
        path: Arc<Path>,
        access: Access,
        /// Missing directories are created.
        with_parents: bool,
    },
    Inspect {
        file: Fd,
    },
    Write {
        file: Fd,
        writing: Writing,
    },
    Read {
        file: Fd,
        at: Option<u64>,
        bytes: usize,
    },
    /// The file's data is on the disk, and what is needed to read it.
    Sync {
        file: Fd,
    },
    Truncate {
        file: Fd,
        bytes: u64,
    },
    Close {
        file: OwnedFd,
    },
    Rename {
        from: Arc<Path>,
        to: Arc<Path>,
        /// The directory's entry is on the disk, too.
        durable: bool,
    },
    Remove {
        path: Arc<Path>,
    },
    Stat {
        path: Arc<Path>,
    },
}

/// What an operation brought.
pub(crate) enum Done {
    Nothing,
    Opened(OwnedFd),
    Stat(Stat),
    /// With what was to be written, and how much was.
    Wrote(Writing, usize),
    /// Shorter than asked: the file ends there.
    Read(Vec<u8>),
}
