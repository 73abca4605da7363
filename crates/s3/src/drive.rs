//! Executes the decisions of an upload's [`Core`]: one task on the client's threads for each upload.
//!
//! | data | threads |
//! |---|---|
//! | `State` | the writer, the upload's task and its requests, under the lock; no wake-up or await while it is held |
//! | journal and files of an upload | its task, in order: the journal records a finished part before the part's file is deleted |

use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use threadbare_files::{Disk, Op};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::body::Data;
use crate::client::{Store, TRANSFERS, Timeouts, runtime};
use crate::core::{Answer, Core, Outcome, Task};
use crate::error::Error;
use crate::filling::{Doomed, Filling};
use crate::journal::{self, Journal};
use crate::lock;
use crate::object::Object;
use crate::pool::Lease;
use crate::spool::Share;

/// A stored object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// ETag of the object's content.
    pub etag: String,
    /// Size of the object in bytes.
    pub bytes: u64,
}

/// Counts of an upload's bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Bytes that the store has.
    pub stored: u64,
    /// Bytes that wait, or are being sent.
    pub held: u64,
    /// Bytes that were dropped because the store was too slow.
    pub dropped: u64,
    /// Number of requests that were repeated.
    pub retries: u64,
}

/// A part that is complete.
pub(crate) struct Part {
    pub(crate) data: Data,
    /// Bytes held in the pool or the spool.
    pub(crate) held: u64,
    /// The operation that closes the part's file, until it is done.
    pub(crate) closing: Option<Op<()>>,
}

/// The place where bytes wait.
pub(crate) enum Space {
    /// In a file that belongs to the user.
    Own,
    Pool(Lease),
    Spool(Share),
}

impl Space {
    #[must_use]
    fn release(&self, bytes: u64) -> Vec<Waker> {
        match self {
            Space::Own => Vec::new(),
            Space::Pool(lease) => lease.release(bytes),
            Space::Spool(share) => share.release(bytes),
        }
    }
}

/// The journal of an upload, and what belongs to it.
pub(crate) struct Journaled {
    pub(crate) disk: Disk,
    pub(crate) path: PathBuf,
    pub(crate) journal: Journal,
    /// The run of the spool, dropped after its last upload has ended.
    pub(crate) _run: Option<Box<dyn Any + Send + Sync>>,
}

pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) parts: HashMap<u16, Part>,
    pub(crate) filling: Filling,
    pub(crate) space: Space,
    /// Wakers of tasks that wait for the end.
    watchers: Vec<Waker>,
    /// Files whose bytes the store has; removed after the journal records it.
    doomed: Vec<Doomed>,
    journal_is_due: bool,
    dropped: u64,
    /// Whether the user has abandoned the upload. Then all of its data is removed.
    is_given_up: bool,
    /// The result. It is set when everything is done, including the handling of files.
    end: Option<Result<Stored, Error>>,
}

/// An upload and its task.
pub(crate) struct Life {
    state: Mutex<State>,
    changed: Notify,
    store: Store,
    object: Object,
    timeouts: Timeouts,
    journaled: Option<Journaled>,
    progress: Option<Box<dyn Fn(Counts) + Send + Sync>>,
}

/// Next actions of the task.
struct Step {
    tasks: Vec<Task>,
    journal: Option<Vec<u8>>,
    doomed: Vec<Doomed>,
    until_ns: Option<u64>,
    outcome: Option<Outcome>,
}

