//! Sockets between two calls are open, but look closed to others. For the next call they are like new. Also tests batched orders.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{
    Forwarder, LOCALHOST, engine, next, peer, range_settings, send_in_turn, settings, until,
};
use threadbare_relay::{
    CallHandle, Engine, Gathering, LegPorts, PortRange, PortUse, RangeSettings,
};

/// Returns a range for `legs` legs, whose ports were free just now.
fn range_of(legs: u16, quarantine: Duration) -> PortRange {
    let all = range_settings(LOCALHOST, PortUse::Pair);
    let free = PortRange::new(all.clone()).unwrap();
    // Ports of other tests may lie between the free ones.
    let first = loop {
        let first = free.lease().unwrap().rtp_address().port();
        let leg = |i: u16| first.checked_add(2 * i).map(|port| free.lease_at(port));
        let leases = (0..legs).map(leg);
        let row: Option<Vec<Result<LegPorts, _>>> = leases.collect();
        if row.is_some_and(|row| row.iter().all(Result::is_ok)) {
            break first;
        }
    };
    let (last, quarantine) = (first + 2 * legs - 1, quarantine);
    PortRange::new(RangeSettings {
        first,
        last,
        quarantine,
        ..all
    })
    .unwrap()
}

/// Creates a call of one leg that returns each datagram.
fn echo(engine: &Engine<Forwarder>, leg: LegPorts, to: &UdpSocket) -> CallHandle<Forwarder> {
    let to = to.local_addr().unwrap();
    let mut forwarder = Forwarder::new(to, to);
    forwarder.echoes = true;
    engine.create("echoes", vec![leg], forwarder).unwrap()
}

fn is_closed_for_others(port: u16) {
    let stranger = peer();
    stranger.connect((LOCALHOST, port)).unwrap();
    // "UDP SHOULD send an ICMP Port Unreachable message" (RFC 1122, section 4.1.3.1).
    let refused = stranger.send(b"x").and_then(|_| stranger.recv(&mut [0; 8]));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn next_call_gets_the_ports_but_no_datagrams_of_the_last_one() {
    let engine: Engine<Forwarder> = engine(1, 1);
    let range = range_of(1, Duration::ZERO);
    let party = peer();
    let mut port = None;
    for round in 0..20_u8 {
        let leg = range.lease().unwrap();
        let local = leg.rtp_address();
        assert_eq!(*port.get_or_insert(local.port()), local.port());
        // Datagrams that arrived before the call are its first ones.
        party.send_to(&[round], local).unwrap();
        let call = echo(&engine, leg, &party);
        assert_eq!(next(&party), (vec![round], local));
        let received = call.with(|call, _| call.received).wait();
        assert_eq!(received, Ok(1), "what another was to get");
        send_in_turn(&call, "127.0.0.1:9".parse().unwrap(), &party);
        if round % 2 == 0 {
            // The call ends between two rounds.
            for _ in 0..50 {
                party.send_to(b"late", local).unwrap();
            }
        }
        call.remove();
        is_closed_for_others(local.port());
        party.set_nonblocking(true).unwrap();
        while party.recv(&mut [0; 8]).is_ok() {}
        party.set_nonblocking(false).unwrap();
    }
}

#[test]
fn leg_without_a_call_leaves_no_datagrams() {
    let range = range_of(1, Duration::ZERO);
    let (party, engine) = (peer(), engine(1, 1));
    for round in 0..3_u8 {
        let leg = range.lease().unwrap();
        party.send_to(b"early", leg.rtp_address()).unwrap();
        party
            .send_to(b"early", leg.rtcp_address().unwrap())
            .unwrap();
        drop(leg);
        let leg = range.lease().unwrap();
        let local = leg.rtp_address();
        let call = echo(&engine, leg, &party);
        party.send_to(&[round], local).unwrap();
        assert_eq!(next(&party).0, [round]);
        call.remove();
    }
}

#[test]
fn sockets_follow_their_call_to_another_thread() {
    let engine: Engine<Forwarder> = engine(1, 2);
    let range = range_of(20, Duration::ZERO);
    let party = peer();
    let begin = || {
        let leg = range.lease().unwrap();
        let local = leg.rtp_address();
        let call = echo(&engine, leg, &party);
        party.send_to(b"?", local).unwrap();
        assert_eq!(next(&party), (b"?".to_vec(), local));
        (local, call)
    };
    let calls: Vec<_> = (0..20).map(|_| begin()).collect();
    let thread = |call: &CallHandle<Forwarder>| call.shard().name().to_owned();
    let here = thread(&calls[0].1);
    let (mut here, mut there): (Vec<_>, Vec<_>) = calls
        .into_iter()
        .partition(|(_, call)| thread(call) == here);
    assert_eq!(
        (here.len(), there.len()),
        (10, 10),
        "the one with fewer calls"
    );
    let mut homes: BTreeMap<SocketAddr, String> = BTreeMap::new();
    for (local, call) in here.iter().chain(&there) {
        homes.insert(*local, thread(call));
    }
    let loaded = thread(&there[0].1);
    let idle = thread(&here[0].1);
    // The free sockets are now those of all calls of one thread, and of one call of the other thread. Ports are drawn at random, but in
    // this many draws, each port is drawn.
    here.drain(..).for_each(|(_, call)| drop(call.remove()));
    there.pop().unwrap().1.remove();
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let (local, call) = begin();
        assert_eq!(thread(&call), idle, "the one without calls");
        let before = homes.insert(local, idle.clone());
        seen.insert(before == Some(loaded.clone()));
        call.remove();
    }
    assert_eq!(seen.len(), 2, "some have moved, and others have stayed");
    // If the other thread has only a few calls less, the sockets stay with their thread.
    there.drain(4..).for_each(|(_, call)| drop(call.remove()));
    until("calls have ended", || engine.calls() == 4);
    let threads: Vec<_> = (0..300).map(|_| thread(&begin().1)).collect();
    assert!(threads.contains(&loaded));
}

