//! Tasks and sleepers: run, cancelled by dropping, ended with their context.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{self, Poll, Waker};
use std::thread::{self, ThreadId};

use crate::common::{Tid, next, settle, shard, until};
use threadbare_runtime::{Precision, Sleep, block_on, clock_now_ns, current_shard_id, sleep_until};

/// Reports the thread on which it is dropped.
struct Tell(Sender<ThreadId>);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

/// Stores its waker in `wakers` and never completes.
async fn hang(wakers: Arc<Mutex<Vec<Waker>>>) {
    poll_fn(|cx| {
        wakers.lock().unwrap().push(cx.waker().clone());
        Poll::Pending
    })
    .await
}

#[test]
fn tasks_run_on_their_shard_and_return_their_output() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let task = shard.spawn(async { current_shard_id() });
        assert_eq!(block_on(task), Some(shard.id()));
        let (tx, rx) = channel();
        shard
            .call(move |local| {
                // This value is not `Send`.
                let value = Rc::new(Cell::new(1));
                let task = local.spawn_local({
                    let value = value.clone();
                    async move { value.set(value.get() + 1) }
                });
                local
                    .spawn_local(async move {
                        task.await;
                        tx.send(value.get()).unwrap();
                    })
                    .detach();
            })
            .unwrap();
        assert_eq!(next(&rx), 2);
    }
}

#[test]
fn dropping_a_task_cancels_it_on_its_own_thread() {
    let (_context, shard) = shard(0);
    let home = shard.call(|_| thread::current().id()).unwrap();
    let (tx, rx) = channel();
    let tell = Tell(tx.clone());
    let task = shard.spawn(async move {
        let _tell = tell;
        pending::<()>().await;
    });
    settle(&shard);
    drop(task);
    assert_eq!(next(&rx), home);
    // A task in the middle of a sleep drops its timer too.
    let tell = Tell(tx);
    let task = shard.spawn(async move {
        let _tell = tell;
        sleep_until(clock_now_ns() + 3_600_000_000_000, Precision::About).await;
    });
    settle(&shard);
    drop(task);
    assert_eq!(next(&rx), home);
}

#[test]
fn a_task_of_one_shard_awaits_one_of_another() {
    let ((_of_a, a), (_of_b, b)) = (shard(0), shard(5));
    let task = a.spawn(async move {
        let mut sum = 0;
        for i in 0..50 {
            sum += b.spawn(async move { i }).await;
        }
        (sum, current_shard_id())
    });
    assert_eq!(block_on(task), (1225, Some(a.id())));
}

#[test]
fn sleepers_wake_in_order_and_not_before_their_time() {
    for wait_ms in [0, 10] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let begin_ns = clock_now_ns();
        let deadlines = [60u64, 20, 40].map(|ms| begin_ns + ms * 1_000_000);
        for deadline_ns in deadlines {
            let tx = tx.clone();
            shard
                .spawn(async move {
                    sleep_until(deadline_ns, Precision::NotBefore).await;
                    tx.send((deadline_ns, clock_now_ns())).unwrap();
                })
                .detach();
        }
        let woken = [next(&rx), next(&rx), next(&rx)];
        assert!(woken.is_sorted(), "{woken:?}");
        assert!(woken.iter().all(|(deadline, at)| at >= deadline));

        // `About` may be up to half a tick early. With a time in the past, it does not sleep at all.
        let tick_ns = 1_000_000 * wait_ms.max(1);
        let deadline_ns = clock_now_ns() + 35_000_000;
        block_on(shard.spawn(sleep_until(deadline_ns, Precision::About)));
        assert!(clock_now_ns() + tick_ns / 2 >= deadline_ns);
        block_on(shard.spawn(sleep_until(0, Precision::NotBefore)));
    }
}

#[test]
fn many_sleepers_share_wake_ups() {
    let (_context, shard) = shard(20);
    settle(&shard);
    let before = shard.counters_snapshot().wakeups;
    let begin_ns = clock_now_ns();
    let tasks: Vec<_> = (0..1000)
        .map(|i| shard.spawn(sleep_until(begin_ns + i * 100_000, Precision::NotBefore)))
        .collect();
    tasks.into_iter().for_each(block_on);
    // 100 ms in slices of 20 ms, with the spawns and some tolerance.
    let slept_ms = (clock_now_ns() - begin_ns) / 1_000_000;
    let wakeups = shard.counters_snapshot().wakeups - before;
    assert!(
        wakeups <= slept_ms / 20 * 2 + 10,
        "{wakeups} in {slept_ms} ms"
    );
}

#[test]
fn tasks_end_with_their_context_on_its_thread() {
    for wait_ms in [0, 1000] {
        let (context, shard) = shard(wait_ms);
        let home = shard.call(|_| thread::current().id()).unwrap();
        let tid = Tid::of(&shard);
        let wakers = Arc::new(Mutex::new(Vec::new()));
        let (tx, rx) = channel();
        // These tasks are pending when the context ends, and only a foreign waker refers to them.
        for _ in 0..2 {
            let (tell, wakers) = (Tell(tx.clone()), wakers.clone());
            shard
                .call(move |local| {
                    let task = local.spawn_local(async move {
                        let _tell = tell;
                        hang(wakers).await;
                    });
                    task.detach();
                })
                .unwrap();
        }
        let (tell, of_task) = (Tell(tx.clone()), wakers.clone());
        let task = shard.spawn(async move {
            let _tell = tell;
            hang(of_task).await;
        });
        // This task awaits another task, and is woken when that task ends during the shutdown.
        let (tell, of_task) = (Tell(tx.clone()), wakers.clone());
        let inner = shard.spawn(async move {
            let _tell = tell;
            hang(of_task).await;
        });
        let tell = Tell(tx.clone());
        let outer = shard.spawn(async move {
            let _tell = tell;
            inner.fallible().await
        });
        until("all of them ran", || wakers.lock().unwrap().len() == 4);
        let waiter = thread::spawn(move || block_on(task.fallible()));
        settle(&shard);
        drop(context);
        for _ in 0..5 {
            assert_eq!(next(&rx), home);
        }
        assert_eq!(
            waiter.join().unwrap(),
            None,
            "the awaiting task is notified"
        );
        drop(outer);
        until("the thread ends", || !tid.is_alive());
        // Late wake-ups from here have no receiver.
        wakers.lock().unwrap().drain(..).for_each(Waker::wake);

        let late = shard.spawn(async {});
        assert_eq!(block_on(late.fallible()), None);
    }
}

