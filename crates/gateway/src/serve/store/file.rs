//! The file: calls by their names, streams by their numbers, and who wrote it.
//!
//! It outlives the process, `kill -9` included: what was written is in the kernel's hands. It is not forced onto the disk, which would wear that out
//! for calls that no power cut survives anyway. A file that a power cut has torn is found out at the next start, and set aside.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use redb::backends::FileBackend;
use redb::{BackendError, Builder, Database, ReadableTable, StorageBackend, TableDefinition};
use serde::{Deserialize, Serialize};
use threadbare_control::calls::{CallId, StreamId};

use super::shelf::{Batch, Key};
use crate::system::{random_number, unix_at_zero_ns};

const CALLS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("calls");
const STREAMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("streams");
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// In `ABOUT`.
const IDENTITY: &str = "identity";
/// In `ABOUT`: nothing has left after what is in the file.
const STOPPED: &str = "stopped";

/// What stays the same for the parties and the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::serve) struct Identity {
    /// In descriptions: `loop protect`.
    pub(in crate::serve) instance: u64,
    /// In RTCP. An SSRC with another one is another source (RFC 3550, section 8.2).
    pub(in crate::serve) cname: u64,
}

impl Identity {
    pub(in crate::serve) fn new() -> Identity {
        Identity {
            instance: random_number(),
            cname: random_number(),
        }
    }
}

/// How the process before this one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum Before {
    /// In order, or there was none: the states of streams say all that was sent.
    Stopped,
    /// It may have sent since.
    Died,
}

/// What is in the file.
#[derive(Debug)]
pub(in crate::serve) struct Saved {
    pub(in crate::serve) identity: Identity,
    pub(in crate::serve) before: Before,
    pub(in crate::serve) calls: Vec<(CallId, Vec<u8>)>,
    pub(in crate::serve) streams: HashMap<StreamId, Vec<u8>>,
}

impl Saved {
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        let calls = self.calls.iter().map(|(id, _)| Key::Call(id.clone()));
        calls.chain(self.streams.keys().map(|id| Key::Stream(*id)))
    }
}

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub(in crate::serve) enum FileError {
    #[error("--state {}: cannot be opened: {error}", .path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("--state {}: another process has it open", .path.display())]
    InUse { path: PathBuf },
    #[error("--state {}: damaged, or no file of threadbare: {reason}", .path.display())]
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

    /// What to do.
    pub(in crate::serve) fn help(&self) -> &'static str {
        match self {
            FileError::Open { .. } => {
                "the folder has to be there, and writable; or start with --no-state: calls end with the process, then"
            }
            FileError::InUse { .. } => "one process at a time; give each its own file",
            FileError::Damaged { .. } => {
                "move the file away to start without the calls in it, or give another name"
            }
        }
    }
}

/// Open, but for the time after a failure.
#[derive(Debug)]
pub(super) struct StateFile {
    database: Option<Database>,
    path: PathBuf,
}

/// Why something is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Write(#[from] redb::Error),
    #[error(transparent)]
    Open(#[from] FileError),
}

impl StateFile {
    /// Reads everything, and notes that there is a process again.
    pub(super) fn open(path: &Path) -> Result<(StateFile, Saved), FileError> {
        let database = match open(path) {
            Err(FileError::Damaged { reason, .. }) if is_of_other_boot(path) => {
                let aside = path.with_added_extension("damaged");
                std::fs::rename(path, &aside).map_err(|error| FileError::open(path, error))?;
                let aside = aside.display();
                tracing::warn!(%aside, reason, "the state of calls was damaged when the machine went down, and is set aside");
                open(path)?
            }
            opened => opened?,
        };
        let saved = begin(&database);
        let saved = saved.map_err(|error| FileError::of_database(path, error))?;
        let file = StateFile {
            database: Some(database),
            path: path.to_owned(),
        };
        Ok((file, saved))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All of it, or nothing.
    pub(super) fn write(&mut self, batch: &Batch) -> Result<(), WriteError> {
        // A database does nothing more after a failure of the file: it is opened again.
        let database = match self.database.take() {
            Some(database) => database,
            None => open(&self.path)?,
        };
        write(&database, batch)?;
        self.database = Some(database);
        Ok(())
    }
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
    // One that was made otherwise.
    let private = Permissions::from_mode(0o600);
    let made = file.set_permissions(private);
    made.map_err(|error| FileError::open(path, error))?;
    Ok(database)
}

/// Whether a power cut explains the damage. A file of something else stays where it is.
fn is_of_other_boot(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut head));
    let changed = std::fs::metadata(path).and_then(|data| data.modified());
    let boot = UNIX_EPOCH + Duration::from_nanos(unix_at_zero_ns());
    read.is_ok() && head == *MAGIC && changed.is_ok_and(|changed| changed < boot)
}

/// How a file of redb begins.
const MAGIC: &[u8; 4] = b"redb";

/// Reads everything, and notes that there is a process again: before that sends anything, as nothing may be sent twice under one key.
fn begin(database: &Database) -> Result<Saved, redb::Error> {
    let transaction = database.begin_write()?;
    let saved = {
        let mut about = transaction.open_table(ABOUT)?;
        let known = |key: &str| -> Result<Option<Vec<u8>>, redb::Error> {
            Ok(about.get(key)?.map(|value| value.value().to_vec()))
        };
        let identity = known(IDENTITY)?;
        let before = match identity.is_none() || known(STOPPED)?.is_some() {
            true => Before::Stopped,
            false => Before::Died,
        };
        let identity = identity.and_then(|bytes| postcard::from_bytes(&bytes).ok());
        let identity = identity.unwrap_or_else(Identity::new);
        let bytes = postcard::to_allocvec(&identity).unwrap_or_default();
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

/// Writes to the file, and leaves it to the kernel when that is on the disk.
#[derive(Debug)]
struct KernelOnly(FileBackend);

/// Of a bound of a lock.
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

/// The states of some thousand calls.
const CACHE_BYTES: usize = 16 << 20;
