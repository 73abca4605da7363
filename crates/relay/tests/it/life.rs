//! Calls come and go: commands, removal, panics, limits, floods.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, channel};
use std::time::Duration;

use crate::common::{DEADLINE, Forwarder, engine, next, peer, range, settings, two_legs, until};
use threadbare_relay::{
    Call, CallState, CreateError, Datagram, Engine, Gone, Outbox, PortId, PortUse,
};

#[test]
fn commands_run_in_order_and_their_results_come_back() {
    let engine = engine(20, -1);
    let call = engine
        .create("commands", Vec::new(), Forwarder::default())
        .unwrap();
    for i in 0..200 {
        call.command(move |call, _| {
            assert_eq!(call.received, i);
            call.received += 1;
        })
        .unwrap();
    }
    assert_eq!(call.with(|call, _| call.received).wait(), Ok(200));
    let awaited = futures_executor::block_on(call.with(|call, now_ns| (call.received, now_ns)));
    let (received, now_ns) = awaited.unwrap();
    assert_eq!(received, 200);
    assert!(now_ns <= threadbare_runtime::clock_now_ns());
    assert_eq!(call.state(), CallState::Running);
    assert_eq!(call.remove().unwrap().received, 200);
}

#[test]
fn datagrams_staged_by_a_command_are_sent_at_once() {
    // A slice lasts an hour, so only commands interrupt it.
    let engine = engine(3_600_000, -1);
    let listener = peer();
    let to = listener.local_addr().unwrap();
    let legs = vec![range(PortUse::Mux).lease().unwrap()];
    let call = engine
        .create("command", legs, Forwarder::default())
        .unwrap();
    call.command(move |call, _| call.send(PortId::rtp(0), to, b"now"))
        .unwrap();
    assert_eq!(next(&listener).0, b"now");
}

#[test]
fn removed_calls_and_dropped_engines_leave_no_call() {
    let engine = engine(20, -1);
    let ranges = range(PortUse::Pair);
    let create = || {
        let forwarder = Forwarder::default();
        engine.create("gone", two_legs(&ranges), forwarder).unwrap()
    };
    let (first, second, dropped) = (create(), create(), create());
    assert_eq!(engine.calls(), 3);
    let late = first.with(|_, _| ());
    first.remove().unwrap();
    assert_eq!(late.wait(), Ok(()), "before the removal");
    drop(dropped);
    until("two are gone", || {
        engine.calls() == 1 && engine.stats().calls == 1
    });
    assert_eq!(engine.stats().created, 3);
    drop(engine);
    assert_eq!(second.state(), CallState::Removed);
    assert_eq!(second.command(|_, _| ()), Err(Gone));
    assert_eq!(second.with(|_, _| ()).wait(), Err(Gone));
    assert!(second.remove().is_none());
}

#[test]
fn datagrams_that_wait_at_a_removal_do_not_reach_the_next_call() {
    let engine = engine(20, -1);
    let ranges = range(PortUse::Mux);
    let (a, b) = (peer(), peer());
    for _ in 0..50 {
        let legs = two_legs(&ranges);
        let port = legs[0].rtp_address();
        let to = (a.local_addr().unwrap(), b.local_addr().unwrap());
        let call = engine
            .create("waits", legs, Forwarder::new(to.0, to.1))
            .unwrap();
        for _ in 0..5 {
            a.send_to(b"waits", port).unwrap();
        }
        call.remove().unwrap();
    }
    // The new calls have the same places in the tables, but other ports.
    let legs = two_legs(&ranges);
    let call = engine.create("next", legs, Forwarder::default()).unwrap();
    assert_eq!(call.stats().wait().unwrap().packets_received, 0);
    assert_eq!(call.remove().unwrap().received, 0);
    assert_eq!(engine.stats().calls, 0);
}

/// A time that is longer than the orders of one run may take.
const LONG: Duration = Duration::from_millis(10);

#[test]
fn long_orders_do_not_delay_packets() {
    // A slice lasts an hour, so only orders, and those that a run leaves over, wake the calls' agent.
    let engine = engine(3_600_000, -1);
    let call = engine
        .create("orders", Vec::new(), Forwarder::default())
        .unwrap();
    let (open_first, first) = channel::<()>();
    let (open_second, second) = channel::<()>();
    let (tell, told) = channel();
    // While the first order blocks, the others queue up. Among them are two long ones, each of which ends its run.
    call.command(move |_, _| first.recv().unwrap()).unwrap();
    let mut second = Some(second);
    for i in 0..40 {
        let held = second.take();
        call.command(move |_, _| {
            if let Some(held) = held {
                held.recv().unwrap();
            }
            if i % 16 == 0 {
                std::thread::sleep(LONG);
            }
        })
        .unwrap();
    }
    open_first.send(()).unwrap();
    until("they are taken", || open_second.send(()).is_ok());
    call.command(move |_, _| tell.send(()).unwrap()).unwrap();
    told.recv_timeout(crate::common::DEADLINE)
        .expect("the last one runs");
}

