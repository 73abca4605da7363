//! Futures on a context: every way in which a task ends, and its report.
//!
//! Names and meaning are those of GLib's main context. If a test differs from GLib's documentation, the documentation of the
//! function says so.

use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::{context, next, settle, until};
use futures_util::StreamExt;
use threadbare_runtime::{
    Context, JoinError, JoinHandle, MissedTicks, Shard, block_on, clock_now_ns, current_shard_id,
    interval_stream, interval_stream_with, timeout_future, timeout_future_seconds,
};

/// Reports the thread on which it is dropped.
struct Tell(Sender<ThreadId>);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

fn tell() -> (Tell, Receiver<ThreadId>) {
    let (tx, rx) = channel();
    (Tell(tx), rx)
}

/// Returns the only thread of a context.
fn home(context: &Context) -> ThreadId {
    on(context, |_| thread::current().id())
}

/// Runs `f` on the context's thread.
fn on<R: Send + 'static>(context: &Context, f: impl FnOnce(&Context) -> R + Send + 'static) -> R {
    let of_call = context.clone();
    let result = context.shards()[0].call(move |_| f(&of_call));
    // The call's share of the context is gone after its thread has finished the command.
    settle(&context.shards()[0]);
    result.expect("open")
}

fn settled(context: &Context) {
    context.shards().iter().for_each(settle);
}

fn is_cancelled<T>(result: Result<T, JoinError>) -> bool {
    result.is_err_and(|error| error.is_cancelled())
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut task::Context::from_waker(Waker::noop()))
}

#[test]
fn a_task_runs_on_the_context_and_its_handle_gives_the_result() {
    for wait_ms in [0, 5] {
        let context = context(wait_ms, -1);
        let shard_id = context.shards()[0].id();
        let handle = context.spawn(async { (current_shard_id(), 42) });
        assert_eq!(block_on(handle).unwrap(), (Some(shard_id), 42));
        let result = context.block_on(async { current_shard_id() });
        assert_eq!(result.unwrap(), Some(shard_id));
    }
}

#[test]
fn tasks_are_spread_over_the_threads() {
    let context = context(0, 3);
    let handles: Vec<_> = (0..6)
        .map(|_| context.spawn(async { current_shard_id().unwrap() }))
        .collect();
    let mut ids: Vec<u64> = handles.into_iter().map(|h| block_on(h).unwrap()).collect();
    ids.sort_unstable();
    let mut expected: Vec<u64> = context.shards().iter().map(Shard::id).collect();
    expected.extend(expected.clone());
    expected.sort_unstable();
    assert_eq!(ids, expected, "round-robin");
}

#[test]
fn a_dropped_handle_detaches_its_task() {
    for wait_ms in [0, 5] {
        let context = context(wait_ms, -1);
        let (tx, rx) = channel();
        drop(context.spawn(async move {
            timeout_future(Duration::from_millis(1)).await;
            tx.send(()).unwrap();
        }));
        next(&rx);
    }
}

#[test]
fn a_local_task_need_not_be_send_and_its_handle_is_send_if_the_result_is() {
    let context = context(0, -1);
    let (tell, dropped) = tell();
    let (tx, rx) = channel();
    let handle = on(&context, move |context| {
        let not_send = Rc::new((Cell::new(1), tell));
        let of_task = not_send.clone();
        let inner = context.spawn_local(async move {
            of_task.0.set(of_task.0.get() + 1);
            of_task
        });
        // A result that is not `Send` stays on its own thread.
        context.spawn_local(async move {
            let same = inner.await.unwrap();
            tx.send(same.0.get()).unwrap();
            drop(not_send);
            drop(same);
            7
        })
    });
    assert_eq!(next(&rx), 2);
    assert_eq!(
        thread::spawn(move || block_on(handle))
            .join()
            .unwrap()
            .unwrap(),
        7
    );
    assert_eq!(next(&dropped), home(&context));
}

#[test]
fn spawn_local_panics_on_threads_outside_of_the_context() {
    let (ours, other) = (context(0, -1), context(0, -1));
    let (tell, dropped) = tell();
    let tried = catch_unwind(AssertUnwindSafe(|| {
        ours.spawn_local(async move {
            let _tell = tell;
        })
    }));
    let message = *tried.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains(ours.name()), "{message}");
    assert!(message.contains("spawn_from_within"), "{message}");
    assert_eq!(next(&dropped), thread::current().id());

    let of_ours = ours.clone();
    let tried = on(&other, move |_| {
        catch_unwind(AssertUnwindSafe(|| of_ours.spawn_local(async {}))).is_err()
    });
    assert!(tried, "on another context");
}

