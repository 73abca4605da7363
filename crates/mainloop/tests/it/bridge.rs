//! GLib and tokio in one program.
#![cfg(feature = "tokio")]

use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use futures_util::FutureExt;
use glib::MainContext;
use threadbare_mainloop::{Bridge, JoinError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Number of messages: more than any budget.
const MESSAGES: usize = 1000;

async fn receive_all(mut receiver: tokio::sync::mpsc::UnboundedReceiver<usize>) -> usize {
    for expected in 0..MESSAGES {
        assert_eq!(receiver.recv().await, Some(expected));
    }
    MESSAGES
}

fn full_channel() -> tokio::sync::mpsc::UnboundedReceiver<usize> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (0..MESSAGES).for_each(|n| sender.send(n).unwrap());
    receiver
}

/// This shows a problem of tokio as long as it exists: a main context inside a tokio task uses up the budget of that task.
#[test]
fn a_main_context_inside_a_tokio_task_uses_up_the_tasks_budget() {
    let received = Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async {
            let mut receiver = full_channel();
            let mut count = 0;
            while let Some(Some(_)) = receiver.recv().now_or_never() {
                count += 1;
            }
            count
        });
    assert!(
        received < MESSAGES,
        "tokio tasks have no budget any more: update the documentation of `Bridge`"
    );
}

#[test]
fn a_bridged_future_has_no_budget_even_inside_a_tokio_task() {
    let runtime = runtime();
    let context = MainContext::new();
    let bridge = Bridge::new(&context, runtime.handle());
    let received = runtime.block_on(async {
        // A program should not do this, but the future makes progress nevertheless.
        bridge
            .with_tokio(receive_all(full_channel()))
            .now_or_never()
    });
    assert_eq!(received, Some(MESSAGES));
}

#[test]
fn a_future_on_the_main_context_uses_tokios_sockets_and_timers() {
    let runtime = runtime();
    let context = MainContext::new();
    let bridge = Bridge::new(&context, runtime.handle());
    let echoed = context.block_on(bridge.with_tokio(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, connected) = tokio::join!(listener.accept(), TcpStream::connect(address));
        let (mut theirs, mut ours) = (accepted.unwrap().0, connected.unwrap());
        theirs.write_all(b"hello").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let mut read = [0; 5];
        ours.read_exact(&mut read).await.unwrap();
        read
    }));
    assert_eq!(&echoed, b"hello");
}

#[test]
fn each_side_awaits_the_other() {
    let runtime = runtime();
    let context = MainContext::new();
    let bridge = Bridge::new(&context, runtime.handle());
    let home = thread::current().id();
    let task = {
        let bridge = bridge.clone();
        runtime.spawn(async move {
            assert_ne!(thread::current().id(), home);
            let made = bridge.on_context(move || {
                let local = Rc::new(7);
                async move {
                    assert_eq!(thread::current().id(), home);
                    glib::timeout_future(std::time::Duration::from_millis(1)).await;
                    *local
                }
            });
            made.await.unwrap()
        })
    };
    let answer = context.block_on(async {
        bridge
            .on_tokio(async { task.await.unwrap() + receive_all(full_channel()).await })
            .await
    });
    assert_eq!(answer.unwrap(), 7 + MESSAGES);
}

#[test]
fn panics_reach_the_awaiting_task() {
    let runtime = runtime();
    let context = MainContext::new();
    let bridge = Bridge::new(&context, runtime.handle());
    let there = context.block_on(bridge.on_tokio(async { panic!("as told") }));
    assert!(matches!(there, Err(JoinError::Panicked(_))));
    let here = context.block_on(bridge.on_context(|| async { panic!("as told") }));
    assert!(matches!(here, Err(JoinError::Panicked(_))));
    let made =
        context.block_on(bridge.on_context(|| -> std::future::Ready<()> { panic!("as told") }));
    assert!(matches!(made, Err(JoinError::Panicked(_))));
}

struct Tells(mpsc::Sender<thread::ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn a_dropped_future_aborts_the_other_side() {
    let runtime = runtime();
    let context = MainContext::new();
    let bridge = Bridge::new(&context, runtime.handle());
    // This future runs in tokio.
    let (tell, told) = mpsc::channel();
    let tells = Tells(tell);
    let there = bridge.on_tokio(async move {
        let _tells = tells;
        std::future::pending::<()>().await;
    });
    drop(there);
    assert_ne!(told.recv().unwrap(), thread::current().id());
    // This future runs on the context, whose thread drops its values.
    let (tell, told) = mpsc::channel();
    let (tell_begun, begun) = mpsc::channel();
    let here = bridge.on_context(move || {
        let local = (Rc::new(()), Tells(tell));
        async move {
            let _local = local;
            tell_begun.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    });
    while begun.try_recv().is_err() {
        context.iteration(true);
    }
    thread::spawn(move || drop(here)).join().unwrap();
    while context.iteration(false) {}
    assert_eq!(told.try_recv(), Ok(thread::current().id()));
}

#[test]
fn end_of_a_runtime_or_context_ends_its_waiters() {
    let runtime = runtime();
    let context = MainContext::new();
    let bridge = Bridge::new(&context, runtime.handle());
    let there = bridge.on_tokio(std::future::pending::<()>());
    runtime.shutdown_background();
    assert!(matches!(context.block_on(there), Err(JoinError::Cancelled)));
    // A future that was sent to a context does not keep the context alive.
    let here = bridge.on_context(|| async {});
    drop((bridge, context));
    assert!(matches!(
        here.now_or_never(),
        Some(Err(JoinError::Cancelled))
    ));
}
