//! Carrying packets allocates nothing. Alone in its process, whose allocations are counted.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{engine, peer, range};
use threadbare_relay::{Call, Datagram, Engine, LegPorts, Outbox, PortId, PortUse, SharedSettings};
use threadbare_rtp::demux::Filter;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: each method passes its arguments on to the system's allocator as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: all memory here is the system allocator's.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends back what comes, and something by itself each 20 ms: to nobody in particular.
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

    fn poll_transmit(&mut self, now_ns: u64, out: &mut dyn Outbox) {
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

/// Each party sends a packet and waits for it.
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

#[test]
fn packets_and_timers_allocate_nothing() {
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
    // Tables grow to the size of the load.
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
    // The last ones may not be counted yet.
    assert!(received > 49 * 40, "{received}");
    assert_eq!(allocations, 0, "in {received} packets");
}
