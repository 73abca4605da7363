//! Calls on a shared port.

use std::net::{SocketAddr, UdpSocket};

use crate::common::{Forwarder, engine, next, peer, receiver_report, rtp, settings, until};
use threadbare_relay::{
    CallHandle, CreateError, Engine, LegPorts, PortError, PortUse, SharedPort, SharedSettings,
};
use threadbare_rtp::demux::Filter;
use threadbare_rtp::id::Ssrc;

const ANY: &str = "127.0.0.1:0";

fn share(engine: &Engine<Forwarder>, rtcp_port: Option<u16>) -> SharedPort {
    let settings = SharedSettings {
        rtcp_port,
        ..SharedSettings::new(ANY.parse().unwrap())
    };
    engine.share(&settings).unwrap()
}

fn by_address(port: &SharedPort, party: &UdpSocket) -> LegPorts {
    let from = Some(party.local_addr().unwrap());
    let filter = Filter {
        from,
        ..Filter::default()
    };
    port.lease(filter).unwrap()
}

fn by_ssrc(port: &SharedPort, ssrc: u32) -> LegPorts {
    let ssrc = Some(Ssrc(ssrc));
    let filter = Filter {
        ssrc,
        ..Filter::default()
    };
    port.lease(filter).unwrap()
}

/// Creates a call of two parties on the same port.
fn call(
    engine: &Engine<Forwarder>,
    port: &SharedPort,
    a: &UdpSocket,
    b: &UdpSocket,
) -> CallHandle<Forwarder> {
    let legs = vec![by_address(port, a), by_address(port, b)];
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    engine.create("shared", legs, forwarder).unwrap()
}

#[test]
fn many_calls_share_a_port_and_each_gets_its_own_packets() {
    let engine = engine(20, -1);
    let port = share(&engine, None);
    let parties: Vec<_> = (0..100).map(|_| (peer(), peer())).collect();
    let calls: Vec<_> = parties
        .iter()
        .map(|(a, b)| call(&engine, &port, a, b))
        .collect();
    let to = port.rtp_address();
    for round in 0..3u16 {
        for (i, (a, b)) in parties.iter().enumerate() {
            let i = i as u32;
            a.send_to(&rtp(i, round, b"from a"), to).unwrap();
            b.send_to(&rtp(i, round, b"from b"), to).unwrap();
        }
        for (i, (a, b)) in parties.iter().enumerate() {
            let i = i as u32;
            assert_eq!(next(b), (rtp(i, round, b"from a"), to));
            assert_eq!(next(a), (rtp(i, round, b"from b"), to));
        }
    }
    for call in &calls {
        assert_eq!(call.stats().wait().unwrap().packets_received, 6);
    }
    until("all are counted", || engine.stats().packets_sent == 600);
}

#[test]
fn reports_use_the_rtp_port_or_a_separate_one() {
    let engine = engine(20, -1);
    for rtcp_port in [None, Some(0)] {
        let port = share(&engine, rtcp_port);
        let (a, b) = (peer(), peer());
        let legs = vec![by_ssrc(&port, 1), by_ssrc(&port, 2)];
        let to_rtcp = legs[0].rtcp_address().unwrap_or(port.rtp_address());
        assert_eq!(to_rtcp != port.rtp_address(), rtcp_port.is_some());
        let mut forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
        forwarder.to[1][1] = forwarder.to[1][0];
        let _call = engine.create("reports", legs, forwarder).unwrap();
        a.send_to(&rtp(1, 0, b"x"), port.rtp_address()).unwrap();
        assert_eq!(next(&b), (rtp(1, 0, b"x"), port.rtp_address()));
        a.send_to(&receiver_report(1), to_rtcp).unwrap();
        assert_eq!(next(&b), (receiver_report(1), to_rtcp));
    }
}

#[test]
fn one_leg_may_use_a_shared_port_and_the_other_a_separate_one() {
    let engine = engine(0, -1);
    let port = share(&engine, None);
    let (a, b) = (peer(), peer());
    let own = crate::common::range(PortUse::Pair).lease().unwrap();
    let to_own = own.rtp_address();
    let legs = vec![by_address(&port, &a), own];
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    let _call = engine.create("mixed", legs, forwarder).unwrap();
    a.send_to(&rtp(1, 0, b"x"), port.rtp_address()).unwrap();
    assert_eq!(next(&b), (rtp(1, 0, b"x"), to_own));
    b.send_to(b"back", to_own).unwrap();
    assert_eq!(next(&a), (b"back".to_vec(), port.rtp_address()));
}

#[test]
fn unmatched_datagrams_are_counted() {
    let engine = engine(20, -1);
    let port = share(&engine, None);
    let (a, b) = (peer(), peer());
    let call = call(&engine, &port, &a, &b);
    let (to, stranger) = (port.rtp_address(), peer());
    stranger.send_to(&rtp(1, 0, b"x"), to).unwrap();
    stranger.send_to(b"not rtp", to).unwrap();
    stranger.send_to(&receiver_report(1), to).unwrap();
    stranger.send_to(&receiver_report(1)[..6], to).unwrap();
    a.send_to(&rtp(1, 0, &[7; 3000]), to).unwrap();
    a.send_to(&rtp(1, 1, b"last"), to).unwrap();
    assert_eq!(next(&b).0, rtp(1, 1, b"last"));
    let stats = engine.stats();
    assert_eq!(
        (stats.unmatched, stats.malformed, stats.truncated),
        (2, 2, 1)
    );
    assert_eq!(call.stats().wait().unwrap().truncated, 1);
}

