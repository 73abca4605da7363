//! Destinations of calls. `threadbare_rtp::policy` contains the rules, and these tests apply them to outgoing datagrams.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::common::{Forwarder, next, peer, range, settings, two_legs, until};
use threadbare_relay::{
    Call, Datagram, Destinations, Engine, Forward, ForwardSide, Outbox, PortId, PortUse, Refused,
};
use threadbare_rtp::policy::MediaPolicy;

/// Returns a policy for which these sockets are services of the machine.
fn policy(services: &[SocketAddr]) -> Arc<MediaPolicy> {
    Arc::new(MediaPolicy {
        services: services.iter().map(SocketAddr::port).collect(),
        ..MediaPolicy::default()
    })
}

fn engine<C: Call>(policy: Arc<MediaPolicy>) -> (Engine<C>, Destinations) {
    let mut settings = settings(5, -1);
    let destinations = Destinations::new(policy);
    settings.destinations = Some(destinations.clone());
    (Engine::new(settings).unwrap(), destinations)
}

#[test]
fn a_call_reaches_parties_but_neither_a_service_nor_its_own_ports() {
    let (service, party) = (peer(), peer());
    let [at_service, at_party] = [&service, &party].map(|one| one.local_addr().unwrap());
    let (engine, destinations) = engine(policy(&[at_service]));
    let legs = two_legs(&range(PortUse::Pair));
    let own: Vec<SocketAddr> = legs
        .iter()
        .flat_map(|leg| [Some(leg.rtp_address()), leg.rtcp_address()])
        .flatten()
        .collect();
    assert_eq!(own.len(), 4);
    let call = engine.create("", legs, Forwarder::default()).unwrap();
    let send = |to: SocketAddr, bytes: &'static [u8]| {
        let sent = call.with(move |call, _| call.send(PortId::rtcp(1), to, bytes));
        sent.wait().unwrap();
    };
    // For the second datagram, the decision about the first one is remembered.
    for bytes in [b"one", b"two"] {
        send(at_party, bytes);
        assert_eq!(next(&party).0, bytes);
    }
    for to in [&[at_service], &own[..]].concat() {
        send(to, b"forbidden");
    }
    let refused = call.with(|call, _| (call.refused.clone(), call.received));
    assert_eq!(refused.wait().unwrap(), (vec![Refused::Forbidden; 5], 0));
    until("all are counted", || engine.stats().forbidden == 5);
    // A changed policy applies to calls that are running.
    destinations.set(policy(&[at_party]));
    send(at_party, b"forbidden");
    until("it is counted", || engine.stats().forbidden == 6);
    send(at_service, b"fine");
    assert_eq!(next(&service).0, b"fine", "and nothing of before");
}

/// A program on this machine sends from the port of a service. The relay learns it as a party, but sends nothing there.
#[test]
fn a_learned_address_is_judged_like_a_signalled_one() {
    let (service, party) = (peer(), peer());
    let (engine, destinations) = engine(policy(&[service.local_addr().unwrap()]));
    let legs = two_legs(&range(PortUse::Mux));
    let [a, b] = [legs[0].rtp_address(), legs[1].rtp_address()];
    let sides = [ForwardSide::default(), ForwardSide::default()];
    let call = engine.create("", legs, Forward::new(0, sides)).unwrap();
    let learned = |side: usize| {
        let to = call.with(move |call, _| call.stats()[side].to);
        to.wait().unwrap()
    };
    for (socket, port, side) in [(&service, a, 0), (&party, b, 1)] {
        until("its address is learned", || {
            socket.send_to(b"here", port).unwrap();
            learned(side).is_some()
        });
    }
    assert_eq!(learned(0), service.local_addr().ok());
    let before = engine.stats().forbidden;
    party.send_to(b"d7:command4:liste", b).unwrap();
    // Earlier packets, which have four bytes each, may be counted only after this one was sent.
    until("it is read", || {
        let read = call
            .with(|call, _| call.stats()[1].received[0])
            .wait()
            .unwrap();
        read.bytes > 4 * read.packets
    });
    until("it is refused", || engine.stats().forbidden > before);
    destinations.set(policy(&[]));
    service.set_nonblocking(true).unwrap();
    // The old policy may still apply to a batch that is being read.
    until("it passes", || {
        party.send_to(b"fine", b).unwrap();
        let mut room = [0; 64];
        service.recv(&mut room).is_ok_and(|len| {
            assert_eq!(room[..len], *b"fine", "and nothing of before");
            true
        })
    });
}

/// A call that copies each datagram.
struct Copier(SocketAddr, Option<Vec<u8>>);

impl Call for Copier {
    fn handle_datagram(&mut self, _now_ns: u64, datagram: Datagram<'_>) {
        self.1 = Some(datagram.bytes.to_vec());
    }

    fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
        if let Some(bytes) = self.1.take() {
            out.stage_copy(PortId::rtp(0), self.0, &bytes).unwrap();
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }
}

#[test]
fn copies_to_addresses_that_the_relay_chooses_pass_the_policy() {
    let (inside, party) = (peer(), peer());
    let to = inside.local_addr().unwrap();
    let (engine, _) = engine(policy(&[to]));
    let legs = vec![range(PortUse::Mux).lease().unwrap()];
    let port = legs[0].rtp_address();
    let _call = engine.create("", legs, Copier(to, None)).unwrap();
    party.send_to(b"copied", port).unwrap();
    assert_eq!(next(&inside).0, b"copied");
}
