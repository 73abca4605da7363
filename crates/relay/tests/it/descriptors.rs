//! Calls come and go from four threads while others are running, and nothing is lost or leaked. The test is alone in its process, whose
//! descriptors and threads are counted.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    Forwarder, LOCALHOST, descriptors, engine, next, peer, rtp, threads, two_legs, until,
};
use threadbare_relay::{Engine, PortRange, RangeSettings, SharedSettings};
use threadbare_rtp::demux::Filter;

/// Number of short calls.
const CALLS: usize = 300;
const THREADS: usize = 4;

#[test]
fn calls_of_four_threads_leave_no_descriptors() {
    let engine: Engine<Forwarder> = engine(20, 2);
    // There are so few ports that each call gets those of an earlier one.
    let ranges = PortRange::new(RangeSettings {
        quarantine: std::time::Duration::ZERO,
        ..RangeSettings::new(LOCALHOST, 20_000, 20_127)
    })
    .unwrap();
    let shared = SharedSettings::new("127.0.0.1:0".parse().unwrap());
    let shared = engine.share(&shared).unwrap();
    let talk = || {
        let (a, b) = (peer(), peer());
        let legs = two_legs(&ranges);
        let port = legs[0].rtp_address();
        let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
        let call = engine.create("talks", legs, forwarder).unwrap();
        (a, b, port, call)
    };
    let talking = [talk(), talk(), talk()];
    let descriptors_before = descriptors();
    let threads_before = threads();

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talkers: Vec<_> = talking
            .iter()
            .map(|(a, b, port, _)| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut number = 0u16;
                    while !is_over.load(Ordering::Relaxed) {
                        a.send_to(&number.to_be_bytes(), port).unwrap();
                        assert_eq!(next(b).0, number.to_be_bytes());
                        number = number.wrapping_add(1);
                    }
                })
            })
            .collect();
        let churners: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (engine, ranges, shared) = (&engine, &ranges, &shared);
                scope.spawn(move || {
                    let (a, b) = (peer(), peer());
                    for i in 0..CALLS / THREADS {
                        if i % 3 == 0 {
                            churn_shared(engine, shared, &a, (thread * CALLS + i) as u32);
                        } else {
                            churn(engine, ranges, &a, &b, i % 2 == 0);
                        }
                    }
                })
            })
            .collect();
        let churned: Vec<_> = churners.into_iter().map(|one| one.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(churned.iter().all(Result::is_ok));
        for talker in talkers {
            talker.join().unwrap();
        }
    });

    until("the dropped ones are gone", || engine.calls() == 3);
    until("all descriptors are back, but for those that rest", || {
        ranges.close_resting();
        descriptors() == descriptors_before
    });
    until("no thread is left", || threads() == threads_before);
    let stats = engine.stats();
    assert_eq!(stats.created, CALLS as u64 + 3);
    assert_eq!((stats.failed, stats.panicked, stats.send_errors), (0, 0, 0));
    drop(talking);
    drop(shared);
    drop(engine);
    assert!(descriptors() < descriptors_before);
}

/// Creates a call, lets it carry a packet, and ends it.
fn churn(
    engine: &Engine<Forwarder>,
    ranges: &threadbare_relay::PortRange,
    a: &UdpSocket,
    b: &UdpSocket,
    waits: bool,
) {
    let legs = two_legs(ranges);
    let port = legs[0].rtp_address();
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    let call = engine.create("comes", legs, forwarder).unwrap();
    let hello = format!("hello {port}");
    a.send_to(hello.as_bytes(), port).unwrap();
    // Late packets of the previous calls may still arrive.
    while next(b).0 != hello.as_bytes() {}
    a.send_to(b"late", port).unwrap();
    if waits {
        call.remove();
    } else {
        drop(call);
    }
}

fn churn_shared(
    engine: &Engine<Forwarder>,
    shared: &threadbare_relay::SharedPort,
    a: &UdpSocket,
    ssrc: u32,
) {
    let filter = Filter {
        ssrc: Some(threadbare_rtp::id::Ssrc(ssrc)),
        ..Filter::default()
    };
    let sink = peer();
    let legs = vec![shared.lease(filter).unwrap()];
    let to = sink.local_addr().unwrap();
    let mut forwarder = Forwarder::new(to, to);
    forwarder.echoes = true;
    let call = engine.create("shares", legs, forwarder).unwrap();
    let packet = rtp(ssrc, 1, b"hello");
    a.send_to(&packet, shared.rtp_address()).unwrap();
    assert_eq!(next(&sink).0, packet);
    drop(call);
}
