//! Whole files that become objects. Each file is removed when the store has it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use threadbare_files::{Disk, Mode};
use tokio::sync::{Semaphore, oneshot};

use crate::body::{Data, Range};
use crate::client::{Store, StoreSettings, Timeouts, runtime};
use crate::core::{
    Core, OnError, PART_BYTES_DEFAULT, PART_BYTES_MAX, PARTS_MAX, Plan, Retries, Sizes,
};
use crate::drive::{Counts, Journaled, Life, Part, Space, Stored};
use crate::error::Error;
use crate::journal::{self, Journal};
use crate::lock;
use crate::object::Object;

const JOURNAL: &str = ".s3.json";
const LOCK: &str = ".s3.lock";
/// Default number of files sent at a time.
const AT_ONCE: usize = 4;
/// Maximum number of concurrent parts of a file.
const PARTS_AT_ONCE: usize = 2;

/// Event of a file.
#[derive(Debug, Clone)]
pub enum FileEvent {
    /// The store has a part of the file.
    Progress {
        /// The file.
        path: PathBuf,
        /// Key of the object.
        key: String,
        /// Number of bytes that the store has.
        bytes: u64,
        /// Size of the file in bytes.
        total: u64,
    },
    /// The store has the file, which is then removed locally.
    Stored {
        /// The file.
        path: PathBuf,
        /// Key of the object.
        key: String,
        /// The object.
        stored: Stored,
    },
    /// The store refuses the file, or the file cannot be read. The file stays. It is sent again by [`FileSender::retry`], or by
    /// the next [`FileSender::start`].
    Failed {
        /// The file.
        path: PathBuf,
        /// Key of the object.
        key: String,
        /// Why it failed.
        error: Error,
    },
}

type Tell = Arc<dyn Fn(&FileEvent) + Send + Sync>;

/// Settings for sending files.
#[derive(Clone)]
pub struct SenderSettings {
    /// Folder with the records of files to be sent. The files themselves may be anywhere. Only one process at a time may use the
    /// folder.
    pub folder: PathBuf,
    /// Maximum number of files sent at a time.
    pub at_once: usize,
    /// Size of the first parts in bytes.
    pub part_bytes: u64,
    /// Retries of requests; by default, temporary failures are retried without limit.
    pub retries: Retries,
    /// Timeouts of responses.
    pub timeouts: Timeouts,
    /// Called for each event of a file, on a thread of the client; it must not block.
    pub on_event: Option<Tell>,
}

impl std::fmt::Debug for SenderSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SenderSettings")
            .field("folder", &self.folder)
            .field("at_once", &self.at_once)
            .finish_non_exhaustive()
    }
}

impl SenderSettings {
    /// Creates settings with this folder, and the defaults.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        SenderSettings {
            folder: folder.into(),
            at_once: AT_ONCE,
            part_bytes: PART_BYTES_DEFAULT,
            retries: Retries::endless(),
            timeouts: Timeouts::default(),
            on_event: None,
        }
    }
}

/// Sends files. Clones refer to the same sender. If the sender is dropped, the files that are being sent continue. If the process
/// ends before they are finished, the next process sends them.
#[derive(Clone)]
pub struct FileSender(Arc<Inner>);

struct Inner {
    store: Store,
    settings: SenderSettings,
    sizes: Sizes,
    disk: Disk,
    places: Arc<Semaphore>,
    next: AtomicU64,
    /// Journals of files that are being sent or are queued.
    active: Mutex<HashSet<PathBuf>>,
    /// The files of these journals.
    files: Mutex<HashSet<PathBuf>>,
    /// The lock of the folder, held as long as the process, or the sender, lives.
    _lock: fs::File,
}

impl std::fmt::Debug for FileSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileSender")
            .field(&self.0.settings.folder)
            .finish()
    }
}

/// A file that is being sent. Dropping this does not stop the sending.
#[derive(Debug)]
pub struct Sent(oneshot::Receiver<Result<Stored, Error>>);

impl Future for Sent {
    type Output = Result<Stored, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|result| result.unwrap_or(Err(Error::GivenUp)))
    }
}

