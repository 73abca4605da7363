//! What waits to be written: of each call and stream the latest state.
//!
//! | who | what |
//! |---|---|
//! | control thread | puts calls, begins and ends streams |
//! | media threads | put states of streams |
//! | thread "store" | takes everything |
//!
//! All under one lock, for some instructions. It holds one state for each call and stream that lives, and one mark for each that the file still has.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use threadbare_control::calls::{CallId, StreamId};

/// The name of something in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::serve) enum Key {
    Call(CallId),
    Stream(StreamId),
}

/// New states; `None`: it is to be deleted.
pub(super) type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// What is written together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) changes: Changes,
    /// When the first of them came.
    pub(super) since: Instant,
    /// No media leave any more.
    pub(super) is_last: bool,
}

/// See the module.
#[derive(Debug)]
pub(in crate::serve) struct Shelf {
    waiting: Mutex<Waiting>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    changes: Changes,
    since: Option<Instant>,
    /// Streams that run: a media thread may still hand over one that has ended.
    streams: HashSet<StreamId>,
    /// What the file has, or is about to.
    kept: HashSet<Key>,
    end: Option<IsLast>,
    is_over: bool,
}

type IsLast = bool;

impl Shelf {
    /// `kept`: what the file has.
    pub(super) fn new(kept: impl IntoIterator<Item = Key>) -> Shelf {
        let waiting = Waiting {
            kept: kept.into_iter().collect(),
            ..Waiting::default()
        };
        Shelf {
            waiting: Mutex::new(waiting),
            told: Condvar::new(),
        }
    }

    /// A call's new state; `None`: it has ended.
    pub(in crate::serve) fn put_call(&self, call: CallId, state: Option<Vec<u8>>) {
        self.lock().put(Key::Call(call), state);
        self.told.notify_one();
    }

    /// A stream begins.
    pub(in crate::serve) fn begin(&self, stream: StreamId) {
        self.lock().streams.insert(stream);
    }

    /// The state of a stream that runs; of others, it is dropped.
    pub(in crate::serve) fn put_stream(&self, stream: StreamId, state: Vec<u8>) {
        let mut waiting = self.lock();
        if waiting.streams.contains(&stream) {
            waiting.put(Key::Stream(stream), Some(state));
            drop(waiting);
            self.told.notify_one();
        }
    }

    /// A stream has ended.
    pub(in crate::serve) fn end_stream(&self, stream: StreamId) {
        let mut waiting = self.lock();
        waiting.streams.remove(&stream);
        waiting.put(Key::Stream(stream), None);
        drop(waiting);
        self.told.notify_one();
    }

    /// A stream has ended here, and goes on elsewhere: nothing more is written of it.
    pub(in crate::serve) fn forget_stream(&self, stream: StreamId) {
        let mut waiting = self.lock();
        let key = Key::Stream(stream);
        waiting.streams.remove(&stream);
        waiting.kept.remove(&key);
        waiting.put(key, None);
    }

    /// Deletes the streams of the file that nobody went on with.
    pub(in crate::serve) fn sweep(&self) {
        let mut waiting = self.lock();
        let left = waiting.kept.iter().filter(|key| match key {
            Key::Stream(stream) => !waiting.streams.contains(stream),
            Key::Call(_) => false,
        });
        for key in left.cloned().collect::<Vec<Key>>() {
            waiting.put(key, None);
        }
        drop(waiting);
        self.told.notify_one();
    }

    /// Nothing is put any more.
    pub(super) fn end(&self, is_last: bool) {
        self.lock().end.get_or_insert(is_last);
        self.told.notify_one();
    }

