//! A stream that becomes an object while it grows.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use threadbare_files::{Access, Disk, Ending, File, Options};

use crate::body::{Data, Range};
use crate::client::{Store, StoreSettings, Timeouts, wake};
use crate::core::{
    Core, OnError, Outcome, PART_BYTES_DEFAULT, PART_BYTES_MAX, Plan, Retries, Sizes,
};
use crate::drive::{Counts, Journaled, Life, Part, Space, State, Stored};
use crate::error::Error;
use crate::filling::Filling;
use crate::journal::Journal;
use crate::object::Object;
use crate::pool::Pool;
use crate::spool::{Left, Spool, part_path};

/// Initial size of the memory blocks. It is small, because many streams are slow.
const BLOCK_BYTES_MIN: u64 = 4 << 10;
const BLOCK_BYTES_MAX: u64 = 256 << 10;
/// Block size of the disk service for each stream with a spool.
const SPOOL_BLOCK_BYTES: usize = 8 << 10;
/// Maximum number of concurrent parts of an upload. More would not be faster, because other uploads are being sent, too.
const AT_ONCE: usize = 2;

/// A part in memory grows up to the pool's size divided by this number. The pool also reserves this much for one part.
const POOL_SHARE: u64 = 8;

/// Action when memory or spool are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlowPolicy {
    /// Writes wait.
    #[default]
    HoldUp,
    /// The oldest waiting part is dropped. If no part is waiting, the data that is being written is dropped.
    DropOldest,
    /// The upload fails.
    Fail,
}

/// Settings of an upload.
#[derive(Debug, Clone)]
pub struct UploadSettings {
    /// Size of the first parts in bytes. Later parts of a long stream are larger.
    pub part_bytes: u64,
    /// Retries of requests. With a spool, temporary failures are retried without limit.
    pub retries: Retries,
    /// Timeouts of responses.
    pub timeouts: Timeouts,
    /// Action after a failure, or if the upload is dropped before its end.
    pub on_error: OnError,
    /// Action when memory or spool are full.
    pub slow: SlowPolicy,
    /// Memory for waiting parts, without a spool.
    pub pool: Pool,
    /// Spool for waiting parts.
    pub spool: Option<Spool>,
}

impl Default for UploadSettings {
    fn default() -> Self {
        UploadSettings {
            part_bytes: PART_BYTES_DEFAULT,
            retries: Retries::default(),
            timeouts: Timeouts::default(),
            on_error: OnError::default(),
            slow: SlowPolicy::default(),
            pool: Pool::of_process(),
            spool: None,
        }
    }
}

/// A stream that is being uploaded. All functions may be called on any thread, and none blocks on the store or the disk.
///
/// If it is dropped before [`Upload::finish`], it ends as [`UploadSettings::on_error`] says. If it is dropped after that call, it
/// continues.
pub struct Upload {
    life: Arc<Life>,
    slow: SlowPolicy,
    on_error: OnError,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload")
            .field("key", &self.life.object().key)
            .finish_non_exhaustive()
    }
}

impl Upload {
    /// Begins an upload.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`] if a setting is invalid.
    pub fn begin(
        store: &Store,
        object: Object,
        settings: &UploadSettings,
    ) -> Result<Upload, Error> {
        object.check()?;
        let bytes_max = match settings.spool {
            Some(_) => PART_BYTES_MAX,
            None => settings.pool.max() / POOL_SHARE,
        };
        let sizes = Sizes::new(settings.part_bytes, bytes_max)?;
        let core = Core::new(plan(sizes, settings));
        let (space, journaled) = match &settings.spool {
            None => (Space::Pool(settings.pool.join(sizes.max())), None),
            Some(spool) => {
                let journal = Journal::new(
                    store.endpoint(),
                    &object,
                    settings.part_bytes,
                    settings.on_error,
                );
                let journaled = Journaled {
                    disk: spool.disk().clone(),
                    path: spool.next_journal(),
                    journal,
                    _run: None,
                };
                (Space::Spool(spool.share()), Some(journaled))
            }
        };
        let life = Life::new(
            store,
            object,
            settings.timeouts,
            core,
            space,
            HashMap::new(),
            journaled,
        );
        Upload::start(life, settings)
    }

