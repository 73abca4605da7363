//! Calls whose ports have XDP rings in addition to their sockets. The parties are on a real link.

#[path = "../../../xdp/tests/common/link.rs"]
mod link;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::common::{Forwarder, next, range_settings, settings, two_legs, until};
use link::{DEVICE, HERE, HERE_V6, Link, THERE, THERE_V6};
use threadbare_relay::{Engine, Fence, LegPorts, PortId, PortRange, PortUse};
use threadbare_runtime::clock_now_ns;
use threadbare_xdp::{Mode, Settings as XdpSettings, Xdp};

fn engine(threads: i32) -> Engine<Forwarder> {
    let mut settings = settings(5, threads);
    let xdp = Xdp::open(&XdpSettings {
        mode: Mode::Generic,
        ..XdpSettings::new(vec![DEVICE.to_owned()])
    });
    settings.xdp = Some(xdp.expect("rings"));
    Engine::new(settings).expect("an engine")
}

fn range(legs: u16) -> PortRange {
    range_at(HERE, legs)
}

fn range_at(here: &str, legs: u16) -> PortRange {
    let here: IpAddr = here.parse().expect("an address");
    let mut settings = range_settings(here, PortUse::Pair);
    // There are ports for this many legs, and they are reused at once.
    settings.quarantine = std::time::Duration::ZERO;
    settings.last = settings.first + 2 * legs - 1;
    PortRange::new(settings).expect("a range")
}

/// Sets up a call between two parties, and lets both paths become known.
fn talk(
    engine: &Engine<Forwarder>,
    legs: Vec<LegPorts>,
    a: &UdpSocket,
    b: &UdpSocket,
) -> threadbare_relay::CallHandle<Forwarder> {
    let [to_a, to_b] = [&legs[0], &legs[1]].map(LegPorts::rtp_address);
    let parties = [a, b].map(|party| party.local_addr().expect("bound"));
    let call = engine
        .create("talk", legs, Forwarder::new(parties[0], parties[1]))
        .expect("a call");
    // When this command has run, the call's ports have rings.
    call.with(|_, _| ()).wait().expect("the call is there");
    for _ in 0..2 {
        a.send_to(b"from a", to_a).expect("sent");
        assert_eq!(next(b), (b"from a".to_vec(), to_b));
        b.send_to(b"from b", to_b).expect("sent");
        assert_eq!(next(a), (b"from b".to_vec(), to_a));
    }
    call
}

#[test]
fn datagrams_received_by_a_ring_are_sent_by_one() {
    let Some(link) = Link::new() else { return };
    let engine = engine(2);
    for (here, there, calls) in [(HERE, THERE, 1), (HERE_V6, THERE_V6, 2)] {
        let (a, b) = (link.peer(there), link.peer(there));
        let _call = talk(&engine, two_legs(&range_at(here, 2)), &a, &b);
        // Datagrams are counted after the last one of a batch.
        until("all are counted", || {
            engine.stats().packets_sent == 4 * calls
        });
        let stats = engine.stats();
        let received = (stats.packets_received, stats.ring_received);
        assert_eq!(received, (4 * calls, 4 * calls), "{here}");
        // The first packet to B may have left through a socket, because B had sent nothing before.
        assert!((calls..=3 * calls).contains(&stats.ring_sent), "{stats:?}");
    }
}

/// A node that must no longer send does not send through rings either.
#[test]
fn a_fence_that_is_closed_stops_rings() {
    let Some(link) = Link::new() else { return };
    let engine = engine(-1);
    let (a, b) = (link.peer(THERE), link.peer(THERE));
    let fence = Fence::new(clock_now_ns() + 60_000_000_000);
    let range = range(4);
    let legs = two_legs(&range)
        .into_iter()
        .map(|leg| leg.fenced(fence.clone()));
    let call = talk(&engine, legs.collect(), &a, &b);
    fence.close();
    let to = a.local_addr().expect("bound");
    for _ in 0..3 {
        let sent = call.with(move |call, _| call.send(PortId::rtp(0), to, b"never"));
        sent.wait().expect("the call is there");
    }
    until("it is stopped", || engine.stats().fenced > 0);
    let other = link.peer(THERE);
    let _open = talk(&engine, two_legs(&range), &other, &b);
    a.set_nonblocking(true).expect("non-blocking");
    assert!(a.recv(&mut [0; 16]).is_err());
}

/// A datagram for an ended call does not reach the next call with the same ports.
#[test]
fn reused_port_delivers_only_to_the_next_call() {
    let Some(link) = Link::new() else { return };
    let engine = engine(-1);
    let range = range(2);
    for round in 0..200 {
        let (a, b) = (link.peer(THERE), link.peer(THERE));
        let call = talk(&engine, two_legs(&range), &a, &b);
        let to = call.with(|call, _| call.to[1][0]).wait().expect("there");
        assert_eq!(to, b.local_addr().ok());
        // This datagram is in the ring when the call ends.
        a.send_to(
            b"stale",
            SocketAddr::new(HERE.parse().expect("an address"), 10_000),
        )
        .expect("sent");
        assert!(call.remove().is_some(), "round {round}");
    }
    let stats = engine.stats();
    assert!(stats.packets_received >= 200 * 4, "{stats:?}");
    assert!(stats.ring_sent >= 200, "{stats:?}");
}
