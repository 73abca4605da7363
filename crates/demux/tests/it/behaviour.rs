//! Behaviour of the demultiplexer, one poll at a time.

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use threadbare_demux::*;

struct Bench {
    input: Feed<Message>,
    handle: Handle<u32, Basket>,
    task: Task,
}

fn bench() -> Bench {
    bench_of(builder(Verdict::Remove))
}

fn bench_of(builder: Builder<Message, Basket, Find, Plain, Judge>) -> Bench {
    let input = Feed::default();
    let demultiplexer = builder.build(input.clone());
    Bench {
        input,
        handle: demultiplexer.handle(),
        task: Task::new(demultiplexer),
    }
}

impl Bench {
    fn subscribe(&self, key: u32, sink: &Basket, service: Service) -> Guard<u32, Basket> {
        let target = Target::Key(key);
        self.handle
            .subscribe(target, sink.clone(), service)
            .unwrap()
    }

    fn put(&self, key: u32, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.input.put((key, number));
        }
    }

    fn end(mut self) -> Report {
        self.input.end();
        self.task.run();
        self.task.report.expect("it has ended")
    }

    fn statistics(&self) -> Statistics {
        let statistics = self.handle.statistics();
        assert!(statistics.are_complete(), "{statistics:?}");
        statistics
    }
}

fn with(policy: Policy, buffer: usize) -> Service {
    Service {
        policy,
        buffer,
        limit: None,
    }
}

const DEFAULT: Service = Service {
    policy: Policy::Block,
    buffer: 0,
    limit: None,
};

#[test]
fn messages_go_to_the_sinks_of_their_keys_in_order() {
    let mut bench = bench();
    let (a, b) = (Basket::default(), Basket::default());
    let _guards = [
        bench.subscribe(1, &a, DEFAULT),
        bench.subscribe(2, &b, DEFAULT),
    ];
    for number in 0..10 {
        bench.put(1 + number as u32 % 3, [number]);
    }
    bench.task.run();
    assert_eq!(a.numbers(), [0, 3, 6, 9]);
    assert_eq!(b.numbers(), [1, 4, 7]);
    let statistics = bench.statistics();
    assert_eq!((statistics.delivered, statistics.unmatched), (7, 3));
    let report = bench.end();
    assert_eq!((report.end, report.closed), (End::Complete, 2));
    assert!(a.inside().is_closed && b.inside().is_closed);
}

#[test]
fn ready_order_precedes_a_ready_message() {
    // One order comes through a handle, another through a stream.
    let mut bench = bench();
    let sink = Basket::default();
    bench.task.run();
    bench.put(1, [1]);
    let _guard = bench.subscribe(1, &sink, DEFAULT);
    bench.task.run();
    assert_eq!(sink.numbers(), [1]);

    let (input, orders) = (Feed::default(), Feed::default());
    let ordered = builder(Verdict::Remove).orders(orders.clone());
    let mut task = Task::new(ordered.build(input.clone()));
    task.run();
    let sink = Basket::default();
    input.put((1, 1));
    orders.put((1, sink.clone()));
    task.run();
    orders.put((2, sink.clone()));
    input.put((2, 2));
    orders.end();
    task.run();
    assert_eq!(sink.numbers(), [1, 2]);
    input.put((2, 3));
    input.end();
    task.run();
    assert_eq!(sink.numbers(), [1, 2, 3]);
    assert_eq!(task.report.unwrap().statistics.unmatched, 0);
}

/// The input gives a message, and an order comes in the same poll. This is as if another thread sent it between the check for
/// orders and the poll.
#[test]
fn order_during_the_poll_of_the_input_is_not_missed() {
    use futures_util::stream;
    let sink = Basket::default();
    let place = Arc::new(std::sync::OnceLock::<Handle<u32, Basket>>::new());
    let (known, ordered) = (place.clone(), sink.clone());
    let mut given = 0;
    let input = stream::poll_fn(move |_| {
        given += 1;
        match given {
            1 => {
                let handle = known.get().unwrap();
                // Of two orders, the second one takes over. Before that, earlier subscriptions of the message's key end.
                for sink in [Basket::default(), ordered.clone()] {
                    let guard = handle.subscribe(Target::Key(7), sink, DEFAULT).unwrap();
                    guard.detach();
                }
                std::task::Poll::Ready(Some((7, 1)))
            }
            _ => std::task::Poll::Ready(None),
        }
    });
    let demultiplexer = builder(Verdict::Remove).build(input);
    assert!(place.set(demultiplexer.handle()).is_ok());
    let report = futures_executor::block_on(demultiplexer);
    assert_eq!(sink.numbers(), [1]);
    assert_eq!(report.statistics.unmatched, 0);
}