    /// Resumes an upload that another process has left in the spool.
    ///
    /// Only the credentials of `settings` are used. The destination is that of the upload.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`] if a setting is invalid.
    pub fn resume(
        left: Left,
        store: &StoreSettings,
        spool: &Spool,
        settings: &UploadSettings,
    ) -> Result<Upload, Error> {
        let store = Store::shared(StoreSettings {
            endpoint: left.journal.endpoint()?,
            ..store.clone()
        })?;
        let sizes = Sizes::new(left.journal.part_bytes, PART_BYTES_MAX)?;
        let settings = UploadSettings {
            spool: Some(spool.clone()),
            ..settings.clone()
        };
        let parts = parts_of(&left, spool.disk());
        let waiting = left
            .parts
            .iter()
            .map(|(number, _, bytes)| (*number, *bytes));
        let (upload, done): (_, BTreeMap<_, _>) =
            (left.journal.upload.clone(), left.journal.done.clone());
        let core = Core::resumed(plan(sizes, &settings), upload, done, waiting);
        let object = left.journal.object.clone();
        let run = Some(left.keep_run());
        let journaled = Journaled {
            disk: spool.disk().clone(),
            path: left.path,
            journal: left.journal,
            _run: run,
        };
        let space = Space::Spool(spool.share());
        let life = Life::new(
            &store,
            object,
            settings.timeouts,
            core,
            space,
            parts,
            Some(journaled),
        );
        Upload::start(life, &settings)
    }

    fn start(life: Life, settings: &UploadSettings) -> Result<Upload, Error> {
        let life = Arc::new(life);
        life.start()?;
        Ok(Upload {
            life,
            slow: settings.slow,
            on_error: settings.on_error,
        })
    }

