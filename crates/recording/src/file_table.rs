//! The files of all recordings, and the pending operations on them. No function of this module blocks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use threadbare_base::{NS_PER_MS, NS_PER_S, lock};

use futures_util::stream::FuturesUnordered;
use threadbare_files::{Access, Budget, Data, Disk, Ending, Failure, File, Options};
use threadbare_rtp::call::Side;
use tokio::sync::oneshot;

use super::destination::{Keeping, metadata_path};
use super::index::{Entry, Line, RecordingState, Subject};
use super::orders::{Deleted, RecordingId, SharedState};
use super::part::Part;
use super::place::StoredObject;
use super::repair::{journal_path, new_journal_path};
use super::rooms::Rooms;
use super::sound::Sound;
use threadbare_config::{Names, Permissions, RecordSpec};
use threadbare_process::system::{random_number, unix_at_zero_ns};

/// A pending operation on files.
pub(super) type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

/// The result of an operation.
pub(super) struct Done {
    /// The recording to which the file belongs.
    pub(super) of: Option<RecordingId>,
    pub(super) what: What,
}

pub(super) enum What {
    /// The complete file was renamed, or could not be renamed.
    Kept {
        root: Arc<Path>,
        entry: Box<Entry>,
        path: Result<PathBuf, Failure>,
        /// The name that the file should get.
        wanted: PathBuf,
    },
    /// The file was abandoned and removed.
    Discarded { id: String, wanted: PathBuf },
    /// The file was deleted on request. An object store may still have it.
    Deleted {
        id: String,
        root: Arc<Path>,
        result: Result<(), threadbare_s3::Error>,
        tell: oneshot::Sender<Deleted>,
    },
    /// All files of a recording were removed.
    Swept,
    /// The metadata file was written, or could not be written.
    Beside(Result<(), Failure>),
}

/// The files of all recordings, and the pending operations on them.
#[derive(Debug)]
pub(super) struct FileTable {
    pub(super) disk: Disk,
    budget: Budget,
    pub(super) journals: HashMap<Arc<Path>, Journal>,
    /// Names reserved for files that are being written.
    names: HashSet<PathBuf>,
    pub(super) jobs: FuturesUnordered<Job>,
    /// Number of pending operations of each recording.
    pub(super) open_jobs: HashMap<RecordingId, usize>,
    /// The ids of the last files of each recording, and the metadata of its first file.
    pub(super) files: HashMap<RecordingId, Files>,
    pub(super) shared: Arc<SharedState>,
    pub(super) rooms: Rooms,
    unix_at_zero_ns: u64,
}

/// The journal of the files in a folder.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// Number of lines since the journal was rewritten.
    lines: usize,
}

#[derive(Debug, Default)]
pub(super) struct Files {
    ids: VecDeque<String>,
    beside: Option<PathBuf>,
}

impl Journal {
    fn write(&self, bytes: Vec<u8>) {
        let cx = &mut Context::from_waker(Waker::noop());
        let (length, data) = (bytes.len(), || Data::Owned(Box::new(bytes)));
        // The write is never delayed, because this file is not subject to the budget.
        if let Poll::Ready(Err(error)) = self.file.poll_write(cx, length, false, data) {
            tracing::error!(%error, "cannot write the journal of recordings");
        }
    }
}

/// Properties of a new file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) sound: Sound,
    pub(super) tracks: u8,
    /// Time of the first frame on the monotonic clock, in ns.
    pub(super) first_ns: u64,
}

impl FileTable {
    /// Creates a table without files.
    pub(super) fn new(disk: Disk, shared: Arc<SharedState>) -> FileTable {
        FileTable {
            disk,
            budget: Budget::named("recordings", WAITING_BYTES_MAX),
            journals: HashMap::new(),
            names: HashSet::new(),
            jobs: FuturesUnordered::new(),
            open_jobs: HashMap::new(),
            files: HashMap::new(),
            shared,
            rooms: Rooms::default(),
            unix_at_zero_ns: unix_at_zero_ns(),
        }
    }