/// Where the panic happens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trap {
    Datagram,
    Transmit,
    Timeout,
    Drop,
}

struct Trapped(Trap, bool);

impl Call for Trapped {
    fn handle_datagram(&mut self, _now_ns: u64, _datagram: Datagram<'_>) {
        self.1 = true;
        assert!(self.0 != Trap::Datagram, "asked to");
    }

    fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, _out: &mut dyn Outbox) {
        assert!(!(self.1 && self.0 == Trap::Transmit), "asked to");
    }

    fn next_timeout(&self) -> Option<u64> {
        assert!(!(self.1 && self.0 == Trap::Timeout), "asked to");
        None
    }
}

impl Drop for Trapped {
    fn drop(&mut self) {
        assert!(self.0 != Trap::Drop, "asked to");
    }
}

#[test]
fn a_panic_removes_only_the_call_that_caused_it() {
    let engine: Engine<Box<dyn Call>> = engine(20, -1);
    let ranges = range(PortUse::Mux);
    let (a, b) = (peer(), peer());
    let legs = two_legs(&ranges);
    let port = legs[0].rtp_address();
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    let well = engine.create("well", legs, Box::new(forwarder)).unwrap();
    for (before, trap) in [Trap::Datagram, Trap::Transmit, Trap::Timeout]
        .into_iter()
        .enumerate()
    {
        let legs = vec![ranges.lease().unwrap()];
        let of_trap = legs[0].rtp_address();
        let call = engine
            .create("trap", legs, Box::new(Trapped(trap, false)))
            .unwrap();
        // There are two datagrams. When the second one is handled, the call is gone.
        a.send_to(b"x", of_trap).unwrap();
        a.send_to(b"x", of_trap).unwrap();
        until("it is counted", || {
            engine.stats().panicked == before as u64 + 1
        });
        until("the panic is reported", || {
            call.state() == CallState::Panicked
        });
        assert_eq!(call.with(|_, _| ()).wait(), Err(Gone), "{trap:?}");
        assert!(call.remove().is_none());
        a.send_to(b"still here", port).unwrap();
        assert_eq!(next(&b).0, b"still here");
    }
    let call = engine
        .create("command", Vec::new(), Box::new(Forwarder::default()))
        .unwrap();
    let reply = call.with(|_, _| -> () { panic!("asked to") });
    assert_eq!(reply.wait(), Err(Gone));
    until("the panic is reported", || {
        call.state() == CallState::Panicked
    });
    // The call panics when it is dropped, on the thread of the calls.
    drop(engine.create("drop", Vec::new(), Box::new(Trapped(Trap::Drop, false))));
    until("all but one are gone", || engine.calls() == 1);
    a.send_to(b"still here", port).unwrap();
    assert_eq!(next(&b).0, b"still here");
    assert_eq!(well.state(), CallState::Running);
}

#[test]
fn a_flood_on_one_call_does_not_delay_other_calls() {
    for wait_ms in [0, 20] {
        let engine = engine(wait_ms, -1);
        let ranges = range(PortUse::Mux);
        let (a, b) = (peer(), peer());
        let legs = two_legs(&ranges);
        let port = legs[0].rtp_address();
        let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
        let _call = engine.create("steady", legs, forwarder).unwrap();
        let legs = two_legs(&ranges);
        let flooded_port = legs[0].rtp_address();
        let flooded = engine
            .create("flooded", legs, Forwarder::default())
            .unwrap();
        let (stop, stopped) = channel::<()>();
        let flood = std::thread::spawn(move || {
            let mad = peer();
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                mad.send_to(&[7; 160], flooded_port).unwrap();
            }
        });
        until("the flood runs", || {
            flooded.stats().wait().unwrap().packets_received > 1000
        });
        for i in 0..50u8 {
            a.send_to(&[i], port).unwrap();
            assert_eq!(next(&b).0, [i]);
        }
        drop(stop);
        flood.join().unwrap();
    }
}

/// A call with a loss that is due from its first datagram on. It reports how the engine calls it.
struct Losing(mpsc::Sender<Step>, bool);

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Datagram,
    Poll { may_lose: bool },
}

impl Call for Losing {
    fn handle_datagram(&mut self, _now_ns: u64, _datagram: Datagram<'_>) {
        self.1 = true;
        let _ = self.0.send(Step::Datagram);
    }

    fn poll_transmit(&mut self, _now_ns: u64, may_lose: bool, _out: &mut dyn Outbox) {
        self.1 &= !may_lose;
        let _ = self.0.send(Step::Poll { may_lose });
    }

    fn next_timeout(&self) -> Option<u64> {
        self.1.then_some(0)
    }
}