#[test]
fn orders_beyond_the_batch_limit_still_precede_messages() {
    let mut bench = bench();
    let sinks: Vec<Basket> = (0..5000).map(|_| Basket::default()).collect();
    let guards: Vec<_> = (0..)
        .zip(&sinks)
        .map(|(key, sink)| bench.subscribe(key % 1000, sink, DEFAULT))
        .collect();
    bench.put(999, [1]);
    bench.task.run();
    assert!(bench.task.polls > 4, "other tasks had their turn");
    assert_eq!(sinks[4999].numbers(), [1]);
    assert_eq!(guards[4999].status(), Status::Active);
}

#[test]
fn unmatched_messages_have_their_own_sink() {
    let mut bench = bench();
    let (one, rest) = (Basket::default(), Basket::default());
    let _one = bench.subscribe(1, &one, DEFAULT);
    let rest_guard = bench
        .handle
        .subscribe(Target::Unmatched, rest.clone(), DEFAULT)
        .unwrap();
    bench.put(1, [1]);
    bench.put(2, [2]);
    // A message without a key.
    bench.put(5000, [3]);
    bench.task.run();
    assert_eq!((one.numbers(), rest.numbers()), (vec![1], vec![2, 3]));
    drop(rest_guard);
    bench.put(2, [4]);
    bench.task.run();
    assert_eq!(bench.statistics().unmatched, 1);
}

#[test]
fn a_second_sink_of_a_key_replaces_or_is_refused_or_gets_copies() {
    let run = |builder| {
        let mut bench = bench_of(builder);
        let (first, second) = (Basket::default(), Basket::default());
        let a = bench.subscribe(1, &first, DEFAULT);
        bench.put(1, [1]);
        bench.task.run();
        let b = bench.subscribe(1, &second, DEFAULT);
        bench.put(1, [2, 3]);
        bench.task.run();
        let status = [a.status(), b.status()];
        let numbers = [first.numbers(), second.numbers()];
        let copies = bench.statistics().copies;
        (status, numbers, first.inside().is_closed, copies)
    };
    let (status, numbers, first_closed, _) = run(builder(Verdict::Remove));
    assert_eq!(status, [Status::Ended, Status::Active]);
    assert_eq!((numbers, first_closed), ([vec![1], vec![2, 3]], true));

    let refusing = builder(Verdict::Remove).duplicates(Duplicates::Refuse);
    let (status, numbers, first_closed, _) = run(refusing);
    assert_eq!(status, [Status::Active, Status::Refused]);
    assert_eq!((numbers, first_closed), ([vec![1, 2, 3], vec![]], false));

    let (status, numbers, _, copies) = run(builder(Verdict::Remove).several_per_key());
    assert_eq!(status, [Status::Active, Status::Active]);
    assert_eq!((numbers, copies), ([vec![1, 2, 3], vec![2, 3]], 2));
}

#[test]
fn a_blocking_sink_delays_the_message_for_itself_and_later_sinks() {
    let mut bench = bench_of(builder(Verdict::Remove).several_per_key());
    let sinks = [Basket::default(), Basket::with_room(1), Basket::default()];
    let mut guards: Vec<_> = sinks
        .iter()
        .map(|s| bench.subscribe(1, s, DEFAULT))
        .collect();
    bench.put(1, [1, 2, 3]);
    bench.task.run();
    assert_eq!(sinks[1].numbers(), [1]);
    let before = bench.statistics();
    assert!(before.waiting > 0, "{before:?}");
    sinks[1].make_room(10);
    bench.task.run();
    for sink in &sinks {
        assert_eq!(sink.numbers(), [1, 2, 3]);
    }
    // A sink is removed while it holds up a message.
    sinks[1].inside().room = Some(0);
    bench.put(1, [4]);
    bench.task.run();
    drop(guards.remove(1));
    bench.task.run();
    assert_eq!(sinks[0].numbers(), [1, 2, 3, 4]);
    assert_eq!(sinks[2].numbers(), [1, 2, 3, 4]);
    assert_eq!(sinks[1].numbers(), [1, 2, 3]);
    sinks[1].make_room(1);
    bench.task.run();
    assert_eq!(sinks[1].numbers(), [1, 2, 3, 4], "it was on its way before");
    assert_eq!(bench.statistics().abandoned, 0);
}