/// Number of datagrams in a flood. They fit a socket with the system's smallest usual buffer, and exceed what a leg may get in a slice of 5
/// ms.
const FLOOD: u16 = 270;

#[test]
fn a_flood_on_one_leg_causes_no_losses_of_other_legs() {
    let engine = engine(5, -1);
    let port = share(&engine, None);
    let (a, b, mad, sink) = (peer(), peer(), peer(), peer());
    let call_ab = call(&engine, &port, &a, &b);
    let flooded = call(&engine, &port, &mad, &sink);
    let to = port.rtp_address();
    for round in 0..40u16 {
        for i in 0..FLOOD {
            mad.send_to(&rtp(9, i, b"flood"), to).unwrap();
        }
        // This packet comes after the flood.
        a.send_to(&rtp(1, round, b"x"), to).unwrap();
        assert_eq!(next(&b).0, rtp(1, round, b"x"));
    }
    assert_eq!(call_ab.stats().wait().unwrap().packets_received, 40);
    let stats = flooded.stats().wait().unwrap();
    assert!(stats.over_budget > 0, "{stats:?}");
    let all = u64::from(FLOOD) * 40;
    assert_eq!(stats.packets_received + stats.over_budget, all);
}

#[test]
fn an_icmp_error_is_counted_and_the_other_calls_lose_nothing() {
    let engine = engine(20, -1);
    let port = share(&engine, None);
    let (a, b, c) = (peer(), peer(), peer());
    let nobody = peer().local_addr().unwrap();
    let call_ab = call(&engine, &port, &a, &b);
    let legs = vec![by_address(&port, &c)];
    let forwarder = Forwarder::new(nobody, nobody);
    let lost = engine.create("to nobody", legs, forwarder).unwrap();
    let to = port.rtp_address();
    for round in 0..50u16 {
        lost.command(move |call, _| call.send(threadbare_relay::PortId::rtp(0), nobody, b"lost"))
            .unwrap();
        a.send_to(&rtp(1, round, b"x"), to).unwrap();
        assert_eq!(next(&b).0, rtp(1, round, b"x"));
    }
    until("the errors are counted", || {
        engine.stats().icmp_errors == 50
    });
    assert_eq!(call_ab.stats().wait().unwrap().packets_received, 50);
    assert_eq!(engine.stats().send_errors, 0);
}

#[test]
fn error_of_one_destination_does_not_affect_another() {
    // The slice is that of the test with the same name for pairs of sockets.
    let engine = engine(3_600_000, -1);
    let port = share(&engine, None);
    let b = peer();
    let nobody = peer().local_addr().unwrap();
    let legs = vec![by_ssrc(&port, 1)];
    let call = engine.create("icmp", legs, Forwarder::default()).unwrap();
    crate::common::send_in_turn(&call, nobody, &b);
    assert_eq!(engine.stats().send_errors, 0);
}

#[test]
fn a_filter_can_be_used_by_one_leg_at_a_time() {
    let engine = engine(20, -1);
    let port = share(&engine, None);
    let (a, b) = (peer(), peer());
    let to = port.rtp_address();
    for round in 0..3 {
        let call = call(&engine, &port, &a, &b);
        let filter = Filter {
            from: Some(a.local_addr().unwrap()),
            ..Filter::default()
        };
        let error = port.lease(filter).unwrap_err();
        assert!(matches!(error, PortError::Filter { .. }), "{error}");
        assert!(error.to_string().contains(&to.to_string()), "{error}");
        a.send_to(&rtp(1, round, b"x"), to).unwrap();
        assert_eq!(next(&b).0, rtp(1, round, b"x"));
        call.remove();
        a.send_to(&rtp(1, round, b"late"), to).unwrap();
        until("late packets belong to no call", || {
            engine.stats().unmatched == u64::from(round) + 1
        });
    }
}

#[test]
fn the_last_user_closes_a_shared_port() {
    let engine = engine(20, -1);
    let port = share(&engine, Some(0));
    let (a, b) = (peer(), peer());
    let call = call(&engine, &port, &a, &b);
    let address = port.rtp_address();
    drop(port);
    a.send_to(&rtp(1, 0, b"x"), address).unwrap();
    assert_eq!(next(&b).0, rtp(1, 0, b"x"));
    call.remove();
    until("closed", || UdpSocket::bind(address).is_ok());
}

#[test]
fn legs_on_ports_of_different_threads_or_engines_are_refused() {
    let two: Engine<Forwarder> = Engine::new(settings(20, 2)).unwrap();
    let first = share(&two, None);
    let (a, b) = (peer(), peer());
    // After a call on the first thread, the second port is read by the other one.
    let call = call(&two, &first, &a, &b);
    let second = share(&two, None);
    let legs = vec![by_ssrc(&first, 1), by_ssrc(&second, 2)];
    let error = two.create("torn", legs, Forwarder::default()).unwrap_err();
    assert!(matches!(error, CreateError::Shards { .. }), "{error}");

    let other = engine(20, -1);
    let legs = vec![by_ssrc(&first, 1)];
    let error = other.create("foreign", legs, Forwarder::default());
    let expected: SocketAddr = first.rtp_address();
    assert!(matches!(error, Err(CreateError::Foreign(address)) if address == expected));
    let legs = (0..5).map(|i| by_ssrc(&first, i)).collect();
    let error = two.create("five", legs, Forwarder::default()).unwrap_err();
    assert!(matches!(error, CreateError::Legs { legs: 5 }), "{error}");
    drop(call);
}
