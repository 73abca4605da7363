//! Commands and calls: none is lost, order is kept, and a panic has no effect on others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::common::{Tid, add, ask, next, shard, until};
use threadbare_runtime::{Agent, AgentHandle, Cx, Ready, ShardClosed, block_on, current_shard_id};

#[test]
fn a_burst_of_commands_tasks_and_wakes_loses_nothing() {
    const THREADS: usize = 4;
    const EACH: usize = 25_000;
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let commands = Arc::new(AtomicUsize::new(0));
        let of_agents = Arc::new(AtomicUsize::new(0));
        let tasks = Arc::new(AtomicUsize::new(0));
        let asked = Arc::new(AtomicBool::new(false));
        let woken = Arc::new(AtomicBool::new(false));
        let agent = {
            let (asked, woken) = (asked.clone(), woken.clone());
            add(&shard, move |_cx, _ready| {
                // Wake-ups may be merged, but a run must follow the last one.
                if asked.swap(false, Ordering::SeqCst) {
                    woken.store(true, Ordering::SeqCst);
                }
            })
        };
        let barrier = Arc::new(Barrier::new(THREADS));
        let senders: Vec<_> = (0..THREADS)
            .map(|_| {
                let (shard, agent, barrier) = (shard.clone(), agent.clone(), barrier.clone());
                let (commands, of_agents) = (commands.clone(), of_agents.clone());
                let tasks = tasks.clone();
                thread::spawn(move || {
                    barrier.wait();
                    for i in 0..EACH {
                        let count = commands.clone();
                        let command = move |_: &_| _ = count.fetch_add(1, Ordering::Relaxed);
                        shard.command(command).unwrap();
                        agent.wake();
                        let count = of_agents.clone();
                        agent.command(move |_, _| _ = count.fetch_add(1, Ordering::Relaxed));
                        if i % 10 == 0 {
                            let count = tasks.clone();
                            shard
                                .spawn(async move { count.fetch_add(1, Ordering::Relaxed) })
                                .detach();
                        }
                    }
                })
            })
            .collect();
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
        let all = THREADS * EACH;
        until("all tasks ran", || {
            tasks.load(Ordering::Relaxed) == all / 10
        });
        shard.call(|_| ()).unwrap();
        assert_eq!(commands.load(Ordering::Relaxed), all);
        assert_eq!(of_agents.load(Ordering::Relaxed), all);
        asked.store(true, Ordering::SeqCst);
        agent.wake();
        until("the last wake is followed by a run", || {
            woken.load(Ordering::SeqCst)
        });
        assert!(shard.counters_snapshot().ready_max > 0);
    }
}