#[test]
fn dropped_guard_unsubscribes_after_queued_messages() {
    let mut bench = bench();
    let sink = Basket::with_room(1);
    let guard = bench.subscribe(1, &sink, with(Policy::DropNewest, 2));
    bench.put(1, [1, 2, 3]);
    bench.task.run();
    drop(guard);
    bench.put(1, [4]);
    bench.task.run();
    assert_eq!(sink.numbers(), [1]);
    assert_eq!(bench.statistics().unmatched, 1);
    sink.make_room(5);
    bench.task.run();
    assert_eq!(sink.numbers(), [1, 2, 3]);
    assert!(sink.inside().is_closed && sink.is_dropped());
}

#[test]
fn a_subscription_outlives_its_detached_guard() {
    let mut bench = bench();
    let sink = Basket::default();
    bench.subscribe(1, &sink, DEFAULT).detach();
    bench.put(1, [1]);
    bench.task.run();
    assert_eq!(sink.numbers(), [1]);
    bench.handle.unsubscribe(Target::Key(1));
    bench.put(1, [2]);
    bench.task.run();
    assert_eq!(sink.numbers(), [1]);
    assert!(sink.inside().is_closed);
}

#[test]
fn guard_of_an_earlier_sink_does_not_end_its_successor() {
    let mut bench = bench();
    let (first, second) = (Basket::default(), Basket::default());
    let old = bench.subscribe(1, &first, DEFAULT);
    bench.task.run();
    let _new = bench.subscribe(1, &second, DEFAULT);
    bench.task.run();
    drop(old);
    bench.put(1, [1]);
    bench.task.run();
    assert_eq!(second.numbers(), [1]);
}

#[test]
fn a_full_sink_with_the_policy_block_stops_the_input() {
    let mut bench = bench();
    let (slow, other) = (Basket::with_room(0), Basket::default());
    let _guards = [
        bench.subscribe(1, &slow, with(Policy::Block, 1)),
        bench.subscribe(2, &other, DEFAULT),
    ];
    bench.put(1, [1, 2]);
    bench.put(2, [3]);
    bench.task.run();
    assert_eq!(
        other.numbers(),
        [0; 0],
        "queued behind the blocking message"
    );
    assert_eq!(bench.input.len(), 1, "and still in the input");
    assert_eq!(bench.statistics().waiting, 2);
    slow.make_room(1);
    bench.task.run();
    assert_eq!((slow.numbers(), other.numbers()), (vec![1], vec![3]));
    slow.make_room(1);
    bench.task.run();
    assert_eq!(slow.numbers(), [1, 2]);
}

/// Operators look at the counts while the sink is blocked, when it does not flush.
#[test]
fn guard_reports_dropped_messages_at_once() {
    for (policy, buffer) in [
        (Policy::DropNewest, 2),
        (Policy::DropOldest, 2),
        (Policy::DropOldest, 0),
        (Policy::DisconnectAfter(100), 2),
    ] {
        let mut bench = bench();
        let stuck = Basket::with_room(0);
        let guard = bench.subscribe(1, &stuck, with(policy, buffer));
        for round in 1..=2 {
            bench.put(1, 0..5);
            bench.task.run();
            assert_eq!(guard.statistics().overflowed, 5 * round - buffer as u64);
        }
    }
}

#[test]
fn dropping_policies_keep_the_first_or_the_last() {
    for (policy, expected) in [
        (Policy::DropNewest, vec![1, 2, 3]),
        (Policy::DropOldest, vec![1, 5, 6]),
    ] {
        let mut bench = bench();
        let (slow, other) = (Basket::with_room(1), Basket::default());
        let guard = bench.subscribe(1, &slow, with(policy, 2));
        let _other = bench.subscribe(2, &other, DEFAULT);
        bench.put(1, 1..=6);
        bench.put(2, [7]);
        bench.task.run();
        assert_eq!(other.numbers(), [7], "{policy:?}: the others continue");
        let statistics = bench.statistics();
        assert_eq!((statistics.overflowed, statistics.waiting), (3, 2));
        slow.make_room(10);
        bench.task.run();
        assert_eq!(slow.numbers(), expected, "{policy:?}");
        assert_eq!(guard.statistics().overflowed, 3);
        assert_eq!(guard.statistics().delivered, 3);
    }
}

