//! Tests without C calls, for Miri (`make miri`), which checks the memory model that loom and valgrind do not cover.

use std::thread;

use futures_util::StreamExt;
use threadbare_mainloop::{SendError, TrySendError, channel, sync_channel};
use threadbare_runtime::block_on;

#[test]
fn a_stream_gets_all_messages_of_other_threads_in_their_order() {
    let (sender, receiver) = channel();
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let sender = sender.clone();
            thread::spawn(move || (0..50).for_each(|n| sender.send((thread, n)).expect("open")))
        })
        .collect();
    drop(sender);
    let got: Vec<(i32, i32)> = block_on(receiver.collect());
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("sent"));
    for thread in 0..2 {
        let of_thread = got.iter().filter(|one| one.0 == thread).map(|one| one.1);
        assert!(of_thread.eq(0..50));
    }
}

#[test]
fn bounded_channel_blocks_and_resumes() {
    let (sender, mut receiver) = sync_channel(2);
    let thread = thread::spawn(move || (0..20).try_for_each(|n| sender.send(n)));
    let got: Vec<i32> = block_on(receiver.by_ref().take(10).collect());
    assert!(got.into_iter().eq(0..10));
    // The sender is sending a message that is never received.
    drop(receiver);
    assert!(thread.join().expect("no panic").is_err());
}

#[test]
fn unsent_messages_are_returned_and_untaken_ones_dropped() {
    let message = std::sync::Arc::new(());
    let (sender, receiver) = sync_channel(1);
    sender.try_send(message.clone()).expect("room");
    assert!(matches!(
        sender.try_send(message.clone()),
        Err(TrySendError::Full(_))
    ));
    drop(receiver);
    assert_eq!(std::sync::Arc::strong_count(&message), 1);
    assert_eq!(sender.send(message.clone()), Err(SendError(message)));
}
