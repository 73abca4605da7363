//! The queue of states to be written. It holds the latest state of each call and stream.
//!
//! | thread | access |
//! |---|---|
//! | control thread | puts calls, begins and ends streams |
//! | media threads | put states of streams |
//! | thread "store" | takes everything |
//!
//! One lock protects everything, and is held for a few instructions at a time. The queue holds the state of each live call and
//! stream that has changed, and the keys of all states in the file.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use threadbare_control::calls::{CallId, StreamId};

/// A key in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    Call(CallId),
    Stream(StreamId),
}

/// New states by key. `None`: the key is deleted.
pub(super) type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// States that are written together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) changes: Changes,
    /// Time at which the first of these states was queued.
    pub(super) since: Instant,
    /// Whether no more media are sent.
    pub(super) is_last: bool,
}

/// The queue of states: see the module's documentation.
#[derive(Debug)]
pub(crate) struct WriteQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    changes: Changes,
    since: Option<Instant>,
    /// Running streams. States of other streams are dropped, because a media thread may send the state of a stream that has already ended.
    streams: HashSet<StreamId>,
    /// Keys that are in the file, or are about to be written.
    stored: HashSet<Key>,
    end: Option<IsLast>,
    is_over: bool,
}

type IsLast = bool;

impl WriteQueue {
    /// Creates the queue. `stored` are the keys in the file.
    pub(super) fn new(stored: impl IntoIterator<Item = Key>) -> WriteQueue {
        let waiting = Waiting {
            stored: stored.into_iter().collect(),
            ..Waiting::default()
        };
        WriteQueue {
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
        }
    }

    /// Sets the new state of a call. `None`: the call has ended.
    pub(crate) fn put_call(&self, call: CallId, state: Option<Vec<u8>>) {
        self.lock().put(Key::Call(call), state);
        self.changed.notify_one();
    }

    /// Registers a stream.
    pub(crate) fn begin(&self, stream: StreamId) {
        self.lock().streams.insert(stream);
    }

    /// Sets the state of a running stream. For other streams, the state is dropped.
    pub(crate) fn put_stream(&self, stream: StreamId, state: Vec<u8>) {
        let mut waiting = self.lock();
        if waiting.streams.contains(&stream) {
            waiting.put(Key::Stream(stream), Some(state));
            drop(waiting);
            self.changed.notify_one();
        }
    }