#[test]
fn block_on_completes_after_a_wake_of_another_thread() {
    let (_context, shard) = shard(0);
    let (tx, rx) = channel();
    let value = Arc::new(Mutex::new(None));
    let of_future = value.clone();
    let future = poll_fn(move |cx| match *of_future.lock().unwrap() {
        Some(value) => Poll::Ready(value),
        None => {
            // Wake the task twice, because an additional wake-up must have no effect.
            cx.waker().wake_by_ref();
            tx.send(cx.waker().clone()).unwrap();
            Poll::Pending
        }
    });
    shard
        .command(move |_| {
            let waker = next(&rx);
            *value.lock().unwrap() = Some(42);
            waker.wake();
        })
        .unwrap();
    assert_eq!(block_on(future), 42);
}

/// Polls a sleep once, with a counting waker, and returns the sleep.
fn begin_sleep(shard: &threadbare_runtime::Shard, waker: Waker) -> Pin<Box<Sleep>> {
    shard
        .call(move |_| {
            let deadline_ns = clock_now_ns() + 300_000_000;
            let mut sleep = Box::pin(sleep_until(deadline_ns, Precision::NotBefore));
            let polled = sleep.as_mut().poll(&mut task::Context::from_waker(&waker));
            assert!(polled.is_pending());
            sleep
        })
        .unwrap()
}

/// The timers of two shards have equal keys. A sleep that began on one shard moves to the other shard, and is dropped or polled
/// there. That must not affect the timers of the other shard.
#[test]
fn a_sleep_that_moves_to_another_shard_cancels_no_sleep_there() {
    for moves_on in [false, true] {
        let ((_of_a, a), (_of_b, b)) = (shard(0), shard(0));
        let (tx, rx) = channel();
        let moved = begin_sleep(&a, Waker::noop().clone());
        let kept = begin_sleep(&b, Arc::new(TellWoken(tx)).into());
        let moved = b
            .call(move |_| {
                let mut moved = moved;
                moves_on.then(|| {
                    let mut cx = task::Context::from_waker(Waker::noop());
                    assert!(moved.as_mut().poll(&mut cx).is_pending());
                    moved
                })
            })
            .unwrap();
        next(&rx);
        drop((moved, kept));
    }
}

/// A sleep that is dropped on another thread releases its waker, and with that its task, at once.
#[test]
fn a_sleep_dropped_elsewhere_is_cancelled_on_its_own_shard() {
    let ((_of_a, a), (_of_b, b)) = (shard(0), shard(0));
    for elsewhere in [None, Some(&b)] {
        let (tx, rx) = channel();
        let counted = Arc::new(TellWoken(tx));
        let sleep = begin_sleep(&a, counted.clone().into());
        match elsewhere {
            Some(shard) => shard.call(move |_| drop(sleep)).unwrap(),
            None => drop(sleep),
        }
        settle(&a);
        assert_eq!(Arc::strong_count(&counted), 1, "no waker is left");
        assert!(rx.try_recv().is_err());
    }
}

struct TellWoken(Sender<()>);

impl task::Wake for TellWoken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// async-task aborts the process if a task that is not `Send` is dropped on another thread than its own. A wake-up from another
/// thread, at the moment of the shard's end, must not cause that.
#[test]
fn a_local_task_woken_while_its_shard_ends_is_dropped_on_its_own_thread() {
    for round in 0..ENDS {
        let (context, shard) = shard(round % 2 * 5);
        let home = shard.call(|_| thread::current().id()).unwrap();
        let wakers = Arc::new(Mutex::new(Vec::new()));
        let (tx, rx) = channel();
        for _ in 0..TASKS {
            let (tell, wakers) = (Tell(tx.clone()), wakers.clone());
            shard
                .call(move |local| {
                    let not_send = Rc::new(tell);
                    let task = async move {
                        let _not_send = not_send;
                        poll_fn(|cx| {
                            wakers.lock().unwrap().push(cx.waker().clone());
                            Poll::<()>::Pending
                        })
                        .await;
                    };
                    local.spawn_local(task).detach();
                })
                .unwrap();
        }
        until("all of them ran", || wakers.lock().unwrap().len() >= TASKS);
        let wakers: Vec<Waker> = wakers.lock().unwrap().drain(..).collect();
        let start = Arc::new(Barrier::new(2));
        let waking = {
            let start = start.clone();
            thread::spawn(move || {
                start.wait();
                wakers.iter().for_each(Waker::wake_by_ref);
            })
        };
        start.wait();
        drop(context);
        waking.join().unwrap();
        drop(tx);
        let dropped: Vec<ThreadId> = rx.iter().collect();
        assert_eq!(dropped, [home; TASKS]);
    }
}

/// Number of ends against wake-ups: in some of them, each side wins the race.
const ENDS: u64 = 300;
const TASKS: usize = 50;
