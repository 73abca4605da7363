//! Loads files for `play media`. One thread opens them and another decodes them, so that no request waits for a disk or a
//! decoder. Decoded files are cached; the least recently used are evicted first.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use threadbare_control::calls::MediaSource;
use threadbare_rtp::call::Clip;

use threadbare_audio_file::audio_file::{FILE_BYTES_MAX, FileError, Opened, open};

/// Identifies the loading of a file. Numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct JobId(u64);

/// The progress of loading a file.
#[derive(Debug)]
pub(super) enum News {
    /// The format was recognised. Contains the duration in ms, if it is known.
    Opened(Option<u64>),
    /// All samples are decoded.
    Decoded(Clip),
    /// The file cannot be played. Contains the reason.
    Failed(String),
}

/// A handle to both threads.
#[derive(Debug)]
pub(super) struct Clips {
    jobs: SyncSender<(JobId, MediaSource)>,
    news: Receiver<(JobId, News)>,
    /// Readable when there is news.
    wake: UnixStream,
    next: u64,
}

impl Clips {
    /// Starts the threads.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or descriptors.
    pub(super) fn new() -> std::io::Result<Clips> {
        let (jobs, jobs_taken) = sync_channel(JOBS_MAX);
        let (opened, opened_taken) = sync_channel(OPEN_MAX);
        let (news, news_taken) = channel();
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let teller = Teller { news, waker };
        let other = teller.try_clone()?;
        let cache = Arc::new(Mutex::new(Cache::default()));
        let known = cache.clone();
        std::thread::Builder::new()
            .name("files".to_owned())
            .spawn(move || open_all(&jobs_taken, &opened, &known, &teller))?;
        std::thread::Builder::new()
            .name("decoder".to_owned())
            .spawn(move || decode_all(&opened_taken, &cache, &other))?;
        Ok(Clips {
            jobs,
            news: news_taken,
            wake,
            next: 0,
        })
    }

    /// Starts to load a source, and returns the id of its [`News`]. Returns `None` if too many sources are being loaded.
    pub(super) fn fetch(&mut self, source: MediaSource) -> Option<JobId> {
        let id = JobId(self.next);
        match self.jobs.try_send((id, source)) {
            Ok(()) => {
                self.next += 1;
                Some(id)
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => None,
        }
    }

    /// Returns a descriptor that is readable when there is news.
    pub(super) fn wake(&self) -> &UnixStream {
        &self.wake
    }

    /// Returns what has happened since the last call.
    pub(super) fn poll(&mut self) -> Vec<(JobId, News)> {
        let mut room = [0; 64];
        while (&self.wake).read(&mut room).is_ok_and(|read| read > 0) {}
        self.news.try_iter().collect()
    }
}

#[derive(Debug)]
struct Teller {
    news: Sender<(JobId, News)>,
    waker: UnixStream,
}

impl Teller {
    fn try_clone(&self) -> std::io::Result<Teller> {
        Ok(Teller {
            news: self.news.clone(),
            waker: self.waker.try_clone()?,
        })
    }

    fn tell(&self, id: JobId, news: News) {
        // Sending fails only if the receiver is gone because the process is ending.
        let _ = self.news.send((id, news));
        // Writing fails if the socket is full. Then the receiver is awake anyway.
        let _ = (&self.waker).write(&[0]);
    }
}

/// An open file, passed from the opening thread to the decoding thread.
struct Job {
    id: JobId,
    name: String,
    key: Option<Key>,
    opened: Opened,
}

fn open_all(
    jobs: &Receiver<(JobId, MediaSource)>,
    opened: &SyncSender<Job>,
    cache: &Mutex<Cache>,
    teller: &Teller,
) {
    for (id, source) in jobs {
        let name = match &source {
            MediaSource::File(name) => name.clone(),
            MediaSource::Bytes(_) => "blob".to_owned(),
        };
        match guarded(|| find(source, cache)) {
            Ok(Found::Known(clip)) => teller.tell(id, News::Decoded(clip)),
            Ok(Found::New(key, new)) => {
                teller.tell(id, News::Opened(new.duration_ms()));
                let job = Job {
                    id,
                    name,
                    key,
                    opened: new,
                };
                if opened.send(job).is_err() {
                    return;
                }
            }
            Err(error) => teller.tell(id, News::Failed(format!("{name}: {error}"))),
        }
    }
}

fn decode_all(opened: &Receiver<Job>, cache: &Mutex<Cache>, teller: &Teller) {
    for job in opened {
        let known = job.key.as_ref().and_then(|key| locked(cache).get(key));
        let clip = match known {
            Some(clip) => Ok(clip),
            None => guarded(|| job.opened.decode()),
        };
        let news = match clip {
            Ok(clip) => {
                if let Some(key) = job.key {
                    locked(cache).insert(key, clip.clone());
                }
                News::Decoded(clip)
            }
            Err(error) => News::Failed(format!("{}: {error}", job.name)),
        };
        teller.tell(job.id, news);
    }
}

/// Runs a decoder. If it panics, only this file fails.
fn guarded<T>(work: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(FileError::Damaged {
            format: "audio",
            reason: "the decoder failed".to_owned(),
        })
    })
}

