//! A folder for data that the store does not have yet.
//!
//! ```text
//!   FOLDER/run-PID-N/lock         held by the process while it runs
//!                    /ID.json       the journal of an upload
//!                    /ID.00007      a part that is complete
//!                    /ID.00008.part the part being filled
//! ```
//!
//! A process that opens the folder resumes the uploads in the runs of processes that have ended.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::task::Waker;
use std::time::{SystemTime, UNIX_EPOCH};

use threadbare_files::{Budget, Disk, Mode};

use crate::core::PARTS_MAX;
use crate::error::Error;
use crate::journal::Journal;
use crate::lock;

const LOCK: &str = "lock";
const RUN: &str = "run-";
const JOURNAL: &str = ".json";
/// Extension of a part that is being filled.
const PART: &str = ".part";
/// Maximum size of all spooled data of the process that waits for the disk.
const DISK_BYTES_MAX: usize = 32 << 20;
/// Maximum number of runs: a folder with more is not a spool.
const RUNS_MAX: usize = 10_000;

/// A spool folder. Clones refer to the same spool.
#[derive(Clone)]
pub struct Spool(Arc<Folder>);

struct Folder {
    root: PathBuf,
    run: PathBuf,
    /// The lock of the run. It ends with the process, however the process ends.
    lock: File,
    disk: Disk,
    budget: Budget,
    state: Mutex<Room>,
}

struct Room {
    max: u64,
    used: u64,
    next: u64,
    waiting: Vec<Waker>,
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Spool").field(&self.0.root).finish()
    }
}

/// A run of a process that has ended. It is removed after its last upload has ended.
struct LeftRun {
    path: PathBuf,
    lock: Option<File>,
}

impl Drop for LeftRun {
    fn drop(&mut self) {
        remove_run(&self.path, self.lock.take());
    }
}

/// Removes the folder if it is empty. The lock file is removed last, so no other process can lock the folder before that.
fn remove_run(path: &Path, lock: Option<File>) {
    let is_empty = fs::read_dir(path)
        .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == LOCK));
    if is_empty {
        let _ = fs::remove_file(path.join(LOCK));
        let _ = fs::remove_dir(path);
    }
    drop(lock);
}

/// An upload that another process has left.
pub struct Left {
    run: Arc<LeftRun>,
    pub(crate) path: PathBuf,
    pub(crate) journal: Journal,
    /// Number, file and size in bytes of each part.
    pub(crate) parts: Vec<(u16, PathBuf, u64)>,
}

impl std::fmt::Debug for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Left")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Left {
    /// Returns the key of the object.
    pub fn key(&self) -> &str {
        &self.journal.object.key
    }

    /// Returns the number of bytes in the spool.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, _, bytes)| bytes).sum()
    }

    pub(crate) fn keep_run(&self) -> Box<dyn std::any::Any + Send + Sync> {
        Box::new(self.run.clone())
    }
}

impl Spool {
    /// Returns the process's spool in this folder. The first user determines the maximum, `bytes_max`, and gets the uploads that
    /// other processes have left. This blocks on the disk.
    ///
    /// # Errors
    /// Fails if the folder cannot be used.
    pub fn open(root: &Path, bytes_max: u64) -> Result<(Spool, Vec<Left>), Error> {
        static ALL: LazyLock<Mutex<HashMap<PathBuf, Weak<Folder>>>> = LazyLock::new(Mutex::default);
        let failed = |error: io::Error| {
            Error::Setting(format!(
                "spool={}: {error}; expected a folder to write to",
                root.display()
            ))
        };
        fs::create_dir_all(root).map_err(failed)?;
        let root_path = fs::canonicalize(root).map_err(failed)?;
        let mut all = lock(&ALL);
        if let Some(known) = all.get(&root_path).and_then(Weak::upgrade) {
            return Ok((Spool(known), Vec::new()));
        }
        let (run, lock_file) = make_run(&root_path).map_err(failed)?;
        let left = left_in(&root_path, &run);
        let disk =
            Disk::shared(Mode::Auto).map_err(|error| Error::Setting(format!("spool: {error}")))?;
        let used = left.iter().map(Left::bytes).sum();
        let folder = Arc::new(Folder {
            root: root_path.clone(),
            run,
            lock: lock_file,
            disk,
            budget: Budget::named("threadbare-s3 spool", DISK_BYTES_MAX),
            state: Mutex::new(Room {
                max: bytes_max,
                used,
                next: 0,
                waiting: Vec::new(),
            }),
        });
        all.retain(|_, known| known.strong_count() > 0);
        all.insert(root_path, Arc::downgrade(&folder));
        Ok((Spool(folder), left))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0.root
    }