    /// Starts a file.
    pub(super) fn begin(
        &mut self,
        (of, side): (RecordingId, Option<Side>),
        subject: &Subject,
        spec: &RecordSpec,
        shape: Shape,
        metadata: Option<String>,
    ) -> Part {
        // The offset of the clocks is read again, because the wall clock may have been set.
        self.unix_at_zero_ns = unix_at_zero_ns();
        let unix_ns = self.unix_ns(shape.first_ns);
        let started_unix_ms = unix_ns / NS_PER_MS;
        let id = format!("{started_unix_ms:012x}{:08x}", random_number() as u32);
        let began = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
        let mut entry = Entry {
            id: id.clone(),
            of: subject.clone(),
            path: PathBuf::new(),
            format: spec.format,
            coding: shape.sound.coding,
            rate_hz: shape.sound.rate_hz,
            channels: shape.sound.channels,
            tracks: shape.tracks,
            started_unix_ms,
            state: RecordingState::Running,
            duration_ms: 0,
            bytes: 0,
            missed_ms: 0,
            loudness: None,
            error: None,
            uri: None,
        };
        let names = Names {
            name: entry.name(),
            time: &began.strftime("%Y%m%dT%H%M%SZ").to_string(),
            id: &id,
            side: match side {
                None => "both",
                Some(Side::A) => "a",
                Some(Side::B) => "b",
            },
        };
        entry.path = spec.to.expand(names, spec.format.ending());
        let root = self.root(spec.to.root());
        if !self.names.insert(root.join(&entry.path)) {
            entry.path = entry.other_path();
            self.names.insert(root.join(&entry.path));
        }
        if let Some(text) = metadata {
            self.write_beside(of, &root.join(&entry.path), text, spec.permissions);
        }
        let files = self.files.entry(of).or_default();
        files.ids.push_back(id);
        if files.ids.len() > FILES_DISCARDED_MAX {
            files.ids.pop_front();
        }
        self.note(&root, &Line::Begun(entry.clone()));
        self.shared.publish(&root, entry.clone());
        let end_ns = spec.rotate.every_s.map_or(u64::MAX, |seconds| {
            let every_ns = seconds * NS_PER_S;
            let next_ns = (unix_ns / every_ns + 1) * every_ns;
            next_ns.saturating_sub(self.unix_at_zero_ns)
        });
        let files = (&self.disk, &self.budget, &self.rooms);
        Part::begin(files, root, entry, end_ns, spec)
    }

    /// Returns the shared path of a folder. The folder must be open.
    fn root(&self, root: &Path) -> Arc<Path> {
        let known = self.journals.get_key_value(root);
        known.map_or_else(|| root.into(), |(root, _)| root.clone())
    }

    fn write_beside(
        &mut self,
        of: RecordingId,
        path: &Path,
        text: String,
        permissions: Permissions,
    ) {
        let mut options = Options::new(Access::Write);
        options.with_parents = true;
        options.permissions = permissions.bits();
        let path = metadata_path(path);
        let file = self.disk.open(&path, options);
        self.files.entry(of).or_default().beside = Some(path);
        self.add_job(of, async move {
            let written = match file.write(Data::Owned(Box::new(text))).await {
                Ok(()) => file.close(Ending::default()).await,
                Err(failure) => Err(failure),
            };
            What::Beside(written)
        });
    }

    /// Ends a file and gives it its final name.
    pub(super) fn finish(&mut self, of: RecordingId, part: Part) {
        let (root, wanted) = (part.root.clone(), part.root.join(&part.entry.path));
        let (entry, keeping) = part.finish(&self.disk);
        self.keep(of, root, wanted, entry, keeping);
    }

    /// Ends a file that has failed, and gives the written part its final name.
    pub(super) fn cut(&mut self, of: RecordingId, part: Part, failure: &Failure) {
        let (root, wanted) = (part.root.clone(), part.root.join(&part.entry.path));
        let (mut entry, keeping) = part.cut(&self.disk);
        entry.error = Some(failure.to_string());
        self.keep(of, root, wanted, entry, keeping);
    }

    fn keep(
        &mut self,
        of: RecordingId,
        root: Arc<Path>,
        wanted: PathBuf,
        entry: Entry,
        keeping: Keeping,
    ) {
        self.add_job(of, async move {
            What::Kept {
                root,
                entry: Box::new(entry),
                path: keeping.await,
                wanted,
            }
        });
    }

    /// Ends and removes a file.
    pub(super) fn discard(&mut self, of: RecordingId, part: Part) {
        let (id, wanted) = (part.entry.id.clone(), part.root.join(&part.entry.path));
        let removing = part.discard(&self.disk);
        self.add_job(of, async move {
            // This fails if the file does not exist yet.
            let _ = removing.await;
            What::Discarded { id, wanted }
        });
    }

    fn add_job(&mut self, of: RecordingId, job: impl Future<Output = What> + Send + 'static) {
        *self.open_jobs.entry(of).or_default() += 1;
        self.jobs.push(Box::pin(async move {
            Done {
                of: Some(of),
                what: job.await,
            }
        }));
    }

