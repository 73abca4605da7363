//! Channels: the guarantees for senders and receivers, as in `std::sync::mpsc` and in glib's own channel until 0.19.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use futures_util::{FutureExt, StreamExt};
use glib::{ControlFlow, MainContext, Priority};
use threadbare_mainloop::{AttachError, Receiver, SendError, TrySendError, channel, sync_channel};

/// Runs the context while it has work.
fn settle(context: &MainContext) {
    while context.iteration(false) {}
}

/// Runs the context until `done` returns true.
fn run_until(context: &MainContext, done: impl Fn() -> bool) {
    while !done() {
        context.iteration(true);
    }
}

/// Attaches the receiver, and returns the received messages.
fn collect(context: &MainContext, receiver: Receiver<i32>) -> Rc<RefCell<Vec<i32>>> {
    let got = Rc::new(RefCell::new(Vec::new()));
    let seen = got.clone();
    let receive = move |n| {
        seen.borrow_mut().push(n);
        ControlFlow::Continue
    };
    receiver.attach(Some(context), receive).unwrap();
    got
}

#[test]
fn messages_of_many_threads_arrive_each_once_and_in_the_order_of_their_thread() {
    const THREADS: usize = 4;
    const MESSAGES: usize = 5000;
    for bound in [None, Some(1), Some(7)] {
        let context = MainContext::new();
        let got: Rc<RefCell<Vec<Vec<usize>>>> = Rc::new(RefCell::new(vec![Vec::new(); THREADS]));
        let seen = got.clone();
        let receive = move |(thread, number): (usize, usize)| {
            seen.borrow_mut()[thread].push(number);
            ControlFlow::Continue
        };
        let send_all: Vec<Box<dyn FnOnce() + Send>> = match bound {
            None => {
                let (sender, receiver) = channel();
                receiver.attach(Some(&context), receive).unwrap();
                (0..THREADS)
                    .map(|thread| {
                        let sender = sender.clone();
                        Box::new(move || {
                            (0..MESSAGES).for_each(|n| sender.send((thread, n)).unwrap());
                        }) as Box<dyn FnOnce() + Send>
                    })
                    .collect()
            }
            Some(bound) => {
                let (sender, receiver) = sync_channel(bound);
                receiver.attach(Some(&context), receive).unwrap();
                (0..THREADS)
                    .map(|thread| {
                        let sender = sender.clone();
                        Box::new(move || {
                            (0..MESSAGES).for_each(|n| sender.send((thread, n)).unwrap());
                        }) as Box<dyn FnOnce() + Send>
                    })
                    .collect()
            }
        };
        let threads: Vec<_> = send_all.into_iter().map(thread::spawn).collect();
        run_until(&context, || {
            got.borrow().iter().map(Vec::len).sum::<usize>() == THREADS * MESSAGES
        });
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        for of_thread in got.borrow().iter() {
            assert!(of_thread.iter().copied().eq(0..MESSAGES), "bound {bound:?}");
        }
    }
}

#[test]
fn messages_sent_before_attachment_arrive() {
    let context = MainContext::new();
    let (sender, receiver) = channel();
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    let got = collect(&context, receiver);
    settle(&context);
    assert_eq!(*got.borrow(), [1, 2]);
}

#[test]
fn message_is_returned_without_a_receiver() {
    let (sender, receiver) = channel();
    drop(receiver);
    assert_eq!(sender.send(7), Err(SendError(7)));
    let (sender, receiver) = sync_channel(1);
    drop(receiver);
    assert_eq!(sender.send(7), Err(SendError(7)));
    assert_eq!(sender.try_send(7), Err(TrySendError::Disconnected(7)));
    assert_eq!(sender.send_async(7).now_or_never(), Some(Err(SendError(7))));
}

#[test]
fn a_closure_that_breaks_ends_the_channel() {
    let context = MainContext::new();
    let (sender, receiver) = channel();
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    receiver
        .attach(Some(&context), move |_: i32| {
            counted.set(counted.get() + 1);
            ControlFlow::Break
        })
        .unwrap();
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    settle(&context);
    assert_eq!(count.get(), 1);
    assert_eq!(sender.send(3), Err(SendError(3)));
    // The closure has been dropped, with its captured values.
    assert_eq!(Rc::strong_count(&count), 1);
}

