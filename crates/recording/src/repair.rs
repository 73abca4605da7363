//! Repairs and renames files of a previous process that was killed. These functions block, and they run before the recorder starts.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::container::Container;
use super::index::{Entry, Line, RecordingState, read_lines};
use threadbare_config::Permissions;

/// Returns the path of a folder's journal.
pub(super) fn journal_path(root: &Path) -> PathBuf {
    root.join(".threadbare-recordings.jsonl")
}

/// Returns the path of a new journal, which then replaces the old one.
pub(super) fn new_journal_path(root: &Path) -> PathBuf {
    root.join(".threadbare-recordings.new")
}

/// Reads a folder's journal, repairs unfinished files, and rewrites the journal. Returns all entries, and the repaired ones.
///
/// # Errors
/// Fails if the folder cannot be read or written.
pub(super) fn open(root: &Path) -> io::Result<(BTreeMap<String, Entry>, Vec<Entry>)> {
    let path = journal_path(root);
    let (mut entries, odd) = match File::open(&path) {
        Ok(file) => {
            let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
            read_lines(lines.map(|line| String::from_utf8_lossy(&line).into_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
        Err(error) => return Err(error),
    };
    if odd > 0 {
        tracing::warn!(path = %path.display(), lines = odd, "skipped unreadable lines of the journal");
    }
    let is_open = |entry: &&Entry| entry.state == RecordingState::Running;
    let open: Vec<Entry> = entries.values().filter(is_open).cloned().collect();
    let mut repaired = Vec::new();
    for mut entry in open {
        let id = entry.id.clone();
        match repair(root, &mut entry) {
            Ok(true) => {
                entries.insert(id, entry.clone());
                repaired.push(entry);
            }
            Ok(false) => drop(entries.remove(&id)),
            Err(error) => {
                let path = root.join(entry.part_path());
                tracing::error!(path = %path.display(), %error, "cannot repair a recording");
                entries.remove(&id);
            }
        }
    }
    let new = new_journal_path(root);
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    let permissions = Permissions::default().bits();
    let mut file = options.mode(permissions).open(&new)?;
    for entry in entries.values() {
        file.write_all(&Line::Ended(entry.clone()).to_bytes())?;
    }
    std::fs::rename(new, path)?;
    Ok((entries, repaired))
}

/// Creates a folder for recordings, and its parents. Other users cannot see the file names in it, which may contain Call-IDs.
pub(super) fn make_root(root: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(root)
}

/// Repairs a file. Returns `false` if the file is missing or empty.
fn repair(root: &Path, entry: &mut Entry) -> io::Result<bool> {
    let part = root.join(entry.part_path());
    let file = match OpenOptions::new().read(true).write(true).open(&part) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // If the process was killed between the renaming and its report, the file already has its final name.
            let mut names = [entry.other_path(), entry.path.clone()].into_iter();
            let Some(name) = names.find(|name| root.join(name).is_file()) else {
                return Ok(false);
            };
            entry.bytes = std::fs::metadata(root.join(&name))?.len();
            entry.path = name;
            entry.state = RecordingState::Recovered;
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    let is_empty = make_whole(&file, entry)?;
    if is_empty {
        std::fs::remove_file(&part)?;
        return Ok(false);
    }
    if root.join(&entry.path).exists() {
        entry.path = entry.other_path();
    }
    std::fs::rename(&part, root.join(&entry.path))?;
    Ok(true)
}

/// Cuts off the incomplete end of a file, and writes the matching header. Returns `true` if no audio is left.
fn make_whole(file: &File, entry: &mut Entry) -> io::Result<bool> {
    let tracks = entry.tracks;
    let mut container = Container::new(entry.format, entry.sound(), tracks, entry.notes());
    let head_bytes = container.head(false).len() as u64;
    let length = file.metadata()?.len().saturating_sub(head_bytes);
    // A part that cannot be read counts as incomplete.
    let peek = |at: u64| {
        let mut room = [0; 16];
        let mut filled = 0;
        while let Ok(more @ 1..) =
            file.read_at(&mut room[filled..], head_bytes + at + filled as u64)
        {
            filled += more;
        }
        room
    };
    container.take_over(length, &peek);
    file.set_len(head_bytes + container.bytes())?;
    file.write_all_at(&container.head(true), 0)?;
    let end = container.end();
    file.write_all_at(end, head_bytes + container.bytes())?;
    entry.duration_ms = container.duration_ms();
    entry.bytes = head_bytes + container.bytes() + end.len() as u64;
    entry.state = RecordingState::Recovered;
    Ok(container.bytes() == 0)
}

#[cfg(test)]
mod tests {
    use super::super::container::tests::peeks;
    use super::super::index::tests::entry;
    use super::*;
    use threadbare_config::RecordingFormat;

    /// A process may be killed after any byte that it has written.
    #[test]
    fn a_file_that_is_cut_off_anywhere_is_repaired() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for format in RecordingFormat::ALL {
            let mut one = entry("1", "x/a");
            one.format = format;
            one.path = PathBuf::from(format!("a.{}", format.ending()));
            let mut container = Container::new(format, one.sound(), 2, one.notes());
            let mut bytes = container.head(false);
            let head_bytes = bytes.len();
            let from = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| (ip, 5004).into());
            for _ in 0..3 {
                match format {
                    RecordingFormat::Pcap => container.add_packet(1, from, &[1; 40], &mut bytes),
                    _ => container.add(&[1; 160], &mut bytes),
                }
            }
            for cut in head_bytes..=bytes.len() {
                let part = root.join(one.part_path());
                std::fs::write(&part, &bytes[..cut]).expect("written");
                std::fs::write(journal_path(root), Line::Begun(one.clone()).to_bytes())
                    .expect("written");
                let (entries, repaired) = open(root).expect("it is a folder");
                assert!(!part.exists());
                let path = root.join(&one.path);
                let Some(found) = repaired.first() else {
                    assert!(!path.exists() && entries.is_empty(), "{format:?} {cut}");
                    continue;
                };
                assert_eq!(found.state, RecordingState::Recovered);
                let whole = std::fs::read(&path).expect("it has its name");
                assert_eq!(whole.len() as u64, found.bytes);
                let mut again = Container::new(format, one.sound(), 2, one.notes());
                let body = &whole[head_bytes..];
                again.take_over(body.len() as u64, &peeks(body));
                assert_eq!(again.bytes(), body.len() as u64, "{format:?} {cut}");
                assert_eq!(whole[..head_bytes], again.head(true)[..]);
                // At most one piece is lost.
                assert!(cut - whole.len() < 700, "{format:?} {cut}");
                std::fs::remove_file(path).expect("it is there");
                // The journal has the same entries.
                let (again, repaired) = open(root).expect("it is a folder");
                assert_eq!((again, repaired), (entries, Vec::new()));
            }
        }
    }
}
