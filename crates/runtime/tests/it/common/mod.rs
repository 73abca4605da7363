//! Helpers of the runtime's tests.
#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use threadbare_runtime::{
    Agent, AgentHandle, Context, Cx, Local, RawAddr, Ready, Received, Settings, Shard, recv_from,
};

/// Only a failing test waits this long. It is generous, because the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Returns a separate context for a test.
pub(crate) fn context(wait_ms: u64, threads: i32) -> Context {
    let settings = Settings {
        wait: Duration::from_millis(wait_ms),
        threads,
        ..Settings::default()
    };
    Context::acquire(&unique_name(), settings).expect("a context")
}

/// Returns a separate context with one thread, and that thread.
pub(crate) fn shard(wait_ms: u64) -> (Context, Shard) {
    let context = context(wait_ms, -1);
    let shard = context.next_shard();
    (context, shard)
}

/// Returns a unique context name.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the next item of `rx`; fails if none comes.
#[track_caller]
pub(crate) fn next<T>(rx: &Receiver<T>) -> T {
    rx.recv_timeout(DEADLINE).expect("it happens in time")
}

/// Waits for a condition that cannot be observed directly, such as the end of a thread.
#[track_caller]
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns after the shard has finished the slice that it may be in. (The first call may run within that slice. The second one
/// runs after a pass with nothing to do, which ends a slice.)
pub(crate) fn settle(shard: &Shard) {
    shard.call(|_| ()).expect("open");
    shard.call(|_| ()).expect("open");
}

/// An agent from a closure.
pub(crate) struct FnAgent<F>(pub(crate) F);

impl<F: FnMut(&mut Cx<'_>, Ready) + Send + 'static> Agent for FnAgent<F> {
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        (self.0)(cx, ready);
    }
}

/// Adds a closure to a shard as an agent.
pub(crate) fn add<F>(shard: &Shard, f: F) -> AgentHandle<FnAgent<F>>
where
    F: FnMut(&mut Cx<'_>, Ready) + Send + 'static,
{
    shard
        .call(move |local: &Local| local.add_agent(FnAgent(f)))
        .expect("open")
}

/// Runs `f` with the agent and waits for its result.
pub(crate) fn ask<A: Agent, R: Send + 'static>(
    handle: &AgentHandle<A>,
    f: impl FnOnce(&mut A, &mut Cx<'_>) -> R + Send + 'static,
) -> R {
    let (tx, rx) = std::sync::mpsc::channel();
    handle.command(move |agent, cx| {
        let _ = tx.send(f(agent, cx));
    });
    next(&rx)
}

/// Returns a UDP socket on loopback at a free port.
pub(crate) fn udp() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_nonblocking(true).expect("non-blocking");
    socket
}

/// Receives one datagram, if any.
pub(crate) fn receive(socket: &UdpSocket, buf: &mut [u8]) -> Option<Received> {
    use std::os::fd::AsFd;
    recv_from(socket.as_fd(), buf, &mut RawAddr::empty()).ok()
}

/// A thread of this process as the kernel sees it.
#[derive(Debug, Clone)]
pub(crate) struct Tid(String);

impl Tid {
    /// Returns the calling thread.
    pub(crate) fn here() -> Tid {
        let link = std::fs::read_link("/proc/thread-self").expect("procfs");
        let tid = link.file_name().expect("PID/task/TID").to_string_lossy();
        Tid(tid.into_owned())
    }

    pub(crate) fn of(shard: &Shard) -> Tid {
        shard.call(|_| Tid::here()).expect("open")
    }

    pub(crate) fn is_alive(&self) -> bool {
        std::fs::exists(format!("/proc/self/task/{}", self.0)).expect("procfs")
    }

    /// Returns the number of times that the thread went to sleep voluntarily.
    pub(crate) fn voluntary_switches(&self) -> u64 {
        let status = self.read("status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("in status").trim().parse().expect("a number")
    }

    /// CPU time it has used.
    pub(crate) fn cpu(&self) -> Duration {
        let schedstat = self.read("schedstat");
        let ns = schedstat.split_whitespace().next().expect("three numbers");
        Duration::from_nanos(ns.parse().expect("a number"))
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0)).expect("it is alive")
    }
}
