//! A lock with conditions. It is the only mechanism by which a thread waits for another thread's changes.
//!
//! A [`Monitor`] protects a state. A thread that changes the state names the affected [`Topics`] through the [`Guard`]. The guard
//! wakes their waiters after the unlock, so that no foreign waker runs under the lock. A waiter is a future ([`Monitor::until`]).
//! It evaluates its condition under the lock, and again after each change of its topics. On a context's thread, the future belongs
//! to a task or to the source that pushed. An ordinary thread passes it to [`block_on`](crate::block_on).
//!
//! Dropping the future removes its waker from the monitor. A wake-up goes to all waiters of a topic, so a cancelled waiter cannot
//! lose the wake-up of another waiter.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{BitOr, Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard, lock};

/// A state under a lock, and the waiters for its changes.
pub struct Monitor<S> {
    inner: Mutex<Inner<S>>,
}

/// The fields have this order so that the waiters, the lock and the state's first fields are next to each other in memory.
#[repr(C)]
struct Inner<S> {
    waiters: Waiters,
    last_id: NonZeroU64,
    state: S,
}

/// The waiters, unordered and searched linearly. Usually there is at most one, which is stored next to the state.
#[derive(Default)]
struct Waiters {
    /// `None` only if `others` is empty.
    first: Option<Waiter>,
    others: Vec<Waiter>,
}

impl Waiters {
    fn push(&mut self, waiter: Waiter) {
        match &self.first {
            None => self.first = Some(waiter),
            Some(_) => self.others.push(waiter),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.first.iter().chain(&self.others)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// Removes one waiter for which `is_it` returns `true`, if any.
    fn take(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        if self.first.as_ref().is_some_and(&is_it) {
            let next = self.others.pop();
            return std::mem::replace(&mut self.first, next);
        }
        let at = self.others.iter().position(is_it)?;
        Some(self.others.swap_remove(at))
    }
}

struct Waiter {
    id: NonZeroU64,
    topics: Topics,
    waker: Waker,
}

/// A set of up to eight kinds of change, named by the owner of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Topics(u8);

impl Topics {
    /// The empty set.
    pub const NONE: Topics = Topics(0);
    /// Every kind.
    pub const ALL: Topics = Topics(u8::MAX);

    /// Returns the set with the kind of this number, 0 to 7.
    pub const fn of(number: u8) -> Topics {
        assert!(number < 8, "a monitor has eight topics");
        Topics(1 << number)
    }

    /// Returns the union of two sets.
    pub const fn and(self, other: Topics) -> Topics {
        Topics(self.0 | other.0)
    }

    fn concern(self, other: Topics) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Topics {
    type Output = Topics;

    fn bitor(self, other: Topics) -> Topics {
        self.and(other)
    }
}

/// Registration of a waiter. A waiter uses one registration for all its waits, so that the monitor has the waiter at most once.
#[derive(Debug, Default)]
pub struct Registration(Option<NonZeroU64>);

impl<S> Monitor<S> {
    /// Creates a monitor for `state`, without waiters.
    pub fn new(state: S) -> Self {
        Monitor {
            inner: Mutex::new(Inner {
                state,
                waiters: Waiters::default(),
                last_id: NonZeroU64::MIN,
            }),
        }
    }

    /// Locks the state.
    #[inline]
    pub fn lock(&self) -> Guard<'_, S> {
        Guard {
            inner: lock(&self.inner),
            changed: Topics::NONE,
            woken: Woken::default(),
            replaced: None,
        }
    }

    /// Returns a future that completes when `condition` is ready. The condition is evaluated under the lock: at once, and again
    /// after each change of `topics`.
    pub fn until<R, F>(self: &Arc<Self>, topics: Topics, condition: F) -> Until<Self, S, F>
    where
        F: FnMut(&mut Guard<'_, S>) -> Poll<R>,
    {
        until(self.clone(), |monitor| monitor, topics, condition)
    }

    /// Evaluates `condition` once, under the lock. If it is pending, the waiter is registered for `topics`. This is for waits
    /// that are part of a larger future; cancel the registration when that future ends.
    pub fn poll_until<R>(
        &self,
        registration: &mut Registration,
        topics: Topics,
        cx: &mut Context<'_>,
        condition: impl FnOnce(&mut Guard<'_, S>) -> Poll<R>,
    ) -> Poll<R> {
        let mut guard = self.lock();
        let result = condition(&mut guard);
        match &result {
            Poll::Ready(_) => {
                drop(guard);
                self.cancel(registration);
            }
            // Registers under the same lock as the condition, so that no change is missed.
            Poll::Pending if guard.knows(registration, cx.waker()) => {}
            Poll::Pending => guard.register(registration, topics, cx.waker().clone()),
        }
        result
    }

    /// Removes a waiter.
    pub fn cancel(&self, registration: &mut Registration) {
        if let Some(id) = registration.0.take() {
            let waiter = lock(&self.inner).waiters.take(|waiter| waiter.id == id);
            // Dropped after the unlock, because dropping a foreign waker calls foreign code.
            drop(waiter);
        }
    }
}

/// The locked state. When dropped, it unlocks and then wakes the waiters of the changed topics.
pub struct Guard<'a, S> {
    // The lock is the first field, because fields are dropped from the first to the last. So the wakers are dropped after the
    // unlock: dropping a foreign waker calls foreign code.
    inner: MutexGuard<'a, Inner<S>>,
    changed: Topics,
    woken: Woken,
    replaced: Option<Waker>,
}

/// Waiters that have left the monitor. The drop wakes them.
#[derive(Default)]
struct Woken {
    first: Option<Waiter>,
    /// Usually empty, without an allocation.
    others: Vec<Waiter>,
}

impl Drop for Woken {
    #[inline]
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            first.waker.wake();
            self.others.drain(..).for_each(|waiter| waiter.waker.wake());
        }
    }
}

impl<S> Guard<'_, S> {
    /// Makes the waiters of `topics` evaluate their conditions again, after the unlock.
    #[inline]
    pub fn wake(&mut self, topics: Topics) {
        self.changed = self.changed | topics;
    }

