//! The part that is being filled, and files to be removed.

use std::path::PathBuf;

use bytes::Bytes;
use threadbare_files::{Ending, File, Op};

/// The part that is being filled.
#[derive(Default)]
pub(crate) enum Filling {
    #[default]
    Nothing,
    Memory {
        blocks: Vec<Bytes>,
        block: Vec<u8>,
        room: usize,
        held: u64,
    },
    File {
        file: File,
        path: PathBuf,
        held: u64,
    },
}

impl Filling {
    pub(crate) fn take_file(&mut self) -> Option<Doomed> {
        match self {
            Filling::File { file, path, .. } => Some(Doomed {
                path: path.clone(),
                closing: Some(file.close(Ending::default())),
            }),
            _ => None,
        }
    }

    pub(crate) fn take_held(&mut self) -> u64 {
        match std::mem::take(self) {
            Filling::Nothing => 0,
            Filling::Memory { held, .. } | Filling::File { held, .. } => held,
        }
    }
}

/// A file to be removed when its pending operation has ended. If it were removed earlier, the operation might create it again.
pub(crate) struct Doomed {
    pub(crate) path: PathBuf,
    pub(crate) closing: Option<Op<()>>,
}
