//! Where a recording is: a file on the disk, or an object of a store. Both are read in parts, and deleted.

use std::path::PathBuf;

use bytes::Bytes;
use threadbare_files::{Access, Disk, Failure, File, Mode, Options, StartError};
use threadbare_s3::{Download, Error, Store, Timeouts};

/// See the module.
#[derive(Debug, Clone)]
pub struct Place {
    /// Of the file, unless the store has it.
    pub(super) path: PathBuf,
    /// The store is known to have it.
    pub(super) is_stored: bool,
    /// Of files that go to a store.
    pub(super) object: Option<StoredObject>,
}

/// An object of a store.
#[derive(Debug, Clone)]
pub(super) struct StoredObject {
    pub(super) store: Store,
    pub(super) key: String,
}

/// Why a recording is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not there.
    #[error("it is not there")]
    Missing,
    /// The disk does not give it.
    #[error("the file cannot be read: {0}")]
    Disk(#[from] Failure),
    /// There is no service that reads files.
    #[error(transparent)]
    Service(#[from] StartError),
    /// The store does not give it.
    #[error("the store does not give it: {0}")]
    Store(#[from] Error),
    /// It ends early.
    #[error("it has become shorter")]
    Short,
}

/// A recording that is read.
#[derive(Debug)]
pub struct Reading {
    /// Of all of it.
    pub bytes: u64,
    from: From,
}

#[derive(Debug)]
enum From {
    File(File),
    Object(StoredObject),
}

/// A part of a recording, piece by piece: a piece is asked for when who reads has taken the one before.
#[derive(Debug)]
pub struct Pieces {
    from: From,
    /// The request for it, once it was sent.
    download: Option<Download>,
    first: u64,
    /// Behind the last byte.
    end: u64,
}

impl Place {
    /// What a file is called that a client keeps.
    #[must_use]
    pub fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub async fn open(&self) -> Result<Reading, ReadError> {
        if !self.is_stored {
            match self.open_file().await {
                // The store may have it since just now.
                Err(ReadError::Missing) if self.object.is_some() => {}
                opened => return opened,
            }
        }
        let object = self.object.clone().ok_or(ReadError::Missing)?;
        let head = object.store.head(&object.key, Timeouts::default()).await?;
        let head = head.ok_or(ReadError::Missing)?;
        let no_length = || Error::Answer("an object without a length".to_owned());
        Ok(Reading {
            bytes: head.bytes.ok_or_else(no_length)?,
            from: From::Object(object),
        })
    }

    async fn open_file(&self) -> Result<Reading, ReadError> {
        let disk = Disk::shared(Mode::Auto)?;
        let file = disk.open(&self.path, Options::new(Access::Read));
        match file.opened().await {
            Ok(stat) => Ok(Reading {
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
    /// Deletes it. One that is not there is deleted.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        self.store.delete(&self.key, Timeouts::default()).await
    }
}

impl Reading {
    /// The bytes from `first` on, to the one before `end`.
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
    /// The next piece; `None`: that was all. Behind an error there is nothing more.
    ///
    /// # Errors
    /// It cannot be read any further.
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
                // A store that gives more than it was asked for.
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                Ok(bytes)
            }
        }
    }
}

/// Of a file, at a time.
const PIECE_BYTES: u64 = 128 << 10;