#[test]
fn drop_oldest_without_a_buffer_drops_the_newest_message() {
    let mut bench = bench();
    let sink = Basket::with_room(1);
    let _guard = bench.subscribe(1, &sink, with(Policy::DropOldest, 0));
    bench.put(1, [1, 2, 3]);
    bench.task.run();
    assert_eq!(sink.numbers(), [1]);
    assert_eq!(bench.statistics().overflowed, 2);
}

#[test]
fn a_sink_that_overflows_too_often_in_a_row_is_disconnected() {
    let mut bench = bench();
    let sink = Basket::with_room(1);
    let guard = bench.subscribe(1, &sink, with(Policy::DisconnectAfter(3), 1));
    bench.put(1, [1, 2, 3, 4]);
    bench.task.run();
    assert_eq!(guard.status(), Status::Active, "two have overflowed");
    // The sink takes a message in between, so the count restarts.
    sink.make_room(1);
    bench.put(1, [5, 6, 7]);
    bench.task.run();
    assert_eq!(guard.status(), Status::Active);
    assert_eq!(sink.numbers(), [1, 2]);
    bench.put(1, [8]);
    bench.task.run();
    assert_eq!(guard.status(), Status::Ended);
    assert!(sink.is_dropped() && !sink.inside().is_closed);
    let report = bench.end();
    assert_eq!((report.statistics.overflowed, report.dropped), (6, 1));
}

#[test]
fn limit_drops_messages_by_the_batch_clock() {
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    let limited = builder(Verdict::Remove).clock(move || clock.load(SeqCst));
    let mut bench = bench_of(limited);
    let sink = Basket::default();
    let service = Service {
        limit: Some(RateLimit::messages_per(2, Duration::from_secs(1))),
        ..DEFAULT
    };
    let guard = bench.subscribe(1, &sink, service);
    bench.put(1, 0..5);
    bench.task.run();
    assert_eq!(sink.numbers(), [0, 1]);
    now.store(500_000_000, SeqCst);
    bench.put(1, 5..8);
    bench.task.run();
    assert_eq!(sink.numbers(), [0, 1, 5]);
    assert_eq!(bench.statistics().limited, 5);
    assert_eq!(guard.statistics().limited, 5);
}

#[test]
fn a_limit_without_a_clock_is_refused() {
    let mut bench = bench();
    let service = Service {
        limit: Some(RateLimit::messages_per(2, Duration::from_secs(1))),
        ..DEFAULT
    };
    let guard = bench.subscribe(1, &Basket::default(), service);
    bench.task.run();
    assert_eq!(guard.status(), Status::Refused);
}

#[test]
fn the_handler_decides_about_failed_sinks() {
    for (verdict, end, status) in [
        (Verdict::Remove, None, Status::Ended),
        (Verdict::Keep, None, Status::Active),
        (Verdict::Abort, Some(End::Failed), Status::Ended),
    ] {
        let mut bench = bench_of(builder(verdict));
        let (broken, other) = (Basket::with_room(1), Basket::default());
        let guard = bench.subscribe(1, &broken, with(Policy::DropNewest, 2));
        let _other = bench.subscribe(2, &other, DEFAULT);
        bench.put(1, [1, 2]);
        bench.task.run();
        broken.change(|inside| inside.breaks = true);
        bench.put(2, [3]);
        bench.task.run();
        assert_eq!(
            bench.task.report.map(|report| report.end),
            end,
            "{verdict:?}"
        );
        assert_eq!(guard.status(), status, "{verdict:?}");
        let statistics = bench.statistics();
        if verdict == Verdict::Remove {
            assert_eq!(statistics.errored, 1, "the messages queued for it");
            assert!(broken.is_dropped());
        }
        if end.is_none() {
            assert_eq!(other.numbers(), [3]);
        }
    }
}

#[test]
fn the_message_whose_delivery_failed_is_counted() {
    let mut bench = bench_of(builder(Verdict::Keep));
    let broken = Basket::default();
    broken.inside().breaks = true;
    let _guard = bench.subscribe(1, &broken, DEFAULT);
    bench.put(1, [1, 2]);
    bench.task.run();
    assert_eq!(bench.statistics().errored, 2);
    broken.inside().breaks = false;
    bench.put(1, [3]);
    bench.task.run();
    assert_eq!(broken.numbers(), [3], "a sink may recover");
}

