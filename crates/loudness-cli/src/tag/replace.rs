//! Replaces a file with an edited copy.
//!
//! The copy is in the same folder. It is edited, flushed to the disk, and then renamed to the file's name. A rename is atomic,
//! so a crash leaves either the old file or the new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::path::Path;

/// Lets `edit` change a copy of the file. If `is_right` accepts the old and the new file, the copy replaces the file.
pub(super) fn replace(
    path: &Path,
    edit: impl FnOnce(&mut File) -> Result<(), String>,
    is_right: impl FnOnce(&mut File, &mut File) -> Result<bool, String>,
) -> Result<(), String> {
    let told = |error: io::Error| error.to_string();
    // If this is a link, replace the file to which it points.
    let path = path.canonicalize().map_err(told)?;
    // Open it for writing, although it is only read: without write permission, the file must not be replaced.
    let mut old = OpenOptions::new().read(true).write(true).open(&path);
    let old = old.as_mut().map_err(|error| error.to_string())?;
    let folder = path.parent().ok_or("the file is not in a folder")?;
    let copy = tempfile::Builder::new()
        .prefix(".threadbare-tag-")
        .tempfile_in(folder);
    let mut copy = copy.map_err(told)?;
    io::copy(old, copy.as_file_mut()).map_err(told)?;
    copy.as_file_mut().rewind().map_err(told)?;
    edit(copy.as_file_mut())?;
    old.rewind().map_err(told)?;
    copy.as_file_mut().rewind().map_err(told)?;
    if !is_right(old, copy.as_file_mut())? {
        return Err("the tags cannot be written without a change of the audio".to_owned());
    }
    keep_owner(old, copy.as_file()).map_err(told)?;
    copy.as_file().sync_all().map_err(told)?;
    copy.persist(&path).map_err(|error| told(error.error))?;
    // Errors are ignored, because either name on the disk belongs to a complete file.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Keeps owner and mode of the old file.
fn keep_owner(old: &File, new: &File) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let (was, is) = (old.metadata()?, new.metadata()?);
    if (was.uid(), was.gid()) != (is.uid(), is.gid()) {
        std::os::unix::fs::fchown(new, Some(was.uid()), Some(was.gid()))?;
    }
    new.set_permissions(was.permissions())
}
