//! Calls that move between threads while packets and commands reach them.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::media::{leg, party_keys, protected, speech};
use crate::common::{
    Forwarder, engine, next, next_port, peer, range, rtp, settings, two_legs, until,
};
use proptest::prelude::*;
use threadbare_relay::{
    AudioSession, Call, CallHandle, CallState, Datagram, Engine, Gone, Listeners, Outbox, PortUse,
    SharedSettings,
};
use threadbare_rtp::call::{DirectionConfig, Session, SessionSpec, Side};
use threadbare_rtp::codec::Encoding;
use threadbare_rtp::demux::Filter;
use threadbare_rtp::g711::ULAW_TO_LINEAR;
use threadbare_rtp::leg::{AdmissionConfig, LegConfig};
use threadbare_rtp::srtp::Suite;

/// A forwarder that checks the time and the order of its commands.
struct Checked {
    forwarder: Forwarder,
    last_ns: u64,
    /// The number of the next command from each thread.
    next: [u32; COMMANDERS],
}

impl Checked {
    fn new(a: SocketAddr, b: SocketAddr) -> Checked {
        Checked {
            forwarder: Forwarder::new(a, b),
            last_ns: 0,
            next: [0; COMMANDERS],
        }
    }

    fn note_time(&mut self, now_ns: u64) {
        assert!(now_ns >= self.last_ns, "the time decreases");
        self.last_ns = now_ns;
    }

    fn obey(&mut self, now_ns: u64, thread: usize, number: u32) {
        self.note_time(now_ns);
        assert_eq!(self.next[thread], number);
        self.next[thread] += 1;
    }
}

impl Call for Checked {
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        self.note_time(now_ns);
        self.forwarder.handle_datagram(now_ns, datagram);
    }

    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        self.forwarder.poll_transmit(now_ns, may_lose, out);
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }
}

/// Two parties that send to each other through a call.
struct Parties {
    sockets: [UdpSocket; 2],
    ports: [SocketAddr; 2],
}

impl Parties {
    /// Sends a number from both parties.
    fn send(&self, number: u32) {
        for (socket, port) in self.sockets.iter().zip(&self.ports) {
            socket.send_to(&number.to_be_bytes(), port).unwrap();
        }
    }

    /// Asserts that both parties receive this number next.
    fn receive(&self, number: u32) {
        for socket in &self.sockets {
            assert_eq!(next(socket).0, number.to_be_bytes());
        }
    }

    /// Asserts that nothing is left to receive.
    fn are_done(&self) {
        for socket in &self.sockets {
            socket.set_nonblocking(true).unwrap();
            assert!(socket.recv(&mut [0; 16]).is_err(), "a packet came twice");
        }
    }
}

fn talking(engine: &Engine<Checked>) -> (Parties, CallHandle<Checked>) {
    let legs = two_legs(&range(PortUse::Pair));
    let ports = [legs[0].rtp_address(), legs[1].rtp_address()];
    let sockets = [peer(), peer()];
    let [a, b] = sockets.each_ref().map(|one| one.local_addr().unwrap());
    let call = engine.create("talks", legs, Checked::new(a, b)).unwrap();
    (Parties { sockets, ports }, call)
}

/// Sends commands to all calls until `is_over`. Returns the number of commands that each call has got.
fn command(calls: &[CallHandle<Checked>], thread: usize, is_over: &AtomicBool) -> u32 {
    let commanders: Vec<_> = calls.iter().map(CallHandle::commander).collect();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        for commander in &commanders {
            if number % 8 == 7 {
                // Waiting bounds the number of queued commands.
                let obeyed = commander.with(move |call, now_ns| call.obey(now_ns, thread, number));
                obeyed.wait().unwrap();
            } else {
                let obey = move |call: &mut Checked, now_ns| call.obey(now_ns, thread, number);
                commander.command(obey).unwrap();
            }
        }
        number += 1;
    }
    number
}