#[test]
fn the_last_sender_ends_an_attached_channel() {
    let context = MainContext::new();
    let (sender, receiver) = channel::<i32>();
    let held = Rc::new(());
    let by_closure = held.clone();
    receiver
        .attach(Some(&context), move |_| {
            let _ = &by_closure;
            ControlFlow::Continue
        })
        .unwrap();
    let other = sender.clone();
    drop(sender);
    settle(&context);
    assert_eq!(Rc::strong_count(&held), 2);
    thread::spawn(move || drop(other)).join().unwrap();
    settle(&context);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_full_channel_is_reported_and_has_room_after_a_batch() {
    let context = MainContext::new();
    let (sender, receiver) = sync_channel(2);
    assert_eq!(sender.try_send(1), Ok(()));
    assert_eq!(sender.try_send(2), Ok(()));
    assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
    let got = collect(&context, receiver);
    settle(&context);
    assert_eq!(sender.try_send(3), Ok(()));
    settle(&context);
    assert_eq!(*got.borrow(), [1, 2, 3]);
    // A bound of zero counts as one.
    let (sender, _receiver) = sync_channel(0);
    assert_eq!(sender.try_send(1), Ok(()));
    assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
}

#[test]
fn blocked_sender_resumes_with_room_or_without_a_receiver() {
    for receiver_ends in [false, true] {
        let (sender, mut receiver) = sync_channel(1);
        sender.send(1).unwrap();
        let begun = Arc::new(Barrier::new(2));
        let of_thread = begun.clone();
        let thread = thread::spawn(move || {
            of_thread.wait();
            sender.send(2)
        });
        begun.wait();
        if receiver_ends {
            drop(receiver);
            // The sender may be blocked, or may not have sent yet. The result is the same.
            assert_eq!(thread.join().unwrap(), Err(SendError(2)));
        } else {
            assert_eq!(receiver.try_recv(), Some(1));
            assert_eq!(thread.join().unwrap(), Ok(()));
            assert_eq!(receiver.try_recv(), Some(2));
        }
    }
}

#[test]
fn an_async_send_waits_for_room_and_sends_nothing_if_it_is_dropped() {
    let context = MainContext::new();
    let (sender, mut receiver) = sync_channel(1);
    context.block_on(async move {
        sender.send_async(1).await.unwrap();
        let mut waiting = Box::pin(sender.send_async(2));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        let third = sender.send_async(3);
        let (sent, received) = futures_util::join!(third, receiver.recv());
        assert_eq!((sent, received), (Ok(()), Some(1)));
        drop(sender);
        assert_eq!(receiver.recv().await, Some(3));
        assert_eq!(receiver.recv().await, None);
    });
}

#[test]
fn a_receiver_is_a_stream_on_any_executor() {
    let context = MainContext::new();
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || (0..1000).for_each(|n| sender.send(n).unwrap()));
    let got: Vec<i32> = context.block_on(receiver.collect());
    thread.join().unwrap();
    assert!(got.into_iter().eq(0..1000));

    let (sender, receiver) = sync_channel(3);
    let thread = thread::spawn(move || (0..1000).for_each(|n| sender.send(n).unwrap()));
    let got: Vec<i32> = threadbare_runtime::block_on(receiver.collect());
    thread.join().unwrap();
    assert!(got.into_iter().eq(0..1000));
}

#[test]
fn flood_does_not_starve_other_sources() {
    let context = MainContext::new();
    let (sender, receiver) = channel();
    let received = Rc::new(Cell::new(0));
    let counted = received.clone();
    receiver
        .attach(Some(&context), move |_: i32| {
            counted.set(counted.get() + 1);
            ControlFlow::Continue
        })
        .unwrap();
    (0..10_000).for_each(|n| sender.send(n).unwrap());
    let at = Arc::new(AtomicUsize::new(usize::MAX));
    let (counted, set) = (
        glib::thread_guard::ThreadGuard::new(received.clone()),
        at.clone(),
    );
    glib::idle_source_new(None, Priority::DEFAULT, move || {
        set.store(counted.get_ref().get(), Ordering::Relaxed);
        ControlFlow::Break
    })
    .attach(Some(&context));
    settle(&context);
    assert_eq!(received.get(), 10_000);
    // The idle source ran before the flood had ended.
    assert!(at.load(Ordering::Relaxed) < 10_000);
}