/// The packet that seems to be missing may be the next one in the socket.
#[test]
fn a_loss_waits_until_the_sockets_are_read() {
    for wait_ms in [0, 20] {
        let engine: Engine<Losing> = engine(wait_ms, -1);
        let (steps, told) = mpsc::channel();
        let ranges = range(PortUse::Mux);
        let legs = vec![ranges.lease().expect("ports")];
        let port = legs[0].rtp_address();
        let _call = engine.create("losing", legs, Losing(steps, false)).unwrap();
        let sender = peer();
        for _ in 0..4 {
            sender.send_to(b"datagram", port).expect("sent");
        }
        let mut datagrams = 0;
        let mut before = None;
        // The loss after the last datagram comes last.
        while datagrams < 4 || before != Some(Step::Poll { may_lose: true }) {
            let step = told
                .recv_timeout(DEADLINE)
                .expect("the engine runs the call");
            if before == Some(Step::Datagram) {
                assert_eq!(step, Step::Poll { may_lose: false });
            }
            datagrams += u32::from(step == Step::Datagram);
            before = Some(step);
        }
    }
}

/// A call that never stops sending.
struct Endless(SocketAddr, Arc<AtomicU64>);

impl Call for Endless {
    fn handle_datagram(&mut self, _now_ns: u64, _datagram: Datagram<'_>) {}

    fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
        while out.stage(PortId::rtp(0), self.0, b"endless").is_ok() {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }
}

#[test]
fn endlessly_sending_call_shares_its_thread() {
    for wait_ms in [0, 20] {
        let engine: Engine<Box<dyn Call>> = engine(wait_ms, -1);
        let ranges = range(PortUse::Mux);
        let (a, b, sink) = (peer(), peer(), peer());
        let legs = two_legs(&ranges);
        let port = legs[0].rtp_address();
        let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
        let _steady = engine.create("steady", legs, Box::new(forwarder)).unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let endless = Endless(sink.local_addr().unwrap(), sent.clone());
        let legs = vec![ranges.lease().unwrap()];
        let endless = engine.create("endless", legs, Box::new(endless)).unwrap();
        until("it sends", || sent.load(Ordering::Relaxed) > 1000);
        for i in 0..20u8 {
            a.send_to(&[i], port).unwrap();
            assert_eq!(next(&b).0, [i]);
        }
        // Removing the call still works.
        assert!(endless.remove().is_some());
    }
}

#[test]
fn calls_spread_over_the_threads_and_are_limited() {
    let mut settings = settings(20, 2);
    settings.calls_max = 6;
    let engine: Engine<Forwarder> = Engine::new(settings).unwrap();
    let create = || engine.create("limited", Vec::new(), Forwarder::default());
    let calls: Vec<_> = (0..6).map(|_| create().unwrap()).collect();
    let error = create().unwrap_err();
    let is_limit = matches!(
        error,
        CreateError::Calls {
            calls: 6,
            calls_max: 6
        }
    );
    assert!(is_limit, "{error}");
    until("they are there", || engine.stats().calls == 6);
    for shard in engine.shard_stats() {
        assert_eq!(shard.stats.calls, 3);
    }
    drop(calls);
    until("there is room", || create().is_ok());
}

/// A call that blocks its thread in each slice.
struct Slow;

impl Call for Slow {
    fn handle_datagram(&mut self, _now_ns: u64, _datagram: Datagram<'_>) {}

    fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, _out: &mut dyn Outbox) {
        std::thread::sleep(Duration::from_millis(15));
    }

    fn next_timeout(&self) -> Option<u64> {
        Some(threadbare_runtime::clock_now_ns())
    }
}

#[test]
fn a_late_thread_gets_no_new_calls() {
    let mut settings = settings(5, 2);
    settings.lateness_max = Some(Duration::from_secs(3600));
    let engine: Engine<Box<dyn Call>> = Engine::new(settings).unwrap();
    let slow: Vec<_> = (0..4)
        .map(|_| engine.create("slow", Vec::new(), Box::new(Slow)).unwrap())
        .collect();
    // There are two calls on each thread. One of the threads recovers.
    let busy = slow[0].shard().id();
    let slow: Vec<_> = slow
        .into_iter()
        .filter(|call| call.shard().id() == busy)
        .collect();
    until("the other thread is not late", || {
        let mut lateness = engine.shard_stats();
        lateness.sort_by_key(|shard| shard.lateness_ns);
        lateness[1].lateness_ns > 20_000_000 && engine.calls() == 2
    });
    // This is so even if the others have more calls than the late one.
    let quick: Vec<_> = (0..6)
        .map(|_| {
            let call: Box<dyn Call> = Box::new(Forwarder::default());
            engine.create("quick", Vec::new(), call).unwrap()
        })
        .collect();
    assert!(quick.iter().all(|call| call.shard().id() != busy));
    assert_eq!(slow.len(), 2);
}
