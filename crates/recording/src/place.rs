//! The location of a recording, which is a file on the disk or an object in a store. A recording in either location can be read in parts,
//! and deleted.

use std::path::PathBuf;

use bytes::Bytes;
use threadbare_files::{Access, Disk, Failure, File, Mode, Options, StartError};
use threadbare_s3::{Download, Error, Store, Timeouts};

/// The location of a recording.
#[derive(Debug, Clone)]
pub struct Place {
    /// Path of the file. If the file is not there, the store has it.
    pub(super) path: PathBuf,
    /// Whether the store is known to have the file.
    pub(super) is_stored: bool,
    /// The object in the store. `None`: the file is not uploaded.
    pub(super) object: Option<StoredObject>,
}

/// An object in a store.
#[derive(Debug, Clone)]
pub(super) struct StoredObject {
    pub(super) store: Store,
    pub(super) key: String,
}

/// The reason why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is missing.
    #[error("the file of the recording is missing")]
    Missing,
    /// The disk cannot read the file.
    #[error("cannot read the file of the recording: {0}")]
    Disk(#[from] Failure),
    /// The file service does not run.
    #[error(transparent)]
    Service(#[from] StartError),
    /// The store does not return the file.
    #[error("cannot read the recording from the object store: {0}")]
    Store(#[from] Error),
    /// The file has become shorter since it was opened.
    #[error("the file of the recording has become shorter while it was read")]
    Short,
}

/// An open recording.
#[derive(Debug)]
pub struct OpenRecording {
    /// Total size of the file.
    pub bytes: u64,
    from: From,
}

#[derive(Debug)]
enum From {
    File(File),
    Object(StoredObject),
}

/// A part of a recording that is read piece by piece. Each piece is requested only after the caller has taken the previous one.
#[derive(Debug)]
pub struct Pieces {
    from: From,
    /// The download. `None`: it was not requested yet.
    download: Option<Download>,
    first: u64,
    /// Position after the last byte.
    end: u64,
}

impl Place {
    /// Returns the file name for clients.
    #[must_use]
    pub fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Opens the recording.
    ///
    /// # Errors
    /// Fails if the file is missing, or cannot be read.
    pub async fn open(&self) -> Result<OpenRecording, ReadError> {
        if !self.is_stored {
            match self.open_file().await {
                // In this case the store is tried, because the file may just have moved there.
                Err(ReadError::Missing) if self.object.is_some() => {}
                opened => return opened,
            }
        }
        let object = self.object.clone().ok_or(ReadError::Missing)?;
        let head = object.store.head(&object.key, Timeouts::default()).await?;
        let head = head.ok_or(ReadError::Missing)?;
        let no_length =
            || Error::Answer("the store returned an object without a length".to_owned());
        Ok(OpenRecording {
            bytes: head.bytes.ok_or_else(no_length)?,
            from: From::Object(object),
        })
    }

    async fn open_file(&self) -> Result<OpenRecording, ReadError> {
        let disk = Disk::shared(Mode::Auto)?;
        let file = disk.open(&self.path, Options::new(Access::Read));
        match file.opened().await {
            Ok(stat) => Ok(OpenRecording {
                bytes: stat.bytes,
                from: From::File(file),
            }),
            Err(error) if error.errno() == rustix::io::Errno::NOENT.raw_os_error() => {
                Err(ReadError::Missing)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl StoredObject {
    /// Deletes the file. A missing file counts as deleted.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        self.store.delete(&self.key, Timeouts::default()).await
    }
}

impl OpenRecording {
    /// Returns the bytes from `first` up to, but not including, `end`.
    #[must_use]
    pub fn pieces(self, first: u64, end: u64) -> Pieces {
        Pieces {
            from: self.from,
            download: None,
            first,
            end,
        }
    }
}

impl Pieces {
    /// Returns the next piece. Returns `None` at the end of the part and after an error.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        if self.first >= self.end {
            return Ok(None);
        }
        let read = self.read().await;
        match &read {
            Ok(bytes) if !bytes.is_empty() => self.first += bytes.len() as u64,
            _ => self.first = self.end,
        }
        match read {
            Ok(bytes) if bytes.is_empty() => Err(ReadError::Short),
            read => read.map(Some),
        }
    }

    async fn read(&mut self) -> Result<Bytes, ReadError> {
        let left = self.end - self.first;
        match &self.from {
            From::File(file) => {
                let count = left.min(PIECE_BYTES) as usize;
                Ok(Bytes::from(file.read(self.first, count).await?))
            }
            From::Object(object) => {
                let download = match &mut self.download {
                    Some(download) => download,
                    none => {
                        let range = format!("bytes={}-{}", self.first, self.end - 1);
                        let store = &object.store;
                        let asked = store.get(&object.key, Some(&range), Timeouts::default());
                        none.insert(asked.await?)
                    }
                };
                let mut bytes = download.chunk().await?.unwrap_or_default();
                // The store may return more bytes than were requested, so the rest is left out.
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                Ok(bytes)
            }
        }
    }
}

/// Number of bytes that are read from a file at a time.
const PIECE_BYTES: u64 = 128 << 10;
