//! Sleep of a shard: its start, wake-ups, and items that wait for the edge of the slice.

use std::future::poll_fn;
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::common::{Tid, add, ask, next, receive, settle, shard, udp};
use threadbare_runtime::{Interest, Precision, Ready, Shard, block_on, clock_now_ns, sleep_until};

/// Long enough to detect a thread that wakes up by itself or spins.
const INTERVAL: Duration = Duration::from_millis(400);
/// Maximum CPU time of a thread that sleeps; one that spins uses all of it.
const CPU_MAX: Duration = Duration::from_millis(40);

/// Watches the shard's thread for the interval: it must not wake up.
fn assert_sleeps(shard: &Shard) {
    let tid = Tid::of(shard);
    settle(shard);
    // After the last command the thread has to fall asleep again, which cannot be observed directly.
    let mut before = tid.voluntary_switches();
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = tid.voluntary_switches();
        if now == before {
            break;
        }
        before = now;
    }
    let (wakeups, cpu) = (shard.counters_snapshot().wakeups, tid.cpu());
    thread::sleep(INTERVAL);
    assert_eq!(tid.voluntary_switches(), before, "context switches");
    assert_eq!(shard.counters_snapshot().wakeups, wakeups, "wake-ups");
    let used = tid.cpu() - cpu;
    assert!(used < CPU_MAX, "{used:?} of CPU");
}

#[test]
fn an_idle_context_does_not_wake_up() {
    for wait_ms in [0, 1, 20] {
        let (_context, shard) = shard(wait_ms);
        assert_sleeps(&shard);
    }
}

#[test]
fn waiting_agents_do_not_wake_an_idle_context() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    for wait_ms in [0, 20] {
        let (_context, shard) = shard(wait_ms);
        let socket = Arc::new(udp());
        let agent = add(&shard, |_, _| ());
        let registered = socket.clone();
        ask(&agent, move |_, cx| {
            cx.register(registered.as_fd(), 0, Interest::Read).unwrap();
            cx.set_timer(cx.now_ns() + HOUR_NS, Precision::About);
        });
        let _sleeper = shard.spawn(sleep_until(clock_now_ns() + HOUR_NS, Precision::NotBefore));
        assert_sleeps(&shard);
        agent.remove();
    }
}

#[test]
fn a_thread_that_waits_for_a_context_sleeps() {
    let (_context, shard) = shard(0);
    let (tx, rx) = channel();
    let (release, released) = channel::<()>();
    let waiter = {
        let shard = shard.clone();
        thread::spawn(move || {
            tx.send(Tid::here()).unwrap();
            // The shard's thread is busy with this call for the whole interval.
            shard.call(move |_| next(&released)).unwrap();
            tx.send(Tid::here()).unwrap();
            let (answer, question) = oneshot();
            tx.send(Tid::here()).unwrap();
            let task = shard.spawn(question);
            // The answer is possible only now.
            shard
                .command(move |_| {
                    thread::sleep(INTERVAL);
                    answer.send(42);
                })
                .unwrap();
            assert_eq!(block_on(task), 42);
        })
    };
    let tid = next(&rx);
    let cpu = tid.cpu();
    thread::sleep(INTERVAL);
    assert!(tid.cpu() - cpu < CPU_MAX, "call spins");
    release.send(()).unwrap();
    next(&rx);
    next(&rx);
    let cpu = tid.cpu();
    // This covers the wait of `block_on`: the answer comes while the command sleeps.
    thread::sleep(INTERVAL / 2);
    assert!(tid.cpu() - cpu < CPU_MAX, "block_on spins");
    waiter.join().unwrap();
}

/// A second is much longer than the test takes, so that everything before the edge is certain to be early.
const LONG_WAIT_MS: u64 = 1000;

/// A shard with long slices that sleeps until the edge of its slice. Its agent has `count` sockets with data that waits for that
/// edge. `slice` is the number of the slice in which it sleeps.
struct Asleep {
    _context: threadbare_runtime::Context,
    shard: Shard,
    slice: u64,
    sender: std::net::UdpSocket,
    sockets: Vec<Arc<std::net::UdpSocket>>,
    handled: std::sync::mpsc::Receiver<(usize, u64)>,
}

