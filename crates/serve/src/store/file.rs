//! The state file. It contains calls by name, streams by number, and the identity of the process that wrote it.
//!
//! Written data survives the process, even after `kill -9`, because it is in the kernel. The file is not synced. Syncing would
//! wear out the disk, and calls do not survive a power cut anyway. If the file is damaged, the next start renames it and begins
//! a new one, because new calls matter more than the saved ones.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{BackendError, Builder, Database, ReadableTable, StorageBackend, TableDefinition};
use serde::{Deserialize, Serialize};
use threadbare_control::calls::{CallId, StreamId};
use threadbare_control::saved::Format;

use super::write_queue::{Batch, Key};
use threadbare_process::system::random_number;

const CALLS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("calls");
const STREAMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("streams");
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// Key of the [`Identity`] in `ABOUT`.
const IDENTITY: &str = "identity";
const IDENTITY_FORMAT: Format = Format {
    version: 1,
    positional: None,
};
/// Key in `ABOUT` that is present if the process has stopped in order, and has sent nothing after the states in the file.
const STOPPED: &str = "stopped";

/// Values that the parties and the proxy know. They must therefore stay the same after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The process's identity for `loop protect` in descriptions.
    pub(crate) instance: u64,
    /// The base of the CNAME in RTCP. An SSRC with another CNAME is another source (RFC 3550, section 8.2).
    pub(crate) cname: u64,
}

impl Identity {
    pub(crate) fn new() -> Identity {
        Identity {
            instance: random_number(),
            cname: random_number(),
        }
    }

    /// Reads the identity, also in the form of builds before release 0.3.0, which has no version. Release 0.4.0 will not read
    /// that form.
    fn read(bytes: &[u8]) -> Option<Identity> {
        let read = IDENTITY_FORMAT.read(bytes);
        read.ok().or_else(|| postcard::from_bytes(bytes).ok())
    }
}

/// How the previous process ended, and what this means for its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It stopped in order, or there was none. The states of streams include all packets that were sent.
    Stopped,
    /// It died, and may have sent packets after it saved the states of streams.
    Died,
}

/// The contents of the file.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) identity: Identity,
    pub(crate) before: Before,
    pub(crate) calls: Vec<(CallId, Vec<u8>)>,
    pub(crate) streams: HashMap<StreamId, Vec<u8>>,
}

impl Saved {
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        let calls = self.calls.iter().map(|(id, _)| Key::Call(id.clone()));
        calls.chain(self.streams.keys().map(|id| Key::Stream(*id)))
    }
}

/// The reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("cannot open --state {}: {error}", .path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("cannot use --state {}: another process uses the file", .path.display())]
    InUse { path: PathBuf },
    #[error("cannot use --state {}: the file is damaged, or not a state file of threadbare: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
}

impl FileError {
    pub(super) fn open(path: &Path, error: io::Error) -> FileError {
        let path = path.to_owned();
        FileError::Open { path, error }
    }

    fn of_database(path: &Path, error: redb::Error) -> FileError {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        let is_of_content = |error: &io::Error| matches!(error.kind(), InvalidData | UnexpectedEof);
        let path = path.to_owned();
        match error {
            redb::Error::DatabaseAlreadyOpen => FileError::InUse { path },
            redb::Error::Io(error) if !is_of_content(&error) => FileError::Open { path, error },
            other => FileError::Damaged {
                path,
                reason: other.to_string(),
            },
        }
    }

    /// Returns advice for the operator.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            FileError::Open { .. } => {
                "the folder must exist and be writable; or use --no-state, with which calls end with the process"
            }
            FileError::InUse { .. } => "give each process its own file",
            FileError::Damaged { .. } => {
                "to start without the calls in the file, rename the file, or use another file"
            }
        }
    }
}

