//! Operations of a backend, and their results.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::data::Piece;

/// An open file, for the operations on it.
pub(crate) type Fd = Arc<OwnedFd>;

/// Access mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For writing; the file is created or truncated.
    Write,
    /// For appending; the file is created if necessary.
    Append,
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Whether the file has a length and positions. Pipes, sockets, terminals and directories do not.
    pub is_regular: bool,
}

/// One write operation.
pub(crate) struct Writing {
    pub(crate) pieces: Vec<Piece>,
    /// Position of the write; `None` if the file has no positions.
    pub(crate) at: Option<u64>,
    /// Number of bytes that an earlier operation has written.
    pub(crate) skip: usize,
}

impl Writing {
    /// Returns the slices still to be written.
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
        /// Whether missing directories are created.
        with_parents: bool,
        permissions: u32,
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
    /// Syncs the file's data, and the metadata needed to read it, to the disk.
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
        /// Whether the directory entry is synced to the disk, too.
        durable: bool,
    },
    Remove {
        path: Arc<Path>,
    },
    Stat {
        path: Arc<Path>,
    },
}

/// Result of an operation.
pub(crate) enum Done {
    Nothing,
    Opened(OwnedFd),
    Stat(Stat),
    /// The data to be written, and the number of bytes written.
    Wrote(Writing, usize),
    /// Data that was read; shorter than requested if the file ends.
    Read(Vec<u8>),
}