fn asleep(count: usize) -> Asleep {
    let (context, shard) = shard(LONG_WAIT_MS);
    let (tx, handled) = channel();
    let sockets: Vec<_> = (0..count).map(|_| Arc::new(udp())).collect();
    for (i, socket) in sockets.iter().enumerate() {
        let (tx, socket) = (tx.clone(), socket.clone());
        let registered = socket.clone();
        let agent = add(&shard, move |cx, ready| {
            assert_eq!(ready, Ready::Io(0));
            if receive(&socket, &mut [0; 16]).is_some() {
                tx.send((i, cx.local().slice())).unwrap();
            }
        });
        ask(&agent, move |_, cx| {
            cx.register(registered.as_fd(), 0, Interest::Read).unwrap();
        });
    }
    let sender = udp();
    let to = sockets[0].local_addr().unwrap();
    sender.send_to(b"first", to).unwrap();
    let (_, slice) = next(&handled);
    settle(&shard);
    Asleep {
        _context: context,
        shard,
        slice,
        sender,
        sockets,
        handled,
    }
}

#[test]
fn data_waits_for_the_edge_and_is_handled_in_one_batch() {
    let asleep = asleep(30);
    for socket in &asleep.sockets {
        let to = socket.local_addr().unwrap();
        asleep.sender.send_to(b"data", to).unwrap();
        thread::yield_now();
    }
    let batch: Vec<_> = asleep
        .sockets
        .iter()
        .map(|_| next(&asleep.handled))
        .collect();
    let edge = batch[0].1;
    assert!(edge > asleep.slice, "it did not wait");
    assert!(batch.iter().all(|(_, slice)| *slice == edge), "{batch:?}");
}

#[test]
fn control_interrupts_the_throttled_sleep_and_data_does_not() {
    let asleep = asleep(1);
    let to = asleep.sockets[0].local_addr().unwrap();
    let (tx, rx) = channel();
    asleep.sender.send_to(b"data", to).unwrap();
    let task = asleep.shard.spawn(async move { tx.send(()).unwrap() });
    for _ in 0..100 {
        // If the slice was handled before this, its number would differ.
        let slice = asleep.shard.call(|local| local.slice()).unwrap();
        assert_eq!(slice, asleep.slice);
    }
    assert!(asleep.handled.try_recv().is_err(), "data interrupted it");
    assert!(rx.try_recv().is_err(), "a task interrupted it");
    assert!(next(&asleep.handled).1 > asleep.slice);
    next(&rx);
    block_on(task);
}

#[test]
fn commands_of_commands_do_not_wait_for_the_edge() {
    let asleep = asleep(1);
    let (tx, rx) = channel();
    let shard = asleep.shard.clone();
    fn again(shard: Shard, left: u32, tx: std::sync::mpsc::Sender<u64>) {
        let of_command = shard.clone();
        shard
            .command(move |local| match left {
                0 => tx.send(local.slice()).unwrap(),
                _ => again(of_command, left - 1, tx),
            })
            .unwrap();
    }
    again(shard, 10, tx);
    assert_eq!(next(&rx), asleep.slice);
}

#[test]
fn wake_ups_between_slices_do_not_make_the_thread_spin() {
    let asleep = asleep(1);
    let tid = Tid::of(&asleep.shard);
    let rounds = 300;
    // On a busy machine the slice may end during an interruption, which also wakes up the shard; then the test tries again.
    let within_a_slice = || {
        let slice = || asleep.shard.call(|local| local.slice()).unwrap();
        let (slice_before, begin) = (slice(), asleep.shard.counters_snapshot().wakeups);
        for _ in 0..rounds {
            asleep.shard.call(|_| ()).unwrap();
        }
        let wakeups = asleep.shard.counters_snapshot().wakeups - begin;
        (slice() == slice_before).then_some(wakeups)
    };
    let wakeups = (0..20).find_map(|_| within_a_slice());
    let wakeups = wakeups.expect("one of 20 times within a slice");
    // One for each command, and another if the notification outlived its command.
    assert!(wakeups <= 2 * rounds + 2, "{wakeups} wake-ups");
    let cpu_before = tid.cpu();
    thread::sleep(INTERVAL);
    assert!(tid.cpu() - cpu_before < CPU_MAX, "it spins after commands");
}