    /// Removes a stream that has ended.
    pub(crate) fn end_stream(&self, stream: StreamId) {
        let mut waiting = self.lock();
        waiting.streams.remove(&stream);
        waiting.put(Key::Stream(stream), None);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Removes a stream that continues at another node. Its state is no longer written.
    pub(crate) fn forget_stream(&self, stream: StreamId) {
        let mut waiting = self.lock();
        let key = Key::Stream(stream);
        waiting.streams.remove(&stream);
        waiting.stored.remove(&key);
        waiting.put(key, None);
    }

    /// Deletes those streams in the file that no call has continued.
    pub(crate) fn sweep(&self) {
        let mut waiting = self.lock();
        let left = waiting.stored.iter().filter(|key| match key {
            Key::Stream(stream) => !waiting.streams.contains(stream),
            Key::Call(_) => false,
        });
        for key in left.cloned().collect::<Vec<Key>>() {
            waiting.put(key, None);
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Ends the queue: no more states are added.
    pub(super) fn end(&self, is_last: bool) {
        self.lock().end.get_or_insert(is_last);
        self.changed.notify_one();
    }

    /// Waits for changes, and then collects more of them for the time `gather`. `None`: the queue has ended and is empty.
    pub(super) fn take(&self, gather: Duration) -> Option<Batch> {
        let mut waiting = self.lock();
        let mut begun = Instant::now();
        // A call may end before its state is taken. Then there is nothing to write, but more changes may come.
        while waiting.end.is_none() {
            let left = gather.saturating_sub(begun.elapsed());
            if waiting.changes.is_empty() {
                let waited = self.changed.wait(waiting);
                waiting = waited.unwrap_or_else(PoisonError::into_inner);
                begun = Instant::now();
            } else if left.is_zero() {
                break;
            } else {
                let waited = self.changed.wait_timeout(waiting, left);
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
                Some(_) => waiting.stored.insert(key.clone()),
                None => waiting.stored.remove(key),
            };
        }
        Some(Batch {
            changes,
            since: waiting.since.take().unwrap_or(begun),
            is_last,
        })
    }

    /// Puts back a batch that could not be written. States that were queued in the meantime replace it.
    pub(super) fn put_back(&self, batch: Batch) {
        let mut waiting = self.lock();
        for (key, state) in batch.changes {
            waiting.changes.entry(key).or_insert(state);
        }
        waiting.since = Some(batch.since);
        waiting.is_over = false;
    }

    /// Waits until the queue ends, at most for `at_most`. Returns `true` if it has ended.
    pub(super) fn wait_for_end(&self, at_most: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), at_most, |waiting| waiting.end.is_none());
        let waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        waiting.end.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // If a thread panicked while it held the lock, the state is still consistent.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn put(&mut self, key: Key, state: Option<Vec<u8>>) {
        if state.is_none() && !self.stored.contains(&key) {
            // The file does not contain the key, so it need not be deleted there.
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

    /// Even if a disk hangs for hours, the queue takes no more memory than the number of live calls requires.
    #[test]
    fn queue_is_bounded_by_live_calls_and_streams() {
        let queue = WriteQueue::new([Key::Call(call("old"))]);
        queue.put_call(call("old"), None);
        for n in 0..1000 {
            let name = n.to_string();
            queue.begin(StreamId(n));
            for state in 0..5 {
                queue.put_call(call(&name), Some(vec![state]));
                queue.put_stream(StreamId(n), vec![state]);
            }
            queue.put_call(call(&name), None);
            queue.end_stream(StreamId(n));
            // A late media thread sends the state of a stream that has ended.
            queue.put_stream(StreamId(n), vec![9]);
        }
        let batch = queue.take(Duration::ZERO).expect("changes");
        let expected = BTreeMap::from([(Key::Call(call("old")), None)]);
        assert_eq!(batch.changes, expected);
        assert!(queue.lock().streams.is_empty() && queue.lock().stored.is_empty());
    }

    /// If a call ends before it is written, there is nothing to write, but the queue does not end.
    #[test]
    fn unwritten_ended_call_does_not_end_the_queue() {
        let queue = WriteQueue::new([]);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| queue.take(Duration::from_micros(100)));
            for _ in 0..20_000 {
                queue.put_call(call("short"), Some(vec![1]));
                queue.put_call(call("short"), None);
                if taker.is_finished() {
                    break;
                }
            }
            queue.put_call(call("long"), Some(vec![2]));
            let batch = taker.join().expect("no panic");
            let batch = batch.expect("the end was not signalled");
            let has_long = |batch: &Batch| batch.changes.contains_key(&Key::Call(call("long")));
            // The store may have seen the call that ended immediately.
            assert!(
                has_long(&batch)
                    || queue
                        .take(Duration::ZERO)
                        .is_some_and(|more| has_long(&more))
            );
        });
    }

    #[test]
    fn newer_state_replaces_an_unwritten_one() {
        let queue = WriteQueue::new([]);
        queue.put_call(call("a"), Some(vec![1]));
        queue.put_call(call("b"), Some(vec![1]));
        let batch = queue.take(Duration::ZERO).expect("changes");
        queue.put_call(call("a"), Some(vec![2]));
        queue.put_call(call("b"), None);
        queue.put_back(batch);
        queue.end(true);
        let batch = queue.take(Duration::ZERO).expect("changes");
        let expected = BTreeMap::from([
            (Key::Call(call("a")), Some(vec![2])),
            (Key::Call(call("b")), None),
        ]);
        assert_eq!((batch.changes, batch.is_last), (expected, true));
        assert!(queue.take(Duration::ZERO).is_none());
    }
}