enum Found {
    Known(Clip),
    New(Option<Key>, Opened),
}

fn find(source: MediaSource, cache: &Mutex<Cache>) -> Result<Found, FileError> {
    let path = match source {
        MediaSource::Bytes(bytes) => {
            return Ok(Found::New(None, open(Box::new(Cursor::new(bytes)))?));
        }
        MediaSource::File(path) => path,
    };
    let mut options = File::options();
    // Opening a pipe without a writer would block, and delay other files.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = options.read(true).custom_flags(nonblocking).open(&path)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(std::io::Error::other("the path is not a regular file").into());
    }
    if data.len() > FILE_BYTES_MAX {
        let reason = format!(
            "the file has {} bytes; expected at most {FILE_BYTES_MAX}",
            data.len()
        );
        return Err(std::io::Error::other(reason).into());
    }
    let key = Key {
        device: data.dev(),
        inode: data.ino(),
        bytes: data.len(),
        modified: (data.mtime(), data.mtime_nsec()),
    };
    if let Some(clip) = locked(cache).get(&key) {
        return Ok(Found::Known(clip));
    }
    let opened = open(Box::new(BufReader::new(file)))?;
    Ok(Found::New(Some(key), opened))
}

/// Identifies a version of a file. If the file is replaced, the new one has another key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// Cache of decoded files.
#[derive(Debug, Default)]
struct Cache {
    /// Clips, each with the value of `turn` at its last use.
    clips: HashMap<Key, (Clip, u64)>,
    samples: usize,
    turn: u64,
}

impl Cache {
    fn get(&mut self, key: &Key) -> Option<Clip> {
        self.turn += 1;
        let (clip, used) = self.clips.get_mut(key)?;
        *used = self.turn;
        Some(clip.clone())
    }

    fn insert(&mut self, key: Key, clip: Clip) {
        self.turn += 1;
        self.samples += clip.pcm.len();
        if let Some((old, _)) = self.clips.insert(key, (clip, self.turn)) {
            self.samples -= old.pcm.len();
        }
        while self.samples > CACHED_SAMPLES_MAX {
            let oldest = self.clips.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            if let Some((clip, _)) = self.clips.remove(&oldest) {
                self.samples -= clip.pcm.len();
            }
        }
    }
}

fn locked(cache: &Mutex<Cache>) -> std::sync::MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of sources that wait to be opened. It is enough for a burst of calls that start with an announcement.
const JOBS_MAX: usize = 1024;
/// Maximum number of open files that wait to be decoded.
const OPEN_MAX: usize = 64;
/// Maximum number of samples in the cache: 256 MiB. Files that are being played stay in memory even if they leave the cache.
const CACHED_SAMPLES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_clip_is_evicted_first() {
        let mut cache = Cache::default();
        let key = |inode| Key {
            device: 0,
            inode,
            bytes: 0,
            modified: (0, 0),
        };
        let third = CACHED_SAMPLES_MAX / 3;
        let clip = |samples: usize| Clip {
            pcm: vec![0.0; samples].into(),
            rate_hz: 8000,
            channels: 1,
            times: 1,
        };
        for inode in 0..3 {
            cache.insert(key(inode), clip(third));
        }
        assert!(cache.get(&key(0)).is_some());
        cache.insert(key(3), clip(third));
        let held: Vec<bool> = (0..4)
            .map(|inode| cache.get(&key(inode)).is_some())
            .collect();
        assert_eq!(held, [true, false, true, true]);
        // A file that is inserted again is counted once.
        cache.insert(key(3), clip(third));
        assert_eq!(cache.samples, 3 * third);
    }
}