    /// Removes all files of a recording whose operations are done. Returns `true` if there are files.
    pub(super) fn sweep(&mut self, of: RecordingId) -> bool {
        let Some(files) = self.files.remove(&of) else {
            return false;
        };
        let disk = self.disk.clone();
        let removing = files.beside.map(|path| disk.remove(path));
        let known: Vec<(Arc<Path>, Entry)> = {
            let index = lock(&self.shared.index);
            files
                .ids
                .iter()
                .filter_map(|id| index.find(id).cloned())
                .collect()
        };
        let paths = known.iter().map(|(root, entry)| root.join(&entry.path));
        let removing: Vec<_> = removing
            .into_iter()
            .chain(paths.map(|path| disk.remove(path)))
            .collect();
        for (root, entry) in known {
            lock(&self.shared.index).remove(&entry.id);
            self.note(&root, &Line::Gone(entry.id));
        }
        self.add_job(of, async move {
            for removed in removing {
                // This fails if the file does not exist yet.
                let _ = removed.await;
            }
            What::Swept
        });
        true
    }

    /// Deletes a complete file, on the disk or in the store.
    pub(super) fn delete(&mut self, id: String, tell: oneshot::Sender<Deleted>) {
        let found = lock(&self.shared.index).find(&id).cloned();
        let (root, entry) = match found {
            Some(found) if found.1.state != RecordingState::Running => found,
            other => {
                // This fails if the caller no longer waits for the answer.
                let _ = tell.send(other.map_or(Deleted::Unknown, |_| Deleted::Grows));
                return;
            }
        };
        let path = root.join(&entry.path);
        let (is_sending, objects) = match lock(&self.shared.outboxes).get(&root) {
            Some(outbox) => (outbox.is_sending(&path), Some(outbox.objects(&entry))),
            None => (false, None),
        };
        let refused = match &entry.uri {
            _ if is_sending => Some(Deleted::OnItsWay),
            Some(uri) if objects.is_none() => {
                let why = format!("the configuration does not have the store of {uri}");
                Some(Deleted::Refused(threadbare_s3::Error::Setting(why)))
            }
            _ => None,
        };
        if let Some(refused) = refused {
            let _ = tell.send(refused);
            return;
        }
        let disk = self.disk.clone();
        self.jobs.push(Box::pin(async move {
            let is_stored = entry.uri.is_some();
            let result = delete(&disk, &path, objects, is_stored).await;
            let what = What::Deleted {
                id,
                root,
                result,
                tell,
            };
            Done { of: None, what }
        }));
    }

    /// Adds a folder for recordings. The folder must already have a journal.
    pub(super) fn open_root(&mut self, root: Arc<Path>) {
        let mut options = Options::new(Access::Append);
        options.linger = Duration::ZERO;
        options.permissions = Permissions::default().bits();
        let file = self.disk.open(journal_path(&root), options);
        self.journals.insert(root, Journal { file, lines: 0 });
    }

    /// Appends a line to a journal, without waiting for the disk.
    fn note(&mut self, root: &Arc<Path>, line: &Line) {
        let Some(journal) = self.journals.get_mut(root) else {
            return;
        };
        journal.write(line.to_bytes());
        journal.lines += 1;
        if journal.lines > LINES_MAX {
            self.write_anew(root);
        }
    }

    /// Replaces a long journal with a new one, which has only the current entries.
    fn write_anew(&mut self, root: &Arc<Path>) {
        let mut options = Options::new(Access::Write);
        options.linger = Duration::ZERO;
        options.permissions = Permissions::default().bits();
        let file = self.disk.open(new_journal_path(root), options);
        let journal = Journal { file, lines: 0 };
        journal.write(lock(&self.shared.index).to_journal(root));
        // Later lines are appended to the new journal instead of this one.
        drop(journal.file.finish(Ending {
            sync: false,
            rename_to: Some(journal_path(root)),
        }));
        self.journals.insert(root.clone(), journal);
    }

    /// Handles a file that was uploaded to the store.
    pub(super) fn handle_stored(&mut self, root: &Arc<Path>, path: &Path) {
        let found = lock(&self.shared.index).find_path(root, path);
        let outboxes = lock(&self.shared.outboxes);
        let uri = found.as_ref().zip(outboxes.get(root));
        let uri = uri.map(|(entry, outbox)| outbox.uri(entry));
        drop(outboxes);
        if let (Some(mut entry), Some(uri)) = (found, uri) {
            tracing::info!(uri, "a recording has been sent to the store");
            entry.uri = Some(uri);
            self.note(root, &Line::Ended(entry.clone()));
            self.shared.publish(root, entry);
        }
    }