#[test]
fn spawn_from_within_builds_its_future_on_the_context() {
    for wait_ms in [0, 5] {
        let context = context(wait_ms, -1);
        let (tell, dropped) = tell();
        let handle = context.spawn_from_within(move || {
            let built_on = thread::current().id();
            let not_send = Rc::new(tell);
            async move {
                timeout_future(Duration::from_millis(1)).await;
                let _not_send = not_send;
                built_on
            }
        });
        let home = home(&context);
        assert_eq!(block_on(handle).unwrap(), home);
        assert_eq!(next(&dropped), home);
    }
}

#[test]
fn block_on_from_within_a_context_is_refused() {
    let (ours, other) = (context(0, -1), context(0, -1));
    for called_on in [&ours, &other] {
        let of_ours = ours.clone();
        let (tell, dropped) = tell();
        let error = on(called_on, move |_| {
            of_ours.block_on(async move { drop(tell) }).unwrap_err()
        });
        assert!(error.is_refused() && !error.is_cancelled() && !error.is_panic());
        assert!(error.to_string().contains("block_on"), "{error}");
        assert_eq!(next(&dropped), home(called_on), "the future has not run");
    }
    assert_eq!(ours.block_on(ready(1)).unwrap(), 1, "the context continues");
}

#[test]
fn block_on_outside_of_contexts_may_wait_for_one() {
    let context = context(5, -1);
    let of_future = context.clone();
    let sum = block_on(async move {
        timeout_future(Duration::from_millis(1)).await;
        let mut sum = of_future.spawn(ready(1)).await.unwrap();
        // This thread does not belong to a context, so it may sleep.
        sum += of_future.block_on(ready(2)).unwrap();
        timeout_future(Duration::from_millis(1)).await;
        sum
    });
    assert_eq!(sum, 3);
}

/// Awaiting the task returns text and payload of the panic; the thread continues.
#[test]
fn a_panic_ends_only_its_task() {
    let context = context(0, -1);
    type Panicking = fn(&Context) -> JoinHandle<()>;
    let ways: [Panicking; 3] = [
        |context| context.spawn(async { panic!("at once") }),
        |context| {
            context.spawn(async {
                timeout_future(Duration::from_millis(1)).await;
                panic!("at once");
            })
        },
        |context| context.spawn_from_within(|| -> std::future::Ready<()> { panic!("at once") }),
    ];
    for way in ways {
        let error = block_on(way(&context)).unwrap_err();
        assert!(error.is_panic() && !error.is_cancelled());
        assert_eq!(error.to_string(), "the task panicked: at once");
        assert_eq!(*error.into_panic().downcast::<&str>().unwrap(), "at once");
        drop(way(&context));
    }
    let error = context
        .block_on(async { panic!("number {}", 1) })
        .unwrap_err();
    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert_eq!(error.to_string(), "the task panicked: number 1");
    let error = context
        .block_on(async { std::panic::panic_any(5_u8) })
        .unwrap_err();
    assert_eq!(*error.into_panic().downcast::<u8>().unwrap(), 5);
    assert_eq!(
        context.block_on(ready(1)).unwrap(),
        1,
        "the thread continues"
    );

    let other = context.spawn(pending::<()>());
    other.abort();
    let error = block_on(other).unwrap_err().try_into_panic().unwrap_err();
    assert!(error.is_cancelled());
}

/// async-task aborts the process if a future panics while async-task drops it.
#[test]
fn a_panic_while_a_future_or_its_result_is_dropped_is_contained() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let (begun, has_begun) = channel();
    let hold = || {
        let begun = begun.clone();
        async move {
            let _panics = Panics;
            begun.send(()).unwrap();
            pending::<()>().await
        }
    };
    let ours = context(0, -1);
    let handle = ours.spawn(hold());
    next(&has_begun);
    handle.abort();
    assert!(block_on(handle).unwrap_err().is_panic());
    // A result that is not taken.
    drop(ours.spawn(async {
        timeout_future(Duration::from_millis(1)).await;
        Panics
    }));
    ours.block_on(timeout_future(Duration::from_millis(5)))
        .unwrap();
    let at_end = ours.spawn(hold());
    next(&has_begun);
    drop(ours);
    assert!(block_on(at_end).unwrap_err().is_panic());
}

