//! The queue from a fetch, on a client's thread, to its reader, on a context's thread. It is bounded in bytes.
//!
//! | method | caller |
//! |---|---|
//! | [`Pipe::room`], [`Pipe::push`] | the fetch |
//! | [`Pipe::take`] | the reader |
//!
//! While the queue is full, the fetch reads nothing from its connection, so the server has to stop sending.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use threadbare_runtime::{Monitor, Registration, Topics};

use super::core::{Media, Problem, Shortfall};

/// An event of a fetch for its reader.
pub(super) enum Item {
    /// A response starts.
    Opened(Box<Opened>),
    Data {
        bytes: Bytes,
        /// Position of the first byte in the resource.
        position: u64,
    },
    /// The request failed and will be retried.
    Retry {
        problem: Problem,
        position: u64,
        delay_ns: u64,
    },
    /// All data has arrived.
    End,
    Failed {
        problem: Problem,
        shortfall: Option<Shortfall>,
    },
}

/// Information from a response's head.
pub(super) struct Opened {
    pub(super) media: Media,
    pub(super) size: Option<u64>,
    pub(super) is_seekable: bool,
    /// Target of redirections, and whether they are permanent.
    pub(super) redirect: Option<(String, bool)>,
    /// The property `http-headers`.
    pub(super) headers: gst::Structure,
    pub(super) tags: Option<gst::TagList>,
    /// Whether the next data does not follow the last data.
    pub(super) is_break: bool,
}

/// Both ends of the queue.
#[derive(Clone)]
pub(super) struct Pipe(Arc<Monitor<State>>);

struct State {
    items: VecDeque<Item>,
    bytes: usize,
    bytes_max: usize,
    reader: Registration,
}

const ITEM: Topics = Topics::of(0);
const ROOM: Topics = Topics::of(1);
/// Maximum number of items. Without it, a server that sends byte by byte could fill the queue with entries that are larger than
/// their data.
const ITEMS_MAX: usize = 1024;

impl State {
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max || self.items.len() >= ITEMS_MAX
    }

    /// Whether there is enough room to wake the fetch. If it were woken for less room, it would be woken for each item.
    fn is_roomy(&self) -> bool {
        self.bytes <= self.bytes_max / 2 && self.items.len() <= ITEMS_MAX / 2
    }
}

impl Pipe {
    pub(super) fn new(bytes_max: usize) -> Self {
        Pipe(Arc::new(Monitor::new(State {
            items: VecDeque::new(),
            bytes: 0,
            bytes_max,
            reader: Registration::default(),
        })))
    }

    /// Completes when the queue has room.
    pub(super) async fn room(&self) {
        if !self.0.lock().is_full() {
            return;
        }
        let roomy = |state: &mut threadbare_runtime::Guard<'_, State>| {
            if state.is_roomy() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        };
        self.0.until(ROOM, roomy).await;
    }

    /// Appends an item, even if the queue is full.
    pub(super) fn push(&self, item: Item) {
        let mut state = self.0.lock();
        if let Item::Data { bytes, .. } = &item {
            state.bytes += bytes.len();
        }
        state.items.push_back(item);
        state.wake(ITEM);
    }

    /// Returns the next item, if any. If there is none, wakes `waker` when one arrives.
    pub(super) fn take(&self, waker: impl FnOnce() -> Waker) -> Option<Item> {
        let mut state = self.0.lock();
        let Some(item) = state.items.pop_front() else {
            let mut reader = std::mem::take(&mut state.reader);
            state.register(&mut reader, ITEM, waker());
            state.reader = reader;
            return None;
        };
        if let Item::Data { bytes, .. } = &item {
            state.bytes -= bytes.len();
        }
        if state.is_roomy() {
            state.wake(ROOM);
        }
        Some(item)
    }

    /// Returns the number of queued bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn data(count: usize) -> Item {
        Item::Data {
            bytes: Bytes::from(vec![0; count]),
            position: 0,
        }
    }

    #[test]
    fn a_full_pipe_accepts_data_again_when_it_is_half_empty() {
        let pipe = Pipe::new(1000);
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        for _ in 0..4 {
            assert!(pin!(pipe.room()).poll(&mut cx).is_ready());
            pipe.push(data(250));
        }
        let mut room = pin!(pipe.room());
        assert!(room.as_mut().poll(&mut cx).is_pending());
        let take = || pipe.take(|| unreachable!("it is not empty"));
        assert!(take().is_some());
        assert_eq!(
            count.0.load(Relaxed),
            0,
            "a quarter is no room worth waking for"
        );
        assert!(take().is_some());
        assert_eq!(count.0.load(Relaxed), 1);
        assert!(room.as_mut().poll(&mut cx).is_ready());
        assert_eq!(pipe.bytes(), 500);
    }

    #[test]
    fn an_item_wakes_the_reader_once() {
        let pipe = Pipe::new(1000);
        let count = Arc::new(Count::default());
        assert!(pipe.take(|| Waker::from(count.clone())).is_none());
        pipe.push(data(1));
        pipe.push(data(1));
        assert_eq!(count.0.load(Relaxed), 1);
        assert!(pipe.take(|| unreachable!("it is not empty")).is_some());
    }

    #[test]
    fn small_items_are_bounded_by_number() {
        let pipe = Pipe::new(usize::MAX);
        let waker = Waker::noop();
        let mut cx = Context::from_waker(waker);
        for _ in 0..ITEMS_MAX {
            assert!(pin!(pipe.room()).poll(&mut cx).is_ready());
            pipe.push(data(1));
        }
        assert!(pin!(pipe.room()).poll(&mut cx).is_pending());
    }
}