#[test]
fn the_end_waits_for_slow_sinks_up_to_the_deadline() {
    for waits in [true, false] {
        let (over, is_over) = (Feed::<()>::default(), Feed::<()>::default());
        let watched = over.clone();
        let built = builder(Verdict::Remove).deadline(move || async move {
            use futures_util::StreamExt;
            let mut over = watched;
            over.next().await;
        });
        let mut bench = bench_of(built);
        let (slow, open) = (Basket::with_room(0), Basket::default());
        let guards = [
            bench.subscribe(1, &slow, with(Policy::DropNewest, 5)),
            bench.subscribe(2, &open, DEFAULT),
        ];
        bench.put(1, [1, 2]);
        bench.input.end();
        bench.task.run();
        assert_eq!(bench.task.report, None);
        assert!(open.inside().is_closed, "the others do not wait for it");
        if waits {
            slow.make_room(2);
        } else {
            over.put(());
        }
        bench.task.run();
        let report = bench.task.report.expect("it has ended");
        let expected = if waits {
            (End::Complete, 2, 0, 0)
        } else {
            (End::Deadline, 1, 1, 2)
        };
        let statistics = report.statistics;
        let found = (
            report.end,
            report.closed,
            report.dropped,
            statistics.abandoned,
        );
        assert_eq!(found, expected);
        assert_eq!(slow.numbers().len(), if waits { 2 } else { 0 });
        assert!(guards.iter().all(|guard| guard.status() == Status::Ended));
        drop(is_over);
    }
}

#[test]
fn an_abort_ends_at_once() {
    let mut bench = bench();
    let slow = Basket::with_room(0);
    let guard = bench.subscribe(1, &slow, DEFAULT);
    bench.put(1, [1, 2]);
    bench.task.run();
    bench.handle.abort();
    bench.task.run();
    let report = bench.task.report.expect("it has ended");
    assert_eq!((report.end, report.statistics.abandoned), (End::Aborted, 1));
    assert!(slow.is_dropped());
    assert_eq!(guard.status(), Status::Ended);
    assert!(bench.handle.has_ended());
    let late = bench
        .handle
        .subscribe(Target::Key(1), slow.clone(), DEFAULT);
    assert!(matches!(late, Err(Ended(_))), "the sink comes back");
}

#[test]
fn dropped_demultiplexer_notifies_its_handles() {
    let Bench {
        handle, mut task, ..
    } = bench();
    let sink = Basket::default();
    let applied = handle
        .subscribe(Target::Key(1), sink.clone(), DEFAULT)
        .unwrap();
    task.run();
    let unapplied = handle
        .subscribe(Target::Key(2), sink.clone(), DEFAULT)
        .unwrap();
    drop(task);
    assert_eq!(applied.status(), Status::Ended);
    assert_eq!(unapplied.status(), Status::Refused);
    assert!(handle.has_ended() && sink.is_dropped());
}

#[test]
fn sinks_are_flushed_once_a_batch_and_idle_ones_are_not_touched() {
    let mut bench = bench();
    let (busy, idle) = (Basket::default(), Basket::default());
    let _guards = [
        bench.subscribe(1, &busy, DEFAULT),
        bench.subscribe(2, &idle, DEFAULT),
    ];
    bench.task.run();
    bench.put(1, 0..1000);
    bench.task.run();
    // A batch has 256 messages.
    assert_eq!(busy.inside().flushes, 4);
    let touches = {
        let inside = idle.inside();
        inside.readies + inside.flushes
    };
    assert_eq!(touches, 0);
    assert!(bench.task.polls >= 4, "other tasks had their turn");
}

#[test]
fn pending_flush_resumes_when_the_sink_is_woken() {
    let mut bench = bench();
    let sink = Basket::default();
    sink.inside().keeps_flush = true;
    let _guard = bench.subscribe(1, &sink, DEFAULT);
    bench.put(1, [1]);
    bench.task.run();
    assert_eq!(sink.inside().flushes, 1);
    bench.put(1, [2]);
    bench.task.run();
    assert_eq!(sink.inside().flushes, 1, "nothing new of it");
    sink.change(|inside| inside.keeps_flush = false);
    bench.task.run();
    assert_eq!(sink.inside().flushes, 2);
}

#[test]
fn the_number_of_closing_sinks_is_bounded() {
    let mut bench = bench();
    let sinks: Vec<Basket> = (0..1030).map(|_| Basket::default()).collect();
    for sink in &sinks {
        sink.inside().keeps_open = true;
        drop(bench.subscribe(1, sink, DEFAULT));
        bench.task.run();
    }
    let dropped = sinks.iter().filter(|sink| sink.is_dropped()).count();
    assert_eq!(dropped, 1030 - 1024);
}