#[test]
fn a_send_closure_is_attached_from_any_thread() {
    let context = MainContext::new();
    let (sender, receiver) = channel();
    let (tell, told) = mpsc::channel();
    let of_thread = context.clone();
    thread::spawn(move || {
        receiver
            .attach_send(Some(&of_thread), Priority::HIGH, move |n: i32| {
                tell.send(n).unwrap();
                ControlFlow::Continue
            })
            .unwrap();
    })
    .join()
    .unwrap();
    sender.send(5).unwrap();
    settle(&context);
    assert_eq!(told.try_recv(), Ok(5));
}

#[test]
fn local_closure_is_refused_if_another_thread_runs_the_context() {
    let context = MainContext::new();
    let _running = context.acquire().unwrap();
    let of_thread = context.clone();
    thread::spawn(move || {
        let (_sender, receiver) = channel::<i32>();
        let refused = receiver.attach(Some(&of_thread), |_| ControlFlow::Continue);
        assert!(matches!(refused, Err(AttachError::NotOwner)));
    })
    .join()
    .unwrap();
}

/// Reports the thread on which it was dropped.
struct Tells(mpsc::Sender<thread::ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn a_detached_closure_is_dropped_on_its_own_thread() {
    for elsewhere in [false, true] {
        let context = MainContext::new();
        let (sender, receiver) = channel::<i32>();
        let (tell, told) = mpsc::channel();
        let tells = Tells(tell);
        let attachment = receiver
            .attach(Some(&context), move |_| {
                let _ = &tells;
                ControlFlow::Continue
            })
            .unwrap();
        if elsewhere {
            thread::spawn(move || attachment.detach()).join().unwrap();
            settle(&context);
        } else {
            attachment.detach();
        }
        assert_eq!(told.try_recv(), Ok(thread::current().id()));
        assert_eq!(sender.send(1), Err(SendError(1)));
    }
}

#[test]
fn local_closure_is_leaked_if_the_context_ends_on_another_thread() {
    let context = MainContext::new();
    let (_sender, receiver) = channel::<i32>();
    let (tell, told) = mpsc::channel();
    let tells = Tells(tell);
    let attachment = receiver
        .attach(Some(&context), move |_| {
            let _ = &tells;
            ControlFlow::Continue
        })
        .unwrap();
    thread::spawn(move || drop((attachment, context)))
        .join()
        .unwrap();
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
}

#[test]
fn priorities_decide_which_channel_comes_first() {
    let context = MainContext::new();
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut senders = Vec::new();
    for (name, priority) in [("low", Priority::LOW), ("high", Priority::HIGH)] {
        let (sender, receiver) = channel();
        let order = order.clone();
        receiver
            .attach_with_priority(Some(&context), priority, move |()| {
                order.borrow_mut().push(name);
                ControlFlow::Continue
            })
            .unwrap();
        senders.push(sender);
    }
    settle(&context);
    senders.iter().for_each(|sender| sender.send(()).unwrap());
    settle(&context);
    assert_eq!(*order.borrow(), ["high", "low"]);
}

#[test]
fn messages_wait_for_their_own_thread_when_another_runs_the_context() {
    let context = MainContext::new();
    let (sender, receiver) = channel();
    let got = collect(&context, receiver);
    sender.send(1).unwrap();
    let foreign = context.clone();
    thread::spawn(move || settle(&foreign)).join().unwrap();
    sender.send(2).unwrap();
    settle(&context);
    assert_eq!(*got.borrow(), [1, 2]);
}

/// `None` is the default context. (The `Default` trait of `MainContext` would create a new one.)
#[test]
fn attaching_to_none_uses_the_default_context() {
    let (sender, receiver) = channel();
    let got = Rc::new(Cell::new(0));
    let seen = got.clone();
    receiver
        .attach(None, move |n| {
            seen.set(n);
            ControlFlow::Break
        })
        .unwrap();
    sender.send(5).unwrap();
    settle(&MainContext::default());
    assert_eq!(got.get(), 5);
}