#[test]
fn readiness_during_the_sleep_is_handled_at_the_edge() {
    for wait_ms in [0, 30] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let agent = {
            let tx = tx.clone();
            let mut left = 500;
            add(&shard, move |cx, ready| {
                assert_eq!(ready, Ready::Woken);
                left -= 1;
                match left {
                    1.. => cx.wake_self(),
                    0 => tx.send("agent").unwrap(),
                    // A wake-up by the second command, after the agent's 500 runs.
                    _ => {}
                }
            })
        };
        let mut names = Vec::new();
        // Only these commands wake the context: first from the idle sleep, then from the throttled one.
        for _ in 0..2 {
            let tx = tx.clone();
            let agent = agent.clone();
            shard
                .call(move |local| {
                    local
                        .spawn_local(async move { tx.send("task").unwrap() })
                        .detach();
                    agent.wake();
                })
                .unwrap();
            names.push(next(&rx));
        }
        names.push(next(&rx));
        names.sort_unstable();
        assert_eq!(names, ["agent", "task", "task"]);
    }
}

#[test]
fn slices_stay_on_their_grid() {
    const WAIT_MS: u64 = 100;
    const SLICES: usize = 15;
    let (_context, shard) = shard(WAIT_MS);
    let (tx, rx) = channel();
    let agent = add(&shard, move |cx, ready| {
        if ready == Ready::Timer {
            tx.send(clock_now_ns()).unwrap();
            // This is the work. If the wait began after the work, each slice would be later by this time.
            thread::sleep(Duration::from_millis(7));
        }
        cx.set_timer(cx.now_ns() + 1, Precision::NotBefore);
    });
    agent.wake();
    let wait_ns = WAIT_MS * 1_000_000;
    let edges: Vec<u64> = (0..SLICES).map(|_| next(&rx)).collect();
    agent.remove();
    // The least late slice shows the grid.
    let late = |edge: u64| (edge + wait_ns / 2 - edges[0]) % wait_ns;
    let least = edges.iter().map(|edge| late(*edge)).min().unwrap();
    let on_time = edges
        .iter()
        .filter(|edge| late(**edge) - least < wait_ns / 5);
    let on_time = on_time.count();
    assert!(on_time > SLICES / 2, "{on_time} of {SLICES} on the grid");
    let lateness = shard.counters_snapshot().lateness;
    assert!(lateness.slices >= SLICES as u64, "{lateness:?}");
    assert!(lateness.p50_ns < wait_ns / 5, "{lateness:?}");
    assert!(lateness.p50_ns <= lateness.p99_ns && lateness.p99_ns <= lateness.max_ns);
}

/// A command sees a clock that was read for it, not at the last slice. A timer set by a command must not be due at once because
/// the context was idle for a while.
#[test]
fn a_command_sees_the_current_time() {
    for wait_ms in [0, 20, LONG_WAIT_MS] {
        let (_context, shard) = shard(wait_ms);
        settle(&shard);
        let asleep_for = Duration::from_millis(100);
        thread::sleep(asleep_for);
        let before_ns = clock_now_ns();
        let now_ns = shard.call(|local| local.now_ns()).unwrap();
        assert!(now_ns >= before_ns, "{} ns ago", before_ns - now_ns);
    }
}

/// Returns a future that another thread completes.
fn oneshot() -> (Answer, impl Future<Output = u32> + Send) {
    let state = Arc::new(Mutex::new((None, None::<Waker>)));
    let of_future = state.clone();
    let future = poll_fn(move |cx| {
        let mut state = of_future.lock().unwrap();
        state.1 = Some(cx.waker().clone());
        match state.0 {
            Some(value) => Poll::Ready(value),
            None => Poll::Pending,
        }
    });
    (Answer(state), future)
}

type Shared = Arc<Mutex<(Option<u32>, Option<Waker>)>>;

struct Answer(Shared);

impl Answer {
    fn send(self, value: u32) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = Some(value);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