    /// Takes some of the bytes, in order. Returns their number as `Ready`; it is 0 only if `bytes` is empty.
    ///
    /// # Errors
    /// Fails if the upload has failed, now or earlier.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut wakers = Vec::new();
        let result = self.life.look(|state, journaled| {
            let result = state.write(cx, bytes, self.slow, journaled, &mut wakers);
            wakers.extend(state.collect_released(journaled));
            result
        });
        wake(wakers);
        let result = match result {
            Poll::Ready(Ok(Written { count, is_news })) => {
                if is_news {
                    self.life.change(|_, _| ());
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        if matches!(
            &result,
            Poll::Ready(Err(Error::TooSlow(_)
                | Error::TooLong { .. }
                | Error::File(_)))
        ) {
            self.life.change(|_, _| ());
        }
        result
    }

    /// Takes all of the bytes.
    ///
    /// # Errors
    /// Fails if the upload has failed, now or earlier.
    pub async fn write(&self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let count = poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Ends the data of the object.
    pub fn finish(&self) {
        let wakers = self.life.change(|state, journaled| state.finish(journaled));
        wake(wakers);
    }

    /// Returns `Ready` when the upload has ended, with the object or the error.
    pub fn poll_stored(&self, cx: &mut Context<'_>) -> Poll<Result<Stored, Error>> {
        self.life.poll_end(cx)
    }

    /// Completes when the upload has ended.
    ///
    /// # Errors
    /// Fails if the object does not exist, or is incomplete.
    pub async fn stored(&self) -> Result<Stored, Error> {
        poll_fn(|cx| self.poll_stored(cx)).await
    }

    /// Returns the error after which no more data is accepted.
    pub fn error(&self) -> Option<Error> {
        self.life
            .look(|state, _| match (state.core.outcome(), state.end()) {
                (Some(Outcome::Failed(error)), _) | (_, Some(Err(error))) => Some(error.clone()),
                _ => None,
            })
    }

    /// Wakes `waker` when the upload has ended.
    pub fn watch(&self, waker: Waker) {
        let is_over = self.life.look(|state, _| {
            let is_over = state.end().is_some();
            if !is_over {
                state.watch(waker.clone());
            }
            is_over
        });
        if is_over {
            wake(vec![waker]);
        }
    }

    /// Ends the upload without more data. With [`OnError::Complete`], the data so far becomes an object. Otherwise all local data
    /// is removed, and `on_error` determines what happens to the parts at the store.
    pub fn give_up(&self, on_error: OnError) {
        if on_error == OnError::Complete {
            return self.finish();
        }
        let wakers = self.life.change(|state, journaled| {
            if state.core.outcome().is_none() {
                state.give_up();
                state.core.set_on_error(on_error);
                state.core.handle_stop(Error::GivenUp);
            }
            state.collect_released(journaled)
        });
        wake(wakers);
    }

    /// Returns the counts of the upload's bytes.
    pub fn counts(&self) -> Counts {
        self.life.counts()
    }

    /// Returns the key of the object.
    pub fn key(&self) -> &str {
        &self.life.object().key
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.life.look(|state, _| state.core.has_ended()) {
            self.give_up(self.on_error);
        }
    }
}

fn parts_of(left: &Left, disk: &Disk) -> HashMap<u16, Part> {
    let part = |path: &PathBuf, bytes| Part {
        data: Data::File(Range {
            disk: disk.clone(),
            path: path.clone(),
            offset: 0,
            bytes,
        }),
        held: bytes,
        closing: None,
    };
    let parts = left.parts.iter();
    let mut parts: HashMap<u16, Part> = parts
        .map(|(number, path, bytes)| (*number, part(path, *bytes)))
        .collect();
    if parts.is_empty() && left.journal.done.is_empty() {
        // The upload was begun, but has no data. So the object is empty.
        let data = Data::Memory(Vec::new());
        parts.insert(
            1,
            Part {
                data,
                held: 0,
                closing: None,
            },
        );
    }
    parts
}

fn plan(sizes: Sizes, settings: &UploadSettings) -> Plan {
    match settings.spool {
        // The data is safe on the disk, so it stays there even if the store refuses it.
        Some(_) => Plan {
            sizes,
            at_once: AT_ONCE,
            retries: Retries::endless(),
            on_error: OnError::DoNothing,
        },
        None => Plan {
            sizes,
            at_once: AT_ONCE,
            retries: settings.retries,
            on_error: settings.on_error,
        },
    }
}

/// Result of a write.
struct Written {
    count: usize,
    /// Whether a part was completed or dropped, so that the task has work to do.
    is_news: bool,
}

fn at_most(bytes: u64, len: usize) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(len)
}

impl State {
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        slow: SlowPolicy,
        journaled: Option<&Journaled>,
        wakers: &mut Vec<Waker>,
    ) -> Poll<Result<Written, Error>> {
        let mut is_news = false;
        loop {
            if let Some(error) = self.refusal() {
                return Poll::Ready(Err(error));
            }
            let count = match self.try_write(cx, bytes, journaled, wakers) {
                Ok(count) => count,
                Err(error) => {
                    self.core.handle_stop(error.clone());
                    return Poll::Ready(Err(error));
                }
            };
            if count > 0 {
                if self.core.room() == 0 || self.core.filling().1 == 0 {
                    is_news = true;
                }
                return Poll::Ready(Ok(Written { count, is_news }));
            }
            match slow {
                SlowPolicy::HoldUp => return Poll::Pending,
                SlowPolicy::Fail => {
                    let error = self.too_slow();
                    self.core.handle_stop(error.clone());
                    return Poll::Ready(Err(error));
                }
                SlowPolicy::DropOldest => match self.core.drop_oldest() {
                    Some(_) => {
                        is_news = true;
                        // The store does not have this part. It was dropped, so remove its file, too.
                        while let Some(number) = self.core.poll_released() {
                            wakers.extend(self.remove_part(number));
                        }
                    }
                    None => {
                        self.count_dropped(bytes.len() as u64);
                        return Poll::Ready(Ok(Written {
                            count: bytes.len(),
                            is_news,
                        }));
                    }
                },
            }
        }
    }

    /// Returns the reason why no more data is accepted, if there is one.
    fn refusal(&self) -> Option<Error> {
        match self.core.outcome() {
            Some(Outcome::Failed(error)) => return Some(error.clone()),
            Some(Outcome::Stored { .. }) => return Some(Error::GivenUp),
            None => {}
        }
        if self.core.has_ended() {
            return Some(self.core.stop_reason().cloned().unwrap_or(Error::GivenUp));
        }
        None
    }

    fn too_slow(&self) -> Error {
        let (_, held, _) = self.core.bytes();
        let (what, max) = match &self.space {
            Space::Spool(share) => ("spool-max-bytes", share.spool().max()),
            Space::Pool(lease) => ("buffer-max-bytes", lease.max()),
            Space::Own => ("bytes", 0),
        };
        Error::TooSlow(format!(
            "the store is too slow (slow-policy=fail): {held} bytes of this object wait for the store; the limit is {what}={max} for all \
            objects"
        ))
    }

    /// Returns the number of bytes taken. If it is 0, the waker is called when there may be room.
    fn try_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        journaled: Option<&Journaled>,
        wakers: &mut Vec<Waker>,
    ) -> Result<usize, Error> {
        let room = self.core.room();
        if room == 0 {
            return Err(self.core.too_long());
        }
        let bytes = &bytes[..at_most(room, bytes.len())];
        let count = match (&self.space, journaled) {
            (Space::Spool(_), Some(journaled)) => self.write_file(cx, bytes, journaled)?,
            _ => self.write_memory(cx, bytes),
        };
        if count > 0
            && let Some(number) = self.core.handle_data(count as u64)
        {
            wakers.extend(self.seal(number, journaled));
        }
        Ok(count)
    }

