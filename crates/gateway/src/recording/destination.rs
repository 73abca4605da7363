//! The name that a file gets when it is whole.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use threadbare_files::{Disk, Failure};

/// What is done with a finished file.
pub(super) type Keeping = Pin<Box<dyn Future<Output = Result<PathBuf, Failure>> + Send>>;

/// Gives the file `part`, which is whole, the name `wanted`, or `other` if somebody's file has that. The name that it has now.
pub(super) async fn keep(
    disk: &Disk,
    part: PathBuf,
    wanted: PathBuf,
    other: PathBuf,
) -> Result<PathBuf, Failure> {
    let name = match disk.stat(&wanted).await {
        Ok(_) => other,
        Err(_) => wanted,
    };
    disk.rename(part, &name).await?;
    Ok(name)
}

/// Beside a recording.
pub(super) fn metadata_path(path: &Path) -> PathBuf {
    path.with_extension("txt")
}