#[test]
fn named_resting_port_is_leased_at_once() {
    let range = range_of(2, Duration::from_secs(3600));
    let leg = range.lease().unwrap();
    let local = leg.rtp_address();
    drop(leg);
    is_closed_for_others(local.port());
    let leg = range.lease_at(local.port()).unwrap();
    assert_eq!(leg.rtp_address(), local);
    let party = peer();
    let engine = engine(1, 1);
    let _call = echo(&engine, leg, &party);
    party.send_to(b"back", local).unwrap();
    assert_eq!(next(&party), (b"back".to_vec(), local));
}

#[test]
fn unused_ports_are_released_to_other_programs() {
    let may_have = |port| UdpSocket::bind((LOCALHOST, port)).is_ok();
    // There is no call for the length of the quarantine.
    let range = range_of(1, Duration::from_millis(1));
    let port = range.lease().unwrap().rtp_address().port();
    assert!(range.is_used());
    until("closed", || {
        range.close_unwanted();
        may_have(port)
    });
    assert!(!range.is_used());
    // They are closed on request, regardless of the quarantine.
    let range = range_of(1, Duration::from_secs(3600));
    let port = range.lease().unwrap().rtp_address().port();
    assert!(!may_have(port));
    range.close_resting();
    assert!(may_have(port));
    assert!(range.lease().is_err(), "the number rests all the same");
    // They are closed when the range is dropped.
    let range = range_of(2, Duration::from_secs(3600));
    let (rests, stays) = (range.lease().unwrap(), range.lease().unwrap());
    let port = rests.rtp_address().port();
    drop((rests, range));
    assert!(may_have(port));
    let port = stays.rtp_address().port();
    assert!(!may_have(port), "a lease outlives its range");
    drop(stays);
    assert!(may_have(port));
}

#[test]
fn gathered_orders_run_in_order_without_deadlock() {
    // No slice comes, so a thread works only if it is woken.
    let engine: Engine<Forwarder> = Engine::new(settings(3_600_000, 1)).unwrap();
    let range = range_of(2, Duration::ZERO);
    let party = peer();
    let call = echo(&engine, range.lease().unwrap(), &party);
    assert_eq!(call.with(|_, _| 1).wait(), Ok(1));
    let done = Arc::new(AtomicUsize::new(0));
    let one = || {
        let done = done.clone();
        call.with(move |_, _| done.fetch_add(1, Ordering::SeqCst))
    };
    let gathering = Gathering::begin();
    let replies = {
        let _inner = Gathering::begin();
        [one(), one(), one()]
    };
    drop(gathering);
    let done_as = replies.map(|reply| reply.wait().unwrap());
    assert_eq!(done_as, [0, 1, 2], "in order");
    // A caller that waits sends its wake-ups first.
    let _gathering = Gathering::begin();
    let before = one();
    assert_eq!(one().wait(), Ok(4));
    assert_eq!(before.wait(), Ok(3));
    let other = echo(&engine, range.lease().unwrap(), &party);
    assert!(other.remove().is_some());
}