/// The state file.
#[derive(Debug)]
pub(super) struct StateFile {
    database: Option<Database>,
    path: PathBuf,
}

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Write(#[from] redb::Error),
    #[error(transparent)]
    Open(#[from] FileError),
}

impl StateFile {
    /// Opens the file, reads everything, and records in it that a process is running. A damaged file is renamed.
    pub(super) fn open(path: &Path) -> Result<(StateFile, Saved), FileError> {
        let (database, saved) = match read(path) {
            Err(FileError::Damaged { reason, .. }) => {
                let aside = path.with_added_extension("damaged");
                std::fs::rename(path, &aside).map_err(|error| FileError::open(path, error))?;
                let (file, aside) = (path.display(), aside.display());
                tracing::error!(%file, %aside, reason, "the state file is damaged: it was renamed, and its calls are lost");
                read(path)?
            }
            read => read?,
        };
        let file = StateFile {
            database: Some(database),
            path: path.to_owned(),
        };
        Ok((file, saved))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a batch completely or not at all.
    pub(super) fn write(&mut self, batch: &Batch) -> Result<(), WriteError> {
        // After a failed write, the database is unusable, and must be opened again.
        let database = match self.database.take() {
            Some(database) => database,
            None => open(&self.path)?,
        };
        write(&database, batch)?;
        self.database = Some(database);
        Ok(())
    }
}

/// Opens the file, reads everything, and records that a process is running.
fn read(path: &Path) -> Result<(Database, Saved), FileError> {
    let database = open(path)?;
    let saved = begin(&database);
    let saved = saved.map_err(|error| FileError::of_database(path, error))?;
    Ok((database, saved))
}

fn write(database: &Database, batch: &Batch) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut calls = transaction.open_table(CALLS)?;
        let mut streams = transaction.open_table(STREAMS)?;
        for (key, state) in &batch.changes {
            match (key, state.as_deref()) {
                (Key::Call(id), Some(state)) => calls.insert(&*id.0, state).map(drop)?,
                (Key::Call(id), None) => calls.remove(&*id.0).map(drop)?,
                (Key::Stream(id), Some(state)) => streams.insert(id.0, state).map(drop)?,
                (Key::Stream(id), None) => streams.remove(id.0).map(drop)?,
            }
        }
        if batch.is_last {
            let mut about = transaction.open_table(ABOUT)?;
            about.insert(STOPPED, &[][..])?;
        }
    }
    transaction.commit()?;
    Ok(())
}

fn open(path: &Path) -> Result<Database, FileError> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    let file = file.map_err(|error| FileError::open(path, error))?;
    let backend = FileBackend::new(
        file.try_clone()
            .map_err(|error| FileError::open(path, error))?,
    );
    let backend = backend.map_err(|error| FileError::of_database(path, error.into()))?;
    let opened = Builder::new()
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true)
        .create_with_backend(KernelOnly(backend));
    let database = opened.map_err(|error| FileError::of_database(path, error.into()))?;
    // The file contains keys, and may have been created with other permissions.
    let private = Permissions::from_mode(0o600);
    let made = file.set_permissions(private);
    made.map_err(|error| FileError::open(path, error))?;
    Ok(database)
}

/// Reads everything, and records that a process is running. Call this before any packet is sent. If this process dies, the next one must
/// know that packets may have been sent after the states, because no number may be used twice with one key.
fn begin(database: &Database) -> Result<Saved, redb::Error> {
    let transaction = database.begin_write()?;
    let saved = {
        let mut about = transaction.open_table(ABOUT)?;
        let known = |key: &str| -> Result<Option<Vec<u8>>, redb::Error> {
            Ok(about.get(key)?.map(|value| value.value().to_vec()))
        };
        let identity = known(IDENTITY)?;
        let before = if identity.is_none() || known(STOPPED)?.is_some() {
            Before::Stopped
        } else {
            Before::Died
        };
        let identity = identity.and_then(|bytes| Identity::read(&bytes));
        let identity = identity.unwrap_or_else(Identity::new);
        let bytes = IDENTITY_FORMAT.write(&identity);
        about.insert(IDENTITY, &*bytes)?;
        about.remove(STOPPED)?;
        let calls = transaction.open_table(CALLS)?;
        let streams = transaction.open_table(STREAMS)?;
        let mut saved = Saved {
            identity,
            before,
            calls: Vec::new(),
            streams: HashMap::new(),
        };
        for one in calls.iter()? {
            let (id, state) = one?;
            saved
                .calls
                .push((CallId::new(id.value()), state.value().to_vec()));
        }
        for one in streams.iter()? {
            let (id, state) = one?;
            saved
                .streams
                .insert(StreamId(id.value()), state.value().to_vec());
        }
        saved
    };
    transaction.commit()?;
    Ok(saved)
}

/// A file that is never synced. The kernel writes it to the disk in its own time.
#[derive(Debug)]
struct KernelOnly(FileBackend);

/// A bound of a locked range.
type At = Bound<u64>;

impl StorageBackend for KernelOnly {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: At, end: At) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: At, end: At) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: At, end: At) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: At, end: At) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: At, end: At) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: At, end: At) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}

/// Size of the database's cache. It has room for the states of some thousand calls.
const CACHE_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_with_and_without_version() {
        let identity = Identity {
            instance: 300,
            cname: 5,
        };
        let bytes = IDENTITY_FORMAT.write(&identity);
        assert_eq!(Identity::read(&bytes), Some(identity));
        // Earlier builds wrote both numbers as varints, in groups of 7 bits with the lowest first.
        assert_eq!(Identity::read(&[0xac, 0x02, 0x05]), Some(identity));
        assert_eq!(Identity::read(&[0xac]), None);
    }
}