    /// Returns the maximum size in bytes.
    pub fn max(&self) -> u64 {
        lock(&self.0.state).max
    }

    /// Returns the present size in bytes.
    pub fn used(&self) -> u64 {
        lock(&self.0.state).used
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.0.disk
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Returns the path of a new upload's journal.
    pub(crate) fn next_journal(&self) -> PathBuf {
        let mut room = lock(&self.0.state);
        room.next += 1;
        self.0.run.join(format!("u{:08}{JOURNAL}", room.next))
    }

    pub(crate) fn share(&self) -> Share {
        Share(self.clone())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = self.lock.unlock();
        remove_run(&self.run, None);
    }
}

/// An upload's share of a spool.
pub(crate) struct Share(Spool);

impl Share {
    pub(crate) fn spool(&self) -> &Spool {
        &self.0
    }

    /// Returns the number of bytes that may be written, at most `bytes`. If it is 0, the waker is called when there may be room.
    pub(crate) fn take(&self, bytes: u64, waker: &Waker) -> u64 {
        let mut room = lock(&self.0.0.state);
        let taken = bytes.min(room.max.saturating_sub(room.used));
        room.used += taken;
        if taken == 0 && !room.waiting.iter().any(|known| known.will_wake(waker)) {
            room.waiting.push(waker.clone());
        }
        taken
    }

    #[must_use]
    pub(crate) fn release(&self, bytes: u64) -> Vec<Waker> {
        let mut room = lock(&self.0.0.state);
        room.used = room.used.saturating_sub(bytes);
        match bytes {
            0 => Vec::new(),
            _ => std::mem::take(&mut room.waiting),
        }
    }
}

/// Returns the path of a part's file.
pub(crate) fn part_path(journal: &Path, number: u16, is_complete: bool) -> PathBuf {
    let end = if is_complete { "" } else { PART };
    journal.with_extension(format!("{number:05}{end}"))
}

/// Creates a run. Its lock is held from the start, because otherwise other processes would think that the run was left behind.
fn make_run(root: &Path) -> io::Result<(PathBuf, File)> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let name = format!("{}-{}", std::process::id(), since.as_nanos());
    let unnamed = root.join(format!(".{LOCK}-{name}"));
    let file = File::create_new(&unnamed)?;
    file.lock()?;
    let run = root.join(format!("{RUN}{name}"));
    // Other users of the machine must not read the stored data.
    DirBuilder::new().mode(0o700).create(&run)?;
    fs::rename(unnamed, run.join(LOCK))?;
    Ok((run, file))
}

fn left_in(root: &Path, own: &Path) -> Vec<Left> {
    let Ok(entries) = fs::read_dir(root) else {
        return Vec::new();
    };
    let is_run = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        path != own && name.is_some_and(|name| name.starts_with(RUN))
    };
    let runs = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_run)
        .take(RUNS_MAX);
    runs.flat_map(|run| left_in_run(&run)).collect()
}

fn left_in_run(run: &Path) -> Vec<Left> {
    // A run without a lock file is still being created.
    let Ok(file) = File::open(run.join(LOCK)) else {
        return Vec::new();
    };
    if file.try_lock().is_err() {
        return Vec::new();
    }
    let shared = Arc::new(LeftRun {
        path: run.into(),
        lock: Some(file),
    });
    let Ok(entries) = fs::read_dir(run) else {
        return Vec::new();
    };
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let is_journal = |path: &&PathBuf| path.extension().is_some_and(|end| end == &JOURNAL[1..]);
    let mut left = Vec::new();
    for path in paths.iter().filter(is_journal) {
        match Journal::read(path) {
            Ok(journal) => {
                let parts = parts_of(path, &journal);
                if parts.is_empty() && journal.done.is_empty() && journal.upload.is_none() {
                    // Either no data had arrived, or none had reached the disk.
                    let _ = fs::remove_file(path);
                    continue;
                }
                left.push(Left {
                    run: shared.clone(),
                    path: path.clone(),
                    journal,
                    parts,
                });
            }
            // The journal stays, so that an operator can inspect it.
            Err(error) => tracing::warn!(%error, "cannot read a journal in the spool"),
        }
    }
    left
}

