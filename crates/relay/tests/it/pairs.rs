//! Calls with separate sockets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::common::{
    Forwarder, LOCALHOST, engine, next, next_port, peer, peer_at, range, range_settings, two_legs,
    until,
};
use threadbare_relay::{
    Call, CallState, Datagram, Outbox, PortError, PortId, PortRange, PortUse, RangeSettings,
    Refused, SocketError,
};

#[test]
fn datagrams_leave_from_the_port_that_the_receiver_sends_to() {
    for wait_ms in [0, 20] {
        let engine = engine(wait_ms, -1);
        let (a, b) = (peer(), peer());
        let legs = two_legs(&range(PortUse::Pair));
        let ports = [legs[0].rtp_address(), legs[1].rtp_address()];
        let rtcp = legs.iter().map(|leg| leg.rtcp_address().unwrap());
        let rtcp: Vec<SocketAddr> = rtcp.collect();
        // RTP has an even port, and RTCP the next higher one (RFC 3550, section 11).
        assert!(ports[0].port().is_multiple_of(2) && rtcp[0] == next_port(ports[0]));

        let (rtcp_a, rtcp_b) = (peer(), peer());
        let mut forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
        forwarder.to[0][1] = Some(rtcp_a.local_addr().unwrap());
        forwarder.to[1][1] = Some(rtcp_b.local_addr().unwrap());
        let call = engine.create("forwarder", legs, forwarder).unwrap();

        a.send_to(b"from a", ports[0]).unwrap();
        assert_eq!(next(&b), (b"from a".to_vec(), ports[1]));
        b.send_to(b"from b", ports[1]).unwrap();
        assert_eq!(next(&a), (b"from b".to_vec(), ports[0]));
        rtcp_a.send_to(b"report", rtcp[0]).unwrap();
        assert_eq!(next(&rtcp_b), (b"report".to_vec(), rtcp[1]));

        let stats = call.stats().wait().unwrap();
        assert_eq!((stats.packets_received, stats.bytes_received), (3, 18));
        assert_eq!((stats.packets_staged, stats.bytes_staged), (3, 18));
        until("all are counted", || engine.stats().packets_sent == 3);
        assert_eq!(engine.stats().packets_received, 3);
        let state = call.with(|call, _| call.last_from).wait().unwrap();
        assert_eq!(state, Some(rtcp_a.local_addr().unwrap()));
        assert_eq!(call.remove().unwrap().received, 3);
    }
}

#[test]
fn with_mux_a_leg_has_one_port_for_both() {
    let engine = engine(20, -1);
    let (a, b) = (peer(), peer());
    let legs = two_legs(&range(PortUse::Mux));
    assert_eq!(legs[0].rtcp_address(), None);
    let ports = [legs[0].rtp_address(), legs[1].rtp_address()];
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    let call = engine.create("mux", legs, forwarder).unwrap();
    let report = crate::common::receiver_report(7);
    a.send_to(&report, ports[0]).unwrap();
    assert_eq!(next(&b), (report, ports[1]));
    // The call has no RTCP ports.
    let command = call.with(|call, _| call.to[0][1]);
    let to = command.wait().unwrap().unwrap();
    assert_eq!(stage(&call, PortId::rtcp(0), to), [Refused::NoSuchPort]);
}

/// Lets a call stage a datagram. Returns the results.
fn stage(
    call: &threadbare_relay::CallHandle<Forwarder>,
    port: PortId,
    to: SocketAddr,
) -> Vec<Refused> {
    let before = call.with(|call, _| call.refused.len()).wait().unwrap();
    call.command(move |call, _| call.send(port, to, b"x"))
        .unwrap();
    let refused = call.with(move |call, _| call.refused[before..].to_vec());
    refused.wait().unwrap()
}