    pub(super) fn handle(&mut self, what: What) {
        match what {
            What::Kept {
                root,
                mut entry,
                path,
                wanted,
            } => {
                self.names.remove(&wanted);
                let counters = &self.shared.counters;
                match path {
                    Ok(path) => {
                        let below = path.strip_prefix(&*root);
                        entry.path = below.map_or_else(|_| entry.path.clone(), Path::to_owned);
                        let is_whole = entry.state == RecordingState::Complete;
                        let counter = if is_whole {
                            &counters.complete
                        } else {
                            &counters.failed
                        };
                        counter.fetch_add(1, Relaxed);
                        self.note(&root, &Line::Ended((*entry).clone()));
                        tell_of(&path, &entry);
                        self.shared.publish(&root, *entry);
                    }
                    Err(error) => {
                        counters.failed.fetch_add(1, Relaxed);
                        let path = root.join(entry.part_path());
                        tracing::error!(path = %path.display(), %error, "a recording is deleted");
                        entry.state = RecordingState::Cut;
                        entry.error = Some(error.to_string());
                        let id = entry.id.clone();
                        self.shared.publish(&root, *entry);
                        // If anything of the file is left, the next process repairs it.
                        lock(&self.shared.index).remove(&id);
                    }
                }
            }
            What::Discarded { id, wanted } => {
                self.names.remove(&wanted);
                let known = lock(&self.shared.index).find(&id).cloned();
                if let Some((root, _)) = known {
                    lock(&self.shared.index).remove(&id);
                    self.note(&root, &Line::Gone(id));
                }
            }
            What::Deleted {
                id,
                root,
                result,
                tell,
            } => {
                let deleted = self.note_deleted(&root, id, result);
                // This fails if the caller no longer waits for the answer.
                let _ = tell.send(deleted);
            }
            What::Beside(Ok(())) | What::Swept => {}
            What::Beside(Err(error)) => {
                tracing::warn!(%error, "cannot save the metadata of a recording");
            }
        }
    }

    fn note_deleted(
        &mut self,
        root: &Arc<Path>,
        id: String,
        result: Result<(), threadbare_s3::Error>,
    ) -> Deleted {
        match result {
            Ok(()) => {
                lock(&self.shared.index).remove(&id);
                self.note(root, &Line::Gone(id));
                Deleted::Gone
            }
            Err(error) => {
                tracing::warn!(id, %error, "the store refused to delete a recording");
                Deleted::Refused(error)
            }
        }
    }

    /// Converts a time of the monotonic clock to nanoseconds since 1970.
    pub(super) fn unix_ns(&self, at_ns: u64) -> u64 {
        self.unix_at_zero_ns.saturating_add(at_ns)
    }

    pub(super) fn count_bytes(&self, bytes: u64) {
        self.shared.counters.bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn count_missed_ms(&self, ms: u64) {
        self.shared.counters.missed_ms.fetch_add(ms, Relaxed);
    }

    pub(super) fn count_missed_packets(&self, packets: u64) {
        let counter = &self.shared.counters.missed_packets;
        counter.fetch_add(packets, Relaxed);
    }
}

/// Deletes a file and its metadata on the disk. If the file is no longer on the disk, deletes it from the store.
async fn delete(
    disk: &Disk,
    path: &Path,
    objects: Option<[StoredObject; 2]>,
    is_stored: bool,
) -> Result<(), threadbare_s3::Error> {
    let mut is_gone = false;
    if !is_stored {
        match disk.remove(path).await {
            Ok(()) => is_gone = true,
            Err(error) if objects.is_none() => {
                tracing::warn!(%error, "cannot delete a recording");
            }
            Err(_) => {}
        }
        // This fails if the recording has no metadata.
        let _ = disk.remove(metadata_path(path)).await;
    }
    for object in objects.into_iter().flatten().filter(|_| !is_gone) {
        object.delete().await?;
    }
    Ok(())
}

fn tell_of(path: &Path, entry: &Entry) {
    let (call, stream) = log_names(&entry.of);
    let path = path.display();
    let seconds = entry.duration_ms as f64 / 1000.0;
    let lufs = entry.loudness.map(|one| one.integrated_lufs);
    let dbtp = entry.loudness.map(|one| one.true_peak_dbtp);
    let (id, bytes) = (&entry.id, entry.bytes);
    match &entry.error {
        None => {
            tracing::info!(call, stream, %path, id, seconds, bytes, lufs, dbtp, "a recording is complete");
        }
        Some(error) => {
            tracing::error!(call, stream, %path, id, seconds, error, "a recording was cut off");
        }
    }
}

pub(super) fn log_names(of: &Subject) -> (Option<&str>, Option<&str>) {
    match of {
        Subject::Call(name) => (Some(name), None),
        Subject::Stream(name) => (None, Some(name)),
    }
}

/// Maximum number of bytes of all recordings that wait for the disk. They are two seconds of 1000 calls with 16 bits.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Number of lines after which a journal is rewritten. They have about 5 MB.
const LINES_MAX: usize = 10_000;
/// Maximum number of files that are deleted together with their recording.
const FILES_DISCARDED_MAX: usize = 1000;
