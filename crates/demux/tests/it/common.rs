//! A sink, a stream and a task under a test's control.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::{Sink, Stream};
use threadbare_demux::{Builder, Demultiplexer, NoOrders, Report, Target, Verdict};

/// A key and a number.
pub type Message = (u32, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// State of a sink that tests read and control.
#[derive(Default)]
pub struct Inside {
    pub taken: Vec<Message>,
    /// Number of further messages that the sink takes; `None`: it takes all.
    pub room: Option<usize>,
    pub breaks: bool,
    pub keeps_flush: bool,
    pub keeps_open: bool,
    pub readies: usize,
    pub flushes: usize,
    pub is_closed: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Default)]
pub struct Basket(Arc<Mutex<Inside>>);

impl Basket {
    pub fn with_room(room: usize) -> Basket {
        let basket = Basket::default();
        basket.inside().room = Some(room);
        basket
    }

    pub fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.inside().taken.iter().map(|(_, n)| *n).collect()
    }

    /// Changes the state, and wakes its waiters.
    pub fn change(&self, change: impl FnOnce(&mut Inside)) {
        let waker = {
            let mut inside = self.inside();
            change(&mut inside);
            inside.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn make_room(&self, room: usize) {
        self.change(|inside| inside.room = inside.room.map(|before| before + room));
    }

    /// Whether the demultiplexer has no reference to it left.
    pub fn is_dropped(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn poll(&self, cx: &mut Context<'_>, is_held: fn(&Inside) -> bool) -> Poll<Result<(), Broken>> {
        let mut inside = self.inside();
        if inside.breaks {
            return Poll::Ready(Err(Broken));
        }
        if is_held(&inside) {
            inside.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Sink<Message> for Basket {
    type Error = Broken;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.inside().readies += 1;
        self.poll(cx, |inside| inside.room == Some(0))
    }

    fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), Broken> {
        let mut inside = self.inside();
        assert_ne!(inside.room, Some(0), "sent without asking");
        inside.room = inside.room.map(|room| room - 1);
        inside.taken.push(message);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.inside().flushes += 1;
        self.poll(cx, |inside| inside.keeps_flush)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let closed = self.poll(cx, |inside| inside.keeps_open);
        self.inside().is_closed |= closed.is_ready();
        closed
    }
}

/// The input of a stream, controlled by a test.
pub struct Feed<T>(Arc<Mutex<Fed<T>>>);

struct Fed<T> {
    items: VecDeque<T>,
    has_ended: bool,
    waker: Option<Waker>,
}

impl<T> Clone for Feed<T> {
    fn clone(&self) -> Self {
        Feed(self.0.clone())
    }
}

impl<T> Default for Feed<T> {
    fn default() -> Self {
        Feed(Arc::new(Mutex::new(Fed {
            items: VecDeque::new(),
            has_ended: false,
            waker: None,
        })))
    }
}

impl<T> Feed<T> {
    fn change(&self, change: impl FnOnce(&mut Fed<T>)) {
        let waker = {
            let mut fed = self.0.lock().unwrap();
            change(&mut fed);
            fed.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn put(&self, item: T) {
        self.change(|fed| fed.items.push_back(item));
    }

    pub fn end(&self) {
        self.change(|fed| fed.has_ended = true);
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().items.len()
    }
}

impl<T> Stream for Feed<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut fed = self.0.lock().unwrap();
        match fed.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if fed.has_ended => Poll::Ready(None),
            None => {
                fed.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[derive(Default)]
pub struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

pub type Plain = NoOrders<u32, Basket>;
pub type Find = fn(&Message) -> Option<u32>;
pub type Judge = Box<dyn FnMut(&Target<u32>, Broken) -> Verdict>;

pub fn find(message: &Message) -> Option<u32> {
    (message.0 < 1000).then_some(message.0)
}

/// Returns a builder with these rules.
pub fn builder(verdict: Verdict) -> Builder<Message, Basket, Find, Plain, Judge> {
    Builder::new(find as Find, Box::new(move |_: &Target<u32>, _| verdict))
}

/// A demultiplexer as a task that is polled only after a wake-up, so that missing wake-ups are found.
pub struct Task<O = Plain> {
    demultiplexer: Demultiplexer<Feed<Message>, Find, O, Basket, Judge>,
    wakes: Arc<Wakes>,
    seen: usize,
    is_new: bool,
    pub report: Option<Report>,
    pub polls: usize,
}

impl<O> Task<O>
where
    O: Stream<Item: Into<threadbare_demux::Order<u32, Basket>>> + Unpin,
{
    pub fn new(demultiplexer: Demultiplexer<Feed<Message>, Find, O, Basket, Judge>) -> Self {
        Task {
            demultiplexer,
            wakes: Arc::default(),
            seen: 0,
            is_new: true,
            report: None,
            polls: 0,
        }
    }

    /// Polls once, if the task was woken.
    pub fn step(&mut self) -> bool {
        let wakes = self.wakes.0.load(SeqCst);
        let is_due = std::mem::take(&mut self.is_new) || wakes != self.seen;
        if !is_due || self.report.is_some() {
            return false;
        }
        (self.seen, self.polls) = (wakes, self.polls + 1);
        let waker = Waker::from(self.wakes.clone());
        let mut cx = Context::from_waker(&waker);
        if let Poll::Ready(report) = Pin::new(&mut self.demultiplexer).poll(&mut cx) {
            assert!(report.statistics.are_complete(), "{report:?}");
            assert_eq!(report.statistics.waiting, 0);
            self.report = Some(report);
        }
        true
    }

    /// Polls until the task sleeps.
    pub fn run(&mut self) {
        while self.step() {}
    }
}
