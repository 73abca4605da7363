//! Timer of an agent: two kinds, moved later and earlier, and cancelled.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::common::{add, ask, next, settle, shard};
use threadbare_runtime::{Agent, AgentHandle, Cx, Precision, Ready, Shard, clock_now_ns};

const MS: u64 = 1_000_000;

/// Reports when its timer fires: (by the shard's clock, slice).
struct Timed(Sender<(u64, u64)>);

impl Agent for Timed {
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        if ready == Ready::Timer {
            self.0.send((cx.now_ns(), cx.local().slice())).unwrap();
        }
    }
}

fn timed(shard: &Shard) -> (AgentHandle<Timed>, Receiver<(u64, u64)>) {
    let (tx, rx) = channel();
    let agent = shard.call(|local| local.add_agent(Timed(tx))).unwrap();
    (agent, rx)
}

#[test]
fn a_not_before_timer_is_never_early_and_an_about_timer_at_most_half_a_tick() {
    for wait_ms in [0, 20] {
        let (_context, shard) = shard(wait_ms);
        let tick_ns = wait_ms.max(1) * MS;
        let (agent, fired) = timed(&shard);
        for ns in [1, 5 * MS, 13 * MS, 29 * MS] {
            let deadline_ns = ask(&agent, move |_, cx| {
                let deadline_ns = cx.now_ns() + ns;
                cx.set_timer(deadline_ns, Precision::NotBefore);
                deadline_ns
            });
            assert!(next(&fired).0 >= deadline_ns);
            let deadline_ns = ask(&agent, move |_, cx| {
                let deadline_ns = cx.now_ns() + ns;
                cx.set_timer(deadline_ns, Precision::About);
                deadline_ns
            });
            assert!(next(&fired).0 + tick_ns / 2 >= deadline_ns);
        }
        assert!(fired.try_recv().is_err(), "once each");
    }
}

#[test]
fn a_timer_in_the_past_fires_once() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (agent, fired) = timed(&shard);
        ask(&agent, |_, cx| cx.set_timer(0, Precision::NotBefore));
        next(&fired);
        settle(&shard);
        assert!(fired.try_recv().is_err());
    }
}

#[test]
fn a_timer_that_is_moved_later_does_not_fire_at_its_earlier_time() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (agent, fired) = timed(&shard);
        let deadline_ns = ask(&agent, |_, cx| {
            cx.set_timer(cx.now_ns() + 10 * MS, Precision::NotBefore);
            // A jitter buffer also moves its timer with each packet.
            for ms in 11..60 {
                cx.set_timer(cx.now_ns() + ms * MS, Precision::NotBefore);
            }
            cx.now_ns() + 59 * MS
        });
        assert!(next(&fired).0 >= deadline_ns);
        assert!(fired.try_recv().is_err(), "not at the earlier time as well");
    }
}

#[test]
fn postponed_timer_causes_at_most_one_wake_up() {
    let (_context, shard) = shard(0);
    let (agent, fired) = timed(&shard);
    settle(&shard);
    let before = shard.counters_snapshot().wakeups;
    ask(&agent, |_, cx| {
        for ms in (20..60).rev().chain(20..60) {
            cx.set_timer(cx.now_ns() + ms * MS, Precision::NotBefore);
        }
    });
    next(&fired);
    let wakeups = shard.counters_snapshot().wakeups - before;
    // One wake-up each for the command, the original time and the new time, and some for the wheel's coarse levels.
    assert!(wakeups <= 8, "{wakeups}");
}

#[test]
fn a_timer_that_moves_earlier_fires_then_and_not_again() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (agent, fired) = timed(&shard);
        // Set to an hour from now, where it would stay for the whole test.
        ask(&agent, |_, cx| {
            cx.set_timer(cx.now_ns() + 3_600_000 * MS, Precision::About);
            cx.set_timer(cx.now_ns() + 40 * MS, Precision::NotBefore);
            cx.set_timer(cx.now_ns() + 10 * MS, Precision::NotBefore);
        });
        let (first, _) = next(&fired);
        // Later and earlier again, between the original and the new time.
        let deadline_ns = ask(&agent, |_, cx| {
            cx.set_timer(cx.now_ns() + 10 * MS, Precision::NotBefore);
            cx.set_timer(cx.now_ns() + 3_600_000 * MS, Precision::NotBefore);
            cx.set_timer(cx.now_ns() + 30 * MS, Precision::NotBefore);
            cx.now_ns() + 30 * MS
        });
        let (second, _) = next(&fired);
        assert!(second >= deadline_ns && second > first);
        settle(&shard);
        assert!(fired.try_recv().is_err());
    }
}

#[test]
fn an_agents_cancelled_timer_does_not_fire() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (taken_back, never) = timed(&shard);
        let (gone, of_gone) = timed(&shard);
        let (other, fired) = timed(&shard);
        let set = |cx: &mut Cx<'_>, ms| cx.set_timer(cx.now_ns() + ms * MS, Precision::NotBefore);
        ask(&taken_back, move |_, cx| {
            set(cx, 10);
            cx.clear_timer();
            cx.clear_timer();
        });
        ask(&gone, move |_, cx| set(cx, 10));
        gone.remove();
        // A timer that was moved to a later time, and is inspected after its cancellation.
        ask(&taken_back, move |_, cx| {
            set(cx, 5);
            set(cx, 10);
            cx.clear_timer();
        });
        ask(&other, move |_, cx| set(cx, 30));
        next(&fired);
        assert!(never.try_recv().is_err() && of_gone.try_recv().is_err());
    }
}

/// Timers at about the same time share a wake-up: all fire in one slice.
#[test]
fn timers_of_a_slice_fire_together() {
    let (_context, shard) = shard(100);
    let agents: Vec<_> = (0..50).map(|_| timed(&shard)).collect();
    // One base for all; each is rounded to the same edge by its kind.
    let base_ns = clock_now_ns() + 300 * MS;
    for (i, (agent, _)) in agents.iter().enumerate() {
        let deadline_ns = base_ns + i as u64 * 1_000;
        ask(agent, move |_, cx| {
            cx.set_timer(deadline_ns, Precision::NotBefore);
        });
    }
    let mut slices: Vec<u64> = agents.iter().map(|(_, fired)| next(fired).1).collect();
    slices.dedup();
    // 50 µs may include one edge.
    assert!(slices.len() <= 2, "{slices:?}");
}

#[test]
fn an_agent_may_set_its_timer_again_whenever_it_fires() {
    for wait_ms in [0, 2] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let mut left = 30;
        let agent = add(&shard, move |cx, _ready| {
            left -= 1;
            match left {
                0 => tx.send(cx.local().slice()).unwrap(),
                _ => cx.set_timer(cx.now_ns() + 1, Precision::NotBefore),
            }
        });
        let begin = shard.call(|local| local.slice()).unwrap();
        agent.wake();
        // A timer set in a slice does not fire in that slice.
        assert!(next(&rx) >= begin + 29);
    }
}

/// By the definition of "not before", the clock has reached the deadline when the wait ends.
#[test]
fn an_ordinary_thread_sleeps_in_block_on() {
    let deadline_ns = clock_now_ns() + 5_000_000;
    threadbare_runtime::block_on(threadbare_runtime::sleep_until(
        deadline_ns,
        Precision::NotBefore,
    ));
    assert!(clock_now_ns() >= deadline_ns);
}