#[test]
fn a_task_aborted_before_its_first_poll_never_runs() {
    let context = context(0, -1);
    let home = home(&context);
    let (of_future, future_dropped) = tell();
    let (of_closure, closure_dropped) = tell();
    // The context's thread is busy with this command, so no task begins.
    let (handle, within) = on(&context, move |context| {
        let handle = context.spawn(async move {
            let _tell = of_future;
            panic!("polled");
        });
        let within = context.spawn_from_within(move || {
            let _tell = of_closure;
            panic!("called");
            #[allow(unreachable_code, reason = "the closure's type")]
            ready(())
        });
        handle.abort();
        within.abort();
        assert!(!handle.is_finished(), "the future is still there");
        (handle, within)
    });
    // When the handle completes, the future has been dropped.
    assert!(is_cancelled(block_on(handle)));
    assert_eq!(future_dropped.try_recv().unwrap(), home);
    assert!(is_cancelled(block_on(within)));
    assert_eq!(closure_dropped.try_recv().unwrap(), home);
}

#[test]
fn an_abort_while_the_task_waits_drops_the_future_on_its_own_thread() {
    for wait_ms in [0, 5] {
        let context = context(wait_ms, -1);
        let (tell, dropped) = tell();
        let (begun, has_begun) = channel();
        let handle = context.spawn_from_within(move || {
            let not_send = Rc::new(tell);
            async move {
                let _not_send = not_send;
                begun.send(()).unwrap();
                timeout_future_seconds(3600).await;
            }
        });
        next(&has_begun);
        handle.abort();
        handle.abort();
        // When the handle completes, the future has been dropped.
        let handle = thread::spawn(move || {
            assert!(is_cancelled(block_on(handle)));
        });
        handle.join().unwrap();
        assert_eq!(dropped.try_recv().unwrap(), home(&context));
    }
}

/// The waiting thread gets the error even if it awaits the task before the abort. A task may also abort itself.
#[test]
fn abort_reaches_the_awaiting_task() {
    let context = context(0, -1);
    let handle = Arc::new(Mutex::new(context.spawn(pending::<()>())));
    let (tx, rx) = channel();
    let of_waiter = handle.clone();
    let waiter = thread::spawn(move || {
        block_on(poll_fn(|cx| {
            let polled = Pin::new(&mut *of_waiter.lock().unwrap()).poll(cx);
            let _ = tx.send(());
            polled
        }))
    });
    next(&rx);
    handle.lock().unwrap().abort();
    assert!(is_cancelled(waiter.join().unwrap()));

    let (tell, dropped) = tell();
    let (give, given) = channel::<JoinHandle<()>>();
    let task = context.spawn(async move {
        let _tell = tell;
        let itself = next(&given);
        itself.abort();
        drop(itself);
        pending::<()>().await;
    });
    give.send(task).unwrap();
    assert_eq!(next(&dropped), home(&context));
}

#[test]
fn an_abort_after_the_end_leaves_the_result() {
    let context = context(0, -1);
    let mut handle = context.spawn(ready(42));
    until("it ends", || handle.is_finished());
    handle.abort();
    assert_eq!(block_on(&mut handle).unwrap(), 42);
    handle.abort();
    assert!(handle.is_finished());
    assert!(is_cancelled(block_on(&mut handle)), "the result is taken");
}

/// A handle is not a share of the context; its tasks end with the last share, on their own thread.
#[test]
fn tasks_in_flight_are_cancelled_with_their_context() {
    for wait_ms in [0, 1000] {
        let context = context(wait_ms, -1);
        let home = home(&context);
        let (tx, dropped) = channel();
        let name = context.name().to_owned();
        let mut handles: Vec<JoinHandle<()>> = Vec::new();
        for i in 0..3 {
            let tell = Tell(tx.clone());
            handles.push(context.spawn_from_within(move || {
                let not_send = Rc::new(tell);
                async move {
                    let _not_send = not_send;
                    match i {
                        0 => pending().await,
                        1 => timeout_future_seconds(3600).await,
                        _ => {
                            interval_stream(Duration::from_secs(3600))
                                .map(|_| ())
                                .collect()
                                .await
                        }
                    }
                }
            }));
        }
        settled(&context);
        let waiters: Vec<_> = handles
            .into_iter()
            .map(|handle| thread::spawn(move || block_on(handle)))
            .collect();
        // These tasks have not begun: they may start before the context ends, or never.
        let late = context.spawn(pending::<()>());
        let late_within = context.spawn_from_within(pending::<()>);
        assert_eq!(context.users(), 1, "handles do not count as users");
        drop(context);
        assert!(Context::find(&name).is_none());
        for waiter in waiters {
            assert!(is_cancelled(waiter.join().unwrap()));
        }
        assert!(is_cancelled(block_on(late)) && is_cancelled(block_on(late_within)));
        drop(tx);
        let threads: Vec<ThreadId> = dropped.iter().collect();
        assert_eq!(threads, [home; 3]);
    }
}