#[test]
fn a_packet_that_waits_in_the_port_before_the_call_is_its_first() {
    let engine = engine(20, -1);
    let (a, b) = (peer(), peer());
    let legs = two_legs(&range(PortUse::Mux));
    let port = legs[0].rtp_address();
    a.send_to(b"early", port).unwrap();
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    let _call = engine.create("early", legs, forwarder).unwrap();
    assert_eq!(next(&b).0, b"early");
}

#[test]
fn a_datagram_that_is_too_long_is_counted_and_not_delivered() {
    let engine = engine(20, -1);
    let (a, b) = (peer(), peer());
    let legs = two_legs(&range(PortUse::Mux));
    let port = legs[0].rtp_address();
    let forwarder = Forwarder::new(a.local_addr().unwrap(), b.local_addr().unwrap());
    let call = engine.create("long", legs, forwarder).unwrap();
    let longest = vec![7; threadbare_relay::DATAGRAM_BYTES_MAX];
    a.send_to(&[&longest[..], &[7]].concat(), port).unwrap();
    a.send_to(&longest, port).unwrap();
    assert_eq!(next(&b).0, longest);
    let stats = call.stats().wait().unwrap();
    assert_eq!((stats.truncated, stats.packets_received), (1, 1));
    assert_eq!(engine.stats().truncated, 1);

    let to = b.local_addr().unwrap();
    call.command(move |call, _| call.send(PortId::rtp(1), to, &[7; 3000]))
        .unwrap();
    let refused = call.with(|call, _| call.refused.clone()).wait().unwrap();
    assert_eq!(refused, [Refused::TooLong]);
    assert_eq!(call.stats().wait().unwrap().stage_refused, 1);
}

#[test]
fn icmp_error_is_counted_and_the_stream_continues() {
    let engine = engine(20, -1);
    let (a, b) = (peer(), peer());
    let legs = two_legs(&range(PortUse::Mux));
    let ports = [legs[0].rtp_address(), legs[1].rtp_address()];
    let nobody = {
        let socket = peer();
        socket.local_addr().unwrap()
    };
    let forwarder = Forwarder::new(a.local_addr().unwrap(), nobody);
    let call = engine.create("icmp", legs, forwarder).unwrap();
    a.send_to(b"to nobody", ports[0]).unwrap();
    until("the error is counted", || engine.stats().icmp_errors == 1);
    let to = b.local_addr().unwrap();
    call.command(move |call, _| call.to[1][0] = Some(to))
        .unwrap();
    for i in 0..10u8 {
        a.send_to(&[i], ports[0]).unwrap();
        assert_eq!(next(&b).0, [i]);
        b.send_to(&[i], ports[1]).unwrap();
        assert_eq!(next(&a).0, [i]);
    }
    assert_eq!(call.state(), CallState::Running);
    let stats = engine.stats();
    assert_eq!((stats.send_errors, stats.receive_errors), (0, 0));
}

#[test]
fn error_of_one_destination_does_not_affect_another() {
    // A slice lasts an hour, so nothing reads the error between two commands. Linux returns it from the next send call.
    let engine = engine(3_600_000, -1);
    let b = peer();
    let nobody = peer().local_addr().unwrap();
    let legs = vec![range(PortUse::Mux).lease().unwrap()];
    let call = engine.create("icmp", legs, Forwarder::default()).unwrap();
    crate::common::send_in_turn(&call, nobody, &b);
    assert_eq!(engine.stats().send_errors, 0);
}

