//! Carrying packets allocates nothing in any situation. The test is alone in its process, whose allocations are counted.

#[path = "it/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::media::{party_keys, protected};
use common::{engine, peer, range};
use threadbare_relay::{
    AudioSession, Call, Datagram, Engine, LegPorts, Listeners, Outbox, Pace, PortId, PortUse,
    Refused, SharedSettings, SharedSnapshot,
};
use threadbare_rtp::call::{DirectionConfig, Mode, SessionSpec, Side, Target};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::demux::Filter;
use threadbare_rtp::id::{NtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{AdmissionConfig, Destination, LegConfig, Payload, PayloadMap};
use threadbare_rtp::session::Profile;
use threadbare_rtp::srtp::Suite;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Counts the allocations of this thread only, because threads of the test runner allocate when another test ends.
    static OWN_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count_allocation() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // This fails on a thread that is ending, because its counter is gone.
    let _ = OWN_ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

struct Counting;

// SAFETY: each method passes its arguments to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: all memory here is the system allocator's.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation();
        // SAFETY: all memory here is the system allocator's, and the caller keeps the contract of `realloc`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A call that returns each datagram. It also sends another packet to an unused address every 20 ms.
struct Echo {
    bytes: [u8; 256],
    len: usize,
    to: Option<(PortId, SocketAddr)>,
    sink: SocketAddr,
    next_ns: u64,
}

const INTERVAL_NS: u64 = 20_000_000;

impl Call for Echo {
    fn handle_datagram(&mut self, _now_ns: u64, datagram: Datagram<'_>) {
        self.len = datagram.bytes.len();
        self.bytes[..self.len].copy_from_slice(datagram.bytes);
        self.to = Some((datagram.port, datagram.from));
    }

    fn poll_transmit(&mut self, now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
        if let Some((port, to)) = self.to {
            if out.stage(port, to, &self.bytes[..self.len]).is_err() {
                return;
            }
            self.to = None;
        }
        if self.next_ns <= now_ns && out.stage(PortId::rtp(0), self.sink, b"tick").is_ok() {
            self.next_ns = now_ns + INTERVAL_NS;
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        Some(self.next_ns)
    }
}

/// Lets each party send a packet and wait for its return.
fn round(parties: &[(UdpSocket, SocketAddr)], number: u16) {
    let mut packet = [0; 172];
    packet[0] = 0x80;
    packet[2..4].copy_from_slice(&number.to_be_bytes());
    for (party, port) in parties {
        party.send_to(&packet, port).unwrap();
    }
    let mut buffer = [0; 256];
    for (party, _) in parties {
        loop {
            let len = party.recv(&mut buffer).unwrap();
            if buffer[..len] == packet {
                break;
            }
        }
    }
}

/// Lets one test run at a time.
static COUNTED: Mutex<()> = Mutex::new(());

#[test]
fn packets_and_timers_allocate_nothing() {
    let _alone = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let engine: Engine<Echo> = engine(20, -1);
    let ranges = range(PortUse::Mux);
    let shared = SharedSettings::new("127.0.0.1:0".parse().unwrap());
    let shared = engine.share(&shared).unwrap();
    let sink = peer();
    let mut parties = Vec::new();
    let mut calls = Vec::new();
    for i in 0..40 {
        let party = peer();
        let leg: LegPorts = if i % 2 == 0 {
            ranges.lease().unwrap()
        } else {
            let from = Some(party.local_addr().unwrap());
            let filter = Filter {
                from,
                ..Filter::default()
            };
            shared.lease(filter).unwrap()
        };
        parties.push((party, leg.rtp_address()));
        let echo = Echo {
            bytes: [0; 256],
            len: 0,
            to: None,
            sink: sink.local_addr().unwrap(),
            next_ns: 0,
        };
        calls.push(engine.create("echo", vec![leg], echo).unwrap());
    }
    // Meanwhile, the tables grow to the size of the load.
    for number in 0..20 {
        round(&parties, number);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let received_before = engine.stats().packets_received;
    for number in 20..70 {
        round(&parties, number);
    }
    let received = engine.stats().packets_received - received_before;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    // The last packets may not be counted yet.
    assert!(received > 49 * 40, "{received}");
    assert_eq!(allocations, 0, "in {received} packets");
}

const KEYS: u8 = 101;
const NOISE: u8 = 13;

fn media_leg(payload_type: u8, encoding: Encoding, number: u32) -> LegConfig {
    let format = Format::new(encoding, 8000, 1).unwrap();
    let payloads = [
        Payload::audio(payload_type, format),
        Payload::telephone_event(KEYS, 8000),
        Payload::comfort_noise(NOISE, 8000),
    ];
    LegConfig {
        ssrc: Ssrc(number),
        first_seq: SeqNum(0),
        cname: "allocations@test".into(),
        seed: u64::from(number),
        ntp_at_zero: NtpTime(0),
        payloads: PayloadMap::new(&payloads).unwrap().into(),
        takes: None,
        jitter: jitter::Config::new(8000, 40_000_000),
        admission: AdmissionConfig::default(),
        destination: Destination::Peer,
        mux: true,
        bandwidth_bps: 64_000,
        profile: Profile::Avp,
    }
}

/// Returns a party's packet with this number. One of ten packets is lost, two are swapped, and some are digits and comfort noise.
fn media_packet(number: u16, payload_type: u8) -> Option<Vec<u8>> {
    let within = number % 30;
    let (number, payload_type, payload) = match within {
        7 | 17 | 27 => return None,
        3 => (number + 1, payload_type, vec![0x55; 160]),
        4 => (number - 1, payload_type, vec![0x55; 160]),
        10..=13 => {
            let duration = ((within - 9) * 160).to_be_bytes();
            let key = [
                5,
                u8::from(within == 13) << 7 | 10,
                duration[0],
                duration[1],
            ];
            (number, KEYS, key.to_vec())
        }
        20..=22 => (number, NOISE, vec![60]),
        _ => (number, payload_type, vec![0x33; 160]),
    };
    let time = match payload_type {
        KEYS => number - (within - 10),
        _ => number,
    };
    let mut packet = vec![0x80, payload_type];
    packet.extend(number.to_be_bytes());
    packet.extend((u32::from(time) * 160).to_be_bytes());
    packet.extend(7_u32.to_be_bytes());
    packet.extend(payload);
    Some(packet)
}

#[test]
fn losses_keys_noise_mute_and_hold_allocate_nothing() {
    carried_without_allocations(None);
}

#[test]
fn srtp_allocates_nothing() {
    carried_without_allocations(Some(Suite::AesCm128HmacSha1_80));
    carried_without_allocations(Some(Suite::AeadAes256Gcm));
}

fn carried_without_allocations(suite: Option<Suite>) {
    let _alone = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let engine: Engine<AudioSession> = engine(10, -1);
    let ranges = range(PortUse::Mux);
    let sides = [(0, Encoding::Pcmu), (8, Encoding::Pcma)];
    let (mut parties, mut calls) = (Vec::new(), Vec::new());
    for number in 0..6 {
        let mut spec = SessionSpec::call(
            sides.map(|(payload_type, encoding)| media_leg(payload_type, encoding, number)),
            [DirectionConfig::default(); 2],
        );
        for side in Side::BOTH {
            spec = spec.with_keys(side, suite.map(|suite| party_keys(suite, 1).0));
        }
        let call = AudioSession::create(0, spec, Duration::from_millis(10)).unwrap();
        let legs = vec![ranges.lease().unwrap(), ranges.lease().unwrap()];
        for ((payload_type, _), leg) in sides.iter().zip(&legs) {
            parties.push((peer(), leg.rtp_address(), *payload_type));
        }
        calls.push(engine.create("call", legs, call).unwrap());
    }
    // The packets are built in advance, because the test's own allocations would be counted.
    let packets: Vec<Vec<_>> = (0..=8)
        .map(|payload_type| {
            let mut sender = suite.map(|suite| party_keys(suite, 1).1);
            (0..180)
                .map(|number| media_packet(number, payload_type))
                .map(|packet| match &mut sender {
                    Some(sender) => packet.map(|packet| protected(sender, &packet)),
                    None => packet,
                })
                .collect()
        })
        .collect();
    let round = |number: u16, begin: Instant| {
        let due = begin + Duration::from_millis(20) * u32::from(number);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        for (party, port, payload_type) in &parties {
            if let Some(packet) = &packets[usize::from(*payload_type)][usize::from(number)] {
                party.send_to(packet, port).unwrap();
            }
        }
    };
    let set_mode = |mode| {
        for call in &calls {
            let set = call.with(move |call, _| {
                for side in Side::BOTH {
                    call.session_mut().set_mode(side, mode);
                }
            });
            set.wait().unwrap();
        }
    };
    let begin = Instant::now();
    // By then, everything has happened once.
    (0..90).for_each(|number| round(number, begin));
    for (first, mode) in [(90, Mode::Pass), (120, Mode::Mute), (150, Mode::Hold)] {
        set_mode(mode);
        // The memory of the orders themselves is freed.
        (first..first + 5).for_each(|number| round(number, begin));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (first + 5..first + 30).for_each(|number| round(number, begin));
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocated, 0, "{mode:?}");
    }
    for call in &calls {
        let stats = call.with(|call, _| call.session().stats()).wait().unwrap();
        for direction in stats.directions {
            assert!(
                direction.lost > 0 && direction.concealed_ns > 0,
                "{direction:?}"
            );
            assert!(
                direction.key_packets > 0 && direction.noise_packets > 0,
                "{direction:?}"
            );
        }
    }
}

/// An outbox that drops everything.
struct Nowhere;

impl Outbox for Nowhere {
    fn stage_with(
        &mut self,
        _port: PortId,
        _to: SocketAddr,
        _write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused> {
        Ok(())
    }
}

/// The test runs in virtual time. The stream has no meter, and two listeners, of which one takes no audio.
#[test]
fn listeners_cost_no_allocations() {
    let _alone = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let leg = media_leg(0, Encoding::Pcmu, 1);
    let config = SessionSpec::stream(leg, Target::Nobody, DirectionConfig::default());
    let line = threadbare_rtp::call::Session::new(0, config).unwrap();
    let (snapshot, pace) = (
        SharedSnapshot::default(),
        Pace::new(Duration::from_millis(100)),
    );
    let mut line =
        AudioSession::new(line, Duration::from_millis(10)).publish_to(snapshot.clone(), pace);
    let [mut takes, _takes_nothing] = [snapshot.listen(), snapshot.listen()];
    let mut packets: Vec<_> = (0..600).map(|number| media_packet(number, 0)).collect();
    let from = SocketAddr::from(([192, 0, 2, 1], 5000));
    let mut taken = Vec::with_capacity(600 * 160);
    let mut before = 0;
    for (number, packet) in (0_u64..).zip(&mut packets) {
        // By then, everything has happened once, including a report.
        if number == 300 {
            before = OWN_ALLOCATIONS.get();
        }
        let now_ns = number * INTERVAL_NS;
        if let Some(bytes) = packet {
            line.handle_datagram(
                now_ns,
                Datagram {
                    port: PortId::rtp(0),
                    from,
                    bytes,
                    received_ns: now_ns,
                },
            );
        }
        line.poll_transmit(now_ns, true, &mut Nowhere);
        takes.take(|_, samples| taken.extend_from_slice(samples));
    }
    let allocated = OWN_ALLOCATIONS.get() - before;
    assert_eq!(allocated, 0);
    // This is all audio except for the packets in the jitter buffer and an incomplete portion.
    assert!(taken.len() > 400 * 160, "{}", taken.len());
    assert_eq!(takes.missed_ns(), 0);
}

/// The test is the same as for a stream, but for a call whose parties have other codecs.
#[test]
fn listener_of_a_call_costs_no_allocations() {
    let _alone = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let sides = [(0, Encoding::Pcmu), (8, Encoding::Pcma)];
    let config = SessionSpec::call(
        sides.map(|(payload_type, encoding)| media_leg(payload_type, encoding, 1)),
        [DirectionConfig::default(); 2],
    );
    let call = threadbare_rtp::call::Session::new(0, config).unwrap();
    let listeners = Listeners::default();
    let mut call =
        AudioSession::new(call, Duration::from_millis(10)).with_listeners(listeners.clone());
    let [mut takes, _takes_nothing] = [listeners.listen(1 << 12), listeners.listen(1 << 12)];
    call.update_listeners();
    let mut packets = sides
        .map(|(payload_type, _)| (0..600).map(move |number| media_packet(number, payload_type)))
        .map(Iterator::collect::<Vec<_>>);
    let mut taken = [0; 2];
    let mut before = 0;
    for number in 0..600 {
        // By then, everything has happened once, including a report.
        if number == 300 {
            before = OWN_ALLOCATIONS.get();
        }
        let now_ns = number as u64 * INTERVAL_NS;
        for (leg, packets) in (0_u8..).zip(&mut packets) {
            if let Some(bytes) = &mut packets[number] {
                call.handle_datagram(
                    now_ns,
                    Datagram {
                        port: PortId::rtp(leg),
                        from: SocketAddr::from(([192, 0, 2, 1 + leg], 5000)),
                        bytes,
                        received_ns: now_ns,
                    },
                );
            }
        }
        call.poll_transmit(now_ns, true, &mut Nowhere);
        takes.take(|portion, samples| taken[portion.side as usize] += samples.len());
    }
    let allocated = OWN_ALLOCATIONS.get() - before;
    assert_eq!(allocated, 0);
    assert!(
        taken.iter().all(|samples| *samples > 400 * 160),
        "{taken:?}"
    );
    assert_eq!(takes.missed_ns(), 0);
}
