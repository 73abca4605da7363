//! The journal of an upload that is not complete: a file, with which another process can continue the upload. It contains no
//! credentials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use threadbare_files::{Access, Data, Disk, Ending, Options};

use crate::core::{DonePart, OnError};
use crate::error::Error;
use crate::object::Object;
use crate::place::Endpoint;

/// Version of the format.
const VERSION: u32 = 1;
/// Maximum size. A journal with 10,000 parts takes less than two MiB.
const BYTES_MAX: u64 = 8 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Journal {
    version: u32,
    /// Base URL of the endpoint.
    base: String,
    region: String,
    bucket: String,
    pub(crate) object: Object,
    pub(crate) part_bytes: u64,
    pub(crate) on_error: OnError,
    /// Path of a whole file; `None` if the parts are separate files.
    pub(crate) file: Option<PathBuf>,
    pub(crate) upload: Option<String>,
    pub(crate) done: BTreeMap<u16, DonePart>,
}

impl Journal {
    pub(crate) fn new(
        endpoint: &Endpoint,
        object: &Object,
        part_bytes: u64,
        on_error: OnError,
    ) -> Self {
        Journal {
            version: VERSION,
            base: endpoint.base().into(),
            region: endpoint.region().into(),
            bucket: endpoint.bucket().into(),
            object: object.clone(),
            part_bytes,
            on_error,
            file: None,
            upload: None,
            done: BTreeMap::new(),
        }
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        Endpoint::of_base(&self.base, &self.region, &self.bucket)
    }

    /// Reads a journal. Blocks on the disk.
    pub(crate) fn read(path: &Path) -> Result<Journal, Error> {
        let wrong = |what: String| Error::File(format!("{}: {what}", path.display()));
        let size = std::fs::metadata(path)
            .map_err(|error| wrong(error.to_string()))?
            .len();
        if size > BYTES_MAX {
            return Err(wrong(format!(
                "the journal has {size} bytes; expected at most {BYTES_MAX}"
            )));
        }
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let journal: Journal =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if journal.version != VERSION {
            return Err(wrong(format!(
                "the journal has version {}; expected {VERSION}",
                journal.version
            )));
        }
        journal.endpoint()?;
        journal.object.check()?;
        Ok(journal)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Replaces the journal atomically, so that there is always a complete one.
pub(crate) async fn write(disk: &Disk, path: &Path, bytes: Vec<u8>) -> Result<(), Error> {
    let mut part = path.as_os_str().to_owned();
    part.push(".new");
    let mut options = Options::new(Access::Write);
    options.with_parents = true;
    let file = disk.open(PathBuf::from(part), options);
    let failed = |failure: threadbare_files::Failure| Error::File(failure.to_string());
    file.write(Data::Owned(Box::new(bytes)))
        .await
        .map_err(failed)?;
    let ending = Ending {
        sync: false,
        rename_to: Some(path.to_path_buf()),
    };
    file.close(ending).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        let endpoint = Endpoint::new(Some("http://127.0.0.1:1"), "eu", "rec", true).unwrap();
        let done = BTreeMap::from([(
            1,
            DonePart {
                etag: "\"a\"".into(),
                bytes: 5,
            },
        )]);
        Journal {
            done,
            upload: Some("u".into()),
            ..Journal::new(&endpoint, &Object::new("a/b"), 1, OnError::Abort)
        }
    }

    #[test]
    fn journals_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        std::fs::write(&path, journal().to_bytes()).unwrap();
        assert_eq!(Journal::read(&path), Ok(journal()));
    }

    #[test]
    fn damaged_journal_is_refused_without_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let text = String::from_utf8(journal().to_bytes()).unwrap();
        for (text, expected) in [
            ("{", "EOF"),
            (&text.replace("\"version\":1", "\"version\":9"), "version 9"),
            (
                &text.replace("http://", "ftp://"),
                "is not the URL of a bucket",
            ),
            (
                &text.replace("a/b", "../b"),
                "a part of the key must not be",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = Journal::read(&path).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
