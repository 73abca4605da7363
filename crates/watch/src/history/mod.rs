//! Stores the seconds of the last day of each stream on disk. Each stream has a file of fixed size.
//!
//! Each second, the observing thread queues the last minute of a sixtieth of the streams. It never waits. If the queue is full,
//! the thread tries again later, because the seconds stay in memory for ten minutes.

mod ring;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use self::ring::{Ring, SECONDS};
use super::second::Second;

/// Seconds of some streams, to be written together.
pub(super) type Batch = Vec<(Arc<str>, Vec<Second>)>;

/// The folder, and the thread that writes to it. Dropping it writes the queued seconds.
#[derive(Debug)]
pub(super) struct History {
    dir: PathBuf,
    queue: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl History {
    /// Opens a folder, which is created if needed.
    ///
    /// # Errors
    /// Fails if the folder cannot be created or written to, if another process uses it, or if threads run out.
    pub(super) fn open(dir: &Path) -> io::Result<History> {
        std::fs::create_dir_all(dir)?;
        let lock = File::create(dir.join("lock"))?;
        if lock.try_lock().is_err() {
            let reason = "another process uses the folder for its history";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
        }
        let (queue, batches) = sync_channel(BATCHES_MAX);
        let own = dir.to_owned();
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || {
                let _lock = lock;
                write(&own, &batches);
            })?;
        Ok(History {
            dir: dir.to_owned(),
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Returns the path of the folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Queues seconds without waiting. Returns `false` if the queue is full.
    pub(super) fn save(&self, batch: Batch) -> bool {
        let queue = self.queue.as_ref();
        queue.is_some_and(|queue| queue.try_send(batch).is_ok())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread 'history' has panicked");
        }
    }
}

/// Reads the seconds of a stream with `from_s <= time < until_s`, in order; at most a day.
///
/// # Errors
/// Fails if the stream's file cannot be read.
pub(super) fn read(dir: &Path, name: &str, from_s: u64, until_s: u64) -> io::Result<Vec<Second>> {
    match Ring::find(&path(dir, name), name)? {
        Some(ring) => ring.read(from_s, until_s),
        None => Ok(Vec::new()),
    }
}

fn write(dir: &Path, batches: &Receiver<Batch>) {
    let mut is_well = true;
    let mut tidied = None;
    while let Ok(batch) = batches.recv() {
        let is_due = |at: &Instant| at.elapsed() >= TIDY;
        if tidied.as_ref().is_none_or(is_due) {
            tidied = Some(Instant::now());
            tidy(dir, SystemTime::now());
        }
        // If the file of one stream fails, the others are still written.
        let failed = batch.iter().filter_map(|(name, seconds)| {
            let path = path(dir, name);
            let ring = Ring::open(&path, name);
            let error = ring.and_then(|ring| ring.write(seconds)).err()?;
            Some((path, error))
        });
        let first = failed.reduce(|first, _| first);
        match &first {
            None if !is_well => tracing::info!("writing the history works again"),
            Some((path, error)) if is_well => {
                let file = path.display();
                tracing::error!(%file, %error, "cannot write the history");
            }
            _ => {}
        }
        is_well = first.is_none();
    }
}

/// Removes the files of streams that were absent for a day.
fn tidy(dir: &Path, now: SystemTime) {
    let Ok(files) = std::fs::read_dir(dir) else {
        return;
    };
    for file in files.flatten() {
        let path = file.path();
        let is_ring = path.extension().is_some_and(|ending| ending == ENDING);
        let changed = file.metadata().and_then(|file| file.modified()).ok();
        let age = changed.and_then(|changed| now.duration_since(changed).ok());
        if is_ring && age.is_some_and(|age| age > DAY) {
            // If this fails, it is tried again later.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the path of a stream's file. It is unique, and people can recognise the stream's name in it.
fn path(dir: &Path, name: &str) -> PathBuf {
    let is_plain = |one: &char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_');
    let plain = name
        .chars()
        .map(|one| if is_plain(&one) { one } else { '_' });
    let plain: String = plain.take(PLAIN_MAX).collect();
    // Use FNV-1a, because the hash must be the same in later versions, and stream names are trusted.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    dir.join(format!("{plain}.{hash:016x}.{ENDING}"))
}

const ENDING: &str = "history";
/// Maximum number of characters of the stream's name in the file name.
const PLAIN_MAX: usize = 64;
/// Maximum number of queued batches: those of a minute, in case the disk stalls.
const BATCHES_MAX: usize = 64;
const DAY: Duration = Duration::from_secs(SECONDS as u64);
const TIDY: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_s: u64) -> Second {
        Second {
            unix_s,
            packets: 50,
            ..Second::default()
        }
    }

    #[test]
    fn any_stream_name_has_its_own_history() {
        let dir = tempfile::tempdir().expect("a folder");
        let long = "x".repeat(5000);
        let names = [
            "news",
            "news/1",
            "news 1",
            "../news",
            "ünïcode",
            long.as_str(),
        ];
        let history = History::open(dir.path()).expect("a folder");
        for (n, name) in (1_000_000_u64..).zip(names) {
            assert!(history.save(vec![(name.into(), vec![at(n), at(n + 1)])]));
        }
        // Dropping the history writes the queued seconds.
        drop(history);
        for (n, name) in (1_000_000_u64..).zip(names) {
            let found = read(dir.path(), name, n, n + 2).expect("readable");
            assert_eq!(found, [at(n), at(n + 1)], "{name:.20}");
        }
        let files = std::fs::read_dir(dir.path()).expect("readable");
        assert_eq!(files.count(), names.len() + 1, "and the lock");
    }

    #[test]
    fn a_folder_in_use_by_another_process_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = History::open(dir.path()).expect("a folder");
        let error = History::open(dir.path()).expect_err("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        History::open(dir.path()).expect("it is free again");
    }

    #[test]
    fn files_of_removed_streams_are_deleted_after_a_day() {
        let dir = tempfile::tempdir().expect("a folder");
        let history = History::open(dir.path()).expect("a folder");
        let name: Arc<str> = "news".into();
        assert!(history.save(vec![(name, vec![at(1)])]));
        drop(history);
        std::fs::write(dir.path().join("notes.txt"), "a person's").expect("room");
        let files = || std::fs::read_dir(dir.path()).expect("readable").count();
        let now = SystemTime::now();
        tidy(dir.path(), now + DAY - Duration::from_secs(60));
        assert_eq!(files(), 3);
        tidy(dir.path(), now + DAY + Duration::from_secs(60));
        assert_eq!(files(), 2);
    }
}