#[test]
fn ipv4_and_ipv6_parties_reach_an_ipv6_socket_of_all_addresses() {
    let all = RangeSettings {
        port_use: PortUse::Mux,
        ..range_settings(Ipv6Addr::UNSPECIFIED.into(), PortUse::Mux)
    };
    let range = PortRange::new(all).unwrap();
    let Ok(leg) = range.lease() else {
        return; // the machine has no IPv6
    };
    let engine = engine(20, -1);
    let legs = vec![leg, range.lease().unwrap()];
    let port = legs[0].rtp_address().port();
    let (a, b) = (peer(), peer_at("[::1]:0"));
    let (of_a, of_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    for destination in [of_a, of_b] {
        legs[0].check_destination(destination).unwrap();
    }
    let call = engine
        .create("both", legs, Forwarder::new(of_a, of_b))
        .unwrap();
    a.send_to(b"4 to 6", (Ipv4Addr::LOCALHOST, port)).unwrap();
    assert_eq!(next(&b).0, b"4 to 6");
    // The address is not ::ffff:127.0.0.1, because an address has only one form.
    let from = call.with(|call, _| call.last_from).wait().unwrap();
    assert_eq!(from, Some(of_a));
    call.command(move |call, _| call.send(PortId::rtp(1), of_a, b"to 4"))
        .unwrap();
    assert_eq!(next(&a).0, b"to 4");
}

#[test]
fn an_ipv4_socket_refuses_an_ipv6_destination_when_it_is_set_and_when_it_is_used() {
    let range = range(PortUse::Mux);
    let leg = range.lease().unwrap();
    let destination: SocketAddr = "[::1]:5004".parse().unwrap();
    let error = leg.check_destination(destination).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("[::1]:5004"), "{text}");
    assert!(text.contains(&leg.rtp_address().to_string()), "{text}");
    let mapped: SocketAddr = "[::ffff:127.0.0.1]:5004".parse().unwrap();
    leg.check_destination(mapped).unwrap();

    let engine = engine(20, -1);
    let legs = vec![leg, range.lease().unwrap()];
    let call = engine.create("mixed", legs, Forwarder::default()).unwrap();
    let refused = stage(&call, PortId::rtp(0), destination);
    assert_eq!(refused, [Refused::Unreachable]);
    assert_eq!(engine.stats().stage_refused, 1);
}