/// Ends, aborts and wake-ups from other threads in any order. Each handle gets exactly one result, and each future is dropped
/// once, on its own thread.
#[test]
fn a_thousand_tasks_in_a_storm_of_wake_ups_and_aborts() {
    const TASKS: usize = 1000;
    const WAKE_UPS: usize = 3;
    let context = context(1, 2);
    let wakers: Arc<Mutex<Vec<Option<Waker>>>> = Arc::new(Mutex::new(vec![None; TASKS]));
    let (tx, dropped) = channel();
    let handles: Vec<_> = (0..TASKS)
        .map(|i| {
            let (wakers, tell) = (wakers.clone(), Tell(tx.clone()));
            context.spawn_from_within(move || {
                let not_send = Rc::new((tell, thread::current().id()));
                async move {
                    let _not_send = not_send;
                    let mut polls = 0;
                    poll_fn(|cx| {
                        wakers.lock().unwrap()[i] = Some(cx.waker().clone());
                        polls += 1;
                        if polls > WAKE_UPS {
                            Poll::Ready(i)
                        } else {
                            Poll::Pending
                        }
                    })
                    .await
                }
            })
        })
        .collect();
    drop(tx);
    let is_over = Arc::new(AtomicUsize::new(0));
    let storms: Vec<_> = (0..3)
        .map(|_| {
            let (wakers, is_over) = (wakers.clone(), is_over.clone());
            thread::spawn(move || {
                while is_over.load(Relaxed) == 0 {
                    let woken: Vec<Waker> =
                        wakers.lock().unwrap().iter().flatten().cloned().collect();
                    woken.iter().for_each(Waker::wake_by_ref);
                    thread::yield_now();
                }
            })
        })
        .collect();
    let mut cancelled = 0;
    for (i, handle) in handles.into_iter().enumerate() {
        if i % 3 == 0 {
            handle.abort();
        }
        match block_on(handle) {
            Ok(result) => assert_eq!(result, i),
            Err(error) => {
                assert!(error.is_cancelled() && i % 3 == 0);
                cancelled += 1;
            }
        }
    }
    is_over.store(1, Relaxed);
    storms.into_iter().for_each(|storm| storm.join().unwrap());
    let homes: Vec<ThreadId> = context
        .shards()
        .iter()
        .map(|shard| shard.call(|_| thread::current().id()).unwrap())
        .collect();
    let threads: Vec<ThreadId> = dropped.iter().collect();
    assert_eq!(threads.len(), TASKS);
    assert!(threads.iter().all(|thread| homes.contains(thread)));
    assert!(cancelled <= TASKS.div_ceil(3));
}

#[test]
fn a_task_spawns_and_awaits_tasks() {
    for (wait_ms, threads) in [(0, 1), (2, 2)] {
        let context = context(wait_ms, threads);
        let of_task = context.clone();
        let sum = context.spawn(async move {
            let all: Vec<_> = (0..50).map(|i| of_task.spawn(async move { i })).collect();
            let mut sum = 0;
            for task in all {
                sum += task.await.unwrap();
            }
            let (a, b) = (
                of_task.spawn_local(ready(1)),
                of_task.spawn_from_within(|| ready(2)),
            );
            sum + a.await.unwrap() + b.await.unwrap()
        });
        assert_eq!(block_on(sum).unwrap(), 1225 + 3);
    }
}

/// The last share is in a task of the context itself, so the end comes from within.
#[test]
fn a_task_may_drop_the_last_share_of_its_context() {
    let context = context(0, -1);
    let end = context.shards()[0].end();
    let (tx, rx) = channel();
    let share = context.clone();
    let task = context.spawn(async move {
        next(&rx);
        drop(share);
        pending::<()>().await;
    });
    drop(context);
    tx.send(()).unwrap();
    assert!(is_cancelled(block_on(task)));
    until("the thread ends", || end.has_come());
}