    /// Whether a waiter waits for one of `topics`.
    pub fn has_waiter(&self, topics: Topics) -> bool {
        let mut waiters = self.inner.waiters.iter();
        waiters.any(|waiter| waiter.topics.concern(topics))
    }

    /// Wakes `waker` once, at the next change of `topics`. This is for waiters without a future, such as agents.
    pub fn register(&mut self, registration: &mut Registration, topics: Topics, waker: Waker) {
        let inner = &mut *self.inner;
        if let Some(id) = registration.0
            && let Some(known) = inner.waiters.iter_mut().find(|waiter| waiter.id == id)
        {
            known.topics = topics;
            self.replaced = Some(std::mem::replace(&mut known.waker, waker));
            return;
        }
        let id = registration.0.unwrap_or_else(|| {
            // At one per nanosecond, an overflow takes 500 years.
            inner.last_id = inner.last_id.saturating_add(1);
            inner.last_id
        });
        registration.0 = Some(id);
        inner.waiters.push(Waiter { id, topics, waker });
    }

    /// Whether the registered waker is still waiting for a change.
    fn knows(&self, registration: &Registration, waker: &Waker) -> bool {
        let mut waiters = self.inner.waiters.iter();
        registration
            .0
            .is_some_and(|id| waiters.any(|w| w.id == id && w.waker.will_wake(waker)))
    }
}

impl<S> Deref for Guard<'_, S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.inner.state
    }
}

impl<S> DerefMut for Guard<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        &mut self.inner.state
    }
}

impl<S> Drop for Guard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if self.changed == Topics::NONE {
            return;
        }
        let changed = self.changed;
        let concerns = |waiter: &Waiter| waiter.topics.concern(changed);
        let waiters = &mut self.inner.waiters;
        self.woken.first = waiters.take(concerns);
        if self.woken.first.is_some() {
            let others = std::iter::from_fn(|| waiters.take(concerns));
            self.woken.others.extend(others);
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Monitor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("state", &lock(&self.inner).state)
            .finish_non_exhaustive()
    }
}

