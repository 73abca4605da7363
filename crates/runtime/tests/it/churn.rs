//! Thousands of agents, tasks and contexts come and go, and no resources stay behind. The test is alone in its process, because
//! it counts the resources of the process.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{add, ask, context, next, shard, udp};
use threadbare_runtime::{Agent, Cx, Interest, Precision, Ready, block_on, sleep_until};

struct Holder(UdpSocket);

impl Agent for Holder {
    fn run(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

/// Runs `cycle` `warm_up` times and then `count` times, after which no resource may have grown.
fn assert_nothing_grows(what: &str, warm_up: usize, count: usize, mut cycle: impl FnMut(usize)) {
    (0..warm_up).for_each(&mut cycle);
    let before = (descriptors(), threads(), resident_kib());
    (0..count).for_each(&mut cycle);
    assert_eq!(descriptors(), before.0, "{what}: descriptors");
    // A joined thread may still be listed for a moment.
    let deadline = Instant::now() + Duration::from_secs(30);
    while threads() > before.1 && Instant::now() < deadline {
        thread::yield_now();
    }
    assert!(
        threads() <= before.1,
        "{what}: {} threads more",
        threads() - before.1
    );
    let grown_kib = resident_kib().saturating_sub(before.2);
    // If each cycle leaked even the smallest agent, the growth would be larger.
    assert!(grown_kib < 1024, "{what}: {grown_kib} KiB more");
}

/// One test, so that the parts do not count each other's resources.
#[test]
fn ten_thousand_agents_leave_no_resources() {
    for wait_ms in [0, 20] {
        let (_context, shard) = shard(wait_ms);
        let sender = udp();
        assert_nothing_grows("agents", 1_000, 10_000, |round| {
            let socket = udp();
            let to = socket.local_addr().unwrap();
            let agent = shard.call(|local| local.add_agent(Holder(socket))).unwrap();
            agent.command(|holder, cx| {
                cx.register(holder.0.as_fd(), 0, Interest::Read).unwrap();
                cx.set_timer(cx.now_ns() + 3_600_000_000_000, Precision::About);
            });
            agent.wake();
            if round % 4 == 0 {
                sender.send_to(b"x", to).unwrap();
            }
            agent.remove();
            if round % 8 == 0 {
                agent.command(|_, _| panic!("it is gone"));
            }
        });
        assert_eq!(shard.counters_snapshot().agents, 0);

        assert_nothing_grows("tasks", 1_000, 10_000, |round| {
            let task = shard.spawn(sleep_until(u64::MAX / 2, Precision::NotBefore));
            drop(task);
            if round % 250 == 249 {
                // Cancelled tasks are dropped at the edge of the slice.
                block_on(shard.spawn(async {}));
            }
        });
    }
    assert_nothing_grows("contexts", 100, 1_000, |round| {
        let context = context([0, 20][round % 2], 2);
        let (tx, rx) = channel();
        let agent = add(&context.next_shard(), move |_, _| ());
        let socket = udp();
        ask(&agent, move |_, cx| {
            cx.register(socket.as_fd(), 0, Interest::Read).unwrap();
            tx.send(socket).unwrap();
        });
        // The descriptor must outlive its registration.
        let _socket = next(&rx);
        drop(context);
        thread::yield_now();
    });
}