/// Returns the files that the store does not have: complete parts, and the part that was being filled. If a number has no file,
/// its part was dropped. Parts after an incomplete part are not returned, because data is missing before them.
fn parts_of(path: &Path, journal: &Journal) -> Vec<(u16, PathBuf, u64)> {
    let size = |path: &Path| fs::metadata(path).ok().map(|known| known.len());
    let done: &BTreeMap<_, _> = &journal.done;
    let mut parts = Vec::new();
    for number in 1..=PARTS_MAX {
        let complete = part_path(path, number, true);
        if done.contains_key(&number) {
            // The journal says that the store has this part, so the file is not needed.
            let _ = fs::remove_file(complete);
        } else if let Some(bytes) = size(&complete) {
            parts.push((number, complete, bytes));
        } else {
            let partial = part_path(path, number, false);
            if let Some(bytes) = size(&partial) {
                parts.extend((bytes > 0).then_some((number, partial, bytes)));
                break;
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{DonePart, OnError};
    use crate::object::Object;
    use crate::place::Endpoint;

    #[test]
    fn files_of_a_dead_process_are_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run-1-1");
        fs::create_dir(&run).unwrap();
        fs::write(run.join(LOCK), "").unwrap();
        let endpoint = Endpoint::new(Some("http://127.0.0.1:1"), "eu", "rec", true).unwrap();
        let mut journal = Journal::new(&endpoint, &Object::new("k"), 5 << 20, OnError::Abort);
        journal.done.insert(
            1,
            DonePart {
                etag: "e".into(),
                bytes: 1,
            },
        );
        let path = run.join("u1.json");
        fs::write(&path, journal.to_bytes()).unwrap();
        for (number, is_complete, text) in [
            (1, true, "done"),
            (2, true, "two"),
            (3, false, "th"),
            (5, true, "gap"),
        ] {
            fs::write(part_path(&path, number, is_complete), text).unwrap();
        }
        let (spool, left) = Spool::open(folder.path(), 100).unwrap();
        assert_eq!(left.len(), 1);
        let found: Vec<(u16, u64)> = left[0]
            .parts
            .iter()
            .map(|(number, _, bytes)| (*number, *bytes))
            .collect();
        assert_eq!(found, [(2, 3), (3, 2)]);
        assert_eq!((spool.used(), left[0].key()), (5, "k"));
        assert!(!part_path(&path, 1, true).exists(), "the store has it");
        let (again, none) = Spool::open(folder.path(), 7).unwrap();
        assert_eq!(
            (again.max(), none.len()),
            (100, 0),
            "the first user decides"
        );
    }

    #[test]
    fn files_of_a_living_process_are_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let (run, _lock) = make_run(folder.path()).unwrap();
        fs::write(run.join("u1.json"), "{}").unwrap();
        let (spool, left) = Spool::open(folder.path(), 100).unwrap();
        assert!(left.is_empty());
        drop(spool);
        assert!(run.exists());
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "an empty run is removed"
        );
    }

    #[test]
    fn the_spool_stays_within_its_maximum() {
        let folder = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::open(folder.path(), 100).unwrap();
        let (one, two) = (spool.share(), spool.share());
        assert_eq!(one.take(80, Waker::noop()), 80);
        assert_eq!(two.take(80, Waker::noop()), 20);
        assert_eq!(two.take(1, Waker::noop()), 0);
        assert_eq!(one.release(50).len(), 1, "the waiting task is woken");
        assert_eq!(two.take(80, Waker::noop()), 50);
    }
}