/// A dropped handle removes the waker of its awaiting task.
#[test]
fn dropped_handle_wakes_no_task() {
    struct Counted;
    impl task::Wake for Counted {
        fn wake(self: Arc<Self>) {}
    }
    let context = context(0, -1);
    let counted = Arc::new(Counted);
    let mut handle = context.spawn(pending::<()>());
    let waker = Waker::from(counted.clone());
    let polled = Pin::new(&mut handle).poll(&mut task::Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop((handle, waker));
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn timeouts_are_never_early_and_count_from_the_first_poll() {
    for wait_ms in [0, 10] {
        let context = context(wait_ms, -1);
        let timeout = timeout_future(Duration::from_millis(15));
        context
            .block_on(timeout_future(Duration::from_millis(20)))
            .unwrap();
        // The timeout would have ended if it had started before its first poll.
        let begin_ns = clock_now_ns();
        context.block_on(timeout).unwrap();
        assert!(clock_now_ns() - begin_ns >= 15_000_000);
        context.block_on(timeout_future(Duration::ZERO)).unwrap();
        context.block_on(timeout_future_seconds(0)).unwrap();
        // This time is beyond the clock's range, so it never comes.
        let never = context.spawn(timeout_future(Duration::MAX));
        settled(&context);
        assert!(!never.is_finished());
    }
    let begin_ns = clock_now_ns();
    block_on(timeout_future(Duration::from_millis(15)));
    assert!(clock_now_ns() - begin_ns >= 15_000_000);
}

#[test]
fn timers_panic_outside_of_a_context() {
    let timers: [fn(); 2] = [
        || assert!(poll_once(&mut timeout_future(Duration::ZERO)).is_ready()),
        || assert!(poll_once(&mut interval_stream(Duration::ZERO).next()).is_ready()),
    ];
    for timer in timers {
        let message = *catch_unwind(timer)
            .unwrap_err()
            .downcast::<String>()
            .unwrap();
        assert!(
            message.contains("outside of a context's thread"),
            "{message}"
        );
    }
}

/// A tick is a whole number of periods after the first, not after now, and skipped ticks are counted.
#[test]
fn interval_keeps_its_grid_and_counts_skipped_ticks() {
    async fn check() {
        const PERIOD_NS: u64 = 2_000_000;
        let begin_ns = clock_now_ns();
        let mut interval = interval_stream(Duration::from_nanos(PERIOD_NS));
        let first = interval.next().await.unwrap();
        assert!(
            first.at_ns >= begin_ns + PERIOD_NS,
            "a period after the first poll"
        );
        let mut last = first;
        for i in 0..10 {
            if i == 5 {
                // This task is busy for several periods.
                timeout_future(Duration::from_nanos(5 * PERIOD_NS)).await;
            }
            let tick = interval.next().await.unwrap();
            assert!(tick.at_ns <= clock_now_ns(), "not early");
            assert_eq!(tick.at_ns - last.at_ns, (1 + tick.missed) * PERIOD_NS);
            assert!(i != 5 || tick.missed >= 3, "{tick:?}");
            last = tick;
        }
    }
    for wait_ms in [0, 10] {
        context(wait_ms, -1).block_on(check()).unwrap();
    }
    block_on(check());
}

#[test]
fn an_interval_with_burst_gives_every_tick_and_one_with_delay_moves_its_grid() {
    async fn check() {
        const PERIOD: Duration = Duration::from_millis(2);
        let period_ns = PERIOD.as_nanos() as u64;
        let mut burst = interval_stream_with(PERIOD, MissedTicks::Burst);
        let mut delay = interval_stream_with(PERIOD, MissedTicks::Delay);
        let first = burst.next().await.unwrap();
        let mut last = delay.next().await.unwrap();
        timeout_future(5 * PERIOD).await;
        // Five periods have passed, so at least four ticks are ready.
        for i in 1..=4 {
            let tick = futures_util::FutureExt::now_or_never(burst.next())
                .unwrap()
                .unwrap();
            assert_eq!((tick.at_ns, tick.missed), (first.at_ns + i * period_ns, 0));
        }
        for _ in 0..3 {
            let tick = delay.next().await.unwrap();
            assert!(tick.at_ns >= last.at_ns + period_ns && tick.missed == 0);
            last = tick;
        }
    }
    for wait_ms in [0, 10] {
        context(wait_ms, -1).block_on(check()).unwrap();
    }
    block_on(check());
}

/// An interval whose ticks take longer than a period, and one without a period, leave time for others on the thread.
#[test]
fn an_interval_that_cannot_keep_up_does_not_starve_other_tasks() {
    let context = context(0, -1);
    for period in [Duration::ZERO, Duration::from_millis(1)] {
        let busy = context.spawn(async move {
            let mut interval = interval_stream(period);
            while interval.next().await.is_some() {
                let begin_ns = clock_now_ns();
                while clock_now_ns() - begin_ns < 2_000_000 {
                    std::hint::spin_loop();
                }
            }
        });
        context
            .block_on(timeout_future(Duration::from_millis(10)))
            .unwrap();
        busy.abort();
        assert!(is_cancelled(block_on(busy)));
    }
}