/// A file, and the receiver of its result.
struct Job {
    journal: Journal,
    journal_path: PathBuf,
    path: PathBuf,
    bytes: u64,
    tell: oneshot::Sender<Result<Stored, Error>>,
}

impl FileSender {
    /// Creates the sender, and resumes the files recorded in the folder. It blocks on the disk, so do not call it on a context's
    /// thread.
    ///
    /// # Errors
    /// Fails if the folder cannot be used, or if another process uses it.
    pub fn start(store: &Store, settings: SenderSettings) -> Result<FileSender, Error> {
        let folder = settings.folder.clone();
        let failed = |what: String| {
            Error::Setting(format!(
                "spool={}: {what}; expected a folder to write to",
                folder.display()
            ))
        };
        let mut made = fs::DirBuilder::new();
        let made = made.recursive(true).mode(0o750).create(&folder);
        made.map_err(|error| failed(error.to_string()))?;
        let lock_file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(LOCK));
        let lock_file = lock_file.map_err(|error| failed(error.to_string()))?;
        lock_file
            .try_lock()
            .map_err(|_| failed("another process uses the folder".into()))?;
        if settings.at_once == 0 {
            return Err(Error::Setting("at_once=0: expected at least 1".into()));
        }
        let disk = Disk::shared(Mode::Auto).map_err(|error| failed(error.to_string()))?;
        let sender = FileSender(Arc::new(Inner {
            store: store.clone(),
            sizes: Sizes::new(settings.part_bytes, PART_BYTES_MAX)?,
            disk,
            places: Arc::new(Semaphore::new(settings.at_once)),
            next: AtomicU64::new(0),
            active: Mutex::default(),
            files: Mutex::default(),
            settings,
            _lock: lock_file,
        }));
        sender.retry()?;
        Ok(sender)
    }

    /// Sends failed files again. Returns their number. It blocks on the disk, so do not call it on a context's thread.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub fn retry(&self) -> Result<usize, Error> {
        let folder = &self.0.settings.folder;
        let mut count = 0;
        let entries = fs::read_dir(folder)
            .map_err(|error| Error::File(format!("{}: {error}", folder.display())))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if !path.to_string_lossy().ends_with(JOURNAL) || lock(&self.0.active).contains(&path) {
                continue;
            }
            let journal = match Journal::read(&path) {
                Ok(journal) => journal,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the journal of a file to upload");
                    continue;
                }
            };
            match journal
                .file
                .as_ref()
                .map(|file| (file.clone(), fs::metadata(file)))
            {
                Some((file, Ok(known))) => {
                    drop(self.begin(journal, path, file, known.len())?);
                    count += 1;
                }
                // Remove the file before its record, because the store has the file.
                _ => drop(fs::remove_file(&path)),
            }
        }
        Ok(count)
    }

    /// Whether a file is being sent or is queued.
    #[must_use]
    pub fn is_sending(&self, path: &Path) -> bool {
        lock(&self.0.files).contains(path)
    }

    /// Sends a complete file, and removes it when the store has it. It accesses the file, so do not call it on a context's
    /// thread.
    ///
    /// # Errors
    /// Fails if the file does not exist, or if the object is invalid.
    pub fn send(&self, path: impl AsRef<Path>, object: Object) -> Result<Sent, Error> {
        object.check()?;
        let inner = &self.0;
        let wrong = |what: String| Error::File(format!("{}: {what}", path.as_ref().display()));
        let path = std::path::absolute(path.as_ref()).map_err(|error| wrong(error.to_string()))?;
        let known = fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
        if !known.is_file() {
            return Err(wrong("the path is not that of a file".into()));
        }
        if inner.sizes.cut(known.len()).is_none() {
            return Err(Error::TooLong {
                parts: PARTS_MAX,
                part_bytes: inner.sizes.first(),
            });
        }
        let mut journal = Journal::new(
            inner.store.endpoint(),
            &object,
            inner.settings.part_bytes,
            OnError::DoNothing,
        );
        journal.file = Some(path.clone());
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let number = inner.next.fetch_add(1, Relaxed);
        let name = format!("{}-{number}{JOURNAL}", since.as_nanos());
        self.begin(journal, inner.settings.folder.join(name), path, known.len())
    }

    fn begin(
        &self,
        journal: Journal,
        journal_path: PathBuf,
        path: PathBuf,
        bytes: u64,
    ) -> Result<Sent, Error> {
        let (tell, sent) = oneshot::channel();
        lock(&self.0.active).insert(journal_path.clone());
        lock(&self.0.files).insert(path.clone());
        let job = Job {
            journal,
            journal_path,
            path,
            bytes,
            tell,
        };
        runtime()?.spawn(send(self.0.clone(), job));
        Ok(Sent(sent))
    }
}