    fn write_memory(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> usize {
        let Space::Pool(lease) = &self.space else {
            return 0;
        };
        if !matches!(self.filling, Filling::Memory { .. }) {
            self.filling = Filling::Memory {
                blocks: Vec::new(),
                block: Vec::new(),
                room: 0,
                held: 0,
            };
        }
        let Filling::Memory {
            blocks,
            block,
            room,
            held,
        } = &mut self.filling
        else {
            return 0;
        };
        if *room == 0 {
            let (_, filled) = self.core.filling();
            let next = filled
                .clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
                .min(self.core.room());
            if !lease.take(next, filled, cx.waker()) {
                return 0;
            }
            *held += next;
            *room = at_most(next, usize::MAX);
            let full = std::mem::replace(block, Vec::with_capacity(*room));
            if !full.is_empty() {
                blocks.push(full.into());
            }
        }
        let count = bytes.len().min(*room);
        block.extend_from_slice(&bytes[..count]);
        *room -= count;
        count
    }

    fn write_file(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        journaled: &Journaled,
    ) -> Result<usize, Error> {
        let Space::Spool(share) = &self.space else {
            return Ok(0);
        };
        if !matches!(self.filling, Filling::File { .. }) {
            let (number, _) = self.core.filling();
            let path = part_path(&journaled.path, number, false);
            self.filling = Filling::File {
                file: open(&journaled.disk, &path, share.spool()),
                path,
                held: 0,
            };
        }
        let Filling::File { file, held, .. } = &mut self.filling else {
            return Ok(0);
        };
        let taken = share.take(bytes.len() as u64, cx.waker());
        let count = at_most(taken, bytes.len());
        if count == 0 {
            return Ok(0);
        }
        match file.poll_write(cx, count, false, || {
            threadbare_files::Data::Copy(&bytes[..count])
        }) {
            Poll::Ready(Ok(())) => {
                *held += taken;
                Ok(count)
            }
            Poll::Ready(Err(failure)) => Err(Error::File(failure.to_string())),
            Poll::Pending => {
                // The spool had this room a moment ago, so its waiters need not be woken for it.
                drop(share.release(taken));
                Ok(0)
            }
        }
    }

    /// Completes the part being filled.
    fn seal(&mut self, number: u16, journaled: Option<&Journaled>) -> Vec<Waker> {
        let (part, surplus) = match (std::mem::take(&mut self.filling), journaled) {
            (Filling::File { file, held, .. }, Some(journaled)) => {
                let path = part_path(&journaled.path, number, true);
                let closing = file.close(Ending {
                    sync: false,
                    rename_to: Some(path.clone()),
                });
                let data = Data::File(Range {
                    disk: journaled.disk.clone(),
                    path,
                    offset: 0,
                    bytes: held,
                });
                (
                    Part {
                        data,
                        held,
                        closing: Some(closing),
                    },
                    0,
                )
            }
            (
                Filling::Memory {
                    mut blocks,
                    block,
                    room,
                    held,
                },
                _,
            ) => {
                if !block.is_empty() {
                    blocks.push(block.into());
                }
                (
                    Part {
                        data: Data::Memory(blocks),
                        held: held - room as u64,
                        closing: None,
                    },
                    room as u64,
                )
            }
            _ => (
                Part {
                    data: Data::Memory(Vec::new()),
                    held: 0,
                    closing: None,
                },
                0,
            ),
        };
        self.parts.insert(number, part);
        match &self.space {
            Space::Pool(lease) => {
                let mut wakers = lease.sealed();
                if surplus > 0 {
                    wakers.extend(lease.release(surplus));
                }
                wakers
            }
            _ => Vec::new(),
        }
    }

    fn finish(&mut self, journaled: Option<&Journaled>) -> Vec<Waker> {
        match self.core.handle_end() {
            Some(number) => self.seal(number, journaled),
            None => Vec::new(),
        }
    }
}

fn open(disk: &Disk, path: &PathBuf, spool: &Spool) -> File {
    let mut options = Options::new(Access::Write);
    options.block_bytes = SPOOL_BLOCK_BYTES;
    options.budget = Some(spool.budget().clone());
    disk.open(path, options)
}