#[test]
fn full_port_range_is_reported_with_its_values() {
    let all = range_settings(LOCALHOST, PortUse::Pair);
    // These are two ports that are free now.
    let free = {
        let leg = PortRange::new(all.clone()).unwrap().lease().unwrap();
        leg.rtp_address().port()
    };
    let one = RangeSettings {
        first: free,
        last: free + 1,
        quarantine: Duration::from_secs(3600),
        ..all
    };
    let range = PortRange::new(one).unwrap();
    let leg = range.lease().unwrap();
    assert_eq!(leg.rtp_address().port(), free);
    let text = range.lease().unwrap_err().to_string();
    let ports = format!("ports {free} to {} at 127.0.0.1", free + 1);
    assert!(
        text.contains(&ports) && text.contains("1 carry calls, and 0 must not be used"),
        "{text}"
    );
    drop(leg);
    // Another program may take the port when its sockets are closed. The range then avoids it.
    range.close_resting();
    peer_at(&format!("127.0.0.1:{free}"));
    let error = range.lease().unwrap_err();
    assert!(
        matches!(
            error,
            PortError::Exhausted {
                in_use: 0,
                quarantined: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_leg_takes_the_ports_of_another_process() {
    let all = range_settings(LOCALHOST, PortUse::Pair);
    let first = PortRange::new(all.clone()).unwrap();
    let leg = first.lease().unwrap();
    let port = leg.rtp_address().port();
    let range = PortRange::new(all.clone()).unwrap();
    let error = range.lease_at(port).unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    // The other process ends here.
    drop((leg, first));
    let leg = range.lease_at(port).unwrap();
    assert_eq!(leg.rtp_address().port(), port);
    assert_eq!(leg.rtcp_address().unwrap().port(), port + 1);
    // The number is in use. It can be leased only after the quarantine.
    let one = RangeSettings {
        first: port,
        last: port + 1,
        quarantine: Duration::from_secs(3600),
        ..all.clone()
    };
    drop((leg, range));
    let range = PortRange::new(one).unwrap();
    drop(range.lease_at(port).unwrap());
    assert!(matches!(
        range.lease().unwrap_err(),
        PortError::Exhausted { quarantined: 1, .. }
    ));
    // This number is outside of the range.
    let other = if port > 30_000 { 20_000 } else { 40_000 };
    let other = RangeSettings {
        first: other,
        last: other + 1,
        ..all
    };
    drop(range);
    let range = PortRange::new(other).unwrap();
    let leg = range.lease_at(port).unwrap();
    assert_eq!(leg.rtp_address().port(), port);
}

#[test]
fn ports_of_other_programs_are_skipped() {
    let all = range_settings(LOCALHOST, PortUse::Pair);
    let free = {
        let leg = PortRange::new(all.clone()).unwrap().lease().unwrap();
        leg.rtp_address().port()
    };
    let two = RangeSettings {
        first: free,
        last: free + 3,
        ..all
    };
    // The other program uses the RTCP port of the first pair.
    let other = peer_at(&format!("127.0.0.1:{}", free + 1));
    for _ in 0..8 {
        let leg = PortRange::new(two.clone()).unwrap().lease();
        // Another program may have taken the second pair too.
        match leg {
            Ok(leg) => assert_eq!(leg.rtp_address().port(), free + 2),
            Err(error) => assert!(matches!(error, PortError::Exhausted { .. }), "{error}"),
        }
    }
    drop(other);
}

#[test]
fn a_bad_range_is_refused_with_its_values() {
    for (first, last, port_use) in [
        (0, 10, PortUse::Mux),
        (20_000, 19_999, PortUse::Mux),
        (20_001, 20_002, PortUse::Pair),
        (65_535, 65_535, PortUse::Pair),
    ] {
        let settings = RangeSettings {
            port_use,
            ..RangeSettings::new(LOCALHOST, first, last)
        };
        let text = PortRange::new(settings).unwrap_err().to_string();
        assert!(text.contains(&format!("ports {first} to {last}")), "{text}");
    }
    let nowhere = RangeSettings::new("192.0.2.1".parse().unwrap(), 20_000, 20_100);
    let error = PortRange::new(nowhere).unwrap().lease().unwrap_err();
    let is_bind = matches!(error, PortError::Socket(SocketError::Bind { .. }));
    assert!(is_bind, "{error}");
}

/// A call that sends without input.
struct Ticker {
    to: SocketAddr,
    next_ns: u64,
    ticks: u64,
}

const TICK_NS: u64 = 20_000_000;

impl Call for Ticker {
    fn handle_datagram(&mut self, _now_ns: u64, _datagram: Datagram<'_>) {}

    fn poll_transmit(&mut self, now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
        if self.next_ns == 0 {
            self.next_ns = now_ns;
        }
        while self.next_ns <= now_ns {
            let number = self.ticks.to_be_bytes();
            if out.stage(PortId::rtp(0), self.to, &number).is_err() {
                return;
            }
            self.ticks += 1;
            self.next_ns += TICK_NS;
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        Some(self.next_ns)
    }
}

#[test]
fn timers_of_a_call_without_input_fire() {
    for wait_ms in [0, 5, 20] {
        let engine = engine(wait_ms, -1);
        let listener = peer();
        let to = listener.local_addr().unwrap();
        let legs = vec![range(PortUse::Mux).lease().unwrap()];
        let ticker = Ticker {
            to,
            next_ns: 0,
            ticks: 0,
        };
        let call = engine.create("ticker", legs, ticker).unwrap();
        for number in 0..15u64 {
            assert_eq!(next(&listener).0, number.to_be_bytes());
        }
        // A timer is never early. By definition of the schedule, this many ticks take at least this long.
        let (ticks, ahead_ns) = call
            .with(|call, now_ns| (call.ticks, call.next_ns.saturating_sub(now_ns)))
            .wait()
            .unwrap();
        assert!(ticks >= 15 && ahead_ns <= TICK_NS, "{ticks}, {ahead_ns}");
    }
}
