//! Renames a complete file to its final name.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use threadbare_files::{Disk, Failure};

/// The operation that finishes a file.
pub(super) type Keeping = Pin<Box<dyn Future<Output = Result<PathBuf, Failure>> + Send>>;

/// Renames the complete file `part` to `wanted`, or to `other` if a file named `wanted` exists. Returns the new name.
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

/// Returns the path of a recording's metadata.
pub(super) fn metadata_path(path: &Path) -> PathBuf {
    path.with_extension("txt")
}