/// Acts as [`Monitor::until`], for a monitor inside a shared structure.
pub fn until<T, S, R, F>(
    of: Arc<T>,
    monitor: fn(&T) -> &Monitor<S>,
    topics: Topics,
    condition: F,
) -> Until<T, S, F>
where
    F: FnMut(&mut Guard<'_, S>) -> Poll<R>,
{
    Until {
        of,
        monitor,
        topics,
        condition,
        registration: Registration::default(),
    }
}

/// The future of [`until`].
#[must_use = "futures do nothing unless awaited"]
pub struct Until<T, S, F> {
    of: Arc<T>,
    monitor: fn(&T) -> &Monitor<S>,
    topics: Topics,
    condition: F,
    registration: Registration,
}

// No part of it is pinned, because the condition is called, not polled.
impl<T, S, F> Unpin for Until<T, S, F> {}

impl<T, S, R, F> Future for Until<T, S, F>
where
    F: FnMut(&mut Guard<'_, S>) -> Poll<R>,
{
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = &mut *self;
        let monitor = (this.monitor)(&this.of);
        monitor.poll_until(&mut this.registration, this.topics, cx, &mut this.condition)
    }
}

impl<T, S, F> Drop for Until<T, S, F> {
    fn drop(&mut self) {
        (self.monitor)(&self.of).cancel(&mut self.registration);
    }
}

impl<T, S, F> fmt::Debug for Until<T, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Until")
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    const ROOM: Topics = Topics::of(0);
    const DATA: Topics = Topics::of(1);

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn counted() -> (Arc<Counted>, Waker) {
        let counted = Arc::new(Counted::default());
        (counted.clone(), Waker::from(counted))
    }

    fn at_least(n: u32) -> impl FnMut(&mut Guard<'_, u32>) -> Poll<u32> {
        move |state| {
            if **state >= n {
                Poll::Ready(**state)
            } else {
                Poll::Pending
            }
        }
    }

    #[test]
    fn a_change_wakes_the_waiters_of_its_topics_once() {
        let monitor = Arc::new(Monitor::new(0));
        let (woken, waker) = counted();
        let mut cx = Context::from_waker(&waker);
        let mut room = monitor.until(ROOM, at_least(1));
        let mut data = monitor.until(DATA, at_least(2));
        assert!(Pin::new(&mut room).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut data).poll(&mut cx).is_pending());
        monitor.lock().wake(ROOM);
        assert_eq!(woken.0.load(SeqCst), 1, "only the waiter for room");
        assert!(Pin::new(&mut room).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut room).poll(&mut cx).is_pending());
        {
            let mut state = monitor.lock();
            *state = 2;
            state.wake(Topics::ALL);
        }
        assert_eq!(woken.0.load(SeqCst), 3, "each of the two, once");
        assert_eq!(Pin::new(&mut room).poll(&mut cx), Poll::Ready(2));
        assert_eq!(Pin::new(&mut data).poll(&mut cx), Poll::Ready(2));
    }

    #[test]
    fn a_dropped_or_finished_wait_leaves_no_waker() {
        let monitor = Arc::new(Monitor::new(0));
        let (woken, waker) = counted();
        let mut cx = Context::from_waker(&waker);
        for _ in 0..100 {
            let mut wait = monitor.until(ROOM, at_least(1));
            assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
        }
        assert!(!monitor.lock().has_waiter(Topics::ALL));
        let mut wait = monitor.until(ROOM, at_least(1));
        assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
        *monitor.lock() = 1;
        assert!(Pin::new(&mut wait).poll(&mut cx).is_ready());
        monitor.lock().wake(Topics::ALL);
        assert_eq!(woken.0.load(SeqCst), 0);
        drop(wait);
        assert_eq!(Arc::strong_count(&woken), 2, "this test's two");
    }

    /// A waker that locks the monitor, as a foreign executor's may.
    #[test]
    fn wakers_run_without_the_lock() {
        struct Locks(Arc<Monitor<u32>>);
        impl Wake for Locks {
            fn wake(self: Arc<Self>) {
                *self.0.lock() += 10;
            }
        }
        let monitor = Arc::new(Monitor::new(0));
        let waker = Waker::from(Arc::new(Locks(monitor.clone())));
        let mut waits: Vec<_> = (0..3).map(|_| monitor.until(ROOM, at_least(99))).collect();
        for wait in &mut waits {
            let mut cx = Context::from_waker(&waker);
            assert!(Pin::new(wait).poll(&mut cx).is_pending());
        }
        monitor.lock().wake(ROOM);
        assert_eq!(*monitor.lock(), 30);
    }

    #[test]
    fn an_ordinary_thread_waits_in_block_on() {
        let monitor = Arc::new(Monitor::new(0));
        let waits = std::thread::spawn({
            let monitor = monitor.clone();
            move || crate::block_on(monitor.until(ROOM, at_least(1000)))
        });
        for _ in 0..1000 {
            let mut state = monitor.lock();
            *state += 1;
            state.wake(ROOM);
        }
        assert_eq!(waits.join().unwrap(), 1000);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::task::Wake;

    const CHANGED: Topics = Topics::of(0);

    /// Wakes a parked thread.
    struct Unparks(thread::Thread);

    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn waker() -> Waker {
        Waker::from(Arc::new(Unparks(thread::current())))
    }

    /// Waits until the state is `n`; loom reports a deadlock if a wake-up is lost.
    fn wait_for(monitor: &Arc<Monitor<u8>>, n: u8) {
        let waker = waker();
        let mut cx = Context::from_waker(&waker);
        let mut wait = monitor.until(CHANGED, |state| {
            if **state == n {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        while Pin::new(&mut wait).poll(&mut cx).is_pending() {
            thread::park();
        }
    }

    fn increment(monitor: &Monitor<u8>) {
        let mut state = monitor.lock();
        *state += 1;
        state.wake(CHANGED);
    }

    #[test]
    fn loom_no_change_is_missed() {
        loom::model(|| {
            let monitor = Arc::new(Monitor::new(0));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let monitor = monitor.clone();
                    thread::spawn(move || increment(&monitor))
                })
                .collect();
            wait_for(&monitor, 2);
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// One waiter gives up during the change. The other waiter is woken, and no waiter is left behind.
    #[test]
    fn loom_a_cancelled_wait_does_not_consume_a_wake_up() {
        loom::model(|| {
            let monitor = Arc::new(Monitor::new(0));
            let gives_up = thread::spawn({
                let monitor = monitor.clone();
                move || {
                    let waker = waker();
                    let mut wait = monitor.until(CHANGED, |_| Poll::<()>::Pending);
                    let mut cx = Context::from_waker(&waker);
                    assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
                }
            });
            let changes = thread::spawn({
                let monitor = monitor.clone();
                move || increment(&monitor)
            });
            wait_for(&monitor, 1);
            gives_up.join().unwrap();
            changes.join().unwrap();
            assert!(!monitor.lock().has_waiter(Topics::ALL));
        });
    }

    const ITEM: Topics = Topics::of(1);
    const ROOM: Topics = Topics::of(2);

    /// A queue with room for one item.
    #[derive(Default)]
    struct Queue {
        item: Option<u8>,
        is_stopped: bool,
    }

    fn park_until<F: Future + Unpin>(mut future: F) -> F::Output {
        let waker = waker();
        let mut cx = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut future).poll(&mut cx) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Returns `false` if the queue is stopped.
    fn push(queue: &Arc<Monitor<Queue>>, item: u8) -> bool {
        park_until(queue.until(ROOM, |queue| {
            if queue.is_stopped {
                return Poll::Ready(false);
            }
            if queue.item.is_some() {
                return Poll::Pending;
            }
            queue.item = Some(item);
            queue.wake(ITEM);
            Poll::Ready(true)
        }))
    }

    fn pop(queue: &Arc<Monitor<Queue>>) -> Option<u8> {
        park_until(queue.until(ITEM, |queue| {
            if queue.is_stopped {
                return Poll::Ready(None);
            }
            let Some(item) = queue.item.take() else {
                return Poll::Pending;
            };
            queue.wake(ROOM);
            Poll::Ready(Some(item))
        }))
    }

    #[test]
    fn loom_a_queue_hands_all_items_over_in_order() {
        loom::model(|| {
            let queue = Arc::new(Monitor::new(Queue::default()));
            let writer = thread::spawn({
                let queue = queue.clone();
                move || (1..=2).all(|item| push(&queue, item))
            });
            assert_eq!((pop(&queue), pop(&queue)), (Some(1), Some(2)));
            assert!(writer.join().unwrap());
        });
    }

    /// When the queue is stopped, a writer that waits for room is released, whatever happens at the same time.
    #[test]
    fn loom_a_stop_releases_the_writer() {
        loom::model(|| {
            let queue = Arc::new(Monitor::new(Queue::default()));
            let writer = thread::spawn({
                let queue = queue.clone();
                move || (1..=2).all(|item| push(&queue, item))
            });
            {
                let mut queue = queue.lock();
                queue.is_stopped = true;
                queue.wake(Topics::ALL);
            }
            assert!(!writer.join().unwrap(), "nothing makes room");
            assert!(!queue.lock().has_waiter(Topics::ALL));
        });
    }
}