    /// Waits for changes, and then for more of them, for this long. `None`: all have been taken, and nothing comes any more.
    pub(super) fn take(&self, gather: Duration) -> Option<Batch> {
        let mut waiting = self.lock();
        let mut begun = Instant::now();
        // What came may be over before it is taken: then there is nothing to write, and more may come.
        while waiting.end.is_none() {
            let left = gather.saturating_sub(begun.elapsed());
            if waiting.changes.is_empty() {
                let waited = self.told.wait(waiting);
                waiting = waited.unwrap_or_else(PoisonError::into_inner);
                begun = Instant::now();
            } else if left.is_zero() {
                break;
            } else {
                let waited = self.told.wait_timeout(waiting, left);
                waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let is_last = waiting.end == Some(true);
        if waiting.is_over || waiting.changes.is_empty() && !is_last {
            return None;
        }
        waiting.is_over = waiting.end.is_some();
        let changes = std::mem::take(&mut waiting.changes);
        for (key, state) in &changes {
            match state {
                Some(_) => waiting.kept.insert(key.clone()),
                None => waiting.kept.remove(key),
            };
        }
        Some(Batch {
            changes,
            since: waiting.since.take().unwrap_or(begun),
            is_last,
        })
    }

    /// It was not written. What came meanwhile is newer.
    pub(super) fn put_back(&self, batch: Batch) {
        let mut waiting = self.lock();
        for (key, state) in batch.changes {
            waiting.changes.entry(key).or_insert(state);
        }
        waiting.since = Some(batch.since);
        waiting.is_over = false;
    }

    /// `true`: the end was told.
    pub(super) fn wait_for_end(&self, at_most: Duration) -> bool {
        let waited = self
            .told
            .wait_timeout_while(self.lock(), at_most, |waiting| waiting.end.is_none());
        let waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        waiting.end.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic while the lock is held leaves consistent state.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn put(&mut self, key: Key, state: Option<Vec<u8>>) {
        if state.is_none() && !self.kept.contains(&key) {
            // The file does not have it.
            self.changes.remove(&key);
            if self.changes.is_empty() {
                self.since = None;
            }
            return;
        }
        self.since.get_or_insert_with(Instant::now);
        self.changes.insert(key, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> CallId {
        CallId::new(name.as_bytes())
    }

    /// A disk that hangs for hours: memory is bounded by what lives.
    #[test]
    fn what_waits_is_bounded_by_what_lives() {
        let shelf = Shelf::new([Key::Call(call("old"))]);
        shelf.put_call(call("old"), None);
        for n in 0..1000 {
            let name = n.to_string();
            shelf.begin(StreamId(n));
            for state in 0..5 {
                shelf.put_call(call(&name), Some(vec![state]));
                shelf.put_stream(StreamId(n), vec![state]);
            }
            shelf.put_call(call(&name), None);
            shelf.end_stream(StreamId(n));
            // Of a media thread that was late.
            shelf.put_stream(StreamId(n), vec![9]);
        }
        let batch = shelf.take(Duration::ZERO).expect("changes");
        let expected = BTreeMap::from([(Key::Call(call("old")), None)]);
        assert_eq!(batch.changes, expected);
        assert!(shelf.lock().streams.is_empty() && shelf.lock().kept.is_empty());
    }

    /// A call that is over before it is written leaves nothing to write, and is no end: what comes behind it is taken.
    #[test]
    fn what_comes_and_goes_at_once_is_no_end() {
        let shelf = Shelf::new([]);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| shelf.take(Duration::from_micros(100)));
            for _ in 0..20_000 {
                shelf.put_call(call("short"), Some(vec![1]));
                shelf.put_call(call("short"), None);
                if taker.is_finished() {
                    break;
                }
            }
            shelf.put_call(call("long"), Some(vec![2]));
            let batch = taker.join().expect("no panic");
            let batch = batch.expect("nobody has told the end");
            let has_long = |batch: &Batch| batch.changes.contains_key(&Key::Call(call("long")));
            // It may have been quick enough to see the short one.
            assert!(
                has_long(&batch)
                    || shelf
                        .take(Duration::ZERO)
                        .is_some_and(|more| has_long(&more))
            );
        });
    }

    #[test]
    fn what_was_not_written_gives_way_to_what_is_newer() {
        let shelf = Shelf::new([]);
        shelf.put_call(call("a"), Some(vec![1]));
        shelf.put_call(call("b"), Some(vec![1]));
        let batch = shelf.take(Duration::ZERO).expect("changes");
        shelf.put_call(call("a"), Some(vec![2]));
        shelf.put_call(call("b"), None);
        shelf.put_back(batch);
        shelf.end(true);
        let batch = shelf.take(Duration::ZERO).expect("changes");
        let expected = BTreeMap::from([
            (Key::Call(call("a")), Some(vec![2])),
            (Key::Call(call("b")), None),
        ]);
        assert_eq!((batch.changes, batch.is_last), (expected, true));
        assert!(shelf.take(Duration::ZERO).is_none());
    }
}