/// Nanoseconds of a clock of this process.
pub(crate) fn now_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Life {
    pub(crate) fn new(
        store: &Store,
        object: Object,
        timeouts: Timeouts,
        core: Core,
        space: Space,
        parts: HashMap<u16, Part>,
        journaled: Option<Journaled>,
    ) -> Life {
        Life {
            state: Mutex::new(State {
                core,
                parts,
                filling: Filling::default(),
                space,
                watchers: Vec::new(),
                doomed: Vec::new(),
                journal_is_due: journaled.is_some(),
                dropped: 0,
                is_given_up: false,
                end: None,
            }),
            changed: Notify::new(),
            store: store.clone(),
            object,
            timeouts,
            journaled,
            progress: None,
        }
    }

    /// Calls `progress` for each part that the store has received, on a thread of the client.
    pub(crate) fn with_progress(self, progress: Box<dyn Fn(Counts) + Send + Sync>) -> Life {
        Life {
            progress: Some(progress),
            ..self
        }
    }

    /// Starts the task.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        runtime()?.spawn(drive(self.clone()));
        Ok(())
    }

    /// Changes the state, and notifies the task.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State, Option<&Journaled>) -> T) -> T {
        let result = change(&mut lock(&self.state), self.journaled.as_ref());
        self.changed.notify_one();
        result
    }

    /// Accesses the state without notifying the task.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut State, Option<&Journaled>) -> T) -> T {
        look(&mut lock(&self.state), self.journaled.as_ref())
    }

    pub(crate) fn counts(&self) -> Counts {
        lock(&self.state).counts()
    }

    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<Result<Stored, Error>> {
        let mut state = lock(&self.state);
        if let Some(end) = &state.end {
            return Poll::Ready(end.clone());
        }
        if !state
            .watchers
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            state.watchers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn step(&self) -> Step {
        let now_ns = now_ns();
        let mut state = lock(&self.state);
        let tasks: Vec<Task> = std::iter::from_fn(|| state.core.poll_task(now_ns)).collect();
        let wakers = state.collect_released(self.journaled.as_ref());
        let journal = self
            .journaled
            .as_ref()
            .filter(|_| std::mem::take(&mut state.journal_is_due));
        let journal = journal.map(|journaled| {
            let mut journal = journaled.journal.clone();
            journal.upload = state.core.upload().map(str::to_owned);
            journal.done = state.core.done().clone();
            journal.to_bytes()
        });
        let step = Step {
            tasks,
            journal,
            doomed: std::mem::take(&mut state.doomed),
            until_ns: state.core.next_timeout(),
            outcome: state.core.outcome().cloned(),
        };
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        step
    }

    async fn perform(&self, task: Task) -> Result<Answer, Error> {
        let (upload, data) = {
            let state = lock(&self.state);
            (
                state.core.upload().unwrap_or_default().to_owned(),
                state.data_of(task),
            )
        };
        if let Some(closing) = self.closing(task) {
            closing
                .await
                .map_err(|failure| Error::File(failure.to_string()))?;
        }
        let _permit = TRANSFERS.acquire().await;
        let (store, key, timeouts) = (&self.store, self.object.key.as_str(), self.timeouts);
        let missing = || Error::File(format!("{key}: the data of a part is missing"));
        match task {
            Task::Create => store
                .create(&self.object, timeouts)
                .await
                .map(Answer::Upload),
            Task::Put => {
                let data = data.ok_or_else(missing)?;
                store
                    .put_object(&self.object, data, timeouts)
                    .await
                    .map(Answer::Etag)
            }
            Task::Part(number) => {
                let data = data.ok_or_else(missing)?;
                store
                    .part(key, &upload, number, data, timeouts)
                    .await
                    .map(Answer::Etag)
            }
            Task::Complete => self.complete(&upload).await.map(Answer::Etag),
            Task::Abort => store
                .abort(key, &upload, timeouts)
                .await
                .map(|()| Answer::Gone),
        }
    }

    fn closing(&self, task: Task) -> Option<Op<()>> {
        let mut state = lock(&self.state);
        let number = number_of(task)?;
        state.parts.get_mut(&number)?.closing.take()
    }

    /// Completes an upload. If the store does not know the upload any more, the upload may already be complete: the response to
    /// an earlier request was lost, or the journal was.
    async fn complete(&self, upload: &str) -> Result<String, Error> {
        let parts: Vec<(u16, String)> = {
            let state = lock(&self.state);
            state
                .core
                .parts()
                .map(|(number, etag)| (number, etag.to_owned()))
                .collect()
        };
        let named = parts.iter().map(|(number, etag)| (*number, etag.as_str()));
        let completed = self
            .store
            .complete(&self.object.key, upload, named, self.timeouts)
            .await;
        let Err(error) = completed else {
            return completed;
        };
        if error.code() == Some("NoSuchUpload")
            && let Some(etag) = self.store.etag(&self.object.key, self.timeouts).await?
            && etag
                .trim_matches('"')
                .ends_with(&format!("-{}", parts.len()))
        {
            return Ok(etag);
        }
        Err(error)
    }

    /// Handles the end of a request.
    fn settle(&self, task: Task, result: Result<Answer, Error>) {
        let now_ns = now_ns();
        let (counts, wakers) = {
            let mut state = lock(&self.state);
            match result {
                Ok(answer) => {
                    state.journal_is_due |= matches!(task, Task::Create | Task::Part(_));
                    state.core.handle_done(task, answer);
                }
                Err(error) => {
                    tracing::debug!(key = self.object.key, ?task, %error, "a request to the store failed");
                    state.core.handle_failed(task, error, now_ns, random());
                }
            }
            let wakers = state.collect_released(self.journaled.as_ref());
            (state.counts(), wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        if let Some(progress) = &self.progress {
            progress(counts);
        }
        self.changed.notify_one();
    }

    /// Finishes after the last request. Only files are left to be handled.
    async fn finish(&self, outcome: Outcome) {
        let (paths, is_kept) = {
            let state = &mut *lock(&self.state);
            // A later process may retry a failed upload, so its files stay.
            let is_kept = matches!(outcome, Outcome::Failed(_)) && !state.is_given_up;
            let mut paths = std::mem::take(&mut state.doomed);
            if !is_kept {
                paths.extend(state.files());
            }
            (paths, is_kept)
        };
        if let Some(journaled) = &self.journaled {
            remove(&journaled.disk, paths).await;
            if !is_kept {
                let whole = journaled.journal.file.clone();
                let whole = whole.filter(|_| matches!(outcome, Outcome::Stored { .. }));
                // Remove the file before its journal. In the other order, a crash in between would leave a file that no journal
                // names.
                remove(&journaled.disk, whole.into_iter().map(doomed)).await;
                remove(&journaled.disk, [doomed(journaled.path.clone())]).await;
            }
        }
        let (watchers, wakers) = {
            let mut state = lock(&self.state);
            let bytes = state.counts().stored;
            state.end = Some(match outcome {
                Outcome::Stored { etag } => Ok(Stored { etag, bytes }),
                Outcome::Failed(error) => Err(error),
            });
            let wakers = if is_kept {
                Vec::new()
            } else {
                state.release_all()
            };
            (std::mem::take(&mut state.watchers), wakers)
        };
        watchers.into_iter().chain(wakers).for_each(Waker::wake);
    }
}

impl State {
    fn counts(&self) -> Counts {
        let (stored, held, dropped) = self.core.bytes();
        Counts {
            stored,
            held,
            dropped: dropped + self.dropped,
            retries: self.core.retries(),
        }
    }

    /// Counts bytes that were dropped before they belonged to a part.
    pub(crate) fn count_dropped(&mut self, bytes: u64) {
        self.dropped += bytes;
    }

    /// Removes everything of the upload, locally and at the store.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    pub(crate) fn end(&self) -> Option<&Result<Stored, Error>> {
        self.end.as_ref()
    }

    pub(crate) fn watch(&mut self, waker: Waker) {
        self.watchers.push(waker);
    }

    fn data_of(&self, task: Task) -> Option<Data> {
        self.parts
            .get(&number_of(task)?)
            .map(|part| part.data.clone())
    }

    /// Frees everything that the core does not need any more. With a journal, a file is removed only after the store has its
    /// data, or after its data was dropped.
    #[must_use]
    pub(crate) fn collect_released(&mut self, journaled: Option<&Journaled>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(number) = self.core.poll_released() {
            let is_done = self.core.done().contains_key(&number);
            if journaled.is_some() && !is_done {
                continue;
            }
            wakers.extend(self.remove_part(number));
        }
        wakers
    }

    /// Frees the part's bytes and removes its file.
    #[must_use]
    pub(crate) fn remove_part(&mut self, number: u16) -> Vec<Waker> {
        let Some(part) = self.parts.remove(&number) else {
            return Vec::new();
        };
        if let (Data::File(range), Space::Spool(_)) = (part.data, &self.space) {
            let closing = part.closing;
            self.doomed.push(Doomed {
                path: range.path,
                closing,
            });
        }
        self.space.release(part.held)
    }

    /// Takes the files of all parts, including the incomplete one.
    fn files(&mut self) -> Vec<Doomed> {
        let mut files: Vec<Doomed> = self.filling.take_file().into_iter().collect();
        if matches!(self.space, Space::Spool(_)) {
            files.extend(self.parts.values_mut().filter_map(|part| match &part.data {
                Data::File(range) => Some(Doomed {
                    path: range.path.clone(),
                    closing: part.closing.take(),
                }),
                Data::Memory(_) => None,
            }));
        }
        files
    }

    fn release_all(&mut self) -> Vec<Waker> {
        let held =
            self.parts.drain().map(|(_, part)| part.held).sum::<u64>() + self.filling.take_held();
        self.space.release(held)
    }
}

fn number_of(task: Task) -> Option<u16> {
    match task {
        Task::Put => Some(1),
        Task::Part(number) => Some(number),
        _ => None,
    }
}

/// Removes files. Another process may already have removed them.
async fn remove(disk: &Disk, files: impl IntoIterator<Item = Doomed>) {
    for Doomed { path, closing } in files {
        if let Some(closing) = closing {
            let _ = closing.await;
        }
        let _ = disk.remove(path).await;
    }
}

fn doomed(path: PathBuf) -> Doomed {
    Doomed {
        path,
        closing: None,
    }
}

async fn run(life: Arc<Life>, task: Task) {
    let result = life.perform(task).await;
    life.settle(task, result);
}

async fn drive(life: Arc<Life>) {
    loop {
        let step = life.step();
        for task in step.tasks {
            tokio::spawn(run(life.clone(), task));
        }
        if let Some(journaled) = &life.journaled {
            if let Some(bytes) = step.journal
                && let Err(error) = journal::write(&journaled.disk, &journaled.path, bytes).await
            {
                // The upload continues, but it cannot be resumed after a crash.
                tracing::warn!(key = life.object.key, %error, "cannot write the journal of an upload");
            }
            remove(&journaled.disk, step.doomed).await;
        }
        if let Some(outcome) = step.outcome {
            life.finish(outcome).await;
            return;
        }
        match step.until_ns {
            Some(until_ns) => {
                let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                let _ = timeout_at(Instant::now() + wait, life.changed.notified()).await;
            }
            None => life.changed.notified().await,
        }
    }
}
