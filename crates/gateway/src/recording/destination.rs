//! Where a file goes that is whole.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use threadbare_files::{Disk, Failure};

/// What is done with a finished file.
pub(super) type Keeping = Pin<Box<dyn Future<Output = Result<PathBuf, Failure>> + Send>>;

/// Takes files that are whole. A store that is not a folder takes them from there, and has the file removed when it has them.
pub(super) trait Destination: Send + Sync {
    /// Keeps the file `part` under the name `wanted`, or `other` if somebody's file has that. The name that it has now.
    fn keep(&self, disk: &Disk, part: PathBuf, wanted: PathBuf, other: PathBuf) -> Keeping;
}

/// The folder that files are written in: they get their names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Folder;

impl Destination for Folder {
    fn keep(&self, disk: &Disk, part: PathBuf, wanted: PathBuf, other: PathBuf) -> Keeping {
        let disk = disk.clone();
        Box::pin(async move {
            let name = match disk.stat(&wanted).await {
                Ok(_) => other,
                Err(_) => wanted,
            };
            disk.rename(part, &name).await?;
            Ok(name)
        })
    }
}

/// Beside a recording.
pub(super) fn metadata_path(path: &Path) -> PathBuf {
    path.with_extension("txt")
}