async fn send(inner: Arc<Inner>, job: Job) {
    let Job {
        journal,
        journal_path,
        path,
        bytes,
        tell,
    } = job;
    let key = journal.object.key.clone();
    let result = transfer(&inner, journal, journal_path.clone(), path.clone(), bytes).await;
    lock(&inner.active).remove(&journal_path);
    lock(&inner.files).remove(&path);
    if let Some(on_event) = &inner.settings.on_event {
        on_event(&match result.clone() {
            Ok(stored) => FileEvent::Stored { path, key, stored },
            Err(error) => FileEvent::Failed { path, key, error },
        });
    }
    // The receiver may have been dropped.
    let _ = tell.send(result);
}

async fn transfer(
    inner: &Arc<Inner>,
    journal: Journal,
    journal_path: PathBuf,
    path: PathBuf,
    bytes: u64,
) -> Result<Stored, Error> {
    // Write the record before the file waits for its turn.
    journal::write(&inner.disk, &journal_path, journal.to_bytes()).await?;
    let _place = inner.places.acquire().await;
    let sizes = Sizes::new(journal.part_bytes, PART_BYTES_MAX)?;
    let (parts, waiting) = parts_of(&inner.disk, &journal, sizes, &path, bytes)?;
    let plan = Plan {
        sizes,
        at_once: PARTS_AT_ONCE,
        retries: inner.settings.retries,
        on_error: OnError::DoNothing,
    };
    let done: BTreeMap<_, _> = journal.done.clone();
    let core = Core::resumed(plan, journal.upload.clone(), done, waiting);
    let store = Store::shared(StoreSettings {
        endpoint: journal.endpoint()?,
        ..inner.store.settings().clone()
    })?;
    let object = journal.object.clone();
    let journaled = Journaled {
        disk: inner.disk.clone(),
        path: journal_path,
        journal,
        _run: None,
    };
    let life = Life::new(
        &store,
        object,
        inner.settings.timeouts,
        core,
        Space::Own,
        parts,
        Some(journaled),
    );
    let life = Arc::new(match &inner.settings.on_event {
        Some(on_event) => with_progress(life, on_event.clone(), path, bytes),
        None => life,
    });
    life.start()?;
    std::future::poll_fn(|cx| life.poll_end(cx)).await
}

/// The parts that the store does not have, and the sizes of parts.
type Parts = (HashMap<u16, Part>, Vec<(u16, u64)>);

fn parts_of(
    disk: &Disk,
    journal: &Journal,
    sizes: Sizes,
    path: &Path,
    bytes: u64,
) -> Result<Parts, Error> {
    let all = sizes.cut(bytes).ok_or(Error::TooLong {
        parts: PARTS_MAX,
        part_bytes: sizes.first(),
    })?;
    let (mut parts, mut waiting, mut offset) = (HashMap::new(), Vec::new(), 0);
    for (number, bytes) in all {
        if !journal.done.contains_key(&number) {
            let data = Data::File(Range {
                disk: disk.clone(),
                path: path.into(),
                offset,
                bytes,
            });
            parts.insert(
                number,
                Part {
                    data,
                    held: 0,
                    closing: None,
                },
            );
            waiting.push((number, bytes));
        }
        offset += bytes;
    }
    Ok((parts, waiting))
}

fn with_progress(life: Life, on_event: Tell, path: PathBuf, total: u64) -> Life {
    let key = life.object().key.clone();
    life.with_progress(Box::new(move |counts: Counts| {
        // The end of the file has its own event.
        if counts.stored < total && counts.stored > 0 {
            on_event(&FileEvent::Progress {
                path: path.clone(),
                key: key.clone(),
                bytes: counts.stored,
                total,
            });
        }
    }))
}
