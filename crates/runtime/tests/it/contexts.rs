//! Contexts: shared by name, one set of settings, threads that end with the last user.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::common::{FnAgent, Tid, add, context, next, shard, unique_name, until};
use threadbare_runtime::{
    Agent, Context, CpuSet, Cx, Ready, Scheduling, Settings, ShardClosed, StartError, contexts,
};

fn settings(wait_ms: u64, threads: i32) -> Settings {
    Settings {
        wait: Duration::from_millis(wait_ms),
        threads,
        ..Settings::default()
    }
}

#[test]
fn contexts_of_the_same_name_share_threads() {
    let name = unique_name();
    let first = Context::acquire(&name, settings(0, -1)).unwrap();
    let second = Context::acquire(&name, settings(0, -1)).unwrap();
    let other = context(0, -1);
    assert_eq!(first.next_shard().id(), second.next_shard().id());
    assert_ne!(first.next_shard().id(), other.next_shard().id());
    assert_eq!(first.users(), 2);
    assert_eq!(Context::find(&name).unwrap().name(), name);
    drop((first, second));
    assert!(Context::find(&name).is_none());
}

#[test]
fn the_first_settings_apply_and_the_conflict_names_both() {
    let name = unique_name();
    let first = Context::acquire(&name, settings(20, -1)).unwrap();
    let asked = settings(50, 3);
    let second = Context::acquire(&name, asked).unwrap();
    assert_eq!(second.settings(), settings(20, -1));
    assert_eq!(second.shards().len(), 1);
    let conflict = second.conflict(asked).expect("they differ");
    assert_eq!((conflict.stands, conflict.asked), (first.settings(), asked));
    let text = conflict.to_string();
    for part in [&name, "20 ms", "50 ms", "1 thread", "3 thread"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert_eq!(
        second.conflict(settings(20, 1)),
        None,
        "1 means what -1 means"
    );
}

#[test]
fn a_setting_left_at_its_default_never_conflicts() {
    let throttled = context(20, 3);
    assert_eq!(throttled.conflict(settings(0, -1)), None);
    assert_eq!(throttled.conflict(settings(0, 3)), None);
    assert!(throttled.conflict(settings(0, 2)).is_some());
    assert!(context(0, -1).conflict(settings(20, -1)).is_some());
}

#[test]
fn threads_are_one_or_n_or_one_per_core() {
    let cores = thread::available_parallelism().unwrap().get();
    for (asked, threads) in [(-1, 1), (1, 1), (3, 3), (0, cores)] {
        let context = context(0, asked);
        assert_eq!(context.shards().len(), threads, "context-threads={asked}");
        let tids: HashSet<String> = context
            .shards()
            .iter()
            .map(|shard| format!("{:?}", Tid::of(shard)))
            .collect();
        assert_eq!(tids.len(), threads);
    }
}

#[test]
fn agents_are_spread_over_the_threads_and_stay_there() {
    let context = context(0, 3);
    let (tx, rx) = channel();
    let agents: Vec<_> = (0..9)
        .map(|i| {
            let tx = tx.clone();
            add(&context.next_shard(), move |_cx, _ready| {
                tx.send((i, thread::current().id())).unwrap();
            })
        })
        .collect();
    let mut threads_of_agents = vec![HashSet::new(); agents.len()];
    for _ in 0..20 {
        agents.iter().for_each(|agent| agent.wake());
        for _ in &agents {
            let (i, thread) = next(&rx);
            threads_of_agents[i].insert(thread);
        }
    }
    assert!(threads_of_agents.iter().all(|threads| threads.len() == 1));
    let all: HashSet<_> = threads_of_agents.into_iter().flatten().collect();
    assert_eq!(all.len(), 3);
    for shard in context.shards() {
        assert_eq!(shard.counters_snapshot().agents, 3);
    }
}

/// Reports the thread on which it was dropped.
struct Dropped(std::sync::mpsc::Sender<thread::ThreadId>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

impl Agent for Dropped {
    fn run(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}
}

#[test]
fn the_threads_end_with_the_last_user_and_drop_their_agents_themselves() {
    let context = context(20, 2);
    let (tx, rx) = channel();
    let mut handles = Vec::new();
    let mut homes = HashSet::new();
    for shard in context.shards() {
        let tx = tx.clone();
        handles.push(shard.call(|local| local.add_agent(Dropped(tx))).unwrap());
        homes.insert(shard.call(|_| thread::current().id()).unwrap());
    }
    let tids: Vec<Tid> = context.shards().iter().map(Tid::of).collect();
    let second = context.clone();
    drop(context);
    assert!(tids.iter().all(Tid::is_alive));
    drop(second);
    // The handles still exist: they do not keep the threads.
    tids.iter()
        .for_each(|tid| until("the thread ends", || !tid.is_alive()));
    assert_eq!(HashSet::from([next(&rx), next(&rx)]), homes);
    for handle in handles {
        assert_eq!(handle.shard().call(|_| ()), Err(ShardClosed));
        handle.wake();
        handle.command(|_, _| panic!("its shard has ended"));
        handle.remove();
    }
}

#[test]
fn last_user_may_be_dropped_on_the_contexts_thread() {
    for wait_ms in [0, 1000] {
        let (context, shard) = shard(wait_ms);
        let tid = Tid::of(&shard);
        let (tx, rx) = channel();
        let agent_tx = tx.clone();
        shard
            .call(|local| local.add_agent(Dropped(agent_tx)))
            .unwrap();
        shard
            .command(move |_| {
                drop(context);
                tx.send(thread::current().id()).unwrap();
            })
            .unwrap();
        assert_eq!(next(&rx), next(&rx));
        until("the thread ends", || !tid.is_alive());
        assert_eq!(shard.call(|_| ()), Err(ShardClosed));
    }
}

#[test]
fn last_user_may_be_dropped_in_an_agents_run_or_on_another_context() {
    let (context, shard) = shard(0);
    let (_other_context, other) = crate::common::shard(0);
    let tid = Tid::of(&shard);
    let mut held = Some(context.clone());
    let agent = add(&shard, move |_cx, _ready| drop(held.take()));
    drop(context);
    agent.wake();
    until("the thread ends", || !tid.is_alive());

    let (context, shard) = crate::common::shard(20);
    let tid = Tid::of(&shard);
    other.call(move |_| drop(context)).unwrap();
    until("the thread ends", || !tid.is_alive());
    other.call(|_| ()).unwrap();
}

#[test]
fn contexts_in_use_are_listed() {
    let context = context(20, 2);
    let second = context.clone();
    let agent = add(&context.shards()[0], |cx, _ready| cx.count_packets(7));
    agent.wake();
    until("it ran", || {
        context.shards()[0].counters_snapshot().packets == 7
    });
    let info = contexts()
        .into_iter()
        .find(|info| info.name == context.name())
        .expect("listed");
    assert_eq!((info.settings, info.users), (context.settings(), 2));
    let agents: Vec<u64> = info.shards.iter().map(|shard| shard.agents).collect();
    assert_eq!((agents, info.shards[0].packets), (vec![1, 0], 7));
    drop((context, second));
    assert!(contexts().iter().all(|known| known.name != info.name));
}

#[test]
fn extensions_have_one_value_per_type_and_shard() {
    let context = context(0, 2);
    let [a, b] = [&context.shards()[0], &context.shards()[1]];
    let made = AtomicUsize::new(0);
    let make = |_: &_| made.fetch_add(1, Ordering::Relaxed);
    let [first, again, other] = [a.extension(make), a.extension(make), b.extension(make)];
    assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
    assert_eq!(made.into_inner(), 2);
}

/// Contexts start and end under a few shared names while others send to them. Nothing may panic, hang or get lost silently, and
/// every thread ends.
#[test]
fn contexts_come_and_go_while_work_is_sent() {
    let names = [unique_name(), unique_name()];
    let ran = Arc::new(AtomicUsize::new(0));
    let failed = Arc::new(AtomicBool::new(false));
    let barrier = Arc::new(Barrier::new(4));
    let workers: Vec<_> = (0..4usize)
        .map(|worker| {
            let (names, ran, barrier) = (names.clone(), ran.clone(), barrier.clone());
            let failed = failed.clone();
            thread::spawn(move || {
                barrier.wait();
                for round in 0..150 {
                    let wait_ms = [0, 1][round % 2];
                    let name = &names[(worker + round) % 2];
                    let context = Context::acquire(name, settings(wait_ms, -1)).unwrap();
                    let shard = context.next_shard();
                    let agent =
                        shard.call(|local| local.add_agent(FnAgent(|_: &mut Cx<'_>, _| ())));
                    let agent = agent.expect("this worker is a user");
                    let counted = ran.clone();
                    let task = shard.spawn(async move { counted.fetch_add(1, Ordering::Relaxed) });
                    agent.wake();
                    if round % 3 == 0 {
                        threadbare_runtime::block_on(task);
                    } else {
                        task.detach();
                    }
                    // In every other round the user is dropped first, and later commands may be refused.
                    let mut context = Some(context);
                    if worker % 2 == 0 {
                        drop(context.take());
                    }
                    agent.wake();
                    agent.command(|_, _| ());
                    match shard.call(|_| ()) {
                        Ok(()) => {}
                        Err(ShardClosed) => {
                            failed.fetch_or(context.is_some(), Ordering::Relaxed);
                        }
                    }
                    agent.remove();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no panic");
    }
    assert!(
        !failed.load(Ordering::Relaxed),
        "refused in spite of a user"
    );
    assert!(ran.load(Ordering::Relaxed) >= 200);
    for name in &names {
        assert!(Context::find(name).is_none());
    }
}

fn scheduled(affinity: &str, priority: u8) -> Settings {
    Settings {
        scheduling: Scheduling {
            affinity: affinity.parse().unwrap(),
            priority,
        },
        ..Settings::default()
    }
}

/// CPUs that the calling thread may use, as the kernel lists them.
fn allowed_cpus() -> CpuSet {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("in status").trim().parse().expect("a list")
}

#[test]
fn a_contexts_threads_run_only_on_the_cpus_of_the_context() {
    let all = allowed_cpus();
    let one = (0..1024).find(|cpu| all.contains(*cpu)).expect("a CPU");
    let asked = Settings {
        threads: 2,
        ..scheduled(&one.to_string(), 0)
    };
    let context = Context::acquire(&unique_name(), asked).unwrap();
    for shard in context.shards() {
        let cpus = shard.call(|_| allowed_cpus()).unwrap();
        assert_eq!(cpus.to_string(), one.to_string());
    }
    assert_eq!(allowed_cpus(), all, "other threads are not touched");
    // One per CPU.
    let asked = Settings {
        threads: 0,
        ..scheduled(&all.to_string(), 0)
    };
    let context = Context::acquire(&unique_name(), asked).unwrap();
    assert_eq!(context.shards().len(), all.len());
}

#[test]
fn missing_cpus_are_refused_and_the_allowed_ones_named() {
    let all = allowed_cpus();
    for asked in ["1023".to_owned(), format!("{all},1020-1021")] {
        let refused = Context::acquire(&unique_name(), scheduled(&asked, 0)).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&asked), "{text}");
        assert!(text.contains(&format!("expected CPUs of {all}")), "{text}");
        let StartError::Affinity(cpus) = refused else {
            panic!("{text}");
        };
        let missing = cpus.missing.to_string();
        assert!(asked.ends_with(&missing), "{missing} of {asked}");
    }
}

/// Policy and real-time priority of the calling thread: fields 41 and 40 of proc_pid_stat(5).
fn policy() -> (u32, u8) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("procfs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let field = |number: usize| fields[number - 3].parse::<u32>().unwrap();
    (field(41), field(40) as u8)
}

/// Drops the right to raise priorities, for the calling thread and its children.
fn give_up_priorities() {
    const CAP_SYS_NICE: u32 = 23;
    let header: [u32; 2] = [0x2008_0522, 0];
    let mut data = [0u32; 6];
    // SAFETY: capget and capset with a header of version 3 use two sets of three words, which exist here.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &header, &mut data), 0);
        data[0] &= !(1 << CAP_SYS_NICE);
        data[1] &= !(1 << CAP_SYS_NICE);
        assert_eq!(libc::syscall(libc::SYS_capset, &header, &data), 0);
    }
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads a live local.
    unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &none) };
}

/// One test, because the limit applies to the whole process.
#[test]
fn a_priority_is_real_time_or_refused_with_the_remedy() {
    // The system allows it to root, or with a limit of real-time priorities.
    match Context::acquire(&unique_name(), scheduled("", 7)) {
        Ok(context) => {
            let found = context.next_shard().call(|_| policy()).unwrap();
            assert_eq!(found, (libc::SCHED_FIFO as u32, 7));
            let inherited = context
                .next_shard()
                .call(|_| thread::spawn(policy).join().unwrap())
                .unwrap();
            assert_eq!(inherited, (libc::SCHED_OTHER as u32, 0));
        }
        Err(refused) => assert!(matches!(refused, StartError::Priority { .. })),
    }
    let ordinary = context(0, -1);
    let found = ordinary.next_shard().call(|_| policy()).unwrap();
    assert_eq!(found, (libc::SCHED_OTHER as u32, 0));

    let refused = thread::spawn(|| {
        give_up_priorities();
        Context::acquire(&unique_name(), scheduled("", 7)).unwrap_err()
    });
    let text = refused.join().unwrap().to_string();
    for part in [
        "priority 7",
        "not permitted",
        "CAP_SYS_NICE",
        "ulimit -r",
        "LimitRTPRIO",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let refused = Context::acquire(&unique_name(), scheduled("", 100)).unwrap_err();
    assert_eq!(refused.to_string(), "priority 100: must be 0 (none) to 99");
}

#[test]
fn a_different_priority_or_affinity_conflicts_unless_it_is_unset() {
    let cpu = (0..1024).find(|cpu| allowed_cpus().contains(*cpu)).unwrap();
    let stands = scheduled(&cpu.to_string(), 0);
    let context = Context::acquire(&unique_name(), stands).unwrap();
    assert_eq!(context.conflict(stands), None);
    assert_eq!(context.conflict(Settings::default()), None);
    let conflict = context.conflict(scheduled("999", 3)).expect("another");
    let text = conflict.to_string();
    for part in [
        format!("on CPU {cpu},"),
        "on CPU 999 with priority 3".into(),
    ] {
        assert!(text.contains(&part), "{part} is not in: {text}");
    }
}