#[test]
fn moves_lose_double_and_reorder_neither_packets_nor_commands() {
    for orders_wait in [false, true] {
        let mut settings = settings(5, 2);
        settings.orders_wait = orders_wait;
        let engine: Engine<Checked> = Engine::new(settings).unwrap();
        let (parties, calls): (Vec<_>, Vec<_>) = (0..CALLS).map(|_| talking(&engine)).unzip();
        let is_over = AtomicBool::new(false);
        let mut moves = 0;
        let commands = std::thread::scope(|scope| {
            let talker = scope.spawn(|| {
                for round in 0..ROUNDS + WINDOW {
                    for one in &parties {
                        if round < ROUNDS {
                            one.send(round);
                        }
                        if let Some(number) = round.checked_sub(WINDOW) {
                            one.receive(number);
                        }
                    }
                }
            });
            let (calls, is_over) = (&calls, &is_over);
            let commanders: [_; COMMANDERS] =
                std::array::from_fn(|thread| scope.spawn(move || command(calls, thread, is_over)));
            for round in 0_usize.. {
                if talker.is_finished() {
                    break;
                }
                for (number, call) in calls.iter().enumerate() {
                    let to = (round + number) % 2;
                    let moved = engine.move_call(call, to).wait().unwrap();
                    if let Some(moved) = moved {
                        assert_eq!(call.shard().name(), moved.to);
                        moves += 1;
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
            talker.join().unwrap();
            commanders.map(|one| one.join().unwrap())
        });
        assert!(moves > CALLS as u64, "{moves}");
        assert_eq!(engine.calls(), CALLS as u64);
        until("all have arrived", || engine.stats().calls == CALLS as u64);
        let stats = engine.stats();
        assert_eq!((stats.created, stats.moved), (CALLS as u64, moves));
        for (call, parties) in calls.into_iter().zip(&parties) {
            let removed = call.remove().expect("the call runs");
            assert_eq!(removed.next, commands);
            parties.are_done();
        }
        assert_eq!((engine.calls(), engine.stats().calls), (0, 0));
    }
}

#[test]
fn a_call_that_ends_during_its_move_leaves_nothing() {
    let engine: Engine<Checked> = engine(5, 2);
    for round in 0..CALLS * 4 {
        let (parties, call) = talking(&engine);
        parties.send(0);
        drop(engine.move_call(&call, round % 2));
        drop(engine.move_call(&call, 1 - round % 2));
        match round % 4 {
            0 => drop(call),
            1 => assert!(call.remove().is_some()),
            2 => {
                let panicked = call.with(|_, _| panic!("as a test does"));
                assert_eq!(panicked.wait(), Err::<(), Gone>(Gone));
                drop(engine.move_call(&call, round % 2));
                until("it is removed", || call.state() == CallState::Panicked);
            }
            _ => {
                let commander = call.commander();
                drop(call);
                drop(commander.with(|_, _| ()));
            }
        }
    }
    until("all calls are gone", || {
        engine.calls() == 0 && engine.stats().calls == 0
    });
    assert_eq!(engine.stats().panicked, CALLS as u64);
}

#[test]
fn calls_of_an_engine_that_ends_during_moves_are_removed() {
    for _ in 0..20 {
        let engine: Engine<Checked> = engine(5, 2);
        let (_parties, calls): (Vec<_>, Vec<_>) = (0..4).map(|_| talking(&engine)).unzip();
        for to in 0..8 {
            for call in &calls {
                drop(engine.move_call(call, to % 2));
            }
        }
        drop(engine);
        for call in calls {
            assert_eq!(call.state(), CallState::Removed);
            assert_eq!(call.with(|_, _| ()).wait(), Err(Gone));
            assert!(call.remove().is_none());
        }
    }
}

#[test]
fn a_call_on_a_shared_port_stays() {
    let engine: Engine<Checked> = engine(5, 2);
    let shared = SharedSettings::new("127.0.0.1:0".parse().unwrap());
    let port = engine.share(&shared).unwrap();
    let (a, b) = (peer(), peer());
    let from = a.local_addr().unwrap();
    let legs = vec![
        port.lease(Filter {
            from: Some(from),
            ..Filter::default()
        })
        .unwrap(),
        range(PortUse::Mux).lease().unwrap(),
    ];
    let call = Checked::new(from, b.local_addr().unwrap());
    let call = engine.create("shared", legs, call).unwrap();
    let before = call.shard().id();
    for to in [0, 1, 2] {
        assert_eq!(engine.move_call(&call, to).wait(), Ok(None));
    }
    assert_eq!(call.shard().id(), before);
    let packet = rtp(7, 1, b"stays");
    a.send_to(&packet, port.rtp_address()).unwrap();
    assert_eq!(next(&b).0, packet);
}

/// An action of the thread that owns a call.
#[derive(Debug, Clone, Copy)]
enum Action {
    Command,
    Ask,
    Move(usize),
    SetTos,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Command),
        1 => Just(Action::Ask),
        4 => (0..3_usize).prop_map(Action::Move),
        1 => Just(Action::SetTos),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The model of a call is a counter, because orders run in the order in which they were given.
    #[test]
    fn orders_run_in_order_across_any_moves(
        actions in prop::collection::vec(action(), 1..200),
        orders_wait: bool,
    ) {
        let mut settings = settings(1, 3);
        settings.orders_wait = orders_wait;
        let engine: Engine<Checked> = Engine::new(settings).unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
        let call = engine.create("orders", Vec::new(), Checked::new(nobody, nobody)).unwrap();
        let mut number = 0;
        let mut asked = Vec::new();
        for action in actions {
            match action {
                Action::Command => {
                    let count = number;
                    call.command(move |call, now_ns| call.obey(now_ns, 0, count)).unwrap();
                    number += 1;
                }
                Action::Ask => asked.push((number, call.with(|call, _| call.next[0]))),
                Action::Move(to) => drop(engine.move_call(&call, to)),
                Action::SetTos => call.set_tos(184).unwrap(),
            }
        }
        for (number, reply) in asked {
            // With `orders_wait`, a question may overtake no command either.
            prop_assert_eq!(reply.wait(), Ok(number));
        }
        prop_assert_eq!(call.remove().map(|call| call.next[0]), Some(number));
    }
}

#[test]
fn rebalance_moves_one_call_a_second_until_the_threads_are_even() {
    let engine: Engine<Checked> = engine(5, 2);
    let (_parties, calls): (Vec<_>, Vec<_>) = (0..8).map(|_| talking(&engine)).unzip();
    for call in &calls {
        engine.move_call(call, 0).wait().unwrap();
    }
    let on_first = || engine.shard_stats()[0].stats.calls;
    until("all have arrived", || on_first() == 8);
    let begin = Instant::now();
    let mut moves = Vec::new();
    while moves.len() < 4 {
        assert!(begin.elapsed() < crate::common::DEADLINE, "{moves:?}");
        moves.extend(engine.rebalance());
        // The method must limit the rate itself.
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        begin.elapsed() > Duration::from_secs(3),
        "at most one move a second"
    );
    let names: Vec<String> = engine
        .shard_stats()
        .into_iter()
        .map(|one| one.thread)
        .collect();
    for moved in moves {
        assert_eq!(moved.label, "talks");
        assert_eq!([moved.from, moved.to], names[..2]);
    }
    until("four stay", || on_first() == 4);
}

/// A session with SRTP on both sides and a listener, between two real parties.
#[test]
fn srtp_and_listeners_continue_across_moves() {
    let engine: Engine<AudioSession> = engine(5, 2);
    let legs = two_legs(&range(PortUse::Mux));
    let port = legs[0].rtp_address();
    let (a, b) = (peer(), peer());
    let addresses = [&a, &b].map(|one| one.local_addr().unwrap());
    let now_ns = threadbare_runtime::clock_now_ns();
    let config = Side::BOTH.map(|side| LegConfig {
        mux: true,
        admission: AdmissionConfig {
            peer: Some(addresses[side as usize]),
            ..AdmissionConfig::default()
        },
        ..leg(side, 0, Encoding::Pcmu)
    });
    let config = SessionSpec::call(config, [DirectionConfig::default(); 2]);
    let listeners = Listeners::default();
    let mut listening = listeners.listen(1 << 20);
    let suite = Suite::AesCm128HmacSha1_80;
    let (keys_a, mut sender, _) = party_keys(suite, 1);
    let (keys_b, _, mut receiver) = party_keys(suite, 2);
    let session = Session::new(now_ns, config).unwrap();
    let mut session =
        AudioSession::new(session, Duration::from_millis(5)).with_listeners(listeners.clone());
    for (side, keys) in [(Side::A, keys_a), (Side::B, keys_b)] {
        session.set_keys(now_ns, side, Some(keys));
    }
    session.update_listeners();
    let call = engine.create("srtp", legs, session).unwrap();
    let mut heard = Vec::new();
    let mut first = None;
    for round in 0..PACKETS + WINDOW as u16 {
        if round < PACKETS {
            let packet = protected(&mut sender, &speech(0, 7, round));
            a.send_to(&packet, port).unwrap();
        }
        drop(engine.move_call(&call, usize::from(round) % 2));
        let Some(number) = round.checked_sub(WINDOW as u16) else {
            continue;
        };
        let mut received = std::iter::repeat_with(|| next(&b).0).take(PACKETS.into());
        let is_rtp = |bytes: &Vec<u8>| !threadbare_rtp::packet::is_rtcp(bytes);
        let mut bytes = received.find(is_rtp).expect("a packet of audio");
        let len = receiver.unprotect_rtp(&mut bytes).expect("authentic");
        let seq = u16::from_be_bytes([bytes[2], bytes[3]]);
        let first = *first.get_or_insert(seq);
        assert_eq!(seq, first.wrapping_add(number), "continuous");
        assert_eq!(bytes[12..len], speech(0, 7, number)[12..]);
        listening.take(|portion, pcm| {
            if portion.side == Side::A {
                heard.extend_from_slice(pcm);
            }
        });
    }
    let moves = engine.stats().moved;
    assert!(moves > u64::from(PACKETS) / 2, "{moves}");
    // The session passes its last audio to the listeners when it is dropped.
    drop(call.remove().expect("it runs"));
    listening.take(|portion, pcm| {
        if portion.side == Side::A {
            heard.extend_from_slice(pcm);
        }
    });
    let said = (0..PACKETS).flat_map(|number| {
        let code = usize::from(0x55 ^ number as u8);
        [ULAW_TO_LINEAR[code]; 160]
    });
    assert!(heard.iter().copied().eq(said), "{} samples", heard.len());
}

#[test]
fn rtcp_moves_with_its_call() {
    let engine: Engine<Checked> = engine(5, 2);
    let ranges = range(PortUse::Pair);
    let legs = two_legs(&ranges);
    let rtcp = legs[0].rtcp_address().expect("a pair");
    // The forwarder sends RTCP to the port after that of RTP.
    let b = peer();
    let mut to = b.local_addr().unwrap();
    to.set_port(to.port() - 1);
    let call = engine.create("rtcp", legs, Checked::new(to, to)).unwrap();
    assert_eq!(next_port(to), b.local_addr().unwrap());
    for number in 0..20_u8 {
        b.send_to(&[number], rtcp).unwrap();
        engine
            .move_call(&call, usize::from(number) % 2)
            .wait()
            .unwrap();
        assert_eq!(next(&b).0, [number]);
    }
}

const CALLS: usize = 16;
/// Number of threads that send commands.
const COMMANDERS: usize = 2;
/// Number of packets of each party.
const ROUNDS: u32 = 600;
/// Number of packets that are on their way at a time. They fit into a socket's buffer.
const WINDOW: u32 = 8;
/// Number of packets of a call with SRTP.
const PACKETS: u16 = 200;