#[test]
fn each_wake_is_followed_by_a_run_that_sees_earlier_writes() {
    let (_context, shard) = shard(0);
    let (written, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let agent = {
        let (written, seen) = (written.clone(), seen.clone());
        add(&shard, move |_, _| {
            seen.store(written.load(Ordering::Relaxed), Ordering::Relaxed);
        })
    };
    for i in 1..=20_000 {
        written.store(i, Ordering::Relaxed);
        agent.wake();
        if i % 100 == 0 {
            until("a run sees it", || seen.load(Ordering::Relaxed) == i);
        }
    }
}

#[test]
fn call_from_its_own_thread_runs_at_once() {
    let (_context, shard) = shard(1000);
    let inner = shard.clone();
    let answer = shard.call(move |_| {
        assert!(inner.is_current());
        assert_eq!(current_shard_id(), Some(inner.id()));
        inner.call(|local| local.shard().id()).unwrap()
    });
    assert_eq!(answer, Ok(shard.id()));
    assert!(!shard.is_current());
    assert_eq!(current_shard_id(), None);

    let inner = shard.clone();
    let task = shard.spawn(async move { inner.call(|_| 1).unwrap() });
    assert_eq!(block_on(task), 1);

    // The agent itself may do this, too.
    let inner = shard.clone();
    let agent = add(&shard, |_, _| ());
    assert_eq!(ask(&agent, move |_, _| inner.call(|_| 2)), Ok(2));
}

#[test]
fn shards_that_call_each_other_do_not_lock_up() {
    for (wait_a, wait_b) in [(0, 0), (1000, 0), (1000, 1000)] {
        let ((_of_a, a), (_of_b, b)) = (shard(wait_a), shard(wait_b));
        for _ in 0..20 {
            let (tx, rx) = channel();
            let barrier = Arc::new(Barrier::new(2));
            for (from, to) in [(&a, &b), (&b, &a)] {
                let (to, tx, barrier) = (to.clone(), tx.clone(), barrier.clone());
                from.command(move |_| {
                    // Both shards run a command when they call each other.
                    barrier.wait();
                    tx.send(to.call(|local| local.shard().id())).unwrap();
                })
                .unwrap();
            }
            let answers = [next(&rx), next(&rx)];
            assert!(answers.contains(&Ok(a.id())) && answers.contains(&Ok(b.id())));
        }
    }
}

/// While a shard waits for another one it handles commands. Later ones must not overtake those that it has already fetched.
#[test]
fn commands_stay_in_order_while_their_shard_calls_another() {
    let ((_of_a, a), (_of_b, b)) = (shard(0), shard(0));
    let (log, logged) = channel();
    let (gate, opened) = channel();
    let (started, starts) = channel();
    let (third, third_ran) = channel();
    a.command(move |_| next(&opened)).unwrap();
    // These two are fetched together, because the shard is still at the gate.
    let first_log = log.clone();
    a.command(move |_| {
        first_log.send(1).unwrap();
        started.send(()).unwrap();
        b.call(move |_| next(&third_ran)).unwrap();
    })
    .unwrap();
    let second_log = log.clone();
    a.command(move |_| second_log.send(2).unwrap()).unwrap();
    gate.send(()).unwrap();
    next(&starts);
    a.command(move |_| {
        log.send(3).unwrap();
        third.send(()).unwrap();
    })
    .unwrap();
    assert_eq!([next(&logged), next(&logged), next(&logged)], [1, 2, 3]);
}

#[test]
fn a_command_for_an_agent_that_is_in_a_call_waits_for_it() {
    let ((_of_a, a), (_of_b, b)) = (shard(0), shard(0));
    let (log, logged) = channel();
    let (started, starts) = channel();
    let (other, other_ran) = channel();
    let mut other_ran = Some(other_ran);
    let agent = {
        let log = log.clone();
        add(&a, move |_cx, _ready| {
            let Some(other_ran) = other_ran.take() else {
                return;
            };
            started.send(()).unwrap();
            b.call(move |_| next(&other_ran)).unwrap();
            log.send("run").unwrap();
        })
    };
    agent.wake();
    next(&starts);
    for name in ["first", "second"] {
        let log = log.clone();
        agent.command(move |_, _| log.send(name).unwrap());
    }
    // The shard handles this command while the agent is in its call. So it has already seen and postponed the two above.
    a.command(move |_| other.send(()).unwrap()).unwrap();
    let order = [next(&logged), next(&logged), next(&logged)];
    assert_eq!(order, ["run", "first", "second"]);
}

/// Reports its drop.
struct Tell(Sender<&'static str>, &'static str);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

impl Agent for Tell {
    fn run(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {
        panic!("on purpose: an agent's run");
    }
}

/// Removes itself when it runs, and panics when it is dropped.
#[derive(Default)]
struct PanicsInDrop(Option<AgentHandle<PanicsInDrop>>);

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("on purpose: an agent's drop");
    }
}

impl Agent for PanicsInDrop {
    fn run(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {
        self.0.take().expect("its handle").remove();
    }
}

#[test]
fn a_panic_does_not_stop_the_shard() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        shard.command(|_| panic!("on purpose: a command")).unwrap();
        let call = shard.call(|_| -> () { panic!("on purpose: a call") });
        assert_eq!(call, Err(ShardClosed));

        let task = shard.spawn(async { panic!("on purpose: a task") });
        let awaited = catch_unwind(AssertUnwindSafe(|| block_on(task)));
        assert!(awaited.is_err(), "the awaiting task is notified");
        shard
            .call(|local| {
                local
                    .spawn_local(async { panic!("on purpose: a local task") })
                    .detach();
            })
            .unwrap();

        let of_run = Tell(tx.clone(), "run");
        let agent = shard.call(|local| local.add_agent(of_run)).unwrap();
        agent.wake();
        assert_eq!(next(&rx), "run", "dropped after its panic");
        agent.command(|_, _| panic!("it is gone"));

        let of_command = Tell(tx.clone(), "command");
        let agent = shard.call(|local| local.add_agent(of_command)).unwrap();
        agent.command(|_, _| panic!("on purpose: a command of an agent"));
        assert_eq!(next(&rx), "command");
        until("both are gone", || shard.counters_snapshot().agents == 0);
        assert_eq!(shard.call(|_| 1), Ok(1));
    }
}

#[test]
fn a_panic_in_an_agents_drop_does_not_stop_the_shard() {
    for wait_ms in [0, 5] {
        let (context, shard) = shard(wait_ms);
        let tid = Tid::of(&shard);
        let add = || {
            shard
                .call(|local| local.add_agent(PanicsInDrop(None)))
                .unwrap()
        };
        add().remove();
        let agent = add();
        let itself = agent.clone();
        agent.command(move |agent, _| agent.0 = Some(itself));
        agent.wake();
        until("it removed itself", || {
            shard.counters_snapshot().agents == 0
        });
        assert_eq!(shard.call(|_| 1), Ok(1));
        // These panic when the context ends. It must end all the same, and drop everything else.
        let (tx, rx) = channel();
        add();
        add();
        let other = Tell(tx, "dropped");
        shard.call(|local| local.add_agent(other)).unwrap();
        drop(context);
        assert_eq!(next(&rx), "dropped");
        until("the thread ends", || !tid.is_alive());
    }
}
