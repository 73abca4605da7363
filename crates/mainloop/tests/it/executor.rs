//! Tasks on one source: the same behaviour as on glib's own executor, with any number of tasks.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;

use futures_util::FutureExt;
use glib::{ControlFlow, MainContext, Priority};
use threadbare_mainloop::{AttachError, ContextBound, Executor, JoinError, TaskScope};

fn settle(context: &MainContext) {
    while context.iteration(false) {}
}

fn new() -> (MainContext, Executor) {
    let context = MainContext::new();
    let executor = Executor::new(&context).unwrap();
    (context, executor)
}

/// Reports the thread on which it was dropped.
struct Tells(mpsc::Sender<thread::ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

/// Stores the wakers of tasks.
#[derive(Clone, Default)]
struct Event(Arc<Mutex<(usize, Vec<Waker>)>>);

impl Event {
    fn set(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        let wakers = std::mem::take(&mut state.1);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        let before = self.0.lock().unwrap().0;
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap();
            if state.0 > before {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[test]
fn a_task_gives_its_result_to_its_handle() {
    let (context, executor) = new();
    let local = Rc::new(20);
    let task = executor.spawn_local(async move { *local + 1 });
    assert!(!task.is_finished());
    assert_eq!(context.block_on(task).unwrap(), 21);
    assert_eq!(executor.tasks(), 0);
}

#[test]
fn a_task_whose_handle_is_dropped_continues() {
    let (context, executor) = new();
    let done = Rc::new(Cell::new(false));
    let set = done.clone();
    drop(executor.spawn_local(async move { set.set(true) }));
    settle(&context);
    assert!(done.get());
}

#[test]
fn ten_thousand_tasks_woken_from_other_threads_all_end() {
    let (context, executor) = new();
    let event = Event::default();
    let tasks: Vec<_> = (0..10_000)
        .map(|number| {
            let event = event.clone();
            executor.spawn_local(async move {
                for _ in 0..3 {
                    event.wait().await;
                }
                number
            })
        })
        .collect();
    settle(&context);
    let stop = Arc::new(AtomicBool::new(false));
    let (of_thread, wake) = (stop.clone(), event.clone());
    let waker = thread::spawn(move || {
        while !of_thread.load(Ordering::Relaxed) {
            wake.set();
        }
    });
    let results = context.block_on(futures_util::future::join_all(tasks));
    stop.store(true, Ordering::Relaxed);
    waker.join().unwrap();
    assert!(results.into_iter().map(Result::unwrap).eq(0..10_000));
}

#[test]
fn panic_reaches_the_handle_and_other_tasks_continue() {
    let (context, executor) = new();
    let bad = executor.spawn_local(async { panic!("as told") });
    let good = executor.spawn_local(async { 1 });
    match context.block_on(bad) {
        Err(JoinError::Panicked(payload)) => {
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"as told"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(context.block_on(good).unwrap(), 1);
}

#[test]
fn a_task_that_panics_when_dropped_does_not_end_the_program() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("in a drop, as told");
        }
    }
    let (context, executor) = new();
    let bad = Bad;
    let task = executor.spawn_local(async move {
        let _bad = bad;
        pending::<()>().await;
    });
    settle(&context);
    task.abort();
    settle(&context);
    assert_eq!(executor.tasks(), 0);
    assert_eq!(
        context.block_on(executor.spawn_local(async { 1 })).unwrap(),
        1
    );
}

#[test]
fn abort_ends_a_task_before_while_and_after_it_runs() {
    let (context, executor) = new();
    let (tell, told) = mpsc::channel();
    // Abort before the first poll.
    let polled = Rc::new(Cell::new(false));
    let (set, tells) = (polled.clone(), Tells(tell.clone()));
    let task = executor.spawn_local(async move {
        let _tells = tells;
        set.set(true);
    });
    task.abort();
    assert!(matches!(context.block_on(task), Err(JoinError::Cancelled)));
    assert!(!polled.get());
    assert!(told.try_recv().is_ok());
    // Abort from another thread while the task waits. The future is dropped on this thread.
    let tells = Tells(tell);
    let task = executor.spawner().spawn(async move {
        let _tells = tells;
        pending::<()>().await;
    });
    settle(&context);
    let task = thread::spawn(move || {
        task.abort();
        task
    })
    .join()
    .unwrap();
    assert!(matches!(context.block_on(task), Err(JoinError::Cancelled)));
    assert_eq!(told.try_recv(), Ok(thread::current().id()));
    // Abort after the end.
    let task = executor.spawn_local(async { 5 });
    settle(&context);
    task.abort();
    assert_eq!(context.block_on(task).unwrap(), 5);
}

#[test]
fn other_threads_spawn_and_await() {
    let (context, executor) = new();
    let spawner = executor.spawner();
    let home = thread::current().id();
    let thread = thread::spawn(move || {
        let sent = spawner.spawn(async { thread::current().id() });
        let made = spawner.spawn_from_within(|| {
            let local = Rc::new(3);
            async move { *local }
        });
        threadbare_runtime::block_on(async { (sent.await.unwrap(), made.await.unwrap()) })
    });
    while !thread.is_finished() {
        context.iteration(false);
    }
    assert_eq!(thread.join().unwrap(), (home, 3));
}

#[test]
fn tasks_spawn_tasks_and_may_be_woken_by_themselves() {
    let (context, executor) = new();
    let spawner = executor.local_spawner();
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let task = executor.spawn_local(async move {
        let inner = spawner.spawn_local(async move {
            for _ in 0..1000 {
                let mut yielded = false;
                poll_fn(|cx| {
                    if std::mem::replace(&mut yielded, true) {
                        return Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
                counted.set(counted.get() + 1);
            }
        });
        inner.await.unwrap();
    });
    context.block_on(task).unwrap();
    assert_eq!(count.get(), 1000);
}

#[test]
fn a_task_that_always_wakes_itself_does_not_starve_other_sources() {
    let (context, executor) = new();
    let spinning = executor.spawn_local(poll_fn(|cx| -> Poll<()> {
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    let turned = Arc::new(AtomicBool::new(false));
    let set = turned.clone();
    glib::idle_source_new(None, Priority::DEFAULT, move || {
        set.store(true, Ordering::Relaxed);
        ControlFlow::Break
    })
    .attach(Some(&context));
    while !turned.load(Ordering::Relaxed) {
        context.iteration(true);
    }
    spinning.abort();
    settle(&context);
}

#[test]
fn dropping_an_executor_drops_its_tasks_and_late_calls_do_nothing() {
    let (context, executor) = new();
    let (tell, told) = mpsc::channel();
    let event = Event::default();
    let (tells, waits) = (Tells(tell), event.clone());
    let task = executor.spawn_local(async move {
        let _tells = tells;
        waits.wait().await;
    });
    settle(&context);
    let (spawner, local) = (executor.spawner(), executor.local_spawner());
    // This task is still on its way when the executor ends.
    let late = spawner.spawn(async {});
    drop(executor);
    assert_eq!(told.try_recv(), Ok(thread::current().id()));
    assert!(matches!(context.block_on(late), Err(JoinError::Cancelled)));
    event.set();
    task.abort();
    assert!(matches!(context.block_on(task), Err(JoinError::Cancelled)));
    assert!(matches!(
        spawner.spawn(async {}).now_or_never(),
        Some(Err(JoinError::Cancelled))
    ));
    assert!(matches!(
        local.spawn_local(async {}).now_or_never(),
        Some(Err(JoinError::Cancelled))
    ));
    settle(&context);
}

#[test]
fn an_executor_may_be_dropped_by_its_own_task() {
    let (context, executor) = new();
    let (spawner, dropped) = (executor.local_spawner(), Rc::new(Cell::new(false)));
    let set = dropped.clone();
    let executor = Rc::new(RefCell::new(Some(executor)));
    let its_own = executor.clone();
    drop(spawner.spawn_local(async move {
        its_own.borrow_mut().take();
        set.set(true);
        pending::<()>().await;
    }));
    settle(&context);
    assert!(dropped.get());
    assert!(spawner.spawn_local(async {}).is_finished());
}

#[test]
fn executor_is_refused_if_another_thread_runs_the_context() {
    let context = MainContext::new();
    let _running = context.acquire().unwrap();
    let of_thread = context.clone();
    thread::spawn(move || {
        assert!(matches!(
            Executor::new(&of_thread),
            Err(AttachError::NotOwner)
        ));
    })
    .join()
    .unwrap();
}

#[test]
fn a_stale_waker_does_not_wake_the_next_task_in_its_place() {
    let (context, executor) = new();
    let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
    let keep = kept.clone();
    let first = executor.spawn_local(poll_fn(move |cx| {
        *keep.borrow_mut() = Some(cx.waker().clone());
        Poll::Ready(())
    }));
    context.block_on(first).unwrap();
    let polls = Rc::new(Cell::new(0));
    let counted = polls.clone();
    let second = executor.spawn_local(poll_fn(move |_| -> Poll<()> {
        counted.set(counted.get() + 1);
        Poll::Pending
    }));
    settle(&context);
    kept.borrow().as_ref().unwrap().wake_by_ref();
    settle(&context);
    assert_eq!(polls.get(), 1);
    drop(second);
}

#[test]
fn a_scope_ends_only_its_own_tasks() {
    let (context, executor) = new();
    let scope = TaskScope::new(&executor);
    let (tell, told) = mpsc::channel();
    let tells = Tells(tell);
    let of_scope = scope.spawn_local(async move {
        let _tells = tells;
        pending::<()>().await;
    });
    let ends = scope.spawn_local(async { 1 });
    let event = Event::default();
    let waits = event.clone();
    let other = executor.spawn_local(async move { waits.wait().await });
    assert_eq!(context.block_on(ends).unwrap(), 1);
    assert_eq!((scope.len(), scope.is_empty()), (1, false));
    drop(scope);
    assert_eq!(told.try_recv(), Ok(thread::current().id()));
    assert!(matches!(
        context.block_on(of_scope),
        Err(JoinError::Cancelled)
    ));
    event.set();
    context.block_on(other).unwrap();
}

#[test]
fn scope_reports_the_end_of_its_tasks() {
    let (context, executor) = new();
    let scope = TaskScope::new(&executor);
    let event = Event::default();
    for _ in 0..3 {
        let waits = event.clone();
        drop(scope.spawn_local(async move { waits.wait().await }));
    }
    settle(&context);
    context.block_on(async {
        let finished = scope.finished();
        event.set();
        finished.await;
    });
    assert!(scope.is_empty());
}

#[test]
fn a_task_may_drop_its_own_scope() {
    let (context, executor) = new();
    let scope = Rc::new(RefCell::new(Some(TaskScope::new(&executor))));
    let (its_own, reached) = (scope.clone(), Rc::new(Cell::new(false)));
    let set = reached.clone();
    let task = scope.borrow().as_ref().unwrap().spawn_local(async move {
        its_own.borrow_mut().take();
        // The poll of this task continues to the next await.
        set.set(true);
        pending::<()>().await;
    });
    assert!(matches!(context.block_on(task), Err(JoinError::Cancelled)));
    assert!(reached.get());
    assert_eq!(executor.tasks(), 0);
}

#[test]
fn a_bound_value_is_visible_and_dropped_only_on_its_thread() {
    let context = MainContext::new();
    let (tell, told) = mpsc::channel();
    let mut bound = ContextBound::new(&context, (Rc::new(1), Tells(tell))).unwrap();
    assert_eq!(*bound.get().unwrap().0, 1);
    assert_eq!(*bound.get_mut().unwrap().0, 1);
    thread::spawn(move || {
        assert!(bound.get().is_none());
        assert!(bound.get_mut().is_none());
        let bound = bound.into_inner().map(|_| ()).unwrap_err();
        drop(bound);
    })
    .join()
    .unwrap();
    assert!(told.try_recv().is_err());
    settle(&context);
    assert_eq!(told.try_recv(), Ok(thread::current().id()));
}

#[test]
fn a_closure_runs_with_a_bound_value_on_its_own_thread() {
    let context = MainContext::new();
    let bound = ContextBound::new(&context, Rc::new(41)).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        bound.send_home(move |value| {
            tell.send((thread::current().id(), *value + 1)).unwrap();
        });
    })
    .join()
    .unwrap();
    settle(&context);
    assert_eq!(told.try_recv(), Ok((thread::current().id(), 42)));
    // On its own thread, the value can be taken out.
    let bound = ContextBound::new(&context, 5).unwrap();
    assert_eq!(bound.into_inner().unwrap(), 5);
}

#[test]
fn a_bound_value_without_its_context_is_leaked() {
    let (tell, told) = mpsc::channel();
    let context = MainContext::new();
    let bound = ContextBound::new(&context, Tells(tell)).unwrap();
    // The context ends on the other thread and never runs again.
    thread::spawn(move || drop((bound, context)))
        .join()
        .unwrap();
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
}

#[test]
fn bound_value_is_refused_if_another_thread_runs_the_context() {
    let context = MainContext::new();
    let _running = context.acquire().unwrap();
    let of_thread = context.clone();
    thread::spawn(move || {
        let refused = ContextBound::new(&of_thread, 1);
        assert!(matches!(refused, Err(AttachError::NotOwner)));
    })
    .join()
    .unwrap();
}

#[test]
fn tasks_wait_for_their_own_thread_when_another_runs_their_context() {
    let (context, executor) = new();
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = polls.clone();
    let event = Event::default();
    let waits = event.clone();
    let task = executor.spawn_local(async move {
        counted.fetch_add(1, Ordering::Relaxed);
        waits.wait().await;
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let foreign = context.clone();
    thread::spawn(move || settle(&foreign)).join().unwrap();
    assert_eq!(polls.load(Ordering::Relaxed), 0);
    // When its own thread runs the context again, the next wake-up continues the task.
    drop(executor.spawn_local(async {}));
    settle(&context);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    event.set();
    context.block_on(task).unwrap();
    assert_eq!(polls.load(Ordering::Relaxed), 2);
}
